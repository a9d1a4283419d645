"""From a topology and its address plan to the exact commands that build it: text for ``ip -batch`` and ``tc -batch``.

Pure: `genie.fabric.netns` runs what this says, the plan prints it. Interfaces are always named after the keyword
``dev``, so that a host called ``up`` cannot be mistaken for one.

A port is ``tbf`` with handle 7e1e: (ours; a fault changes only what carries it). Its burst is as small as keeps the
rate: two times what one timer wake-up late by 0.25 ms costs, at least four packets; with super-packets 1.05 ms of the
rate (measured: less collapses TCP at 1 Gb/s), and at least a super-packet with the headers of all its segments, since
tbf cuts up whatever is larger than its bucket.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from genie.topology.model import Ecn, PortModel, Topology
from genie.topology.routes import AddressPlan, InterfacePlan, NodePlan, Route

TBF_HANDLE = "7e1e:"
RED_HANDLE = "7e1f:"
LOSS_TABLE = "genie_loss"
_LINK_HEADER_BYTES = 14
_SUPER_PACKET_BYTES = 81_920
_PARTS_PER_BILLION = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Settings:
    """What the builder needs beyond the topology. ``marker`` is "bpf", "red" or "none"."""

    packets: str
    time_dilation: float
    congestion: str
    mtu: int
    seed: int
    marker: str
    cpus: int


@dataclass(frozen=True, slots=True)
class MarkerPort:
    """Configuration of one port's marking program, in bytes and bytes a second of the emulated rate."""

    ifindex: int
    rate_bytes_per_s: int
    limit_bytes: int
    ecn: Ecn


@dataclass(frozen=True, slots=True)
class NodeProgram:
    """Commands of one node, to be run inside it in this order: sysctls (before interfaces exist), ip, tc, nft."""

    name: str
    sysctls: tuple[tuple[str, str], ...]
    ip: str
    tc: str
    nft: str


@dataclass(frozen=True, slots=True)
class FabricProgram:
    """Everything that `NetnsFabric.build` does. ``links`` is run in the fabric's root namespace."""

    nodes: tuple[NodeProgram, ...]
    links: str
    markers: tuple[MarkerPort, ...]


def emulated_rate_bps(model: PortModel, time_dilation: float) -> int:
    """The rate a port is shaped to: the model's divided by the dilation."""
    return max(1, round(model.rate_bps / time_dilation))


def burst_bytes(rate_bps: int, mtu: int, packets: str) -> int:
    """``tbf``'s bucket for a rate (see above)."""
    rate = rate_bps / 8
    if packets == "bulk":
        return max(_SUPER_PACKET_BYTES, math.ceil(rate * 1.05e-3))
    return max(4 * (mtu + _LINK_HEADER_BYTES), math.ceil(rate * 0.5e-3))


_HASH_FIELDS = 0x01 | 0x02 | 0x04 | 0x10 | 0x20
"""Addresses, protocol and ports (Linux, Documentation/networking/ip-sysctl.rst)."""


def ecmp_seed(seed: int, node: str) -> int:
    """A node's own ECMP seed: equal ones would make every tier choose alike. Never 0, which means random."""
    digest = hashlib.sha256(f"{seed}/{node}".encode()).digest()
    return int.from_bytes(digest[:4], "little") or 1


def _cpu_mask(cpus: int) -> str:
    """A bitmap of the first ``cpus`` CPUs as the kernel writes them: comma-separated groups of 32 bits."""
    mask = (1 << cpus) - 1
    groups = []
    while mask:
        groups.append(f"{mask & 0xFFFFFFFF:08x}")
        mask >>= 32
    return ",".join(reversed(groups))


def node_sysctls(node: str, settings: Settings) -> tuple[tuple[str, str], ...]:
    """Paths under /proc/sys and values, to be written before the node has interfaces."""
    return (
        ("net/ipv6/conf/all/disable_ipv6", "1"),
        ("net/ipv6/conf/default/disable_ipv6", "1"),
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/default/rp_filter", "0"),
        ("net/ipv4/conf/all/send_redirects", "0"),
        ("net/ipv4/conf/default/send_redirects", "0"),
        # Policy 1 takes the hash that a packet brings with it where it has one, and TCP draws that anew for each
        # connection and timeout: paths would be chance. 3 hashes the fields named, whatever the packet brings.
        ("net/ipv4/fib_multipath_hash_policy", "3"),
        ("net/ipv4/fib_multipath_hash_fields", str(_HASH_FIELDS)),
        ("net/ipv4/fib_multipath_hash_seed", str(ecmp_seed(settings.seed, node))),
        ("net/ipv4/tcp_no_metrics_save", "1"),
        ("net/ipv4/tcp_ecn", "1"),
        # Steering a flow's packets to one CPU keeps them in order; veth otherwise reorders (false retransmits).
        ("net/core/rps_default_mask", _cpu_mask(settings.cpus)),
    )


def _link_line(a: InterfacePlan, b: InterfacePlan, settings: Settings) -> str:
    def end(interface: InterfacePlan) -> str:
        port = interface.port
        segments = " gso_max_segs 1" if settings.packets == "exact" else ""
        return (
            f"name {port.interface} index {interface.ifindex} address {interface.mac} mtu {settings.mtu}{segments} "
            f"netns {port.node}"
        )

    return f"link add {end(a)} type veth peer {end(b)}"


def _route_line(route: Route, plan: NodePlan, settings: Settings) -> str:
    # Only a sender's routes choose a congestion control, and a source, since its cables have addresses too.
    suffix = f" src {plan.address} congctl {settings.congestion}" if plan.address else ""
    if len(route.next_hops) == 1:
        only = route.next_hops[0]
        return f"route add {route.destination} via {only.address} dev {only.interface}{suffix}"
    hops = " ".join(f"nexthop via {hop.address} dev {hop.interface} weight 1" for hop in route.next_hops)
    return f"route add {route.destination}{suffix} {hops}"


def _ip_lines(plan: NodePlan, settings: Settings) -> Iterable[str]:
    yield "link set dev lo up"
    if plan.address:
        yield f"address add {plan.address}/32 dev lo"
    for interface in plan.interfaces:
        name = interface.port.interface
        yield f"address add {interface.address}/31 dev {name}"
        yield f"link set dev {name} up"
        yield f"neighbour add {interface.peer_address} lladdr {interface.peer_mac} dev {name} nud permanent"
    for route in plan.routes:
        yield _route_line(route, plan, settings)


def _red_line(name: str, model: PortModel, ecn: Ecn, rate_bps: int, mtu: int) -> str:
    # The smallest burst that red accepts is the shortest average: nearest to marking on the queue as it is.
    burst = math.ceil((2 * ecn.kmin_bytes + ecn.kmax_bytes) / (3 * mtu))
    return (
        f"qdisc add dev {name} parent {TBF_HANDLE}1 handle {RED_HANDLE} red limit {model.limit_bytes} "
        f"min {ecn.kmin_bytes} max {ecn.kmax_bytes} avpkt {mtu} burst {burst} bandwidth {rate_bps}bit "
        f"probability {ecn.pmax:g} ecn nodrop"
    )


def _tc_lines(plan: NodePlan, settings: Settings, pinned_marker: str) -> Iterable[str]:
    for interface in plan.interfaces:
        name, model = interface.port.interface, interface.port.model
        rate = emulated_rate_bps(model, settings.time_dilation)
        burst = burst_bytes(rate, settings.mtu, settings.packets)
        shape = f"tbf rate {rate}bit burst {burst}b limit {model.limit_bytes}b"
        yield f"qdisc add dev {name} root handle {TBF_HANDLE} {shape}"
        if model.ecn is None:
            continue
        if settings.marker == "red":
            yield _red_line(name, model, model.ecn, rate, settings.mtu)
        elif settings.marker == "bpf":
            yield f"qdisc add dev {name} clsact"
            yield f"filter add dev {name} egress protocol ip pref 100 bpf direct-action object-pinned {pinned_marker}"


def _nft_text(plan: NodePlan, loss_by_interface: Mapping[str, float]) -> str:
    """Drops packets as they arrive: the port they left by is the other end of the cable."""
    chains = []
    for interface in plan.interfaces:
        name = interface.port.interface
        parts = round(loss_by_interface.get(name, 0.0) * _PARTS_PER_BILLION)
        if parts:
            chains.append(
                f'  chain from_{interface.port.peer} {{ type filter hook ingress device "{name}" priority 0; '
                f"numgen random mod {_PARTS_PER_BILLION} < {parts} counter drop; }}\n"
            )
    return f"table netdev {LOSS_TABLE} {{\n{''.join(chains)}}}\n" if chains else ""


def fabric_program(topology: Topology, plan: AddressPlan, settings: Settings, pinned_marker: str) -> FabricProgram:
    """All commands for ``topology``. ``pinned_marker`` is where the marking program will be pinned."""
    links = ["link set dev lo up"]
    markers = []
    loss: dict[str, dict[str, float]] = {node.name: {} for node in topology.nodes}
    for link in topology.links:
        a, b = (plan.interface(port.name) for port in link.ports)
        links.append(_link_line(a, b, settings))
        loss[link.b.node][link.b.interface] = link.a.model.loss_ratio
        loss[link.a.node][link.a.interface] = link.b.model.loss_ratio
        for interface in (a, b):
            model = interface.port.model
            if settings.marker == "bpf" and model.ecn is not None:
                rate = emulated_rate_bps(model, settings.time_dilation) // 8
                markers.append(MarkerPort(interface.ifindex, max(1, rate), model.limit_bytes, model.ecn))
    nodes = tuple(
        NodeProgram(
            name,
            node_sysctls(name, settings),
            "".join(f"{line}\n" for line in _ip_lines(node, settings)),
            "".join(f"{line}\n" for line in _tc_lines(node, settings, pinned_marker)),
            _nft_text(node, loss[name]),
        )
        for name, node in plan.nodes.items()
    )
    return FabricProgram(nodes, "".join(f"{line}\n" for line in links), tuple(markers))
