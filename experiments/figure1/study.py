"""Bus bandwidth of each of many all-reduces, healthy and with a NIC degrading in the middle, beside the closed form."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.chart import Axis, Series, lines
from experiments.closed import bus_bytes_per_s
from experiments.study import Row, Study, Telling, cell
from genie.report.html.figure import Table, Window
from genie.report.html.scale import Unit
from genie.results.statistics import median
from genie.units import parse_rate_bps

SLOW_RATIO = 0.5
"""What `nic_tx_throttle` leaves of a host's rate (conf/fault/nic_tx_throttle.yaml)."""
MEGABYTES = Unit(1e6, "MB/s")


def series(row: Row) -> list[float]:
    """Bus bandwidth of each measured iteration, bytes/s; empty where the run may not be believed."""
    if row.metrics is None:
        return []
    found = row.metrics.collectives[0]
    return [found.bytes * found.busbw_factor * 1e9 / ns for ns in found.by_iteration_ns]


def tell(study: Study, rows: Sequence[Row]) -> Telling:
    """A row for each stretch: healthy, before the NIC degraded, while, and after."""
    closed = bus_bytes_per_s(parse_rate_bps(study.word("healthy", "topology.host_rate")))
    healthy = [value for row in rows if row.line == "healthy" for value in series(row)]
    row = next(row for row in rows if row.line == "degrading")
    hurt = series(row)
    met = list(row.metrics.windowed[0].met) if row.metrics and row.metrics.windowed else [False] * len(hurt)
    first, last = (met.index(True), len(met) - 1 - met[::-1].index(True)) if any(met) else (len(met), len(met))
    stretches = [
        ("healthy run", healthy, 1.0),
        ("before", hurt[:first], 1.0),
        ("one NIC at half its rate", hurt[first : last + 1], SLOW_RATIO),
        ("after", hurt[last + 1 :], 1.0),
    ]
    table = Table(
        (
            "stretch",
            "all-reduces",
            "measured (MB/s)",
            "closed form (MB/s)",
            "of the form",
            "form that knows of the fault",
        ),
        tuple(
            (
                name,
                str(len(values)),
                cell(median(values) / 1e6 if values else None),
                cell(closed / 1e6),
                cell(median(values) / closed if values else None, "{:.0%}"),
                cell(bus_bytes_per_s(closed * 8, ratio) / 1e6),
            )
            for name, values, ratio in stretches
        ),
    )
    said = []
    if all(values for _, values, _ in stretches[1:]):
        before, during, after = (median(values) for _, values, _ in stretches[1:])
        said = [
            f"Before the NIC degraded an all-reduce reached {before / closed:.0%} of the closed form, while it was "
            f"degraded {during / closed:.0%}, afterwards {after / closed:.0%}.",
            f"The form that does not know of the fault is off by {closed / during - 1:.0%} there; nothing in its "
            "inputs (ranks, bytes, rate of a link) changed.",
        ]
    count = max(len(healthy), len(hurt))
    figure = lines(
        "figure1", "Bus bandwidth of repeated all-reduces",
        "The dashed line is the closed form, which is the rate of a link. Higher is better.",
        Axis("number of the all-reduce"), Axis(f"bus bandwidth ({MEGABYTES.name})", MEGABYTES),
        (
            Series("closed form", ((0, closed), (max(count - 1, 1), closed)), closed=True),
            Series("measured, healthy", tuple(enumerate(healthy))),
            Series("measured, a NIC degrading", tuple(enumerate(hurt))),
        ),
        table, (Window("nic_tx_throttle", first - 0.5, last + 0.5),) if any(met) else (),
    )  # fmt: skip
    return Telling(table, figure, tuple(said))
