"""What a report is made of: the files of one run directory, read once, on the run's own clock (model ns since T).

`genie.report.html.page` reads it, the chart modules draw from it. Nothing is measured here: numbers that are said
come from ``results.json``, and arrays from the event files only make pictures of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from genie.errors import GenieError
from genie.report.html.figure import Window
from genie.results.compare import Judgement, judge_and_store, load_judgement
from genie.results.metrics import Metrics
from genie.results.records import FaultOutcome, PlanRecord
from genie.results.rundir import Manifest, RunDir, find_runs


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """One run. ``windows`` are the faults' stretches in model ns since T; empty where nobody can place them."""

    run: RunDir
    manifest: Manifest
    plan: PlanRecord
    judgement: Judgement
    faults: tuple[FaultOutcome, ...]
    windows: tuple[Window, ...]

    @property
    def metrics(self) -> Metrics:
        """What was measured."""
        return self.judgement.metrics

    @property
    def end_ns(self) -> float:
        """End of the last completed iteration, model ns since T."""
        found = self.metrics.iteration
        return sum(found.warmup_ns) + sum(found.each_ns) if found else 0.0


def read_material(run: RunDir) -> Material:
    """Read a run that ended; one that died before it was measured is measured first, as for the terminal.

    Raises GenieError for a run that still goes on, or ended before it had a plan.
    """
    judgement = load_judgement(run)
    if judgement is None:
        status, _ = run.status
        if status in ("created", "running"):
            raise GenieError(f"{run.path} is {status}: there is no report before it ends")
        judgement = judge_and_store(run, runs_root=run.path.parent)
    faults = run.faults()
    return Material(run, run.manifest, run.plan, judgement, faults, _windows(faults, judgement.metrics))


def read_baseline(material: Material) -> Material | None:
    """The run that this one was compared with, if its directory is still there: beside it or in the same folder."""
    comparison = material.judgement.comparison
    if comparison is None:
        return None
    beside = material.run.path.parent / Path(comparison.baseline).name
    if (beside / "manifest.json").is_file():
        near = [RunDir(beside)]
    else:  # a sweep's runs are two folders further down than the others
        folder = material.run.path.parent
        near = find_runs(folder.parents[1] if folder.parent.name == "sweeps" else folder)
    for other in near:
        try:
            if other.manifest.run_id == comparison.baseline_run_id and load_judgement(other) is not None:
                return read_material(other)
        except GenieError:
            continue  # a damaged baseline takes nothing away from this run's own report
    return None


def _windows(faults: tuple[FaultOutcome, ...], metrics: Metrics) -> tuple[Window, ...]:
    start = metrics.start_mono_ns
    if start is None:
        return ()
    found = []
    for fault in faults:
        for begin, end in fault.stretches:
            last = None if end is None else (end - start) / metrics.dilation
            found.append(Window(fault.name, (begin - start) / metrics.dilation, last))
    return tuple(found)
