"""From a configuration to a `Topology`, by way of a networkx graph.

A builder draws the graph (nodes with ``role``, edges with ``rate_bps`` and ``tier``); `from_graph` gives its links
names and its ports kernel interfaces. Anything that can be said as such a graph can be a topology: see
docs/add-a-topology.md. Pure: no namespaces, no addresses (`genie.topology.routes` has those).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from genie.errors import ConfigError, closest
from genie.topology.config import (
    PLACEMENTS,
    TOPOLOGIES,
    InventoryTopologyConfig,
    LeafSpineConfig,
    PortConfig,
    RingConfig,
    SingleSwitchConfig,
    TopologyConfig,
)
from genie.topology.model import Ecn, Link, Node, Port, PortModel, Topology
from genie.units import parse_bytes, parse_rate_bps, parse_ratio

if TYPE_CHECKING:
    import networkx

_INTERFACE_LIMIT = 15
_ROLES = ("host", "leaf", "spine", "switch")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MTU_RANGE = (576, 65521)
MAX_HOSTS = 4096
LEAST_LOSS = 1e-9
"""Losses are drawn in billionths: what is rarer could not be had, and would pass for a loss that is there."""


def _parse_port(config: PortConfig, rate_bps: int) -> PortModel:
    limit = parse_bytes(config.queue, key="topology.queue")
    if limit < 2 * config.mtu:
        raise ConfigError(
            f"a queue of {limit} bytes holds less than two packets of {config.mtu} bytes (topology.mtu)",
            key="topology.queue",
        )
    loss = parse_ratio(config.loss, key="topology.loss")
    if loss == 1 or 0 < loss < LEAST_LOSS:
        raise ConfigError(
            f"expected 0, or a chance from one in a billion up to below 1, found {config.loss!r}", key="topology.loss"
        )
    if not config.ecn:
        return PortModel(rate_bps, limit, None, loss)
    kmin = parse_bytes(config.ecn_kmin, key="topology.ecn_kmin")
    kmax = parse_bytes(config.ecn_kmax, key="topology.ecn_kmax")
    if not 0 < kmin < kmax <= limit:
        raise ConfigError(
            f"marking needs 0 < ecn_kmin < ecn_kmax <= queue, found {kmin}, {kmax} and {limit} bytes",
            key="topology.ecn_kmin",
        )
    pmax = parse_ratio(config.ecn_pmax, key="topology.ecn_pmax")
    return PortModel(rate_bps, limit, Ecn(kmin, kmax, pmax), loss)


def _parse_rate(text: str, key: str) -> int:
    rate = parse_rate_bps(text, key=key)
    if rate < 8_000:
        raise ConfigError(f"a port needs at least 8 kbps, found {text!r}", key=key)
    return rate


def _check_common(config: PortConfig, least_hosts: int) -> None:
    if not least_hosts <= config.hosts <= MAX_HOSTS:
        raise ConfigError(f"expected {least_hosts} to {MAX_HOSTS} hosts, found {config.hosts}", key="topology.hosts")
    if not _MTU_RANGE[0] <= config.mtu <= _MTU_RANGE[1]:
        raise ConfigError(
            f"expected {_MTU_RANGE[0]} to {_MTU_RANGE[1]} bytes, found {config.mtu}",
            key="topology.mtu",
            hint="1500 is Ethernet's default, 9000 what most training fabrics use",
        )
    if config.placement not in PLACEMENTS:
        raise ConfigError(
            f"no placement {config.placement!r}, {closest(config.placement, PLACEMENTS)}", key="topology.placement"
        )


def _name_interface(peer: str, taken: set[str]) -> str:
    """The kernel's name of the port towards ``peer``: the peer's own name where that fits and is free."""
    candidate = peer[:_INTERFACE_LIMIT]
    number = 0
    while candidate in taken or candidate in ("lo", "all", "default"):
        number += 1
        suffix = f".{number}"
        candidate = peer[: _INTERFACE_LIMIT - len(suffix)] + suffix
    taken.add(candidate)
    return candidate


def from_graph(
    graph: networkx.Graph[str],
    name: str,
    port_model: Callable[[int], PortModel],
    parameters: Mapping[str, object],
) -> Topology:
    """The topology that ``graph`` (or a MultiGraph, for parallel cables) draws.

    A node's attribute ``role`` is host, leaf, spine or switch; a host with ``forwards="yes"`` carries others'
    traffic; further string attributes become selectors. An edge has ``rate_bps`` and ``tier`` ("host" or "fabric").
    ``port_model`` gives the port of a rate. Node and edge order of the graph is kept.
    """
    nodes = []
    for node_name, data in graph.nodes(data=True):
        # Names become files, chains and arguments, and ports are written node/interface.
        if not isinstance(node_name, str) or not _NODE_NAME.fullmatch(node_name):
            raise ConfigError(
                f"node {node_name!r} is no name: expected up to 64 letters, digits and _ . - after a letter or digit",
                key=name,
            )
        role = data.get("role")
        if role not in _ROLES:
            raise ConfigError(f"node {node_name!r} has role {role!r}, expected one of {', '.join(_ROLES)}", key=name)
        selectors = {key: value for key, value in data.items() if key != "role" and isinstance(value, str)}
        nodes.append(Node(node_name, role, selectors))

    taken: dict[str, set[str]] = {node.name: set() for node in nodes}
    link_names: set[str] = set()
    links = []
    for a, b, data in graph.edges(data=True):
        model = port_model(data["rate_bps"])
        link_name, number = f"{a}-{b}", 0
        while link_name in link_names:
            number += 1
            link_name = f"{a}-{b}.{number}"
        link_names.add(link_name)
        port_a = Port(a, b, _name_interface(b, taken[a]), _of_node(model, graph.nodes[a]))
        port_b = Port(b, a, _name_interface(a, taken[b]), _of_node(model, graph.nodes[b]))
        links.append(Link(link_name, port_a, port_b, data["tier"]))
    return Topology(name, tuple(nodes), tuple(links), dict(parameters))


def _of_node(model: PortModel, node: Mapping[str, object]) -> PortModel:
    """A switch marks; a host that forwards nothing holds its own sender back instead (TCP's small queues, a NIC's)."""
    marks = node["role"] != "host" or node.get("forwards") == "yes"
    return model if marks else replace(model, ecn=None)


def _finish(
    graph: networkx.Graph[str], config: LeafSpineConfig | SingleSwitchConfig | RingConfig, derived: Mapping[str, object]
) -> Topology:
    parameters: dict[str, object] = {item.name: getattr(config, item.name) for item in fields(config)}
    parameters.update(derived)
    return from_graph(graph, config.name, lambda rate_bps: _parse_port(config, rate_bps), parameters)


def leaf_spine(config: LeafSpineConfig) -> Topology:
    """Hosts ``h0``… in blocks on ``leaf0``…, each leaf cabled to each ``spine0``…."""
    import networkx

    _check_common(config, least_hosts=1)
    if not 1 <= config.leaves <= config.hosts:
        raise ConfigError(
            f"expected 1 to {config.hosts} leaves (one a host at most), found {config.leaves}", key="topology.leaves"
        )
    if config.spines < 1 or config.leaves * config.spines > 16_384:
        raise ConfigError(
            f"expected at least 1 spine and at most 16384 cables to spines, found {config.spines} spines",
            key="topology.spines",
        )
    if not config.oversubscription > 0:
        raise ConfigError(f"expected a ratio above 0, found {config.oversubscription}", key="topology.oversubscription")
    host_bps = _parse_rate(config.host_rate, "topology.host_rate")
    fullest = ceil(config.hosts / config.leaves)
    if config.fabric_rate == "auto":
        fabric_bps = ceil(host_bps * fullest / config.spines / config.oversubscription)
    else:
        fabric_bps = _parse_rate(config.fabric_rate, "topology.fabric_rate")

    graph: Any = networkx.Graph()
    leaf_of = [host * config.leaves // config.hosts for host in range(config.hosts)]
    for host, leaf in enumerate(leaf_of):
        graph.add_node(f"h{host}", role="host", leaf=f"leaf{leaf}")
    for leaf in range(config.leaves):
        graph.add_node(f"leaf{leaf}", role="leaf")
    for spine in range(config.spines):
        graph.add_node(f"spine{spine}", role="spine")
    for host, leaf in enumerate(leaf_of):
        graph.add_edge(f"h{host}", f"leaf{leaf}", rate_bps=host_bps, tier="host")
    for leaf in range(config.leaves):
        for spine in range(config.spines):
            graph.add_edge(f"leaf{leaf}", f"spine{spine}", rate_bps=fabric_bps, tier="fabric")
    return _finish(graph, config, {"host_rate_bps": host_bps, "fabric_rate_bps": fabric_bps})


def single_switch(config: SingleSwitchConfig) -> Topology:
    """Hosts ``h0``… on ``switch0``."""
    import networkx

    _check_common(config, least_hosts=1)
    host_bps = _parse_rate(config.host_rate, "topology.host_rate")
    graph: Any = networkx.Graph()
    for host in range(config.hosts):
        graph.add_node(f"h{host}", role="host")
    graph.add_node("switch0", role="switch")
    for host in range(config.hosts):
        graph.add_edge(f"h{host}", "switch0", rate_bps=host_bps, tier="host")
    return _finish(graph, config, {"host_rate_bps": host_bps})


def ring(config: RingConfig) -> Topology:
    """Hosts ``h0``… in a circle, ``h0-h1``, ``h1-h2``…; two hosts are one cable."""
    import networkx

    _check_common(config, least_hosts=2)
    host_bps = _parse_rate(config.host_rate, "topology.host_rate")
    graph: Any = networkx.Graph()
    for host in range(config.hosts):
        graph.add_node(f"h{host}", role="host", forwards="yes")
    for host in range(config.hosts if config.hosts > 2 else 1):
        graph.add_edge(f"h{host}", f"h{(host + 1) % config.hosts}", rate_bps=host_bps, tier="host")
    return _finish(graph, config, {"host_rate_bps": host_bps})


def build(config: TopologyConfig) -> Topology:
    """The topology that ``config`` describes. Raises ConfigError with the key at fault."""
    match config:
        case LeafSpineConfig():
            return leaf_spine(config)
        case SingleSwitchConfig():
            return single_switch(config)
        case RingConfig():
            return ring(config)
        case InventoryTopologyConfig():
            raise ConfigError("real hosts are reached with fabric=inventory fabric.inventory=hosts.yml", key="topology")
    raise ConfigError(f"no topology {type(config).__name__}, {closest('', TOPOLOGIES)}", key="topology.name")
