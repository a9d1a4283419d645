"""Pairwise all-to-all: in round r every rank sends to rank+r and receives from rank-r.

No two ranks ever send to the same one in a round, so there is no incast as long as the rounds stay together. A
round begins when the round ``peers_in_flight`` before it is done, sent and received; 0 means 1: one round at a
time. Uneven sizes as in `genie.collectives.direct`.
"""

from __future__ import annotations

from genie.collectives.direct import in_size, out_size
from genie.collectives.draft import Draft
from genie.workload.trace import CollectiveKind

KINDS = frozenset({CollectiveKind.ALL_TO_ALL})


def build(draft: Draft, kind: CollectiveKind, root: int, *, peers_in_flight: int = 0, uneven: bool = False) -> None:
    """Add the steps of the all-to-all to ``draft``."""
    n, overlap = draft.ranks, max(1, peers_in_flight)
    rounds: list[list[int]] = []
    for distance in range(1, n):
        to, source = (draft.rank + distance) % n, (draft.rank - distance) % n
        former = rounds[-overlap] if len(rounds) >= overlap else []
        steps: list[int] = []
        for channel in range(draft.channels):
            steps.append(
                draft.send(channel, to, out_size(draft, to, uneven), [(draft.rank, to)], whole=former),
            )
            steps.append(draft.receive(channel, source, in_size(draft, source, uneven), [(source, draft.rank)]))
        rounds.append(steps)
