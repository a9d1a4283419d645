"""Which uplink each connection of a ring takes, worked out from its seeded ports as Linux chooses. Pure, no run.

The ring goes to the other leaf at each step (``topology.placement=round_robin``), so each pair of neighbours has
``channels`` connections that part at a leaf. `study` puts the result beside a uniform hash and beside port counters.
"""

from __future__ import annotations

from functools import cache
from ipaddress import IPv4Address

import numpy as np

from genie.engine.encode import LISTEN_PORT, Endpoint, SourcePorts
from genie.topology.builders import leaf_spine
from genie.topology.config import LeafSpineConfig
from genie.topology.placement import place
from genie.topology.routes import address_plan
from genie.why.multipath import next_hops

RANKS = 8
MOST_CHANNELS = 16

Flow = tuple[int, int, int, int]


def fullest_over_mean(seed: int, channels: int, uplinks: int) -> tuple[float, float]:
    """Flows on the fullest uplink over the average, of leaf0 and of leaf1, for one seed of a run.

    Raises ValueError for more than `MOST_CHANNELS` channels.
    """
    if not 1 <= channels <= MOST_CHANNELS:
        raise ValueError(f"expected 1 to {MOST_CHANNELS} channels, found {channels}")
    found = []
    for leaf, flows in _flows(seed, uplinks).items():
        own = [flow for channel, flow in flows if channel < channels]
        chosen = next_hops(seed, leaf, np.array(own, dtype=np.int64), [uplinks] * len(own))
        counts = np.bincount(chosen, minlength=uplinks)
        found.append(float(counts.max() / counts.mean()))
    return found[0], found[1]


@cache
def _fabric(uplinks: int) -> tuple[list[str], dict[str, str], list[Endpoint]]:
    """Host of each rank, leaf of each host, and where each rank listens."""
    topology = leaf_spine(LeafSpineConfig(hosts=RANKS, spines=uplinks, placement="round_robin"))
    addresses = address_plan(topology)
    hosts = place(topology, RANKS, "round_robin")
    endpoints = [Endpoint(int(IPv4Address(addresses.address(host))), LISTEN_PORT + k) for k, host in enumerate(hosts)]
    return hosts, {node.name: node.attributes["leaf"] for node in topology.hosts}, endpoints


@cache
def _flows(seed: int, uplinks: int) -> dict[str, list[tuple[int, Flow]]]:
    """Channel and five-tuple of each connection that leaves a leaf, by leaf."""
    hosts, leaf_of, endpoints = _fabric(uplinks)
    found: dict[str, list[tuple[int, Flow]]] = {"leaf0": [], "leaf1": []}
    for rank in range(RANKS):
        peer = (rank + 1) % RANKS
        low, high = min(rank, peer), max(rank, peer)  # the higher rank of a pair connects
        source = SourcePorts(high, seed, endpoints)
        for channel in range(MOST_CHANNELS):
            ports = {high: source.port(low, channel), low: endpoints[low].port}
            flow = (endpoints[rank].ipv4, endpoints[peer].ipv4, ports[rank], ports[peer])
            found[leaf_of[hosts[rank]]].append((channel, flow))
    return found


def over_seeds(seeds: range, channels: int, uplinks: int) -> tuple[float, float]:
    """(mean, 95th percentile) of `fullest_over_mean` over seeds and both leaves."""
    ratios = [ratio for seed in seeds for ratio in fullest_over_mean(seed, channels, uplinks)]
    return float(np.mean(ratios)), float(np.quantile(ratios, 0.95))
