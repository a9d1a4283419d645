"""Charts of messages: how long they took, as a distribution, and between which ranks.

Numbers that are said come from ``results.json``. The pictures are drawn from the event files: of a run with more than
`DRAWN_MOST` messages from some of its iterations, evenly spaced, and then the page says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genie.engine.wire import EventType
from genie.errors import GenieError
from genie.report.html import heat
from genie.report.html.figure import Canvas, Figure, Plot, Table, figure, half, legend, path_of, tail_axis
from genie.report.html.heat import Floats
from genie.report.html.material import Material
from genie.report.html.scale import Log, Tail, time_unit
from genie.results.messages import paired
from genie.results.metrics import load_records
from genie.results.statistics import percentile
from genie.units import format_bytes, format_ns

DRAWN_MOST = 120_000
CELLS_MOST = 64
"""More ranks than this share rows and columns of a heat map."""
SHARES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999)


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Messages of some measured iterations: completion in model ns, ranks, bytes; ``of`` measured iterations."""

    ns: Floats
    sender: npt.NDArray[np.int64]
    receiver: npt.NDArray[np.int64]
    bytes: Floats
    iterations: int
    of: int
    basis: str

    @property
    def said(self) -> str:
        """What was left out; "" where nothing was."""
        if self.iterations == self.of:
            return ""
        return (
            f"Drawn from {self.iterations} of {self.of} measured iterations, evenly spaced ({len(self.ns)} messages)."
        )


def read_messages(material: Material) -> Drawn | None:
    """None where no message was recorded. Raises GenieError for damaged event files."""
    metrics, run, plan = material.metrics, material.run, material.plan
    if metrics.messages is None or metrics.iteration is None:
        return None
    measured = len(metrics.iteration.each_ns)
    wanted = max(1, min(measured, DRAWN_MOST * measured // max(metrics.messages.count, 1)))
    places = np.linspace(0, measured - 1, wanted).round().astype(np.int64)
    iterations = [int(i) for i in np.unique(places) + metrics.warmup]
    job = load_records(run, plan, (EventType.SENT, EventType.RECEIVED), iterations)
    sent = job.records[job.records["type"] == EventType.SENT]
    if job.one_clock:
        sent, received, _ = paired(sent, job.records[job.records["type"] == EventType.RECEIVED])
        ns = (received["t2_ns"] - sent["t0_ns"]).astype(np.float64)
    else:
        ns = (sent["t2_ns"] - sent["t0_ns"]).astype(np.float64)
    if not len(sent):
        return None
    if int(sent["peer"].max()) >= plan.world:
        raise GenieError(f"{run.path}: a message goes to rank {int(sent['peer'].max())} of {plan.world}")
    return Drawn(
        ns / plan.dilation, sent["rank"].astype(np.int64), sent["peer"].astype(np.int64),
        sent["bytes"].astype(np.float64), len(iterations), measured, "receiver" if job.one_clock else "sender",
    )  # fmt: skip


# -- distribution -------------------------------------------------------------------------------------------------


def distribution(series: Sequence[tuple[str, Drawn]], material: Material) -> Figure:
    """Completion times as a cumulative distribution, stretched towards the tail; one line a run."""
    nines = min(4.0, max(2.0, math.log10(max(len(drawn.ns) for _, drawn in series))))
    lines = [(name, _quantiles(drawn.ns, nines)) for name, drawn in series]
    low = max(
        min(percentile(drawn.ns, 0.005) for _, drawn in series), 1.0
    )  # a few that had nothing to do may be far left
    high = max(max(points[-1][0] for _, points in lines), low * 2)

    def draw(width: int) -> str:
        narrow = width < 500
        canvas = Canvas(width, 0, "completion time of messages, cumulative")
        entries = [(f"l{i}", name) for i, (name, _) in enumerate(lines)]
        top = 16 + legend(canvas, entries, 12, 14, width - 8)
        plot = Plot(58, top + 12, width - 14, top + (220 if narrow else 280))
        canvas.height = plot.bottom + 42
        unit = time_unit(math.sqrt(low * high))  # several decades: the unit of the middle
        x = Log(low, high, plot.left, plot.right)
        plot.x_axis(canvas, x, unit, f"completion time, model time ({unit.name})", 5 if narrow else 12)
        y = Tail(nines, plot.bottom, plot.top)
        tail_axis(canvas, plot, y, "share of messages that took at most so long")
        for number, (_, points) in enumerate(lines):
            canvas.path(path_of((x(ns), y(share)) for ns, share in points), f"l{number}")
        return canvas.svg()

    measured = material.metrics.messages
    what = "allowed to complete at the receiver"
    if measured and measured.basis == "sender":
        what = "allowed to handed over at the sender (hosts have clocks of their own)"
    head = ("share", *(name for name, _ in series))
    rows = [(f"{share:.2%}".replace(".00%", "%"), *(format_ns(percentile(drawn.ns, share)) for _, drawn in series))
            for share in SHARES]  # fmt: skip
    rows.append(("slowest", *(format_ns(float(drawn.ns.max())) for _, drawn in series)))
    rows.append(("messages", *(str(len(drawn.ns)) for _, drawn in series)))
    said = [drawn.said if len(series) == 1 else f"{name}: {drawn.said}" for name, drawn in series if drawn.said]
    if measured and measured.unpaired:
        said.append(f"{measured.unpaired} records have no other half and are left out.")
    return figure(
        "messages", "Completion of messages",
        f"From {what}. Further left is faster; each line up is another nine. The tail decides how long the slowest "
        "rank waits.", draw, Table(head, tuple(rows)), said,
    )  # fmt: skip


def _quantiles(ns: Floats, nines: float) -> list[tuple[float, float]]:
    """(time, share) along the stretched axis, no two alike, and the slowest at the end."""
    ordered = np.sort(ns)
    count = len(ordered)
    shares = 1 - 10.0 ** -np.linspace(0, nines, 160)
    ranks = np.clip(np.ceil(shares * count - 1e-9).astype(np.int64) - 1, 0, count - 1)
    keep = np.concatenate([[True], np.diff(ranks) > 0])
    points = [(float(ordered[rank]), float(share)) for rank, share in zip(ranks[keep], shares[keep], strict=True)]
    return [*points, (float(ordered[-1]), 1.0)]


# -- pairs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Senders × receivers: bytes an iteration, median completion in model ns; NaN where nothing was sent."""

    names: tuple[str, ...]
    bytes: Floats
    median_ns: Floats


def pairs_of(drawn: Drawn, world: int) -> Pairs:
    """Messages by pair; of more than `CELLS_MOST` ranks, neighbours together."""
    group = math.ceil(world / CELLS_MOST)
    count = math.ceil(world / group)
    key = drawn.sender // group * count + drawn.receiver // group
    order = np.lexsort((drawn.ns, key))
    keys, ns = key[order], drawn.ns[order]
    found, firsts, sizes = np.unique(keys, return_index=True, return_counts=True)
    sums, medians = np.full(count * count, np.nan), np.full(count * count, np.nan)
    medians[found] = (ns[firsts + (sizes - 1) // 2] + ns[firsts + sizes // 2]) / 2
    sums[found] = np.bincount(key, weights=drawn.bytes, minlength=count * count)[found] / drawn.iterations
    names = tuple(
        str(n * group) if group == 1 else f"{n * group}-{min(n * group + group, world) - 1}" for n in range(count)
    )
    return Pairs(names, sums.reshape(count, count), medians.reshape(count, count))


def pair_figures(drawn: Drawn, beside: Drawn | None, world: int) -> list[Figure]:
    """Volume, time, and time against the healthy run where there is one."""
    own = pairs_of(drawn, world)
    said = [drawn.said] if drawn.said else []
    volume = "What the workload sends: bytes an iteration, from row to column."
    time = (
        "Median completion of a message, from row to column, model time. A row or a column that stands out is a host; "
        "a block is a link."
    )
    found = [
        _map(
            "pairs-bytes", "Bytes between ranks", volume, own.bytes, own.names, "bytes an iteration", format_bytes, said
        ),
        _map("pairs-time", "Time between ranks", time, own.median_ns, own.names, "median completion", format_ns, said),
    ]
    if beside is not None:
        healthy = pairs_of(beside, world)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = own.median_ns / healthy.median_ns
        ratio[~np.isfinite(ratio)] = np.nan
        if np.isfinite(ratio).any():
            found.append(
                _map("pairs-ratio", "Time between ranks against the healthy run",
                     "Median completion over that of the same pair in the healthy run: 1 is as fast.",
                     ratio, own.names, "times the healthy run", lambda value: f"{value:.2f}x", said, least=1.0)
            )  # fmt: skip
    return found


def _map(
    key: str,
    title: str,
    reading: str,
    values: Floats,
    names: tuple[str, ...],
    unit: str,
    say: heat.Say,
    said: Sequence[str],
    least: float | None = None,
) -> Figure:
    shades = heat.shades_of(values, least=least)
    rows = tuple(
        (name, *("" if math.isnan(value) else say(value) for value in row))
        for name, row in zip(names, values.tolist(), strict=True)
    )
    table = Table(("from \\ to", *names), rows, f"{unit}; rows send, columns receive")

    def draw(width: int) -> str:
        return heat.square(width, title, values, names, shades, say, unit)

    return half(figure(key, title, reading, lambda width: draw(min(width, 470)), table, said))
