"""Numbers as words, the same in the page, in Markdown and in the tables of exports."""

from __future__ import annotations

from genie.results.statistics import Estimate
from genie.units import format_ns


def interval_ns(value: Estimate) -> str:
    """The 95 % interval, its unit once where both ends have it."""
    low, high = format_ns(value.low), format_ns(value.high)
    same = low.split()[-1] == high.split()[-1]
    return f"{low.split()[0]} - {high}" if same else f"{low} - {high}"


def count_of(value: int | None) -> str:
    """What was not counted is not 0. Thousands apart by a narrow space."""
    return "not counted" if value is None else f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def time_us(ns: float) -> str:
    """Microseconds without the unit, digits as nccl-tests has them."""
    us = ns / 1000
    return f"{us:.0f}" if us >= 10_000 else f"{us:.1f}" if us >= 100 else f"{us:.2f}"


def bandwidth(gbytes_per_s: float, size: int) -> str:
    """GB/s without the unit: more digits than nccl-tests where emulated links are slow; "-" for no bytes."""
    if not size:
        return "-"
    return f"{gbytes_per_s:.2f}" if gbytes_per_s >= 10 else f"{gbytes_per_s:.4f}"
