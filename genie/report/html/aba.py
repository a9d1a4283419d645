"""The report of a baseline/fault/baseline: verdict, recovery, the arms beside each other, the evidence of arm b."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from genie.errors import GenieError
from genie.report.aba import RECOVERED, late_result
from genie.report.html import critical, evidence, messages, series
from genie.report.html.figure import Table
from genie.report.html.material import Material, read_material
from genie.report.html.page import Block, Card, Page, Section
from genie.report.html.run import COLLECTIVES_MOST, facts, network_blocks, written
from genie.report.words import bandwidth, count_of, interval_ns, time_us
from genie.results.aba import ARMS, AbaDir, AbaRecord, AbaResult, ratio_of
from genie.results.compare import Slowdown
from genie.results.statistics import Estimate
from genie.units import format_ns

TONES = {"yes": "ok", "no": "degraded", "inconclusive": "inconclusive"}


def aba_page(folder: AbaDir) -> Page:
    """What the three arms say together. Raises GenieError while it runs, and where no arm got as far as a plan."""
    record = folder.record
    result = record.result or late_result(folder, record)
    arms = dict(_materials(folder))
    if not arms:
        raise GenieError(f"{folder.path}: no arm got as far as a plan, so there is nothing to report")
    first = next(iter(arms.values()))
    sections = [Section("arms", "The three arms", tuple(_arms(result, arms)))]
    sections.append(Section("collectives", "Collectives", tuple(_collectives(arms))))
    sections.append(Section("messages-section", "Messages", tuple(_messages(arms))))
    broken = arms.get("b")
    if broken is not None:
        sections += [
            Section("why", "Critical path of arm b", tuple(critical.why_blocks(broken))),
            Section("network", "Network in arm b", tuple(network_blocks(broken))),
            Section("faults", "Faults", tuple(evidence.fault_blocks(broken))),
            Section("environment", "Environment of arm b", tuple(evidence.environment(broken))),
        ]
    notes = [result.drift] if result.drift else []
    if record.reason:
        notes.append(f"ended early: {record.reason}")
    return Page(
        title=record.name,
        kind="baseline / fault / baseline report",
        verdict=result.verdict,
        why=result.why,
        facts=(*_facts(first, record),),
        reproduce=record.reproduce,
        cards=tuple(_cards(result)),
        sections=tuple(section for section in sections if section.blocks),
        notes=tuple(notes),
        written=written(first.manifest.genie_version, folder.path.name),
        also=((TONES[result.recovered], RECOVERED[result.recovered][0], result.recovered_why),)
        if result.recovered
        else (),
    )


def _materials(folder: AbaDir) -> Iterator[tuple[str, Material]]:
    """Arms that were measured, by name; one that died before it had a plan is in the table of arms only."""
    for name, run in folder.arms().items():
        with contextlib.suppress(GenieError):
            yield name, read_material(run)


def _facts(first: Material, record: AbaRecord) -> Iterator[tuple[str, str]]:
    for name, value in facts(first):
        if name == "faults":
            yield "baseline, then, then baseline", ", ".join(record.faults)
        elif name != "status":
            yield name, value


def _cards(result: AbaResult) -> Iterator[Card]:
    for name, slowdown in (("slowdown, median", result.median), ("slowdown, slowest", result.p99)):
        if slowdown is not None and not math.isnan(slowdown.ratio.value):
            ratio = slowdown.ratio
            more = (f"{ratio.low:.2f} - {ratio.high:.2f}", f"chance makes ±{slowdown.margin_ratio:.0%}")
            yield Card(name, f"{ratio.value:.2f}x", more, slowdown.verdict)
    if result.recovery is not None:
        ratio = result.recovery.ratio
        yield Card("after over before", f"{ratio.value:.2f}x", (f"{ratio.low:.2f} - {ratio.high:.2f}",))
    for arm in result.arms:
        if arm.median is not None:
            yield Card(f"{arm.name}, {ARMS[arm.name]}", format_ns(arm.median.value), (interval_ns(arm.median),))


def ratio_rows(result: AbaResult) -> list[tuple[str, Estimate | None, float | None]]:
    """The ratios of the three arms, in the order of the terminal's report."""

    def judged(name: str, slowdown: Slowdown | None) -> tuple[str, Estimate | None, float | None]:
        return name, ratio_of(slowdown), slowdown.margin_ratio if slowdown else None

    rows = [judged("median, b / (a1 + a2)", result.median), judged("slowest, b / (a1 + a2)", result.p99)]
    rows.append(("exposed communication, b / (a1 + a2)", result.exposed, None))
    for parts in result.windowed:
        rows += [(f"in windows of {parts.fault}", parts.inside, None), ("outside of them", parts.outside, None)]
    return [*rows, judged("median, b / a1", result.over_a1), judged("median, b / a2", result.over_a2),
            judged("recovery: median, a2 / a1", result.recovery)]  # fmt: skip


def _arms(result: AbaResult, arms: dict[str, Material]) -> Iterator[Block]:
    rows = []
    for arm in result.arms:
        times = [format_ns(arm.median.value), interval_ns(arm.median)] if arm.median else ["", ""]
        rows.append(
            (
                arm.name, ARMS[arm.name], arm.status, arm.verdict, *times, format_ns(arm.p99.value) if arm.p99 else "",
                str(arm.iterations), count_of(arm.retransmits), count_of(arm.drops),
            )
        )  # fmt: skip
    head = (
        "arm",
        "what",
        "status",
        "verdict",
        "median",
        "95 % interval",
        "slowest",
        "iterations",
        "retransmits",
        "drops",
    )
    yield Block(table=Table(head, tuple(rows), names=4))
    shown = series.slowdowns(ratio_rows(result), "What the arms say together", "the baselines")
    if shown:
        yield Block(figure=shown)
    each = series.arms(list(arms.items()), ARMS)
    if each is not None:
        yield Block(figure=each)


def _messages(arms: dict[str, Material]) -> Iterator[Block]:
    drawn = {name: found for name, material in arms.items() if (found := messages.read_messages(material)) is not None}
    if not drawn:
        return
    named = [(f"{name}: {ARMS[name]}", found) for name, found in drawn.items()]
    yield Block(figure=messages.distribution(named, arms[next(iter(drawn))]))
    if "b" in drawn:
        for shown in messages.pair_figures(drawn["b"], drawn.get("a1"), arms["b"].plan.world):
            yield Block(figure=shown)


def _collectives(arms: dict[str, Material]) -> Iterator[Block]:
    """Mean times of each row in all arms: a row that one arm has not is empty there."""
    found = {
        name: {(r.kind, r.comm, r.bytes): r for r in material.metrics.collectives} for name, material in arms.items()
    }
    order = list(dict.fromkeys(key for rows in found.values() for key in rows))
    if not order:
        return
    head = (
        "collective",
        "comm (ranks)",
        "size (B)",
        *(f"{name}, mean (us)" for name in found),
        "b / a1",
        "busbw of b (GB/s)",
    )
    lines = []
    for key in order[:COLLECTIVES_MOST]:
        rows = {name: of_arm.get(key) for name, of_arm in found.items()}
        any_row = next(row for row in rows.values() if row is not None)
        before, broken = rows.get("a1"), rows.get("b")
        known = before is not None and broken is not None and before.time_mean_ns > 0
        lines.append(
            (
                key[0] + ("v" if any_row.uneven else ""), f"{key[1] or 'world'} ({any_row.ranks})", str(key[2]),
                *("" if row is None else time_us(row.time_mean_ns) for row in rows.values()),
                f"{broken.time_mean_ns / before.time_mean_ns:.2f}x" if known and broken and before else "",
                "" if broken is None else bandwidth(broken.busbw_gbytes_per_s, broken.bytes),
            )
        )  # fmt: skip
    yield Block(table=Table(head, tuple(lines), names=2))
