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


def each_ns(row: Row) -> float | None:
    """Time of the job over its gathers, warm-up included: senders do not wait for each other, so that quick ones are
    gathers ahead of slow ones, and the time between the ends of two gathers says little. None where not believed.
    """
    if row.metrics is None or row.metrics.iteration is None:
        return None
    every = [*row.metrics.iteration.warmup_ns, *row.metrics.iteration.each_ns]
    return sum(every) / len(every)


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
        took = each_ns(row)
        slowest = row.metrics.messages.max_ns if row.metrics and row.metrics.messages else None
        fabric = row.metrics.fabric if row.metrics else None
        depth = fabric.queue_p99_bytes if fabric else None
        table_rows.append(
            (
                str(senders), marking, cell(form / 1e6, "{:.1f}"), _ms(took), _ms(slowest),
                cell(took / form if took else None, "{:.2f}x"),
                cell(fabric.drops if fabric else None, "{:.0f}"),
                cell(fabric.retransmits if fabric else None, "{:.0f}"),
                cell(None if depth is None else depth / 1024, "{:.0f}"),
            )
        )  # fmt: skip
        if took is not None:
            measured[marking].append((senders, took))
    for marking, points in measured.items():
        far = [senders for senders, ns in sorted(points) if ns > 1.1 * closed[int(senders)]]
        if points and not far:
            said.append(f"Marking {marking}: within 10 % of N·S/B for every N that was measured.")
        elif far:
            said.append(f"Marking {marking}: more than 10 % above N·S/B at N = {', '.join(f'{n:g}' for n in far)}.")
    table = Table(
        (
            "senders", "marking", "N·S/B (ms)", "a gather (ms)", "slowest message (ms)", "of the form", "drops",
            "retransmits", "queue p99 (KiB)",
        ),
        tuple(table_rows), names=2,
    )  # fmt: skip
    figure = lines(
        "incast", "Incast: time of a gather", "The dashed line is N·S/B. Both axes are logarithmic.",
        Axis("senders", log=True), Axis("a gather (ms)", MILLISECONDS, log=True),
        (
            Series("N·S/B", tuple(sorted((float(n), form) for n, form in closed.items())), closed=True),
            *(Series(f"marking {marking}", tuple(sorted(points))) for marking, points in measured.items()),
        ),
        table,
    )  # fmt: skip
    return Telling(table, figure, tuple(said))


def _ms(ns: float | None) -> str:
    return cell(None if ns is None else ns / 1e6, "{:.1f}")
