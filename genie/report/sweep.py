"""The table that compares the runs of a sweep: a row a run, verdict first. Made from run directories alone."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from genie.report.terminal import STYLES, WIDTH_LEAST
from genie.results.compare import Slowdown, load_judgement
from genie.results.rundir import RunDir
from genie.units import format_ns

HEADINGS = ("verdict", "fault", "workload", "median", "p99", "slowdown", "tail", "why")


def sweep_rows(runs: Sequence[RunDir]) -> list[tuple[str, ...]]:
    """Cells of the table, in the order of `HEADINGS`. A run that was never measured has its status as verdict."""
    rows: list[tuple[str, ...]] = []
    for run in runs:
        manifest = run.manifest
        faults = "+".join(manifest.faults) or "none"
        workload = manifest.name.partition("-")[2] or manifest.name
        judgement = load_judgement(run)
        if judgement is None:
            status, why = run.status
            rows.append((status, faults, workload, "", "", "", "", why))
            continue
        workload = run.plan.workload
        found = judgement.metrics.iteration
        times = (format_ns(found.median.value), format_ns(found.p99.value)) if found else ("", "")
        beside = judgement.comparison
        ratios = (_ratio(beside.median), _ratio(beside.p99)) if beside else ("", "")
        why = judgement.why if judgement.verdict in ("invalid", "inconclusive") else ""
        rows.append((judgement.verdict, faults, workload, *times, *ratios, why))
    return rows


def _ratio(slowdown: Slowdown) -> str:
    return "" if math.isnan(slowdown.ratio.value) else f"{slowdown.ratio.value:.2f}x"


def render_sweep(runs: Sequence[RunDir], *, width: int = WIDTH_LEAST, color: bool = False) -> str:
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
    for number, heading in enumerate(HEADINGS[:-1]):
        table.add_column(heading, justify="right" if number > 2 else "left", overflow="fold")
    rows = sweep_rows(runs)
    for row in rows:
        table.add_row(Text(row[0], style=STYLES.get(row[0], "bold magenta")), *row[1:-1])
    console.print(table)
    for row in rows:
        if row[-1]:
            console.print(Text(f"{row[0]}: {row[1]} {row[2]}: {row[-1]}"))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def sweep_markdown(runs: Sequence[RunDir]) -> str:
    """The same table for MLflow's note of the parent run."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in sweep_rows(runs)]
    return "\n".join(lines) + "\n"
