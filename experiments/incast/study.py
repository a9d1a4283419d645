"""Time of N senders to one receiver beside N·S/B, with marking and without, and what the port lost meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.chart import Axis, Series, lines
from experiments.closed import incast_ns
from experiments.study import Row, Study, Telling, cell
from genie.report.html.figure import Table
from genie.report.html.scale import Unit
from genie.units import parse_bytes, parse_rate_bps

MILLISECONDS = Unit(1e6, "ms")
MARKING = {"true": "on", "false": "off"}


def tell(study: Study, rows: Sequence[Row]) -> Telling:
    """A row for each number of senders and state of marking."""
    table_rows, said = [], []
    measured: dict[str, list[tuple[float, float]]] = {"on": [], "off": []}
    closed: dict[int, float] = {}
    for row in rows:
        senders = int(study.word(row.line, "workload.ranks")) - 1
        each = parse_bytes(study.word(row.line, "workload.sizes").strip("[]")) / (senders + 1)
        form = incast_ns(senders, each, parse_rate_bps(study.word(row.line, "topology.host_rate")))
        marking = MARKING[study.value(row, "topology.ecn").lower()]
        closed[senders] = form
        slowest = row.metrics.iteration.p99.value if row.metrics and row.metrics.iteration else None
        fabric = row.metrics.fabric if row.metrics else None
        depth = fabric.queue_p99_bytes if fabric else None
        table_rows.append(
            (
                str(senders), marking, cell(form / 1e6, "{:.1f}"), _ms(row.median_ns), _ms(slowest),
                cell(row.median_ns / form if row.median_ns else None, "{:.2f}x"),
                cell(fabric.drops if fabric else None, "{:.0f}"),
                cell(fabric.retransmits if fabric else None, "{:.0f}"),
                cell(None if depth is None else depth / 1024, "{:.0f}"),
            )
        )  # fmt: skip
        if row.median_ns is not None:
            measured[marking].append((senders, row.median_ns))
    for marking, points in measured.items():
        far = [senders for senders, ns in sorted(points) if ns > 1.1 * closed[int(senders)]]
        if points and not far:
            said.append(f"Marking {marking}: within 10 % of N·S/B for every N that was measured.")
        elif far:
            said.append(f"Marking {marking}: more than 10 % above N·S/B at N = {', '.join(f'{n:g}' for n in far)}.")
    table = Table(
        (
            "senders", "marking", "N·S/B (ms)", "median (ms)", "slowest (ms)", "median of form", "drops", "retransmits",
            "queue p99 (KiB)",
        ),
        tuple(table_rows), names=2,
    )  # fmt: skip
    figure = lines(
        "incast", "Incast: time of a gather", "The dashed line is N·S/B. Both axes are logarithmic.",
        Axis("senders", log=True), Axis("median (ms)", MILLISECONDS, log=True),
        (
            Series("N·S/B", tuple(sorted((float(n), form) for n, form in closed.items())), closed=True),
            *(Series(f"marking {marking}", tuple(sorted(points))) for marking, points in measured.items()),
        ),
        table,
    )  # fmt: skip
    return Telling(table, figure, tuple(said))


def _ms(ns: float | None) -> str:
    return cell(None if ns is None else ns / 1e6, "{:.1f}")
