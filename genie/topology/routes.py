"""Addresses and routes of every node, worked out before anything exists. Pure.

Host k has 10.0.(k // 250).(k % 250 + 1)/32 on its loopback interface, so its address does not depend on which cable
is up. Cable k is 10.128.0.0/9's k-th /31. Every host is one route in every forwarding node, over all shortest
paths (ECMP); a host with one cable has a default route instead. Interface indexes are unique in the whole fabric,
because the marker's map is keyed by them. Neighbours are permanent: the kernel's neighbour table is one for all
namespaces and overflows at 1024 learnt entries. `genie.fabric` turns this into commands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from genie.errors import PlanError
from genie.topology.model import Link, Node, Port, Topology

_HOST_BASE = int(IPv4Address("10.0.0.0"))
_LINK_BASE = int(IPv4Address("10.128.0.0"))
_FIRST_IFINDEX = 1000
_MAX_HOSTS = 128 * 250
_MAX_LINKS = 2**22


@dataclass(frozen=True, slots=True)
class InterfacePlan:
    """One end of a cable as the kernel will have it; ``address`` is in a /31 with ``peer_address``."""

    port: Port
    ifindex: int
    mac: str
    address: str
    peer_mac: str
    peer_address: str


@dataclass(frozen=True, slots=True)
class NextHop:
    """Where to hand a packet: a neighbour's address and the interface it is behind."""

    address: str
    interface: str


@dataclass(frozen=True, slots=True)
class Route:
    """``destination`` is "default" or an address with /32; several next hops are equal-cost paths."""

    destination: str
    next_hops: tuple[NextHop, ...]


@dataclass(frozen=True, slots=True)
class NodePlan:
    """All that one node's namespace holds. ``address`` is "" for switches, which have only cable addresses."""

    node: Node
    address: str
    interfaces: tuple[InterfacePlan, ...]
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class AddressPlan:
    """Node plans by name, in the topology's order."""

    nodes: Mapping[str, NodePlan]

    def address(self, host: str) -> str:
        """The IPv4 address of ``host``. Raises PlanError if it is no host of this topology."""
        plan = self.nodes.get(host)
        if plan is None or not plan.address:
            raise PlanError(f"{host!r} is no host of this topology", hint=f"hosts: {', '.join(self._hosts())}")
        return plan.address

    def interface(self, port_name: str) -> InterfacePlan:
        """The plan of port ``leaf0/spine1``. Raises PlanError if there is none."""
        node = self.nodes.get(port_name.partition("/")[0])
        for interface in node.interfaces if node else ():
            if interface.port.name == port_name:
                return interface
        raise PlanError(f"no port {port_name!r} in this topology")

    def _hosts(self) -> list[str]:
        return [name for name, plan in self.nodes.items() if plan.address]


def forwards(node: Node) -> bool:
    """Whether a node carries traffic that is neither from nor for it: switches, and hosts that say so."""
    return not node.is_host or node.attributes.get("forwards") == "yes"


def _distances(topology: Topology, target: str) -> dict[str, int]:
    """Cables between each node and ``target``, through forwarding nodes only; unreachable nodes are absent."""
    neighbours = _neighbours(topology)
    may_forward = {node.name for node in topology.nodes if forwards(node)}
    distance = {target: 0}
    queue = deque([target])
    while queue:
        node = queue.popleft()
        if node != target and node not in may_forward:
            continue
        for peer, _ in neighbours[node]:
            if peer not in distance:
                distance[peer] = distance[node] + 1
                queue.append(peer)
    return distance


def _neighbours(topology: Topology) -> dict[str, list[tuple[str, Link]]]:
    neighbours: dict[str, list[tuple[str, Link]]] = {node.name: [] for node in topology.nodes}
    for link in topology.links:
        neighbours[link.a.node].append((link.b.node, link))
        neighbours[link.b.node].append((link.a.node, link))
    return neighbours


def paths(topology: Topology, source: str, target: str) -> tuple[tuple[Link, ...], ...]:
    """Every shortest path from ``source`` to ``target`` as its links in order; () for a node to itself.

    Raises PlanError if there is none. The number of paths is the product of the choices at each hop.
    """
    if source == target:
        return ()
    distance = _distances(topology, target)
    if source not in distance:
        raise PlanError(f"no path from {source!r} to {target!r} in topology {topology.name!r}")
    neighbours = _neighbours(topology)
    may_forward = {node.name for node in topology.nodes if forwards(node)}
    found: list[tuple[Link, ...]] = []
    trail: list[tuple[str, tuple[Link, ...]]] = [(source, ())]
    while trail:
        node, links = trail.pop()
        if node == target:
            found.append(links)
            continue
        for peer, link in reversed(neighbours[node]):
            if distance.get(peer) == distance[node] - 1 and (peer == target or peer in may_forward):
                trail.append((peer, (*links, link)))
    return tuple(found)


def _plan_interfaces(topology: Topology) -> dict[str, list[InterfacePlan]]:
    by_node: dict[str, list[InterfacePlan]] = {node.name: [] for node in topology.nodes}
    for number, link in enumerate(topology.links):
        addresses = [str(IPv4Address(_LINK_BASE + 2 * number + end)) for end in (0, 1)]
        indexes = [_FIRST_IFINDEX + 2 * number + end for end in (0, 1)]
        macs = [f"02:67:{index >> 24 & 255:02x}:{index >> 16 & 255:02x}:{index >> 8 & 255:02x}:{index & 255:02x}"
                for index in indexes]  # fmt: skip
        for end, port in enumerate(link.ports):
            by_node[port.node].append(
                InterfacePlan(port, indexes[end], macs[end], addresses[end], macs[1 - end], addresses[1 - end])
            )
    return by_node


def address_plan(topology: Topology) -> AddressPlan:
    """Addresses, MACs, interface indexes and routes of every node.

    Raises PlanError where two hosts cannot reach each other or the address ranges are exhausted.
    """
    hosts = topology.hosts
    if len(hosts) > _MAX_HOSTS or len(topology.links) > _MAX_LINKS:
        raise PlanError(f"{len(hosts)} hosts and {len(topology.links)} links are more than the address ranges hold")
    address = {
        node.name: str(IPv4Address(_HOST_BASE + (index // 250 << 8) + index % 250 + 1))
        for index, node in enumerate(hosts)
    }
    interfaces = _plan_interfaces(topology)
    routes: dict[str, list[Route]] = {node.name: [] for node in topology.nodes}
    single_homed = {node.name for node in hosts if len(interfaces[node.name]) == 1 and not forwards(node)}
    may_forward = {node.name for node in topology.nodes if forwards(node)}
    for name in single_homed:
        only = interfaces[name][0]
        routes[name].append(Route("default", (NextHop(only.peer_address, only.port.interface),)))
    for target in hosts:
        distance = _distances(topology, target.name)
        lost = [node.name for node in hosts if node.name not in distance]
        if lost:
            raise PlanError(f"hosts {lost[0]!r} and {target.name!r} of topology {topology.name!r} are not connected")
        for node in topology.nodes:
            if node.name == target.name or node.name in single_homed or node.name not in distance:
                continue
            next_hops = tuple(
                NextHop(interface.peer_address, interface.port.interface)
                for interface in interfaces[node.name]
                if distance.get(interface.port.peer) == distance[node.name] - 1
                and (interface.port.peer == target.name or interface.port.peer in may_forward)
            )
            routes[node.name].append(Route(f"{address[target.name]}/32", next_hops))
    return AddressPlan(
        {
            node.name: NodePlan(
                node, address.get(node.name, ""), tuple(interfaces[node.name]), tuple(routes[node.name])
            )
            for node in topology.nodes
        }
    )
