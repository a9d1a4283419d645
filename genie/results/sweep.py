"""The runs of a sweep as one sees them afterwards: directories in, numbers out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from genie.errors import GenieError
from genie.results.aba import AbaDir
from genie.results.compare import judge_and_store, load_judgement
from genie.results.rundir import RunDir
from genie.results.thresholds import Thresholds


def runs_below(path: Path) -> tuple[RunDir, ...]:
    """The run of a directory, or the arms of a baseline/fault/baseline."""
    if (path / "aba.json").is_file():
        return tuple(AbaDir.open(path).arms().values())
    return (RunDir.open(path),)


def verdict_of(path: Path) -> tuple[str, str]:
    """(verdict, what was expected or "") of a run, or of a baseline/fault/baseline. Raises GenieError."""
    runs = runs_below(path)
    expected = next((str(run.config["expect"]) for run in runs if run.config.get("expect")), "")
    if (path / "aba.json").is_file():
        result = AbaDir.open(path).record.result
        return (result.verdict if result else "invalid"), expected
    return runs[0].manifest.verdict or "invalid", expected


def split_damaged(found: Mapping[int, Path]) -> tuple[dict[int, Path], list[str]]:
    """Runs that can be read, and a sentence for each that cannot: one damaged file must not hide all the others."""
    sound: dict[int, Path] = {}
    problems: list[str] = []
    for number, path in found.items():
        try:
            for run in runs_below(path):
                _ = run.plan, run.config, load_judgement(run)
            verdict_of(path)
        except GenieError as error:
            problems.append(f"{path.name}: {error.message}")
        else:
            sound[number] = path
    return sound, problems


def responses(found: Mapping[int, Path]) -> dict[int, float]:
    """Median iteration of each slot in ns, the arm with the fault where there are three.

    Without the runs that were never measured and those that are invalid: their numbers may not be believed.
    """
    medians: dict[int, float] = {}
    for number, path in found.items():
        arms = AbaDir.open(path).arms() if (path / "aba.json").is_file() else {"b": RunDir.open(path)}
        judgement = load_judgement(arms["b"]) if "b" in arms else None
        if judgement and judgement.verdict != "invalid" and judgement.metrics.iteration:
            medians[number] = judgement.metrics.iteration.median.value
    return medians


def judge_again(paths: Iterable[Path], runs_root: Path, thresholds: Thresholds) -> None:
    """Runs that had no baseline when they ended, for it came later in the sweep's order, are compared now. Arms of a
    baseline/fault/baseline have theirs.
    """
    for path in paths:
        if (path / "aba.json").is_file():
            continue
        run = RunDir.open(path)
        judgement = load_judgement(run)
        wanted = run.config.get("baseline")
        if judgement is not None and judgement.comparison is None and wanted == "auto":
            judge_and_store(run, runs_root=runs_root, thresholds=thresholds)
