"""What is around the search: settings, journal and resuming, changes of a configuration, evidence, final statement."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from bisect_ground import ground

from genie.bisect import report
from genie.bisect.belief import Answer
from genie.bisect.changes import words_of
from genie.bisect.command import exit_code, read_resume, settings_of
from genie.bisect.conclude import components_record
from genie.bisect.config import BisectConfig
from genie.bisect.hunt import Hunted, ProbeRecord, _plain, replayed, search_of
from genie.bisect.journal import FILE_NAME, BisectJournal
from genie.bisect.probes import Expected, config_of, load_bytes
from genie.bisect.record import read_record, write_record
from genie.bisect.rounds import Ground, waves
from genie.bisect.scene import Scene
from genie.bisect.search import Probe
from genie.bisect.suspects import suspects_of
from genie.errors import ConfigError, GenieError
from genie.schema import parse_config
from genie.topology import LeafSpineConfig, build

SETTINGS = BisectConfig()
TOPOLOGY = build(LeafSpineConfig(hosts=8, leaves=2, spines=2))


# -- settings -----------------------------------------------------------------------------------------------------


def test_settings_are_read_as_they_are_typed() -> None:
    words = ["bisect.confidence=0.9", "+bisect.time=1s", "bisect.changes=[collective=ring, a=1 b=2]"]
    made = settings_of(words)
    assert (made.confidence, made.time_ns, made.changes) == (0.9, 10**9, ("collective=ring", "a=1 b=2"))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("bisect.confidnce=0.9", "did you mean 'confidence'"),
        ("bisect.confidence", "a value is missing"),
        ("bisect.confidence=1", "between 0.5 and 1"),
        ("bisect.miss=0", "between 0.0 and 0.5"),
        ("bisect.time=1us", "at least 1ms"),
        ("bisect.probes=0", "between 1 and 1000"),
        ("bisect.culprits=9", "between 1 and 5"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings_of([word])


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        settings_of(["bisect.miss=0.1", "bisect.miss=0.2"])


# -- journal ------------------------------------------------------------------------------------------------------


def test_a_journal_gives_back_what_was_written(tmp_path: Path) -> None:
    with BisectJournal(tmp_path, {"words": ["a=1"]}) as journal:
        assert journal.entries == ()
        journal.append("probe", number=0)
    with BisectJournal(tmp_path, {"words": ["a=1"]}) as journal:
        assert journal.of("probe") == [{"event": "probe", "number": 0}]
        assert journal.of("run") == []


def test_a_line_that_a_kill_cut_short_is_left_out_and_written_over(tmp_path: Path) -> None:
    with BisectJournal(tmp_path, {"words": []}) as journal:
        journal.append("probe", number=0)
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"event":"probe","num')
    with BisectJournal(tmp_path, {"words": []}) as journal:
        assert len(journal.entries) == 1
        journal.append("probe", number=1)
    with BisectJournal(tmp_path, {"words": []}) as journal:
        assert [entry["number"] for entry in journal.entries] == [0, 1]


def test_a_journal_of_another_search_is_refused_with_the_difference(tmp_path: Path) -> None:
    with BisectJournal(tmp_path, {"words": [], "seed": 1}):
        pass
    with pytest.raises(ConfigError, match="seed was 1, is 2"):
        BisectJournal(tmp_path, {"words": [], "seed": 2})


def test_two_processes_cannot_be_at_one_search(tmp_path: Path) -> None:
    with BisectJournal(tmp_path, {"words": []}):
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(ConfigError, match="another process"):
            BisectJournal(tmp_path, {"words": []})
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("no json\n")
    with pytest.raises(ConfigError, match="damaged"):
        BisectJournal(tmp_path, {"words": []})


def test_resuming_takes_the_words_that_began_the_search(tmp_path: Path) -> None:
    with BisectJournal(tmp_path, {"words": ["topology.hosts=4", "seed=3"]}):
        pass
    for typed in (["--resume", str(tmp_path)], [f"--resume={tmp_path}"]):
        assert read_resume(typed) == (["topology.hosts=4", "seed=3"], tmp_path)
    assert read_resume(["seed=3"]) == (["seed=3"], None)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--resume"], "needs the folder"),
        (["--resume="], "needs the folder"),
        (["--resume", "nowhere"], "is not the folder of a bisect"),
        (["--resume", "nowhere", "seed=3"], "with the words that began it"),
    ],
)
def test_resuming_nothing_is_refused(typed: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_resume(typed)


def test_a_search_that_goes_on_makes_the_same_next_probe() -> None:
    def begun() -> tuple[object, Ground]:
        made = ground(TOPOLOGY, 1)
        return search_of(suspects_of(TOPOLOGY), made, SETTINGS, seed=5), made

    first, _ = begun()
    entries = []
    for _ in range(2):
        probe = first.next()  # type: ignore[attr-defined]
        answers = tuple(Answer(q, "port h2/leaf0" in q.ways[0].tokens, "50%") for q in probe.questions)
        record = ProbeRecord(probe.number, probe.kind, "probe", probe.pairs, probe.repeats, answers, "", True, 1.0)
        entries.append(_plain(record))
        first.learn(answers, disturbed=SETTINGS.busy_ratio)  # type: ignore[attr-defined]
    second, _ = begun()
    for entry in entries:
        replayed(entry, second, SETTINGS)  # type: ignore[arg-type]
    assert second.next() == first.next()  # type: ignore[attr-defined]


# -- changes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        (["seed=1"], [], ["seed=1"]),
        (["seed=1"], ["collective=ring"], ["seed=1", "collective=ring"]),
        (["topology.mtu=9000"], ["topology.mtu=1500"], ["topology.mtu=1500"]),
        (["+fault=a"], ["+fault=b"], ["fault=[a,b]"]),
        (["fault=[a,b]"], ["fault=[b,c]", "seed=2"], ["fault=[a,b,c]", "seed=2"]),
        ([], ["a=1 b=2", "b=3"], ["a=1", "b=3"]),
    ],
    ids=["none", "a new key", "a later word wins", "faults add up", "faults are not doubled", "several in one"],
)
def test_changes_are_put_upon_the_command_line(base: list[str], changes: list[str], words: list[str]) -> None:
    assert words_of(base, changes) == words


def test_a_change_that_is_no_override_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected key=value"):
        words_of([], ["nonsense"])


# -- probes -------------------------------------------------------------------------------------------------------


def test_what_a_healthy_flow_reaches_by_hand() -> None:
    """4200 bytes of packet carry 4148 of payload in 4214 on the wire."""
    expected = Expected(4200, {(0, 1): 7e6}, "")
    assert expected.bps((1, 0), 100_000_000) == pytest.approx(1e8 * 4148 / 4214)
    assert expected.bps((0, 1), 100_000_000) == 7e6
    assert expected.bps((1, 0), 0) == 0


def test_a_probe_is_a_run_that_anyone_can_make_again() -> None:
    config = parse_config(
        {
            "workload": {"name": "moe"}, "topology": {"name": "leaf_spine", "hosts": 8, "placement": "round_robin"},
            "transport": {"name": "tcp"}, "fabric": {"name": "netns"}, "seed": 3,
        }
    )  # fmt: skip
    made = ground(TOPOLOGY, 1)
    pairs = ((0, 4), (1, 5), (2, 3))
    probe = Probe(2, "network", pairs, tuple(made.questions(pairs)), 1.0, 4)
    own = config_of(config, SETTINGS, made, probe)
    # 300 ms of 100 Mb/s in whole messages of 64 KiB
    assert load_bytes(made, SETTINGS, (0, 4)) == 58 * 65536
    assert own.workload.bandwidth_rounds == tuple(
        " ".join(f"{a}-{b}:{58 * 65536}" for a, b in wave) for wave in waves(made, pairs)
    )
    assert (own.workload.iterations, own.workload.pings, own.warmup, own.seed) == (4, 0, 0, 3)
    assert (own.topology.placement, own.collective.chunk_bytes, own.name) == ("block", 65536, "probe2-network")


# -- the final statement ------------------------------------------------------------------------------------------


def concluded(tmp_path: Path, guilty: str, hidden: tuple[str, ...] = ()) -> object:
    made = ground(TOPOLOGY, 1)
    suspects = suspects_of(TOPOLOGY)
    search = search_of(suspects, made, SETTINGS, seed=2)
    tokens = next((s.tokens for s in suspects if s.name == guilty), frozenset())
    rng = random.Random(1)
    done = []
    while (probe := search.next()) is not None:
        answers = tuple(
            Answer(q, bool(q.ways[0].tokens & tokens), f"{50 if q.ways[0].tokens & tokens else 100}% of its path")
            for q in probe.questions
        )
        record = ProbeRecord(
            probe.number, probe.kind, f"probe-{probe.number}", probe.pairs, 1, answers, "", False, rng.random()
        )
        search.learn(answers)
        done.append(record)
    conclusion = search.conclusion()
    assert conclusion is not None
    scene = Scene(
        "components", "genie bisect", ("topology.hosts=8",), 1, "leaf_spine", "netns", SETTINGS, hidden=hidden,
        suspects=suspects, ground=made,
    )  # fmt: skip
    return components_record(Hunted(conclusion, tuple(done), (), ()), search, scene, tmp_path)


@pytest.mark.parametrize(
    ("guilty", "says", "confirms"),
    [
        ("nic h5", "h5 sends slower or with loss; what it receives is well", "workload=pairs"),
        ("link h6-leaf1", "slow or lossy both ways", "workload=pairs"),
        ("host h3", "host compute, not network", "workload=dp"),
    ],
)
def test_a_culprit_is_named_with_evidence_and_a_command_to_confirm(
    tmp_path: Path, guilty: str, says: str, confirms: str
) -> None:
    record = concluded(tmp_path, guilty)
    (culprit,) = record.culprits  # type: ignore[attr-defined]
    assert culprit.name == guilty
    assert says in culprit.says
    assert culprit.bad == culprit.asked > 0
    assert record.clear == record.others > 0  # type: ignore[attr-defined]
    assert confirms in culprit.confirm[0]
    assert culprit.confirm[0].startswith("genie topology.hosts=8 ")
    text = report.render(record)  # type: ignore[arg-type]
    assert text.startswith(f"FOUND  {guilty} (")
    assert "50% of its path" in text


def test_nothing_found_is_said_so(tmp_path: Path) -> None:
    record = concluded(tmp_path, "nobody")
    assert report.render(record).startswith("NONE  no component is guilty")  # type: ignore[arg-type]


def test_a_record_comes_back_from_its_file(tmp_path: Path) -> None:
    record = concluded(tmp_path, "switch spine0", hidden=("spine_slow on spine0",))
    write_record(tmp_path / "bisect.json", record)  # type: ignore[arg-type]
    assert read_record(tmp_path / "bisect.json") == record
    assert "hidden     spine_slow on spine0" in report.render(record)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "[]", '{"format": "genie-bisect", "version": 2}'])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bisect.json").write_text(text)
    with pytest.raises(GenieError, match=r"bisect\.json"):
        read_record(tmp_path / "bisect.json")


@pytest.mark.parametrize(
    ("word", "expect", "code"),
    [
        ("found", None, 0), ("none", None, 0), ("inconclusive", None, 4), ("found", "ok", 1), ("none", "ok", 0),
        ("found", "degraded", 0), ("none", "degraded", 1), ("inconclusive", "ok", 4),
    ],
)  # fmt: skip
def test_exit_codes(word: str, expect: str | None, code: int) -> None:
    assert exit_code(word, expect) == code
