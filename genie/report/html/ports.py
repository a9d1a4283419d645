"""Charts of the network's ports over time: how busy links are, how deep queues stand, what was marked and dropped.

Drawn from ``ports.smp``, in `SLOTS` equal stretches of the run: of a queue the deepest sample of each stretch, of
counters what they rose by. Time is model time, depths are what they were. Numbers of the whole run are those of
``results.json``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genie.report.html import heat
from genie.report.html.figure import CHARACTER, NARROW, WIDE, Canvas, Figure, Plot, Table, figure, path_of, shortened
from genie.report.html.heat import Floats
from genie.report.html.material import Material
from genie.report.html.scale import Linear, Unit, size_unit, time_unit
from genie.report.words import count_of
from genie.results.metrics import PortTotals
from genie.results.ports import NOT_KNOWN
from genie.units import format_bytes, format_ns, format_rate

SLOTS = 240
ROWS_MOST = 64
LINES_MOST = 5


@dataclass(frozen=True, slots=True, eq=False)
class PortSeries:
    """Ports × slots: deepest sample in bytes, bit/s of model time; CE marks and drops of all ports by slot. NaN: no
    sample, or not counted. ``slot_ns`` is model time.
    """

    depth_bytes: Floats
    rate_bps: Floats
    ce_marked: Floats
    drops: Floats
    slot_ns: float


def read_series(material: Material) -> PortSeries | None:
    """None where ports were not sampled, or nobody knows where the run was on their clock."""
    metrics = material.metrics
    samples = material.run.ports()
    start, end = metrics.start_mono_ns, metrics.end_mono_ns
    if samples is None or start is None or end is None or end <= start or not material.plan.ports:
        return None
    # How many ports there are says the plan: a damaged header must not say how much memory this takes.
    count, at, port = len(material.plan.ports), samples.records["mono_ns"], samples.records["port"]
    records = samples.records[(at >= start) & (at <= end) & (port < count)]
    if not len(records):
        return None
    slot = np.minimum((records["mono_ns"] - start) * SLOTS // (end - start), SLOTS - 1).astype(np.int64)
    place = records["port"].astype(np.int64) * SLOTS + slot
    depth = np.full(count * SLOTS, -1.0)
    np.maximum.at(depth, place, records["backlog_bytes"].astype(np.float64))
    depth[depth < 0] = np.nan
    slot_ns = (end - start) / SLOTS / metrics.dilation
    sent = _rises(records["port"], records["tx_bytes"], place, count)
    return PortSeries(
        depth.reshape(count, SLOTS),
        sent * 8 / slot_ns * 1e9,
        _total(_rises(records["port"], records["ce_marked"], place, count)),
        _total(_rises(records["port"], records["drops"], place, count)),
        slot_ns,
    )


def _rises(ports: npt.NDArray[np.uint32], values: npt.NDArray[np.uint64], place: npt.NDArray[np.int64],
           count: int) -> Floats:  # fmt: skip
    """What a cumulative counter rose by in each slot, ports × slots. A slot without a sample has its share in the next
    one that has one; NaN for ports that do not count, and before the first sample.
    """
    known = values != NOT_KNOWN
    flat = np.full(count * SLOTS, np.nan)
    flat[place[known]] = values[known].astype(np.float64)  # samples are in order of time: the last one stays
    last = flat.reshape(count, SLOTS)
    first = np.full(count, np.nan)
    first[ports[known][::-1]] = values[known][::-1].astype(np.float64)
    reached = np.where(np.isnan(last), 0, np.arange(SLOTS))
    np.maximum.accumulate(reached, axis=1, out=reached)
    filled = np.take_along_axis(last, reached, axis=1)
    rises = np.diff(filled, axis=1, prepend=first[:, None])
    rises[rises < 0] = np.nan  # a counter that went down is not used
    return rises


def _total(rises: Floats) -> Floats:
    known = np.isfinite(rises)
    return np.where(known.any(axis=0), np.where(known, rises, 0.0).sum(axis=0), np.nan)


# -- links over time ----------------------------------------------------------------------------------------------


def links(material: Material, series: PortSeries) -> Figure | None:
    """How much of its rate each port sends over time; where rates were not recorded, how much it sends."""
    plan, totals = material.plan, material.metrics.ports
    rates = np.array(plan.port_rates_bps or [0] * len(plan.ports), dtype=np.float64)[: len(plan.ports)]
    known = len(rates) == len(plan.ports) and bool((rates > 0).all())
    shown = _rows_shown(material)
    drawn = series.rate_bps[shown]
    if not np.isfinite(drawn).any():
        return None
    if known:
        drawn = drawn / rates[shown, None]
    by_width = {WIDE: _coarser(drawn, 2), NARROW: _coarser(drawn, 5)}
    shades = heat.Shades(0.0, 1.0 if known else float(np.nanmax(by_width[WIDE])))
    unit = "share of the port's rate" if known else "sent"
    faulty = _faulty(material)
    names = [plan.ports[number] for number in shown]
    end = material.end_ns

    def say(value: float) -> str:
        return f"{value:.0%}" if known else format_rate(value)

    def draw(width: int) -> str:
        def axis(canvas: Canvas, plot: Plot, x: Linear) -> None:
            clock = time_unit(end)
            most = 4 if width < 500 else 10
            plot.x_axis(canvas, x, clock, f"time since the start, model time ({clock.name})", most)

        strong = [name in faulty for name in names]
        return heat.over_time(
            width, "throughput of each port over time", by_width[width], names, strong, shades, say, unit, end,
            material.windows, axis,
        )  # fmt: skip

    said = []
    if len(shown) < len(plan.ports):
        said.append(
            f"The {len(shown)} of {len(plan.ports)} ports that sent most, and those of faults; the table has all."
        )
    order = [*shown, *(n for n in range(len(totals)) if n not in set(shown))]
    mean = material.end_ns
    rows = tuple(_port_row(totals[n], rates[n] if known else None, mean) for n in order if n < len(totals))
    head = ("port", "rate", "sent", "mean use", "queue p50", "queue p99", "queue max", "CE marks", "drops")
    reading = "Each row is a port, named by its node and the node it leads to; those of a fault are bold."
    if known:
        reading += " A link that has lost rate never reaches the upper shades, a crowded one stays there."
    return figure("links", "Links over time", reading, draw, Table(head, rows), said)


def _coarser(values: Floats, together: int) -> Floats:
    """Means of ``together`` neighbouring slots: cells wide enough to see."""
    parts = values.reshape(len(values), SLOTS // together, together)
    known = np.isfinite(parts)
    sums, counts = np.where(known, parts, 0.0).sum(axis=2), known.sum(axis=2)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _port_row(port: PortTotals, rate: float | None, run_ns: float) -> tuple[str, ...]:
    use = ""
    if rate and port.tx_bytes is not None and run_ns > 0:
        use = f"{port.tx_bytes * 8 / run_ns * 1e9 / rate:.0%}"
    queues = (port.queue_p50_bytes, port.queue_p99_bytes, port.queue_max_bytes)
    sent = "not counted" if port.tx_bytes is None else format_bytes(port.tx_bytes)
    return (
        port.port, format_rate(rate) if rate else "", sent, use,
        *("not sampled" if value is None else format_bytes(value) for value in queues),
        count_of(port.ce_marked), count_of(port.drops),
    )  # fmt: skip


def _faulty(material: Material) -> set[str]:
    return {target for fault in material.faults for target in fault.targets}


def _rows_shown(material: Material) -> list[int]:
    """Numbers of the ports in the map, in the topology's order: those of faults, then those that sent most."""
    totals, faulty = material.metrics.ports, _faulty(material)
    ranked = sorted(range(len(totals)), key=lambda n: (totals[n].port not in faulty, -(totals[n].tx_bytes or 0), n))
    return sorted(ranked[:ROWS_MOST])


# -- queues -------------------------------------------------------------------------------------------------------


def queues(material: Material, series: PortSeries) -> Figure | None:
    """The deepest queues over time, and below it CE marks and drops of all ports."""
    plan, totals, faulty = material.plan, material.metrics.ports, _faulty(material)
    sampled = [n for n in range(min(len(totals), len(plan.ports))) if totals[n].queue_p99_bytes is not None]
    if not sampled:
        return None
    deepest = sorted(sampled, key=lambda n: (-(totals[n].queue_p99_bytes or 0), -(totals[n].queue_max_bytes or 0), n))
    of_faults = [n for n in deepest if totals[n].port in faulty][:2]
    chosen = [*of_faults, *(n for n in deepest if n not in of_faults)][:LINES_MOST]
    largest = max(float(np.nanmax(series.depth_bytes[chosen])), 1.0)
    end = material.end_ns
    lower = [("CE marks", series.ce_marked), ("drops", series.drops)]
    lower = [(name, values) for name, values in lower if np.isfinite(values).any()]

    def draw(width: int) -> str:
        narrow = width < 500
        canvas = Canvas(width, 0, "queue depth of the deepest ports over time, CE marks and drops")
        clock, unit = time_unit(end), size_unit(largest)
        canvas.text(4, 14, f"queue ({unit.name}): deepest sample of each {format_ns(series.slot_ns)}", "quiet")
        if material.windows:
            canvas.rect(4, 22, 12, 12, "window")
            names = ", ".join(dict.fromkeys(window.fault for window in material.windows))
            canvas.text(22, 32, shortened(f"in effect: {names}", int((width - 30) / CHARACTER)))
        x = Linear(0, end, 58, width - 12)
        top = 32.0 if material.windows else 14.0
        for port in chosen:
            plot = Plot(58, top + 22, width - 12, top + 76)
            y = Linear(0, largest * 1.06, plot.bottom, plot.top)
            name = plan.ports[port] + (" (of a fault)" if plan.ports[port] in faulty else "")
            _panel(canvas, plot, x, y.ticks(unit, 2), name, material)
            canvas.path(_area(series.depth_bytes[port], x, y, series.slot_ns), "f0")
            top = plot.bottom
        for name, values in lower:
            plot = Plot(58, top + 30, width - 12, top + 84)
            seen = float(np.nanmax(values))
            y = Linear(0, max(seen, 3.0) * 1.1, plot.bottom, plot.top)
            title = f"{name} of all ports in each {format_ns(series.slot_ns)} ({_packets(name)})"
            _panel(canvas, plot, x, y.ticks(Unit(1.0, ""), 3), title, material)
            if not seen:
                canvas.text(plot.left + 8, plot.bottom - 8, "none", "quiet")
            canvas.path(_bars(values, x, y, series.slot_ns), "f1")
            top = plot.bottom
        last = Plot(58, top, width - 12, top)
        title = f"time since the start, model time ({clock.name})"
        last.x_axis(canvas, x, clock, title, 4 if narrow else 10)
        canvas.height = top + 42
        return canvas.svg(rows_x=[x((slot + 0.5) * series.slot_ns) for slot in range(SLOTS)])

    head = ("time", *(plan.ports[n] for n in chosen), *(name for name, _ in lower))
    rows = tuple(
        (
            format_ns((slot + 0.5) * series.slot_ns),
            *(_depth(series.depth_bytes[n, slot]) for n in chosen),
            *("" if not np.isfinite(values[slot]) else f"{values[slot]:.0f}" for _, values in lower),
        )
        for slot in range(SLOTS)
    )
    said = () if lower else ("CE marks and drops were not sampled over time; the table of links has their totals.",)
    reading = (
        "The ports whose queues were deepest at p99, those of a fault first. A queue that stands is where bytes wait."
    )
    return figure("queues", "Queues, marks and drops over time", reading, draw, Table(head, rows), said)


def _packets(name: str) -> str:
    return "packets marked" if name == "CE marks" else "packets"


def _depth(value: float) -> str:
    return format_bytes(float(value)) if np.isfinite(value) else ""


def _panel(
    canvas: Canvas,
    plot: Plot,
    x: Linear,
    ticks: Sequence[tuple[float, str]],
    name: str,
    material: Material,
) -> None:
    """One of several plots above each other, its name at the right."""
    for at, label in ticks:
        canvas.line(plot.left, at, plot.right, at, "grid")
        canvas.text(plot.left - 6, at + 4, label, "quiet", "end")
    plot.windows(canvas, material.windows, x, named=False)
    canvas.line(plot.left, plot.bottom, plot.right, plot.bottom, "axis")
    canvas.text(plot.right, plot.top - 4, name, "", "end")


def _area(values: Floats, x: Linear, y: Linear, slot_ns: float) -> str:
    """The surface below the samples; it has gaps where longer than a few slots nothing was looked at."""
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):
        return ""
    # fewer samples than slots make gaps of their own; only those that are longer than usual are shown
    usual = int(np.median(np.diff(known))) if len(known) > 1 else 1
    floor, pieces = y(0), []
    for piece in np.split(known, np.flatnonzero(np.diff(known) > 4 * usual) + 1):
        places = [(x((slot + 0.5) * slot_ns), y(float(values[slot]))) for slot in piece.tolist()]
        pieces.append(f"M{places[0][0]:.1f} {floor:.1f}L{path_of(places)[1:]}V{floor:.1f}z")
    return "".join(pieces)


def _bars(values: Floats, x: Linear, y: Linear, slot_ns: float) -> str:
    wide = max(x(slot_ns) - x(0), 1.0)
    return "".join(
        f"M{x(slot * slot_ns):.1f} {y(0):.1f}V{y(float(values[slot])):.1f}h{wide:.1f}V{y(0):.1f}z"
        for slot in np.flatnonzero(np.nan_to_num(values) > 0).tolist()
    )
