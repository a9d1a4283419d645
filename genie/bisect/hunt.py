"""The search for guilty components on a live fabric: probe after probe on one `Session`, each answer journaled.

`genie.bisect.command` calls `hunt`, as does the score bench, which plants faults that this never sees. A probe is a run
like any other, with a run directory of its own in the search's folder; what its events say is `genie.bisect.probes`'.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from genie import experiment
from genie.bisect.belief import Answer, Noise
from genie.bisect.config import BisectConfig
from genie.bisect.journal import BisectJournal
from genie.bisect.probes import Expected, answers_of, config_of
from genie.bisect.rounds import Ground
from genie.bisect.search import Conclusion, Limits, Probe, Search
from genie.bisect.suspects import Suspect
from genie.errors import ConfigError, GenieError, RankFailed, RunAborted
from genie.plan import make_plan
from genie.report.progress import Narrator
from genie.results.compare import load_judgement
from genie.results.rundir import RunDir
from genie.results.thresholds import DEFAULT_THRESHOLDS
from genie.schema import ExperimentConfig

MOST_SPOILT = 3
"""Probes in a row that may fail before the search gives up."""


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """One probe as it was: ``run`` the name of its folder, ``spoilt`` why it says nothing ("" where it does)."""

    number: int
    kind: str
    run: str
    pairs: tuple[tuple[int, int], ...]
    repeats: int
    answers: tuple[Answer, ...]
    spoilt: str
    busy: bool
    took_s: float

    def bad(self) -> list[Answer]:
        """Its answers that speak against somebody."""
        return [answer for answer in self.answers if answer.bad]


@dataclass(frozen=True, slots=True)
class Hunted:
    """How a search ended: ``chances`` of the most suspected, ``beyond_reach`` names what no probe could touch."""

    conclusion: Conclusion
    probes: tuple[ProbeRecord, ...]
    chances: tuple[tuple[str, float], ...]
    beyond_reach: tuple[str, ...]


def search_of(suspects: Sequence[Suspect], ground: Ground, settings: BisectConfig, *, seed: int) -> Search:
    """The search that these settings ask for."""
    noise = Noise(
        settings.false_alarm,
        settings.miss,
        settings.disturbed_false_alarm,
        settings.disturbed_ratio,
        ((1.0, 1 - settings.intermittent_ratio), (settings.duty, settings.intermittent_ratio)),
    )
    limits = Limits(settings.confidence, settings.probes)
    compute = any(suspect.kind == "host" for suspect in suspects)
    return Search(suspects, ground, noise, limits, seed=seed, most_culprits=settings.culprits, compute=compute)


def hunt(
    session: experiment.Session,
    config: ExperimentConfig,
    settings: BisectConfig,
    search: Search,
    expected: Expected,
    folder: Path,
    journal: BisectJournal,
    say: Narrator,
    *,
    after: Callable[[ProbeRecord], None] = lambda record: None,
) -> Hunted:
    """Search to its end. ``config`` is healthy: what faults there are, the fabric has. ``after`` is told of each probe.

    Answers that ``journal`` holds are taken, not asked again. Raises the GenieError of a probe where several in a row
    failed.
    """
    done = [replayed(entry, search, settings) for entry in journal.of("probe")]
    if done:
        say.note(f"going on after {len(done)} probes")
    while (probe := search.next()) is not None:
        if len(done) >= MOST_SPOILT and all(record.spoilt for record in done[-MOST_SPOILT:]):
            raise RunAborted(
                f"{MOST_SPOILT} probes in a row failed, the last one: {done[-1].spoilt}",
                hint="a host or link that carries nothing at all is found by genie preflight",
            )
        say.note(_intention(search, probe))
        record = _made(session, config, settings, search, expected, probe, folder, say)
        journal.append("probe", **_plain(record))
        _learn(search, record, settings)
        done.append(record)
        say.note(_news(search, record))
        after(record)
    conclusion = search.conclusion()
    assert conclusion is not None
    chances = tuple((suspect.name, chance) for suspect, chance in search.shortlist())
    return Hunted(conclusion, tuple(done), chances, tuple(s.name for s in search.belief.beyond_reach))


def _made(
    session: experiment.Session,
    config: ExperimentConfig,
    settings: BisectConfig,
    search: Search,
    expected: Expected,
    probe: Probe,
    folder: Path,
    say: Narrator,
) -> ProbeRecord:
    """Run one probe and read it."""
    began_s = time.monotonic()
    path, attempt = folder / f"probe-{probe.number}", 0
    while path.exists():  # a killed search left one behind that was never read
        attempt += 1
        path = folder / f"probe-{probe.number}.{attempt}"
    plan = make_plan(replace(config_of(config, settings, search.ground, probe), run_dir=str(path)))
    spoilt = ""
    try:
        experiment.run_on(session, plan, say, reproduce="", parent=folder.name, baseline="none")
    except (RankFailed, RunAborted) as error:
        spoilt = error.message
    answers: list[Answer] = []
    busy = False
    if not spoilt:
        run = RunDir.open(path)
        busy = _saturated(run)
        answers = answers_of(run, probe, search.ground, settings, expected, dilation=plan.time_dilation)
        spoilt = "" if answers else "nothing was measured"
    took_s = time.monotonic() - began_s
    return ProbeRecord(
        probe.number, probe.kind, path.name, probe.pairs, probe.repeats, tuple(answers), spoilt, busy, took_s
    )


def _saturated(run: RunDir) -> bool:
    """Whether the machine that emulates was too busy to be believed where something looked slow."""
    try:
        judgement = load_judgement(run)
    except GenieError:
        return False
    busy = judgement.metrics.cpu_busy_ratio if judgement is not None else None
    return busy is not None and busy > DEFAULT_THRESHOLDS.cpu_busy_ratio


def _intention(search: Search, probe: Probe) -> str:
    left = search.probes_left()
    what = f"{len(probe.pairs)} pairs of hosts" if probe.kind == "network" else "compute of every host"
    times = f", {probe.repeats} times" if probe.repeats > 1 else ""
    return f"probe {probe.number + 1}: {what}{times}; about {left} probe{'s' if left != 1 else ''} left"


def _news(search: Search, record: ProbeRecord) -> str:
    if record.spoilt:
        return f"probe {record.number + 1} says nothing: {record.spoilt}"
    bad = dict.fromkeys(answer.question.name for answer in record.bad())
    suspected = [f"{suspect.name} {chance:.0%}" for suspect, chance in search.shortlist(3) if chance > 0.02]
    said = f"bad: {', '.join(bad)}" if bad else "all well"
    return f"probe {record.number + 1}: {said}; suspected: {', '.join(suspected) or 'nobody'}"


def _plain(record: ProbeRecord) -> dict[str, Any]:
    return {
        "number": record.number, "kind": record.kind, "run": record.run, "pairs": [list(p) for p in record.pairs],
        "repeats": record.repeats, "spoilt": record.spoilt, "busy": record.busy, "took_s": round(record.took_s, 3),
        "answers": [[a.question.name, a.bad, a.evidence] for a in record.answers],
    }  # fmt: skip


def _learn(search: Search, record: ProbeRecord, settings: BisectConfig) -> None:
    search.learn(record.answers, disturbed=settings.busy_ratio if record.busy else 0.0)


def _flag(value: object) -> bool:
    """A truth value of the journal; a word such as "no" is none, and would count as true."""
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, found {value!r}")
    return value


def replayed(entry: dict[str, Any], search: Search, settings: BisectConfig) -> ProbeRecord:
    """A probe of the journal, taken in by the search."""
    known = {question.name: question for question in search.universe}
    try:
        pairs = tuple((int(a), int(b)) for a, b in entry["pairs"])
        answers = tuple(Answer(known[name], _flag(bad), str(evidence)) for name, bad, evidence in entry["answers"])
        record = ProbeRecord(
            int(entry["number"]), str(entry["kind"]), str(entry["run"]), pairs, int(entry["repeats"]), answers,
            str(entry["spoilt"]), _flag(entry["busy"]), float(entry["took_s"]),
        )  # fmt: skip
        if record.number != search.probes:
            raise ValueError(f"expected probe number {search.probes}")
        if not 0 <= record.took_s < math.inf:
            raise ValueError(f"took_s {record.took_s} is no time")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"the journal has a probe that is none of this search: {error!r} in {str(entry)[:80]}",
            hint="the journal is damaged from there on: begin a new search",
        ) from error
    _learn(search, record, settings)
    return record
