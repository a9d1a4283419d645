"""Which probe to make next: the one whose answers tell the hypotheses apart best. Pure.

A candidate is a set of questions that one probe answers at once (flows that run side by side). Its worth is the
entropy of the posterior cut by what each hypothesis predicts for all its questions: what it would tell if answers had
no errors; and, since they have, a share of what each question tells by itself, so that of two equal cuts the one
that is confirmed more often wins. This is adaptive group testing with splits as even as the candidates allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from genie.bisect.belief import Belief, Floats, Question

CONSIDERED = 160
"""Hypotheses that are looked at, the likeliest: what is left out has next to no weight."""

CONFIRMING = 0.25
"""Worth of a bit that other questions of the probe may tell as well."""


class Chooser:
    """Weighs candidates against one state of belief."""

    def __init__(self, belief: Belief) -> None:
        found = belief.hypotheses()[:CONSIDERED]
        total = sum(h.posterior for h in found)
        self._belief = belief
        self._found = found
        self._weights = np.array([h.posterior / total for h in found])
        self._duties = np.array([h.duty for h in found])
        self._sets: Floats = np.zeros((len(belief.suspects), len(found)))
        for column, hypothesis in enumerate(found):
            self._sets[list(hypothesis.culprits), column] = 1.0
        self._known: dict[Question, Floats] = {}
        self._told: dict[Question, float] = {}

    def _hits(self, question: Question) -> Floats:
        """Chance that the question meets a culprit, by hypothesis."""
        if question not in self._known:
            rows, weights = self._belief.meets(question)
            met = rows.astype(np.float64) @ self._sets > 0
            self._known[question] = np.asarray(weights @ met)
        return self._known[question]

    def single_bits(self, question: Question) -> float:
        """What the answer to one question tells, in bits, with the errors that answers have."""
        if question not in self._told:
            noise = self._belief.noise
            chance = noise.false_alarm + (1 - noise.false_alarm - noise.miss) * self._duties * self._hits(question)
            mean = _bits(np.array([self._weights @ chance]))[0]
            self._told[question] = float(mean - self._weights @ _bits(chance))
        return self._told[question]

    def cut_bits(self, questions: Sequence[Question]) -> float:
        """Entropy of the hypotheses' predictions: what the answers would tell without errors."""
        if not questions:
            return 0.0
        table = np.round(np.array([self._hits(question) for question in questions]), 2)
        groups: dict[bytes, float] = {}
        for column, weight in zip(np.ascontiguousarray(table.T), self._weights, strict=True):
            key = column.tobytes()
            groups[key] = groups.get(key, 0.0) + float(weight)
        return -sum(weight * math.log2(weight) for weight in groups.values() if weight > 0)

    def worth(self, questions: Sequence[Question]) -> float:
        """Of a candidate: the higher, the sooner the search ends."""
        return self.cut_bits(questions) + CONFIRMING * sum(self.single_bits(question) for question in questions)


def _bits(chance: Floats) -> Floats:
    """Entropy of a yes-or-no answer of this chance, which the errors of answers keep away from 0 and 1."""
    return np.asarray(-chance * np.log2(chance) - (1 - chance) * np.log2(1 - chance))
