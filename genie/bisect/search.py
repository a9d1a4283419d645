"""The search for guilty components: ask, learn, stop. Pure: whoever answers is handed in.

`Search.next` says which probe to make, `Search.learn` takes its answers, `Search.conclusion` says when it is over and
what came out. The same journal of answers always leads to the same next probe (its randomness is a seed and the number
of probes), which is how a killed search goes on. `genie.bisect.command` runs it on a fabric, tests on made-up ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from genie.bisect.belief import Answer, Belief, Hypothesis, Noise, Question, told_apart
from genie.bisect.choice import Chooser
from genie.bisect.rounds import Ground, Pair, best
from genie.bisect.suspects import Suspect, compute_token

LEAST_CUT_BITS = 0.01
"""A probe that would tell less, even without errors, cannot separate what is left."""

REPEATS = 4
"""How often a probe asks each question once intermittent culprits are what is left to be told apart."""


@dataclass(frozen=True, slots=True)
class Probe:
    """``kind`` is "network" (flows of ``pairs``) or "compute" (operators on every host); ``questions`` it
    answers, each ``repeats`` times. ``cut_bits`` is what that would tell if answers had no errors.
    """

    number: int
    kind: str
    pairs: tuple[Pair, ...]
    questions: tuple[Question, ...]
    cut_bits: float
    repeats: int


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop: at ``confidence`` in one set of culprits, or after ``probes``."""

    confidence: float = 0.95
    probes: int = 20


@dataclass(frozen=True, slots=True)
class Conclusion:
    """``word``: "found" (``culprits`` with ``confidence``), "none" (all is well, with ``confidence``), "inconclusive".

    ``duty`` below 1 says intermittent. ``alternatives``: other sets with a posterior above 1 %, likeliest first.
    ``why`` says why it stopped.
    """

    word: str
    culprits: tuple[Suspect, ...]
    duty: float
    confidence: float
    alternatives: tuple[tuple[tuple[str, ...], float], ...]
    why: str


class Search:
    """One search over the components of a fabric."""

    def __init__(
        self,
        suspects: Sequence[Suspect],
        ground: Ground,
        noise: Noise,
        limits: Limits,
        *,
        seed: int = 0,
        most_culprits: int = 3,
        compute: bool = True,
    ) -> None:
        self.ground = ground
        self.limits = limits
        self.probes = 0
        self._seed = seed
        self._compute = tuple(
            Question.of(f"compute {host}", frozenset({compute_token(host)})) for host in ground.hosts if compute
        )
        self.universe = (*self._compute, *(ground.question(*ends) for ends in ground.flows))
        self.belief = Belief(told_apart(suspects, self.universe), noise, self.universe, most_culprits=most_culprits)
        self._made: tuple[tuple[int, int], Probe] | None = None

    def next(self) -> Probe | None:
        """The probe to make now; None where the search is over."""
        if self.conclusion() is not None:
            return None
        return self._candidate()

    def learn(self, answers: Sequence[Answer], *, disturbed: float = 0.0) -> None:
        """Take the answers of one probe in. None of them: it was spoilt, and counts nevertheless.

        ``disturbed`` above 0 is the chance that the probe was disturbed as a whole, where something is known of it.
        """
        self.belief.learn(answers, disturbed=disturbed)
        self.probes += 1

    def conclusion(self) -> Conclusion | None:
        """What came out; None while it is worth going on."""
        best_set, confidence = self._leader()
        if confidence >= self.limits.confidence and self.probes:
            return self._conclude(best_set, confidence, f"confidence {self.limits.confidence:g} is reached")
        if self.probes >= self.limits.probes:
            return self._conclude(None, confidence, f"the limit of {self.limits.probes} probes is reached")
        if self.probes and self._candidate().cut_bits < LEAST_CUT_BITS:
            return self._conclude(None, confidence, "no further probe could tell the remaining suspects apart")
        return None

    def so_far(self, why: str) -> Conclusion:
        """What there is to say of a search that has not ended: inconclusive, with what is most suspected."""
        return self._conclude(None, self._leader()[1], why)

    def probes_left(self) -> int:
        """About how many more: what is not known yet over what the next probe may tell, at least one."""
        if self.conclusion() is not None:
            return 0
        per_probe = max(0.5, 0.7 * self._candidate().cut_bits)
        return min(self.limits.probes - self.probes, max(1, math.ceil(self.belief.entropy_bits() / per_probe)))

    def shortlist(self, count: int = 5) -> list[tuple[Suspect, float]]:
        """The most suspected, with their chance of being among the culprits."""
        chances = [0.0] * len(self.belief.suspects)
        for hypothesis in self.belief.hypotheses():
            for place in hypothesis.culprits:
                chances[place] += hypothesis.posterior
        order = sorted(range(len(chances)), key=lambda place: (-chances[place], place))[:count]
        return [(self.belief.suspects[place], chances[place]) for place in order]

    def _candidate(self) -> Probe:
        key = (self.probes, len(self.belief.answers))
        if self._made is not None and self._made[0] == key:
            return self._made[1]
        chooser = Chooser(self.belief)
        rng = random.Random(f"bisect {self._seed} {self.probes}")  # noqa: S311 - a choice, not a secret
        pairs = best(self.ground, chooser.worth, chooser.single_bits, rng)
        flows = tuple(self.ground.questions(pairs))
        repeats = REPEATS if self._doubt_of_duty() > 0.5 else 1
        network = Probe(self.probes, "network", pairs, flows, chooser.cut_bits(flows), repeats)
        chosen = network
        if self._compute and chooser.worth(self._compute) > chooser.worth(flows):
            chosen = Probe(self.probes, "compute", (), self._compute, chooser.cut_bits(self._compute), repeats)
        self._made = key, chosen
        return chosen

    def _doubt_of_duty(self) -> float:
        """Chance of an intermittent culprit, if there is one beside what is believed."""
        leader, _ = self._leader()
        others = [h for h in self.belief.hypotheses() if h.culprits != leader.culprits or h.duty < 1]
        total = sum(h.posterior for h in others)
        return sum(h.posterior for h in others if h.duty < 1) / total if total > 1e-12 else 0.0

    def _leader(self) -> tuple[Hypothesis, float]:
        """The likeliest set, whatever its duty, by its likeliest duty; and its posterior."""
        sets: dict[tuple[int, ...], float] = {}
        for hypothesis in self.belief.hypotheses():
            sets[hypothesis.culprits] = sets.get(hypothesis.culprits, 0.0) + hypothesis.posterior
        culprits = max(sets, key=lambda c: (sets[c], -len(c)))
        first = next(h for h in self.belief.hypotheses() if h.culprits == culprits)
        return first, sets[culprits]

    def _conclude(self, leader: Hypothesis | None, confidence: float, why: str) -> Conclusion:
        names = self.belief.suspects
        sets: dict[tuple[int, ...], float] = {}
        for hypothesis in self.belief.hypotheses():
            sets[hypothesis.culprits] = sets.get(hypothesis.culprits, 0.0) + hypothesis.posterior
        others = sorted(
            ((tuple(names[place].name for place in culprits), p) for culprits, p in sets.items()
             if p > 0.01 and (leader is None or culprits != leader.culprits)),
            key=lambda item: (-item[1], item[0]),
        )[:8]  # fmt: skip
        if leader is None:
            return Conclusion("inconclusive", (), 1.0, confidence, tuple(others), why)
        culprits = tuple(names[place] for place in leader.culprits)
        word = "found" if culprits else "none"
        return Conclusion(word, culprits, leader.duty, confidence, tuple(others), why)
