"""What a user may say about a fabric: one dataclass a backend, strings with units as they are typed.

`genie.schema` makes these from ``fabric.*``; `genie.fabric.open_fabric` opens what they name. Standard library
only, since ``genie --help`` reads `FABRICS`.
"""

from __future__ import annotations

from dataclasses import dataclass

PACKETS = ("exact", "bulk")


@dataclass(frozen=True, slots=True)
class NetnsConfig:
    """The embedded fabric: network namespaces of this machine, rootless where the kernel allows.

    ``packets`` "exact" makes every packet one packet, which loss and marking need to be true per packet, and which
    cost their CPU time (docs/fabric.md); "bulk" lets TCP send super-packets of up to
    64 KB (several times faster; a drop or mark then hits a whole one). ``time_dilation``, 1 or more, divides the rate
    of every port (docs/fabric.md says what it does not scale). ``congestion`` is TCP's congestion control on every
    host's routes. ``sample_interval`` is how often queue depths are recorded. ``seed`` decides the ECMP hash, so the
    paths that flows take.
    """

    name: str = "netns"
    packets: str = "exact"
    time_dilation: float = 1.0
    congestion: str = "cubic"
    sample_interval: str = "10ms"
    seed: int = 1


@dataclass(frozen=True, slots=True)
class LoopbackConfig:
    """All hosts share this machine's loopback interface as 127.x.y.z. Shapes nothing and refuses faults."""

    name: str = "loopback"


@dataclass(frozen=True, slots=True)
class InventoryConfig:
    """Real hosts of an Ansible inventory, reached by ssh (docs/inventory.md).

    ``inventory`` is an INI or YAML file, ``group`` the group of it that is used. ``control_address`` is our IPv4
    address that agents dial; "" takes the one the hosts see their ssh connections come from. ``time_limit`` ends
    everything of a run on a host, whatever happened here. ``sample_interval`` is how often queue depths are recorded.
    """

    name: str = "inventory"
    inventory: str = ""
    group: str = "all"
    control_address: str = ""
    time_limit: str = "1h"
    sample_interval: str = "10ms"


FabricConfig = NetnsConfig | LoopbackConfig | InventoryConfig

FABRICS: dict[str, tuple[type[FabricConfig], str]] = {
    "netns": (NetnsConfig, "namespaces, shaped queues and ECMP routes on this machine"),
    "loopback": (LoopbackConfig, "no network at all: ranks talk over 127.0.0.0/8, no shaping, no faults"),
    "inventory": (InventoryConfig, "real hosts of an Ansible inventory, over ssh: fabric.inventory=hosts.yml"),
}
