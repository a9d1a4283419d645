"""From values to places on an axis, and the ticks of that axis. Pure arithmetic, no SVG.

A scale maps [low, high] to pixels; `ticks` gives (place, label) pairs at round values. Times and sizes get one unit
for a whole axis, which the axis title names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_SIZE_UNITS = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
_RATE_UNITS = ((1e12, "Tb/s"), (1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s"), (1.0, "b/s"))


@dataclass(frozen=True, slots=True)
class Unit:
    """How values of an axis are written: divided by ``size``, with ``name`` in the axis title."""

    size: float
    name: str

    def text(self, value: float) -> str:
        """The number in this unit, four significant digits."""
        return f"{value / self.size:.4g}"


def time_unit(largest_ns: float) -> Unit:
    """The unit in which ``largest_ns`` is 1 or more."""
    return _unit(largest_ns, _TIME_UNITS)


def size_unit(largest_bytes: float) -> Unit:
    """Binary, as sizes are written elsewhere in GENIE."""
    return _unit(largest_bytes, _SIZE_UNITS)


def rate_unit(largest_bps: float) -> Unit:
    """Decimal, as link rates are."""
    return _unit(largest_bps, _RATE_UNITS)


def _unit(largest: float, units: Sequence[tuple[float, str]]) -> Unit:
    return Unit(*next((pair for pair in units if largest >= pair[0]), units[-1]))


def round_step(span: float, most: int) -> float:
    """The smallest of 1, 2, 5 × 10^n with which at most ``most`` steps cover ``span``. Raises ValueError for none."""
    if not span > 0 or not math.isfinite(span) or most < 1:
        raise ValueError(f"expected a positive span and a step or more, found {span} and {most}")
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= most * (1 + 1e-9))


@dataclass(frozen=True, slots=True)
class Linear:
    """[low, high] to [start, end] pixels, straight."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of ``value``."""
        span = self.high - self.low
        return self.start if span <= 0 else self.start + (value - self.low) / span * (self.end - self.start)

    def ticks(self, unit: Unit, most: int) -> list[tuple[float, str]]:
        """At most ``most`` + 1 round values."""
        if self.high <= self.low:
            return [(self.start, unit.text(self.low))]
        step = round_step((self.high - self.low) / unit.size, most)
        first = math.ceil(self.low / unit.size / step - 1e-9)
        last = math.floor(self.high / unit.size / step + 1e-9)
        return [(self(i * step * unit.size), f"{i * step:.6g}") for i in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Log:
    """[low, high] to pixels by logarithm; both above 0."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of ``value``; what is below ``low`` is drawn at it."""
        span = math.log(self.high / self.low)
        return (
            self.start
            if span <= 0
            else self.start + math.log(max(value, self.low) / self.low) / span * (self.end - self.start)
        )

    def ticks(self, unit: Unit, most: int) -> list[tuple[float, str]]:
        """1, 2, 5 in each decade where they fit, else powers of ten; evenly spaced values where there is no decade."""
        if self.high < 6 * self.low:
            step = round_step((self.high - self.low) / unit.size, most)
            first, last = math.ceil(self.low / unit.size / step), math.floor(self.high / unit.size / step)
            return [(self(i * step * unit.size), f"{i * step:.6g}") for i in range(first, last + 1)]
        low, high = self.low / unit.size, self.high / unit.size
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factors in ((1, 2, 5), (1, 3), (1,)):
            found = [
                f * 10.0**d for d in decades for f in factors if low * (1 - 1e-9) <= f * 10.0**d <= high * (1 + 1e-9)
            ]
            if len(found) <= most or factors == (1,):
                skip = max(1, math.ceil(len(found) / max(most, 1)))
                return [(self(v * unit.size), f"{v:.6g}") for v in found[::skip]]
        return []


@dataclass(frozen=True, slots=True)
class Tail:
    """Shares from 0 to nearly 1, stretched towards the end: 0, 90, 99, 99.9 % are evenly spaced."""

    nines: float
    start: float
    end: float

    def __call__(self, share: float) -> float:
        """The pixel of ``share``."""
        at = -math.log10(max(1 - share, 10.0**-self.nines))
        return self.start + at / self.nines * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """As far as there are nines."""
        marks = ((0.0, "0 %"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %"))
        return [(self(share), text) for share, text in marks if -math.log10(1 - share) <= self.nines + 1e-9]
