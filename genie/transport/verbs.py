"""``transport=verbs``: RDMA through libibverbs (RoCE, InfiniBand, Soft-RoCE), with NCCL's defaults.

Its native half is `native/src/verbs*.cpp`, in ``genie-agent-dl``, which reads what `VerbsTransport.settings` writes. A
rank uses one port of one device: its rail, if rails are named (`genie.rdma.rails`), else the device that has the host's
address. See docs/transport-verbs.md. Asks no device anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from genie.errors import ConfigError, EnvironmentUnfit
from genie.transport.base import RankPlace, TransportConfig
from genie.units import format_ns, parse_ns

if TYPE_CHECKING:
    from genie.rdma.model import RdmaHost
    from genie.rdma.rails import Rail

MOST_QPS = 128
"""Queue pairs of a connection in one direction, as many as NCCL allows."""

MOST_SLOTS = 1024

_RANGES = {
    "gid_index": (-1, 255),
    "timeout": (0, 31),
    "retry_cnt": (0, 7),
    "rnr_retry": (0, 7),
    "min_rnr_timer": (0, 31),
    "traffic_class": (0, 255),
    "service_level": (0, 15),
    "hop_limit": (1, 255),
    "pkey_index": (0, 65535),
    "qps_per_connection": (1, MOST_QPS),
    "slots": (1, MOST_SLOTS),
    "inline_bytes": (0, 4096),
    "ar_threshold_bytes": (0, 2**32 - 1),
}
LIBRARY = "libibverbs.so.1"


@dataclass(frozen=True, slots=True)
class VerbsTransport(TransportConfig):
    """RDMA. ``devices`` are the rails of every host, in the order of its ranks ("mlx5_0", "mlx5_1:2" for its port 2);
    empty: what the inventory says of each host, else the device that has the host's address.

    ``gid_index`` -1 is NCCL's choice (the first RoCE v2 GID with an IPv4 address), ``mtu`` "auto" the port's active.
    ``timeout`` is an exponent: an acknowledgement is waited for 4.096 us times 2^timeout, ``retry_cnt`` + 1 times.
    ``operation`` "write" sends a message as one RDMA write with immediate, as NCCL does, "send" as a send.
    ``split`` gives each of a connection's queue pairs a part of each message, else they take turns. ``slots`` is how
    many messages a receiver lets come ahead of it, ``credit_every`` for how many it says so once (NCCL: each).
    ``adaptive_routing`` sends messages longer than ``ar_threshold_bytes`` as a plain write and then an empty one with
    the immediate; "auto" is NCCL's choice, on InfiniBand. ``pci_relaxed_ordering`` lets the device's writes to memory
    overtake one another; "auto" is NCCL's choice, where libibverbs can ask for it.
    ``completion``: "busy" polls without end, "adaptive" spins as ``spin`` says and then sleeps, "events" only sleeps.
    """

    name: str = "verbs"
    devices: tuple[str, ...] = ()
    gid_index: int = -1
    mtu: str = "auto"
    timeout: int = 20
    retry_cnt: int = 7
    rnr_retry: int = 7
    min_rnr_timer: int = 12
    traffic_class: int = 0
    service_level: int = 0
    hop_limit: int = 255
    pkey_index: int = 0
    qps_per_connection: int = 1
    split: bool = False
    operation: Literal["write", "send"] = "write"
    completion: Literal["busy", "adaptive", "events"] = "adaptive"
    slots: int = 8
    credit_every: int = 1
    inline_bytes: int = 64
    adaptive_routing: bool | str = "auto"
    ar_threshold_bytes: int = 8192
    pci_relaxed_ordering: bool | str = "auto"

    agent: ClassVar[str] = "genie-agent-dl"
    needs_host: ClassVar[bool] = True
    is_exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        TransportConfig.__post_init__(self)
        for key, (least, most) in {**_RANGES, "credit_every": (1, self.slots)}.items():
            value = getattr(self, key)
            if not least <= value <= most:
                raise ConfigError(f"must lie between {least} and {most}, found {value}", key=key)
        if self.mtu not in ("auto", "256", "512", "1024", "2048", "4096"):
            raise ConfigError(f"expected auto, 256, 512, 1024, 2048 or 4096 bytes, found {self.mtu!r}", key="mtu")
        for key in ("adaptive_routing", "pci_relaxed_ordering"):
            word = str(getattr(self, key)).lower()  # YAML makes a truth value of true
            if word not in ("auto", "true", "false"):
                raise ConfigError(f"expected auto, true or false, found {getattr(self, key)!r}", key=key)
            object.__setattr__(self, key, word)
        if self.adaptive_routing == "true" and self.operation == "send":
            raise ConfigError("true sends data as writes, found operation=send: expected write", key="adaptive_routing")
        if self.completion == "events":
            if self.spin != "auto" and parse_ns(self.spin, key="spin") > 0:
                raise ConfigError(f"completion=events never spins: expected auto or 0, found {self.spin!r}", key="spin")
            object.__setattr__(self, "spin", "0")
        self._rails("", {})  # what is no device is refused before any host is known

    def check(self, hosts: Sequence[str], fabric: str) -> None:
        """See `TransportConfig.check`: the namespaces of the embedded fabric hold no RDMA device."""
        if fabric == "netns":
            raise EnvironmentUnfit(
                "transport=verbs needs hosts with RDMA devices, and those of fabric=netns are namespaces without",
                hint="fabric=inventory (real hosts, or the machines of 'make lab'), or fabric=loopback on one device",
            )

    def require(self, place: RankPlace, address: str, host: RdmaHost) -> None:
        """See `TransportConfig.require`: libibverbs, a device, an active port, a GID, a partition key."""
        from genie.rdma.rails import NO_DEVICE, Rail, check_rails, rail_of

        if host.lacks(LIBRARY):
            raise EnvironmentUnfit(
                f"{host.where} has no {LIBRARY}, which transport=verbs loads",
                hint="apt-get install libibverbs1 ibverbs-providers (RHEL: dnf install libibverbs)",
            )
        if not host.devices:
            raise EnvironmentUnfit(f"{host.where} has no RDMA device, which transport=verbs needs", hint=NO_DEVICE)
        rail = rail_of(place.local_rank, self._rails(place.host, place.attributes))
        if rail is None:
            first = [(device, device.port(1)) for device in host.devices]
            fitting = [
                device.name for device, port in first if port and any(str(gid.ipv4) == address for gid in port.gids)
            ]
            if not fitting and len(host.devices) > 1:
                names = ", ".join(device.name for device in host.devices)
                raise EnvironmentUnfit(
                    f"{host.where}: no RDMA device has the address {address}; devices there: {names}",
                    hint="name it: transport.devices=[NAME], or genie_rdma_devices in the inventory",
                )
            rail = Rail((fitting or [host.devices[0].name])[0])
        check_rails(host.where, [rail], host.devices, gid_index=self.gid_index, pkey_index=self.pkey_index)
        self._require_mtu(rail, host)

    def _require_mtu(self, rail: Rail, host: RdmaHost) -> None:
        device = next(device for device in host.devices if device.name == rail.device)
        port = device.port(rail.port)
        active = port.active_mtu_bytes if port is not None else 0  # 0 where nobody said
        if self.mtu != "auto" and 0 < active < int(self.mtu):
            raise EnvironmentUnfit(
                f"{host.where}: port {rail.port} of {rail.device} has an active MTU of {active} bytes, found "
                f"transport.mtu={self.mtu}",
                hint="lower it, or raise the MTU of the port's interface",
            )

    def notes(self, stall_ns: int) -> tuple[str, ...]:
        """See `TransportConfig.notes`: whether a dead path shows as what the device says of it."""
        if self.timeout == 0:
            return (
                "transport.timeout=0: the device waits for acknowledgements without end, so a dead path shows as "
                f"timeout ({format_ns(stall_ns)} without progress)",
            )
        gives_up_ns = self.retries_exhausted_ns
        if gives_up_ns < stall_ns:
            return ()
        return (
            f"a dead path ends the run by timeout ({format_ns(stall_ns)} without progress) before the device gives up "
            f"({format_ns(gives_up_ns)} at the earliest): to hear it say IBV_WC_RETRY_EXC_ERR, raise timeout, or lower "
            "transport.timeout or transport.retry_cnt",
        )

    @property
    def retries_exhausted_ns(self) -> int:
        """After how long at the earliest a device gives a message up that nobody acknowledges: 4.096 us times
        2^timeout, ``retry_cnt`` + 1 times. It may take four times as long (InfiniBand, volume 1, 9.7.6.1.3).
        """
        return (4096 << self.timeout) * (self.retry_cnt + 1)

    def settings(self, place: RankPlace) -> Mapping[str, str]:
        """See `TransportConfig.settings`. Raises ConfigError and PlanError for rails that are none."""
        from genie.rdma.rails import rail_of

        rail = rail_of(place.local_rank, self._rails(place.host, place.attributes))
        words = {"mtu": self.mtu, "mode": self.operation, "completion": self.completion}
        words |= {key: getattr(self, key) for key in ("adaptive_routing", "pci_relaxed_ordering")}
        numbers = {key: str(int(getattr(self, key))) for key in (*_RANGES, "split", "credit_every")}
        return {
            "device": rail.device if rail else "",
            "port": str(rail.port if rail else 1),
            **words,
            **numbers,
        }

    def _rails(self, host: str, attributes: Mapping[str, object]) -> tuple[Rail, ...]:
        from genie.rdma.rails import rails_of

        return rails_of(host, attributes, self.devices)
