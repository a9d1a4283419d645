"""Proof, before anything runs, that a `Trace` can be replayed: on each rank and across all of them.

Called by `genie.experiment.plan` between `genie.workload.load` and `genie.collectives.lower`. `check` either returns
a `CheckedTrace` (a global order, matched collectives and messages) or raises TraceError with file, node and reason.
It never repairs: what it changes (collectives of one rank become no-operations) is said in the trace's notes.
All walks are iterative and near-linear: traces of a million nodes are fine.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import NoReturn

from genie.errors import TraceError
from genie.units import MAX_BYTES
from genie.workload.excerpt import excerpt, label
from genie.workload.trace import CollectiveKind, Operator, OpKind, RankTrace, Trace

MAX_DURATION_NS = 2**62
ROOTED = frozenset(
    {CollectiveKind.REDUCE, CollectiveKind.GATHER, CollectiveKind.SCATTER, CollectiveKind.BROADCAST},
)


@dataclass(frozen=True, slots=True)
class Call:
    """One collective, or one message, with its part on every rank.

    ``call_id`` is its index in `CheckedTrace.calls`. ``ranks`` are world ranks in communicator order, for a message
    (sender, receiver); ``nodes`` are the trace ids on these ranks, ``ops`` their dense indexes. ``kind`` is None for a
    message. ``vectors`` holds, for each of ``ranks``, what it sends to each peer, if the call is uneven, else ();
    ``bytes`` then is the largest sum of a vector.
    """

    call_id: int
    comm: str
    kind: CollectiveKind | None
    bytes: int
    ranks: tuple[int, ...]
    nodes: tuple[int, ...]
    ops: tuple[int, ...]
    root: int = 0
    tag: int = 0
    vectors: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedTrace:
    """A trace that can be replayed.

    Dense index i of rank r is operator ``trace.ranks[r].operators[order[r][i]]``; ``needs[r][i]`` are the dense
    indexes it waits for, all below i. ``call_of[r]`` maps dense indexes to calls. ``order`` is the projection of one
    topological order of the whole job, so running every rank strictly in index order cannot deadlock, and the
    calls of a communicator come in the same sequence on all its ranks.
    """

    trace: Trace
    order: tuple[tuple[int, ...], ...]
    needs: tuple[tuple[tuple[int, ...], ...], ...]
    calls: tuple[Call, ...]
    call_of: tuple[dict[int, int], ...]


@dataclass(slots=True)
class _Rank:
    """Working state of one rank: predecessors by position, and the rank's own topological order."""

    trace: RankTrace
    needs: list[tuple[int, ...]]
    order: list[int]


def check(trace: Trace) -> CheckedTrace:
    """Check ``trace`` and match its communication. ``trace`` is not changed, but for sentences added to its notes.

    Raises:
        TraceError: the first thing that stands in the way of a faithful replay.
    """
    _check_communicators(trace)
    trace = _without_lonely_collectives(trace)
    ranks = [_check_rank(rank, trace) for rank in trace.ranks]
    collectives = _match_collectives(trace, ranks)
    messages = _match_messages(ranks)
    return _order_job(trace, ranks, collectives, messages)


def _fail(rank: RankTrace, op: Operator, message: str, hint: str = "") -> NoReturn:
    raise TraceError(message, file=_where(rank), node=label(op.id, op.name), hint=hint)


def _where(rank: RankTrace) -> str:
    """The file of a rank; a generator's name gets the rank, since it is no file."""
    return rank.source if str(rank.rank) in rank.source else f"{rank.source or 'trace'} (rank {rank.rank})"


def _named(rank: RankTrace, op: Operator) -> str:
    return f"rank {rank.rank} node {label(op.id, op.name)}"


def _check_communicators(trace: Trace) -> None:
    world = trace.world
    if not world:
        raise TraceError("the trace has no ranks")
    if not any(rank.operators for rank in trace.ranks):
        raise TraceError("no rank has any operator: there is nothing to replay", file=trace.ranks[0].source)
    for place, rank in enumerate(trace.ranks):
        if rank.rank != place:
            raise TraceError(f"rank {rank.rank} stands at place {place} of the trace", file=rank.source)
    for name, members in trace.communicators.items():
        who = f"communicator {excerpt(name)}" if name else "the world communicator"
        strangers = [member for member in members if not 0 <= member < world]
        if strangers:
            raise TraceError(f"{who} names rank {strangers[0]}, but the job has ranks 0 to {world - 1}")
        if len(set(members)) != len(members):
            twice = next(member for member in members if members.count(member) > 1)
            raise TraceError(f"{who} names rank {twice} more than once: {excerpt(list(members))}")
    if trace.communicators.get("") != tuple(range(world)):
        raise TraceError(f"the world communicator must be ranks 0 to {world - 1} in order")


def _without_lonely_collectives(trace: Trace) -> Trace:
    """Collectives of one-rank communicators move nothing: a copy of the trace where they are NOOP, noted."""
    lonely = {name for name, members in trace.communicators.items() if len(members) == 1}
    if not lonely:
        return trace
    found = 0
    ranks = []
    for rank in trace.ranks:
        operators = list(rank.operators)
        for place, op in enumerate(operators):
            if op.kind is OpKind.COLLECTIVE and op.comm in lonely and trace.communicators[op.comm] == (rank.rank,):
                operators[place] = replace(op, kind=OpKind.NOOP, duration_ns=0, collective=None)
                found += 1
        ranks.append(RankTrace(rank.rank, operators, rank.source))
    if not found:
        return trace
    trace.notes.append(f"{found} collectives on communicators of one rank move no bytes and end at once")
    return Trace(ranks, trace.communicators, trace.notes, trace.parameters)


def _check_rank(rank: RankTrace, trace: Trace) -> _Rank:
    """Node by node, then the rank's own graph: ids, dependencies, kinds, sizes, and a topological order."""
    operators = rank.operators
    position = {op.id: place for place, op in enumerate(operators)}
    if len(position) != len(operators):
        _duplicate(rank)
    members = {name: frozenset(ranks) for name, ranks in trace.communicators.items()}
    needs: list[tuple[int, ...]] = []
    for op in operators:
        dependencies = (*op.data_deps, *op.ctrl_deps) if op.ctrl_deps else op.data_deps
        try:
            needs.append(tuple([position[dependency] for dependency in dependencies]))
        except KeyError:
            _missing(rank, op, position)
        kind = op.kind
        if kind is OpKind.COMPUTE or kind is OpKind.MEMORY:
            duration = op.duration_ns
            if duration is None:
                _fail(rank, op, "has no duration", "name a device (workload.device=…) or record durations")
            if not 0 <= duration <= MAX_DURATION_NS:
                _fail(rank, op, f"duration of {duration} ns is not between 0 and 2^62")
        elif kind is not OpKind.NOOP:
            _check_communication(rank, op, trace, members)
    return _Rank(rank, needs, _topological(rank, needs))


def _duplicate(rank: RankTrace) -> NoReturn:
    seen: dict[int, Operator] = {}
    for op in rank.operators:
        if op.id in seen:
            _fail(rank, op, f"id {op.id} is used twice: also by {excerpt(seen[op.id].name)}")
        seen[op.id] = op
    raise AssertionError("no duplicate id")


def _missing(rank: RankTrace, op: Operator, position: dict[int, int]) -> NoReturn:
    for what, dependencies in (("data", op.data_deps), ("control", op.ctrl_deps)):
        absent = [dependency for dependency in dependencies if dependency not in position]
        if absent:
            hint = "workload.control_deps=off replays with data dependencies only" if what == "control" else ""
            _fail(rank, op, f"{what} dependency on node {absent[0]}, which is not in the file", hint)
    raise AssertionError("no missing dependency")


def _check_communication(rank: RankTrace, op: Operator, trace: Trace, members: dict[str, frozenset[int]]) -> None:
    if not 0 <= op.bytes <= MAX_BYTES:
        _fail(rank, op, f"size of {op.bytes} bytes is not between 0 and 2^63-1")
    if op.kind is OpKind.COLLECTIVE:
        if op.collective is None:
            _fail(rank, op, "is a collective without a kind")
        group = members.get(op.comm)
        if group is None:
            known = excerpt(sorted(name for name in members if name)) if len(members) > 1 else "only the world"
            _fail(rank, op, f"communicator {excerpt(op.comm)} is not defined; there are: {known}")
        if rank.rank not in group:
            ranks = excerpt(list(trace.communicators[op.comm]))
            _fail(rank, op, f"rank {rank.rank} is not a member of communicator {excerpt(op.comm)} {ranks}")
        if op.collective in ROOTED and not 0 <= op.root < len(group):
            _fail(rank, op, f"root {op.root} is not a rank of communicator {excerpt(op.comm)} of {len(group)} ranks")
        _check_vector(rank, op, len(group))
    elif op.kind in (OpKind.SEND, OpKind.RECV):
        if not 0 <= op.peer < trace.world:
            _fail(rank, op, f"peer is rank {op.peer}, but the job has ranks 0 to {trace.world - 1}")
        if op.peer == rank.rank:
            _fail(rank, op, f"{op.kind}s from rank {rank.rank} to itself")
    else:
        _fail(rank, op, f"unknown kind of operator {op.kind!r}")


def _check_vector(rank: RankTrace, op: Operator, size: int) -> None:
    vector = op.per_peer_bytes
    if vector is None:
        return
    if op.collective is not CollectiveKind.ALL_TO_ALL:
        _fail(rank, op, f"{op.collective} cannot have a byte count for each peer, only all_to_all can")
    if len(vector) != size:
        _fail(rank, op, f"has {len(vector)} per-peer byte counts, but communicator {excerpt(op.comm)} has {size} ranks")
    if min(vector) < 0:
        _fail(rank, op, f"per-peer byte count {min(vector)} is negative")
    if sum(vector) != op.bytes:
        _fail(rank, op, f"per-peer byte counts add up to {sum(vector)}, but its size is {op.bytes} bytes")


def _topological(rank: RankTrace, needs: list[tuple[int, ...]]) -> list[int]:
    """Positions in topological order, lowest id first among the ready (Kahn 1962)."""
    operators = rank.operators
    successors: list[list[int]] = [[] for _ in needs]
    open_needs = [len(need) for need in needs]
    for place, need in enumerate(needs):
        for other in need:
            successors[other].append(place)
    ready = [(operators[place].id, place) for place, count in enumerate(open_needs) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        place = heappop(ready)[1]
        order.append(place)
        for other in successors[place]:
            open_needs[other] -= 1
            if not open_needs[other]:
                heappush(ready, (operators[other].id, other))
    if len(order) < len(needs):
        loop = _loop(
            {place: [n for n in needs[place] if open_needs[n]] for place in range(len(needs)) if open_needs[place]}
        )
        names = " -> ".join(_in_short([label(operators[place].id, operators[place].name) for place in loop]))
        size = "itself" if len(loop) == 1 else f"a cycle of {len(loop)} nodes"
        _fail(rank, operators[loop[0]], f"depends on {size}: {names}")
    return order


def _loop(waits: dict[int, list[int]]) -> list[int]:
    """A cycle of ``waits`` (node to what it waits for, never empty), each waiting for the next, first repeated last."""
    node = min(waits)
    place: dict[int, int] = {}
    path: list[int] = []
    while node not in place:
        place[node] = len(path)
        path.append(node)
        node = min(waits[node])
    return path[place[node] :]


def _in_short(names: list[str]) -> list[str]:
    """A cycle told from its first to its first again, with the middle left out if it is long."""
    shown = names if len(names) <= 12 else [*names[:8], f"… {len(names) - 11} more …", *names[-3:]]
    return [*shown, names[0]]


def _match_collectives(trace: Trace, ranks: list[_Rank]) -> list[tuple[str, list[tuple[int, int]]]]:
    """For each communicator the n-th collective of every member belongs together.

    Returns (communicator, [(rank, position), …] in communicator order) for each call.
    """
    issued: dict[str, dict[int, list[int]]] = {name: {} for name in trace.communicators}
    for number, state in enumerate(ranks):
        operators = state.trace.operators
        for place in state.order:
            op = operators[place]
            if op.kind is OpKind.COLLECTIVE:
                issued[op.comm].setdefault(number, []).append(place)
    calls: list[tuple[str, list[tuple[int, int]]]] = []
    for comm, by_rank in issued.items():
        if not by_rank:
            continue
        members = trace.communicators[comm]
        sequences = [by_rank.get(member, []) for member in members]
        longest = max(map(len, sequences))
        for index in range(longest):
            for member, sequence in zip(members, sequences, strict=True):
                if index >= len(sequence):
                    _short(trace, ranks, comm, index, member, members, sequences)
            first = ranks[members[0]].trace.operators[sequences[0][index]]
            for member, sequence in zip(members[1:], sequences[1:], strict=True):
                op = ranks[member].trace.operators[sequence[index]]
                if (
                    op.collective is not first.collective
                    or (op.bytes != first.bytes and (op.per_peer_bytes is None or first.per_peer_bytes is None))
                    or (op.per_peer_bytes is None) is not (first.per_peer_bytes is None)
                    or (op.root != first.root and op.collective in ROOTED)
                ):
                    _disagree(ranks[members[0]].trace, first, ranks[member].trace, op, comm, index)
            calls.append((comm, [(m, s[index]) for m, s in zip(members, sequences, strict=True)]))
    return calls


def _comm_label(comm: str) -> str:
    return f"communicator {excerpt(comm)}" if comm else "the world"


def _short(
    trace: Trace,
    ranks: list[_Rank],
    comm: str,
    index: int,
    short: int,
    members: tuple[int, ...],
    sequences: list[list[int]],
) -> NoReturn:
    holder = next(m for m, s in zip(members, sequences, strict=True) if index < len(s))
    state = ranks[holder].trace
    op = state.operators[sequences[members.index(holder)][index]]
    count = len(sequences[members.index(short)])
    message = (
        f"is collective number {index + 1} on {_comm_label(comm)} {excerpt(list(trace.communicators[comm]))}, "
        f"but rank {short} issues only {count} there ({_where(ranks[short].trace)})"
    )
    _fail(state, op, message, "every member must issue the same collectives in the same order")


def _disagree(one: RankTrace, a: Operator, two: RankTrace, b: Operator, comm: str, index: int) -> NoReturn:
    def told(op: Operator) -> str:
        uneven = " uneven" if op.per_peer_bytes is not None else ""
        root = f" root {op.root}" if op.collective in ROOTED else ""
        return f"{op.collective}{uneven} of {op.bytes} bytes{root}"

    message = (
        f"collective number {index + 1} on {_comm_label(comm)}: rank {one.rank} has {told(a)}, "
        f"but {_named(two, b)} has {told(b)} ({_where(two)})"
    )
    _fail(one, a, message, "every member must issue the same collectives in the same order")


def _match_messages(ranks: list[_Rank]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs ((sender, position), (receiver, position)): the n-th send of (src, dst, tag) meets the n-th receive."""
    sends: dict[tuple[int, int, int], list[int]] = {}
    receives: dict[tuple[int, int, int], list[int]] = {}
    for number, state in enumerate(ranks):
        operators = state.trace.operators
        for place in state.order:
            op = operators[place]
            if op.kind is OpKind.SEND:
                sends.setdefault((number, op.peer, op.tag), []).append(place)
            elif op.kind is OpKind.RECV:
                receives.setdefault((op.peer, number, op.tag), []).append(place)
    pairs = []
    for key in sorted(sends.keys() | receives.keys()):
        source, target, tag = key
        out, into = sends.get(key, []), receives.get(key, [])
        sender, receiver = ranks[source].trace, ranks[target].trace
        for a, b in zip(out, into, strict=False):
            send, receive = sender.operators[a], receiver.operators[b]
            if send.bytes != receive.bytes:
                message = (
                    f"sends {send.bytes} bytes, but its receive, {_named(receiver, receive)}, expects {receive.bytes}"
                )
                _fail(sender, send, f"{message} ({_where(receiver)})")
            pairs.append(((source, a), (target, b)))
        if len(out) > len(into):
            op = sender.operators[out[len(into)]]
            message = (
                f"send to rank {target} with tag {tag} has no receive: rank {target} has {len(into)} of {len(out)}"
            )
            _fail(sender, op, f"{message} ({_where(receiver)})")
        if len(into) > len(out):
            op = receiver.operators[into[len(out)]]
            message = (
                f"receive from rank {source} with tag {tag} has no send: rank {source} has {len(out)} of {len(into)}"
            )
            _fail(receiver, op, f"{message} ({_where(sender)})")
    return pairs


def _order_job(
    trace: Trace,
    ranks: list[_Rank],
    collectives: list[tuple[str, list[tuple[int, int]]]],
    messages: list[tuple[tuple[int, int], tuple[int, int]]],
) -> CheckedTrace:
    """One topological order of the whole job, collectives merged over ranks, and all that follows from it.

    Besides dependencies: a receive waits for its send; a collective waits for the one before it on its communicator.
    """
    base = [0]
    for state in ranks:
        base.append(base[-1] + len(state.order))
    total = base[-1]
    local = [0] * total  # rank of a node in its own rank's order: the priority among the ready
    for number, state in enumerate(ranks):
        for index, place in enumerate(state.order):
            local[base[number] + place] = index
    merged = list(range(total))  # node -> the node that stands for it
    for _, parts in collectives:
        chief = base[parts[0][0]] + parts[0][1]
        for number, place in parts:
            merged[base[number] + place] = chief
    members: dict[int, list[int]] = {}
    for _, parts in collectives:
        members[base[parts[0][0]] + parts[0][1]] = [base[number] + place for number, place in parts]

    waits: list[list[int]] = [[] for _ in range(total)]
    for number, state in enumerate(ranks):
        offset = base[number]
        for place, need in enumerate(state.needs):
            if need:
                waits[merged[offset + place]].extend([merged[offset + other] for other in need])
    for (source, a), (target, b) in messages:
        waits[base[target] + b].append(base[source] + a)
    last: dict[str, int] = {}
    for comm, parts in collectives:
        chief = base[parts[0][0]] + parts[0][1]
        if comm in last:
            waits[chief].append(last[comm])
        last[comm] = chief

    order = _merged_order(total, merged, waits, local)
    if order is None:
        _deadlock(ranks, base, members, waits)
    return _assemble(trace, ranks, base, members, order, collectives, messages)


def _merged_order(total: int, merged: list[int], waits: list[list[int]], local: list[int]) -> list[int] | None:
    successors: list[list[int]] = [[] for _ in range(total)]
    open_waits = [len(wait) for wait in waits]
    for node, wait in enumerate(waits):
        for other in wait:
            successors[other].append(node)
    chiefs = [node for node in range(total) if merged[node] == node]
    ready = [(local[node], node) for node in chiefs if not open_waits[node]]
    heapify(ready)
    order: list[int] = []
    while ready:
        node = heappop(ready)[1]
        order.append(node)
        for other in successors[node]:
            open_waits[other] -= 1
            if not open_waits[other]:
                heappush(ready, (local[other], other))
    if len(order) == len(chiefs):
        return order
    for node in range(total):
        waits[node] = [other for other in waits[node] if open_waits[other]] if open_waits[node] else []
    return None


def _deadlock(ranks: list[_Rank], base: list[int], members: dict[int, list[int]], waits: list[list[int]]) -> NoReturn:
    """Tell a cycle over ranks by name. ``waits`` holds only what is in or behind a cycle."""
    loop = _loop({node: wait for node, wait in enumerate(waits) if wait})

    def found(node: int) -> tuple[RankTrace, Operator]:
        number = bisect_right(base, node) - 1
        return ranks[number].trace, ranks[number].trace.operators[node - base[number]]

    def told(node: int) -> str:
        _, op = found(node)
        parts = [_named(*found(part)) for part in members.get(node, [node])]
        shown = ", ".join(parts[:4]) + (f" and {len(parts) - 4} more ranks" if len(parts) > 4 else "")
        return f"{op.collective} on {_comm_label(op.comm)} ({shown})" if node in members else shown

    steps = " waits for ".join(_in_short([told(node) for node in loop]))
    rank, op = found(loop[0])
    hint = "the ranks issue collectives or messages in orders that cannot all hold: follow the nodes of one rank"
    _fail(rank, op, f"deadlock: {steps}", hint)


def _assemble(
    trace: Trace,
    ranks: list[_Rank],
    base: list[int],
    members: dict[int, list[int]],
    order: list[int],
    collectives: list[tuple[str, list[tuple[int, int]]]],
    messages: list[tuple[tuple[int, int], tuple[int, int]]],
) -> CheckedTrace:
    owner = [number for number, state in enumerate(ranks) for _ in state.order]
    dense_order: list[list[int]] = [[] for _ in ranks]
    dense = [0] * base[-1]
    when = [0] * base[-1]
    for moment, chief in enumerate(order):
        when[chief] = moment
        for node in members.get(chief, (chief,)):
            number = owner[node]
            dense[node] = len(dense_order[number])
            dense_order[number].append(node - base[number])
    needs = tuple(
        tuple([tuple(sorted({dense[offset + other] for other in state.needs[place]})) for place in dense_order[number]])
        for number, (state, offset) in enumerate(zip(ranks, base, strict=False))
    )
    drafts: list[tuple[int, str, list[tuple[int, int]]]] = [
        (when[base[parts[0][0]] + parts[0][1]], comm, parts) for comm, parts in collectives
    ]
    drafts += [(when[base[send[0]] + send[1]], "", [send, receive]) for send, receive in messages]
    drafts.sort(key=lambda draft: draft[0])
    calls: list[Call] = []
    call_of: tuple[dict[int, int], ...] = tuple({} for _ in ranks)
    for call_id, (_, comm, parts) in enumerate(drafts):
        operators = [ranks[number].trace.operators[place] for number, place in parts]
        first = operators[0]
        indexes = tuple(dense[base[number] + place] for number, place in parts)
        for (number, _), index in zip(parts, indexes, strict=True):
            call_of[number][index] = call_id
        uneven = first.per_peer_bytes is not None
        calls.append(
            Call(
                call_id=call_id,
                comm=comm,
                kind=first.collective if first.kind is OpKind.COLLECTIVE else None,
                bytes=max(op.bytes for op in operators),
                ranks=tuple(number for number, _ in parts),
                nodes=tuple(op.id for op in operators),
                ops=indexes,
                root=first.root if first.collective in ROOTED else 0,
                tag=first.tag,
                vectors=tuple(op.per_peer_bytes or () for op in operators) if uneven else (),
            )
        )
    return CheckedTrace(trace, tuple(map(tuple, dense_order)), needs, tuple(calls), call_of)
