"""Binomial trees: about log2(n) hops deep, rooted anywhere, pipelined by message.

A rank's place is its distance from the root; its parent clears the lowest set bit of the place, and its subtree is
the run of places up to the next multiple of that bit. All-reduce is a reduction to rank 0 and a broadcast from it,
message by message, so both directions are busy at once.
"""

from __future__ import annotations

from collections.abc import Callable

from genie.collectives.draft import REDUCED, WHOLE_SIZE, Draft, block
from genie.workload.trace import CollectiveKind


def build(draft: Draft, kind: CollectiveKind, root: int) -> None:
    """Add the steps of ``kind`` to ``draft``."""
    for channel in range(draft.channels):
        _KINDS[kind](draft, channel, root)


def parent(place: int) -> int:
    """Place of the parent; -1 for the root."""
    return place & (place - 1) if place else -1


def children(place: int, ranks: int) -> list[int]:
    """Places of the children, largest subtree first."""
    bits = (place & -place).bit_length() - 1 if place else max(ranks - 1, 0).bit_length()
    return [place + (1 << bit) for bit in reversed(range(bits)) if place + (1 << bit) < ranks]


def reduce_and_broadcast(draft: Draft, channel: int, up: int | None, down: list[int]) -> None:
    """All-reduce over any tree: reduce from the ranks ``down`` to ``up``, then send the result back down.

    ``up`` is None at the root, which turns each message round as soon as all its children sent it.
    """
    held = [draft.receive(channel, rank, WHOLE_SIZE, [(REDUCED, 0)], reduce=True) for rank in down]
    if up is not None:
        draft.send(channel, up, WHOLE_SIZE, [(REDUCED, 0)], message=held)
        held = [draft.receive(channel, up, WHOLE_SIZE, [(REDUCED, 0)])]
    for rank in down:
        draft.send(channel, rank, WHOLE_SIZE, [(REDUCED, 0)], message=held)


def _kin(draft: Draft, root: int) -> tuple[int | None, list[int]]:
    """The ranks of the parent (None at the root) and of the children."""
    n = draft.ranks
    place = (draft.rank - root) % n
    up = (parent(place) + root) % n if place else None
    return up, [(child + root) % n for child in children(place, n)]


def _all_reduce(draft: Draft, channel: int, root: int) -> None:
    reduce_and_broadcast(draft, channel, *_kin(draft, 0))


def _broadcast(draft: Draft, channel: int, root: int) -> None:
    up, down = _kin(draft, root)
    held = None if up is None else draft.receive(channel, up, WHOLE_SIZE, [(root, 0)])
    for rank in down:
        draft.send(channel, rank, WHOLE_SIZE, [(root, 0)], message=[held])


def _reduce(draft: Draft, channel: int, root: int) -> None:
    up, down = _kin(draft, root)
    held = [draft.receive(channel, rank, WHOLE_SIZE, [(REDUCED, 0)], reduce=True) for rank in reversed(down)]
    if up is not None:
        draft.send(channel, up, WHOLE_SIZE, [(REDUCED, 0)], message=held)


def _subtree(place: int, ranks: int) -> range:
    """Places at and below ``place``."""
    return range(place, min(place + (place & -place if place else ranks), ranks))


def _gather(draft: Draft, channel: int, root: int) -> None:
    n = draft.ranks
    place = (draft.rank - root) % n
    held: dict[int, int] = {}
    for child in reversed(children(place, n)):
        for below in _subtree(child, n):
            index = (below + root) % n
            held[index] = draft.receive(channel, (child + root) % n, block(index, n), [(index, index)])
    if place:
        for below in _subtree(place, n):
            index = (below + root) % n
            up = (parent(place) + root) % n
            draft.send(channel, up, block(index, n), [(index, index)], message=[held.get(index)])


def _scatter(draft: Draft, channel: int, root: int) -> None:
    n = draft.ranks
    place = (draft.rank - root) % n
    held: dict[int, int] = {}
    if place:
        up = (parent(place) + root) % n
        for below in reversed(_subtree(place, n)):
            index = (below + root) % n
            held[index] = draft.receive(channel, up, block(index, n), [(root, index)])
    for child in children(place, n):
        for below in reversed(_subtree(child, n)):
            index = (below + root) % n
            draft.send(channel, (child + root) % n, block(index, n), [(root, index)], message=[held.get(index)])


_KINDS: dict[CollectiveKind, Callable[[Draft, int, int], None]] = {
    CollectiveKind.ALL_REDUCE: _all_reduce,
    CollectiveKind.BROADCAST: _broadcast,
    CollectiveKind.REDUCE: _reduce,
    CollectiveKind.GATHER: _gather,
    CollectiveKind.SCATTER: _scatter,
}
KINDS = frozenset(_KINDS)
