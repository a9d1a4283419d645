"""Folders of searches on made-up ground, to an end or cut short: for tests of the page and of reading them again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from bisect_ground import ground

from genie.bisect import ddmin
from genie.bisect import scene as scenes
from genie.bisect.belief import Answer
from genie.bisect.changes import GOOD_RUNS, RATES, StateRun, Tried, reference_of, verdict_of
from genie.bisect.conclude import changes_record, components_record
from genie.bisect.config import BisectConfig
from genie.bisect.ddmin import Subset
from genie.bisect.hunt import Hunted, ProbeRecord, _plain, search_of
from genie.bisect.journal import BisectJournal
from genie.bisect.record import FILE_NAME, BisectRecord, write_record
from genie.bisect.scene import Scene
from genie.bisect.sprt import Sprt
from genie.bisect.suspects import suspects_of
from genie.topology import LeafSpineConfig, build
from genie.topology.model import Topology

TOPOLOGY = build(LeafSpineConfig(hosts=8, leaves=4, spines=2))
CHANGES = ("collective=ring", "topology.mtu=1500", "workload.layers=8", "seed=7")


def _noise(*what: object) -> float:
    """0 … 1, always the same for the same."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:4], "big") / 2**32


def scene_of_components(topology: Topology = TOPOLOGY, seed: int = 2, *, known: bool = True) -> Scene:
    """A network whose flows' ways are drawn by the seed; ``known``: the search is told which."""
    roles, cables = scenes.network(topology)
    return Scene(
        "components", "genie bisect topology.hosts=8", ("topology.hosts=8",), seed, topology.name, "netns",
        BisectConfig(), notes=("70 suspects, all as likely as each other",), roles=roles, cables=cables,
        suspects=suspects_of(topology), ground=ground(topology, seed, known=known), created_ns=1_790_000_000 * 10**9,
    )  # fmt: skip


def components(
    folder: Path, guilty: Sequence[str], *, most: int = 99, scene: Scene | None = None, alarms: float = 0.02
) -> BisectRecord | None:
    """A search for these suspects, journaled; ``most`` probes, then it is left as a kill leaves it."""
    scene = scene or scene_of_components()
    assert scene.ground is not None
    folder.mkdir(parents=True)
    tokens = frozenset().union(*(s.tokens for s in scene.suspects if s.name in guilty))
    search = search_of(scene.suspects, scene.ground, scene.settings, seed=scene.seed)
    done: list[ProbeRecord] = []
    with BisectJournal(folder, {"words": list(scene.words), "mode": "components"}) as journal:
        scenes.keep(journal, scene)
        while (probe := search.next()) is not None and len(done) < most:
            answers = []
            for question in probe.questions:
                met = any(way.tokens & tokens for way in question.ways)
                bad = met or _noise(scene.seed, probe.number, question.name) < alarms
                reached = 0.25 if met else 0.9 if bad else 1.0
                answers.append(Answer(question, bad, f"{reached:.0%} of what its path allows"))
            record = ProbeRecord(
                probe.number, probe.kind, f"probe-{probe.number}", probe.pairs, probe.repeats, tuple(answers), "",
                probe.number == 1, 1.5,
            )  # fmt: skip
            search.learn(answers, disturbed=scene.settings.busy_ratio if record.busy else 0.0)
            journal.append("probe", **_plain(record))
            done.append(record)
    conclusion = search.conclusion()
    if conclusion is None:
        return None
    beyond = tuple(suspect.name for suspect in search.belief.beyond_reach)
    found = components_record(Hunted(conclusion, tuple(done), (), beyond), search, scene, folder)
    write_record(folder / FILE_NAME, found)
    return found


def changes(folder: Path, slower: Mapping[Subset, float], *, most: int = 99) -> BisectRecord | None:
    """A search over `CHANGES`: a state that has all changes of a key takes that much longer. ``most`` runs in all."""
    scene = Scene(
        "changes", "genie bisect workload=dp", ("workload=dp",), 1, TOPOLOGY.name, "netns",
        BisectConfig(changes=CHANGES), created_ns=1_790_000_000 * 10**9,
    )  # fmt: skip
    folder.mkdir(parents=True)
    runs: list[StateRun] = []
    sure: dict[Subset, float] = {}

    class Killed(Exception):
        pass

    with BisectJournal(folder, {"words": list(scene.words), "mode": "changes"}) as journal:
        scenes.keep(journal, scene)

        def run(changes: Subset, number: int) -> StateRun:
            if len(runs) == most:
                raise Killed
            worse = max((value for key, value in slower.items() if set(key) <= set(changes)), default=1.0)
            median_ns = 20e6 * worse * (1 + 0.02 * _noise(changes, number))
            limit = (reference_of(runs[:GOOD_RUNS]) or 0.0) * (1 + scene.settings.worse_ratio)
            made = StateRun(changes, f"run-{len(runs)}", median_ns, bool(changes) and median_ns > limit, "", 2.0)
            journal.append(
                "run", changes=list(changes), run=made.run, median_ns=median_ns, bad=made.bad, said="", took_s=2.0
            )
            runs.append(made)
            return made

        def is_bad(changes: Subset) -> bool:
            test = Sprt(RATES)
            while test.decision is None:
                test.tell(run(changes, test.answers).bad)
            sure[changes] = test.confidence
            return verdict_of(test)

        try:
            for number in range(GOOD_RUNS):
                run((), number)
            guilty = ddmin.culprits(CHANGES, is_bad)
        except Killed:
            return None
    tried = Tried(tuple(runs), reference_of(runs[:GOOD_RUNS]) or 0.0, sure)
    record = changes_record(guilty, tried, scene, folder)
    write_record(folder / FILE_NAME, record)
    return record
