"""Direct algorithms: data goes straight from the rank that has it to the rank that needs it, all peers at once.

The all-to-all of most clusters, and its incast. ``peers_in_flight`` limits how many peers a rank sends to at a
time (0 = all); receives are never held back. Peers are taken by distance (rank+1 first), so that not all ranks
begin with the same one. The uneven all-to-all moves `VECTOR` sizes: entry j is what goes to rank j, entry n+j what
comes from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from genie.collectives.draft import REDUCED, WHOLE_SIZE, Draft, block
from genie.collectives.program import Size, SizeKind
from genie.workload.trace import CollectiveKind

_Item = tuple[int, Size, tuple[int, int]]  # peer, size, name of the data


def build(draft: Draft, kind: CollectiveKind, root: int, *, peers_in_flight: int = 0, uneven: bool = False) -> None:
    """Add the steps of ``kind`` to ``draft``; ``uneven`` only has a meaning for all-to-all."""
    if kind is CollectiveKind.ALL_TO_ALL:
        outgoing = [(peer, out_size(draft, peer, uneven), (draft.rank, peer)) for peer in _peers(draft)]
        incoming = [(peer, in_size(draft, peer, uneven), (peer, draft.rank)) for peer in _sources(draft)]
        _exchange(draft, outgoing, incoming, peers_in_flight)
    elif kind is CollectiveKind.ALL_REDUCE:
        held = _exchange(draft, *_reduce_scatter(draft, root), peers_in_flight, reduce=True)
        own = block(draft.rank, draft.ranks)
        outgoing = [(peer, own, (REDUCED, draft.rank)) for peer in _peers(draft)]
        incoming = [(peer, block(peer, draft.ranks), (REDUCED, peer)) for peer in _sources(draft)]
        _exchange(draft, outgoing, incoming, peers_in_flight, held=held)
    else:
        reduces = kind in (CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER)
        _exchange(draft, *_KINDS[kind](draft, root), peers_in_flight, reduce=reduces)


def out_size(draft: Draft, peer: int, uneven: bool) -> Size:
    """What this rank sends to ``peer`` in an all-to-all."""
    return Size(SizeKind.VECTOR, peer) if uneven else block(peer, draft.ranks)


def in_size(draft: Draft, peer: int, uneven: bool) -> Size:
    """What this rank receives from ``peer`` in an all-to-all."""
    return Size(SizeKind.VECTOR, draft.ranks + peer) if uneven else block(draft.rank, draft.ranks)


def _exchange(
    draft: Draft,
    outgoing: Sequence[_Item],
    incoming: Sequence[_Item],
    peers_in_flight: int,
    *,
    reduce: bool = False,
    held: Sequence[Sequence[int]] = (),
) -> list[list[int]]:
    """Send and receive single items, at most ``peers_in_flight`` sends of a channel's peers at a time.

    ``held[channel]`` are the receives that every send waits for message by message. Returns the receives, by channel.
    """
    sends: list[list[int]] = []
    for place, (peer, size, name) in enumerate(outgoing):
        former = sends[place - peers_in_flight] if peers_in_flight and place >= peers_in_flight else []
        sends.append(
            [
                draft.send(channel, peer, size, [name], message=held[channel] if held else (), whole=former)
                for channel in range(draft.channels)
            ]
        )
    receives: list[list[int]] = [[] for _ in range(draft.channels)]
    for peer, size, name in incoming:
        for channel in range(draft.channels):
            receives[channel].append(draft.receive(channel, peer, size, [name], reduce=reduce))
    return receives


def _peers(draft: Draft) -> list[int]:
    return [(draft.rank + distance) % draft.ranks for distance in range(1, draft.ranks)]


def _sources(draft: Draft) -> list[int]:
    return [(draft.rank - distance) % draft.ranks for distance in range(1, draft.ranks)]


def _all_gather(draft: Draft, root: int) -> tuple[list[_Item], list[_Item]]:
    n, own = draft.ranks, draft.rank
    return (
        [(peer, block(own, n), (own, own)) for peer in _peers(draft)],
        [(peer, block(peer, n), (peer, peer)) for peer in _sources(draft)],
    )


def _reduce_scatter(draft: Draft, root: int) -> tuple[list[_Item], list[_Item]]:
    n, own = draft.ranks, draft.rank
    return (
        [(peer, block(peer, n), (REDUCED, peer)) for peer in _peers(draft)],
        [(peer, block(own, n), (REDUCED, own)) for peer in _sources(draft)],
    )


def _broadcast(draft: Draft, root: int) -> tuple[list[_Item], list[_Item]]:
    if draft.rank == root:
        return [(peer, WHOLE_SIZE, (root, 0)) for peer in _peers(draft)], []
    return [], [(root, WHOLE_SIZE, (root, 0))]


def _reduce(draft: Draft, root: int) -> tuple[list[_Item], list[_Item]]:
    if draft.rank == root:
        return [], [(peer, WHOLE_SIZE, (REDUCED, 0)) for peer in _sources(draft)]
    return [(root, WHOLE_SIZE, (REDUCED, 0))], []


def _gather(draft: Draft, root: int) -> tuple[list[_Item], list[_Item]]:
    n, own = draft.ranks, draft.rank
    if own == root:
        return [], [(peer, block(peer, n), (peer, peer)) for peer in _sources(draft)]
    return [(root, block(own, n), (own, own))], []


def _scatter(draft: Draft, root: int) -> tuple[list[_Item], list[_Item]]:
    n, own = draft.ranks, draft.rank
    if own == root:
        return [(peer, block(peer, n), (root, peer)) for peer in _peers(draft)], []
    return [], [(root, block(own, n), (root, own))]


_KINDS: dict[CollectiveKind, Callable[[Draft, int], tuple[list[_Item], list[_Item]]]] = {
    CollectiveKind.ALL_GATHER: _all_gather,
    CollectiveKind.REDUCE_SCATTER: _reduce_scatter,
    CollectiveKind.BROADCAST: _broadcast,
    CollectiveKind.REDUCE: _reduce,
    CollectiveKind.GATHER: _gather,
    CollectiveKind.SCATTER: _scatter,
}
KINDS = frozenset(_KINDS) | {CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_REDUCE}
