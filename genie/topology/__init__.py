"""Topologies: what is connected to what, at which rate, with which queues. Pure; `genie.fabric` builds them.

`build` makes a `Topology` from a configuration, `place` puts ranks on its hosts, `address_plan` and `paths`
(`genie.topology.routes`) say which way packets go. networkx is imported only when a topology is built.
"""

from __future__ import annotations

from genie.topology.builders import build, from_graph
from genie.topology.config import (
    TOPOLOGIES,
    InventoryTopologyConfig,
    LeafSpineConfig,
    RingConfig,
    SingleSwitchConfig,
    TopologyConfig,
)
from genie.topology.model import Ecn, Link, Node, Port, PortModel, Topology
from genie.topology.placement import place
from genie.topology.routes import AddressPlan, address_plan, paths

__all__ = [
    "TOPOLOGIES",
    "AddressPlan",
    "Ecn",
    "InventoryTopologyConfig",
    "LeafSpineConfig",
    "Link",
    "Node",
    "Port",
    "PortModel",
    "RingConfig",
    "SingleSwitchConfig",
    "Topology",
    "TopologyConfig",
    "address_plan",
    "build",
    "from_graph",
    "paths",
    "place",
]
