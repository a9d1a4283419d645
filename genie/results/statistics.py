"""Percentiles, bootstrap intervals and the margin between runs. Pure numpy, seeded, no files.

`genie.results.metrics` and `genie.results.compare` call it; docs/metrics.md gives the formulas and why these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
CONFIDENCE = 0.95
RESAMPLES = 2000

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom (beyond: the normal's).
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
        2.042)  # fmt: skip
PRIOR_RUNS = 4


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % confidence interval. ``low`` = ``high`` = ``value`` where one sample is all there is."""

    value: float
    low: float
    high: float


def student_t(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t with ``freedom`` >= 1 degrees."""
    return _T95[freedom - 1] if freedom <= len(_T95) else 1.96


def mean_interval(values: Floats) -> Estimate:
    """The mean with Student's interval: for a handful of independent values. Raises ValueError for none."""
    if not len(values):
        raise ValueError("no values to estimate from")
    value = float(values.mean())
    if len(values) == 1:
        return Estimate(value, value, value)
    margin = student_t(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(value, value - margin, value + margin)


def percentile(values: npt.ArrayLike, ratio: float) -> float:
    """Nearest-rank percentile, as nccl-tests has it: the smallest value that at least ``ratio`` of all do not exceed.

    Always one of the values; with fewer than 100 of them p99 is the largest. NaN for none.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if not len(ordered):
        return math.nan
    return float(ordered[max(0, math.ceil(ratio * len(ordered) - 1e-9) - 1)])


def median(values: npt.ArrayLike) -> float:
    """The ordinary median (mean of the middle two for an even count); NaN for none."""
    found = np.asarray(values, dtype=np.float64)
    return float(np.median(found)) if len(found) else math.nan


def block_length(samples: int) -> int:
    """Blocks of the bootstrap: n^(1/3) long, rounded, as neighbours in a series are not independent."""
    return max(1, round(math.cbrt(samples)))


def resample(values: Floats, rng: np.random.Generator, resamples: int = RESAMPLES) -> Floats:
    """``resamples`` × n values, each row n values drawn in circular blocks (Politis and Romano, 1992)."""
    n = len(values)
    length = block_length(n)
    starts = rng.integers(0, n, size=(resamples, math.ceil(n / length)))
    indexes = (starts[:, :, None] + np.arange(length)[None, None, :]) % n
    rows: Floats = values[indexes.reshape(resamples, -1)[:, :n]]
    return rows


def rows_median(rows: Floats) -> Floats:
    """Median of each row."""
    return np.asarray(np.median(rows, axis=1), dtype=np.float64)


def rows_mean(rows: Floats) -> Floats:
    """Mean of each row."""
    return np.asarray(rows.mean(axis=1), dtype=np.float64)


def rows_p99(rows: Floats) -> Floats:
    """Nearest-rank p99 of each row."""
    n = rows.shape[1]
    return np.asarray(np.sort(rows, axis=1)[:, max(0, math.ceil(0.99 * n - 1e-9) - 1)], dtype=np.float64)


Statistic = Callable[[Floats], Floats]


def estimate(values: Sequence[float] | Floats, statistic: Statistic, seed: int) -> Estimate:
    """``statistic`` of the values with its percentile-bootstrap interval. Raises ValueError for no values."""
    found = np.asarray(values, dtype=np.float64)
    if not len(found):
        raise ValueError("no values to estimate from")
    value = float(statistic(found[None, :])[0])
    if len(found) == 1:
        return Estimate(value, value, value)
    drawn = statistic(resample(found, np.random.default_rng(seed)))
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, float(low), float(high))


def ratio(over: Sequence[float], under: Sequence[float], statistic: Statistic, seed: int) -> Estimate:
    """``statistic(over) / statistic(under)``, both resampled independently. Raises ValueError for no values."""
    return pooled_ratio(over, (under,), statistic, seed)


def pooled_ratio(over: Sequence[float], unders: Sequence[Sequence[float]], statistic: Statistic, seed: int) -> Estimate:
    """`ratio` with all of ``unders`` together below the line, each resampled by itself: blocks never span two series.

    Raises ValueError for no values.
    """
    a, series = np.asarray(over, dtype=np.float64), [np.asarray(s, dtype=np.float64) for s in unders if len(s)]
    if not len(a) or not series:
        raise ValueError("no values to compare")
    base = float(statistic(np.concatenate(series)[None, :])[0])
    if base <= 0:
        return Estimate(math.nan, math.nan, math.nan)
    value = float(statistic(a[None, :])[0]) / base
    rng = np.random.default_rng(seed)
    drawn_a = statistic(resample(a, rng))
    drawn_b = statistic(np.concatenate([resample(s, rng) for s in series], axis=1))
    sound = drawn_b > 0
    if not sound.any():
        return Estimate(value, math.nan, math.nan)
    low, high = np.quantile(drawn_a[sound] / drawn_b[sound], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, float(low), float(high))


@dataclass(frozen=True, slots=True)
class Spread:
    """How healthy runs differ among each other: ``sd`` of the logarithm, known with ``freedom`` degrees of freedom."""

    sd: float
    freedom: int

    @property
    def margin_ratio(self) -> float:
        """Relative difference that two of them may show by chance, at 95 %: exp(t · s · √2) − 1."""
        return math.exp(student_t(self.freedom) * self.sd * math.sqrt(2)) - 1

    def effect(self, ratio: float) -> float:
        """A ratio in standard deviations of the difference between two of them: ln r / (s · √2)."""
        return math.log(ratio) / (self.sd * math.sqrt(2)) if ratio > 0 else math.nan


def between_runs(healthy: Sequence[float], prior_sd: float) -> Spread:
    """The spread between healthy runs.

    ``healthy`` holds one number a healthy run (its median, its p99). Their logarithms' variance is pooled with a prior
    of ``prior_sd`` worth `PRIOR_RUNS` degrees of freedom, so that one run (nothing known of the variance) gives a
    conservative margin and more runs let the data speak.
    """
    logs = np.log([value for value in healthy if value > 0])
    freedom = max(0, len(logs) - 1)
    squares = float(((logs - logs.mean()) ** 2).sum()) if len(logs) else 0.0
    return Spread(math.sqrt((PRIOR_RUNS * prior_sd**2 + squares) / (PRIOR_RUNS + freedom)), PRIOR_RUNS + freedom)
