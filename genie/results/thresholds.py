"""When a difference counts, and when a run's numbers may not be believed: ``judge.*``. Why these: docs/metrics.md.

Standard library only, since the configuration's schema has it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from genie.errors import ConfigError

IETF_DEGRADED = 1.15
"""draft-calabria-bmwg-ai-fabric-training-bench: up to 1.05 of the ideal time is excellent, above 1.15 poor."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """``tolerance_ratio``: a slowdown below it never counts. ``bands``: from where on it is "degraded"; "genie":
    above the
    tolerance; "ietf": above 15 %, and what lies between is inconclusive. ``*_prior_sd``: what is assumed of the spread
    (of logarithms) between healthy runs before there are several. ``*_least_iterations``: a median, a tail needs at
    least so many. ``cpu_busy_ratio``: above it the emulator, not the network, sets the pace. ``interference_ratio``:
    what others take of the processors up to here is taken for noise; above it margins are widened.
    """

    tolerance_ratio: float = 0.05
    bands: Literal["genie", "ietf"] = "genie"
    median_prior_sd: float = 0.025
    p99_prior_sd: float = 0.06
    median_least_iterations: int = 2
    p99_least_iterations: int = 10
    cpu_busy_ratio: float = 0.80
    interference_ratio: float = 0.10

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_iterations") and value < 1:
                raise ConfigError(f"must be at least 1, found {value}", key=field.name)
            if field.name.endswith(("_ratio", "_sd")) and not 0 < value <= 1:
                raise ConfigError(f"must lie above 0 and up to 1, found {value}", key=field.name)

    @property
    def too_few(self) -> str:
        """Why a median that is not judged is not."""
        least = self.median_least_iterations
        told = "one iteration tells" if least == 2 else f"fewer than {least} iterations tell"
        return f"{told} nothing of chance; run more iterations"

    @property
    def degraded_limit(self) -> float:
        """The ratio above which a slowdown counts as one."""
        return max(IETF_DEGRADED, 1 + self.tolerance_ratio) if self.bands == "ietf" else 1 + self.tolerance_ratio


DEFAULT_THRESHOLDS = Thresholds()
