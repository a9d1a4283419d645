"""Sections about faults and the environment: what was done, how it was proved, on what machine it ran."""

from __future__ import annotations

from collections.abc import Iterator

from genie.report.html.figure import Canvas, Figure, Plot, Table, figure, path_of
from genie.report.html.material import Material
from genie.report.html.page import Block
from genie.report.html.scale import Linear, time_unit
from genie.report.terminal import evidence_lines, met, when
from genie.results.records import FaultOutcome
from genie.units import format_ns

CHECKS_OPEN = 12
"""More checks than this are folded away below their summary."""
BUSY_LIMIT = 0.80
KINDS = {"in_place": "in place", "exercised": "exercised", "reverted": "reverted"}


def fault_blocks(material: Material) -> Iterator[Block]:
    """For each fault its state, where and when, and each piece of evidence."""
    for fault in material.faults:
        why = fault.why_not_in_effect()
        yield Block(
            heading=f"{fault.name}: {'NOT IN EFFECT' if why else 'in effect'}",
            tone="invalid" if why else "ok",
            sentences=tuple(_said(fault, why, material)),
        )
        lines = tuple(("yes" if ok else "NO", sentence) for ok, sentence in evidence_lines(fault))
        many = len(fault.checks) > len(lines) or len(fault.checks) > CHECKS_OPEN
        if lines:
            yield Block(table=Table(("proved", "evidence"), lines, names=9))
        if many:
            rows = tuple((c.what, c.expected, c.found, KINDS.get(c.kind, c.kind), "yes" if c.ok else "NO")
                         for c in fault.checks)  # fmt: skip
            yield Block(
                table=Table(("what was looked at", "expected", "found", "kind", "proved"), rows, names=9),
                folded=f"Each of the {len(rows)} checks",
            )
        if fault.facts:
            facts = tuple((name, f"{value:.6g}") for name, value in sorted(fault.facts.items()))
            yield Block(table=Table(("fact", "value"), facts), folded=f"{len(facts)} facts that were counted")


def _said(fault: FaultOutcome, why: str, material: Material) -> Iterator[str]:
    if why:
        yield f"Why: {why.rstrip('.')}."
    if fault.hypothesis:
        yield f"Expected: {fault.hypothesis.rstrip('.')}."
    if fault.targets:
        yield f"On {', '.join(fault.targets[:12])}" + (
            f" and {len(fault.targets) - 12} more." if len(fault.targets) > 12 else "."
        )
    placed = when(fault, material.metrics)
    if placed:
        yield f"{'Applied' if why else 'In effect'} {placed}."
    parts = next((found for found in material.metrics.windowed if found.fault == fault.name), None)
    if parts is not None:
        yield f"{met(parts)}."
    yield "Reverted and read back." if fault.reverted else "NOT REVERTED, or nobody could read it back."


# -- environment --------------------------------------------------------------------------------------------------


def environment(material: Material) -> Iterator[Block]:
    """The machine, its load, versions, hashes, placement, the whole configuration."""
    run, manifest, plan = material.run, material.manifest, material.plan
    host = run.host()
    rows = [("GENIE", manifest.genie_version), ("run id", manifest.run_id), ("seed", str(manifest.seed))]
    if host is not None:
        rows += [("kernel", host.kernel or "not recorded"), ("cores it may use", str(host.cores))]
        rows += [(str(name), _short(value)) for name, value in sorted(host.details.items())]
    rows.append(("clocks", _clocks(material)))
    rows += [(f"hash of {name}", value) for name, value in sorted(manifest.hashes.items())]
    yield Block(table=Table(("", ""), tuple(rows), names=9))
    load = cpu_load(material)
    if load is not None:
        yield Block(figure=load)
    placement = tuple((str(rank), name) for rank, name in enumerate(plan.placement))
    yield Block(table=Table(("rank", "host"), placement, names=2), folded=f"Placement of {plan.world} ranks")
    yield Block(code=run.config_yaml, folded="The whole configuration")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 300 else text[:300] + " ..."


def _clocks(material: Material) -> str:
    metrics = material.metrics
    if metrics.one_clock:
        return "one clock for all ranks"
    if metrics.clock_error_ns is None:
        return "hosts have clocks of their own that nobody compared"
    return f"hosts' clocks, moved to one; an instant may be off by {format_ns(metrics.clock_error_ns)}"


def cpu_load(material: Material) -> Figure | None:
    """How busy the cores were that the run may use: above the limit they, not the network, set the pace."""
    host, metrics = material.run.host(), material.metrics
    start, end = metrics.start_mono_ns, metrics.end_mono_ns
    if host is None or start is None or end is None:
        return None
    shown = [((at - start) / metrics.dilation, busy) for at, busy in host.samples if start < at <= end * 1.0]
    if len(shown) < 2:
        return None
    span = (end - start) / metrics.dilation

    def draw(width: int) -> str:
        narrow = width < 500
        canvas = Canvas(width, 196, "share of the cores that was busy over time")
        plot = Plot(48, 32, width - 12, 154)
        x, y, clock = Linear(0, span, plot.left, plot.right), Linear(0, 1, plot.bottom, plot.top), time_unit(span)
        plot.y_axis(canvas, [(y(v), f"{v:.0%}") for v in (0, 0.25, 0.5, 0.75, 1)], "cores busy (share)")
        title = f"time since the start, model time ({clock.name})"
        plot.x_axis(canvas, x, clock, title, 4 if narrow else 10)
        plot.windows(canvas, material.windows, x, named=False)
        if material.plan.shaped:
            canvas.line(plot.left, y(BUSY_LIMIT), plot.right, y(BUSY_LIMIT), "ref")
            canvas.text(plot.right - 4, y(BUSY_LIMIT) - 5, "limit of a valid run, on average", "quiet", "end")
        canvas.path(path_of((x(at), y(min(busy, 1.0))) for at, busy in shown), "l0")
        return canvas.svg(rows_x=[x(at) for at, _ in shown])

    rows = tuple((format_ns(at), f"{busy:.0%}") for at, busy in shown)
    return figure(
        "cpu", "Load of the machine", "Spinning counts as busy: it takes the core from others just the same.", draw,
        Table(("time", "busy"), rows[:1000]),
    )  # fmt: skip
