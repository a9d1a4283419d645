"""Rails: which rank of a host uses which RDMA device and port.

A host with several NICs gives each of its ranks one, in the order in which they are named: by the user
(``transport.devices``), by the inventory (``genie_rdma_devices`` of a host), or as the kernel lists those that have an
interface of the topology. Rank i of a host uses rail i; with more ranks than rails they go round. Pure; knows no
transport. What does not fit is refused by name, before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from genie.errors import ConfigError, EnvironmentUnfit, PlanError, closest
from genie.rdma.model import ACTIVE, ETHERNET, RdmaDevice

ATTRIBUTE = "rdma_devices"
"""The attribute of a host of the topology that names its rails, separated by commas: "mlx5_0,mlx5_1:2"."""

NO_DEVICE = (
    "is the NIC's driver loaded (and the device in this container)? Without hardware: modprobe rdma_rxe, rdma link add "
    "rxe0 type rxe netdev IF (or make lab)"
)
"""What to do about a host without any RDMA device."""

_PKEYS_SHOWN = 8
_RAIL = re.compile(r"(?P<device>[A-Za-z0-9][A-Za-z0-9_.-]{0,63})(?::(?P<port>[1-9][0-9]?))?")


@dataclass(frozen=True, slots=True)
class Rail:
    """A port of an RDMA device."""

    device: str
    port: int = 1

    def __str__(self) -> str:
        return self.device if self.port == 1 else f"{self.device}:{self.port}"


def parse_rail(text: str, *, key: str = "transport.devices") -> Rail:
    """``mlx5_0`` or ``mlx5_0:2``. Raises ConfigError."""
    match = _RAIL.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"expected an RDMA device such as mlx5_0 or mlx5_0:2 (its port), found {text!r}", key=key)
    return Rail(match["device"], int(match["port"] or 1))


def rails_of(host: str, attributes: Mapping[str, Any], configured: Sequence[str] = ()) -> tuple[Rail, ...]:
    """The rails of a host: those of ``configured`` (``transport.devices``), else of its attributes; () if nobody says.

    Raises ConfigError for what is no device, PlanError where one is named twice.
    """
    told, key = list(configured), "transport.devices"
    if not told and attributes.get(ATTRIBUTE):
        told, key = str(attributes[ATTRIBUTE]).split(","), f"host {host}: genie_rdma_devices"
    rails = tuple(parse_rail(text, key=key) for text in told)
    twice = next((rail for number, rail in enumerate(rails) if rail in rails[:number]), None)
    if twice is not None:
        raise PlanError(f"{key} names {twice} twice; each rail is a port of its own")
    return rails


def rail_of(local_rank: int, rails: Sequence[Rail]) -> Rail | None:
    """The rail of a host's ``local_rank``-th rank; None where the host has no rails named."""
    return rails[local_rank % len(rails)] if rails else None


def rails_by_interface(devices: Sequence[RdmaDevice], interfaces: Sequence[str]) -> tuple[Rail, ...]:
    """The ports behind network interfaces, in their order: how the cables of a topology name rails.

    Raises PlanError for an interface with no RDMA port behind it.
    """
    behind: dict[str, Rail] = {}
    for device in devices:
        for port in device.ports:
            for interface in port.interfaces:
                behind.setdefault(interface, Rail(device.name, port.number))
    missing = [interface for interface in interfaces if interface not in behind]
    if missing:
        known = ", ".join(f"{name} ({rail})" for name, rail in sorted(behind.items())) or "none"
        raise PlanError(f"no RDMA port is behind interface {missing[0]}; those that have one: {known}")
    return tuple(behind[interface] for interface in interfaces)


def check_rails(
    where: str, rails: Sequence[Rail], devices: Sequence[RdmaDevice], *, gid_index: int = -1, pkey_index: int = 0
) -> None:
    """Refuse rails that a host ("host h0", "this machine") does not have, or that cannot carry anything.

    ``gid_index`` is the entry of each port's table that shall be its address; -1 leaves it to `choose_gid`.
    ``pkey_index`` is the entry of its table of partition keys, which some devices take unseen and then carry nothing,
    and Soft-RoCE takes for the first. Raises EnvironmentUnfit naming host, device and port: there is none of that name,
    no such port, its link is not active, it has no such address or key, programs cannot open it; PlanError where its
    link layer is not that of the rail before it.
    """
    by_name = {device.name: device for device in devices}
    layers: dict[str, Rail] = {}
    for rail in rails:
        device = by_name.get(rail.device)
        if device is None:
            raise EnvironmentUnfit(
                f"{where} has no RDMA device {rail.device!r}",
                hint=f"{closest(rail.device, by_name)}" if by_name else NO_DEVICE,
            )
        if not device.is_open_to_programs:
            raise EnvironmentUnfit(
                f"{where}: the kernel lets no program open RDMA device {rail.device}", hint="modprobe ib_uverbs"
            )
        port = device.port(rail.port)
        if port is None:
            numbers = ", ".join(str(known.number) for known in device.ports)
            raise EnvironmentUnfit(f"{where}: RDMA device {rail.device} has no port {rail.port}; its ports: {numbers}")
        if port.state != ACTIVE:
            cure = "is its interface up?" if port.link_layer == ETHERNET else "look at switch and subnet manager"
            raise EnvironmentUnfit(
                f"{where}: port {rail.port} of {rail.device} is {port.state}, expected {ACTIVE}",
                hint=f"is its cable plugged in? {cure}",
            )
        if gid_index >= 0 and all(gid.index != gid_index for gid in port.gids):
            known = ", ".join(f"{gid.index} ({gid.type} {gid.text})" for gid in port.gids) or "none"
            raise EnvironmentUnfit(
                f"{where}: port {rail.port} of {rail.device} has no GID at index {gid_index}; it has {known}",
                hint="correct transport.gid_index, or leave it at -1",
            )
        if gid_index < 0 and port.chosen.index < 0:
            raise EnvironmentUnfit(
                f"{where}: port {rail.port} of {rail.device} cannot be reached: {port.chosen.why}",
                hint="bring its interface up and give it an address (ip address add)",
            )
        if port.pkeys and pkey_index not in port.pkeys:
            raise EnvironmentUnfit(
                f"{where}: port {rail.port} of {rail.device} has no partition key at index {pkey_index}; it has "
                f"{_shown(port.pkeys)}",
                hint="correct transport.pkey_index, or leave it at 0; keys of InfiniBand are the subnet manager's",
            )
        layers.setdefault(port.link_layer, rail)
    if len(layers) > 1:
        shown = " and ".join(f"{rail} is {layer}" for layer, rail in layers.items())
        raise PlanError(f"{where}: rails of one run share a link layer, but {shown}")


def _shown(pkeys: Mapping[int, int]) -> str:
    """How many partition keys there are, and the first of them by index."""
    first = ", ".join(f"{index} (0x{key:04x})" for index, key in sorted(pkeys.items())[:_PKEYS_SHOWN])
    return f"{len(pkeys)}: {first}{' and more' if len(pkeys) > _PKEYS_SHOWN else ''}"
