"""The report of a sweep: how it went, what each key does by itself, the map of two keys, a row a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from genie.errors import GenieError
from genie.report.html import heat, series
from genie.report.html.figure import CHARACTER, Canvas, Figure, Table, figure, shortened
from genie.report.html.page import Block, Card, Page, Section
from genie.report.html.run import written
from genie.report.sweep import headings, sweep_rows
from genie.results.rundir import RunDir
from genie.results.sweep import responses, runs_below
from genie.schema import reproduce_line
from genie.sweep.cells import SweepPlan, finished, read_plan
from genie.sweep.effects import Effect, HeatMap, effects, heat_map
from genie.units import format_ns

WORST_FIRST = ("invalid", "degraded", "inconclusive", "improved", "ok", "measured")


def sweep_page(folder: Path) -> Page:
    """A sweep that ended, or as far as it came. Raises GenieError: it is none, or nothing of it finished."""
    plan = read_plan(folder)
    done = finished(folder, plan.slots)
    if not done:
        raise GenieError(f"{folder}: no run of this sweep has finished", hint=f"genie resume {folder}")
    runs = [run for path in done.values() for run in runs_below(path)]
    measured = responses(done)
    verdicts = Counter(run.manifest.verdict or "not measured" for run in runs)
    found, map_of_two = effects(plan, measured), heat_map(plan, measured)
    sections = [
        Section("effects", "What each key does", tuple(_effects(found, map_of_two))),
        Section("runs", "Runs", (Block(table=_runs(folder, plan, done, runs)),)),
    ]
    missing = len(plan.slots) - len(done)
    return Page(
        title=folder.name,
        kind="sweep report",
        verdict=next((word for word in WORST_FIRST if verdicts[word]), "measured"),
        why=", ".join(f"{count} {word}" for word, count in sorted(verdicts.items(), key=_worst)) + " of the runs",
        facts=tuple(_facts(plan, runs[0])),
        reproduce=reproduce_line(plan.arguments),
        cards=(
            Card("runs", f"{len(done)} of {len(plan.slots)}", (f"{len(plan.cells)} cells",)),
            *(Card(word, str(verdicts[word]), (), word) for word in WORST_FIRST if verdicts[word]),
        ),
        sections=tuple(section for section in sections if section.blocks),
        notes=(f"{missing} run{'s' * (missing > 1)} without a result: genie resume {folder}",) if missing else (),
        written=written(runs[0].manifest.genie_version, folder.name),
    )


def _worst(item: tuple[str, int]) -> int:
    return WORST_FIRST.index(item[0]) if item[0] in WORST_FIRST else len(WORST_FIRST)


def _facts(plan: SweepPlan, run: RunDir) -> Iterator[tuple[str, str]]:
    for key, values in plan.factors.items():
        yield key, ", ".join(values)
    yield "repeats", str(1 + max((slot.repeat for slot in plan.slots), default=0))
    yield "fabric", run.plan.fabric
    yield "seed of the order", str(plan.seed)


def _effects(found: Sequence[Effect], map_of_two: HeatMap | None) -> Iterator[Block]:
    rows = [(f"{e.key}={e.value} / {e.reference}", e.ratio, None) for e in found if e.ratio is not None]
    shown = series.slowdowns(rows, "Effect of each value", "the first value of its key")
    if shown is not None:
        said = "Median iteration, from matched pairs only: runs of one repeat that agree in every other key."
        yield Block(sentences=(said,), figure=shown)
    apart = [f"{e.key}={e.value} / {e.reference}" for e in found if e.ratio is None]
    if apart:
        said = f"No two valid runs differ in this only, so nothing is known of: {', '.join(apart)}."
        yield Block(sentences=(said,))
    if map_of_two is not None and (drawn := two_keys(map_of_two)) is not None:
        yield Block(figure=drawn)


def two_keys(found: HeatMap) -> Figure | None:
    """Median iteration for each pair of values; beside each shade its number."""
    values = np.array(found.median_ns, dtype=np.float64)
    if not np.isfinite(values).any():
        return None
    shades = heat.shades_of(values)
    levels = shades.levels(values)

    def draw(width: int) -> str:
        left = min(0.34 * width, 26 + CHARACTER * max(len(value) for value in found.row_values))
        each = min(150.0, (width - left - 8) / len(found.column_values))
        canvas = Canvas(width, 52 + 30 * len(found.row_values) + 52, "median iteration by two keys")
        canvas.text(left, 14, f"{found.columns} →", "quiet")
        canvas.text(4, 34, shortened(f"{found.rows} ↓", int(left / CHARACTER)), "quiet")
        for column, name in enumerate(found.column_values):
            canvas.text(left + column * each, 34, shortened(name, int(each / CHARACTER) - 1))
        for row, name in enumerate(found.row_values):
            y = 44 + 30 * row
            canvas.text(left - 10, y + 18, shortened(name, int(left / CHARACTER) - 1), "", "end")
            for column in range(len(found.column_values)):
                value, x = values[row, column], left + column * each
                if math.isnan(value):
                    canvas.text(x, y + 18, "none valid", "quiet")
                    continue
                canvas.rect(x, y + 2, 22, 24, f"h{levels[row, column]}")
                if each > 96:
                    canvas.text(x + 28, y + 18, format_ns(value))
        heat.scale_below(canvas, shades, format_ns, left, 62 + 30 * len(found.row_values), "median iteration")
        return canvas.svg()

    rows = tuple(
        (name, *("none valid" if math.isnan(value) else format_ns(value) for value in line))
        for name, line in zip(found.row_values, found.median_ns, strict=True)
    )
    return figure(
        "two-keys", f"{found.rows} and {found.columns} together", "Median iteration, over repeats.", draw,
        Table((f"{found.rows} \\ {found.columns}", *found.column_values), rows),
    )  # fmt: skip


def _runs(folder: Path, plan: SweepPlan, done: Mapping[int, Path], runs: Sequence[RunDir]) -> Table:
    cells = {slot.number: plan.cell_of(slot) for slot in plan.slots}
    factors = {path.absolute(): cells[number].factors for number, path in done.items() if plan.factors}
    names = headings(factors)
    rows = [
        (str(run.path.relative_to(folder.absolute())), *row)
        for run, row in zip(runs, sweep_rows(runs, factors), strict=True)
    ]
    return Table(("run", *names), tuple(rows), names=9)
