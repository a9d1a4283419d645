"""A report for other programs and for tickets: all numbers as JSON, the essentials as Markdown.

``genie report RUN --json`` and ``--markdown`` call it (`genie.report.command`). Names of numbers are those that
MLflow gets (docs/results-tracking.md), each with its unit; what was not recorded is not there. Never measures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from genie.report.words import count_of, interval_ns
from genie.results.aba import AbaDir
from genie.results.compare import Judgement
from genie.results.records import to_plain
from genie.results.rundir import RunDir
from genie.results.statistics import Estimate
from genie.units import format_bytes, format_ns

ROWS_MOST = 12


def run_json(run: RunDir, judgement: Judgement) -> str:
    """One object: what was run, verdict, ``numbers`` by name, all rows and evidence. Strict JSON: NaN is null."""
    from genie.track import headline

    manifest, plan = run.manifest, run.plan
    status, reason = run.status
    numbers = {name: value for name, value in headline(judgement).items() if not name.startswith("at_a_glance/")}
    content = {
        "format": "genie-report",
        "version": 1,
        "run_id": manifest.run_id,
        "name": manifest.name,
        "run_dir": str(run.path),
        "status": status,
        "reason": reason,
        "verdict": judgement.verdict,
        "why": judgement.why,
        "reproduce": manifest.reproduce,
        "seed": manifest.seed,
        "genie_version": manifest.genie_version,
        "started_ns": manifest.started_ns,
        "ended_ns": manifest.ended_ns,
        "workload": plan.workload,
        "topology": plan.topology,
        "transport": plan.transport,
        "fabric": plan.fabric,
        "ranks": plan.world,
        "placement": plan.placement,
        "dilation": plan.dilation,
        "faults": run.faults(),
        "numbers": numbers,
        "metrics": judgement.metrics,
        "comparison": judgement.comparison,
        "notes": (*judgement.metrics.flags, *plan.notes),
        "hashes": manifest.hashes,
    }
    return _dumped(content)


def aba_json(folder: AbaDir) -> str:
    """``aba.json`` with the result of what there is."""
    from genie.results.aba import compare_arms

    record = folder.record
    result = record.result or compare_arms(folder.arms(), record)
    return _dumped({"format": record.format, "version": record.version, **to_plain(record), "result": result})


def _dumped(content: Mapping[str, Any]) -> str:
    return json.dumps(_finite(to_plain(content)), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """JSON has no NaN; what could not be estimated is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value


# -- Markdown -----------------------------------------------------------------------------------------------------


def run_markdown(run: RunDir, judgement: Judgement) -> str:
    """Verdict, figures, the collectives that take most time, evidence, the line that runs it again."""
    manifest, plan, metrics = run.manifest, run.plan, judgement.metrics
    faults = ", ".join(plan.fault_names) or "no fault"
    lines = [
        f"**{judgement.verdict.upper()}** {_plain(judgement.why)}",
        "",
        _plain(
            f"{plan.workload} on {plan.topology}, {plan.world} ranks, {faults}, {plan.transport} over {plan.fabric}, "
            f"seed {manifest.seed}"
        ),
        "",
        *_table(*_figures(judgement)),
        "",
        *_table(*_collectives(judgement)),
    ]
    fabric = metrics.fabric
    lines += [
        "",
        f"Retransmits {count_of(fabric.retransmits)}, CE marks {count_of(fabric.ce_marked)}, "
        f"drops {count_of(fabric.drops)}.",
    ]
    for fault in run.faults():
        why = fault.why_not_in_effect()
        state = f"NOT IN EFFECT: {why}" if why else "in effect, " + ("reverted" if fault.reverted else "NOT REVERTED")
        lines += ["", f"**{_plain(fault.name)}**: {_plain(state)}", ""]
        lines += [
            f"- {'yes' if c.ok else 'NO'}: {_plain(f'{c.what}: expected {c.expected}, found {c.found}')}"
            for c in fault.checks
        ]
    lines += [f"\nNote: {_plain(note)}" for note in (*metrics.flags, *plan.notes)]
    lines += ["", "Run it again:", "", f"    {manifest.reproduce}"]
    return "\n".join(lines) + "\n"


def aba_markdown(folder: AbaDir) -> str:
    """Verdict, recovery and the arms."""
    from genie.report.aba import aba_markdown as table
    from genie.results.aba import compare_arms

    record = folder.record
    result = record.result or compare_arms(folder.arms(), record)
    return f"{table(result)}\nRun it again:\n\n    {record.reproduce}\n"


def _figures(judgement: Judgement) -> tuple[Sequence[str], list[Sequence[str]]]:
    metrics, comparison = judgement.metrics, judgement.comparison
    found = metrics.iteration
    count = len(found.each_ns) if found else 0
    rows: list[Sequence[str]] = []

    def row(name: str, value: Estimate | None, against: Estimate | None) -> None:
        if value is None:
            return
        beside = "" if against is None or math.isnan(against.value) else f"{against.value:.2f}x"
        interval = interval_ns(value) if count > 1 else "one sample"
        rows.append((name, format_ns(value.value), interval, beside))

    row(
        f"iteration, median of {count}",
        found.median if found else None,
        comparison.median.ratio if comparison else None,
    )
    tail = "p99" if count >= 100 else "slowest"
    row(f"iteration, {tail}", found.p99 if found else None, comparison.p99.ratio if comparison else None)
    row("exposed communication", metrics.exposed, comparison.exposed if comparison else None)
    row("compute", metrics.compute, None)
    return ("", "this run", "95 % interval", "against healthy"), rows


def _collectives(judgement: Judgement) -> tuple[Sequence[str], list[Sequence[str]]]:
    head = ("collective", "comm (ranks)", "size", "calls", "time", "p99", "busbw (GB/s)")
    return head, [
        (
            row.kind + ("v" if row.uneven else ""), f"{row.comm or 'world'} ({row.ranks})", format_bytes(row.bytes),
            str(row.calls), format_ns(row.time_mean_ns), format_ns(row.time_p99_ns), f"{row.busbw_gbytes_per_s:.4f}",
        )
        for row in judgement.metrics.collectives[:ROWS_MOST]
    ]  # fmt: skip


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    yield "| " + " | ".join(head) + " |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield "| " + " | ".join(_plain(cell) for cell in row) + " |"


def _plain(words: str) -> str:
    """Words that Markdown takes as they are: names come from traces and may hold anything."""
    text = " ".join(words.split())
    for sign in "\\`*_[]|":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("&", "&amp;").replace("<", "&lt;")
