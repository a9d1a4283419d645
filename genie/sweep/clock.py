"""How long a sweep takes: guessed from its plans before the first run, from what runs took afterwards. Runs nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from genie.errors import GenieError

if TYPE_CHECKING:
    from genie.schema import ExperimentConfig

_AROUND_S = 2.0
"""A run beside its iterations: the fabric, starting, reading what was recorded, MLflow."""
_FAULT_S = 3.0
"""A fault put in place and taken back by Ansible."""
_PLANNING_S = 5.0
"""No longer than this is spent on plans that are made only to know how long they will take."""


class SweepClock:
    """``runs`` are the (number, cell) that are still to come."""

    def __init__(self, runs: Sequence[tuple[int, int]]) -> None:
        self.left: dict[int, int] = dict(runs)
        self.refused: dict[int, GenieError] = {}
        """Cells that were planned and cannot be, with the reason."""
        self._guess_s: dict[int, float] = {}
        self._guessed_s = 0.0
        self._took_s = 0.0

    def estimate(self, configs: Sequence[ExperimentConfig]) -> float:
        """Seconds that all runs will take, from the closed forms' prediction of each cell's iteration.

        Cells that there is no time to plan are taken to be like the others; one that cannot be planned fails at once
        and takes none.
        """
        began_s = time.monotonic()
        for cell in sorted(set(self.left.values())):
            if self._guess_s and time.monotonic() - began_s > _PLANNING_S:
                break
            try:
                self._guess_s[cell] = _guess(configs[cell])
            except GenieError as error:
                self._guess_s[cell], self.refused[cell] = 0.0, error
        mean_s = sum(self._guess_s.values()) / len(self._guess_s)
        for cell in self.left.values():
            self._guess_s.setdefault(cell, mean_s)
        return sum(self._guess_s[cell] for cell in self.left.values())

    def took(self, number: int, seconds: float, *, failed: bool = False) -> None:
        """A run has ended after so long. One that ``failed`` tells nothing of how long the others take."""
        guess_s = self._guess_s[self.left.pop(number)]
        if not failed:
            self._guessed_s += guess_s
            self._took_s += seconds

    @property
    def left_s(self) -> float | None:
        """Seconds until the end, None before the first run was measured. Those correct the guess of the others."""
        if not self._took_s:
            return None
        guess_s = sum(self._guess_s[cell] for cell in self.left.values())
        factor = self._took_s / self._guessed_s if self._guessed_s else 1.0
        return guess_s * factor

    def words(self) -> str:
        """For the head of a run."""
        return "" if self.left_s is None else f" about {duration(self.left_s)} left:"


def duration(seconds: float) -> str:
    """Roughly, for people: 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _guess(config: ExperimentConfig) -> float:
    from genie import experiment

    plan = experiment.plan(config)
    arms = 3 if config.protocol == "aba" else 1
    predicted_ns = plan.prediction.iteration_ns if plan.prediction else 0
    running_s = predicted_ns / 1e9 * plan.time_dilation * plan.iterations
    return arms * (running_s + _AROUND_S) + _FAULT_S * len(plan.faults)
