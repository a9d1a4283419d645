"""Marking on and off under two workloads: iteration, tail, queue, drops and retransmissions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.chart import Axis, Bar, bars
from experiments.study import Row, Study, Telling, cell
from genie.report.html.figure import Table
from genie.report.html.scale import Unit
from genie.results.metrics import Metrics
from genie.results.statistics import median

CASES = (
    ("moe", "none", "on"),
    ("moe", "ecn_off", "off"),
    ("dp", "none", "on"),
    ("dp", "ecn_off", "off"),
    ("dp_unmarked", "none", "built without"),
)
"""Line, fault, and what the table calls it. The last is for a job that is never marked: switching marking off is then
no fault in effect, and its run invalid."""


def typical(rows: Sequence[Row], number: Callable[[Metrics], float | None]) -> float | None:
    """The median over repeats of one number, of the runs that may be believed; None where there is none."""
    found = [value for row in rows if row.metrics is not None and (value := number(row.metrics)) is not None]
    return median(found) if found else None


def tell(study: Study, rows: Sequence[Row]) -> Telling:
    """A row for each job and state of marking; the queue's closed form is the limit at which a port drops."""
    table_rows, shown, said = [], [], []
    marked: dict[str, tuple[float | None, float | None]] = {}
    for line, fault, marking in CASES:
        job = study.word(line, "workload")
        own = [row for row in rows if row.line == line and study.value(row, "fault") == fault]
        time = typical(own, lambda m: m.iteration.median.value if m.iteration else None)
        tail = typical(own, lambda m: m.iteration.p99.value if m.iteration else None)
        queue = typical(own, lambda m: m.fabric.queue_p99_bytes)
        table_rows.append(
            (
                job,
                marking,
                f"{sum(row.metrics is not None for row in own)} of {len(own)}",
                cell(_scaled(time, 1e6), "{:.0f}"),
                cell(_scaled(tail, 1e6), "{:.0f}"),
                cell(_scaled(queue, 1024), "{:.0f}"),
                cell(typical(own, lambda m: m.fabric.ce_marked), "{:.0f}"),
                cell(typical(own, lambda m: m.fabric.drops), "{:.0f}"),
                cell(typical(own, lambda m: m.fabric.retransmits), "{:.0f}"),
            )
        )
        shown.append(Bar(f"{job}, marking {marking}", queue, None))
        if marking == "on":
            marked[job] = (time, tail)
            continue
        median_ratio, tail_ratio = _ratio(time, marked[job][0]), _ratio(tail, marked[job][1])
        if median_ratio is not None and tail_ratio is not None:
            said.append(f"{job}, marking {marking}: median iteration {median_ratio:.2f}x, slowest {tail_ratio:.2f}x.")
    table = Table(
        (
            "job",
            "marking",
            "runs",
            "median (ms)",
            "slowest (ms)",
            "queue p99 (KiB)",
            "CE marks",
            "drops",
            "retransmits",
        ),
        tuple(table_rows),
        names=2,
    )
    figure = bars(
        "ecn_off", "The deepest queue with marking and without", "p99 of the port where it is largest.",
        Axis("queue depth (KiB)", Unit(1024.0, "KiB")), shown, table,
    )  # fmt: skip
    return Telling(table, figure, tuple(said))


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or under is None or under <= 0 else over / under
