"""``transport=gloo``: Gloo's point-to-point API over its own TCP, as the prototype of this kind of tool had it.

Its native half is `native/src/gloo*.cpp`, in ``genie-agent-gloo``, which exists where GENIE was built beside
libgloo-dev and runs where libgloo0 is installed. A check on the engine's own transports, not a fast one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from genie.transport.base import TransportConfig


@dataclass(frozen=True, slots=True)
class GlooTransport(TransportConfig):
    """Gloo. It has threads of its own, which a rank that spins would keep from the processor: ``spin`` is 0."""

    name: str = "gloo"
    spin: str = "0"

    agent: ClassVar[str] = "genie-agent-gloo"
