"""Double binary tree all-reduce: two trees in which (but for one rank) nobody is an inner node twice.

Each tree carries half the data, so inner nodes of one are leaves of the other and every link is used in both
directions. Even channels use tree 0, odd channels tree 1: two channels at the least. The construction is NCCL's
(graph/trees.cc): in tree 0 a rank's height is its lowest set bit; tree 1 is its mirror image if the number of ranks
is even, and tree 0 moved on by one rank if it is odd.
"""

from __future__ import annotations

from genie.collectives.draft import Draft
from genie.collectives.tree import reduce_and_broadcast
from genie.workload.trace import CollectiveKind

KINDS = frozenset({CollectiveKind.ALL_REDUCE})
MIN_CHANNELS = 2


def build(draft: Draft, kind: CollectiveKind, root: int) -> None:
    """Add the steps of the all-reduce to ``draft``."""
    for channel in range(draft.channels):
        tree = channel % 2
        up = parent(draft.rank, draft.ranks, tree)
        down = [rank for rank in range(draft.ranks) if parent(rank, draft.ranks, tree) == draft.rank]
        reduce_and_broadcast(draft, channel, up, down)


def parent(rank: int, ranks: int, tree: int) -> int | None:
    """Parent of ``rank`` in tree 0 or 1; None for its root."""
    if tree == 0:
        return _parent(rank, ranks)
    if ranks % 2 == 0:
        up = _parent(ranks - 1 - rank, ranks)
        return None if up is None else ranks - 1 - up
    up = _parent((rank - 1) % ranks, ranks)
    return None if up is None else (up + 1) % ranks


def _parent(rank: int, ranks: int) -> int | None:
    if rank == 0:
        return None
    bit = rank & -rank
    up = (rank ^ bit) | (bit << 1)
    return up if up < ranks else rank ^ bit
