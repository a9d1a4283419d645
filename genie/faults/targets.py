"""Selectors → ports. Pure: given a topology, says which ports a fault is about, the same for the same seed.

A selector is ``all``; ``switches`` (every port of every switch); a name or glob of a link (``h0-leaf0``,
``leaf*-spine*``), of a port (``leaf0/spine1``: the egress of leaf0 towards spine1) or of a node (``spine0``, ``h*``);
or ``attribute=value``: ``tier=fabric`` of links, ``role=spine`` and every free attribute of nodes, ``rank=3`` for the
host of a rank. Several selectors are a union. For a mechanism that acts on links a node means the links at it; for
one that acts on ports, its own ports. One that acts on nodes or hosts takes names, globs and attributes of nodes,
``all``, ``hosts`` and ``switches``; a link's name is the nodes at it.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from genie.errors import PlanError, closest
from genie.faults.config import FaultConfig
from genie.topology.model import Link, Node, Port, Topology

_SELECTOR = re.compile(r"[A-Za-z0-9_.*?\[\]!/-]{1,128}|[a-z][a-z0-9_]{0,31}=[A-Za-z0-9_.*?-]{1,64}")
_HEIGHT = {"host": 0, "leaf": 1, "switch": 1, "spine": 2, "core": 3}


def resolve(
    name: str,
    config: FaultConfig,
    topology: Topology,
    *,
    acts_on: str,
    eligible: Callable[[Port], str],
    seed: int,
    placement: Sequence[str] = (),
) -> tuple[Port, ...]:
    """The ports, in topology order. ``eligible`` gives "" or why a port cannot have this fault.

    A port that was named (not reached by a glob, an attribute or ``all``) and isn't eligible is an error; others are
    passed over. Raises PlanError when a selector matches nothing, or nothing is left.
    """
    key = f"fault.{name}"
    nodes = {node.name: node for node in topology.nodes}
    chosen: dict[str, Port] = {}
    why_not = ""
    for selector in config.selectors:
        _refuse_not_a_selector(key, selector)
        matched = _match(selector, topology, nodes, acts_on, placement)
        if not matched:
            raise PlanError(
                f"{key}.targets: {selector!r} matches nothing in topology {topology.name!r}",
                hint=closest(selector, _names(topology) if "/" in selector else _names(topology, ports=False)),
            )
        for port in matched:
            reason = eligible(port)
            if not reason:
                chosen[port.name] = port
            elif _is_exact(selector, topology):
                raise PlanError(f"{key}.targets: {selector!r} includes port {port.name}, {reason}")
            else:
                why_not = reason
    ports = [port for port in topology.ports if port.name in chosen]
    if config.ends != "both":
        ports = [port for port in ports if _direction(port, nodes, key) == config.ends]
    if not ports:
        said = ", ".join(config.selectors)
        if why_not:
            raise PlanError(f"{key}.targets: every port that {said} selects is one {why_not}")
        raise PlanError(f"{key}.targets: no port that {said} selects points {config.ends}")
    return tuple(_pick(name, config, topology, ports, acts_on, seed))


def resolve_nodes(
    name: str, config: FaultConfig, topology: Topology, *, acts_on: str, seed: int, placement: Sequence[str] = ()
) -> tuple[Node, ...]:
    """The nodes of a fault that acts on nodes (``acts_on`` "node") or hosts, in topology order.

    Raises PlanError when a selector matches nothing, or, naming it, a switch where only hosts can have the fault.
    """
    key = f"fault.{name}"
    if config.ends != "both":
        raise PlanError(f"{key}.ends: this fault acts on {acts_on}s, which have no ends")
    nodes = {node.name: node for node in topology.nodes}
    chosen: set[str] = set()
    for selector in config.selectors:
        _refuse_not_a_selector(key, selector)
        matched = _match_nodes(selector, topology, nodes, placement)
        if not matched:
            raise PlanError(
                f"{key}.targets: {selector!r} matches no node of topology {topology.name!r}",
                hint=closest(selector, list(nodes)),
            )
        if acts_on == "host":
            wrong = [node for node in matched if not nodes[node].is_host]
            if selector in wrong:
                raise PlanError(f"{key}.targets: {selector!r} is a switch, and this fault acts on hosts")
            matched = [node for node in matched if node not in wrong]
        chosen.update(matched)
    found = [node for node in topology.nodes if node.name in chosen]
    size = _size(name, config, len(found))
    if size is not None:
        drawn = random.Random(f"{seed}:{config.role}").sample(range(len(found)), size)  # noqa: S311  targets that a seed repeats, not a secret
        found = [found[index] for index in sorted(drawn)]
    if not found:
        raise PlanError(f"{key}.targets: no {acts_on} is selected by {', '.join(config.selectors)}")
    return tuple(found)


def _match_nodes(selector: str, topology: Topology, nodes: dict[str, Node], placement: Sequence[str]) -> list[str]:
    if selector in ("all", "hosts", "switches"):
        return [n.name for n in nodes.values() if selector == "all" or n.is_host == (selector == "hosts")]
    if "=" in selector:
        attribute, wanted = selector.split("=", 1)
        if attribute == "rank":
            return [placement[int(wanted)]] if wanted.isdigit() and int(wanted) < len(placement) else []
        if attribute == "tier":
            return [port.node for link in topology.links if fnmatchcase(link.tier, wanted) for port in link.ports]
        return [node.name for node in nodes.values() if fnmatchcase(_attribute(node, attribute), wanted)]
    named = [name for name in nodes if fnmatchcase(name, selector)]
    return named or [p.node for link in topology.links if fnmatchcase(link.name, selector) for p in link.ports]


def _refuse_not_a_selector(key: str, selector: str) -> None:
    if not _SELECTOR.fullmatch(selector):
        raise PlanError(
            f"{key}.targets: {selector!r} is not a selector",
            hint="write all, a name or glob of a link, port or node, or attribute=value such as tier=fabric",
        )


def _names(topology: Topology, *, ports: bool = True) -> list[str]:
    names = [*(link.name for link in topology.links), *(node.name for node in topology.nodes)]
    return names + [f"{port.node}/{port.peer}" for port in topology.ports] if ports else names


def _is_exact(selector: str, topology: Topology) -> bool:
    return selector in _names(topology) or selector in {port.name for port in topology.ports}


def _match(
    selector: str, topology: Topology, nodes: dict[str, Node], acts_on: str, placement: Sequence[str]
) -> list[Port]:
    if selector in ("all", "hosts"):
        return [port for port in topology.ports if selector == "all" or nodes[port.node].is_host]
    if selector == "switches":
        return [port for port in topology.ports if not nodes[port.node].is_host]
    if "=" in selector:
        attribute, wanted = selector.split("=", 1)
        if attribute == "tier":
            return [port for link in topology.links if fnmatchcase(link.tier, wanted) for port in link.ports]
        if attribute == "rank":
            hosts = [placement[int(wanted)]] if wanted.isdigit() and int(wanted) < len(placement) else []
            return _ports_of(hosts, topology, acts_on)
        at = [node.name for node in nodes.values() if fnmatchcase(_attribute(node, attribute), wanted)]
        return _ports_of(at, topology, acts_on)
    if "/" in selector:
        return [
            port
            for port in topology.ports
            if fnmatchcase(port.name, selector) or fnmatchcase(f"{port.node}/{port.peer}", selector)
        ]
    links = [link for link in topology.links if fnmatchcase(link.name, selector)]
    if selector in nodes or not links:
        return _ports_of([name for name in nodes if fnmatchcase(name, selector)], topology, acts_on)
    return [port for link in links for port in link.ports]


def _attribute(node: Node, name: str) -> str:
    return node.role if name == "role" else str(node.attributes.get(name, ""))


def _ports_of(names: Sequence[str], topology: Topology, acts_on: str) -> list[Port]:
    wanted = set(names)
    if acts_on == "port":
        return [port for port in topology.ports if port.node in wanted]
    return [port for link in topology.links if {link.a.node, link.b.node} & wanted for port in link.ports]


def _direction(port: Port, nodes: dict[str, Node], key: str) -> str:
    here, there = (_HEIGHT.get(nodes[name].role) for name in (port.node, port.peer))
    if here is None or there is None or here == there:
        raise PlanError(
            f"{key}.ends: {port.name} joins two nodes of the same height, so it points neither up nor down",
            hint="name the ports instead, for instance targets=[h0/h1]",
        )
    return "up" if here < there else "down"


def _pick(name: str, config: FaultConfig, topology: Topology, ports: list[Port], acts_on: str, seed: int) -> list[Port]:
    """Of what was selected, ``count`` or ``fraction`` of the links (or ports), drawn by the seed."""
    wanted = {port.name for port in ports}
    groups: list[tuple[Port, ...]]
    if acts_on == "port":
        groups = [(port,) for port in ports]
    else:
        groups = [kept for link in topology.links if (kept := _kept(link, wanted))]
    size = _size(name, config, len(groups))
    if size is None:
        return ports
    drawn = random.Random(f"{seed}:{config.role}").sample(range(len(groups)), size)  # noqa: S311  targets that a seed repeats, not a secret
    return [port for index in sorted(drawn) for port in groups[index]]


def _size(name: str, config: FaultConfig, there_are: int) -> int | None:
    """How many to draw; None for all."""
    if config.count is None and config.fraction is None:
        return None
    size = config.count if config.count is not None else max(1, math.floor((config.fraction or 0) * there_are + 0.5))
    if size > there_are:
        raise PlanError(f"fault.{name}.count: {size} asked for, {', '.join(config.selectors)} selects {there_are}")
    return size


def _kept(link: Link, wanted: set[str]) -> tuple[Port, ...]:
    return tuple(port for port in link.ports if port.name in wanted)
