"""The story of a sweep (``genie -m``, ``genie resume``): the plan, run after run, then what they say together.

A run's failure is a row of the table, not the end of the sweep. Where an optimising sweeper (Optuna) chooses the cells,
Hydra drives it and each run answers with its objective; all else goes through the cells of a `SweepPlan`. Faults,
fabrics and single runs are `genie.experiment`'s.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genie.argv import CommandLine, parse
from genie.errors import EXIT_INVALID, EXIT_OK, ConfigError, GenieError
from genie.schema import ExperimentConfig, parse_config, reproduce_line, to_mapping
from genie.sweep import SweepResult, sweep_directory
from genie.sweep.cells import (
    Cell,
    Slot,
    SweepPlan,
    alone,
    configuration_digest,
    finished,
    folder_of,
    order,
    read_plan,
)
from genie.sweep.clock import SweepClock
from genie.units import format_ns

if TYPE_CHECKING:
    from genie.compose import Composed
    from genie.results.rundir import RunDir

_BASIC = ("basic",)
RESUME = ("genie", "resume")
_MANY_CELLS = 30
"""More are not checked without a word: it takes seconds."""


def run(line: CommandLine, arguments: Sequence[str]) -> int:
    """A new sweep, to its comparison. Returns the worst exit code of its runs."""
    if (sweeper := line.chosen("hydra/sweeper")) and sweeper.value not in _BASIC:
        return _optimise(line)
    plan, configs = _decide(line, tuple(arguments))
    clock = SweepClock([(slot.number, slot.cell) for slot in plan.slots])
    if not _agreed(plan, configs, clock):
        return EXIT_OK
    if configs[0].dry_run:
        return _dry(plan, configs)
    directory = sweep_directory(configs[0].out)
    while not plan.write(directory):  # another sweep took the name meanwhile
        directory = sweep_directory(configs[0].out)
    with alone(directory):
        return _go(plan, configs, directory, clock, {})


def resume(directory: Path, words: Sequence[str] = ()) -> int:
    """What a sweep that was cut short still lacks. ``words`` may hold ``yes=true``.

    Raises ConfigError where the files of the configuration have changed since, for then it would be another sweep.
    """
    if odd := [word for word in words if word not in ("yes=true", "yes=false")]:
        raise ConfigError(f"'{odd[0]}' cannot change a sweep that has begun", hint="genie resume SWEEP_DIR [yes=true]")
    kept = read_plan(directory)
    with alone(directory):
        return _resume(_as_from(kept.started_in, directory), kept, words)


def _as_from(started_in: str, directory: Path) -> Path:
    """Go to the folder that the sweep was called in, since paths on its command line are meant from there; where
    ``directory`` is, seen from it. Raises ConfigError where that folder is gone.
    """
    place = directory.absolute()
    try:
        os.chdir(started_in)
    except OSError as error:
        raise ConfigError(
            f"the sweep was started in {started_in}, from where its paths are meant: {error.strerror}",
            hint="put that folder back, or start the sweep again",
        ) from error
    if directory.is_absolute() or not place.is_relative_to(Path.cwd()):
        return place
    return place.relative_to(Path.cwd())


def _resume(directory: Path, kept: SweepPlan, words: Sequence[str]) -> int:
    arguments = [word for word in kept.arguments if not word.startswith("yes=")]
    again, configs = _decide(parse([*arguments, *words]), kept.arguments)
    if not again.is_like(kept):
        raise ConfigError(
            f"the cells of {directory} are others now: files of the configuration have changed since it began",
            hint=f"start it again: {reproduce_line(kept.arguments)}",
        )
    done = finished(directory, kept.slots)
    clock = SweepClock([(slot.number, slot.cell) for slot in kept.slots if slot.number not in done])
    print(f"{len(done)} of {len(kept.slots)} runs of {directory} are done")
    if not clock.left:
        return _finish([], directory, kept, done)
    if not _agreed(kept, configs, clock):
        return EXIT_OK
    return _go(kept, configs, directory, clock, done)


# -- deciding -----------------------------------------------------------------------------------------------------


def _decide(line: CommandLine, arguments: tuple[str, ...]) -> tuple[SweepPlan, list[ExperimentConfig]]:
    """Every cell, checked, so that a mistake in the last is found before the first runs."""
    from genie.compose import sweep_cells

    cells: list[Cell] = []
    configs: list[ExperimentConfig] = []
    for number, (composed, factors) in enumerate(sweep_cells(line, _count)):
        config = parse_config(composed.mapping, composed.choices)
        configs.append(config)
        known = configuration_digest(to_mapping(config))
        cells.append(Cell(number, config.label, factors, _shown(composed, line), known))
    first = configs[0].sweep
    runs = len(cells) * first.repeats
    if runs > 1 and any(config.run_dir for config in configs):
        raise ConfigError(f"names one directory, the sweep has {runs} runs", key="run_dir", hint="write out=DIR")
    slots = order(len(cells), first.repeats, shuffled=first.order == "random", seed=first.seed)
    return SweepPlan(arguments, str(Path.cwd()), first.seed, tuple(cells), slots), configs


def _count(cells: int) -> None:
    if cells > _MANY_CELLS:
        print(f"checking {cells} cells", flush=True)


def _agreed(plan: SweepPlan, configs: Sequence[ExperimentConfig], clock: SweepClock) -> bool:
    """Show what is coming, and ask where it will take long. Raises ConfigError where nobody can be asked, and the
    reason where no cell of a new sweep can be planned.
    """
    from genie.report.sweep import render_plan

    config = configs[0]
    expected_s = clock.estimate(configs)
    if len(clock.left) == len(plan.slots) and clock.refused.keys() == set(clock.left.values()):
        raise next(iter(clock.refused.values()))
    print(render_plan(plan, len(clock.left), expected_s, config.sweep), flush=True)
    for cell, error in clock.refused.items():
        print(f"  cannot run: {plan.cells[cell].words}: {error.message}", flush=True)
    if config.dry_run or config.yes or expected_s <= config.sweep.ask_above_s:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # the question goes past a redirected output
        raise ConfigError(
            f"the sweep will take longer than sweep.ask_above={config.sweep.ask_above}", hint="add yes=true to let it"
        )
    print("go on? [y/N] ", end="", file=sys.stderr, flush=True)
    agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
    if not agreed:
        print("genie: nothing was run", file=sys.stderr)
    return agreed


def _dry(plan: SweepPlan, configs: Sequence[ExperimentConfig]) -> int:
    from genie import experiment

    code = EXIT_OK
    for cell, config in zip(plan.cells, configs, strict=True):
        print(f"\n[{cell.number + 1}/{len(plan.cells)}] {reproduce_line(cell.overrides)}", flush=True)
        try:
            print(experiment.plan(config).render(), flush=True)
        except GenieError as error:
            print(f"genie: {error}", file=sys.stderr, flush=True)
            code = max(code, error.exit_code)
    return code


# -- running ------------------------------------------------------------------------------------------------------


def _go(
    plan: SweepPlan,
    configs: Sequence[ExperimentConfig],
    directory: Path,
    clock: SweepClock,
    done: dict[int, Path],
) -> int:
    results: list[SweepResult] = []
    try:
        for slot in plan.slots:
            if slot.number in done:
                continue
            head = f"\n[{slot.number + 1}/{len(plan.slots)}]{clock.words()}"
            began_s = time.monotonic()
            results.append(_one(plan.cell_of(slot), configs[slot.cell], slot, directory, head))
            clock.took(slot.number, time.monotonic() - began_s, failed=results[-1].error is not None)
    finally:
        try:
            code = _finish(results, directory, plan, done)
        finally:
            if clock.left:
                missing = "1 run is" if len(clock.left) == 1 else f"{len(clock.left)} runs are"
                print(f"{missing} missing: {reproduce_line([str(directory)], command=RESUME)}")
    return code


def _one(cell: Cell, config: ExperimentConfig, slot: Slot, directory: Path, head: str) -> SweepResult:
    config = dataclasses.replace(config, run_dir=config.run_dir or str(folder_of(directory, slot, cell.label)))
    return _guarded(slot.number, cell.label, cell.overrides, lambda: config, directory, head)


def _guarded(
    number: int,
    label: str,
    overrides: tuple[str, ...],
    configure: Callable[[], ExperimentConfig],
    directory: Path,
    head: str,
) -> SweepResult:
    from genie import experiment

    line = reproduce_line(overrides)
    run = None
    try:
        print(f"{head} {line}", flush=True)
        plan = experiment.plan(configure())
        run = experiment.run(plan, reproduce=line, parent=str(directory))
        return SweepResult(number, label, overrides, run, None, int(run.exit_code))
    except GenieError as error:
        print(f"genie: {error}", file=sys.stderr)
        return SweepResult(number, label, overrides, run, error, error.exit_code)
    except BrokenPipeError:
        raise  # nobody reads any more: that is no failure of this run, and the next would meet it too
    except Exception as error:
        traceback.print_exc()
        return SweepResult(number, label, overrides, run, error, EXIT_INVALID)


def _finish(results: list[SweepResult], directory: Path, plan: SweepPlan, done: dict[int, Path]) -> int:
    from genie import experiment

    if not results and not done:
        return EXIT_INVALID
    summary = experiment.finish_sweep(results, directory, plan, done)
    print(summary.text)
    return max(summary.exit_code, *(result.exit_code for result in results if result.run is None), EXIT_OK)


# -- optimising ---------------------------------------------------------------------------------------------------


def _optimise(line: CommandLine) -> int:
    """Hydra's sweeper plugin chooses each next cell by what the last ones answered."""
    from genie.compose import sweep

    sweeper = line.chosen("hydra/sweeper")
    if sweeper and sweeper.value == "optuna" and importlib.util.find_spec("optuna") is None:
        raise ConfigError(
            "Optuna's sweeper is not installed", key="hydra/sweeper", hint="pip install 'genie-fabric[optuna]'"
        )
    results: list[SweepResult] = []
    answers: dict[int, float] = {}
    directory = sweep_directory(_out_of(line))

    def task(number: int, composed: Composed) -> float:
        config = parse_config(composed.mapping, composed.choices)
        if config.dry_run:
            raise ConfigError("an optimising sweeper has no plan to show: it needs results", key="dry_run")
        if config.protocol != "single" or config.sweep.repeats != 1:
            raise ConfigError("an optimising sweeper makes single runs: leave protocol and sweep.repeats as they are")
        slot = Slot(number, number, 0)
        shown = _shown(composed, line)
        result = _one(Cell(number, config.label, {}, shown), config, slot, directory, f"\n[{number + 1}]")
        results.append(result)
        if result.error is not None:
            raise result.error  # the sweeper must not take a run that failed for one that was slow
        answers[number] = objective(result.run.runs[0], config.sweep.objective)
        return answers[number]

    try:
        sweep(line, task, directory)
    finally:
        if results:
            tried = _tried(results)
            _finish(results, directory, tried, {})
            if answers:
                best = min(answers, key=answers.__getitem__)
                words = " ".join(f"{key}={value}" for key, value in tried.cells[best].factors.items())
                print(f"best: {words or 'all alike'}: {format_ns(round(answers[best]))} (run {best} of {len(results)})")
    return max((result.exit_code for result in results), default=EXIT_INVALID)


def _out_of(line: CommandLine) -> str:
    """``out`` of a line that cannot be composed as a whole, since its cells are still to be made up."""
    from genie.compose import compose

    words = tuple(o for o in line.overrides if o.key in ("out", "experiment") and len(o.alternatives) == 1)
    (composed,) = compose(CommandLine((), words, line.config_dirs))
    return parse_config(composed.mapping, composed.choices).out


def _tried(results: Sequence[SweepResult]) -> SweepPlan:
    """The cells that an optimising sweeper made up: what differs between them is what it varied."""
    words = [dict(word.partition("=")[::2] for word in result.overrides) for result in results]
    varied = [key for key in words[0] if len({own.get(key) for own in words}) > 1]
    cells = tuple(
        Cell(number, result.label, {key: own.get(key, "") for key in varied}, result.overrides)
        for number, (result, own) in enumerate(zip(results, words, strict=True))
    )
    return SweepPlan((), str(Path.cwd()), 1, cells, order(len(cells), 1, shuffled=False, seed=1))


def objective(run: RunDir, name: str) -> float:
    """What an optimising sweeper makes small, in ns: "median" or "p99" of an iteration, or its "exposed" communication.
    Raises RunInvalid where the run's numbers may not be believed, or it has none.
    """
    from genie.errors import RunInvalid
    from genie.results.compare import load_judgement

    judgement = load_judgement(run)
    if judgement is None or judgement.metrics.iteration is None or judgement.verdict == "invalid":
        why = judgement.why if judgement else run.status[1]
        raise RunInvalid(f"{run.path} gives no {name} to optimise by: {why or 'no iteration was completed'}")
    found = judgement.metrics.iteration
    if name == "exposed":
        exposed = judgement.metrics.exposed
        if exposed is None:
            raise RunInvalid(f"{run.path} has no exposed communication to optimise by")
        return float(exposed.value)
    return float(found.p99.value if name == "p99" else found.median.value)


def _shown(composed: Composed, line: CommandLine) -> tuple[str, ...]:
    """The words that run one cell by itself, as a user would type them; how the sweep goes is no part of it."""
    words = (o.removeprefix("++") for o in composed.overrides)
    folders = (f"--config-dir={folder}" for folder in line.config_dirs)
    return (*folders, *(word for word in words if not word.startswith(("hydra.", "hydra/", "sweep.", "yes="))))
