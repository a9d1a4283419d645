"""The report that people see in the terminal: verdict first, then numbers, then where everything is.

`genie.experiment` prints it after a run, ``genie report RUN_DIR`` again at any later time. Made from the run directory
alone. Fits 80 columns and reads the same without colour.
"""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from genie.errors import GenieError
from genie.results.collectives import CollectiveRow
from genie.results.compare import Comparison, Judgement, judge_and_store, load_judgement
from genie.results.metrics import Metrics, WindowedTimes
from genie.results.records import Check, FaultOutcome, PlanRecord
from genie.results.rundir import RunDir
from genie.results.statistics import Estimate
from genie.units import format_bytes, format_ns

STYLES = {
    "ok": "bold green",
    "improved": "bold green",
    "measured": "bold cyan",
    "degraded": "bold red",
    "inconclusive": "bold yellow",
    "invalid": "bold magenta",
}
MOST_ROWS = 12
WINDOWS_ALIKE_RATIO = 0.1
"""Windows whose lengths differ by no more than this have one length in the report."""
WIDTH_LEAST = 80


def render(run: RunDir, *, width: int | None = None, color: bool = False) -> str:
    """The report as text; with ANSI colours where ``color``. ``width`` None: the terminal's, at least 80 columns.

    Raises GenieError for a run that still goes on, or ended before it had a plan.
    """
    columns = max(WIDTH_LEAST, width or min(shutil.get_terminal_size((WIDTH_LEAST, 24)).columns, 120))
    out = io.StringIO()
    console = Console(
        file=out, width=columns, force_terminal=color, color_system="standard" if color else None, highlight=False,
        legacy_windows=False, emoji=False, markup=False,
    )  # fmt: skip
    print_report(console, run)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def print_report(console: Console, run: RunDir) -> None:
    """The report on a console of the caller's own. Paths and commands are never folded: people copy them."""
    judgement = load_judgement(run) or _measure_late(run)
    plan, metrics = run.plan, judgement.metrics
    parts: list[RenderableType] = [_verdict_line(judgement), Text(_subtitle(run, plan)), Text("")]
    parts.append(_headline(metrics, judgement.comparison, plan))
    if metrics.collectives:
        parts += [Text(""), _collective_table(metrics.collectives, judgement.comparison)]
        if len(metrics.collectives) > MOST_ROWS:
            left = len(metrics.collectives) - MOST_ROWS
            parts.append(Text(f"  and {left} more rows in results.json; these {MOST_ROWS} took the most time"))
    parts += [Text(""), *_fabric_lines(metrics)]
    faults = run.faults()
    if faults:
        parts += [Text(""), _fault_table(faults, metrics)]
    notes = [*metrics.flags, *plan.notes]
    if notes:
        parts += [Text(""), *(Text(f"note: {note}", style="yellow") for note in notes)]
    console.print(Group(*parts, Text("")))
    for line in _places(run):
        console.print(line, soft_wrap=True)


def _measure_late(run: RunDir) -> Judgement:
    """A run that died before it was measured is measured when somebody asks for its report."""
    status, _ = run.status
    if status in ("created", "running"):
        raise GenieError(f"{run.path} is {status}: there is no report before it ends")
    return judge_and_store(run, runs_root=run.path.parent)


def _verdict_line(judgement: Judgement) -> Text:
    return Text.assemble((judgement.verdict.upper(), STYLES.get(judgement.verdict, "bold")), f"  {judgement.why}")


def _subtitle(run: RunDir, plan: PlanRecord) -> str:
    faults = "+".join(plan.fault_names) or "no fault"
    dilation = f", time dilated {plan.dilation:g}x (all times are model time)" if plan.dilation != 1 else ""
    return (
        f"{plan.workload} on {plan.topology}, {plan.world} ranks, {faults}, {plan.transport} over {plan.fabric}, "
        f"seed {run.manifest.seed}{dilation}"
    )


def _headline(metrics: Metrics, comparison: Comparison | None, plan: PlanRecord) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("this run", justify="right", no_wrap=True)
    table.add_column("95% CI", justify="right", no_wrap=True)
    if comparison:
        table.add_column("vs healthy", justify="right", no_wrap=True)
        table.add_column("95% CI", justify="right", no_wrap=True)

    found = metrics.iteration
    count = len(found.each_ns) if found else 0

    def row(name: str, value: Estimate | None, against: Estimate | None, count: int = count) -> None:
        cells = [
            name,
            "none" if value is None else format_ns(value.value),
            "" if value is None else _interval_ns(value) if count > 1 else "one sample",
        ]
        if comparison:
            cells += _ratio_cells(against)
        table.add_row(*cells)

    tail = "p99" if count >= 100 else "slowest"
    row(
        f"iteration, median of {count}",
        found.median if found else None,
        comparison.median.ratio if comparison else None,
    )
    row(f"iteration, {tail}", found.p99 if found else None, comparison.p99.ratio if comparison else None)
    compared = {parts.fault: parts for parts in comparison.windowed} if comparison else {}
    for parts in metrics.windowed:
        beside = compared.get(parts.fault)
        inside, outside = sum(parts.met), len(parts.met) - sum(parts.met)
        whose = f"{_short(parts.fault, 11)}'s" if len(metrics.windowed) > 1 else "the fault's"
        row(f"in {whose} windows, {inside}", parts.inside, beside.inside if beside else None, inside)
        row(f"outside of them, {outside}", parts.outside, beside.outside if beside else None, outside)
    row("exposed communication", metrics.exposed, comparison.exposed if comparison else None)
    row("compute", metrics.compute, None)
    if plan.predicted_iteration_ns:
        cells = ["predicted, healthy", format_ns(plan.predicted_iteration_ns), ""]
        table.add_row(*cells, *(["", ""] if comparison else []))
    return table


def _ratio_cells(ratio: Estimate | None) -> list[str]:
    if ratio is None or math.isnan(ratio.value):
        return ["", ""]
    return [f"{ratio.value:.2f}x", f"{ratio.low:.2f} - {ratio.high:.2f}"]


def _interval_ns(value: Estimate) -> str:
    low, high = format_ns(value.low), format_ns(value.high)
    if low.split()[-1] == high.split()[-1]:
        return f"{low.split()[0]} - {high}"
    return f"{low} - {high}"


def _collective_table(rows: Sequence[CollectiveRow], comparison: Comparison | None) -> Table:
    ratios = {(r.kind, r.comm, r.bytes): r.ratio for r in comparison.collectives} if comparison else {}
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    titles = (
        "size\n(B)",
        "count\n(calls)",
        "collective\n",
        "comm\n(ranks)",
        "time\n(us)",
        "p99\n(us)",
        "algbw\n(GB/s)",
        "busbw\n(GB/s)",
    )
    for number, title in enumerate(titles):
        table.add_column(title, justify="left" if number in (2, 3) else "right", no_wrap=True)
    if comparison:
        table.add_column("vs\nbase", justify="right", no_wrap=True)
    for row in rows[:MOST_ROWS]:
        cells = [
            f"{row.bytes}",
            f"{row.calls}",
            row.kind + ("v" if row.uneven else ""),
            f"{_short(row.comm or 'world', 10)} ({row.ranks})",
            _us(row.time_mean_ns),
            _us(row.time_p99_ns),
            _gbytes(row.algbw_gbytes_per_s, row),
            _gbytes(row.busbw_gbytes_per_s, row),
        ]
        if comparison:
            cells.append(_ratio_cells(ratios.get((row.kind, row.comm, row.bytes)))[0])
        table.add_row(*cells)
    return table


def _us(ns: float) -> str:
    us = ns / 1000
    return f"{us:.0f}" if us >= 10_000 else f"{us:.1f}" if us >= 100 else f"{us:.2f}"


def _gbytes(value: float, row: CollectiveRow) -> str:
    """GB/s: two decimals as nccl-tests, four significant digits where the emulated links are slower than that shows."""
    if not row.bytes:
        return "-"
    return f"{value:.2f}" if value >= 10 else f"{value:.4f}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 2] + ".."


def _fabric_lines(metrics: Metrics) -> Iterator[Text]:
    fabric = metrics.fabric
    retransmits = _count(fabric.retransmits)
    if fabric.retransmits and fabric.segments_sent:
        retransmits += f" ({fabric.retransmits / fabric.segments_sent:.2%})"
    queue = "not sampled"
    if fabric.queue_p99_bytes is not None:
        queue = f"{format_bytes(fabric.queue_p99_bytes)} at {fabric.queue_p99_port}"
    busy = "not watched" if metrics.cpu_busy_ratio is None else f"{metrics.cpu_busy_ratio:.0%}"
    yield Text.assemble(
        ("network  ", "bold"),
        f"retransmits {retransmits}, CE marks {_count(fabric.ce_marked)}, drops {_count(fabric.drops)}, ",
        f"CPU busy {busy}",
    )
    yield Text(f"         deepest queue p99 {queue}")
    if metrics.clock_error_ns is not None:
        yield Text(
            f"         hosts' clocks are moved to one; instants may be off by {format_ns(metrics.clock_error_ns)}"
        )
    found = metrics.messages
    if found:
        what = "allowed to received" if found.basis == "receiver" else "allowed to handed to the transport"
        yield Text(
            f"         {found.count} messages, {what}: p50 {format_ns(found.p50_ns)}, p99 {format_ns(found.p99_ns)},"
        )
        yield Text(f"         p99.9 {format_ns(found.p999_ns)}, max {format_ns(found.max_ns)}")
    if metrics.straggler is not None:
        rank = metrics.ranks[metrics.straggler]
        yield Text.assemble(
            ("straggler ", "bold"),
            f"rank {rank.rank} on {rank.host}: last in {rank.last_ratio:.0%} of collectives, ",
            f"{format_ns(rank.lateness_ns)} late on average",
        )


def _count(value: int | None) -> str:
    return "not counted" if value is None else f"{value}"


def _fault_table(faults: Sequence[FaultOutcome], metrics: Metrics) -> RenderableType:
    """A block a fault: where and when, then the evidence line by line."""
    blocks: list[RenderableType] = []
    for fault in faults:
        state = ("NOT IN EFFECT", "bold magenta") if fault.why_not_in_effect() else ("in effect", "green")
        places = [_targets(fault), when(fault, metrics)]
        where = ", ".join(part for part in (places[::-1] if len(fault.stretches) > 1 else places) if part)
        blocks.append(Text.assemble(("fault  ", "bold"), f"{fault.name} ", state, f" {where}" if where else ""))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column()
        for ok, sentence in evidence_lines(fault):
            grid.add_row(_yes(ok), sentence)
        parts = next((found for found in metrics.windowed if found.fault == fault.name), None)
        if parts is not None:
            grid.add_row("", met(parts))
        grid.add_row(_yes(fault.reverted), "reverted and read back" + (f": {fault.problem}" if fault.problem else ""))
        blocks.append(Padding(grid, (0, 0, 0, 7)))
    return Group(*blocks)


def evidence_lines(fault: FaultOutcome) -> Iterator[tuple[bool, str]]:
    """The checks in order; those that say the same of several ports share a line. ``faults.json`` has each."""
    groups: dict[tuple[str, bool], list[Check]] = {}
    for check in fault.checks:
        port = next((target for target in fault.targets if target in check.what.split()), "")
        groups.setdefault((check.what.replace(port, "PORT") if port else check.what, check.ok), []).append(check)
    for (what, ok), checks in groups.items():
        what = checks[0].what if len(checks) == 1 else what.replace("PORT", f"{len(checks)} ports")
        expected, found = _distinct(c.expected for c in checks), _distinct(c.found for c in checks)
        yield ok, f"{what}: expected {expected}, found {found}"


def _distinct(texts: Iterable[str]) -> str:
    """Different texts, each once; of many the first and the last in order."""
    found = sorted(set(texts), key=lambda text: (len(text), text))
    return " / ".join(found) if len(found) <= 3 else f"{found[0]} ... {found[-1]}"


def _yes(ok: bool) -> Text:
    return Text("yes", style="green") if ok else Text("NO", style="bold magenta")


def _targets(fault: FaultOutcome) -> str:
    shown = ", ".join(fault.targets[:3])
    return f"on {shown}" + (f" and {len(fault.targets) - 3} more" if len(fault.targets) > 3 else "") if shown else ""


def when(fault: FaultOutcome, metrics: Metrics) -> str:
    """From when to when, or of several windows how many, how long and when the first began, in model time."""
    windows, run_start, run_end = fault.stretches, metrics.start_mono_ns, metrics.end_mono_ns
    if not windows or run_start is None:
        return ""

    def after_start(ns: int) -> str:
        return format_ns((ns - run_start) / metrics.dilation)

    (start, end), first = windows[0], after_start(windows[0][0])
    if len(windows) > 1:
        lengths = sorted((end - start) / metrics.dilation for start, end in windows if end is not None)
        said = [f"{len(windows)} times"]
        if lengths and lengths[-1] - lengths[0] <= WINDOWS_ALIKE_RATIO * lengths[0]:
            said.append(f"{format_ns(lengths[len(lengths) // 2])} each")
        elif lengths:
            said.append(f"{format_ns(lengths[0])} to {format_ns(lengths[-1])} each")
        said.append(f"first at {first}")
        return ", ".join([*said, *(["the last one to the end"] if windows[-1][1] is None else [])])
    begins = "before the start" if start <= run_start else f"{first} after the start"
    ends = "past the end" if end is None or (run_end is not None and end >= run_end) else after_start(end)
    return f"from {begins} to {ends}"


def met(parts: WindowedTimes) -> str:
    """How the iterations in a fault's windows compare with the others of the same run."""
    said = f"{sum(parts.met)} of {len(parts.met)} iterations met its windows"
    if parts.slowdown is None:
        return f"{said}, so that there are none to compare them with"
    ratio = parts.slowdown
    return f"{said}: their median is {ratio.value:.2f}x that of the others ({ratio.low:.2f} - {ratio.high:.2f})"


def _places(run: RunDir) -> Iterator[Text]:
    manifest = run.manifest
    places = [("run", shown_path(run.path))]
    if run.timeline_path.is_file():
        places.append(("timeline", f"open https://ui.perfetto.dev and drop {shown_path(run.timeline_path)} on it"))
    if (run.path / "report.html").is_file():
        places.append(("page", shown_path(run.path / "report.html")))
    if manifest.tracking:
        places.append(("mlflow", manifest.tracking.get("look", manifest.tracking.get("uri", ""))))
    places.append(("again", manifest.reproduce))
    for name, text in places:
        yield Text.assemble((f"{name:<10}", "bold"), text)


def shown_path(path: Path) -> str:
    """Relative to the working directory where that is shorter."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
