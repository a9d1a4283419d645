"""Marking on and off under two workloads: iteration, tail, queue, drops and retransmissions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.chart import Axis, Bar, bars
from experiments.study import Row, Study, Telling, cell
from genie.report.html.figure import Table
from genie.report.html.scale import Unit
from genie.results.metrics import Metrics
from genie.results.statistics import median

JOBS = ("moe", "dp")
FAULTS = ("none", "ecn_off")


def typical(rows: Sequence[Row], number: Callable[[Metrics], float | None]) -> float | None:
    """The median over repeats of one number, of the runs that may be believed; None where there is none."""
    found = [value for row in rows if row.metrics is not None and (value := number(row.metrics)) is not None]
    return median(found) if found else None


def tell(study: Study, rows: Sequence[Row]) -> Telling:
    """A row for each job and state of marking; the queue's closed form is the limit at which a port drops."""
    table_rows, shown, said = [], [], []
    for job in JOBS:
        times: dict[str, float | None] = {}
        tails: dict[str, float | None] = {}
        for fault in FAULTS:
            own = [row for row in rows if row.line == job and study.value(row, "fault") == fault]
            times[fault] = typical(own, lambda m: m.iteration.median.value if m.iteration else None)
            tails[fault] = typical(own, lambda m: m.iteration.p99.value if m.iteration else None)
            queue = typical(own, lambda m: m.fabric.queue_p99_bytes)
            table_rows.append(
                (
                    job,
                    "on" if fault == "none" else "off",
                    f"{sum(row.metrics is not None for row in own)} of {len(own)}",
                    cell(_scaled(times[fault], 1e6), "{:.0f}"),
                    cell(_scaled(tails[fault], 1e6), "{:.0f}"),
                    cell(_scaled(queue, 1024), "{:.0f}"),
                    cell(typical(own, lambda m: m.fabric.ce_marked), "{:.0f}"),
                    cell(typical(own, lambda m: m.fabric.drops), "{:.0f}"),
                    cell(typical(own, lambda m: m.fabric.retransmits), "{:.0f}"),
                )
            )
            shown.append(Bar(f"{job}, marking {table_rows[-1][1]}", queue, None))
        ratios = [_ratio(found["ecn_off"], found["none"]) for found in (times, tails)]
        if None not in ratios:
            said.append(f"{job} without marking: median iteration {ratios[0]:.2f}x, slowest {ratios[1]:.2f}x.")
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
