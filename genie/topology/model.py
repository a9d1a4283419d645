"""A network as GENIE sees it: hosts, switches, links, ports. Pure data, no namespaces, no networkx.

Builders in this package make a `Topology`; `genie.topology.routes` adds addresses and routes; `genie.fabric`
brings it up; faults pick targets from it. A link ``a-b`` has two ports: ``a/b`` (in a, towards b) and ``b/a``.
A port's model is its *egress* queue. Names are for people: ``h0``, ``leaf1``, ``spine0``, ``h0-leaf0``,
``leaf0/spine1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Ecn:
    """WRED marking of a port's queue. Between Kmin and Kmax a packet is CE-marked with probability rising to
    ``pmax``, above Kmax always (DCQCN's convention, SIGCOMM'15 §3.1).
    """

    kmin_bytes: int
    kmax_bytes: int
    pmax: float


@dataclass(frozen=True, slots=True)
class PortModel:
    """Egress queue of one port: wire rate, tail-drop limit, marking (None = no marking), random loss."""

    rate_bps: int
    limit_bytes: int
    ecn: Ecn | None = None
    loss_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Port:
    """``node/peer``; ``interface`` is the kernel's name inside the node's namespace (at most 15 characters)."""

    node: str
    peer: str
    interface: str
    model: PortModel

    @property
    def name(self) -> str:
        """``leaf0/spine1``."""
        return f"{self.node}/{self.interface}"


@dataclass(frozen=True, slots=True)
class Link:
    """A cable. ``tier`` is "host" or "fabric"; faults select by it."""

    name: str
    a: Port
    b: Port
    tier: str

    @property
    def ports(self) -> tuple[Port, Port]:
        """Both ends."""
        return (self.a, self.b)


@dataclass(frozen=True, slots=True)
class Node:
    """A host or a switch. ``role`` is "host", "leaf", "spine" or "switch"; ``attributes`` are free selectors."""

    name: str
    role: str
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_host(self) -> bool:
        """Whether ranks can live here."""
        return self.role == "host"


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes and links, in a stable order."""

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    parameters: Mapping[str, object] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[Node, ...]:
        """Nodes where ranks can live, in order."""
        return tuple(node for node in self.nodes if node.is_host)

    @property
    def ports(self) -> tuple[Port, ...]:
        """Every port, in link order, ``a`` before ``b``: the numbering of ``ports.smp``."""
        return tuple(port for link in self.links for port in link.ports)
