"""A search read again from its journal: what was believed after each probe, and what there is to say so far.

`read_search` gives the final statement of a search that ended, or one that says it has not; `genie report` and the page
(`genie.report.html.bisect`) show it. The same journal always gives the same beliefs. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from genie.bisect import ddmin
from genie.bisect.changes import GOOD_RUNS, RATES, StateRun, Tried, reference_of, run_of, verdict_of
from genie.bisect.conclude import changes_record, components_record
from genie.bisect.ddmin import Subset
from genie.bisect.hunt import Hunted, ProbeRecord, replayed, search_of
from genie.bisect.journal import FILE_NAME as JOURNAL
from genie.bisect.journal import STOPPED, read_journal
from genie.bisect.record import FILE_NAME, BisectRecord, read_record
from genie.bisect.scene import Scene, scene_of
from genie.bisect.search import Search
from genie.bisect.sprt import Sprt
from genie.bisect.suspects import Suspect
from genie.errors import GenieError


@dataclass(frozen=True, slots=True)
class Standing:
    """What was believed after so many probes: the chance of each suspect to be among the guilty (in the order of
    `Believed.suspects`), that there is nobody, the likeliest set with its chance, and how many bits are not known yet.
    """

    chances: tuple[float, ...]
    nobody: float
    leader: tuple[str, ...]
    confidence: float
    unknown_bits: float


@dataclass(frozen=True, slots=True)
class Believed:
    """A search over components: ``standings`` has one more than ``probes``, the first is before any."""

    suspects: tuple[Suspect, ...]
    probes: tuple[ProbeRecord, ...]
    standings: tuple[Standing, ...]


@dataclass(frozen=True, slots=True)
class TriedSet:
    """A set of changes with its runs: ``chances`` is how likely it is bad after each, ``bad`` None: not decided."""

    changes: Subset
    runs: tuple[StateRun, ...]
    chances: tuple[float, ...]
    bad: bool | None


@dataclass(frozen=True, slots=True)
class TriedSets:
    """A search over changes: runs of the good state, their median iteration (ns), and each set in order."""

    good: tuple[StateRun, ...]
    reference_ns: float | None
    sets: tuple[TriedSet, ...]


@dataclass(frozen=True, slots=True)
class SearchSoFar:
    """One folder. ``status``: "finished", "running" (a process is at it) or "unfinished"; ``stopped``: why, if it said.

    ``scene`` is None, and so are the beliefs, where the journal is from before it had one.
    """

    folder: Path
    status: str
    stopped: str
    record: BisectRecord
    scene: Scene | None
    believed: Believed | None = None
    tried: TriedSets | None = None


_SAME = ("mode", "seed", "topology", "fabric")
"""What the final statement of a search and its scene both say."""


def is_search(folder: Path) -> bool:
    """Whether a bisect was begun here."""
    return any((folder / name).is_file() for name in (JOURNAL, FILE_NAME))


def read_search(folder: Path) -> SearchSoFar:
    """The search of a folder, ended or not. Raises GenieError for damaged files, and where nothing can be said."""
    ended = read_record(folder / FILE_NAME) if (folder / FILE_NAME).is_file() else None
    if not (folder / JOURNAL).is_file() and ended is not None:
        return SearchSoFar(folder, ended.status, "", ended, None)  # a bisect.json that was sent alone
    _, entries, busy = read_journal(folder)
    scene = scene_of(entries, str(folder / JOURNAL))
    if scene is None:
        if ended is None:
            raise GenieError(
                f"{folder} holds a search that has not ended, and its journal does not say of what network",
                hint=f"genie bisect --resume {folder}",
            )
        return SearchSoFar(folder, ended.status, "", ended, None)
    if ended is not None and (differs := [key for key in _SAME if getattr(ended, key) != getattr(scene, key)]):
        said, begun = (getattr(one, differs[0]) for one in (ended, scene))
        raise GenieError(
            f"{folder} holds files of two searches: {differs[0]} is {said!r} in {FILE_NAME}, {begun!r} in {JOURNAL}",
            hint="take away the one that is not of this folder",
        )
    stopped = next((str(e.get("why", "")) for e in reversed(entries) if e.get("event") == STOPPED), "")
    status = "finished" if ended else "running" if busy else "unfinished"
    told = _Told(folder, status, stopped, ended, scene, tuple(entries))
    try:
        return _changes(told) if scene.mode == "changes" else _components(told)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise GenieError(f"{folder / JOURNAL} is damaged: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Told:
    """What the files of a search say, before anything is made of it. ``ended``: its final statement, if it has one."""

    folder: Path
    status: str
    stopped: str
    ended: BisectRecord | None
    scene: Scene
    entries: tuple[Mapping[str, Any], ...]

    def of(self, event: str) -> list[Mapping[str, Any]]:
        return [entry for entry in self.entries if entry.get("event") == event]

    def so_far(
        self, open_end: BisectRecord | None, *, believed: Believed | None = None, tried: TriedSets | None = None
    ) -> SearchSoFar:
        """With its final statement, or with ``open_end`` where it has none."""
        record = self.ended or open_end
        assert record is not None
        return SearchSoFar(self.folder, self.status, self.stopped, record, self.scene, believed=believed, tried=tried)

    def has_not_ended(self) -> str:
        if self.stopped and self.status != "running":
            return f"the search has not ended ({self.stopped})"
        return "the search is still going on" if self.status == "running" else "the search has not ended"

    def left_open(self, record: BisectRecord) -> BisectRecord:
        going_on = () if self.status == "running" else (f"it goes on with: genie bisect --resume {self.folder}",)
        return replace(
            record, status=self.status, word="inconclusive", created_ns=self.scene.created_ns,
            notes=(*record.notes, *going_on), clear=0, others=0,
        )  # fmt: skip


# -- components ---------------------------------------------------------------------------------------------------


def _components(told: _Told) -> SearchSoFar:
    scene = told.scene
    if scene.ground is None:
        raise ValueError("a search over components without the ways of flows")
    search = search_of(scene.suspects, scene.ground, scene.settings, seed=scene.seed)
    standings, probes = [_standing(search)], []
    for entry in told.of("probe"):
        probes.append(replayed(dict(entry), search, scene.settings))
        standings.append(_standing(search))
    believed = Believed(search.belief.suspects, tuple(probes), tuple(standings))
    return told.so_far(None if told.ended else _unfinished(search, believed, told), believed=believed)


def _standing(search: Search) -> Standing:
    belief = search.belief
    sets: dict[tuple[int, ...], float] = {}
    chances = [0.0] * len(belief.suspects)
    for hypothesis in belief.hypotheses():
        sets[hypothesis.culprits] = sets.get(hypothesis.culprits, 0.0) + hypothesis.posterior
        for place in hypothesis.culprits:
            chances[place] += hypothesis.posterior
    leader = max(sets, key=lambda places: (sets[places], -len(places)))
    names = tuple(belief.suspects[place].name for place in leader)
    return Standing(tuple(chances), sets.get((), 0.0), names, sets[leader], belief.entropy_bits())


def _unfinished(search: Search, believed: Believed, told: _Told) -> BisectRecord:
    over = search.conclusion()
    left = "nothing is left but to conclude" if over else f"about {search.probes_left()} left"
    done = len(believed.probes)
    why = f"{told.has_not_ended()}: {done} probe{'s' * (done != 1)} made, {left}"
    chances = tuple((suspect.name, chance) for suspect, chance in search.shortlist())
    beyond = tuple(suspect.name for suspect in search.belief.beyond_reach)
    found = Hunted(search.so_far(why), believed.probes, chances, beyond)
    return told.left_open(components_record(found, search, told.scene, told.folder))


# -- changes ------------------------------------------------------------------------------------------------------


class _NotYet(Exception):
    """The journal does not say whether a set is bad: the search ended before."""


def _changes(told: _Told) -> SearchSoFar:
    scene = told.scene
    runs = [run_of(entry, scene.settings.changes) for entry in told.of("run")]
    by_set: dict[Subset, list[StateRun]] = {}
    for run in runs:
        by_set.setdefault(run.changes, []).append(run)
    good = tuple(by_set.pop((), []))
    reference_ns = reference_of(good)
    sets = {changes: _judged(changes, own, scene.settings.probes) for changes, own in by_set.items()}
    tried = TriedSets(good, reference_ns, tuple(sets.values()))

    def is_bad(changes: Subset) -> bool:
        known = sets.get(changes)
        if known is None or known.bad is None:
            raise _NotYet
        return known.bad

    if told.ended is not None:
        return told.so_far(None, tried=tried)
    over = True
    try:
        guilty = ddmin.culprits(scene.settings.changes, is_bad) if len(good) >= GOOD_RUNS else ()
        over = len(good) >= GOOD_RUNS
    except _NotYet:
        guilty, over = (), False
    sure = {found.changes: _sureness(found) for found in sets.values() if found.bad is not None}
    record = changes_record(guilty, Tried(tuple(runs), reference_ns or 0.0, sure), scene, told.folder)
    within = min((found.changes for found in sets.values() if found.bad), key=len, default=())
    where = "nothing is left but to conclude" if over else _within(within, scene.settings.changes)
    why = f"{told.has_not_ended()}: {len(runs)} run{'s' * (len(runs) != 1)} made; {where}"
    record = replace(record, why=why, culprits=(), confidence=0.0)
    return told.so_far(told.left_open(record), tried=tried)


def _within(found: Subset, changes: Subset) -> str:
    if not found:
        return f"no set of the {len(changes)} changes is known to be bad yet"
    return f"at least one guilty change is among {' and '.join(found)}"


def _judged(changes: Subset, runs: Sequence[StateRun], most: int) -> TriedSet:
    """The sequential test of a set again."""
    test = Sprt(RATES)
    chances = []
    for run in runs:
        test.tell(run.bad)
        chances.append(test.confidence if test.log_ratio > 0 else 1 - test.confidence)
    known = test.decision is not None or len(runs) >= most
    return TriedSet(changes, tuple(runs), tuple(chances), verdict_of(test) if known else None)


def _sureness(found: TriedSet) -> float:
    last = found.chances[-1]
    return last if found.bad else 1 - last
