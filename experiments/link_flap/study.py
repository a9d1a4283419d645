"""How long a job stands when a link is gone for a while, beside TCP's doubling timeouts, and when it gives up."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.chart import Axis, Series, lines
from experiments.closed import stall_ns
from experiments.study import Row, Study, Telling, cell
from genie.report.html.figure import Table
from genie.report.html.scale import Unit
from genie.results.statistics import median
from genie.units import format_ns, parse_ns

LENGTH = "fault.link_flap_long.window.for"
SECONDS = Unit(1e9, "s")


def stood_ns(row: Row) -> float | None:
    """What the iterations that met the flap took longer than as many of the others; None where it is not known."""
    if row.metrics is None or row.metrics.iteration is None or not row.metrics.windowed:
        return None
    inside, outside = row.metrics.windowed[0].split(row.metrics.iteration.each_ns)
    return sum(inside) - len(inside) * median(outside) if inside and outside else None


def gave_up(row: Row) -> str:
    """Why the job ended before its time; "" where it did not."""
    if row.run is None:
        return ""
    status, reason = row.run.status
    return reason if status == "aborted" else ""


def saturated(row: Row) -> bool:
    """Whether the machine had no air: what an aborted job did then tells nothing of the network."""
    return row.cpu_busy_ratio is None or row.cpu_busy_ratio > 0.8


def tell(study: Study, rows: Sequence[Row]) -> Telling:
    """A row for each length and patience."""
    table_rows, said, points = [], [], []
    lengths: list[float] = []
    for row in rows:
        gone = parse_ns(study.value(row, LENGTH))
        lengths.append(gone)
        stood, why = stood_ns(row), gave_up(row)
        patience = study.word(row.line, "timeout") or "30s"
        if stood is not None:
            points.append((float(gone), stood))
        what = "unknown"
        if why and not saturated(row):
            what = "gave up"
            said.append(f"With a patience of {patience} and the link gone for {format_ns(gone)} the job ended: {why}")
        elif stood is not None:
            what = "went on"
        table_rows.append(
            (format_ns(gone), patience, what, _s(stall_ns(gone)), _s(stood), cell(_ratio(stood, gone), "{:.1f}x"))
        )
    if points:
        off = [stood - stall_ns(gone) for gone, stood in points]
        said.insert(
            0, f"The job stood for {min(off) / 1e9:+.2f} to {max(off) / 1e9:+.2f} s more than the closed form says."
        )
    table = Table(
        ("link gone for", "patience (timeout)", "the job", "closed form (s)", "stood for (s)", "of the flap"),
        tuple(table_rows), names=3,
    )  # fmt: skip
    form = sorted({(float(gone), stall_ns(gone)) for gone in lengths})
    figure = lines(
        "link_flap", "How long the job stands for how long a flap",
        "The dashed line is TCP's next retransmission after the link is back, from a first timeout of 200 ms.",
        Axis("link gone for (s)", SECONDS, log=True), Axis("job stands (s)", SECONDS, log=True),
        (Series("doubling timeouts", tuple(form), closed=True), Series("measured", tuple(sorted(points)))),
        table,
    )  # fmt: skip
    return Telling(table, figure, tuple(said))


def _s(ns: float | None) -> str:
    return cell(None if ns is None else ns / 1e9, "{:.2f}")


def _ratio(over: float | None, under: float) -> float | None:
    return None if over is None else over / under
