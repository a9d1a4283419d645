"""What must hold on one rank of a `Trace` alone, and the words in which `genie.workload.check` tells what does not.

`check_rank` looks at every node (ids, dependencies, kinds, sizes, durations, communicators) and orders the graph; it
raises TraceError with file, node and reason at the first fault. It knows nothing of other ranks' operators.
"""

from __future__ import annotations

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

Members = dict[str, frozenset[int]]
"""The world ranks of each communicator, for membership tests."""


@dataclass(slots=True)
class RankGraph:
    """One rank's trace, for each position the positions it waits for, and a topological order of positions."""

    trace: RankTrace
    needs: list[tuple[int, ...]]
    order: list[int]


def fail(rank: RankTrace, op: Operator, message: str, hint: str = "") -> NoReturn:
    """Raise a TraceError about one operator."""
    raise TraceError(message, file=where(rank), node=label(op.id, op.name), hint=hint)


def where(rank: RankTrace) -> str:
    """The file of a rank; what is no path (a generator's name) gets the rank's number."""
    return rank.source if "/" in rank.source else f"{rank.source or 'trace'} (rank {rank.rank})"


def named(rank: RankTrace, op: Operator) -> str:
    """``rank 3 node 17 'aten::mm'``."""
    return f"rank {rank.rank} node {label(op.id, op.name)}"


def check_communicators(trace: Trace) -> None:
    """That there is something to do, that ranks are numbered, and that communicators name ranks of the job, once."""
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


def without_lonely_collectives(trace: Trace) -> Trace:
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


def check_rank(rank: RankTrace, trace: Trace, members: Members) -> RankGraph:
    """Node by node, then the rank's own graph: ids, dependencies, kinds, sizes, and a topological order."""
    operators = rank.operators
    position = {op.id: place for place, op in enumerate(operators)}
    if len(position) != len(operators):
        _duplicate(rank)
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
                fail(rank, op, "has no duration", "name a device (workload.device=…) or record durations")
            if not 0 <= duration <= MAX_DURATION_NS:
                fail(rank, op, f"duration of {duration} ns is not between 0 and 2^62")
        elif kind is not OpKind.NOOP:
            _check_communication(rank, op, trace, members)
    return RankGraph(rank, needs, _topological(rank, needs))


def _duplicate(rank: RankTrace) -> NoReturn:
    seen: dict[int, Operator] = {}
    for op in rank.operators:
        if op.id in seen:
            fail(rank, op, f"id {op.id} is used twice: also by {excerpt(seen[op.id].name)}")
        seen[op.id] = op
    raise AssertionError("no duplicate id")


def _missing(rank: RankTrace, op: Operator, position: dict[int, int]) -> NoReturn:
    for what, dependencies in (("data", op.data_deps), ("control", op.ctrl_deps)):
        absent = [dependency for dependency in dependencies if dependency not in position]
        if absent:
            hint = "workload.control_deps=off replays with data dependencies only" if what == "control" else ""
            fail(rank, op, f"{what} dependency on node {absent[0]}, which is not in the file", hint)
    raise AssertionError("no missing dependency")


def _check_communication(rank: RankTrace, op: Operator, trace: Trace, members: Members) -> None:
    if not 0 <= op.bytes <= MAX_BYTES:
        fail(rank, op, f"size of {op.bytes} bytes is not between 0 and 2^63-1")
    if op.kind is OpKind.COLLECTIVE:
        if op.collective is None:
            fail(rank, op, "is a collective without a kind")
        group = members.get(op.comm)
        if group is None:
            known = excerpt(sorted(name for name in members if name)) if len(members) > 1 else "only the world"
            fail(rank, op, f"communicator {excerpt(op.comm)} is not defined; there are: {known}")
        if rank.rank not in group:
            ranks = excerpt(list(trace.communicators[op.comm]))
            fail(rank, op, f"rank {rank.rank} is not a member of communicator {excerpt(op.comm)} {ranks}")
        if op.collective in ROOTED and not 0 <= op.root < len(group):
            fail(rank, op, f"root {op.root} is not a rank of communicator {excerpt(op.comm)} of {len(group)} ranks")
        _check_vector(rank, op, len(group))
    elif op.kind in (OpKind.SEND, OpKind.RECV):
        if not 0 <= op.peer < trace.world:
            fail(rank, op, f"peer is rank {op.peer}, but the job has ranks 0 to {trace.world - 1}")
        if op.peer == rank.rank:
            fail(rank, op, f"{op.kind}s from rank {rank.rank} to itself")
    else:
        fail(rank, op, f"unknown kind of operator {op.kind!r}")


def _check_vector(rank: RankTrace, op: Operator, size: int) -> None:
    vector = op.per_peer_bytes
    if vector is None:
        return
    if op.collective is not CollectiveKind.ALL_TO_ALL:
        fail(rank, op, f"{op.collective} cannot have a byte count for each peer, only all_to_all can")
    if len(vector) != size:
        fail(rank, op, f"has {len(vector)} per-peer byte counts, but communicator {excerpt(op.comm)} has {size} ranks")
    if min(vector) < 0:
        fail(rank, op, f"per-peer byte count {min(vector)} is negative")
    if sum(vector) != op.bytes:
        fail(rank, op, f"per-peer byte counts add up to {sum(vector)}, but its size is {op.bytes} bytes")


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
        loop = find_loop(
            {place: [n for n in needs[place] if open_needs[n]] for place in range(len(needs)) if open_needs[place]}
        )
        names = " -> ".join(in_short([label(operators[place].id, operators[place].name) for place in loop]))
        size = "itself" if len(loop) == 1 else f"a cycle of {len(loop)} nodes"
        fail(rank, operators[loop[0]], f"depends on {size}: {names}")
    return order


def find_loop(waits: dict[int, list[int]]) -> list[int]:
    """A cycle of ``waits`` (node to its non-empty list of nodes it waits for): each waits for the next.

    The same input gives the same cycle.
    """
    node = min(waits)
    place: dict[int, int] = {}
    path: list[int] = []
    while node not in place:
        place[node] = len(path)
        path.append(node)
        node = min(waits[node])
    return path[place[node] :]


def in_short(names: list[str]) -> list[str]:
    """A cycle told from its first to its first again, with the middle left out if it is long."""
    shown = names if len(names) <= 12 else [*names[:8], f"… {len(names) - 11} more …", *names[-3:]]
    return [*shown, names[0]]


def comm_label(comm: str) -> str:
    """A communicator in a sentence."""
    return f"communicator {excerpt(comm)}" if comm else "the world"
