"""Who is measured with whom at what time: a round-robin tournament, cut so that no cable can be overloaded. Pure.

`genie.preflight.command` calls it with the topology. Latency is measured in whole rounds, since small messages load
nothing. For bandwidth a round is cut into *waves*: the pairs of one could all take the same of several equal paths, as
ECMP may have it, and still every cable would carry what they send. On a fabric whose cables are not known only hosts'
own ports count; one that has no rates at all measures one pair at a time.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genie.topology import Topology, paths
from genie.topology.model import Link
from genie.topology.routes import forwards
from genie.workload.generators.pairs import Pair, tournament

UNSHAPED_BYTES = 64 << 20
"""Each way, where no rate is known that would say how much ``time`` is."""

LEAST_MESSAGES = 8
"""Of a channel each way: a quarter is left out while the transport finds its pace."""


@dataclass(frozen=True, slots=True)
class Way:
    """What is between two hosts: cables on the shortest path, the rate of one flow on it, 0 where that is not known.

    Pairs of equal ways ought to be equally fast.
    """

    hops: int
    rate_bps: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rounds of pairs of places in ``hosts``: ``latency`` whole ones, ``bandwidth`` the waves they were cut into.

    ``rounds`` counts those of the tournament that are played, ``all_rounds`` those that it has.
    """

    hosts: tuple[str, ...]
    ways: Mapping[Pair, Way]
    latency: tuple[tuple[Pair, ...], ...]
    bandwidth: tuple[tuple[Pair, ...], ...]
    rounds: int
    all_rounds: int

    @property
    def pairs(self) -> list[Pair]:
        """Every pair that is measured, in order."""
        return sorted(pair for pairs in self.latency for pair in pairs)


def schedule(topology: Topology, *, shaped: bool, rounds: int = 0, seed: int = 0) -> Schedule:
    """The schedule for all hosts. ``shaped``: ports have rates. ``rounds`` above 0 draws so many of all there are."""
    hosts = tuple(node.name for node in topology.hosts)
    played = tournament(len(hosts))
    every = len(played)
    if 0 < rounds < every:
        # the circle method's first rounds pair neighbours in order; drawn, they say more of the whole
        played = tuple(random.Random(seed).sample(played, rounds))  # noqa: S311 - a choice, not a secret
    network = _Network(topology, hosts)
    wanted = {pair for pairs in played for pair in pairs}
    trails = {pair: network.trails(*pair) for pair in wanted}
    ways = {pair: _way(found, shaped) for pair, found in trails.items()}
    waves: list[tuple[Pair, ...]] = []
    for pairs in played:
        if not shaped:
            waves += [(pair,) for pair in pairs]
        else:
            waves += _waves(pairs, ways, {pair: _ports(trails[pair]) for pair in pairs})
    return Schedule(hosts, ways, played, tuple(waves), len(played), every)


def load_bytes(way: Way, *, time_ns: int, message_bytes: int, channels: int) -> int:
    """Bytes each way: what ``time_ns`` at the way's rate carries, in whole messages, and enough of them."""
    wanted = way.rate_bps * time_ns // 8_000_000_000 if way.rate_bps else UNSHAPED_BYTES
    return message_bytes * max(LEAST_MESSAGES * channels, -(-wanted // message_bytes))


class _Network:
    """Shortest paths between hosts; those between switches are worked out once for all hosts that hang on them."""

    def __init__(self, topology: Topology, hosts: Sequence[str]) -> None:
        self._topology = topology
        self._hosts = hosts
        self._between: dict[tuple[str, str], tuple[tuple[Link, ...], ...]] = {}
        nodes = {node.name: node for node in topology.nodes}
        cables: dict[str, list[Link]] = {name: [] for name in hosts}
        for link in topology.links:
            for port in link.ports:
                if port.node in cables:
                    cables[port.node].append(link)
        self._only: dict[str, tuple[Link, str]] = {}
        for host, links in cables.items():
            if len(links) == 1 and not forwards(nodes[host]):
                peer = next(port.node for port in links[0].ports if port.node != host)
                if not nodes[peer].is_host:
                    self._only[host] = links[0], peer

    def trails(self, a: int, b: int) -> tuple[tuple[Link, ...], ...]:
        """Every shortest path from the one host to the other, as links in order."""
        ends = self._hosts[a], self._hosts[b]
        if not all(end in self._only for end in ends):
            return paths(self._topology, *ends)
        (first, switch), (last, other) = self._only[ends[0]], self._only[ends[1]]
        if switch == other:
            return ((first, last),)
        if (switch, other) not in self._between:
            self._between[switch, other] = paths(self._topology, switch, other)
        return tuple((first, *middle, last) for middle in self._between[switch, other])


def _way(trails: Sequence[Sequence[Link]], shaped: bool) -> Way:
    rate = max(min(min(port.model.rate_bps for port in link.ports) for link in trail) for trail in trails)
    return Way(len(trails[0]), rate if shaped else 0)


def _ports(trails: Sequence[Sequence[Link]]) -> dict[str, int]:
    """Name → rate of every port that either direction may leave by."""
    return {port.name: port.model.rate_bps for trail in trails for link in trail for port in link.ports}


def _waves(
    pairs: Sequence[Pair], ways: Mapping[Pair, Way], ports: Mapping[Pair, Mapping[str, int]]
) -> list[tuple[Pair, ...]]:
    """Each pair into the first wave in which every port it may use has room for all of it."""
    waves: list[tuple[list[Pair], dict[str, int]]] = []
    for pair in pairs:
        rate = ways[pair].rate_bps
        fits = (w for w in waves if all(w[1].get(p, 0) + rate <= most for p, most in ports[pair].items()))
        wave = next(fits, None)
        if wave is None:
            wave = ([], {})
            waves.append(wave)
        wave[0].append(pair)
        for port in ports[pair]:
            wave[1][port] = wave[1].get(port, 0) + rate
    return [tuple(wave) for wave, _ in waves]
