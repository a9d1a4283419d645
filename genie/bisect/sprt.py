"""Wald's sequential probability-ratio test of one yes-or-no question that answers with errors. Pure.

Each answer moves the logarithm of P(answers | bad) / P(answers | good); the test ends when it passes
ln((1 - miss) / false_alarm) upwards or ln(miss / (1 - false_alarm)) downwards (Wald, 1945), where those are the error
rates that the *decision* may have. `genie.bisect.changes` asks a configuration until it is decided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """Error rates of one answer (``noise_*``) and those that are allowed of the decision."""

    false_alarm: float = 0.01
    miss: float = 0.01
    noise_false_alarm: float = 0.1
    noise_miss: float = 0.1

    def __post_init__(self) -> None:
        for name in ("false_alarm", "miss", "noise_false_alarm", "noise_miss"):
            if not 0 < getattr(self, name) < 0.5:
                raise ValueError(f"{name} must lie between 0 and 0.5, found {getattr(self, name)}")


class Sprt:
    """The test: `tell` it answers until `decision` is no longer None."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.log_ratio = 0.0
        self.answers = 0

    def tell(self, bad: bool) -> None:
        """One more answer."""
        high, low = 1 - self.rates.noise_miss, self.rates.noise_false_alarm
        self.log_ratio += math.log(high / low) if bad else math.log((1 - high) / (1 - low))
        self.answers += 1

    @property
    def decision(self) -> bool | None:
        """True: bad. False: good. None: more answers are needed."""
        if self.log_ratio >= math.log((1 - self.rates.miss) / self.rates.false_alarm):
            return True
        if self.log_ratio <= math.log(self.rates.miss / (1 - self.rates.false_alarm)):
            return False
        return None

    @property
    def confidence(self) -> float:
        """Posterior of the likelier side where both were as likely before."""
        return 1 / (1 + math.exp(-abs(self.log_ratio)))

    @property
    def answers_left(self) -> int:
        """At least so many more, if all say what the last ones did; 0 once decided."""
        if self.decision is not None:
            return 0
        up = math.log((1 - self.rates.miss) / self.rates.false_alarm) - self.log_ratio
        down = self.log_ratio - math.log(self.rates.miss / (1 - self.rates.false_alarm))
        step_up = math.log((1 - self.rates.noise_miss) / self.rates.noise_false_alarm)
        step_down = math.log((1 - self.rates.noise_false_alarm) / self.rates.noise_miss)
        return min(math.ceil(up / step_up), math.ceil(down / step_down))
