"""What each swept key does by itself, and the map of two of them: a sweep's numbers, from its run directories alone.

The response of a run is its median iteration. An effect is a ratio between two values of one key, found in *matched*
pairs only: two runs of one repeat that agree in every other swept key. So a cell that failed costs its pairs and biases
nothing, and drift of the machine between repeats cancels. `genie.report.sweep` shows it; runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from genie.results.statistics import Estimate, mean_interval, median
from genie.sweep.cells import Slot, SweepPlan


@dataclass(frozen=True, slots=True)
class Effect:
    """``value`` of ``key`` against ``reference``, its first value: the geometric mean of the ratios of ``pairs``
    matched runs, with Student's 95 % interval of their logarithms (the ratio itself where there is one pair). None
    where there is no pair.
    """

    key: str
    value: str
    reference: str
    ratio: Estimate | None
    pairs: int


@dataclass(frozen=True, slots=True)
class HeatMap:
    """``median_ns[i][j]``: median over repeats for value i of ``rows`` and j of ``columns``; NaN: no run that may be
    believed.
    """

    rows: str
    columns: str
    row_values: tuple[str, ...]
    column_values: tuple[str, ...]
    median_ns: tuple[tuple[float, ...], ...]


def effects(plan: SweepPlan, responses: Mapping[int, float]) -> list[Effect]:
    """Every value of every swept key against the first. ``responses`` maps slot numbers to ns, above 0."""
    found: list[Effect] = []
    for key, values in plan.factors.items():
        by_surroundings: dict[tuple[object, ...], dict[str, float]] = {}
        for slot in plan.slots:
            if slot.number in responses:
                factors = plan.cell_of(slot).factors
                others = tuple(sorted((k, v) for k, v in factors.items() if k != key))
                by_surroundings.setdefault((slot.repeat, *others), {})[factors[key]] = responses[slot.number]
        for value in values[1:]:
            pairs = [s for s in by_surroundings.values() if value in s and values[0] in s]
            logs = [math.log(pair[value] / pair[values[0]]) for pair in pairs]
            found.append(Effect(key, value, values[0], _ratio(logs), len(logs)))
    return found


def heat_map(plan: SweepPlan, responses: Mapping[int, float]) -> HeatMap | None:
    """The map of a sweep over two keys that were combined in full, None for any other."""
    factors = plan.factors
    if len(factors) != 2 or len(plan.cells) != math.prod(len(values) for values in factors.values()):
        return None
    (rows, row_values), (columns, column_values) = factors.items()
    cells: dict[tuple[str, str], list[float]] = {}
    for slot in plan.slots:
        if slot.number in responses:
            cells.setdefault(_place(plan, slot, rows, columns), []).append(responses[slot.number])
    medians = {place: median(found) for place, found in cells.items()}
    table = [[medians.get((r, c), math.nan) for c in column_values] for r in row_values]
    return HeatMap(rows, columns, tuple(row_values), tuple(column_values), tuple(map(tuple, table)))


def _place(plan: SweepPlan, slot: Slot, rows: str, columns: str) -> tuple[str, str]:
    factors = plan.cell_of(slot).factors
    return factors[rows], factors[columns]


def _ratio(logs: list[float]) -> Estimate | None:
    if not logs:
        return None
    found = mean_interval(np.asarray(logs))
    return Estimate(*(math.exp(number) for number in (found.value, found.low, found.high)))
