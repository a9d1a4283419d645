"""RDMA devices, ports and GIDs as plain facts, and which GID a run uses, with the reason in words.

Filled by `genie.rdma.discovery` on this machine, and by `read_verbs_list` with what ``genie-agent-dl verbs list`` says
on another. The choice is that of the verbs transport (native/src/verbs_device.cpp); `nccl_gid_index` walks the table as
NCCL does, to say where the two part. Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from genie.errors import GenieError

INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"
ROCE_V1, ROCE_V2 = "RoCE v1", "RoCE v2"
ACTIVE = "ACTIVE"
_PKEY = re.compile(r"0x[0-9a-fA-F]{4}")


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a port's GID table. ``type`` is "InfiniBand", "RoCE v1" or "RoCE v2"; ``interface`` the kernel's
    name of the network interface behind it, "" where that is not known.
    """

    index: int
    address: IPv6Address
    type: str
    interface: str = ""

    @property
    def ipv4(self) -> IPv4Address | None:
        """The IPv4 address that it maps, if it does."""
        return self.address.ipv4_mapped

    @property
    def text(self) -> str:
        """As people know it: 10.0.0.1, or fe80::1."""
        return str(self.ipv4 or self.address)


@dataclass(frozen=True, slots=True)
class GidChoice:
    """Which GID a run uses and why; ``index`` -1 if none will do."""

    index: int
    why: str


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port. ``state`` is the kernel's word ("ACTIVE", "DOWN", …); ``active_mtu_bytes`` and ``rate_bps`` are 0
    where nobody said. ``pkeys`` are the partition keys by their place in the port's table, without empty places; empty
    where nobody said. ``chosen`` is `choose_gid` of it.
    """

    number: int
    state: str
    link_layer: str
    gids: tuple[Gid, ...] = ()
    active_mtu_bytes: int = 0
    rate_bps: int = 0
    pkeys: Mapping[int, int] = field(default_factory=dict)

    @property
    def chosen(self) -> GidChoice:
        """The GID that a run would use."""
        return choose_gid(self.link_layer, self.gids)

    @property
    def is_routed(self) -> bool:
        """Whether the chosen GID is one that routers know the way to: RoCE v2 with IPv4; InfiniBand goes by LID."""
        if self.link_layer == INFINIBAND:
            return True
        return any(gid.index == self.chosen.index and gid.type == ROCE_V2 and gid.ipv4 for gid in self.gids)

    @property
    def interfaces(self) -> tuple[str, ...]:
        """Network interfaces behind the port, without repetition."""
        return tuple(dict.fromkeys(gid.interface for gid in self.gids if gid.interface))


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """One device. ``driver`` is a name of `genie.rdma.counters.DRIVERS`, "" where it is none of them; ``limits`` are
    what the device says it can have (``max_qp``, ``max_qp_wr``, …), empty where nobody asked. ``is_open_to_programs``:
    the kernel has verbs for it (ib_uverbs).
    """

    name: str
    ports: tuple[RdmaPort, ...]
    driver: str = ""
    firmware: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)
    is_open_to_programs: bool = True

    def port(self, number: int) -> RdmaPort | None:
        """The port of that number, if there is one."""
        return next((port for port in self.ports if port.number == number), None)


@dataclass(frozen=True, slots=True)
class RdmaHost:
    """What a host has for transports that need more than sockets. ``where`` names it in a sentence ("this machine",
    "host h0"); ``libraries`` are those that its loader knows, None where nobody could ask it; ``providers`` those of
    its libfabric, None likewise.
    """

    where: str
    devices: tuple[RdmaDevice, ...] = ()
    libraries: frozenset[str] | None = None
    providers: tuple[str, ...] | None = None

    def lacks(self, library: str) -> bool:
        """Whether its loader is known not to find ``library``."""
        return self.libraries is not None and library not in self.libraries


def _is_link_local(gid: Gid) -> bool:
    return gid.address.is_link_local


_BEST_FIRST: tuple[tuple[str, Callable[[Gid], bool]], ...] = (
    (
        "the first RoCE v2 GID with an IPv4 address, as NCCL takes",
        lambda gid: gid.type == ROCE_V2 and gid.ipv4 is not None,
    ),
    (
        "no RoCE v2 GID has an IPv4 address: the first with a routable IPv6 address",
        lambda gid: gid.type == ROCE_V2 and not _is_link_local(gid),
    ),
    (
        "no RoCE v2 GID has a routable address: the first one, which reaches only this link",
        lambda gid: gid.type == ROCE_V2,
    ),
    (
        "the port has no RoCE v2 GID: the first of RoCE v1 with an IPv4 address; it is not routed",
        lambda gid: gid.ipv4 is not None,
    ),
    ("the port has no RoCE v2 GID: the first one; it is not routed", lambda gid: True),
)


def choose_gid(link_layer: str, gids: Sequence[Gid]) -> GidChoice:
    """The GID that the verbs transport takes where ``transport.gid_index`` says none.

    On Ethernet the first RoCE v2 GID with an IPv4 address, then what comes nearest to it. On InfiniBand the first:
    packets go by LID there.
    """
    used = [gid for gid in gids if int(gid.address)]
    if link_layer == INFINIBAND:
        if not used:
            return GidChoice(0, "InfiniBand: packets go by LID, index 0 is the port's own")
        return GidChoice(used[0].index, "InfiniBand: packets go by LID; the port's first GID")
    for why, fits in _BEST_FIRST:
        for gid in used:
            if fits(gid):
                return GidChoice(gid.index, why)
    return GidChoice(-1, "the port has no GID: its interface is down or has no address")


def nccl_gid_index(gids: Sequence[Gid]) -> int:
    """The index that NCCL takes on an Ethernet port with its defaults (IPv4, RoCE version 2, any subnet).

    From index 0 it goes through the table: an IPv4 entry replaces one that is none, whatever its RoCE version; of IPv4
    entries one of version 2 replaces one of another version (src/transport/net_ib, ncclUpdateGidIndex).
    """
    by_index = {gid.index: gid for gid in gids}
    at = 0
    for index in sorted(by_index):
        candidate, current = by_index[index], by_index.get(at)
        if index == 0 or candidate.ipv4 is None:
            continue
        if current is None or current.ipv4 is None or (candidate.type == ROCE_V2 and current.type != ROCE_V2):
            at = index
    return at


def pkeys_of(texts: Mapping[int, str]) -> dict[int, int]:
    """The partition keys in what sysfs says of each place of a port's table; empty places (0x0000) are passed over."""
    found = {index: int(text, 16) for index, text in texts.items() if _PKEY.fullmatch(text.strip())}
    return {index: key for index, key in sorted(found.items()) if key}


def read_verbs_list(text: str, *, where: str = "genie-agent-dl verbs list") -> tuple[RdmaDevice, ...]:
    """The devices in what ``genie-agent-dl verbs list`` printed. Raises GenieError for anything else."""
    try:
        content = json.loads(text)
        return tuple(_device(entry) for entry in content["devices"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise GenieError(f"{where}: expected a list of RDMA devices, found {text.strip()[:200]!r} ({error})") from error


def _device(entry: Mapping[str, Any]) -> RdmaDevice:
    limits = {key: int(value) for key, value in entry.items() if key.startswith("max_")}
    return RdmaDevice(
        name=str(entry["name"]),
        ports=tuple(_port(port) for port in entry["ports"]),
        driver=str(entry.get("driver", "")),
        firmware=str(entry.get("firmware", "")),
        limits=limits,
    )


def _port(entry: Mapping[str, Any]) -> RdmaPort:
    gids = tuple(
        Gid(int(gid["index"]), IPv6Address(str(gid["gid"])), str(gid["type"]), str(gid.get("interface", "")))
        for gid in entry["gids"]
    )
    return RdmaPort(
        number=int(entry["port"]),
        state=str(entry["state"]),
        link_layer=str(entry["link_layer"]),
        gids=gids,
        active_mtu_bytes=int(entry.get("active_mtu_bytes", 0)),
        rate_bps=int(entry.get("rate_bps", 0)),
    )
