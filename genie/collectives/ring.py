"""Ring algorithms: every rank only sends to its successor and receives from its predecessor.

Bandwidth-optimal: all-reduce moves 2(n-1)/n of the buffer over each rank's link, all-gather and reduce-scatter
(n-1)/n. The rooted kinds are chains that start or end at the root, pipelined by message (cut-through).
Order of ranks is the communicator's; every channel uses the same ring.
"""

from __future__ import annotations

from collections.abc import Callable

from genie.collectives.draft import REDUCED, WHOLE_SIZE, Draft, block
from genie.workload.trace import CollectiveKind


def build(draft: Draft, kind: CollectiveKind, root: int) -> None:
    """Add the steps of ``kind`` to ``draft``."""
    for channel in range(draft.channels):
        _KINDS[kind](draft, channel, root)


def _all_reduce(draft: Draft, channel: int, root: int) -> None:
    held = _reduce_around(draft, channel, first=draft.rank)
    _copy_around(draft, channel, first=draft.rank + 1, owner=lambda _: REDUCED, held=held)


def _reduce_scatter(draft: Draft, channel: int, root: int) -> None:
    _reduce_around(draft, channel, first=draft.rank - 1)


def _all_gather(draft: Draft, channel: int, root: int) -> None:
    _copy_around(draft, channel, first=draft.rank, owner=lambda index: index, held=None)


def _reduce_around(draft: Draft, channel: int, first: int) -> int | None:
    """n-1 steps of reduction, sending block ``first`` first; returns the receive of the block that is complete."""
    n = draft.ranks
    held = None
    for step in range(n - 1):
        out, into = (first - step) % n, (first - step - 1) % n
        draft.send(channel, (draft.rank + 1) % n, block(out, n), [(REDUCED, out)], message=[held])
        held = draft.receive(channel, (draft.rank - 1) % n, block(into, n), [(REDUCED, into)], reduce=True)
    return held


def _copy_around(draft: Draft, channel: int, first: int, owner: Callable[[int], int], held: int | None) -> None:
    """n-1 steps of passing on, sending block ``first`` first, which is there once ``held`` is."""
    n = draft.ranks
    for step in range(n - 1):
        out, into = (first - step) % n, (first - step - 1) % n
        draft.send(channel, (draft.rank + 1) % n, block(out, n), [(owner(out), out)], message=[held])
        held = draft.receive(channel, (draft.rank - 1) % n, block(into, n), [(owner(into), into)])


def _broadcast(draft: Draft, channel: int, root: int) -> None:
    n = draft.ranks
    place = (draft.rank - root) % n
    held = None
    if place > 0:
        held = draft.receive(channel, (draft.rank - 1) % n, WHOLE_SIZE, [(root, 0)])
    if place < n - 1:
        draft.send(channel, (draft.rank + 1) % n, WHOLE_SIZE, [(root, 0)], message=[held])


def _reduce(draft: Draft, channel: int, root: int) -> None:
    n = draft.ranks
    place = (draft.rank - root) % n
    held = None
    if place != 1 and n > 1:
        held = draft.receive(channel, (draft.rank - 1) % n, WHOLE_SIZE, [(REDUCED, 0)], reduce=True)
    if place != 0:
        draft.send(channel, (draft.rank + 1) % n, WHOLE_SIZE, [(REDUCED, 0)], message=[held])


def _gather(draft: Draft, channel: int, root: int) -> None:
    """Each rank sends its own block to its predecessor, then passes on those of the ranks behind it."""
    n = draft.ranks
    place = (draft.rank - root) % n
    for distance in range(n - place):
        index = (draft.rank + distance) % n
        held = None
        if distance:
            held = draft.receive(channel, (draft.rank + 1) % n, block(index, n), [(index, index)])
        if place:
            draft.send(channel, (draft.rank - 1) % n, block(index, n), [(index, index)], message=[held])


def _scatter(draft: Draft, channel: int, root: int) -> None:
    """The blocks of the farthest ranks go first, so that the links stay busy to the end."""
    n = draft.ranks
    place = (draft.rank - root) % n
    for distance in reversed(range(n - place)):
        index = (draft.rank + distance) % n
        held = None
        if place:
            held = draft.receive(channel, (draft.rank - 1) % n, block(index, n), [(root, index)])
        if distance:
            draft.send(channel, (draft.rank + 1) % n, block(index, n), [(root, index)], message=[held])


_KINDS: dict[CollectiveKind, Callable[[Draft, int, int], None]] = {
    CollectiveKind.ALL_REDUCE: _all_reduce,
    CollectiveKind.ALL_GATHER: _all_gather,
    CollectiveKind.REDUCE_SCATTER: _reduce_scatter,
    CollectiveKind.BROADCAST: _broadcast,
    CollectiveKind.REDUCE: _reduce,
    CollectiveKind.GATHER: _gather,
    CollectiveKind.SCATTER: _scatter,
}
KINDS = frozenset(_KINDS)
