"""The report of one run: verdict, figures, charts, evidence, environment, in that order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime

from genie.report.html import critical, evidence, messages, ports, series
from genie.report.html.figure import Table
from genie.report.html.material import Material, read_baseline, read_material
from genie.report.html.page import Block, Card, Page, Section
from genie.report.words import bandwidth, count_of, interval_ns, time_us
from genie.results.compare import Comparison
from genie.results.metrics import Metrics
from genie.results.rundir import RunDir
from genie.results.statistics import Estimate
from genie.units import format_bytes, format_ns

COLLECTIVES_MOST = 200
COLLECTIVE_HEAD = (
    "collective", "comm (ranks)", "size (B)", "count (calls)", "time (us)", "p99 (us)", "transfer (us)", "skew (us)",
    "algbw (GB/s)", "busbw (GB/s)",
)  # fmt: skip


def run_page(run: RunDir) -> Page:
    """Everything that is known of a run. Raises GenieError where there is no report: it runs, or never had a plan."""
    material = read_material(run)
    baseline = read_baseline(material)
    sections = [
        Section("figures", "Figures", tuple(_figures(material))),
        Section("iterations-section", "Iterations", tuple(_iterations(material, baseline))),
        Section("why", "Critical path", tuple(critical.why_blocks(material))),
        Section("collectives", "Collectives", tuple(_collectives(material))),
        Section("messages-section", "Messages", tuple(_messages(material, baseline))),
        Section("network", "Network", tuple(network_blocks(material))),
        Section("faults", "Faults", tuple(evidence.fault_blocks(material))),
        Section("environment", "Environment", tuple(evidence.environment(material))),
    ]
    return Page(
        title=material.manifest.name,
        kind="run report",
        verdict=material.judgement.verdict,
        why=material.judgement.why,
        facts=tuple(facts(material)),
        reproduce=material.manifest.reproduce,
        cards=tuple(_cards(material)),
        sections=tuple(section for section in sections if section.blocks),
        notes=(*material.metrics.flags, *material.plan.notes),
        written=written(material.manifest.genie_version, run.path.name),
    )


def written(version: str, where: str) -> str:
    """The last line: by what, from what."""
    return f"Written by GENIE {version} from the run directory {where}; docs/metrics.md says what each number is."


def facts(material: Material) -> Iterator[tuple[str, str]]:
    """What was run, in pairs."""
    plan, manifest = material.plan, material.manifest
    yield "workload", plan.workload
    yield "topology", plan.topology
    yield "ranks", str(plan.world)
    yield "faults", ", ".join(plan.fault_names) or "none"
    yield "transport", f"{plan.transport} over {plan.fabric}"
    yield "seed", str(manifest.seed)
    if plan.dilation != 1:
        yield "time", f"dilated {plan.dilation:g}x; all times are model time"
    if manifest.started_ns is not None:
        yield "started", f"{datetime.fromtimestamp(manifest.started_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    status, reason = material.run.status
    if status != "finished":
        yield "status", f"{status}: {reason}" if reason else status


# -- headline -----------------------------------------------------------------------------------------------------


def _cards(material: Material) -> Iterator[Card]:
    metrics, comparison = material.metrics, material.judgement.comparison
    found = metrics.iteration
    if found is not None:
        count = len(found.each_ns)
        tail = "p99" if count >= 100 else "slowest"
        median, p99 = (comparison.median, comparison.p99) if comparison else (None, None)
        yield _time_card(f"iteration, median of {count}", found.median, count, median.ratio if median else None,
                         median.verdict if median else "")  # fmt: skip
        yield _time_card(f"iteration, {tail}", found.p99, count, p99.ratio if p99 else None, p99.verdict if p99 else "")
        if metrics.exposed:
            against = comparison.exposed if comparison else None
            yield _time_card("exposed communication", metrics.exposed, count, against, "")
        if metrics.compute:
            yield _time_card("compute", metrics.compute, count, None, "")
    fabric = metrics.fabric
    yield Card("retransmits", count_of(fabric.retransmits), tuple(_share(metrics)))
    yield Card("CE marks", count_of(fabric.ce_marked), (f"drops {count_of(fabric.drops)}",))
    if fabric.queue_p99_bytes is not None:
        yield Card("deepest queue, p99", format_bytes(fabric.queue_p99_bytes), (f"at {fabric.queue_p99_port}",))
    if metrics.cpu_busy_ratio is not None:
        yield Card("CPU busy", f"{metrics.cpu_busy_ratio:.0%}", ("of the cores the run may use",))


def _time_card(name: str, value: Estimate, count: int, ratio: Estimate | None, verdict: str) -> Card:
    more = [interval_ns(value) if count > 1 else "one sample"]
    if ratio is not None and not math.isnan(ratio.value):
        more.append(f"{ratio.value:.2f}x healthy ({ratio.low:.2f} - {ratio.high:.2f})")
    return Card(name, format_ns(value.value), tuple(more), verdict)


def _share(metrics: Metrics) -> Iterator[str]:
    fabric = metrics.fabric
    if fabric.retransmits is not None and fabric.segments_sent:
        yield f"{fabric.retransmits / fabric.segments_sent:.2%} of segments"


def _figures(material: Material) -> Iterator[Block]:
    comparison = material.judgement.comparison
    yield Block(table=_figure_table(material, comparison))
    rows = series.slowdown_rows(material)
    if rows and comparison:
        shown = series.slowdowns(rows, "Against the healthy run", "the healthy run")
        if shown:
            count = comparison.healthy_runs
            said = (
                f"Baseline: {comparison.baseline}; chance is judged from {count} healthy run{'s' if count > 1 else ''}."
            )
            yield Block(sentences=(said,), figure=shown)


def _figure_table(material: Material, comparison: Comparison | None) -> Table:
    metrics, plan = material.metrics, material.plan
    found = metrics.iteration
    count = len(found.each_ns) if found else 0
    rows: list[tuple[str, ...]] = []

    def row(name: str, value: Estimate | None, against: Estimate | None, count: int = count) -> None:
        cells = [name, "none", ""]
        if value is not None:
            cells[1:] = [format_ns(value.value), interval_ns(value) if count > 1 else "one sample"]
        if comparison:
            known = against is not None and not math.isnan(against.value)
            cells += (
                [f"{against.value:.2f}x", f"{against.low:.2f} - {against.high:.2f}"] if known and against else ["", ""]
            )
        rows.append(tuple(cells))

    tail = "p99" if count >= 100 else "slowest"
    row(
        f"iteration, median of {count}",
        found.median if found else None,
        comparison.median.ratio if comparison else None,
    )
    row("iteration, mean", found.mean if found else None, None)
    row(f"iteration, {tail}", found.p99 if found else None, comparison.p99.ratio if comparison else None)
    compared = {parts.fault: parts for parts in comparison.windowed} if comparison else {}
    for parts in metrics.windowed:
        beside = compared.get(parts.fault)
        inside, outside = sum(parts.met), len(parts.met) - sum(parts.met)
        row(f"in windows of {parts.fault}, {inside}", parts.inside, beside.inside if beside else None, inside)
        row(f"outside of them, {outside}", parts.outside, beside.outside if beside else None, outside)
    row("exposed communication", metrics.exposed, comparison.exposed if comparison else None)
    row("compute", metrics.compute, None)
    if plan.predicted_iteration_ns:
        rows.append(
            ("predicted, healthy", format_ns(plan.predicted_iteration_ns), "", *(["", ""] if comparison else []))
        )
    head = ("", "this run", "95 % interval", *(("against healthy", "95 % interval") if comparison else ()))
    return Table(head, tuple(rows))


# -- sections -----------------------------------------------------------------------------------------------------


def _iterations(material: Material, baseline: Material | None) -> Iterator[Block]:
    for shown in (series.iterations(material, baseline), series.ranks(material)):
        if shown is not None:
            yield Block(figure=shown)


def _messages(material: Material, baseline: Material | None) -> Iterator[Block]:
    own = messages.read_messages(material)
    if own is None:
        yield Block(sentences=("No message was recorded (record.messages).",))
        return
    series_shown, beside = [("this run", own)], None
    if baseline is not None:
        beside = messages.read_messages(baseline)
        if beside is not None and beside.basis == own.basis:
            series_shown.append(("healthy run", beside))
    yield Block(figure=messages.distribution(series_shown, material))
    alike = baseline is not None and baseline.plan.placement == material.plan.placement
    for shown in messages.pair_figures(own, beside if alike else None, material.plan.world):
        yield Block(figure=shown)


def network_blocks(material: Material) -> Iterator[Block]:
    """Queues and links over time."""
    found = ports.read_series(material)
    if found is None:
        yield Block(sentences=("Ports were not sampled over time on this fabric.",))
        return
    for shown in (ports.queues(material, found), ports.links(material, found)):
        if shown is not None:
            yield Block(figure=shown)


def _collectives(material: Material) -> Iterator[Block]:
    rows = material.metrics.collectives
    if not rows:
        return
    comparison = material.judgement.comparison
    ratios = {(r.kind, r.comm, r.bytes): r.ratio for r in comparison.collectives} if comparison else {}
    head = [*COLLECTIVE_HEAD, *(["vs healthy"] if comparison else [])]
    lines = []
    for row in rows[:COLLECTIVES_MOST]:
        cells = [
            row.kind + ("v" if row.uneven else ""),
            f"{row.comm or 'world'} ({row.ranks})",
            str(row.bytes),
            str(row.calls),
            *map(time_us, (row.time_mean_ns, row.time_p99_ns, row.transfer_median_ns, row.skew_median_ns)),
            bandwidth(row.algbw_gbytes_per_s, row.bytes),
            bandwidth(row.busbw_gbytes_per_s, row.bytes),
        ]
        if comparison:
            ratio = ratios.get((row.kind, row.comm, row.bytes))
            cells.append("" if ratio is None or math.isnan(ratio.value) else f"{ratio.value:.2f}x")
        lines.append(tuple(cells))
    note = (
        "columns of nccl-tests, what takes most time first; time is the mean over calls and ranks and has the waiting "
        "for late ranks in it, transfer has not"
    )
    if len(rows) > COLLECTIVES_MOST:
        note += f"; {len(rows) - COLLECTIVES_MOST} more rows are in results.json"
    yield Block(table=Table(tuple(head), tuple(lines), note, names=2))
