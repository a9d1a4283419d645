"""Logging to MLflow with a real SQLite store: once, completely, later, and never at the cost of a run."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from rundir_maker import IN_EFFECT, make_run

from genie import track
from genie.results.compare import judge_and_store
from genie.results.timeline import write_timeline
from genie.schema import MlflowConfig

CONFIG = MlflowConfig()


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A folder of two measured runs, a healthy one and a slow one, logged as a sweep."""
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    root = tmp_path_factory.mktemp("runs")
    runs = [
        make_run(root),
        make_run(root, name="link_rate_10pct-moe", iteration_ms=(60, *[40] * 11), faults=(IN_EFFECT,)),
    ]
    for run in runs:
        judge_and_store(run, runs_root=root)
        write_timeline(run)
    parent = track.log_sweep(runs, CONFIG, out=root, name="fault=[],link_rate_10pct")
    return root, runs, parent, track._client(track.tracking_uri(CONFIG, root))


def of(store, index):
    _root, runs, _, client = store
    return client.get_run(runs[index].manifest.tracking["run_id"])


def test_the_default_store_is_absolute_and_so_are_its_artifacts(store):
    root, _, parent, client = store
    assert parent.problem == ""
    assert parent.uri == f"sqlite:///{root}/genie.db"
    assert client.get_experiment(parent.experiment_id).artifact_location == f"file://{root}/mlflow-artifacts"


def test_headline_metrics_have_units_in_their_names(store):
    metrics = of(store, 1).data.metrics
    assert metrics["iteration_time_median_ms"] == 40
    assert metrics["slowdown_median_ratio"] == 2
    assert metrics["collective/all_reduce/world/1000000B/busbw_GBps"] == pytest.approx(0.0533, abs=1e-4)
    assert metrics["network/retransmits_segments"] == 7
    assert metrics["host/cpu_busy_percent"] == 40
    unit = re.compile(r"_(ms|us|ratio|segments|packets|bytes|percent|GBps)(_low|_high)?$")
    assert [name for name in metrics if not unit.search(name)] == []


def test_iterations_are_a_series_that_begins_after_warm_up(store):
    _root, _runs, _, client = store
    history = client.get_metric_history(of(store, 0).info.run_id, "iteration_time_ms")
    assert [(point.step, point.value) for point in history][:4] == [(1, 20), (2, 20), (3, 20), (4, 20)]
    assert len(history) == 11


def test_tags_tell_the_runs_apart(store):
    tags = of(store, 1).data.tags
    assert (tags["genie.verdict"], tags["genie.fault"], tags["genie.workload"]) == (
        "degraded",
        "link_rate_10pct",
        "moe",
    )
    assert of(store, 0).data.tags["genie.fault"] == "none"
    assert tags["genie.baseline"] == store[1][0].manifest.run_id


def test_the_description_has_the_verdict_and_the_line_that_runs_it_again(store):
    note = of(store, 1).data.tags["mlflow.note.content"]
    assert note.startswith("**DEGRADED** slower than the healthy run")
    assert "    genie workload=moe seed=1" in note
    assert "- **link_rate_10pct**: in effect" in note


def test_parameters_are_the_configuration(store):
    assert of(store, 0).data.params == {"workload.kind": "moe", "workload.layers": "2", "seed": "1"}


def test_artifacts_are_there(store):
    _, _, _, client = store
    names = {artifact.path for artifact in client.list_artifacts(of(store, 1).info.run_id)}
    assert {"results.json", "config.yaml", "timeline.json.gz", "report.txt"} <= names


def test_a_sweep_nests_its_runs_and_shows_the_table(store):
    _, _, parent, client = store
    assert of(store, 0).data.tags["mlflow.parentRunId"] == parent.run_id
    note = client.get_run(parent.run_id).data.tags["mlflow.note.content"]
    assert "| degraded | link_rate_10pct | moe | 40 ms | 40 ms | 2.00x | 1.82x |" in note


def test_logging_twice_is_the_same_as_once(store):
    root, runs, parent, client = store
    again = track.log_run(runs[0], CONFIG, out=root)
    assert again.run_id == runs[0].manifest.tracking["run_id"]
    assert track.log_sweep(runs, CONFIG, out=root, name="fault=[],link_rate_10pct").run_id == parent.run_id
    assert len(client.search_runs([parent.experiment_id])) == 3


def test_a_run_logged_elsewhere_in_time_is_found_by_its_id(store):
    root, runs, _parent, _client = store
    before = dict(runs[0].manifest.tracking)
    runs[0].set_tracking({})
    assert track.log_run(runs[0], CONFIG, out=root).run_id == before["run_id"]


def test_a_half_written_attempt_is_replaced(store):
    root, _, parent, client = store
    run = make_run(root, name="later")
    judge_and_store(run, runs_root=root)
    half = client.create_run(parent.experiment_id, tags={"genie.run_id": run.manifest.run_id})
    logged = track.log_run(run, CONFIG, out=root)
    assert logged.run_id != half.info.run_id
    assert client.get_run(half.info.run_id).info.lifecycle_stage == "deleted"
    client.delete_run(logged.run_id)


def test_force_logs_anew(store):
    root, _, _, client = store
    run = make_run(root, name="again")
    judge_and_store(run, runs_root=root)
    first = track.log_run(run, CONFIG, out=root)
    second = track.log_run(run, CONFIG, out=root, force=True)
    assert first.run_id != second.run_id
    client.delete_run(second.run_id)


def test_an_invalid_run_is_logged_as_failed(store):
    root, _, _, client = store
    run = make_run(root, name="aborted", status="aborted")
    judge_and_store(run, runs_root=root)
    logged = track.log_run(run, CONFIG, out=root)
    found = client.get_run(logged.run_id)
    assert (found.info.status, found.data.tags["genie.verdict"]) == ("FAILED", "invalid")
    client.delete_run(logged.run_id)


def test_what_is_too_long_is_cut_and_says_so(store):
    root, _, _, client = store
    run = make_run(root, name="long")
    run._write_text("config.yaml", f"workload:\n  per_layer: {'x' * 9000}\n  {'k' * 300}: 1\n")
    judge_and_store(run, runs_root=root)
    logged = track.log_run(run, CONFIG, out=root)
    assert logged.problem == ""
    params = client.get_run(logged.run_id).data.params
    assert params["workload.per_layer"].endswith("(9000 characters, all of them in config.yaml)")
    assert len(params["workload.per_layer"]) == track.PARAM_MOST
    assert max(map(len, params)) <= track.KEY_MOST
    client.delete_run(logged.run_id)


def test_a_server_that_is_down_costs_nothing_and_the_run_can_be_logged_later(tmp_path):
    run = make_run(tmp_path)
    judge_and_store(run, runs_root=tmp_path)
    failed = track.log_run(run, MlflowConfig(uri="http://127.0.0.1:9"), out=tmp_path)
    assert failed.problem.startswith("MLflow at http://127.0.0.1:9 did not take the run: nobody answers there")
    assert f"genie report {run.path} --log" in failed.problem
    assert not run.manifest.tracking
    assert track.log_run(run, CONFIG, out=tmp_path).problem == ""


def test_a_database_that_is_none_is_a_sentence(tmp_path):
    run = make_run(tmp_path)
    judge_and_store(run, runs_root=tmp_path)
    (tmp_path / "genie.db").write_text("not a database, " * 100)
    assert "file is not a database" in track.log_run(run, CONFIG, out=tmp_path).problem


def test_a_run_that_was_never_measured_is_not_logged(tmp_path):
    assert "never measured" in track.log_run(make_run(tmp_path), CONFIG, out=tmp_path).problem


def test_a_uri_of_the_configuration_stands_before_that_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there:5000")
    assert track.tracking_uri(CONFIG, tmp_path) == "http://there:5000"
    assert track.tracking_uri(MlflowConfig(uri="http://here"), tmp_path) == "http://here"


def test_names_that_mlflow_does_not_take_stay_apart():
    assert track._key("port/leaf0/spine1/queue_p99_bytes") == "port/leaf0/spine1/queue_p99_bytes"
    assert track._key("a*b") != track._key("a?b")


def test_flattening_keeps_lists_and_empty_mappings():
    assert dict(track.flatten({"a": {"b": [1, 2], "c": {}}, "d": None})) == {"a.b": "[1, 2]", "a.c": "{}", "d": ""}


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 123_456])
def test_series_are_thinned_to_a_thousand_points_with_both_ends(count):
    steps = list(track.downsample(count))
    assert len(steps) <= 1000
    assert not count or (steps[0] == 0 and steps[-1] == count - 1)


AT_ONCE = """
import sys
from pathlib import Path
from genie import track
import mlflow.tracking
print("ready", flush=True)
sys.stdin.readline()
out = Path(sys.argv[1])
print(track._Store(f"sqlite:///{out / 'genie.db'}", "genie", out).experiment_id)
"""


def test_runs_that_end_at_once_are_all_the_first_in_a_folder(tmp_path):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", AT_ONCE, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    ends = [writer.communicate(timeout=60) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0], ends
    assert {said for said, _ in ends} == {"1\n"}
