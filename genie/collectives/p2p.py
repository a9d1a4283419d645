"""A message from one rank to another: one send, one receive, on each channel.

Not a collective, so not in the registry: `genie.collectives.lower` builds these for send and receive operators, on
the world communicator.
"""

from __future__ import annotations

from genie.collectives.draft import WHOLE_SIZE, Draft
from genie.collectives.program import Template

NAME = "p2p"


def send_to(peer: int, *, rank: int, ranks: int, channels: int) -> Template:
    """What the sender does."""
    draft = Draft(NAME, rank, ranks, channels)
    for channel in range(channels):
        draft.send(channel, peer, WHOLE_SIZE, [(rank, 0)])
    return draft.template()


def receive_from(peer: int, *, rank: int, ranks: int, channels: int) -> Template:
    """What the receiver does."""
    draft = Draft(NAME, rank, ranks, channels)
    for channel in range(channels):
        draft.receive(channel, peer, WHOLE_SIZE, [(peer, 0)])
    return draft.template()
