"""The report of a baseline/fault/baseline: verdict and recovery first, then the three arms, then where everything is.

`genie.aba` prints it after the last arm, ``genie report DIR`` again at any later time. Made from ``aba.json`` and the
arms' run directories alone. Fits 80 columns.
"""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from genie.errors import GenieError
from genie.report.terminal import STYLES, WIDTH_LEAST, shown_path
from genie.results.aba import ARMS, AbaDir, AbaRecord, AbaResult, Arm, compare_arms, ratio_of
from genie.results.compare import Slowdown, judge_and_store, load_judgement
from genie.results.rundir import is_alive
from genie.results.statistics import Estimate
from genie.units import format_ns

PLACES = {"a1": "before", "b": "fault", "a2": "after"}
RECOVERED = {
    "yes": ("RECOVERED", "bold green"),
    "no": ("NOT RECOVERED", "bold red"),
    "inconclusive": ("RECOVERY NOT CLEAR", "bold yellow"),
}


def render_aba(folder: AbaDir, *, width: int | None = None, color: bool = False) -> str:
    """The report as text; ``width`` None: the terminal's, at least 80 columns. Raises GenieError while it runs."""
    columns = max(WIDTH_LEAST, width or min(shutil.get_terminal_size((WIDTH_LEAST, 24)).columns, 120))
    out = io.StringIO()
    console = Console(
        file=out, width=columns, force_terminal=color, color_system="standard" if color else None, highlight=False,
        legacy_windows=False, emoji=False, markup=False,
    )  # fmt: skip
    print_aba(console, folder)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def print_aba(console: Console, folder: AbaDir) -> None:
    """The report on a console of the caller's own."""
    record = folder.record
    result = record.result or late_result(folder, record)
    parts: list[RenderableType] = [
        Text.assemble((result.verdict.upper(), STYLES.get(result.verdict, "bold")), f"  {result.why}")
    ]
    if result.recovered:
        parts.append(Text.assemble(RECOVERED[result.recovered], f"  {result.recovered_why}"))
    if record.reason:
        parts.append(Text(f"ended early: {record.reason}", style="bold magenta"))
    parts += [Text(_subtitle(folder, record)), Text(""), _arms_table(result)]
    if result.median:
        parts += [Text(""), _ratio_table(result)]
    faults = list(_fault_lines(folder))
    if faults:
        parts += [Text(""), *faults]
    if result.drift:
        parts += [Text(""), Text(f"warning: {result.drift}", style="yellow")]
    console.print(Group(*parts, Text("")))
    for line in _places(folder, record):
        console.print(line, soft_wrap=True)


def late_result(folder: AbaDir, record: AbaRecord) -> AbaResult:
    """The result of one whose process died: arms that ended are measured, what is missing is said."""
    arms = folder.arms()
    if record.status == "running" and any(
        run.manifest.status in ("created", "running") and is_alive(run.manifest) for run in arms.values()
    ):
        raise GenieError(f"{folder.path} is running: there is no report before it ends")
    for run in arms.values():
        if load_judgement(run) is None and (run.path / "plan.json").is_file():
            try:
                judge_and_store(run, runs_root=folder.path, baseline="none")
            except GenieError:
                continue  # its row says how it ended; it died before there was anything to measure
    return compare_arms(arms, record)


def _subtitle(folder: AbaDir, record: AbaRecord) -> str:
    for run in folder.arms().values():
        if (run.path / "plan.json").is_file():
            plan = run.plan
            dilation = f", time dilated {plan.dilation:g}x (all times are model time)" if plan.dilation != 1 else ""
            return (
                f"{plan.workload} on {plan.topology}, {plan.world} ranks, baseline / {'+'.join(record.faults)} / "
                f"baseline, {plan.transport} over one {plan.fabric} fabric, seed {record.seed}{dilation}"
            )
    return f"baseline / {'+'.join(record.faults)} / baseline, seed {record.seed}"


def _arms_table(result: AbaResult) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    for number, heading in enumerate(("arm", "", "median", "95% CI", _tail(result), "count", "resent", "drops")):
        table.add_column(heading, justify="left" if number < 2 else "right", no_wrap=True)
    for arm in result.arms:
        table.add_row(arm.name, *_arm_cells(arm))
    return table


def _tail(result: AbaResult) -> str:
    """With fewer than 100 iterations p99 is the slowest one (docs/metrics.md)."""
    return "p99" if all(arm.iterations >= 100 for arm in result.arms) else "slowest"


def _arm_cells(arm: Arm) -> list[str | Text]:
    what = PLACES[arm.name]
    if arm.median is None or arm.p99 is None:
        return [what, Text(arm.status, style="bold magenta"), "", "", "", "", ""]
    interval = "one sample" if arm.iterations < 2 else _interval_ns(arm.median)
    return [
        what,
        format_ns(arm.median.value),
        interval,
        format_ns(arm.p99.value),
        str(arm.iterations),
        _count(arm.retransmits),
        _count(arm.drops),
    ]


def _interval_ns(value: Estimate) -> str:
    low, high = format_ns(value.low), format_ns(value.high)
    same = low.split()[-1] == high.split()[-1]
    return f"{low.split()[0]} - {high}" if same else f"{low} - {high}"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _ratio_table(result: AbaResult) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for heading in ("ratio", "95% CI", "chance"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows: tuple[tuple[str, Estimate | None, Slowdown | None], ...] = (
        ("median, b / (a1 + a2)", ratio_of(result.median), result.median),
        (f"{_tail(result)}, b / (a1 + a2)", ratio_of(result.p99), result.p99),
        ("exposed communication, b / (a1 + a2)", result.exposed, None),
        *_windowed_rows(result),
        ("median, b / a1", ratio_of(result.over_a1), result.over_a1),
        ("median, b / a2", ratio_of(result.over_a2), result.over_a2),
        ("median, a2 / a1", ratio_of(result.recovery), result.recovery),
    )
    for name, ratio, judged in rows:
        if ratio is not None and not math.isnan(ratio.value):
            chance = f"±{judged.margin_ratio:.0%}" if judged else ""
            table.add_row(name, f"{ratio.value:.2f}x", f"{ratio.low:.2f} - {ratio.high:.2f}", chance)
    return table


def _windowed_rows(result: AbaResult) -> Iterator[tuple[str, Estimate | None, None]]:
    for parts in result.windowed:
        whose = f"{parts.fault[:20]}'s" if len(result.windowed) > 1 else "the fault's"
        yield f"median in {whose} windows, b / (a1 + a2)", parts.inside, None
        yield "median outside them, b / (a1 + a2)", parts.outside, None


def _fault_lines(folder: AbaDir) -> Iterator[Text]:
    """What became of the faults of arm b; the evidence itself is in that arm's own report."""
    run = folder.arms().get("b")
    for fault in run.faults() if run else ():
        why = fault.why_not_in_effect()
        state = ("in effect", "green")
        if why:  # an arm that was aborted ended before its faults could be proved
            state = ("NOT IN EFFECT" if fault.checks else "NOT PROVED", "bold magenta")
        said = f": {why}" if why and fault.checks else ""
        back = "reverted and read back" if fault.reverted else "NOT REVERTED"
        yield Text.assemble(("fault  ", "bold"), f"{fault.name} ", state, f", {back}{said}")


def _places(folder: AbaDir, record: AbaRecord) -> Iterator[Text]:
    path = shown_path(folder.path)
    page = [("page", f"{path}/report.html")] if (folder.path / "report.html").is_file() else []
    places = [("run", path), *page, ("arms", f"genie report {path}/b (and a1, a2)")]
    if record.tracking:
        places.append(("mlflow", record.tracking.get("look", record.tracking.get("uri", ""))))
    places.append(("again", record.reproduce))
    for name, text in places:
        yield Text.assemble((f"{name:<10}", "bold"), text)


def aba_markdown(result: AbaResult) -> str:
    """Verdict, recovery and a table of the arms, for MLflow's note of the parent run."""
    lines = [f"**{result.verdict.upper()}** {result.why}", ""]
    if result.recovered:
        lines += [f"**{RECOVERED[result.recovered][0]}** {result.recovered_why}", ""]
    if result.drift:
        lines += [f"Warning: {result.drift}", ""]
    lines += ["| arm | | status | verdict | median | p99 |", "|---|---|---|---|---|---|"]
    for arm in result.arms:
        times = [format_ns(value.value) if value else "" for value in (arm.median, arm.p99)]
        lines.append(f"| {arm.name} | {ARMS[arm.name]} | {arm.status} | {arm.verdict} | {' | '.join(times)} |")
    return "\n".join(lines) + "\n"
