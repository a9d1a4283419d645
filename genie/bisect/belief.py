"""What is believed about who is guilty, given all answers so far: Bayes over sets of culprits. Pure.

A hypothesis is a set of culprits and a duty, the share of time in which they misbehave: 1 for a steady fault, less for
an intermittent one. A question asked of a fabric answers "bad" with probability

    P(bad | hypothesis) = false_alarm + (1 - false_alarm - miss) * duty * P(the question meets a culprit)

so noise, grey and intermittent faults are in the model; and a probe may have been disturbed as a whole. Sets are found
by a beam: all single suspects, then the best sets extended by one more. Stopping at a posterior of 1 - e is the
sequential test of several hypotheses of Baum and Veeravalli (1994): with two hypotheses it is Wald's.
`genie.bisect.search` asks `Belief` when to stop and what is best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genie.bisect.suspects import Suspect

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


NEGLIGIBLE_NATS = 14.0
"""Sets so much less likely than the best are dropped: a millionth."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way a question's traffic may go, with its probability: 1 where the path is known."""

    probability: float
    tokens: frozenset[str]


@dataclass(frozen=True, slots=True)
class Question:
    """What one measurement exercises. ``name`` says which ("h0>h5"); the probabilities of its ways add up to 1."""

    name: str
    ways: tuple[Way, ...]

    @staticmethod
    def of(name: str, tokens: frozenset[str]) -> Question:
        """A question whose traffic goes one known way."""
        return Question(name, (Way(1.0, tokens),))


@dataclass(frozen=True, slots=True)
class Answer:
    """``bad`` or not; ``evidence`` is what was measured, in words."""

    question: Question
    bad: bool
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Noise:
    """Error rates of a single answer: ``false_alarm`` bad where nothing is, ``miss`` good where something is.

    A probe as a whole may have been disturbed (a busy machine, other traffic): with a chance of ``disturbed_ratio``
    its false alarms are ``disturbed_false_alarm``. Whether it was, its own answers help to tell. ``duties`` are the
    shares of time considered, the steady one first, each with its prior chance.
    """

    false_alarm: float = 0.02
    miss: float = 0.1
    disturbed_false_alarm: float = 0.3
    disturbed_ratio: float = 0.1
    duties: tuple[tuple[float, float], ...] = ((1.0, 0.7), (0.2, 0.3))


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Culprits (places among the suspects, sorted; none: all is well), their duty, and the posterior."""

    culprits: tuple[int, ...]
    duty: float
    posterior: float


def told_apart(suspects: Sequence[Suspect], universe: Sequence[Question]) -> tuple[Suspect, ...]:
    """Suspects that no question of ``universe`` tells apart, as one: it has the tokens of the first, and all names.

    With two leaves, for one, what passes a spine passes both its links. What no question meets stays as it is.
    """
    groups: dict[tuple[tuple[int, float], ...], list[Suspect]] = {}
    for suspect in suspects:
        met = []
        for number, question in enumerate(universe):
            chance = sum(way.probability for way in question.ways if way.tokens & suspect.tokens)
            if chance:
                met.append((number, round(chance, 6)))
        groups.setdefault(tuple(met) if met else ((-len(groups) - 1, 0.0),), []).append(suspect)
    return tuple(group[0] if len(group) == 1 else _merged(group) for group in groups.values())


def _merged(group: Sequence[Suspect]) -> Suspect:
    names = " or ".join(suspect.name for suspect in group)
    return Suspect(
        names,
        group[0].kind,
        " or ".join(dict.fromkeys(suspect.component for suspect in group)),
        group[0].tokens,
        "slow or lossy; no flow between these hosts uses one of them without the others",
        min(0.5, sum(suspect.prior for suspect in group)),
    )


class Belief:
    """The posterior over culprit sets. Immutable suspects; `learn` adds answers."""

    def __init__(
        self,
        suspects: Sequence[Suspect],
        noise: Noise,
        universe: Sequence[Question],
        *,
        most_culprits: int = 3,
        beam: int = 24,
    ) -> None:
        """``universe``: every question that could be asked. A suspect that none of them meets cannot be judged, and a
        set with a member of which the others explain all is not considered, nor one that touches what a smaller one
        does: both directions of a link are that link.
        ``most_culprits`` bounds the size of a set, ``beam`` how many sets of each size are extended.
        """
        if not 0 < noise.false_alarm < 1 - noise.miss < 1:
            raise ValueError(f"expected 0 < false_alarm < 1 - miss < 1, found {noise.false_alarm} and {noise.miss}")
        self.suspects = tuple(suspects)
        self.noise = noise
        self.answers: list[Answer] = []
        self._batches: list[tuple[tuple[Answer, ...], float]] = []
        self._most = most_culprits
        self._beam = beam
        self._tokens: dict[str, list[int]] = {}
        for place, suspect in enumerate(self.suspects):
            for token in suspect.tokens:
                self._tokens.setdefault(token, []).append(place)
        priors = np.array([suspect.prior for suspect in self.suspects])
        self._none = float(np.log1p(-priors).sum())
        self._odds: Floats = np.log(priors) - np.log1p(-priors)
        rows = {row.tobytes(): row for question in universe for row in self.meets(question)[0]}
        self._reach: Bools = np.array(list(rows.values()), dtype=bool).reshape(len(rows), len(self.suspects))
        self._found: tuple[Hypothesis, ...] | None = None

    @property
    def beyond_reach(self) -> tuple[Suspect, ...]:
        """Suspects that no question of the universe meets."""
        return tuple(s for s, met in zip(self.suspects, _any(self._reach, 0), strict=True) if not met)

    def learn(self, answers: Sequence[Answer], *, disturbed: float = 0.0) -> None:
        """Take the answers of one probe in. ``disturbed`` above 0 is the chance that it was, instead of the noise's."""
        self.answers += answers
        if answers:
            self._batches.append((tuple(answers), disturbed or self.noise.disturbed_ratio))
        self._found = None

    def meets(self, question: Question) -> tuple[Bools, Floats]:
        """[way, suspect] whether they meet, and the probability of each way."""
        rows = np.zeros((len(question.ways), len(self.suspects)), dtype=bool)
        for row, way in zip(rows, question.ways, strict=True):
            for token in way.tokens:
                row[self._tokens.get(token, [])] = True
        return rows, np.array([way.probability for way in question.ways])

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """All that were considered, the most likely first. Their posteriors add up to 1."""
        if self._found is None:
            self._found = self._weigh()
        return self._found

    def best(self) -> Hypothesis:
        """The most likely."""
        return self.hypotheses()[0]

    def of_set(self, culprits: tuple[int, ...]) -> float:
        """Posterior of exactly this set, whatever its duty."""
        return sum(h.posterior for h in self.hypotheses() if h.culprits == culprits)

    def entropy_bits(self) -> float:
        """Of the culprit set, whatever its duty: how much is still not known."""
        sets: dict[tuple[int, ...], float] = {}
        for h in self.hypotheses():
            sets[h.culprits] = sets.get(h.culprits, 0.0) + h.posterior
        return -sum(p * math.log2(p) for p in sets.values() if p > 0)

    def marginal(self, place: int) -> float:
        """Chance that a suspect is among the culprits."""
        return sum(h.posterior for h in self.hypotheses() if place in h.culprits)

    def _weigh(self) -> tuple[Hypothesis, ...]:
        rows, weights, starts, bad, good, batches, disturbed = self._evidence()
        levels = ((self.noise.false_alarm, np.log1p(-disturbed)), (self.noise.disturbed_false_alarm, np.log(disturbed)))
        duties = self.noise.duties
        scored: dict[tuple[tuple[int, ...], float], float] = {}

        def likelihood(hits: Floats) -> dict[float, Floats]:
            """[question, set] chance to meet → log likelihood of each set, by duty."""
            if not len(batches):
                return {duty: np.zeros(hits.shape[1]) for duty, _ in duties}
            made = {}
            for duty, _ in duties:
                sides = []
                for alarm, prior in levels:
                    chance = alarm + (1 - alarm - self.noise.miss) * duty * hits
                    each = bad[:, None] * np.log(chance) + good[:, None] * np.log1p(-chance)
                    sides.append(np.add.reduceat(each, batches) + prior[:, None])
                made[duty] = np.asarray(np.logaddexp(*sides).sum(axis=0))
            return made

        def meeting(ways: Bools) -> Floats:
            """[way, set] → [question, set]: the ways of each question together."""
            if not len(starts):
                return np.zeros((0, ways.shape[1]))
            return np.asarray(np.add.reduceat(ways * weights[:, None], starts, axis=0))

        nothing = np.zeros((len(weights), 1), dtype=bool)
        scored[(), 1.0] = self._none + float(likelihood(meeting(nothing))[duties[0][0]][0])
        front: list[tuple[int, ...]] = [()]
        smaller: set[bytes] = set()
        for _ in range(min(self._most, len(self.suspects))):
            level: dict[tuple[int, ...], float] = {}
            here: set[bytes] = set()
            for base in front:
                ways = rows | _any(rows[:, list(base)], 1)[:, None]
                prior = self._none + sum(self._odds[list(base)]) + self._odds
                found = likelihood(meeting(ways))
                keys = self._reached(base)
                places = [place for place in self._worth_adding(base) if keys[place] not in smaller]
                here.update(keys[place] for place in places)
                for duty, chance in duties:
                    total = prior + found[duty] + math.log(chance)
                    for place in places:
                        culprits = tuple(sorted((*base, place)))
                        scored[culprits, duty] = float(total[place])
                        level[culprits] = max(level.get(culprits, -math.inf), float(total[place]))
            smaller |= here
            front = sorted(level, key=lambda c: (-level[c], c))[: self._beam]
        most = max(scored.values())
        scored = {key: value for key, value in scored.items() if value > most - NEGLIGIBLE_NATS}
        total_weight = sum(math.exp(value - most) for value in scored.values())
        ranked = sorted(scored, key=lambda key: (-scored[key], len(key[0]), key))
        return tuple(
            Hypothesis(culprits, duty, math.exp(scored[culprits, duty] - most) / total_weight)
            for culprits, duty in ranked
        )

    def _reached(self, base: tuple[int, ...]) -> list[bytes]:
        """What ``base`` with each suspect touches: sets of which these are equal cannot be told apart."""
        union = self._reach | _any(self._reach[:, list(base)], 1)[:, None]
        return [column.tobytes() for column in np.packbits(union, axis=0).T]

    def _worth_adding(self, base: tuple[int, ...]) -> list[int]:
        """Suspects that explain something beyond ``base``, and leave each of its members something of its own."""
        reach = self._reach
        adds = _any(reach & ~_any(reach[:, list(base)], 1)[:, None], 0)
        for member in base:
            rest = [other for other in base if other != member]
            own = reach[:, member] & ~_any(reach[:, rest], 1)
            adds &= _any(own[:, None] & ~reach, 0)
        return [int(place) for place in np.flatnonzero(adds)]

    def _evidence(
        self,
    ) -> tuple[Bools, Floats, npt.NDArray[np.int64], Floats, Floats, npt.NDArray[np.int64], Floats]:
        """Ways of all questions one below the other, their probabilities, where each question begins; of each question
        how often it was bad and good; where the questions of each probe begin, and its chance to be disturbed.
        """
        questions: list[Question] = []
        counts: list[list[int]] = []
        batches: list[int] = []
        for answers, _ in self._batches:
            batches.append(len(questions))
            own: dict[Question, list[int]] = {}
            for answer in answers:
                own.setdefault(answer.question, [0, 0])[0 if answer.bad else 1] += 1
            questions += own
            counts += own.values()
        met = [self.meets(question) for question in questions]
        starts = np.cumsum([0, *(len(weights) for _, weights in met[:-1])], dtype=np.int64) if met else np.zeros(0, int)
        rows = np.concatenate([rows for rows, _ in met]) if met else np.zeros((0, len(self.suspects)), dtype=bool)
        weights = np.concatenate([weights for _, weights in met]) if met else np.zeros(0)
        bad, good = np.array(counts, dtype=float).reshape(-1, 2).T
        disturbed = np.array([chance for _, chance in self._batches], dtype=float)
        return rows, weights, starts, bad, good, np.array(batches, dtype=np.int64), disturbed


def _any(table: Bools, axis: int) -> Bools:
    return np.asarray(table.any(axis=axis))
