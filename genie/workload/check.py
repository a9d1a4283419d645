"""Proof, before anything runs, that a `Trace` can be replayed: on each rank and across all of them.

Called by `genie.experiment.plan` between `genie.workload.load` and `genie.collectives.lower`. `check` either returns
a `CheckedTrace` (a global order, matched collectives and messages) or raises TraceError with file, node and reason.
It never repairs: what it changes (collectives of one rank become no-operations) is said in the trace's notes.
All walks are iterative and near-linear: traces of a million nodes are fine.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NoReturn

from genie.workload.matching import Matched, Part, match_collectives, match_messages
from genie.workload.rankgraph import (
    ROOTED,
    RankGraph,
    check_communicators,
    check_rank,
    comm_label,
    fail,
    find_loop,
    in_short,
    named,
    without_lonely_collectives,
)
from genie.workload.trace import CollectiveKind, Operator, OpKind, RankTrace, Trace


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


def check(trace: Trace) -> CheckedTrace:
    """Check ``trace`` and match its communication. ``trace`` is not changed, but for sentences added to its notes.

    Raises:
        TraceError: the first thing that stands in the way of a faithful replay.
    """
    check_communicators(trace)
    trace = without_lonely_collectives(trace)
    members = {name: frozenset(ranks) for name, ranks in trace.communicators.items()}
    ranks = [check_rank(rank, trace, members) for rank in trace.ranks]
    collectives = match_collectives(trace, ranks)
    messages = match_messages(ranks)
    return _order_job(trace, ranks, collectives, messages)


def _order_job(
    trace: Trace,
    ranks: list[RankGraph],
    collectives: list[Matched],
    messages: list[tuple[Part, Part]],
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


def _deadlock(
    ranks: list[RankGraph], base: list[int], members: dict[int, list[int]], waits: list[list[int]]
) -> NoReturn:
    """Tell a cycle over ranks by name. ``waits`` holds only what is in or behind a cycle."""
    loop = find_loop({node: wait for node, wait in enumerate(waits) if wait})

    def found(node: int) -> tuple[RankTrace, Operator]:
        number = bisect_right(base, node) - 1
        return ranks[number].trace, ranks[number].trace.operators[node - base[number]]

    def told(node: int) -> str:
        _, op = found(node)
        parts = [named(*found(part)) for part in members.get(node, [node])]
        shown = ", ".join(parts[:4]) + (f" and {len(parts) - 4} more ranks" if len(parts) > 4 else "")
        return f"{op.collective} on {comm_label(op.comm)} ({shown})" if node in members else shown

    steps = " waits for ".join(in_short([told(node) for node in loop]))
    rank, op = found(loop[0])
    hint = "the ranks issue collectives or messages in orders that cannot all hold: follow the nodes of one rank"
    fail(rank, op, f"deadlock: {steps}", hint)


def _assemble(
    trace: Trace,
    ranks: list[RankGraph],
    base: list[int],
    members: dict[int, list[int]],
    order: list[int],
    collectives: list[Matched],
    messages: list[tuple[Part, Part]],
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
    drafts: list[tuple[int, str, list[Part]]] = [
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
