"""Which host each rank lives on. Pure; called by the plan.

``block`` keeps neighbours in rank together: with more ranks than hosts the first hosts get one more each, with
fewer the first hosts are used. ``round_robin`` deals ranks to the hosts in turn, and takes the hosts themselves in
turn from each switch, so that ranks next to each other are under different leaves.
"""

from __future__ import annotations

from genie.errors import ConfigError, PlanError, closest
from genie.topology.config import PLACEMENTS
from genie.topology.model import Topology


def _deal_hosts(topology: Topology) -> list[str]:
    """Hosts ordered so that neighbours in the list hang on different switches where that is possible."""
    by_switch: dict[str, list[str]] = {}
    first_peer: dict[str, str] = {}
    hosts = {node.name for node in topology.hosts}
    for port in topology.ports:
        if port.node in hosts:
            first_peer.setdefault(port.node, "" if port.peer in hosts else port.peer)
    for node in topology.hosts:
        by_switch.setdefault(first_peer.get(node.name, ""), []).append(node.name)
    rows = list(by_switch.values())
    longest = max(len(row) for row in rows)
    return [row[place] for place in range(longest) for row in rows if place < len(row)]


def place(topology: Topology, world: int, placement: str = "block") -> list[str]:
    """Host of each of ``world`` ranks. Raises PlanError without ranks or hosts, ConfigError on an unknown name."""
    if placement not in PLACEMENTS:
        raise ConfigError(f"no placement {placement!r}, {closest(placement, PLACEMENTS)}", key="topology.placement")
    hosts = [node.name for node in topology.hosts]
    if world < 1 or not hosts:
        raise PlanError(f"cannot place {world} ranks on the {len(hosts)} hosts of topology {topology.name!r}")
    if placement == "round_robin":
        dealt = _deal_hosts(topology)
        return [dealt[rank % len(dealt)] for rank in range(world)]
    each, extra = divmod(world, len(hosts))
    placed = []
    for index, host in enumerate(hosts):
        placed.extend([host] * (each + (1 if index < extra else 0)))
    return placed
