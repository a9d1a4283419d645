"""``transport=ofi``: tagged messages over libfabric, by whatever provider it has: tcp, verbs, efa, cxi, shm.

Its native half is `native/src/ofi*.cpp`, in ``genie-agent-dl``, which reads what `OfiTransport.settings` writes and
loads libfabric on each host. See docs/transport-ofi.md. Asks no library: which providers a host has is known there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from genie.errors import ConfigError, EnvironmentUnfit, PlanError
from genie.transport.base import RankPlace, TransportConfig

if TYPE_CHECKING:
    from genie.rdma.model import RdmaHost

MOST_SLOTS = 1024
LIBRARY = "libfabric.so.1"
_BY_SOCKETS = ("tcp", "net", "sockets", "udp")


@dataclass(frozen=True, slots=True)
class OfiTransport(TransportConfig):
    """libfabric. ``provider`` is libfabric's name of what carries the messages; another one is never taken instead.
    ``domain`` is the device as that provider calls it ("mlx5_0", "cxi0"), "" the one that has the host's address, or
    the first. ``slots`` is how many messages of a connection may come ahead of their receiver (NCCL: 8).
    """

    name: str = "ofi"
    provider: str = "tcp"
    domain: str = ""
    slots: int = 8

    agent: ClassVar[str] = "genie-agent-dl"
    needs_host: ClassVar[bool] = True

    def __post_init__(self) -> None:
        TransportConfig.__post_init__(self)
        if not re.fullmatch(r"[a-z0-9_]+(;ofi_rx[md])?", self.provider):
            raise ConfigError(
                f"expected the name of a libfabric provider (tcp, verbs, efa, cxi, shm), found {self.provider!r}",
                key="provider",
                hint="`fi_info -l` lists those of a host",
            )
        if not re.fullmatch(r"[\w.:-]*", self.domain, re.ASCII):
            raise ConfigError(f"expected the name of a device, found {self.domain!r}", key="domain")
        if not 1 <= self.slots <= MOST_SLOTS:
            raise ConfigError(f"must lie between 1 and {MOST_SLOTS}, found {self.slots}", key="slots")

    def check(self, hosts: Sequence[str], fabric: str) -> None:
        """See `TransportConfig.check`: shared memory would go round the network, and namespaces hold no devices."""
        if self.domain and fabric != "inventory" and self.provider.partition(";")[0] in _BY_SOCKETS:
            raise PlanError(
                f"transport.domain={self.domain}: with provider {self.provider} a host of fabric={fabric} has the "
                "device of its address, for which libfabric has no name",
                hint="leave transport.domain empty",
            )
        if self.provider == "shm" and fabric != "loopback" and len(set(hosts)) > 1:
            raise PlanError(
                f"transport.provider=shm joins ranks of one host, these are on {len(set(hosts))}",
                hint="place all ranks on one host, or choose another provider",
            )
        if fabric == "netns" and self.provider.partition(";")[0] not in (*_BY_SOCKETS, "shm"):
            raise EnvironmentUnfit(
                f"transport.provider={self.provider} needs hosts with a device of its own, and those of fabric=netns "
                "are namespaces without",
                hint="provider=tcp, or fabric=inventory (real hosts, or the machines of 'make lab')",
            )

    def require(self, place: RankPlace, address: str, host: RdmaHost) -> None:
        """See `TransportConfig.require`: libfabric, the provider where it can be asked, a device for verbs."""
        if host.lacks(LIBRARY):
            raise EnvironmentUnfit(
                f"{host.where} has no {LIBRARY}, which transport=ofi loads",
                hint="apt-get install libfabric1; EFA and Slingshot bring their own",
            )
        wanted = self.provider.partition(";")[0]
        if wanted == "verbs" and not host.devices:
            from genie.rdma.rails import NO_DEVICE

            raise EnvironmentUnfit(
                f"{host.where} has no RDMA device, which transport.provider={self.provider} needs", hint=NO_DEVICE
            )
        if host.providers is not None and wanted not in [name.partition(";")[0] for name in host.providers]:
            raise EnvironmentUnfit(
                f"{host.where}: libfabric has no provider {self.provider!r}; it offers "
                f"{', '.join(host.providers) or 'none'}",
                hint="`fi_info -l` lists them; another one is transport.provider=NAME",
            )

    def settings(self, place: RankPlace) -> Mapping[str, str]:
        """See `TransportConfig.settings`."""
        return {"provider": self.provider, "domain": self.domain, "slots": str(self.slots)}
