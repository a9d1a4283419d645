"""What a user may say about a topology: one dataclass a builder, strings with units as they are typed.

`genie.schema` makes these from ``topology.*``; `genie.topology.build` turns them into a `Topology`. Standard
library only, since ``genie --help`` reads `TOPOLOGIES`. Rates and sizes are the model's: a fabric divides rates
by its ``time_dilation``, never this package.

The defaults fit two cores: 100 Mb/s a host with packets of RoCE's size (4096 bytes of payload) keeps them about a
quarter busy, where 1500-byte packets keep them above 80 %. 128 KB of queue is 10 ms of such a port, 30 packets;
marking starts at 6 of them and is certain above 18.
"""

from __future__ import annotations

from dataclasses import dataclass

PLACEMENTS = ("block", "round_robin")


@dataclass(frozen=True, slots=True)
class PortConfig:
    """What every port has in common, whatever the shape. Fields of all builders' configurations.

    ``queue`` is the tail-drop limit in bytes of a port's egress queue; ``ecn_*`` are DCQCN's Kmin, Kmax, Pmax;
    ``loss`` is the chance that a packet arriving over a link is lost, in every link; ``mtu`` is in bytes.
    """

    hosts: int = 8
    host_rate: str = "100Mbps"
    queue: str = "128KB"
    ecn: bool = True
    ecn_kmin: str = "25KB"
    ecn_kmax: str = "75KB"
    ecn_pmax: float = 0.1
    loss: float = 0.0
    mtu: int = 4200
    placement: str = "block"


@dataclass(frozen=True, slots=True)
class LeafSpineConfig(PortConfig):
    """Two-tier Clos: hosts spread evenly over leaves, every leaf cabled to every spine, ECMP between.

    ``fabric_rate`` "auto" is the rate at which the spines carry all hosts of the fullest leaf at once, divided by
    ``oversubscription``.
    """

    name: str = "leaf_spine"
    leaves: int = 2
    spines: int = 2
    fabric_rate: str = "auto"
    oversubscription: float = 1.0


@dataclass(frozen=True, slots=True)
class SingleSwitchConfig(PortConfig):
    """Every host on one switch, non-blocking inside: all contention is at the hosts' ports."""

    name: str = "single_switch"


@dataclass(frozen=True, slots=True)
class RingConfig(PortConfig):
    """Hosts cabled in a circle without switches; each host forwards for the others, as in a torus of accelerators.

    ``host_rate`` is the rate of each direction of each cable.
    """

    name: str = "ring"


@dataclass(frozen=True, slots=True)
class InventoryTopologyConfig:
    """The hosts (and switches, where told) of an Ansible inventory, as they are: rates and cables come from there.

    Which inventory it is, ``fabric.inventory`` says.
    """

    name: str = "inventory"
    placement: str = "block"


TopologyConfig = LeafSpineConfig | SingleSwitchConfig | RingConfig | InventoryTopologyConfig

TOPOLOGIES: dict[str, tuple[type[TopologyConfig], str]] = {
    "leaf_spine": (LeafSpineConfig, "two-tier Clos with ECMP: hosts on leaves, every leaf on every spine"),
    "single_switch": (SingleSwitchConfig, "all hosts on one non-blocking switch"),
    "ring": (RingConfig, "hosts in a circle, each forwarding for the others"),
    "inventory": (InventoryTopologyConfig, "the real hosts of an Ansible inventory (with fabric=inventory)"),
}
