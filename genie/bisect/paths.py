"""Which way the flows of probes go on a fabric: asked of its kernels, where it has them here.

The ports of a seeded run's connections follow from the seed, so every flow between two hosts goes the same way in each
probe of a search. On the embedded fabric the nodes themselves say which of several next hops a flow takes (``ip route
get``); elsewhere a flow is taken to go each of the shortest paths with equal chance. `genie.bisect.command` calls
`ground_of` once, before the first probe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from genie.bisect.belief import Way
from genie.bisect.rounds import Ground, Pair
from genie.bisect.suspects import path_tokens, port_token
from genie.engine.encode import LISTEN_PORT, Endpoint, SourcePorts
from genie.errors import RunAborted
from genie.fabric.base import Fabric
from genie.fabric.netns import NetnsFabric
from genie.topology import Topology, paths
from genie.topology.model import Link
from genie.topology.routes import AddressPlan

_DEVICE = re.compile(r"\bdev (\S+)")


@dataclass(frozen=True, slots=True)
class _Flow:
    source: str
    target: str
    source_port: int
    target_port: int


def ground_of(topology: Topology, fabric: Fabric, hosts: Sequence[str], *, seed: int, shaped: bool) -> Ground:
    """Everything that probes between ``hosts`` can be made of; rank r of a probe is on ``hosts[r]``.

    ``shaped``: ports have rates. Raises RunAborted where a node of the embedded fabric does not answer.
    """
    trails = {
        (a, b): paths(topology, hosts[a], hosts[b]) for a in range(len(hosts)) for b in range(len(hosts)) if a != b
    }
    several = [ends for ends, found in trails.items() if len(found) > 1]
    chosen: Mapping[Pair, tuple[Link, ...]] = {}
    if several and isinstance(fabric, NetnsFabric):
        flows = _flows(several, hosts, fabric, seed)
        chosen = _asked(topology, fabric, fabric.plan, flows)
    ways = {}
    for ends, found in trails.items():
        known = (chosen[ends],) if ends in chosen else found
        ways[ends] = tuple(Way(1 / len(known), path_tokens(trail, hosts[ends[0]])) for trail in known)
    rates = {ends: max(_rate_bps(trail) for trail in found) if shaped else 0 for ends, found in trails.items()}
    ports = {port_token(port.name): port.model.rate_bps for port in topology.ports}
    return Ground(tuple(hosts), ways, rates, ports)


def _rate_bps(trail: Sequence[Link]) -> int:
    return min(port.model.rate_bps for link in trail for port in link.ports)


def _flows(pairs: Sequence[Pair], hosts: Sequence[str], fabric: Fabric, seed: int) -> dict[Pair, _Flow]:
    """With the ports of the connection between two ranks: the higher one dials (docs/formats.md §1)."""
    ends = [Endpoint(int(IPv4Address(fabric.address(host))), LISTEN_PORT + rank) for rank, host in enumerate(hosts)]
    dialled = [SourcePorts(rank, seed, ends) for rank in range(len(hosts))]
    made = {}
    for a, b in pairs:
        low, high = min(a, b), max(a, b)
        port = {low: ends[low].port, high: dialled[high].port(low, 0)}
        made[a, b] = _Flow(hosts[a], hosts[b], port[a], port[b])
    return made


def _asked(
    topology: Topology, fabric: Fabric, plan: AddressPlan, flows: Mapping[Pair, _Flow]
) -> dict[Pair, tuple[Link, ...]]:
    """Follow all flows a hop at a time; each node is asked once a hop about all flows that have a choice there."""
    links = {(port.node, port.interface): link for link in topology.links for port in link.ports}
    peers = {(port.node, port.interface): port.peer for port in topology.ports}
    at = {ends: flow.source for ends, flow in flows.items()}
    came: dict[Pair, str] = {}
    trails: dict[Pair, list[Link]] = {ends: [] for ends in flows}
    for _ in range(len(topology.nodes)):
        waiting: dict[str, list[Pair]] = {}
        for ends, flow in flows.items():
            if at[ends] != flow.target:
                waiting.setdefault(at[ends], []).append(ends)
        if not waiting:
            return {ends: tuple(trail) for ends, trail in trails.items()}
        for node, here in waiting.items():
            answers = _devices(fabric, plan, node, [(flows[ends], came.get(ends, "")) for ends in here])
            for ends, device in zip(here, answers, strict=True):
                link, peer = links[node, device], peers[node, device]
                trails[ends].append(link)
                # the interface that the next node has it from
                came[ends] = next(port.interface for port in link.ports if port.node == peer)
                at[ends] = peer
    raise RunAborted("packets of a probe would go in circles", hint="the routes of the fabric are not its topology's")


def _devices(fabric: Fabric, plan: AddressPlan, node: str, flows: Sequence[tuple[_Flow, str]]) -> list[str]:
    """The interface by which ``node`` hands on each flow."""
    routes = {route.destination: route for route in plan.nodes[node].routes}
    found: list[str] = []
    asked: list[int] = []
    lines = []
    for place, (flow, came) in enumerate(flows):
        route = routes.get(f"{plan.address(flow.target)}/32") or routes["default"]
        found.append(route.next_hops[0].interface)
        if len(route.next_hops) > 1:
            asked.append(place)
            where = f"from {plan.address(flow.source)}" + (f" iif {came}" if came else "")
            lines.append(
                f"route get {plan.address(flow.target)} {where} ipproto tcp "
                f"sport {flow.source_port} dport {flow.target_port}\n"
            )
    if not lines:
        return found
    done = fabric.run(node, ["ip", "-o", "-4", "-batch", "-"], stdin="".join(lines).encode())
    devices = _DEVICE.findall(done.stdout)
    if done.returncode or len(devices) != len(lines):
        raise RunAborted(f"{node} does not say which way flows go: {done.stderr.strip() or done.stdout[:200]}")
    for place, device in zip(asked, devices, strict=True):
        found[place] = device
    return found
