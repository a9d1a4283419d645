"""``transport=gloo``: Gloo's point-to-point API over its own TCP, as the prototype of this kind of tool had it.

Its native half is `native/src/gloo*.cpp`, in ``genie-agent-gloo``, which exists where GENIE was built beside
libgloo-dev and runs where libgloo0 is installed. A check on the engine's own transports, not a fast one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from genie.errors import EnvironmentUnfit
from genie.transport.base import RankPlace, TransportConfig

if TYPE_CHECKING:
    from genie.rdma.model import RdmaHost

LIBRARY = "libgloo.so.0"


@dataclass(frozen=True, slots=True)
class GlooTransport(TransportConfig):
    """Gloo. It has threads of its own, which a rank that spins would keep from the processor: ``spin`` is 0."""

    name: str = "gloo"
    spin: str = "0"

    agent: ClassVar[str] = "genie-agent-gloo"
    needs_host: ClassVar[bool] = True

    def require(self, place: RankPlace, address: str, host: RdmaHost) -> None:
        """See `TransportConfig.require`: the library that the agent is linked with."""
        if host.lacks(LIBRARY):
            raise EnvironmentUnfit(
                f"{host.where} has no {LIBRARY}, which transport=gloo is linked with", hint="apt-get install libgloo0"
            )
