"""The network of a run: its ports with their rates, and the ports that each flow's bytes left by.

Made from the run directory alone (``plan.json``, ``config.yaml`` for seeds, ``counters.json``) by `read_network`, for
`genie.why.explain`. A flow is (sending rank, receiving rank, channel). Where equal paths were to choose from, the
kernel's choice is computed (`genie.why.multipath`) and kept only if the ports' counters agree with it; else the flow is
spread over its candidates and said to be unknown. Never measures time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from genie.engine.encode import LISTEN_PORT, Endpoint, SourcePorts
from genie.errors import GenieError
from genie.results.ports import NOT_KNOWN
from genie.results.records import PlanRecord
from genie.results.rundir import CountersRecord, RunDir
from genie.results.statistics import Floats
from genie.topology.model import Link, Node, Port, PortModel, Topology
from genie.topology.routes import AddressPlan, address_plan
from genie.why.multipath import LEAST_KERNEL, next_hops
from genie.why.records import RouteFacts

OPAQUE = "fabric"
"""The node that stands for the network between hosts whose cables nobody told (`genie.topology.inventory`)."""

FRAME_BYTES = 32
"""Head of a message on its connection (docs/formats.md §2)."""

_PACKET_HEADERS = 40 + 12
_ETHERNET_BYTES = 14
_ACK_BYTES = _PACKET_HEADERS + _ETHERNET_BYTES
_BYTES_BELOW_RATIO = 0.97
_BYTES_ABOVE_RATIO = 1.06
_BYTES_ABOVE = 30_000
"""How far a port's own count may lie from what the flows that were computed onto it sent, headers and acknowledgements
included: repeated segments come on top, and the counters are read a little before and after the run."""

Flow = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Ports by number (the order of ``plan.ports``) and routes of flows by number.

    ``rates`` are in bytes per real ns (NaN: not known). Flow f's ports are ``route_ports[begin[f]:begin[f + 1]]``, in
    the order of the way, with ``route_weights`` the share of its bytes that each is taken to carry: 1 where ``known``.
    A flow within a host has none. ``slowest`` is the rate of the slowest of them, ``hops`` their number on one path.
    """

    ports: tuple[str, ...]
    links: tuple[str, ...]
    rates: Floats
    mtu: int
    flows: tuple[Flow, ...]
    begin: npt.NDArray[np.int64]
    route_ports: npt.NDArray[np.int64]
    route_weights: Floats
    known: npt.NDArray[np.bool_]
    slowest: Floats
    hops: npt.NDArray[np.int64]
    facts: RouteFacts

    def link(self, port: int) -> str:
        """The cable that a port is an end of."""
        return self.links[port // 2] if port // 2 < len(self.links) else self.ports[port]

    def route(self, flow: int) -> tuple[str, ...]:
        """Names of the ports that a flow's bytes left by, in order; () where that is not known."""
        if not self.known[flow]:
            return ()
        return tuple(self.ports[port] for port in self.route_ports[self.begin[flow] : self.begin[flow + 1]])

    def wire_bytes(self, payload: npt.NDArray[Any]) -> Floats:
        """Bytes on a cable for messages of so many bytes each: frame, TCP, IP and Ethernet around them."""
        return wire_bytes(payload, self.mtu)


def wire_bytes(payload: npt.NDArray[Any], mtu: int) -> Floats:
    """See `Network.wire_bytes`; where the MTU is not known (0), headers are left out."""
    content = np.asarray(payload, dtype=np.float64) + FRAME_BYTES
    if mtu <= _PACKET_HEADERS:
        return content
    return content * (1 + (_PACKET_HEADERS + _ETHERNET_BYTES) / (mtu - _PACKET_HEADERS))


def topology_of(plan: PlanRecord) -> Topology | None:
    """The topology that ran, from its plan; None where there was none (loopback) or it was not recorded."""
    if plan.fabric == "loopback" or not plan.nodes or len(plan.port_rates_bps) != len(plan.ports):
        return None
    nodes = tuple(
        Node(name, "host", {"forwards": "yes"}) if role == "forwarding host" else Node(name, role)
        for name, role in plan.nodes.items()
    )
    links = []
    hosts = {node.name for node in nodes if node.is_host}
    for k, name in enumerate(plan.links):
        (a, a_interface), (b, b_interface) = (plan.ports[2 * k + end].split("/", 1) for end in (0, 1))
        models = [PortModel(plan.port_rates_bps[2 * k + end], 0) for end in (0, 1)]
        tier = "host" if a in hosts or b in hosts else "fabric"
        links.append(Link(name, Port(a, b, a_interface, models[0]), Port(b, a, b_interface, models[1]), tier))
    return Topology(plan.topology, nodes, tuple(links), {"mtu": plan.mtu})


def read_network(
    run: RunDir, plan: PlanRecord, counters: CountersRecord, flows: Sequence[Flow], sent_bytes: Floats
) -> Network:
    """The network of ``run`` and the routes of ``flows``, of which each sent ``sent_bytes`` of payload in the whole run
    in messages (frames not counted).
    """
    topology = topology_of(plan)
    if topology is None:
        why = "the fabric has no ports" if plan.fabric == "loopback" else "the run does not say how it was cabled"
        return _without_routes(plan, flows, why)
    choice = _Choice(run, plan, topology, flows)
    routes, unsure = choice.walk()
    known = np.ones(len(flows), dtype=bool)
    if not unsure.any():
        text = "there is one path for each flow"
        if plan.fabric == "inventory" and OPAQUE in plan.nodes:
            text = "what is between the hosts was not told: their own ports are known, and nothing behind them"
        facts = RouteFacts("single", len(flows), len(flows), text)
    else:
        basis, text = _judge(plan, counters, choice, routes, sent_bytes)
        if basis == "unknown":
            known = ~unsure
        facts = RouteFacts(basis, len(flows), int(known.sum()), text)
    return _network(plan, flows, routes, known, choice, facts)


class _Choice:
    """Walks flows from node to node, and knows where a choice was made."""

    def __init__(self, run: RunDir, plan: PlanRecord, topology: Topology, flows: Sequence[Flow]) -> None:
        self.topology = topology
        self._addresses = address_plan(topology)
        self._number = {name: k for k, name in enumerate(plan.ports)}
        self._peer = {port.name: port.peer for port in topology.ports}
        self._plan = plan
        self._flows = flows
        self._hosts = [(plan.host(sender), plan.host(receiver)) for sender, receiver, _ in flows]
        self.hops = _next_hops(self._addresses, topology)
        config = run.config
        fabric = config.get("fabric")
        seed = fabric.get("seed") if isinstance(fabric, dict) else None
        host = run.host()
        self.why_not = _why_not_computed(plan, seed, host.kernel if host else "")
        self._ecmp_seed = int(seed) if isinstance(seed, int) else 0
        self._tuples = np.zeros((len(flows), 4), dtype=np.int64)
        if not self.why_not:
            transport = config.get("transport")
            base = transport.get("base_port") if isinstance(transport, dict) else None
            seed = config.get("seed")
            if not isinstance(seed, int) or not isinstance(base, int | None):
                raise GenieError(f"{run.path / 'config.yaml'}: expected seed and transport.base_port to be integers")
            self._tuples = self._five_tuples(seed, base or LISTEN_PORT)

    def _five_tuples(self, seed: int, base_port: int) -> npt.NDArray[np.int64]:
        endpoints = [
            Endpoint(int(IPv4Address(self._addresses.address(host))), base_port + rank)
            for rank, host in enumerate(self._plan.placement)
        ]
        ports: dict[int, SourcePorts] = {}
        rows = np.zeros((len(self._flows), 4), dtype=np.int64)
        for k, (sender, receiver, channel) in enumerate(self._flows):
            # the higher rank of a pair connects
            low, high = min(sender, receiver), max(sender, receiver)
            if high not in ports:
                ports[high] = SourcePorts(high, seed, endpoints)
            source_port = ports[high].port(low, channel)
            ends = [(endpoints[high].ipv4, source_port), (endpoints[low].ipv4, endpoints[low].port)]
            (a, a_port), (b, b_port) = ends if sender == high else ends[::-1]
            rows[k] = (a, b, a_port, b_port)
        return rows

    def walk(self) -> tuple[list[list[int]], npt.NDArray[np.bool_]]:
        """Port numbers of each flow's way, and which flows had a choice anywhere."""
        here = [sender for sender, _ in self._hosts]
        goal = [receiver for _, receiver in self._hosts]
        routes: list[list[int]] = [[] for _ in self._flows]
        unsure = np.zeros(len(self._flows), dtype=bool)
        moving = [k for k in range(len(self._flows)) if here[k] != goal[k]]
        while moving:
            undecided: dict[str, list[int]] = {}
            for k in moving:
                ports = self.hops[here[k]][goal[k]]
                if len(ports) > 1:
                    unsure[k] = True
                    undecided.setdefault(here[k], []).append(k)
                else:
                    self._take(routes[k], here, k, ports[0])
            for node, chosen in undecided.items():
                counts = [len(self.hops[node][goal[k]]) for k in chosen]
                origin = np.array([self._hosts[k][0] == node for k in chosen])
                index = np.zeros(len(chosen), dtype=np.int64)
                if not self.why_not:
                    tuples = self._tuples[chosen]
                    index = next_hops(self._ecmp_seed, node, tuples, counts)
                    if origin.any():
                        index = np.where(
                            origin, next_hops(self._ecmp_seed, node, tuples, counts, forwarded=False), index
                        )
                for k, which in zip(chosen, index.tolist(), strict=True):
                    self._take(routes[k], here, k, self.hops[node][goal[k]][which])
            moving = [k for k in moving if here[k] != goal[k]]
        return routes, unsure

    def _take(self, route: list[int], here: list[str], k: int, port: str) -> None:
        route.append(self._number[port])
        here[k] = self._peer[port]

    def spread(self, source: str, target: str) -> tuple[list[int], list[float]]:
        """Every port on a shortest path, in the order of the way, and the share of traffic that an even choice at each
        node sends over it.
        """
        share, order = {source: 1.0}, deque([source])
        ports: dict[int, float] = {}
        while order:
            node = order.popleft()
            own = share.pop(node, 0.0)
            if node == target or not own:
                continue
            candidates = self.hops[node][target]
            for port in candidates:
                number, peer = self._number[port], self._peer[port]
                ports[number] = ports.get(number, 0.0) + own / len(candidates)
                share[peer] = share.get(peer, 0.0) + own / len(candidates)
                if peer not in order:
                    order.append(peer)
        return list(ports), list(ports.values())


def _next_hops(addresses: AddressPlan, topology: Topology) -> dict[str, dict[str, tuple[str, ...]]]:
    """Node → destination host → ports, in the order in which the kernel has them."""
    host_of = {f"{plan.address}/32": name for name, plan in addresses.nodes.items() if plan.address}
    hosts = [node.name for node in topology.hosts]
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for name, plan in addresses.nodes.items():
        table: dict[str, tuple[str, ...]] = {}
        for route in plan.routes:
            ports = tuple(f"{name}/{hop.interface}" for hop in route.next_hops)
            if route.destination == "default":
                table |= dict.fromkeys(hosts, ports)
            else:
                table[host_of[route.destination]] = ports
        found[name] = table
    return found


def _why_not_computed(plan: PlanRecord, seed: object, kernel: str) -> str:
    """Why the kernel's choice among equal paths cannot be computed; "" where it can."""
    if plan.fabric != "netns":
        return f"fabric {plan.fabric} has switches of its own, whose hash is not known"
    if not isinstance(seed, int):
        return "the run's configuration has no seed for its paths"
    numbers = tuple(int(word) for word in kernel.split("-")[0].split(".")[:2] if word.isdigit())
    if len(numbers) < 2 or numbers < LEAST_KERNEL:
        return f"kernel {kernel or 'unknown'} has no seed for its choice of paths (6.11 has)"
    return ""


def _judge(
    plan: PlanRecord, counters: CountersRecord, choice: _Choice, routes: list[list[int]], sent_bytes: Floats
) -> tuple[str, str]:
    """Whether the computed routes hold, by the bytes that ports where flows part counted themselves."""
    if choice.why_not:
        return "unknown", f"which of several equal paths a flow took is not known: {choice.why_not}"
    counted = _counted_bytes(counters, plan)
    if counted is None:
        return "unconfirmed", "paths are computed as Linux chooses them; no port counters confirm it"
    sent = np.zeros(len(plan.ports))
    acknowledged = np.zeros(len(plan.ports))
    packets = sent_bytes / max(1, plan.mtu - _PACKET_HEADERS)
    for route, size, count in zip(routes, wire_bytes(sent_bytes, plan.mtu).tolist(), packets.tolist(), strict=True):
        sent[route] += size
        # acknowledgements take the way of the opposite flow, whose first ports are the other ends of these only where
        # there is one path; both ways share the count of packets
        acknowledged[route] += _ACK_BYTES * count
    parting = sorted(
        {
            choice_port
            for node, table in choice.hops.items()
            for ports in table.values()
            if len(ports) > 1
            for choice_port in ports
        }
    )
    number = {name: k for k, name in enumerate(plan.ports)}
    worst, wrong = 0.0, ""
    for name in parting:
        k = number[name]
        low = sent[k] * _BYTES_BELOW_RATIO
        high = (sent[k] + acknowledged[k] + acknowledged.max()) * _BYTES_ABOVE_RATIO + _BYTES_ABOVE
        off = max(low - counted[k], counted[k] - high, 0.0)
        if off > worst:
            worst, wrong = off, f"{name} counted {counted[k] / 1e6:.1f} MB where {sent[k] / 1e6:.1f} MB were computed"
    if wrong:
        return "unknown", f"paths are not those that Linux would choose by itself: {wrong}"
    return "computed", f"computed as Linux chooses, and confirmed by the counters of {len(parting)} ports"


def _counted_bytes(counters: CountersRecord, plan: PlanRecord) -> Floats | None:
    rises = []
    for name in plan.ports:
        before = counters.before.get(name, {}).get("tx_bytes")
        after = (counters.after or {}).get(name, {}).get("tx_bytes")
        if before is None or after is None or NOT_KNOWN in (before, after) or after < before:
            return None
        rises.append(after - before)
    return np.array(rises, dtype=np.float64)


def _network(
    plan: PlanRecord,
    flows: Sequence[Flow],
    routes: list[list[int]],
    known: npt.NDArray[np.bool_],
    choice: _Choice,
    facts: RouteFacts,
) -> Network:
    rates = np.array(plan.port_rates_bps, dtype=np.float64) / 8e9 / plan.dilation
    rates[rates <= 0] = np.nan
    spread: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
    ports: list[int] = []
    weights: list[float] = []
    begin = [0]
    for k, (sender, receiver, _) in enumerate(flows):
        if known[k]:
            ports += routes[k]
            weights += [1.0] * len(routes[k])
        else:
            ends = (plan.host(sender), plan.host(receiver))
            if ends not in spread:
                spread[ends] = choice.spread(*ends)
            ports += spread[ends][0]
            weights += spread[ends][1]
        begin.append(len(ports))
    starts = np.array(begin, dtype=np.int64)
    return Network(
        ports=plan.ports,
        links=plan.links,
        rates=rates,
        mtu=plan.mtu,
        flows=tuple(flows),
        begin=starts,
        route_ports=np.array(ports, dtype=np.int64),
        route_weights=np.array(weights, dtype=np.float64),
        known=known,
        slowest=_slowest(rates, ports, begin),
        hops=np.array([len(route) for route in routes], dtype=np.int64),
        facts=facts,
    )


def _slowest(rates: Floats, ports: Sequence[int], begin: Sequence[int]) -> Floats:
    """Of the ports whose rate is known; NaN where none is."""
    values = rates.tolist()
    found = [[values[port] for port in ports[a:b] if values[port] == values[port]] for a, b in pairwise(begin)]
    return np.array([min(own, default=np.nan) for own in found], dtype=np.float64)


def _without_routes(plan: PlanRecord, flows: Sequence[Flow], why: str) -> Network:
    count = len(flows)
    return Network(
        ports=plan.ports,
        links=plan.links,
        rates=np.full(len(plan.ports), np.nan),
        mtu=plan.mtu,
        flows=tuple(flows),
        begin=np.zeros(count + 1, dtype=np.int64),
        route_ports=np.zeros(0, dtype=np.int64),
        route_weights=np.zeros(0),
        known=np.zeros(count, dtype=bool),
        slowest=np.full(count, np.nan),
        hops=np.zeros(count, dtype=np.int64),
        facts=RouteFacts("unknown", count, 0, f"routes and rates are not known: {why}"),
    )
