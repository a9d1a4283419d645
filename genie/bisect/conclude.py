"""From a search that is over to its final statement: culprits with evidence and the commands to confirm them. Pure.

`genie.bisect.command` calls it with what was found; `genie.bisect.report` shows what it makes.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from genie.bisect.belief import Answer
from genie.bisect.changes import StateRun, Tried, words_of
from genie.bisect.config import BisectConfig
from genie.bisect.ddmin import Subset
from genie.bisect.hunt import Hunted, ProbeRecord
from genie.bisect.probes import COMPUTE_SCALE, load_bytes
from genie.bisect.record import Alternative, BisectRecord, Culprit, ProbeLine
from genie.bisect.rounds import round_text_of
from genie.bisect.scene import Scene
from genie.bisect.search import Search
from genie.bisect.suspects import Suspect
from genie.results.records import to_plain
from genie.units import format_ns

EVIDENCE_MOST = 4


def components_record(
    found: Hunted,
    search: Search,
    scene: Scene,
    folder: Path,
) -> BisectRecord:
    """Of a search over components."""
    conclusion, settings = found.conclusion, scene.settings
    culprits = tuple(_culprit(suspect, found, search, settings, scene.words) for suspect in conclusion.culprits)
    guilty = frozenset().union(*(suspect.tokens for suspect in conclusion.culprits))
    others = [answer for probe in found.probes for answer in probe.answers if not touches(answer, guilty)]
    lines = tuple(_line(probe) for probe in found.probes)
    return BisectRecord(
        name=folder.name,
        status="finished",
        word=conclusion.word,
        why=conclusion.why,
        mode="components",
        created_ns=time.time_ns(),
        seed=scene.seed,
        reproduce=scene.reproduce,
        topology=scene.topology,
        fabric=scene.fabric,
        suspects=len(search.belief.suspects),
        culprits=culprits,
        confidence=conclusion.confidence,
        duty=conclusion.duty,
        alternatives=tuple(Alternative(names, chance) for names, chance in conclusion.alternatives),
        probes=lines,
        settings=to_plain(settings),
        clear=sum(not answer.bad for answer in others),
        others=len(others),
        beyond_reach=found.beyond_reach,
        hidden=scene.hidden,
        notes=tuple(note for note in scene.notes if note),
        path=str(folder),
        duration_s=sum(line.took_s for line in lines),
    )


def changes_record(
    guilty: Sequence[Subset],
    search: Tried,
    scene: Scene,
    folder: Path,
) -> BisectRecord:
    """Of a search over changes."""
    settings, base = scene.settings, scene.words
    culprits = []
    for changes in guilty:
        own = [run for run in search.runs if set(changes) <= set(run.changes)]
        evidence = [
            _state(run, search.reference_ns) for run in sorted(own, key=lambda run: len(run.changes)) if run.bad
        ]
        together = "" if len(changes) == 1 else ", only together"
        confirm = [f"genie {shlex.join(words_of(base, ()))}".rstrip(), f"genie {shlex.join(words_of(base, changes))}"]
        name = " + ".join(changes)
        says = (
            f"the change that makes it slow{together}" if not together else "changes that make it slow, only together"
        )
        bad = sum(run.bad for run in own)
        culprits.append(
            Culprit(name, "change", name, says, bad, len(own), tuple(evidence[:EVIDENCE_MOST]), tuple(confirm))
        )
    others = [run for run in search.runs if run.changes and not any(set(c) <= set(run.changes) for c in guilty)]
    sure = [search.confidence[changes] for changes in search.confidence if changes in guilty or not guilty]
    lines = tuple(
        ProbeLine(
            n,
            "state",
            run.run,
            1,
            run.changes if run.bad else (),
            "" if run.median_ns else run.said,
            run.median_ns is not None and bool(run.said),
            run.took_s,
        )
        for n, run in enumerate(search.runs)
    )
    return BisectRecord(
        name=folder.name,
        status="finished",
        word="found" if culprits else "none",
        why=f"the good state takes {format_ns(search.reference_ns)} an iteration",
        mode="changes",
        created_ns=time.time_ns(),
        seed=scene.seed,
        reproduce=scene.reproduce,
        topology=scene.topology,
        fabric=scene.fabric,
        suspects=len(settings.changes),
        culprits=tuple(culprits),
        confidence=min(sure, default=0.0),
        duty=1.0,
        alternatives=(),
        probes=lines,
        settings=to_plain(settings),
        clear=sum(not run.bad for run in others),
        others=len(others),
        notes=tuple(note for note in scene.notes if note),
        path=str(folder),
        duration_s=sum(line.took_s for line in lines),
    )


def _line(probe: ProbeRecord) -> ProbeLine:
    bad = tuple(dict.fromkeys(answer.question.name for answer in probe.bad()))
    return ProbeLine(
        probe.number, probe.kind, probe.run, len(probe.answers), bad, probe.spoilt, probe.busy, probe.took_s
    )


def _state(run: StateRun, reference_ns: float) -> str:
    if run.median_ns is None:
        return f"{run.run}: {run.said}"
    return f"{run.run}: {format_ns(run.median_ns)} an iteration, {run.median_ns / reference_ns:.2f}x the good state"


def _culprit(suspect: Suspect, found: Hunted, search: Search, settings: BisectConfig, words: Sequence[str]) -> Culprit:
    touched = [(probe, a) for probe in found.probes for a in probe.answers if touches(a, suspect.tokens)]
    bad = [(probe, answer) for probe, answer in touched if answer.bad]
    evidence = dict.fromkeys(f"{a.question.name}: {a.evidence} ({probe.run})" for probe, a in bad)
    return Culprit(
        suspect.name,
        suspect.kind,
        suspect.component,
        suspect.says,
        len(bad),
        len(touched),
        tuple(evidence)[:EVIDENCE_MOST],
        _confirm(suspect, bad, search, settings, words),
    )


def touches(answer: Answer, tokens: frozenset[str]) -> bool:
    """Whether the measurement may have met one of these tokens."""
    return any(way.tokens & tokens for way in answer.question.ways)


def _confirm(
    suspect: Suspect,
    bad: Sequence[tuple[ProbeRecord, Answer]],
    search: Search,
    settings: BisectConfig,
    words: Sequence[str],
) -> tuple[str, ...]:
    """Commands that show it: a run that uses the culprit and little else."""
    ground = search.ground
    given = [word for word in words if not word.startswith(("dry_run=", "run_dir="))]
    if suspect.kind == "host":
        own = [
            "workload=dp", f"workload.ranks={len(ground.hosts)}", "workload.layers=1", "workload.hidden=32",
            "workload.ffn=64", "workload.sequence=64", f"workload.compute_scale={COMPUTE_SCALE:g}",
        ]  # fmt: skip
        return (f"genie {shlex.join([*given, *own])}", "genie why RUN_DIR")
    if not bad:
        return ()
    source, _, target = bad[-1][1].question.name.partition(">")
    pair = sorted((ground.hosts.index(source), ground.hosts.index(target)))
    size = load_bytes(ground, settings, (pair[0], pair[1]))
    own = [
        "workload=pairs", f"workload.ranks={len(ground.hosts)}", "workload.pings=0", "warmup=0",
        f"workload.bandwidth_rounds={round_text_of((pair[0], pair[1]), size)}",
        f"collective.chunk_bytes={settings.message_bytes}",
    ]  # fmt: skip
    return (f"genie {shlex.join([*given, *own])}",)
