"""Which operators of different ranks belong together: the n-th collectives of a communicator, sends and receives.

Called by `genie.workload.check` with the ordered graphs of all ranks. What has no counterpart, or one that differs in
kind, size or root, is a TraceError that names both nodes.
"""

from __future__ import annotations

from typing import NoReturn

from genie.workload.excerpt import excerpt
from genie.workload.rankgraph import ROOTED, RankGraph, comm_label, fail, named, where
from genie.workload.trace import Operator, OpKind, RankTrace, Trace

Part = tuple[int, int]
"""An operator: (rank, position in its trace)."""

Matched = tuple[str, list[Part]]
"""One collective: its communicator and its part on every member, in communicator order."""


def match_collectives(trace: Trace, ranks: list[RankGraph]) -> list[Matched]:
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
    calls: list[Matched] = []
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


def _short(
    trace: Trace,
    ranks: list[RankGraph],
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
        f"is collective number {index + 1} on {comm_label(comm)} {excerpt(list(trace.communicators[comm]))}, "
        f"but rank {short} issues only {count} there ({where(ranks[short].trace)})"
    )
    fail(state, op, message, "every member must issue the same collectives in the same order")


def _disagree(one: RankTrace, a: Operator, two: RankTrace, b: Operator, comm: str, index: int) -> NoReturn:
    def told(op: Operator) -> str:
        uneven = " uneven" if op.per_peer_bytes is not None else ""
        root = f" root {op.root}" if op.collective in ROOTED else ""
        return f"{op.collective}{uneven} of {op.bytes} bytes{root}"

    message = (
        f"collective number {index + 1} on {comm_label(comm)}: rank {one.rank} has {told(a)}, "
        f"but {named(two, b)} has {told(b)} ({where(two)})"
    )
    fail(one, a, message, "every member must issue the same collectives in the same order")


def match_messages(ranks: list[RankGraph]) -> list[tuple[Part, Part]]:
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
                    f"sends {send.bytes} bytes, but its receive, {named(receiver, receive)}, expects {receive.bytes}"
                )
                fail(sender, send, f"{message} ({where(receiver)})")
            pairs.append(((source, a), (target, b)))
        if len(out) > len(into):
            op = sender.operators[out[len(into)]]
            message = (
                f"send to rank {target} with tag {tag} has no receive: rank {target} has {len(into)} of {len(out)}"
            )
            fail(sender, op, f"{message} ({where(receiver)})")
        if len(into) > len(out):
            op = receiver.operators[into[len(out)]]
            message = (
                f"receive from rank {source} with tag {tag} has no send: rank {source} has {len(out)} of {len(into)}"
            )
            fail(receiver, op, f"{message} ({where(sender)})")
    return pairs
