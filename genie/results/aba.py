"""Baseline, fault, baseline on one fabric: what the fault cost, and whether its end was the end of it.

`genie.aba` runs the three arms and stores an `AbaRecord` as ``aba.json`` in their common folder; `compare_arms` makes
the result from their run directories alone, so ``genie report`` can make it again. Rules: docs/metrics.md, "A/B/A".
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from genie import jsontext
from genie.errors import ConfigError, GenieError
from genie.results import statistics
from genie.results.compare import (
    Judgement,
    Slowdown,
    WindowSlowdown,
    compare,
    load_judgement,
    weigh,
    why_inconclusive,
)
from genie.results.metrics import IterationTimes, Metrics
from genie.results.records import from_plain, to_plain
from genie.results.rundir import RunDir
from genie.results.statistics import Estimate
from genie.results.thresholds import DEFAULT_THRESHOLDS, Thresholds

FILE_NAME = "aba.json"
FORMAT = "genie-aba"
VERSION = 1
ARMS: Mapping[str, str] = {"a1": "baseline before", "b": "with the fault", "a2": "baseline after"}
"""Name of each arm, which is its folder, and what it is, in the order in which they run."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._+=,-]+")


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm as measured. ``status`` is its run's, "missing" if it never began; times in model ns."""

    name: str
    run_id: str
    status: str
    verdict: str
    why: str
    iterations: int = 0
    median: Estimate | None = None
    p99: Estimate | None = None
    exposed: Estimate | None = None
    retransmits: int | None = None
    drops: int | None = None
    cpu_busy_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class AbaResult:
    """What three arms say together.

    ``median``, ``p99``: b over a1 and a2 pooled, judged with the spread that the two baselines show; ``exposed`` the
    same of exposed communication. ``over_a1``, ``over_a2``: b's median over each alone; they decide where the baselines
    are not alike. ``recovery``: a2 over a1; ``recovered`` is "yes", "no", "inconclusive" or "" where an arm is missing.
    ``drift``: how the baselines differ, "" if they don't. ``windowed``: the median in and outside the windows of a
    fault that was not there all the time, over both baselines. None where an arm it needs was not measured.
    """

    verdict: str
    why: str
    faults: tuple[str, ...]
    arms: tuple[Arm, ...]
    median: Slowdown | None = None
    p99: Slowdown | None = None
    exposed: Estimate | None = None
    over_a1: Slowdown | None = None
    over_a2: Slowdown | None = None
    recovery: Slowdown | None = None
    recovery_p99: Slowdown | None = None
    recovered: str = ""
    recovered_why: str = ""
    drift: str = ""
    windowed: tuple[WindowSlowdown, ...] = ()


@dataclass(frozen=True, slots=True)
class AbaRecord:
    """``aba.json``: what was started, and ``result`` once something was measured. ``status`` "running" with no process
    left behind it is a killed one; the arms' own manifests say which of them ended.
    """

    name: str
    status: str
    argv: tuple[str, ...]
    reproduce: str
    seed: int
    created_ns: int
    faults: tuple[str, ...]
    reason: str = ""
    result: AbaResult | None = None
    tracking: Mapping[str, str] = field(default_factory=dict)
    format: str = FORMAT
    version: int = VERSION


class AbaDir:
    """The folder of three arms. Make with `create` or `open`; one process writes, any number read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def create(
        root: Path,
        name: str,
        *,
        argv: Sequence[str],
        reproduce: str,
        seed: int,
        faults: Sequence[str],
        path: Path | None = None,
    ) -> AbaDir:
        """A new folder ``root/<UTC time>-aba-<name>-<4 hex>``, or exactly ``path``; ConfigError if it is taken."""
        now_ns = time.time_ns()
        if path is None:
            stamp = datetime.fromtimestamp(now_ns / 1e9, UTC).strftime("%Y%m%d-%H%M%S")
            path = root / f"{stamp}-aba-{_UNSAFE.sub('_', name)[:80]}-{secrets.token_hex(2)}"
        path = path.absolute()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path} exists and is not an empty directory", key="run_dir")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot create the folder {path}: {error.strerror}", hint="choose another with out=DIR"
            ) from error
        made = AbaDir(path)
        made.write(AbaRecord(name, "running", tuple(argv), reproduce, seed, now_ns, tuple(faults)))
        return made

    @staticmethod
    def open(path: Path) -> AbaDir:
        """An existing folder. Raises GenieError if it is none, or of a version this GENIE does not know."""
        opened = AbaDir(path.absolute())
        record = opened.record
        if record.format != FORMAT or record.version != VERSION:
            raise GenieError(
                f"{path}: format {record.format!r} version {record.version!r}; this GENIE reads {FORMAT!r} {VERSION}"
            )
        return opened

    @property
    def record(self) -> AbaRecord:
        """As on disk now."""
        path = self.path / FILE_NAME
        try:
            content = jsontext.parse(path.read_bytes())
        except (OSError, ValueError) as error:
            raise GenieError(f"{path} cannot be read: {error}") from error
        return from_plain(AbaRecord, content, str(path))

    def write(self, record: AbaRecord) -> None:
        """Replace ``aba.json`` whole."""
        target = self.path / FILE_NAME
        beside = target.with_name(f".{FILE_NAME}.{os.getpid()}.tmp")
        # The keys that name the format come first, as in all of GENIE's files.
        content = {"format": record.format, "version": record.version, **to_plain(record)}
        beside.write_text(json.dumps(content, indent=1) + "\n")
        beside.replace(target)

    def finish(self, status: str, reason: str = "", thresholds: Thresholds = DEFAULT_THRESHOLDS) -> AbaResult:
        """Compare what there is and store it with how it ended ("finished" or "aborted" with the reason)."""
        result = compare_arms(self.arms(), self.record, thresholds)
        self.write(replace(self.record, status=status, reason=reason, result=result))
        return result

    def mark_aborted(self, reason: str) -> None:
        """It ended early, and nothing is compared now: ``genie report`` measures what there is."""
        with contextlib.suppress(OSError):  # where even this cannot be written, its status stays "running"
            self.write(replace(self.record, status="aborted", reason=reason))

    def set_tracking(self, tracking: Mapping[str, str]) -> None:
        """Remember where it was logged (tracking URI, run id)."""
        self.write(replace(self.record, tracking=dict(tracking)))

    def arms(self) -> dict[str, RunDir]:
        """Run directories of the arms that were begun, in order."""
        return {arm: RunDir(self.path / arm) for arm in ARMS if (self.path / arm / "manifest.json").is_file()}


def ratio_of(slowdown: Slowdown | None) -> Estimate | None:
    """Its ratio, where there is one."""
    return slowdown.ratio if slowdown else None


def compare_arms(
    arms: Mapping[str, RunDir], record: AbaRecord, thresholds: Thresholds = DEFAULT_THRESHOLDS
) -> AbaResult:
    """The result of what was measured. Arms that were never measured leave what needs them empty."""
    judged = {name: load_judgement(run) for name, run in arms.items()}
    found = {name: judgement.metrics for name, judgement in judged.items() if judgement is not None}
    rows = tuple(_arm(name, arms.get(name), judged.get(name)) for name in ARMS)
    result = AbaResult("invalid", "", record.faults, rows)
    result = _with_slowdown(result, found, record.seed, thresholds)
    result = _with_recovery(result, found, record.seed, thresholds)
    verdict, why = _verdict(result, thresholds)
    return replace(result, verdict=verdict, why=why)


def _arm(name: str, run: RunDir | None, judgement: Judgement | None) -> Arm:
    if run is None:
        return Arm(name, "", "missing", "", "it was never run")
    status, reason = run.status
    if judgement is None:
        return Arm(name, run.manifest.run_id, status, "", reason or "it was never measured")
    metrics = judgement.metrics
    times = metrics.iteration
    return Arm(
        name,
        run.manifest.run_id,
        status,
        judgement.verdict,
        judgement.why,
        iterations=len(times.each_ns) if times else 0,
        median=times.median if times else None,
        p99=times.p99 if times else None,
        exposed=metrics.exposed,
        retransmits=metrics.fabric.retransmits,
        drops=metrics.fabric.drops,
        cpu_busy_ratio=metrics.cpu_busy_ratio,
    )


def _times(found: Mapping[str, Metrics], *names: str) -> list[IterationTimes]:
    return [times for name in names if name in found and (times := found[name].iteration) is not None]


def _with_slowdown(result: AbaResult, found: Mapping[str, Metrics], seed: int, thresholds: Thresholds) -> AbaResult:
    """B against both baselines, or against the one there is."""
    with_fault, baselines = _times(found, "b"), _times(found, "a1", "a2")
    if not with_fault or not baselines:
        return result
    ours, pool = with_fault[0].each_ns, [times.each_ns for times in baselines]
    count = min(len(ours), sum(map(len, pool)))
    taken = max(metrics.interference.ratio for metrics in found.values())
    median = weigh(
        "median", statistics.pooled_ratio(ours, pool, statistics.rows_median, seed),
        statistics.between_runs([times.median.value for times in baselines], thresholds.median_prior_sd),
        thresholds, count >= thresholds.median_least_iterations, taken,
    )  # fmt: skip
    p99 = weigh(
        "p99", statistics.pooled_ratio(ours, pool, statistics.rows_p99, seed),
        statistics.between_runs([times.p99.value for times in baselines], thresholds.p99_prior_sd),
        thresholds, count >= thresholds.p99_least_iterations, taken,
    )  # fmt: skip
    exposed = None
    waited = [found[name].exposed_ns for name in ("a1", "a2") if name in found and found[name].exposed_ns]
    if found["b"].exposed_ns and statistics.median([each for own in waited for each in own]) > 0:  # NaN of none is not
        exposed = statistics.pooled_ratio(found["b"].exposed_ns, waited, statistics.rows_median, seed)
    windowed = []
    for parts in found["b"].windowed:
        inside, outside = (
            statistics.pooled_ratio(part, pool, statistics.rows_median, seed) if part else None
            for part in parts.split(ours)
        )
        windowed.append(WindowSlowdown(parts.fault, inside, outside))
    alone = {
        name: compare(found["b"], found[name], thresholds=thresholds, seed=seed).median
        for name in ("a1", "a2")
        if _times(found, name)
    }
    return replace(
        result,
        median=median,
        p99=p99,
        exposed=exposed,
        over_a1=alone.get("a1"),
        over_a2=alone.get("a2"),
        windowed=tuple(windowed),
    )


def _with_recovery(result: AbaResult, found: Mapping[str, Metrics], seed: int, thresholds: Thresholds) -> AbaResult:
    """A2 against A1, as a run is compared with its baseline."""
    if len(_times(found, "a1", "a2")) < 2:
        return result
    beside = compare(found["a2"], found["a1"], thresholds=thresholds, seed=seed)
    median, p99 = beside.median, beside.p99
    said = f"a2's median is {median.ratio.value:.2f}x of a1's"
    limit = f"±{max(median.margin_ratio, thresholds.tolerance_ratio):.0%} is chance"
    if "degraded" in (median.verdict, p99.verdict):
        tail = "" if median.verdict == "degraded" else f", its tail {p99.ratio.value:.2f}x"
        recovered, why = "no", f"{said}{tail}: the baseline after the fault is slower than the one before"
    elif median.verdict in ("ok", "improved"):
        recovered, why = "yes", f"{said} ({limit})"
    else:
        recovered, why = "inconclusive", f"{said}, too close to what chance does ({limit}); run more iterations"
    return replace(
        result, recovery=median, recovery_p99=p99, recovered=recovered, recovered_why=why,
        drift=_drift(median, thresholds),
    )  # fmt: skip


def _drift(recovery: Slowdown, thresholds: Thresholds) -> str:
    """A difference of the baselines that neither noise within them nor the tolerance covers."""
    ratio = recovery.ratio
    if math.isnan(ratio.low) or ratio.low <= 1 <= ratio.high:
        return ""
    change = ratio.value - 1
    if 1 / (1 + thresholds.tolerance_ratio) <= ratio.value <= 1 + thresholds.tolerance_ratio:
        return ""
    return (
        f"the baselines differ: a2 took {abs(change):.0%} {'longer' if change > 0 else 'less'} than a1, so something "
        "besides the fault changed, or the fault left something behind; compare b with each of them"
    )


def _verdict(result: AbaResult, thresholds: Thresholds) -> tuple[str, str]:
    # Why it ended early comes before what else is wrong with it.
    ended = [arm for arm in result.arms if arm.status not in ("finished", "missing")]
    missing = [arm for arm in result.arms if arm.status == "missing"]
    invalid = [arm for arm in result.arms if arm.verdict in ("", "invalid")]
    for arm in (*ended, *missing, *invalid):
        return "invalid", f"arm {arm.name} ({ARMS[arm.name]}): {arm.why}"
    median, p99 = result.median, result.p99
    if median is None or p99 is None:
        return "invalid", "no iteration was measured"
    what = "+".join(result.faults) if result.faults != ("none",) else "no fault at all"
    text = f"median {_said(median)}, p99 {_said(p99)} of the baselines"
    if result.recovery and result.recovery.verdict in ("degraded", "improved"):
        return _against_each(result, what)
    if not median.verdict:
        return "inconclusive", f"{text}: {thresholds.too_few}"
    if "degraded" in (median.verdict, p99.verdict):
        tail = "" if median.verdict == "degraded" else ", in the tail only"
        return "degraded", f"slower with {what}{tail}: {text}"
    limit = max(median.margin_ratio, thresholds.tolerance_ratio)
    if median.verdict == "inconclusive":
        return "inconclusive", f"{text}: {why_inconclusive(median, thresholds)}"
    if median.verdict == "improved":
        return "improved", f"faster with {what}: {text}"
    if p99.verdict == "inconclusive" and p99.ratio.value > 1 + max(p99.margin_ratio, thresholds.tolerance_ratio):
        return "inconclusive", f"{text}: {why_inconclusive(p99, thresholds)}"
    return "ok", f"as fast with {what} as without: {text} (±{limit:.0%} is chance)"


def _against_each(result: AbaResult, what: str) -> tuple[str, str]:
    """The baselines are not alike, so together they are none: only what holds against each of them holds."""
    verdicts = {one.verdict for one in (result.over_a1, result.over_a2) if one}
    text = " and ".join(
        f"{_said(one)} of {name}" for name, one in (("a1", result.over_a1), ("a2", result.over_a2)) if one
    )
    words = {"degraded": "slower", "improved": "faster", "ok": "as fast"}
    if len(verdicts) == 1 and (verdict := verdicts.pop()) in words:
        return verdict, f"{words[verdict]} with {what}, whichever baseline is taken (they differ): median {text}"
    return "inconclusive", f"the baselines differ, so they do not tell what {what} does: median {text}"


def _said(slowdown: Slowdown) -> str:
    ratio = slowdown.ratio
    return f"{ratio.value:.2f}x ({ratio.low:.2f} - {ratio.high:.2f})"
