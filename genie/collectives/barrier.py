"""Dissemination barrier: ceil(log2 n) rounds of empty messages.

In round k a rank tells rank+2^k that it, and all it has heard of, has arrived, once it heard from rank-2^(k-1). No
payload has a name: that everybody waited for everybody follows from the order of the steps alone.
"""

from __future__ import annotations

from genie.collectives.draft import ZERO_SIZE, Draft
from genie.workload.trace import CollectiveKind

KINDS = frozenset({CollectiveKind.BARRIER})


def build(draft: Draft, kind: CollectiveKind, root: int) -> None:
    """Add the steps of the barrier to ``draft``: on channel 0 only, since there is nothing to share out."""
    n, distance = draft.ranks, 1
    heard: list[int] = []
    while distance < n:
        draft.send(0, (draft.rank + distance) % n, ZERO_SIZE, (), whole=heard)
        heard = [*heard, draft.receive(0, (draft.rank - distance) % n, ZERO_SIZE, ())]
        distance *= 2
