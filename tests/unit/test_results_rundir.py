"""The run directory: written atomically, read back, honest about runs that died."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rundir_maker import IN_EFFECT, make_run, operators, plan

from genie.collectives.program import Call, Lane, ProgramOp, RankProgram
from genie.errors import ConfigError, GenieError
from genie.results.records import JobOperators, digest, fault_outcomes, job_operators
from genie.results.rundir import RunDir, find_runs
from genie.workload.trace import CollectiveKind, Operator, OpKind, RankTrace, Trace


def create(root, **changes):
    settings = {
        "argv": ("genie",),
        "reproduce": "genie",
        "seed": 3,
        "hashes": {"workload": "a"},
        "config_yaml": "seed: 3",
    }
    return RunDir.create(root, "ecn_off-moe", **{**settings, **changes})


def test_what_is_written_is_read_back(tmp_path):
    run = RunDir.open(make_run(tmp_path, faults=(IN_EFFECT,)).path)
    assert run.plan == plan(iterations=12, faults=({"name": "link_rate_10pct"},), predicted_iteration_ns=18e6)
    assert run.operators == operators()
    assert run.faults() == (IN_EFFECT,)
    assert run.host().cores == 2
    assert run.counters().after["leaf0/spine0"]["ce_marked"] == 42
    assert run.manifest.faults == ("link_rate_10pct",)
    assert run.status == ("finished", "")
    assert "layers: 2" in run.config_yaml


def test_every_json_file_names_its_format_and_version(tmp_path):
    run = make_run(tmp_path)
    for name in ("manifest", "plan", "counters", "host", "faults"):
        content = json.loads((run.path / f"{name}.json").read_text())
        assert content["version"] == 1, name
        assert content["format"].startswith("genie-"), name


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"seed: \xb1", "config.yaml cannot be read"),
        (b"seed: [1", "is not valid YAML"),
        (b"- 1\n- 2", "expected a mapping, found list"),
        (b"", "expected a mapping, found NoneType"),
    ],
    ids=["no text", "cut short", "a list", "empty"],
)
def test_a_damaged_configuration_is_named(tmp_path, content, says):
    run = make_run(tmp_path)
    (run.path / "config.yaml").write_bytes(content)
    with pytest.raises(GenieError, match=says):
        _ = run.config


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda found: found.pop("comms"), r"operators\.json\.gz\.comms: expected an object, found NoneType"),
        (lambda found: found.update(comms=[]), r"operators\.json\.gz\.comms: expected an object, found list"),
        (lambda found: found["comms"].update({"": [0, "x"]}), r"comms\.\[1\]: expected int, found 'x'"),
        (lambda found: found.update(ranks=[3]), r"operators\.json\.gz\.ranks\[0\]: expected an object, found int"),
        (lambda found: found["ranks"][0].pop("lanes"), r"ranks\[0\]\.lanes: expected a list, found NoneType"),
        (lambda found: found["ranks"][0].update(ops=[7]), r"ranks\[0\]\.ops\[0\]: expected a list of 10 entries"),
        (lambda found: found["ranks"][0]["ops"][0].__setitem__(4, 5), r"ops\[0\]\.comm: expected str, found 5"),
        (lambda found: found["ranks"][0]["ops"][0].__setitem__(9, "x"), r"per_peer_bytes: expected a list, found str"),
        (lambda found: found["ranks"][0]["ops"][0].__setitem__(5, None), r"ops\[0\]\.bytes: expected int, found None"),
    ],
    ids=["no comms", "comms a list", "a member a word", "a rank a number", "no lanes", "an operator a number",
         "a communicator a number", "a vector a word", "no size"],
)  # fmt: skip
def test_damaged_operators_are_named(tmp_path, damage, says):
    run = make_run(tmp_path)
    found = json.loads(gzip.decompress((run.path / "operators.json.gz").read_bytes()))
    damage(found)
    (run.path / "operators.json.gz").write_bytes(gzip.compress(json.dumps(found).encode()))
    with pytest.raises(GenieError, match=says):
        _ = run.operators


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"faults": NaN}', r"faults\.json\.faults: expected a list, found float"),
        (b"{}", r"faults\.json: the key 'faults' is missing"),
    ],
    ids=["no list", "no key"],
)
def test_damaged_outcomes_of_faults_are_named(tmp_path, content, says):
    run = make_run(tmp_path)
    (run.path / "faults.json").write_bytes(content)
    with pytest.raises(GenieError, match=says):
        run.faults()


def test_a_damaged_stream_of_operators_is_named(tmp_path):
    run = make_run(tmp_path)
    path = run.path / "operators.json.gz"
    raw = bytearray(path.read_bytes())
    for place in range(12, 40):
        raw[place] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(GenieError, match=r"operators\.json\.gz cannot be read"):
        _ = run.operators


@pytest.mark.parametrize("rank", [-1, 99])
def test_a_rank_that_the_plan_does_not_place_is_named(rank):
    with pytest.raises(GenieError, match=f"other files of the run speak of rank {rank}"):
        plan().host(rank)


def test_no_temporary_file_is_left(tmp_path):
    run = make_run(tmp_path)
    assert not [path for path in run.path.rglob("*") if path.name.endswith(".tmp")]


def test_a_run_directory_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "notes.txt").write_text("mine")
    with pytest.raises(GenieError, match="exists and is not an empty directory"):
        create(tmp_path, path=tmp_path / "here")
    assert (tmp_path / "here" / "notes.txt").read_text() == "mine"


def test_of_runs_that_want_one_empty_directory_at_once_one_has_it(tmp_path):
    start = threading.Barrier(8)

    def wants(_: int) -> RunDir | str:
        start.wait()
        try:
            return create(tmp_path, path=tmp_path / "here")
        except ConfigError as refused:
            return refused.key

    with ThreadPoolExecutor(8) as pool:
        *others, winner = sorted(pool.map(wants, range(8)), key=lambda one: isinstance(one, RunDir))
    assert others == ["run_dir"] * 7
    assert RunDir.open(tmp_path / "here").manifest == winner.manifest


def test_a_given_path_is_taken_exactly(tmp_path):
    assert create(tmp_path, path=tmp_path / "exactly").path == tmp_path / "exactly"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no manifest.json"),
        ("{", "cannot be read"),
        ("[]", "expected an object"),
        ('{"format": "genie-run", "version": 9}', "version 9"),
        ('{"format": "other", "version": 1}', "'other'"),
    ],
    ids=["absent", "torn", "a list", "newer", "another program's"],
)
def test_a_folder_that_is_no_run_directory_is_refused(tmp_path, content, said):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(GenieError, match=said):
        RunDir.open(tmp_path)


def test_a_missing_key_is_named(tmp_path):
    run = create(tmp_path)
    manifest = json.loads((run.path / "manifest.json").read_text())
    del manifest["seed"]
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(GenieError, match="'seed' is missing"):
        _ = run.manifest


def test_a_file_that_is_not_there_yet_says_so(tmp_path):
    with pytest.raises(GenieError, match=r"no plan\.json: the run ended before"):
        _ = create(tmp_path).plan


def test_a_run_that_is_still_going_is_running(tmp_path):
    run = create(tmp_path)
    run.mark_running()
    assert run.status == ("running", "")


def test_a_run_whose_process_was_killed_is_aborted(tmp_path):
    code = (
        "import sys, os, pathlib; from genie.results.rundir import RunDir\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "run = RunDir.create(root, 'x', argv=(), reproduce='', seed=1, hashes={}, config_yaml='')\n"
        "run.mark_running(); print(run.path, flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    run = RunDir.open(Path(child.stdout.readline().strip()))
    assert run.status == ("running", "")
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdin.close()
    child.stdout.close()
    assert run.status == ("aborted", "the process that ran it is gone")


def test_a_pid_used_again_is_not_the_same_process(tmp_path):
    run = create(tmp_path)
    manifest = json.loads((run.path / "manifest.json").read_text())
    manifest |= {"pid": os.getpid(), "pid_start": manifest["pid_start"] - 1}
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    assert run.status[0] == "aborted"


def test_a_run_ends_only_in_ways_that_are_known(tmp_path):
    with pytest.raises(ValueError, match="ends as one of"):
        create(tmp_path).mark_ended("perhaps")


def test_runs_are_found_newest_first_and_sweeps_below(tmp_path):
    first = create(tmp_path)
    second = create(tmp_path / "sweep")
    (tmp_path / "other").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    assert [run.path for run in find_runs(tmp_path)] == [second.path, first.path]


def test_the_journal_is_lines_of_json(tmp_path):
    run = create(tmp_path)
    run.append_journal("phase", phase="build", seconds=0.2)
    run.append_journal("phase", phase="run")
    lines = [json.loads(line) for line in (run.path / "journal.jsonl").read_text().splitlines()]
    assert [line["phase"] for line in lines] == ["build", "run"]
    assert all(line["mono_ns"] > 0 for line in lines)


def test_names_of_directories_are_safe(tmp_path):
    run = RunDir.create(tmp_path, "a b/../c", argv=(), reproduce="", seed=1, hashes={}, config_yaml="")
    assert run.path.parent == tmp_path


def test_equal_configurations_have_equal_digests():
    assert digest({"a": 1, "b": (2, 3)}) == digest({"b": [2, 3], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


def test_operators_lead_from_event_numbers_to_the_trace():
    trace = Trace(
        ranks=[
            RankTrace(0, [
                Operator(70, "all2all", OpKind.COLLECTIVE, collective=CollectiveKind.ALL_TO_ALL, bytes=30,
                         per_peer_bytes=(10, 20), comm="ep"),
                Operator(3, "gemm", OpKind.COMPUTE, duration_ns=5),
            ]),
        ],
        communicators={"": (0, 1), "ep": (0, 1)},
    )  # fmt: skip
    program = RankProgram(
        rank=0, world=2, lanes=(Lane("compute", False), Lane("ep", True)), templates=(), comms={},
        ops=(
            ProgramOp(3, "gemm", 5, -1, 0, ()),
            ProgramOp(70, "all2all", 0, 0, 1, (0,)),
            ProgramOp(-1, "barrier", 0, -1, -1, (1,)),
        ),
        calls=(Call(9, 1, 0, "ep", 30, (10, 20), 4096),),
    )  # fmt: skip
    made = job_operators([program], trace)
    assert [(op.name, op.kind, op.call_id) for op in made.ranks[0].ops] == [
        ("gemm", "compute", -1), ("all2all", "collective", 9), ("barrier", "noop", -1),
    ]  # fmt: skip
    assert made.ranks[0].ops[1].per_peer_bytes == (10, 20)
    assert JobOperators.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_outcomes_of_faults_come_from_the_session():
    from types import SimpleNamespace as Like

    session = Like(
        plans=(
            Like(
                name="ecn_off",
                role="port_ecn",
                ports=(Like(name="leaf0/spine0"),),
                targets=("leaf0/spine0",),
                hypothesis="tail grows",
                mechanism=Like(twin_counter="ce_marked"),
            ),
        ),
        records=[Like(fault="ecn_off", action="reverted", ok=True, message="")],
        windows=lambda: (
            Like(fault="ecn_off", started_ns=15, ended_ns=0),
            Like(fault="other", started_ns=1, ended_ns=2),
            Like(fault="ecn_off", started_ns=5, ended_ns=9),
        ),
    )
    check = Like(what="queue", expected="above Kmin", found="90 kB", ok=True, kind="exercised")
    proof = Like(fault="ecn_off", state="in_effect", checks=(check,), facts={"peak": 1.0})
    (outcome,) = fault_outcomes(session, [proof])
    assert outcome.windows == outcome.stretches == ((5, 9), (15, None))
    assert (outcome.start_mono_ns, outcome.end_mono_ns, outcome.twin_counter) == (5, None, "ce_marked")
    assert outcome.why_not_in_effect() == ""
    (without,) = fault_outcomes(session, [])
    assert without.why_not_in_effect() == "it was not in effect"


@pytest.mark.parametrize(
    ("content", "stretches"),
    [
        ({"start_mono_ns": 5, "end_mono_ns": 9}, ((5, 9),)),
        ({"start_mono_ns": 5, "end_mono_ns": None}, ((5, None),)),
        ({"start_mono_ns": None, "end_mono_ns": None}, ()),
        ({"start_mono_ns": 5, "end_mono_ns": None, "windows": [[5, 9], [12, None]]}, ((5, 9), (12, None))),
    ],
    ids=["old", "old, never reverted", "old, never applied", "new"],
)
def test_windows_are_read_from_files_of_before_and_after(tmp_path, content, stretches):
    run = make_run(tmp_path)
    fault = {"name": "x", **content}
    (run.path / "faults.json").write_text(json.dumps({"format": "genie-faults", "version": 1, "faults": [fault]}))
    (outcome,) = run.faults()
    assert outcome.stretches == stretches
    run.write_faults([outcome])
    assert run.faults() == (outcome,)


def test_the_recipe_of_the_documentation_reads_events(tmp_path, monkeypatch):
    document = (Path(__file__).parents[2] / "docs" / "run-directory.md").read_text()
    recipe = textwrap.dedent(document.partition("## Reading events without GENIE\n\n")[2])
    run = make_run(tmp_path)
    monkeypatch.chdir(run.path)
    found: dict[str, object] = {}
    exec(compile(recipe, "run-directory.md", "exec"), found)
    assert len(found["records"]) == run.events(0).committed
    assert list(found["records"]["t2"]) == list(run.events(0).records["t2_ns"])


def test_every_file_of_a_run_is_documented(tmp_path):
    document = (Path(__file__).parents[2] / "docs" / "run-directory.md").read_text()
    run = make_run(tmp_path)
    run.append_journal("x")
    for path in run.path.iterdir():
        name = path.name + "/" if path.is_dir() else path.name
        assert f"`{name}" in document, name


@pytest.mark.parametrize("moment_ms", [0, 7, 20])
def test_whatever_moment_a_writer_is_killed_at_every_file_is_whole(tmp_path, moment_ms):
    code = (
        "import sys; from pathlib import Path; from genie.results.rundir import RunDir, HostRecord\n"
        "run = RunDir.open(Path(sys.argv[1])); n = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    run.write_results({'numbers': list(range(20000)), 'n': n})\n"
        "    run.write_host(HostRecord(n)); run.mark_running(); run.append_journal('turn', n=n)\n"
        "    if n == 1: print('going', flush=True)\n"
    )
    run = create(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", code, str(run.path)], stdout=subprocess.PIPE)
    child.stdout.readline()
    time.sleep(moment_ms / 1000)
    child.kill()
    child.wait()
    child.stdout.close()
    assert len(run.results()["numbers"]) == 20000
    assert run.host().cores >= 1
    assert RunDir.open(run.path).manifest.status == "running"
    lines = (run.path / "journal.jsonl").read_bytes().split(b"\n")
    assert all(json.loads(line) for line in lines[:-1])
