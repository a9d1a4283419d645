"""What every transport's configuration has: how long to spin, how long to wait for peers, and what a rank is told.

A transport is a dataclass that extends `TransportConfig`. It decides nothing about the network and opens nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from genie.errors import ConfigError
from genie.units import parse_ns

if TYPE_CHECKING:
    from genie.rdma.model import RdmaHost


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank runs: its ``host``, its number ``local_rank`` among the ranks there, and what the topology knows
    of the host (``attributes``).
    """

    rank: int
    host: str
    local_rank: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """``spin`` is how long a rank spins before it sleeps: "auto" or a duration ("0" = never). ``connect_timeout`` is
    how long ranks wait for their peers; at least 1s.
    """

    name: str = ""
    spin: str = "auto"
    connect_timeout: str = "10s"

    agent: ClassVar[str] = "genie-agent"
    """The executable whose registry has this transport's native half."""

    needs_host: ClassVar[bool] = False
    """Whether it needs of a host what this build cannot bring: a library, a device (`require`)."""

    is_exact: ClassVar[bool] = False
    """Whether the kernel never joins its packets to larger ones: who acts on packets acts on those of the wire."""

    def __post_init__(self) -> None:
        if self.spin != "auto":
            parse_ns(self.spin, key="spin")
        if parse_ns(self.connect_timeout, key="connect_timeout") < 1_000_000_000:
            raise ConfigError(f"must be at least 1s, found {self.connect_timeout!r}", key="connect_timeout")

    def check(self, hosts: Sequence[str], fabric: str) -> None:
        """Raises PlanError where ranks on these ``hosts``, one entry a rank, of this kind of fabric cannot have it."""

    def require(self, place: RankPlace, address: str, host: RdmaHost) -> None:
        """Raises EnvironmentUnfit where the ``host`` of a rank, which has this ``address``, lacks what this needs: what
        was found, where, what to do. Only asked where `needs_host`.
        """

    def notes(self, stall_ns: int) -> tuple[str, ...]:
        """Sentences for the plan about a run that ends after ``stall_ns`` without progress."""
        return ()

    def settings(self, place: RankPlace) -> Mapping[str, str]:
        """What the native half is told for one rank, as it reads it (native/src/settings.h): keys and values without
        line breaks, every key that it knows. Raises PlanError where the rank cannot have this transport.
        """
        return {}
