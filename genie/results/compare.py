"""Is this run slower than a healthy one, and may its numbers be believed at all?

`judge` is what `genie.experiment` and ``genie report`` call: it looks for the baseline, compares, and gives the
verdict with the reason in words. The rules and why they are these: docs/metrics.md, "Verdict". Pure but for reading
run directories.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genie.errors import ConfigError, GenieError
from genie.results import statistics
from genie.results.collectives import CollectiveRow
from genie.results.interference import widened
from genie.results.metrics import Metrics, measure
from genie.results.records import FaultOutcome, from_plain
from genie.results.rundir import RunDir, find_runs
from genie.results.statistics import Estimate, Spread
from genie.results.thresholds import DEFAULT_THRESHOLDS, Thresholds
from genie.units import format_ns

VERDICTS = ("measured", "ok", "degraded", "improved", "inconclusive", "invalid")
_UNFIT_BASELINES = ("invalid", "degraded", "inconclusive")
BASELINES_USED = 10


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A number of this run over the baseline's (above 1: slower). ``margin_ratio`` is what chance may do between
    runs; ``verdict`` "ok", "degraded", "improved", "inconclusive", or "" where it is not judged (too few values).
    ``effect_sd`` is the effect size: the ratio's logarithm in standard deviations of the difference between two healthy
    runs.
    """

    name: str
    ratio: Estimate
    margin_ratio: float
    verdict: str
    effect_sd: float | None = None


@dataclass(frozen=True, slots=True)
class RowSlowdown:
    """The mean time of one row of the collective table over the baseline's; for reading, not judged."""

    kind: str
    comm: str
    bytes: int
    ratio: Estimate


@dataclass(frozen=True, slots=True)
class KindSlowdown:
    """All time that ranks spent in collectives of one kind, over the baseline's, for reading; of the rows both have."""

    kind: str
    ratio: Estimate


@dataclass(frozen=True, slots=True)
class WindowSlowdown:
    """Median iteration in and outside the windows of a fault, each over the baseline's median; for reading, not judged.
    None: there is no such iteration.
    """

    fault: str
    inside: Estimate | None
    outside: Estimate | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """This run against its baseline. ``healthy_runs`` is how many healthy runs the margins come from. ``taken_ratio``:
    what others took of the processors in the worse of the two runs, where it widened the margins; else 0.
    """

    baseline: str
    baseline_run_id: str
    healthy_runs: int
    median: Slowdown
    p99: Slowdown
    exposed: Estimate | None
    collectives: tuple[RowSlowdown, ...]
    windowed: tuple[WindowSlowdown, ...] = ()
    kinds: tuple[KindSlowdown, ...] = ()
    taken_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """``results.json``: metrics, comparison (None without a baseline), the verdict and why, in words."""

    verdict: str
    why: str
    metrics: Metrics
    comparison: Comparison | None


def load_judgement(run: RunDir) -> Judgement | None:
    """What `judge` said when the run was measured; None if it never was."""
    content = run.results()
    return None if content is None else from_plain(Judgement, content, str(run.path / "results.json"))


def find_baselines(run: RunDir, runs_root: Path) -> list[RunDir]:
    """Healthy finished runs with the same hashes, newest first; never the run itself."""
    own = run.manifest
    found = []
    for other in find_runs(runs_root):
        manifest = other.manifest
        if (
            other.path != run.path
            and manifest.run_id != own.run_id
            and dict(manifest.hashes) == dict(own.hashes)
            and _is_healthy(other)
        ):
            found.append(other)
    return found


def find_baseline(run: RunDir, runs_root: Path) -> RunDir | None:
    """The newest of `find_baselines`."""
    return next(iter(find_baselines(run, runs_root)), None)


def compare(
    run: Metrics,
    baseline: Metrics,
    *,
    name: str = "",
    run_id: str = "",
    healthy: Sequence[Metrics] = (),
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    seed: int = 1,
) -> Comparison:
    """Compare two measured runs. ``healthy`` are further healthy runs: with more of them the margins tighten.

    Raises GenieError where either has no measured iteration.
    """
    if run.iteration is None or baseline.iteration is None:
        raise GenieError("a run without a measured iteration cannot be compared")
    pool = [m.iteration for m in (baseline, *healthy) if m.iteration is not None]
    ours, theirs = run.iteration.each_ns, baseline.iteration.each_ns
    count = min(len(ours), len(theirs))
    enough, tail_enough = count >= thresholds.median_least_iterations, count >= thresholds.p99_least_iterations
    taken = max(run.interference.ratio, baseline.interference.ratio)
    median = weigh(
        "median", statistics.ratio(ours, theirs, statistics.rows_median, seed),
        statistics.between_runs([i.median.value for i in pool], thresholds.median_prior_sd), thresholds, enough, taken,
    )  # fmt: skip
    p99 = weigh(
        "p99", statistics.ratio(ours, theirs, statistics.rows_p99, seed),
        statistics.between_runs([i.p99.value for i in pool], thresholds.p99_prior_sd), thresholds, tail_enough, taken,
    )  # fmt: skip
    exposed = None
    if run.exposed_ns and baseline.exposed_ns and statistics.median(baseline.exposed_ns) > 0:
        exposed = statistics.ratio(run.exposed_ns, baseline.exposed_ns, statistics.rows_median, seed)
    base_rows = {(row.kind, row.comm, row.bytes): row for row in baseline.collectives}
    rows = []
    for row in run.collectives:
        twin = base_rows.get((row.kind, row.comm, row.bytes))
        if twin is not None and twin.time_mean_ns > 0:
            ratio = statistics.ratio(row.by_iteration_ns, twin.by_iteration_ns, statistics.rows_mean, seed)
            rows.append(RowSlowdown(row.kind, row.comm, row.bytes, ratio))
    windowed = []
    for parts in run.windowed:
        inside, outside = (
            statistics.ratio(part, theirs, statistics.rows_median, seed) if part else None for part in parts.split(ours)
        )
        windowed.append(WindowSlowdown(parts.fault, inside, outside))
    return Comparison(
        name, run_id, len(pool), median, p99, exposed, tuple(rows), tuple(windowed), _kinds(run, base_rows, seed),
        taken if taken > thresholds.interference_ratio else 0.0,
    )  # fmt: skip


def _kinds(run: Metrics, twins: Mapping[tuple[str, str, int], CollectiveRow], seed: int) -> tuple[KindSlowdown, ...]:
    found: dict[str, list[tuple[CollectiveRow, CollectiveRow]]] = {}
    for row in run.collectives:
        if twin := twins.get((row.kind, row.comm, row.bytes)):
            found.setdefault(row.kind, []).append((row, twin))
    kinds = []
    for kind, pairs in found.items():
        ours, theirs = (_together([pair[side] for pair in pairs]) for side in (0, 1))
        if ours and theirs and min(theirs) > 0:
            kinds.append(KindSlowdown(kind, statistics.ratio(ours, theirs, statistics.rows_mean, seed)))
    return tuple(kinds)


def _together(rows: Sequence[CollectiveRow]) -> list[float]:
    """Time in calls of these rows, iteration by iteration; of each row its mean, as often as it is called in one."""
    length = min(len(row.by_iteration_ns) for row in rows)
    counts = [row.calls / len(row.by_iteration_ns) for row in rows]
    return [sum(row.by_iteration_ns[i] * count for row, count in zip(rows, counts, strict=True)) for i in range(length)]


def weigh(
    name: str, ratio: Estimate, spread: Spread, thresholds: Thresholds, judged: bool, taken: float = 0.0
) -> Slowdown:
    """A ratio with its verdict: what of its interval lies beyond what chance does. "" where not ``judged``.

    ``taken`` is what others took of the processors. It widens that, but calls nothing equal: what only the wider limit
    explains is inconclusive.
    """
    margin = widened(spread.margin_ratio, taken, thresholds.interference_ratio)
    verdict = ""
    if judged and not math.isnan(ratio.low):
        verdict, wide = (_side(ratio, limit, thresholds) for limit in (spread.margin_ratio, margin))
        verdict = verdict if verdict == wide else "inconclusive"
    effect = spread.effect(ratio.value)
    return Slowdown(name, ratio, margin, verdict, None if math.isnan(effect) else effect)


def _side(ratio: Estimate, margin: float, thresholds: Thresholds) -> str:
    limit = 1 + max(thresholds.tolerance_ratio, margin)
    if ratio.low > max(limit, thresholds.degraded_limit):
        return "degraded"
    if ratio.high < 1 / limit:
        return "improved"
    return "ok" if ratio.low >= 1 / limit and ratio.high <= limit else "inconclusive"


def judge(
    run: RunDir,
    metrics: Metrics,
    *,
    runs_root: Path,
    baseline: str = "auto",
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
) -> Judgement:
    """The verdict of a run. ``baseline`` is "auto" (search ``runs_root``), "none", or as `named_baseline` takes it.

    Raises GenieError for a named baseline that is not a measured healthy run of the same configuration.
    """
    baselines = _baselines(run, runs_root, baseline)
    comparison, twin = None, None
    measured = [(other, found) for other in baselines if (found := _metrics_of(other, baseline)) is not None]
    if measured and metrics.iteration is not None:
        (first, twin), rest = measured[0], measured[1:]
        comparison = compare(
            metrics, twin, name=first.path.name, run_id=first.manifest.run_id, healthy=[m for _, m in rest],
            thresholds=thresholds, seed=run.manifest.seed,
        )  # fmt: skip
    faults = run.faults()
    unfit = _why_invalid(run, metrics, faults, twin, thresholds)
    if unfit:
        return Judgement("invalid", unfit, metrics, comparison)
    if comparison is None:
        return Judgement("measured", _without_baseline(faults, baseline), metrics, None)
    verdict, why = _verdict(comparison, metrics, thresholds)
    return Judgement(verdict, why, metrics, comparison)


def judge_and_store(
    run: RunDir, *, runs_root: Path, baseline: str = "auto", thresholds: Thresholds = DEFAULT_THRESHOLDS
) -> Judgement:
    """`measure` and `judge` a run, write ``results.json``, note the verdict in the manifest."""
    judgement = judge(run, measure(run), runs_root=runs_root, baseline=baseline, thresholds=thresholds)
    run.write_results({"verdict": judgement.verdict, "why": judgement.why, **_content(judgement)})
    run.set_verdict(judgement.verdict)
    return judgement


def _content(judgement: Judgement) -> dict[str, Any]:
    return {"metrics": judgement.metrics, "comparison": judgement.comparison}


def _metrics_of(other: RunDir, baseline: str) -> Metrics | None:
    """What a baseline measured; None where it measured nothing. One that was only found, not named, and whose files are
    damaged is passed over, as one that is none is.
    """
    try:
        found = load_judgement(other)
    except GenieError:
        if baseline == "auto":
            return None
        raise
    return found.metrics if found is not None and found.metrics.iteration is not None else None


def _baselines(run: RunDir, runs_root: Path, baseline: str) -> list[RunDir]:
    if baseline == "none":
        return []
    found = find_baselines(run, runs_root)[:BASELINES_USED]
    if baseline == "auto":
        return found
    named = named_baseline(baseline, run.manifest.hashes, runs_root)
    return [named, *(one for one in found if one.manifest.run_id != named.manifest.run_id)]


def named_baseline(baseline: str, hashes: Mapping[str, str], runs_root: Path) -> RunDir:
    """The run that ``baseline=`` names, if a run of ``hashes`` may be compared with it.

    It is a directory, or the ``name=`` of runs below ``runs_root``, of which the newest that fits.

    Raises ConfigError: there is no such run, or it is not healthy, not measured, or ran something else.
    """
    named = _named(baseline, hashes, runs_root)
    manifest = named.manifest
    if manifest.faults:
        raise ConfigError(f"{baseline} is not healthy: it had {', '.join(manifest.faults)}", key="baseline")
    if named.status[0] != "finished" or manifest.verdict in _UNFIT_BASELINES:
        raise ConfigError(
            f"{baseline} is of no use: it is {named.status[0]}, verdict {manifest.verdict or 'none'}", key="baseline"
        )
    other = [key for key in {*manifest.hashes, *hashes} if manifest.hashes.get(key) != hashes.get(key)]
    if other:
        raise ConfigError(
            f"{baseline} ran something else: {', '.join(sorted(other))} differ",
            key="baseline",
            hint="run the same command with fault=[] for a healthy twin",
        )
    return named


def _named(baseline: str, hashes: Mapping[str, str], runs_root: Path) -> RunDir:
    if baseline and (Path(baseline) / "manifest.json").is_file():
        return RunDir.open(Path(baseline))
    called = [run for run in find_runs(runs_root) if run.manifest.name == baseline] if baseline else []
    fit = [run for run in called if _is_healthy(run) and dict(run.manifest.hashes) == dict(hashes)]
    if called:
        return (fit or called)[0]  # one that does not fit, to say why not
    raise ConfigError(
        f"expected auto, none, a run directory, or the name= of a run in {runs_root}, found {baseline!r}",
        key="baseline",
    )


def _is_healthy(run: RunDir) -> bool:
    manifest = run.manifest
    return (
        manifest.status == "finished"
        and not manifest.faults
        and manifest.verdict not in _UNFIT_BASELINES
        and (run.path / "results.json").is_file()
    )


def _why_invalid(
    run: RunDir, metrics: Metrics, faults: Sequence[FaultOutcome], twin: Metrics | None, thresholds: Thresholds
) -> str:
    status, reason = run.status
    if status == "aborted":
        return f"the run was aborted: {reason}"
    if status == "invalid":
        return reason
    if metrics.iteration is None:
        return "; ".join(metrics.flags) or "no iteration was measured"
    if metrics.events_dropped:
        return f"{metrics.events_dropped} events found no room in the event files, so the numbers are incomplete"
    busy = metrics.cpu_busy_ratio
    # Where nothing is shaped, times say what the software costs: a fully busy CPU is what is measured.
    if run.plan.shaped and busy is None:
        return "the load of this machine was not recorded (host.json), so its CPUs may have set the pace"
    if run.plan.shaped and busy is not None and busy > thresholds.cpu_busy_ratio:
        what = "emulator saturated: the CPUs were" if run.plan.one_clock else "hosts saturated: the CPUs of one were"
        cure = "lower the link rates or raise fabric.time_dilation"
        if not run.plan.one_clock:
            cure = "stop what else runs there, or set transport.spin=0"
        return (
            f"{what} {busy:.0%} busy (limit {thresholds.cpu_busy_ratio:.0%}), so they, "
            f"not the network, set the pace; {cure}"
        )
    if metrics.interference.suspended_ns:
        slept = format_ns(metrics.interference.suspended_ns)
        return f"this machine was suspended for {slept} while the ranks ran, and so were they"
    known = {fault.name for fault in faults}
    for planned in run.manifest.faults:
        if planned not in known:
            return f"fault {planned} was planned, but there is no record of it"
    for fault in faults:
        why = fault.why_not_in_effect()
        if why:
            return f"fault {fault.name}: {why}"
        parts = next((found for found in metrics.windowed if found.fault == fault.name), None)
        if parts is not None and not any(parts.met):
            warmup = f" (the first {run.plan.warmup} are to warm up)" if run.plan.warmup else ""
            return f"fault {fault.name}: no measured iteration{warmup} met a window of it, so they tell nothing of it"
        if fault.twin_counter and twin is not None:
            seen = getattr(twin.fabric, fault.twin_counter, None)
            if not seen:
                said = "was not counted" if seen is None else "is 0"
                return f"fault {fault.name}: {fault.twin_counter} {said} in the healthy twin too, so it changed nothing"
    return ""


def _without_baseline(faults: Sequence[FaultOutcome], baseline: str) -> str:
    if baseline == "none":
        return "no baseline was asked for"
    if not faults:
        return "no earlier healthy run of this configuration to compare with"
    unproven = [fault.name for fault in faults if fault.twin_counter]
    note = f"; whether {', '.join(unproven)} changed anything shows only beside that twin" if unproven else ""
    return f"no healthy run of this configuration to compare with: run it with fault=[]{note}"


def _verdict(comparison: Comparison, metrics: Metrics, thresholds: Thresholds) -> tuple[str, str]:
    median, p99 = comparison.median, comparison.p99
    text = f"median {_said(median)}, p99 {_said(p99)}"
    if comparison.taken_ratio:
        text += f" (other work took {comparison.taken_ratio:.0%} of the processors, which widened what chance may do)"
    times = f" ({format_ns(metrics.iteration.median.value)} an iteration)" if metrics.iteration else ""
    limit = max(median.margin_ratio, thresholds.tolerance_ratio)
    if not median.verdict:
        return "inconclusive", f"{text}{times}: {thresholds.too_few}"
    if "degraded" in (median.verdict, p99.verdict):
        part = "" if median.verdict == "degraded" else ", in the tail only"
        return "degraded", f"slower than the healthy run{part}: {text}{times}"
    if median.verdict == "inconclusive":
        return "inconclusive", f"{text}: {why_inconclusive(median, thresholds)}"
    if median.verdict == "improved":
        return "improved", f"faster than the healthy run: {text}{times}"
    tail = "" if p99.verdict in ("ok", "improved") else "; the tail cannot be told from chance"
    if p99.verdict == "inconclusive" and p99.ratio.value > 1 + max(p99.margin_ratio, thresholds.tolerance_ratio):
        return "inconclusive", f"{text}: {why_inconclusive(p99, thresholds)}"
    return "ok", f"as fast as the healthy run: {text} (±{limit:.0%} is chance){tail}"


def why_inconclusive(slowdown: Slowdown, thresholds: Thresholds) -> str:
    """Why a median or p99 that was judged is neither one thing nor the other."""
    limit = max(slowdown.margin_ratio, thresholds.tolerance_ratio)
    if slowdown.ratio.low > 1 + limit:  # beyond what chance does, and below where a slowdown begins to count
        part = "" if slowdown.name == "median" else "in the tail "
        return (
            f"{part}slower than chance explains (±{limit:.0%}), but not beyond doubt above "
            f"{thresholds.degraded_limit:.2f}x, from where judge.bands={thresholds.bands} calls it degraded"
        )
    if slowdown.name == "median":
        return f"too close to what chance does (±{limit:.0%}) to tell; run more iterations"
    return "the slowest iterations are too few to tell; run more iterations"


def _said(slowdown: Slowdown) -> str:
    return f"{slowdown.ratio.value:.2f}x"
