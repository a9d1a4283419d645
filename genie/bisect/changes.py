"""Which change of the configuration is guilty: a list of deltas between a good and a bad state, as commits are to git.

A state is the command line and some of the changes; a run of it is bad if its median iteration is longer than the good
state's by more than ``bisect.worse_ratio``. Each set of changes is run until a sequential test has decided
(`genie.bisect.sprt`), `genie.bisect.ddmin` says which sets to try. One fabric serves all states that agree in it.
`genie.bisect.command` calls `ChangeSearch`; every answer is journaled, and taken from there on resuming.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from genie import experiment
from genie.argv import parse, split_sweep
from genie.bisect import ddmin
from genie.bisect.config import BisectConfig
from genie.bisect.ddmin import Subset
from genie.bisect.journal import BisectJournal
from genie.bisect.sprt import Rates, Sprt
from genie.compose import compose
from genie.errors import ConfigError, GenieError, PlanError, RunAborted
from genie.plan import Plan, make_plan
from genie.report.progress import Narrator
from genie.results.compare import load_judgement
from genie.results.records import from_plain
from genie.results.rundir import RunDir
from genie.schema import ExperimentConfig, parse_config

GOOD_RUNS = 2
"""Runs of the good state before any other: the reference is the median of their medians."""

RATES = Rates(false_alarm=0.05, miss=0.05, noise_false_alarm=0.1, noise_miss=0.1)


@dataclass(frozen=True, slots=True)
class StateRun:
    """One run of a state. ``median_ns`` is None where it failed: ``said`` says why, and it counts as bad."""

    changes: Subset
    run: str
    median_ns: float | None
    bad: bool
    said: str
    took_s: float


@dataclass(frozen=True, slots=True)
class Tried:
    """All runs of a search in order. ``reference_ns`` is the good state's median iteration; ``confidence`` how sure a
    decided set is bad, or good.
    """

    runs: tuple[StateRun, ...]
    reference_ns: float
    confidence: Mapping[Subset, float]


def run_of(entry: Mapping[str, Any], changes: Sequence[str]) -> StateRun:
    """A run as its line of the journal has it. Raises ConfigError for one that no search over ``changes`` makes."""
    try:
        run = from_plain(StateRun, entry, "run")
        if unknown := [change for change in run.changes if change not in changes]:
            raise GenieError(f"run.changes: {unknown[0]!r} is none of the changes")
        if run.median_ns is not None and not 0 < run.median_ns < math.inf:
            raise GenieError(f"run.median_ns: expected a time, found {run.median_ns}")
        if not 0 <= run.took_s < math.inf:
            raise GenieError(f"run.took_s: expected a time, found {run.took_s}")
    except GenieError as error:
        raise ConfigError(
            f"the journal has a run that is none of this search: {error.message} in {str(entry)[:80]}",
            hint="the journal is damaged from there on: begin a new search",
        ) from error
    return run


def reference_of(good: Sequence[StateRun]) -> float | None:
    """The median of the good state's median iterations, ns; None where none of its runs has one."""
    medians = [run.median_ns for run in good if run.median_ns is not None]
    return statistics.median(medians) if medians else None


def verdict_of(test: Sprt) -> bool:
    """Whether a set is bad: as the test decided, or as it leans where there may be no more runs."""
    return test.decision if test.decision is not None else test.log_ratio > 0


def words_of(base: Sequence[str], changes: Sequence[str]) -> list[str]:
    """The command line with these changes: a later word replaces an earlier one of the same key, faults add up."""
    words: dict[str, str] = {}
    for word in [*base, *(word for change in changes for word in change.split())]:
        key, equals, value = word.lstrip("+").partition("=")
        if not equals:
            raise ConfigError(f"expected key=value, found {word!r}", key="bisect.changes")
        if key == "fault" and key in words:
            before = words[key].partition("=")[2].strip("[]")
            names = [name for name in (*split_sweep(before), *split_sweep(value.strip("[]"))) if name]
            words[key] = f"fault=[{','.join(dict.fromkeys(names))}]"
        else:
            words[key] = word.lstrip("+")
    return list(words.values())


class ChangeSearch:
    """One search over changes. A context manager: leaving it takes the fabric down."""

    def __init__(
        self,
        base: Sequence[str],
        settings: BisectConfig,
        folder: Path,
        journal: BisectJournal,
        say: Narrator,
        *,
        after: Callable[[StateRun], None] = lambda run: None,
    ) -> None:
        self._base = tuple(base)
        self._settings = settings
        self._folder = folder
        self._journal = journal
        self._say = say
        self._after = after
        self._stack = ExitStack()
        self._session: tuple[Any, experiment.Session] | None = None
        self._known: dict[Subset, list[StateRun]] = {}
        for entry in journal.of("run"):
            run = run_of(entry, settings.changes)
            self._known.setdefault(run.changes, []).append(run)
        self.runs: list[StateRun] = []
        self.confidence: dict[Subset, float] = {}
        self.reference_ns = 0.0

    def __enter__(self) -> ChangeSearch:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def search(self) -> tuple[Subset, ...]:
        """The guilty sets of changes; () where all together are no worse. Raises the GenieError of the good state."""
        good = [self._run((), number) for number in range(GOOD_RUNS)]
        reference_ns = reference_of(good)
        if reference_ns is None:
            raise RunAborted(f"the good state does not run: {good[0].said}")
        self.reference_ns = reference_ns
        return ddmin.culprits(self._settings.changes, self._is_bad)

    @property
    def tried(self) -> Tried:
        """What was done so far."""
        return Tried(tuple(self.runs), self.reference_ns, dict(self.confidence))

    def _is_bad(self, changes: Subset) -> bool:
        test = Sprt(RATES)
        number = 0
        while test.decision is None and number < self._settings.probes:
            left = ddmin.expected_tests(len(self._settings.changes)) - len(self.confidence)
            self._say.note(
                f"{len(changes)} of {len(self._settings.changes)} changes, run {number + 1}; "
                f"about {max(1, left) * max(1, test.answers_left)} runs left"
            )
            test.tell(self._run(changes, number).bad)
            number += 1
        self.confidence[changes] = test.confidence
        bad = verdict_of(test)
        self._say.note(f"{', '.join(changes)}: {'bad' if bad else 'good'} after {number} runs")
        return bad

    def _run(self, changes: Subset, number: int) -> StateRun:
        known = self._known.get(changes, [])
        if number < len(known):
            self.runs.append(known[number])
            return known[number]
        run = self._made(changes)
        self._journal.append(
            "run", changes=list(run.changes), run=run.run, median_ns=run.median_ns, bad=run.bad, said=run.said,
            took_s=run.took_s,
        )  # fmt: skip
        self.runs.append(run)
        self._after(run)
        return run

    def _made(self, changes: Subset) -> StateRun:
        began_s = time.monotonic()
        name = f"run-{len(self.runs)}"
        attempt = 0
        while (self._folder / name).exists():  # a killed search left one behind that was never read
            attempt += 1
            name = f"run-{len(self.runs)}.{attempt}"
        median_ns, said = None, ""
        try:
            plan = make_plan(self._config(changes, name))
            session = self._session_for(plan)
            run = experiment.run_on(session, plan, self._say, reproduce="", parent=self._folder.name, baseline="none")
            median_ns, said = _median_ns(run)
        except RunAborted as error:
            said = error.message
        except (ConfigError, PlanError) as error:
            if not changes:
                raise
            # not a state at all: ddmin calls it unresolved, which is as good as good
            said = f"cannot be: {error.message}"
        if said.startswith("cannot be"):
            bad = False
        else:
            limit = self.reference_ns * (1 + self._settings.worse_ratio)
            bad = bool(changes) and (median_ns is None or median_ns > limit)
        return StateRun(changes, name, median_ns, bad, said, time.monotonic() - began_s)

    def _config(self, changes: Subset, name: str) -> ExperimentConfig:
        (composed,) = compose(parse(words_of(self._base, changes)))
        config = parse_config(composed.mapping, composed.choices)
        report = replace(config.report, timeline=False)
        return replace(config, run_dir=str(self._folder / name), baseline="none", expect=None, report=report)

    def _session_for(self, plan: Plan) -> experiment.Session:
        """The fabric that is there if it is the one that this plan needs, else a new one."""
        needed = (plan.config.topology, plan.config.fabric, plan.config.transport.agent)
        if self._session is None or self._session[0] != needed:
            self._stack.close()
            self._session = None
            session = self._stack.enter_context(experiment.Session(plan, self._folder, self._say))
            self._session = (needed, session)
        return self._session[1]


def _median_ns(run: RunDir) -> tuple[float | None, str]:
    judgement = load_judgement(run)
    if judgement is None or judgement.metrics.iteration is None:
        return None, "nothing was measured"
    return judgement.metrics.iteration.median.value, judgement.why if judgement.verdict == "invalid" else ""
