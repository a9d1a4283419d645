"""The table that compares the runs of a sweep: a row a run, verdict first. Made from run directories alone."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from genie.report.terminal import STYLES, WIDTH_LEAST
from genie.results.compare import Slowdown, load_judgement
from genie.results.rundir import RunDir
from genie.sweep.cells import SweepPlan
from genie.sweep.clock import duration
from genie.sweep.config import SweepConfig
from genie.sweep.effects import Effect, HeatMap
from genie.units import format_ns

_SHADES = (" ", "░", "▒", "▓", "█")
HEADINGS = ("verdict", "fault", "workload", "median", "p99", "slowdown", "tail", "why")


Factors = Mapping[Path, Mapping[str, str]]
"""What was swept: of each run's directory (and of the folder of its arms) the swept keys with their values."""


def headings(factors: Factors) -> tuple[str, ...]:
    """`HEADINGS`, with the swept keys in the place of fault and workload where there are any."""
    keys = dict.fromkeys(key for values in factors.values() for key in values)
    return (HEADINGS[0], *(keys or HEADINGS[1:3]), *HEADINGS[3:])


def sweep_rows(runs: Sequence[RunDir], factors: Factors | None = None) -> list[tuple[str, ...]]:
    """Cells of the table, in the order of `headings`. A run that was never measured has its status as verdict."""
    keys = headings(factors or {})[1:-5]
    rows: list[tuple[str, ...]] = []
    for run in runs:
        manifest = run.manifest
        faults = "+".join(manifest.faults) or "none"
        judgement = load_judgement(run)
        workload = run.plan.workload if judgement else manifest.name.partition("-")[2] or manifest.name
        what: tuple[str, ...] = (faults, workload)
        if factors:
            own = factors.get(run.path) or factors.get(run.path.parent) or {}
            what = tuple(own.get(key, "") for key in keys)
        if judgement is None:
            status, why = run.status
            rows.append((status, *what, "", "", "", "", why))
            continue
        found = judgement.metrics.iteration
        times = (format_ns(found.median.value), format_ns(found.p99.value)) if found else ("", "")
        beside = judgement.comparison
        ratios = (_ratio(beside.median), _ratio(beside.p99)) if beside else ("", "")
        why = judgement.why if judgement.verdict in ("invalid", "inconclusive") else ""
        rows.append((judgement.verdict, *what, *times, *ratios, why))
    return rows


def _ratio(slowdown: Slowdown) -> str:
    return "" if math.isnan(slowdown.ratio.value) else f"{slowdown.ratio.value:.2f}x"


def render_sweep(
    runs: Sequence[RunDir], factors: Factors | None = None, *, width: int = WIDTH_LEAST, color: bool = False
) -> str:
    """The table as text. Reasons stand below it, a line a run, so that the columns stay narrow."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=max(WIDTH_LEAST, width),
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        legacy_windows=False,
        emoji=False,
        markup=False,
    )
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    columns = headings(factors or {})[:-1]
    for number, heading in enumerate(columns):
        table.add_column(heading, justify="right" if number >= len(columns) - 4 else "left", overflow="fold")
    rows = sweep_rows(runs, factors)
    for row in rows:
        table.add_row(Text(row[0], style=STYLES.get(row[0], "bold magenta")), *row[1:-1])
    console.print(table)
    for row in rows:
        if row[-1]:
            console.print(Text(f"{row[0]}: {' '.join(row[1:-5])}: {row[-1]}"))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def render_plan(plan: SweepPlan, left: int, expected_s: float, config: SweepConfig) -> str:
    """What a sweep is going to do: how many runs of what, in which order, for about how long."""
    keys = ", ".join(f"{key} ({len(values)})" for key, values in plan.factors.items()) or "nothing"
    repeats = 1 + max((slot.repeat for slot in plan.slots), default=0)
    lines = [f"sweep over {keys}: {len(plan.cells)} cells × {repeats} = {len(plan.slots)} runs"]
    if left != len(plan.slots):
        lines[0] += f", {left} of them left"
    how = f"shuffled within each repeat (sweep.seed={plan.seed})" if config.order == "random" else "as given"
    lines.append(f"order {how}; about {duration(expected_s)} by the closed forms' predictions")
    return "\n".join(lines)


def render_effects(found: Sequence[Effect], heat: HeatMap | None, *, width: int = WIDTH_LEAST) -> str:
    """What each key does by itself, and the map of two. "" where there is nothing to say."""
    lines: list[str] = []
    if found:
        lines.append("effect on the median iteration, other keys alike (ratio to the first value, 95 % CI)")
        lines += [f"  {_effect(effect)}" for effect in found]
    if heat is not None:
        lines += ["", f"median iteration, {heat.rows} down, {heat.columns} across", *_heat(heat)]
    return "\n".join(lines) + "\n" if lines else ""


def _effect(effect: Effect) -> str:
    head = f"{effect.key}={effect.value} / {effect.reference}"
    if effect.ratio is None:
        return f"{head}: no two finished runs differ in this only"
    pairs = f"{effect.pairs} pair{'s' if effect.pairs > 1 else ''}"
    interval = f" ({effect.ratio.low:.2f} - {effect.ratio.high:.2f})" if effect.pairs > 1 else ""
    return f"{head}: {effect.ratio.value:.2f}x{interval}, {pairs}"


def _heat(heat: HeatMap) -> list[str]:
    """Rows of the map; the more of a cell is filled, the slower it was."""
    known = [value for row in heat.median_ns for value in row if not math.isnan(value)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)

    def shown(value: float) -> str:
        if math.isnan(value):
            return "none valid"
        shade = _SHADES[round((len(_SHADES) - 1) * (value - low) / (high - low))] if high > low else _SHADES[0]
        return f"{shade} {format_ns(round(value))}"

    table = [["", *heat.column_values]]
    table += [[name, *map(shown, row)] for name, row in zip(heat.row_values, heat.median_ns, strict=True)]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  " + "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in table
    ]


def sweep_markdown(runs: Sequence[RunDir], factors: Factors | None = None) -> str:
    """The same table for MLflow's note of the parent run."""
    names = headings(factors or {})
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in sweep_rows(runs, factors)]
    return "\n".join(lines) + "\n"
