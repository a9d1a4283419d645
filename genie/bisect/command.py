"""The story of ``genie bisect``: who is suspected, probe after probe, who it is; also of a search that was killed.

`genie.cli` calls `run`. Components of a fabric are searched by `genie.bisect.hunt`, changes of a configuration by
`genie.bisect.changes`; both leave answers in a journal, and end here as ``bisect.json``, text, and MLflow runs.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from genie import experiment
from genie.argv import parse
from genie.bisect import report
from genie.bisect import scene as scenes
from genie.bisect.changes import ChangeSearch, words_of
from genie.bisect.conclude import changes_record, components_record
from genie.bisect.config import USAGE, BisectConfig
from genie.bisect.ddmin import expected_tests
from genie.bisect.hunt import hunt, search_of
from genie.bisect.journal import FILE_NAME as JOURNAL
from genie.bisect.journal import BisectJournal, read_journal
from genie.bisect.paths import ground_of
from genie.bisect.plant import planted, refuse_counted_windows
from genie.bisect.probes import Expected
from genie.bisect.record import FILE_NAME, BisectRecord, write_record
from genie.bisect.replay import read_search
from genie.bisect.scene import Scene
from genie.bisect.suspects import Suspect, suspects_of, weighted
from genie.compose import compose
from genie.errors import (
    EXIT_INVALID,
    EXIT_OK,
    EXIT_VERDICT_FAILED,
    ConfigError,
    EnvironmentUnfit,
    GenieError,
    PlanError,
)
from genie.own_keys import settings_from
from genie.plan import Plan, make_plan
from genie.preflight import record as preflight
from genie.report.progress import Narrator
from genie.report.terminal import shown_path
from genie.results.records import digest, to_plain
from genie.results.rundir import RunDir
from genie.schema import Choice, ExperimentConfig, parse_config, reproduce_line
from genie.topology import Topology
from genie.workload.config import PairsConfig

PREFIX = "bisect."
_NOT_OF_COMPONENTS: Mapping[str, str] = {
    "workload": "a search over components brings its own traffic",
    "warmup": "a probe leaves out the first quarter of each measurement instead",
    "protocol": "a search compares with what the links allow",
    "baseline": "a search compares with what the links allow, or with the last preflight of this network",
    "collective.chunk_bytes": "write bisect.message_bytes",
    "collective.channels": "a probe has one connection between two hosts, so that its path is known",
    "record.messages": "a probe measures by the records of messages",
}
_NOT_OF_CHANGES: Mapping[str, str] = {
    "protocol": "a search compares each state with the good one",
    "baseline": "a search compares each state with the good one",
    "run_dir": "is the folder of the search; write out=DIR",
}


def run(arguments: Sequence[str]) -> int:
    """One ``genie bisect``; its exit code. Raises GenieError."""
    words, folder = read_resume(arguments)
    own = [word for word in words if word.lstrip("+").startswith(PREFIX)]
    others = [word for word in words if word not in own]
    settings = settings_of(own)
    line = parse(others)
    if line.multirun or line.show:
        raise ConfigError(f"genie bisect takes no {'-m' if line.multirun else line.show}")
    for override in line.overrides:
        for key, why in (_NOT_OF_CHANGES if settings.changes else _NOT_OF_COMPONENTS).items():
            if override.key == key or override.key.startswith(f"{key}."):
                raise ConfigError(f"is not for this: {why}", key=override.key)
    (composed,) = compose(line)
    config = parse_config(composed.mapping, composed.choices)
    groups = ("topology", "transport", "fabric")
    print("genie bisect: " + "  ".join(f"{group}={config.choices[group].name}" for group in groups), flush=True)
    story = _Story(config, settings, tuple(words), tuple(others), folder)
    return story.changes() if settings.changes else story.components()


def read_resume(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """The words of the search, and the folder where it is to go on: ``--resume DIR`` takes them from its journal."""
    rest = list(arguments)
    places = [n for n, word in enumerate(rest) if word == "--resume" or word.startswith("--resume=")]
    if not places:
        return rest, None
    at = places[0]
    _, equals, value = rest[at].partition("=")
    named = [value] if equals else rest[at + 1 : at + 2]
    left = rest[:at] + rest[at + (1 if equals else 2) :]
    if len(places) > 1 or not named or not named[0]:
        raise ConfigError("--resume needs the folder of one search", hint=USAGE)
    if left:
        raise ConfigError(f"a search goes on with the words that began it, found '{left[0]}' as well", hint=USAGE)
    folder = Path(named[0])
    journal = folder / JOURNAL
    if not journal.is_file():
        raise ConfigError(f"'{folder}' is not the folder of a bisect: it has no {JOURNAL}", hint=USAGE)
    subject, _, _ = read_journal(folder)
    words = subject.get("words")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{journal} does not begin as the journal of a bisect: it has no words of a command line")
    return words, folder


def settings_of(words: Sequence[str]) -> BisectConfig:
    """The settings that words such as ``bisect.confidence=0.99`` make. Raises ConfigError."""
    return settings_from(words, BisectConfig, "bisect")


@dataclass(frozen=True, slots=True)
class _Story:
    """One search from its words on. ``others`` are the words that are not ``bisect.*``."""

    config: ExperimentConfig
    settings: BisectConfig
    words: tuple[str, ...]
    others: tuple[str, ...]
    resumed: Path | None

    @property
    def reproduce(self) -> str:
        return reproduce_line(self.words, command=("genie", "bisect"))

    def components(self) -> int:
        """Search the components of a fabric."""
        plan = make_plan(_ground_config(self.config))
        hosts = [node.name for node in plan.topology.hosts]
        if len(hosts) < 2:
            raise PlanError(f"a search needs two hosts or more, topology {plan.topology.name!r} has {len(hosts)}")
        refuse_counted_windows(plan.faults)
        suspects, hint = self._suspects(plan.topology)
        expected = _expected(self.config, plan, hosts)
        if self.config.dry_run:
            print(_plan_text(plan, suspects, self.settings, expected, hint))
            return EXIT_OK
        if self.resumed is not None and _has_begun(self.resumed):
            read_search(self.resumed)  # what is wrong with its answers is said before any host is touched
        folder = self._folder("bisect")
        say = Narrator(1, len(hosts))
        say.note(hint)
        subject = {
            "words": list(self.words), "mode": "components", "seed": self.config.seed,
            "suspects": digest([to_plain(s.name) for s in suspects]),
        }  # fmt: skip
        with _ending(folder, self.config) as stack:
            stack.enter_context(say)
            journal = stack.enter_context(BisectJournal(folder, subject))
            session = stack.enter_context(experiment.Session(plan, folder, say))
            stack.enter_context(planted(plan, session.fabric, folder))
            shaped = plan.capabilities.shaping
            ground = ground_of(plan.topology, session.fabric, hosts, seed=self.config.seed, shaped=shaped)
            search = search_of(suspects, ground, self.settings, seed=self.config.seed)
            roles, cables = scenes.network(plan.topology)
            scene = replace(
                self._scene("components", plan, self.others, (hint, *plan.notes)),
                hidden=tuple(f"{fault.name} on {', '.join(fault.targets)}" for fault in plan.faults),
                roles=roles, cables=cables, suspects=suspects, ground=ground,
            )  # fmt: skip
            scenes.keep(journal, scene)
            healthy = replace(self.config, fault={}, run_dir="")
            found = hunt(session, healthy, self.settings, search, expected, folder, journal, say)
        record = components_record(found, search, scene, folder)
        return self._tell(record, folder, [probe.run for probe in found.probes if not probe.spoilt])

    def changes(self) -> int:
        """Search the changes between a good and a bad state."""
        if repeated := [change for change in self.settings.changes if self.settings.changes.count(change) > 1]:
            raise ConfigError(f"{repeated[0]!r} is given twice", key="bisect.changes")
        base = [word for word in self.others if not word.startswith(("dry_run=", "run_dir="))]
        states: Sequence[tuple[str, tuple[str, ...]]] = (("good", ()), ("bad", self.settings.changes))
        plans = {}
        for name, changes in states:
            (composed,) = compose(parse(words_of(base, changes)))
            plans[name] = make_plan(replace(parse_config(composed.mapping, composed.choices), run_dir=""))
        if self.config.dry_run:
            count = len(self.settings.changes)
            print("plan (nothing was touched)")
            print(f"suspects: {count} changes between a good and a bad state")
            print("\n".join(f"  {change}" for change in self.settings.changes))
            print(f"expected for one culprit: {2 + 2 * expected_tests(count)} runs at most, where each set takes two")
            return EXIT_OK
        folder = self._folder("bisect-changes")
        plan = plans["good"]
        say = Narrator(plan.iterations, len(plan.programs))
        subject = {"words": list(self.words), "mode": "changes", "seed": self.config.seed, "suspects": ""}
        scene = self._scene("changes", plan, base, plan.notes)
        with _ending(folder, self.config) as stack:
            stack.enter_context(say)
            journal = stack.enter_context(BisectJournal(folder, subject))
            scenes.keep(journal, scene)
            search = stack.enter_context(ChangeSearch(base, self.settings, folder, journal, say))
            guilty = search.search()
        record = changes_record(guilty, search.tried, scene, folder)
        return self._tell(record, folder, [run.run for run in search.runs if run.median_ns is not None])

    def _suspects(self, topology: Topology) -> tuple[tuple[Suspect, ...], str]:
        """Suspects with their priors, and where those are from."""
        suspects = suspects_of(topology, compute=self.settings.compute)
        if not self.settings.run:
            return suspects, f"{len(suspects)} suspects, all as likely as each other"
        scores = scores_of(RunDir.open(Path(self.settings.run)), topology)
        best = max(scores, key=lambda name: scores[name], default="")
        what = f", the first of them {best}" if best and scores[best] else ", which suspects nobody"
        return weighted(suspects, scores), f"{len(suspects)} suspects, ordered by run {self.settings.run}{what}"

    def _scene(self, mode: str, plan: Plan, words: Sequence[str], notes: Sequence[str]) -> Scene:
        return Scene(
            mode, self.reproduce, tuple(words), self.config.seed, plan.topology.name,
            self.config.choices["fabric"].name, self.settings, notes=tuple(note for note in notes if note),
        )  # fmt: skip

    def _folder(self, name: str) -> Path:
        if self.resumed is not None:
            return self.resumed.absolute()
        return preflight.create_folder(self.config, self.config.name or "-".join([name, *self.config.fault]))

    def _tell(self, record: BisectRecord, folder: Path, runs: Sequence[str]) -> int:
        """Keep it, log it, print it."""
        write_record(folder / FILE_NAME, record)
        if self.config.report.html and (problem := _write_page(folder)):
            record = replace(record, notes=(*record.notes, problem))
            write_record(folder / FILE_NAME, record)
        if self.config.tracking.mlflow.enabled:
            record = log(record, folder, self.config, [RunDir.open(folder / name) for name in dict.fromkeys(runs)])
        print(report.render(record), end="")
        return exit_code(record.word, self.config.expect)


@contextlib.contextmanager
def _ending(folder: Path, config: ExperimentConfig) -> Iterator[ExitStack]:
    """What a search holds. Where it ends early there is a page of what is known until then."""
    try:
        with ExitStack() as stack:
            yield stack
    except (GenieError, KeyboardInterrupt):
        if _has_begun(folder):
            problem = _write_page(folder) if config.report.html else ""
            print(problem or f"what is known until then: genie report {shown_path(folder)}", file=sys.stderr)
        raise


def _has_begun(folder: Path) -> bool:
    """Whether there is something to report of a search that ended early."""
    if not (folder / JOURNAL).is_file():
        return False
    try:
        _, entries, _ = read_journal(folder)
    except ConfigError:
        return False  # what is wrong with it has been said already, by the error that ended the search
    return any(entry.get("event") == scenes.EVENT for entry in entries)


def _write_page(folder: Path) -> str:
    """The page of a search; "" or a sentence why there is none."""
    from genie.report.html import write_or_say

    return write_or_say(folder)


def exit_code(word: str, expect: str | None) -> int:
    """A culprit is a result, not a failure, unless ``expect=ok`` said that there is none; an open end is no result."""
    if word == "inconclusive":
        return EXIT_INVALID
    verdict = "degraded" if word == "found" else "ok"
    return EXIT_VERDICT_FAILED if expect is not None and verdict != expect else EXIT_OK


def scores_of(run: RunDir, topology: Topology) -> dict[str, float]:
    """Names of suspects → 0 … 1, from what ``genie why`` says of a slow run of the same network."""
    from genie.why.explain import explain

    why = explain(run)
    scores: dict[str, float] = {}
    ports = {port.name for port in topology.ports}
    for score in why.link_scores:
        if score.port in ports:
            scores[score.link] = max(score.score, scores.get(score.link, 0.0))
    return scores | {f"host {score.host}": score.score for score in why.host_scores}


def log(record: BisectRecord, folder: Path, config: ExperimentConfig, runs: Sequence[RunDir]) -> BisectRecord:
    """Send it to MLflow, each probe nested; say where it is there, or why it is not."""
    from genie import track

    logged = track.log_alone(
        "bisect",
        folder.name,
        report.markdown(record),
        config.tracking.mlflow,
        out=Path(config.out),
        later=f"genie report {folder} --log",
        tags={
            "genie.verdict": record.word, "genie.status": record.status, "genie.run_dir": record.path,
            "genie.seed": str(record.seed), "genie.culprits": ", ".join(c.name for c in record.culprits),
            "genie.topology": record.topology, "genie.fabric": record.fabric,
        },
        metrics={
            "probes_count": float(len(record.probes)), "suspects_count": float(record.suspects),
            "confidence_ratio": record.confidence, "duration_s": record.duration_s,
        },
        artifacts=[path for path in (folder / FILE_NAME, folder / JOURNAL) if path.is_file()],
        ok=record.status == "finished",
        runs=runs,
        page=folder / report.PAGE,
    )  # fmt: skip
    if logged.problem:
        record = replace(record, notes=(*record.notes, f"MLflow: not logged: {logged.problem}"))
    else:
        record = replace(record, tracking={"uri": logged.uri, "run_id": logged.run_id, "look": logged.look})
    if record.status == "finished":
        write_record(folder / FILE_NAME, record)
    return record


def show(folder: Path, *, how: str = "", log_it: bool = False, out: Callable[[str], object] = print) -> int:
    """``genie report FOLDER`` of a bisect, ended or not: as text, or ``how`` is "--json" or "--markdown".

    As text it also makes the page where that is missing or older than the search. Raises GenieError.
    """
    record = log_again(folder) if log_it else read_search(folder).record
    if how == "--json":
        out(json.dumps(to_plain(record), indent=1))
    elif how == "--markdown":
        out(report.markdown(record))
    else:
        problem = "" if _page_is_new(folder) else _write_page(folder)
        out(report.render(record) + (f"{problem}\n" if problem else ""))
    return EXIT_OK


def log_again(folder: Path) -> BisectRecord:
    """Log a search that was not logged when it ended, or ended early. Raises GenieError."""
    record = read_search(folder).record
    if record.status == "running":
        raise ConfigError(f"'{folder}' is a search that is still going on", hint="log it when it has ended")
    runs = [RunDir.open(folder / probe.run) for probe in record.probes if not probe.spoilt]
    if not runs:
        raise ConfigError(f"'{folder}' holds no run")
    config = parse_config(runs[0].config)
    record = log(record, folder, config, runs)
    if not record.tracking:
        raise EnvironmentUnfit(record.notes[-1])
    return record


def _page_is_new(folder: Path) -> bool:
    page = folder / report.PAGE
    made_of = [path for path in (folder / FILE_NAME, folder / JOURNAL) if path.is_file()]
    return page.is_file() and all(page.stat().st_mtime_ns >= path.stat().st_mtime_ns for path in made_of)


def _ground_config(config: ExperimentConfig) -> ExperimentConfig:
    """A run with a rank on every host: what the fabric is built for and faults are planned with."""
    hosts = getattr(config.topology, "hosts", 0) or _inventory_hosts(config)
    workload = PairsConfig(ranks=max(2, hosts), iterations=1, pings=0, bytes=1024)
    return replace(
        config,
        workload=workload,
        warmup=0,
        run_dir="",
        topology=replace(config.topology, placement="block"),
        choices={**config.choices, "workload": Choice("pairs", "pairs")},
    )


def _inventory_hosts(config: ExperimentConfig) -> int:
    from genie.topology.inventory import inventory

    return len(inventory(config.fabric).hosts)


def _expected(config: ExperimentConfig, plan: Plan, hosts: Sequence[str]) -> Expected:
    """What is healthy: the last preflight of this network with nothing out of line, else what the links allow."""
    mtu = int(str(plan.topology.parameters.get("mtu", 1500)))
    before = preflight.load_baseline(preflight.fabric_hash(config, plan.hashes["topology"]), Path(config.out))
    if before is not None and before.hosts == tuple(hosts) and before.tool == "engine" and len(before.rails) == 1:
        pairs = {(a, b): value for a, b, value in preflight.cells(before.rails[0].bandwidth_bps)}
        return Expected(mtu, pairs, f"the preflight {before.path}")
    if plan.capabilities.shaping:
        return Expected(mtu, {}, "what the rates of its links allow")
    return Expected(mtu, {}, "the median of all flows of its probe, since links have no rates")


def _plan_text(plan: Plan, suspects: Sequence[Suspect], settings: BisectConfig, expected: Expected, hint: str) -> str:
    kinds = {kind: sum(s.kind == kind for s in suspects) for kind in dict.fromkeys(s.kind for s in suspects)}
    bits = len(suspects).bit_length()
    lines = [
        "plan (nothing was touched)",
        *(f"  note: {note}" for note in plan.notes),
        f"suspects: {hint}",
        *(f"  {count} of kind {kind}" for kind, count in kinds.items()),
        f"probes: at most {settings.probes}; {max(2, bits // 2)} to {bits + 2} are usual for a steady culprit",
        f"  each up to {len(plan.topology.hosts) // 2} pairs of hosts, {settings.time} a flow each way",
        f"  a flow is held against {expected.source}",
        f"stops at {settings.confidence:.0%} confidence in one answer",
    ]
    if plan.faults:
        lines.append("hidden faults, put there for the whole search:")
        lines += [fault.describe() for fault in plan.faults]
    return "\n".join(lines)


__all__ = ["exit_code", "log", "read_resume", "run", "scores_of", "settings_of", "show"]
