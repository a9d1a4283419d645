"""The network of an Ansible inventory: its hosts, its switches where the inventory tells cables, rates as read.

The plan calls `inventory` with what the fabric was told. Where no host tells its cables (``genie_links``), one opaque
node named "fabric" joins the hosts' data interfaces: it stands for whatever is between them, and no fault can touch it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from genie.errors import ConfigError, PlanError
from genie.fabric.config import InventoryConfig
from genie.fabric.survey import HostEntry, HostFacts, Survey, survey
from genie.topology.model import Link, Node, Port, PortModel, Topology

OPAQUE = "fabric"
"""The node between hosts whose cables nobody told."""

_MOST_MTU = 65521
End = tuple[str, str]  # node, interface


def inventory(config: InventoryConfig) -> Topology:
    """Read the inventory and its hosts (by ssh; nothing is changed there), and draw them."""
    if not config.inventory:
        raise ConfigError("names the hosts: fabric=inventory fabric.inventory=hosts.yml", key="fabric.inventory")
    return draw(survey(Path(config.inventory), config.group))


def draw(found: Survey) -> Topology:
    """The topology of a survey. Pure. Raises PlanError for cables that do not fit together."""
    links = _cabled(found) if any(entry.links for entry in found.entries) else _opaque(found)
    nodes = [_node(entry, found.facts.get(entry.name)) for entry in found.entries]
    if any(link.b.node == OPAQUE for link in links):
        nodes.append(Node(OPAQUE, "switch", {"opaque": "yes"}))
    mtu = min((facts.mtu for facts in found.facts.values() if facts.address), default=1500)
    parameters: dict[str, object] = {"mtu": min(mtu, _MOST_MTU), "hosts": len(found.facts)}
    return Topology("inventory", tuple(nodes), tuple(links), parameters)


def _node(entry: HostEntry, facts: HostFacts | None) -> Node:
    attributes = {"platform": entry.platforms[0]}
    if facts is not None:
        attributes |= {"cpus": str(facts.cpus), "kernel": facts.kernel}
    if rails := entry.rdma_devices or _rails_of_cables(entry, facts):
        attributes["rdma_devices"] = ",".join(rails)
    return Node(entry.name, entry.role, attributes)


def _rails_of_cables(entry: HostEntry, facts: HostFacts | None) -> tuple[str, ...]:
    """The RDMA ports behind a host's cables, in their order; () where one of them has none, or no cable is told."""
    behind = [facts.rdma.get(interface, "") for interface in entry.links] if facts is not None else []
    return tuple(behind) if all(behind) else ()


def _port(found: Survey, node: str, peer: str, interface: str, rate_bps: int) -> Port:
    """What a real port's queue holds is its own affair: 0 bytes means not known. A Linux node says what marks there."""
    marks = found.facts[node].marks if node in found.facts else {}
    return Port(node, peer, interface, PortModel(rate_bps, 0, marks.get(interface)))


def _opaque(found: Survey) -> list[Link]:
    links = []
    for entry in found.entries:
        if entry.name == OPAQUE:
            raise PlanError(f"a host of the inventory may not be named {OPAQUE!r}: that is the network between them")
        if entry.role != "host":
            raise PlanError(
                f"{found.path}: {entry.name} is a {entry.role}, but nothing says what it is cabled to",
                hint="give it and its neighbours genie_links, a mapping of interface to peer/interface",
            )
        facts = found.facts[entry.name]
        here = _port(found, entry.name, OPAQUE, facts.interface, facts.rate_bps)
        links.append(
            Link(f"{entry.name}-{OPAQUE}", here, _port(found, OPAQUE, entry.name, entry.name, facts.rate_bps), "host")
        )
    return links


def _cabled(found: Survey) -> list[Link]:
    """Cables as either end tells them; an end that both tell must be the same cable."""
    entries = {entry.name: entry for entry in found.entries}
    other: dict[End, End] = {}
    cables: dict[tuple[End, End], None] = {}
    for entry in found.entries:
        for interface, told in entry.links.items():
            peer, _, there = told.partition("/")
            if peer not in entries or not there:
                raise PlanError(
                    f"host {entry.name}: genie_links has {interface}: {told!r}, expected a host of the inventory "
                    "and its interface, as leaf0/Ethernet4"
                )
            _check_interface(entry, interface, found.facts)
            _check_interface(entries[peer], there, found.facts)
            ends: tuple[End, End] = (entry.name, interface), (peer, there)
            for end, far in (ends, ends[::-1]):
                if other.setdefault(end, far) != far:
                    raise PlanError(
                        f"genie_links: {'/'.join(end)} is cabled to {'/'.join(other[end])} and to {'/'.join(far)}"
                    )
            if ends[::-1] not in cables:
                cables[ends] = None
    alone = [entry.name for entry in found.entries if entry.name not in {end[0] for end in other}]
    if alone:
        raise PlanError(f"no cable of {', '.join(alone)} is in genie_links, while others' are")
    links, names = [], set()
    for a, b in cables:
        rate_bps = _rate(entries[a[0]], entries[b[0]], found.facts)
        name, number = f"{a[0]}-{b[0]}", 0
        while name in names:
            number += 1
            name = f"{a[0]}-{b[0]}.{number}"
        names.add(name)
        tier = "host" if "host" in (entries[a[0]].role, entries[b[0]].role) else "fabric"
        links.append(
            Link(name, _port(found, a[0], b[0], a[1], rate_bps), _port(found, b[0], a[0], b[1], rate_bps), tier)
        )
    return links


def _check_interface(entry: HostEntry, interface: str, facts: Mapping[str, HostFacts]) -> None:
    if entry.name in facts and interface not in facts[entry.name].interfaces:
        known = ", ".join(sorted(facts[entry.name].interfaces))
        raise PlanError(f"genie_links: {entry.name} has no interface {interface!r}; it has {known}")


def _rate(a: HostEntry, b: HostEntry, facts: Mapping[str, HostFacts]) -> int:
    """A cable is as fast as its slower end."""
    rates = [facts[entry.name].rate_bps if entry.name in facts else entry.rate_bps for entry in (a, b)]
    known = [rate for rate in rates if rate]
    if not known:
        raise PlanError(f"the rate of the cables between {a.name} and {b.name} is not known", hint="give genie_rate")
    return min(known)
