"""What one probe of the network can measure at once: pairs of hosts, in waves in which no cable is overloaded. Pure.

Every host is in one pair at most, so what its kernel counts during the probe (segments sent again) belongs to one flow.
Pairs whose flows could share a port beyond its rate are put into different waves, so a slow flow is never slow because
of another. `best` draws pairings and improves the best of them by swaps, with the worth that `genie.bisect.choice`
gives; `genie.bisect.search` calls it with what `genie.bisect.paths` knows of the ways that flows go.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from genie.bisect.belief import Question, Way

Pair = tuple[int, int]
"""Places of two hosts, the lower first."""

DRAWS = 24
SWAPS = 48

WAVE_COST_BITS = 0.1
"""What a wave has to tell to be worth its time."""

LEAST_PAIR_BITS = 0.02
"""A pair that tells less than this part of what the best pair of its probe does is left out."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What probes can be made of: ``flows`` (from, to) → its ways; ``rates`` of flows, and of ports by token, in bit/s.

    Flows without an entry do not exist. ``rates`` of 0 are not known: then a wave holds one pair.
    """

    hosts: tuple[str, ...]
    flows: Mapping[Pair, tuple[Way, ...]]
    flow_bps: Mapping[Pair, int]
    port_bps: Mapping[str, int]

    def question(self, source: int, target: int) -> Question:
        """The question that the flow between two hosts asks."""
        return Question(f"{self.hosts[source]}>{self.hosts[target]}", self.flows[source, target])

    def questions(self, pairs: Sequence[Pair]) -> list[Question]:
        """Both directions of each pair."""
        return [self.question(*ends) for a, b in pairs for ends in ((a, b), (b, a))]


def waves(ground: Ground, pairs: Sequence[Pair]) -> tuple[tuple[Pair, ...], ...]:
    """Each pair into the first wave that has room for both its directions, whichever of its ways they go."""
    made: list[tuple[list[Pair], dict[str, int]]] = []
    for pair in pairs:
        load = _load(ground, pair)
        fits = (w for w in made if load and all(w[1].get(t, 0) + bps <= ground.port_bps[t] for t, bps in load.items()))
        wave = next(fits, None)
        if wave is None:
            wave = ([], {})
            made.append(wave)
        wave[0].append(pair)
        for token, bps in load.items():
            wave[1][token] = wave[1].get(token, 0) + bps
    return tuple(tuple(wave) for wave, _ in made)


def _load(ground: Ground, pair: Pair) -> dict[str, int]:
    """Token of each port that either direction may leave by → bit/s; empty where a rate is not known."""
    load: dict[str, int] = {}
    for ends in (pair, pair[::-1]):
        if not ground.flow_bps[ends]:
            return {}
        own = {token for way in ground.flows[ends] for token in way.tokens if token in ground.port_bps}
        for token in own:
            load[token] = load.get(token, 0) + ground.flow_bps[ends]
    return load


def best(
    ground: Ground,
    worth: Callable[[Sequence[Question]], float],
    bits: Callable[[Question], float],
    rng: random.Random,
) -> tuple[Pair, ...]:
    """The pairing of the highest worth that was found, less what its waves cost; deterministic for a state of ``rng``.

    ``bits`` is what a single question tells: pairs that tell nothing are left out.
    """
    if len(ground.hosts) < 2:
        return ()
    order = list(range(len(ground.hosts)))

    def pairs_of(places: Sequence[int]) -> tuple[Pair, ...]:
        made = [(min(p), max(p)) for p in zip(places[::2], places[1::2], strict=False)]
        value = {pair: sum(bits(question) for question in ground.questions([pair])) for pair in made}
        telling = [pair for pair in made if value[pair] >= LEAST_PAIR_BITS * max(value.values())]
        return tuple(sorted(telling, key=lambda pair: (-value[pair], pair)))

    def score(places: Sequence[int]) -> float:
        pairs = pairs_of(places)
        return worth(ground.questions(pairs)) - WAVE_COST_BITS * len(waves(ground, pairs))

    found: tuple[float, list[int]] = (-math.inf, order)
    for _ in range(DRAWS):
        rng.shuffle(order)
        value = score(order)
        if value > found[0]:
            found = (value, list(order))
    for _ in range(SWAPS):
        trial = list(found[1])
        i, j = rng.sample(range(len(trial)), 2)
        trial[i], trial[j] = trial[j], trial[i]
        value = score(trial)
        if value > found[0]:
            found = (value, trial)
    return pairs_of(found[1])


def round_text_of(pair: Pair, size: int) -> str:
    """One pair as the value of ``workload.bandwidth_rounds`` on a command line."""
    return f'["{pair[0]}-{pair[1]}:{size}"]'
