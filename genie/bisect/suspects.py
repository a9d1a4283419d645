"""Who can be guilty: hosts, NICs, links (both ways or one), switches of a topology, each with what it touches. Pure.

A suspect is known by its *tokens*. A probe's question touches tokens too: the compute of a host, the ports that a flow
leaves by, the switches that it passes. A guilty suspect makes a question answer "bad" when they share a token, so
suspects with equal tokens cannot be told apart by any probe and are one suspect here. `genie.bisect.belief` uses this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from genie.topology.model import Link, Topology

KINDS = ("host", "nic", "link", "switch")


@dataclass(frozen=True, slots=True)
class Suspect:
    """``name`` is unique ("link leaf0-spine1"); ``kind`` one of `KINDS`; ``component`` the name in the topology.

    ``prior`` is the chance, before any probe, that it is guilty. ``says`` is what is wrong if it is, in words.
    """

    name: str
    kind: str
    component: str
    tokens: frozenset[str]
    says: str
    prior: float = 0.0


def compute_token(host: str) -> str:
    """What a host's compute operators touch."""
    return f"compute {host}"


def port_token(port: str) -> str:
    """What a flow touches that leaves by port ``h0/leaf0``."""
    return f"port {port}"


def node_token(switch: str) -> str:
    """What a flow touches that passes ``switch``."""
    return f"node {switch}"


def path_tokens(links: Sequence[Link], source: str) -> frozenset[str]:
    """Tokens of a flow from ``source`` along ``links``: every port it leaves by, every node it passes."""
    found, at = [], source
    for link in links:
        port = link.a if link.a.node == at else link.b
        found.append(port_token(port.name))
        at = port.peer
        found.append(node_token(at))
    return frozenset(found[:-1])  # the last node is the receiver, which it does not pass


def suspects_of(topology: Topology, *, compute: bool = True, expected: float = 1.0) -> tuple[Suspect, ...]:
    """Every suspect of ``topology``. ``compute`` has hosts' own compute among them.

    ``expected`` is how many culprits are expected in all, shared evenly.
    """
    found: list[Suspect] = []
    hosts = {node.name for node in topology.hosts}
    if compute:
        for node in topology.hosts:
            says = f"host compute, not network: {node.name} computes slower than the others"
            found.append(Suspect(f"host {node.name}", "host", node.name, frozenset({compute_token(node.name)}), says))
    for node in topology.nodes:
        ports = sum(port.node == node.name for port in topology.ports)
        if node.name not in hosts and ports > 1:
            says = f"all that passes {node.name} is slow or lossy"
            found.append(Suspect(f"switch {node.name}", "switch", node.name, frozenset({node_token(node.name)}), says))
    for link in topology.links:
        found += _of_link(link, hosts)
    share = min(0.5, expected / max(1, len(found)))
    return tuple(replace(suspect, prior=share) for suspect in found)


def _of_link(link: Link, hosts: set[str]) -> list[Suspect]:
    both = frozenset(port_token(port.name) for port in link.ports)
    found = [Suspect(f"link {link.name}", "link", link.name, both, f"{link.name} is slow or lossy both ways")]
    for port in link.ports:
        if port.node in hosts:
            name, says = f"nic {port.node}", f"{port.node} sends slower or with loss; what it receives is well"
            if sum(other.node in hosts for other in link.ports) > 1 or port.interface != port.peer:
                name = f"nic {port.name}"
            found.append(Suspect(name, "nic", port.node, frozenset({port_token(port.name)}), says))
        else:
            says = f"{link.name} is slow or lossy from {port.node} to {port.peer} only"
            token = frozenset({port_token(port.name)})
            found.append(Suspect(f"link {link.name} towards {port.peer}", "link", link.name, token, says))
    return found


def weighted(suspects: Sequence[Suspect], scores: Mapping[str, float], *, expected: float = 1.0) -> tuple[Suspect, ...]:
    """The same suspects with priors by ``scores`` (component or name → 0 … 1, from link scores or a preflight).

    Half of the expected culprits stay evenly shared: a score is a hint, and what has none must stay findable.
    Raises ValueError for a score that is not finite.
    """
    own = [scores.get(s.name, scores.get(s.component, 0.0)) for s in suspects]
    if not all(math.isfinite(score) and score >= 0 for score in own):
        raise ValueError("scores must be finite and not negative")
    total = sum(own)
    if not total:
        return tuple(suspects)
    even = expected / len(suspects)
    return tuple(
        replace(suspect, prior=min(0.5, 0.5 * even + 0.5 * expected * score / total))
        for suspect, score in zip(suspects, own, strict=True)
    )
