"""Charts of the iterations: how long each took, the slowdowns with their intervals, where each rank's time went."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from genie.report.html.figure import Canvas, Figure, Plot, Table, Window, figure, legend, path_of, shortened
from genie.report.html.material import Material
from genie.report.html.scale import Linear, Log, Unit, time_unit
from genie.results.metrics import IterationTimes, RankTimes
from genie.results.statistics import Estimate
from genie.units import format_bytes, format_ns

STEPS_MOST = 1000
"""More iterations than this are drawn, and listed, as groups of neighbours: median and slowest of each group."""
RANKS_MOST = 64
RATIO = Unit(1.0, "")


# -- iterations ---------------------------------------------------------------------------------------------------


def iterations(material: Material, baseline: Material | None) -> Figure | None:
    """Each iteration over the time of the run, windows of faults shaded. None where none was measured."""
    found = material.metrics.iteration
    if found is None:
        return None
    every = [*found.warmup_ns, *found.each_ns]
    group = _group(found)
    steps = list(_steps(every, len(found.warmup_ns), group))
    reference = baseline.metrics.iteration.median.value if baseline and baseline.metrics.iteration else None
    end = steps[-1][2]
    largest = max(max(step[4] for step in steps), reference or 0.0)

    def draw(width: int) -> str:
        narrow = width < 500
        canvas = Canvas(width, 0, f"iteration time over the run, {len(every)} iterations")
        entries = [("l0", "iteration"), *([("band", "warm-up, not measured")] if found.warmup_ns else [])]
        entries += [("f1", "slowest of its group")] if group > 1 else []
        entries += [("ref", "median of the healthy run")] if reference else []
        entries += [("window", "fault in effect")] if material.windows else []
        top = 16 + legend(canvas, entries, 44, 14, width - 8)
        plot = Plot(44, top + 12, width - 12, top + (190 if narrow else 250))
        canvas.height = plot.bottom + 42
        x = Linear(0, end, plot.left, plot.right)
        unit, clock = time_unit(largest), time_unit(end)
        y = Linear(0, largest * 1.08, plot.bottom, plot.top)
        plot.y_axis(canvas, y.ticks(unit, 5), f"iteration time ({unit.name})")
        plot.x_axis(canvas, x, clock, f"time since the start, model time ({clock.name})", 4 if narrow else 10)
        if found.warmup_ns:
            canvas.rect(plot.left, plot.top, x(sum(found.warmup_ns)) - plot.left, plot.bottom - plot.top, "band")
        plot.windows(canvas, material.windows, x)
        if reference:
            canvas.line(plot.left, y(reference), plot.right, y(reference), "ref")
        if group > 1:
            for _, start, stop, _, slowest in steps:
                canvas.rect(x(start), y(slowest), max(x(stop) - x(start), 1.0), 2, "f1")
        outline = [(x(at), y(median)) for _, start, stop, median, _ in steps for at in (start, stop)]
        canvas.path(path_of(outline), "l0")
        return canvas.svg(rows_x=[(x(start) + x(stop)) / 2 for _, start, stop, _, _ in steps])

    said = []
    if group > 1:
        said.append(f"{len(every)} iterations, drawn in groups of {group}; results.json has each.")
    if not material.windows and material.faults:
        said.append("The windows of the faults cannot be placed here: nobody compared the clocks of the hosts.")
    return figure(
        "iterations", "Iteration time",
        "Each step is one iteration: as high and as wide as it took. Lower is better.",
        draw, _iteration_table(material, steps, group), said,
    )  # fmt: skip


def _steps(every: Sequence[float], warmup: int, group: int) -> Iterator[tuple[str, float, float, float, float]]:
    """(label, start, end, median, slowest) of each iteration, or of each group; warm-up never shares a group."""
    at, index = 0.0, 0
    while index < len(every):
        stop = min(index + group, warmup if index < warmup else len(every))
        own = sorted(every[index:stop])
        middle = (own[(len(own) - 1) // 2] + own[len(own) // 2]) / 2
        label = str(index) if stop - index == 1 else f"{index} to {stop - 1}"
        yield label, at, at + sum(own), middle, own[-1]
        at, index = at + sum(own), stop


def _iteration_table(material: Material, steps: Sequence[tuple[str, float, float, float, float]], group: int) -> Table:
    metrics, warmup = material.metrics, material.metrics.warmup
    head = ["iteration", "began", "took"] if group == 1 else ["iterations", "began", "median", "slowest"]
    parts = group == 1 and len(metrics.exposed_ns) == len(metrics.iteration.each_ns if metrics.iteration else ())
    if parts:
        head += ["exposed communication", "compute"]
    head += ["note"]
    rows = []
    for number, (label, start, stop, median, slowest) in enumerate(steps):
        cells = [label, format_ns(start), format_ns(median), *([format_ns(slowest)] if group > 1 else [])]
        measured = number - warmup
        if parts:
            shares = (metrics.exposed_ns[measured], metrics.compute_ns[measured]) if measured >= 0 else ()
            cells += [format_ns(share) for share in shares] or ["", ""]
        notes = ["warm-up"] if stop <= _warmup_end(material) + 0.5 and warmup else []
        notes += sorted({w.fault for w in material.windows if _meets(w, start, stop)})
        rows.append((*cells, ", ".join(notes)))
    return Table(tuple(head), tuple(rows))


def _warmup_end(material: Material) -> float:
    found = material.metrics.iteration
    return sum(found.warmup_ns) if found else 0.0


def _meets(window: Window, start: float, stop: float) -> bool:
    return window.start_ns < stop and (window.end_ns is None or window.end_ns > start)


def arms(shown: Sequence[tuple[str, Material]], meaning: Mapping[str, str]) -> Figure | None:
    """The iterations of several runs after each other on one scale, each from its own start."""
    parts = [(name, material, material.metrics.iteration) for name, material in shown]
    lines = [
        (name, material, list(_steps([*found.warmup_ns, *found.each_ns], len(found.warmup_ns), _group(found))))
        for name, material, found in parts
        if found is not None
    ]
    if not lines:
        return None
    largest = max(step[4] for _, _, steps in lines for step in steps)
    total = sum(steps[-1][2] for _, _, steps in lines)
    gap = total * 0.015

    def draw(width: int) -> str:
        narrow = width < 500
        canvas = Canvas(width, 0, "iteration time of the arms, one after the other")
        entries = [("l0", "iteration"), ("band", "warm-up, not measured"), ("window", "fault in effect")]
        top = 16 + legend(canvas, entries, 44, 14, width - 8)
        plot = Plot(44, top + 12, width - 12, top + (190 if narrow else 250))
        canvas.height = plot.bottom + 42
        unit = time_unit(largest)
        y = Linear(0, largest * 1.12, plot.bottom, plot.top)
        plot.y_axis(canvas, y.ticks(unit, 5), f"iteration time ({unit.name})")
        pixels = plot.width / (total + gap * (len(lines) - 1))
        left = plot.left
        centres: list[float] = []
        for name, material, steps in lines:
            end = steps[-1][2]
            own = Plot(left, plot.top, left + end * pixels, plot.bottom)
            x = Linear(0, end, own.left, own.right)
            canvas.line(own.left, own.bottom, own.right, own.bottom, "axis")
            canvas.rect(own.left, own.top, x(_warmup_end(material)) - own.left, own.bottom - own.top, "band")
            own.windows(canvas, material.windows, x, named=False)
            canvas.path(path_of((x(at), y(step[3])) for step in steps for at in (step[1], step[2])), "l0")
            words = name if narrow else f"{name}: {meaning.get(name, '')}"
            canvas.text((own.left + own.right) / 2, own.bottom + 16, words, "strong", "middle")
            canvas.text((own.left + own.right) / 2, own.bottom + 33, format_ns(end), "quiet", "middle")
            centres += [(x(step[1]) + x(step[2])) / 2 for step in steps]
            left = own.right + gap * pixels
        return canvas.svg(rows_x=centres)

    rows = tuple(
        (name, label, format_ns(start), format_ns(median), format_ns(slowest),
         ", ".join(sorted({w.fault for w in material.windows if _meets(w, start, stop)})))
        for name, material, steps in lines
        for label, start, stop, median, slowest in steps
    )  # fmt: skip
    return figure(
        "arms-iterations", "Iteration time in the three arms",
        "Each step is one iteration: as high and as wide as it took. Below each arm its length in model time.", draw,
        Table(("arm", "iteration", "began", "took", "slowest", "note"), rows, names=2),
    )  # fmt: skip


def _group(found: IterationTimes) -> int:
    return math.ceil((len(found.warmup_ns) + len(found.each_ns)) / STEPS_MOST)


# -- slowdowns ----------------------------------------------------------------------------------------------------


def slowdowns(rows: Sequence[tuple[str, Estimate | None, float | None]], title: str, beside: str) -> Figure | None:
    """Ratios with their intervals: (name, ratio, margin that chance may make or None where it is not judged)."""
    shown = [(name, ratio, margin) for name, ratio, margin in rows if ratio is not None and not math.isnan(ratio.low)]
    if not shown:
        return None
    judged = any(margin is not None for _, _, margin in shown)
    reading = "1 is as fast, to the right is slower."
    if judged:
        reading += " An interval that lies wholly right of the grey band is a slowdown that chance does not explain."
    low = min(min(r.low for _, r, _ in shown), min(1 / (1 + (m or 0)) for _, _, m in shown), 0.9)
    high = max(max(r.high for _, r, _ in shown), max(1 + (m or 0) for _, _, m in shown), 1.1)

    def draw(width: int) -> str:
        narrow = width < 500
        canvas = Canvas(width, 0, f"slowdown against {beside}, with 95 % intervals")
        each = 40 if narrow else 28
        left = 12 if narrow else 250
        entries = [("f0", "ratio and its 95 % interval")]
        entries += [("band", "what chance may do between healthy runs")] if judged else []
        top = 16 + legend(canvas, entries, 12, 14, width - 8)
        plot = Plot(left, top, width - (14 if narrow else 150), top + each * len(shown) + 6)
        canvas.height = plot.bottom + 42
        x = Log(low * 0.97, high * 1.03, plot.left, plot.right)
        plot.x_axis(canvas, x, RATIO, f"times {beside}", 5 if narrow else 9)
        canvas.line(x(1), plot.top, x(1), plot.bottom, "axis")
        centres = []
        for number, (name, ratio, margin) in enumerate(shown):
            y = plot.top + each * number + (27 if narrow else 16)
            centres.append(y)
            if margin is not None:
                canvas.rect(x(1 / (1 + margin)), y - 8, x(1 + margin) - x(1 / (1 + margin)), 16, "band")
            canvas.rect(x(ratio.low), y - 1.5, max(x(ratio.high) - x(ratio.low), 1), 3, "f0")
            for at in (ratio.low, ratio.high):
                canvas.rect(x(at) - 1, y - 5, 2, 10, "f0")
            canvas.dot(x(ratio.value), y, 4.5, "f0")
            value = f"{ratio.value:.2f}x ({ratio.low:.2f} - {ratio.high:.2f})"
            if narrow:
                canvas.text(12, y - 13, f"{shortened(name, 26)}  {value}")
            else:
                canvas.text(left - 10, y + 4, shortened(name, 36), "", "end")
                canvas.text(plot.right + 8, y + 4, value, "quiet")
        return canvas.svg(rows_y=centres)

    table = Table(
        ("", "ratio", "95 % interval", "chance"),
        tuple(
            (name, f"{r.value:.3f}x", f"{r.low:.3f} - {r.high:.3f}", "" if m is None else f"±{m:.1%}")
            for name, r, m in shown
        ),
    )
    return figure(
        "slowdowns", title,
        reading, draw, table,
    )  # fmt: skip


def slowdown_rows(material: Material) -> list[tuple[str, Estimate | None, float | None]]:
    """What a run's comparison says, in the order of the terminal's report."""
    comparison, found = material.judgement.comparison, material.metrics.iteration
    if comparison is None or found is None:
        return []
    tail = "p99" if len(found.each_ns) >= 100 else "slowest"
    rows: list[tuple[str, Estimate | None, float | None]] = [
        ("iteration, median", comparison.median.ratio, comparison.median.margin_ratio),
        (f"iteration, {tail}", comparison.p99.ratio, comparison.p99.margin_ratio),
    ]
    for parts in comparison.windowed:
        rows += [(f"in windows of {parts.fault}", parts.inside, None), ("outside of them", parts.outside, None)]
    rows.append(("exposed communication", comparison.exposed, None))
    for row in comparison.collectives[:8]:
        rows.append((f"{row.kind} {format_bytes(row.bytes)}, {row.comm or 'world'}", row.ratio, None))
    return rows


# -- ranks --------------------------------------------------------------------------------------------------------


def ranks(material: Material) -> Figure | None:
    """Where an iteration of each rank goes: compute, exposed communication, idle."""
    rows = material.metrics.ranks
    if not rows or material.metrics.iteration is None:
        return None
    by_wait = sorted(rows, key=lambda row: -row.exposed_ns)[:RANKS_MOST]
    shown = sorted(by_wait, key=lambda row: row.rank)
    largest = max(row.compute_ns + row.exposed_ns + row.idle_ns for row in shown)
    if largest <= 0:
        return None

    def draw(width: int) -> str:
        narrow = width < 500
        canvas = Canvas(width, 0, "compute, exposed communication and idle time of each rank")
        entries = [("f0", "compute"), ("f1", "exposed communication"), ("idle", "idle")]
        top = 16 + legend(canvas, entries, 12, 14, width - 8)
        each = 22 if len(shown) <= 16 else 15
        left = 84 if narrow else 150
        plot = Plot(left, top, width - 14, top + each * len(shown) + 4)
        canvas.height = plot.bottom + 42
        unit = time_unit(largest)
        x = Linear(0, largest * 1.02, plot.left, plot.right)
        plot.x_axis(canvas, x, unit, f"median over iterations ({unit.name})", 4 if narrow else 10)
        centres = []
        for number, row in enumerate(shown):
            y = plot.top + each * number + 3
            centres.append(y + (each - 5) / 2)
            name = f"{row.rank} {row.host}" if narrow else f"rank {row.rank} on {row.host}"
            slow = "strong" if row.rank == material.metrics.straggler else ""
            canvas.text(left - 8, y + (each + 2) / 2, shortened(name, (left - 10) // 7), slow, "end")
            at = 0.0
            for value, style in ((row.compute_ns, "f0"), (row.exposed_ns, "f1"), (row.idle_ns, "idle")):
                canvas.rect(x(at), y, x(at + value) - x(at), each - 5, style)
                at += value
        return canvas.svg(rows_y=centres)

    said = [_straggler(material)]
    if len(shown) < len(rows):
        said.append(f"The {len(shown)} ranks of {len(rows)} with the most exposed communication; the table has all.")
    return figure(
        "ranks", "Where each rank's time goes",
        "Exposed communication is time in which a rank computes nothing and waits for the network or for a late peer.",
        draw, _rank_table(rows, shown), said,
    )  # fmt: skip


def _straggler(material: Material) -> str:
    metrics = material.metrics
    if metrics.straggler is None:
        return "No rank stands out as the one that is waited for."
    row = metrics.ranks[metrics.straggler]
    return (
        f"Straggler: rank {row.rank} on {row.host}, last in {row.last_ratio:.0%} of collectives, "
        f"{format_ns(row.lateness_ns)} late on average."
    )


def _rank_table(rows: Sequence[RankTimes], shown: Sequence[RankTimes]) -> Table:
    """Those drawn first, in their order, so that a bar finds its row."""
    drawn = {row.rank for row in shown}
    order = [*shown, *(row for row in rows if row.rank not in drawn)]
    return Table(
        ("rank", "host", "compute", "exposed", "idle", "late by", "last in", "sent"),
        tuple(
            (
                str(row.rank), row.host, format_ns(row.compute_ns), format_ns(row.exposed_ns), format_ns(row.idle_ns),
                format_ns(row.lateness_ns), f"{row.last_ratio:.0%}", format_bytes(row.bytes_sent),
            )
            for row in order
        ),
        "medians over measured iterations; late: mean time after the first rank, over collectives",
        names=2,
    )  # fmt: skip
