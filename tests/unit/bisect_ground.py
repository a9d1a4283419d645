"""Made-up ground for tests of the bisect: flows whose paths are drawn by a seed."""

from __future__ import annotations

import random

from genie.bisect.belief import Way
from genie.bisect.rounds import Ground
from genie.bisect.suspects import path_tokens, port_token
from genie.topology import Topology, paths


def ground(topology: Topology, seed: int, *, known: bool = True) -> Ground:
    """Each flow goes one path drawn by ``seed``; not ``known``: the search is told all of them."""
    hosts = tuple(node.name for node in topology.hosts)
    rng = random.Random(seed)
    flows = {}
    for a, source in enumerate(hosts):
        for b, target in enumerate(hosts):
            if a != b:
                trails = [path_tokens(trail, source) for trail in paths(topology, source, target)]
                ways = tuple(Way(1 / len(trails), trail) for trail in trails)
                flows[a, b] = (Way(1.0, rng.choice(trails)),) if known else ways
    rates = {port_token(port.name): port.model.rate_bps for port in topology.ports}
    return Ground(hosts, flows, dict.fromkeys(flows, 100_000_000), rates)
