"""Baseline, fault, baseline as a user runs it, and runs that are stopped: by hand, by the kill switch, by a stall."""

import json
import signal
import sqlite3
import subprocess
import time
from contextlib import closing

import pytest
from genie_command import command, read, run

pytestmark = pytest.mark.netns

TINY = (
    "experiment=quick",
    "workload.min_bytes=4KiB",
    "workload.max_bytes=32KiB",
    "topology.host_rate=20Mbps",
    "timeout=20s",
)
"""Four hosts, some 25 ms an iteration: little enough that a loaded machine keeps up."""
SHORT, LONG = (*TINY, "workload.iterations=8"), (*TINY, "workload.iterations=500")
ABA = ("protocol=aba", "run_dir=runs/aba")


def audit(cwd):
    lines = [json.loads(line) for line in (cwd / "runs" / "audit.log").read_text().splitlines()]
    return [(line["action"], line["fault"], line["result"]) for line in lines]


def start(*arguments, cwd):
    return subprocess.Popen(command(*arguments), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until_running(process, manifest):
    deadline = time.monotonic() + 120
    while not (manifest.is_file() and json.loads(manifest.read_text())["status"] == "running"):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def aba(tmp_path_factory):
    cwd = tmp_path_factory.mktemp("aba")
    return cwd, run("fault=link_rate_10pct", *SHORT, *ABA, cwd=cwd)


def test_the_slowdown_stands_out_and_the_network_recovers(aba):
    cwd, done = aba
    result = read(cwd / "runs" / "aba", "aba.json")["result"]
    assert result["median"]["ratio"]["low"] > 2, done.stdout
    assert result["median"]["verdict"] == "degraded"
    assert result["recovered"] in ("yes", "inconclusive"), done.stdout
    verdict = done.stdout.splitlines()[1].split()[0].lower()
    assert (verdict, done.returncode) in {("degraded", 0), ("invalid", 4)}, done.stdout + done.stderr
    assert verdict == "degraded" or "saturated" in result["why"]


def test_each_arm_is_a_run_of_its_own_on_the_same_placement(aba):
    cwd, _ = aba
    arms = [cwd / "runs" / "aba" / arm for arm in ("a1", "b", "a2")]
    assert [read(arm, "manifest.json")["faults"] for arm in arms] == [[], ["link_rate_10pct"], []]
    assert [read(arm, "manifest.json")["status"] for arm in arms] == ["finished"] * 3
    assert len({json.dumps(read(arm, "manifest.json")["hashes"]) for arm in arms}) == 1
    assert len({json.dumps(read(arm, "plan.json")["placement"]) for arm in arms}) == 1
    assert (cwd / "runs" / "aba" / "fabric.log").is_file()
    assert not (arms[0] / "fabric.log").exists()


def test_its_faults_are_in_the_audit_log(aba):
    cwd, _ = aba
    assert audit(cwd) == [(action, "link_rate_10pct", "ok") for action in ("planned", "applied", "reverted")]


def test_mlflow_has_one_run_with_three_below_it(aba):
    cwd, _ = aba
    with closing(sqlite3.connect(cwd / "runs" / "genie.db")) as database:
        tags = database.execute("select run_uuid, key, value from tags").fetchall()
    (parent,) = [run_id for run_id, key, value in tags if (key, value) == ("genie.protocol", "aba")]
    assert [value for _, key, value in tags if key == "mlflow.parentRunId"] == [parent] * 3


def test_the_report_can_be_made_again(aba):
    cwd, done = aba
    shown = run("report", "runs/aba", cwd=cwd)
    assert shown.returncode == 0, shown.stderr
    first = [line.rstrip() for line in done.stdout.splitlines()][1:8]
    assert shown.stdout.splitlines()[:7] == first
    logged = run("report", "runs/aba", "--log", cwd=cwd)
    assert logged.returncode == 0, logged.stderr
    assert done.stdout.splitlines()[-1].removeprefix("MLflow: ") == logged.stdout.splitlines()[-1]


def test_no_fault_is_no_slowdown(tmp_path):
    done = run("fault=none", *SHORT, *ABA, "tracking.mlflow.enabled=false", cwd=tmp_path)
    assert done.returncode in (0, 4), done.stderr
    result = read(tmp_path / "runs" / "aba", "aba.json")["result"]
    assert result["verdict"] in ("ok", "inconclusive", "invalid"), done.stdout
    assert result["median"]["verdict"] != "degraded", done.stdout
    assert not (tmp_path / "runs" / "audit.log").exists()


def test_an_interrupted_one_shows_what_it_has(tmp_path):
    process = start("fault=link_rate_10pct", *LONG, *ABA, cwd=tmp_path)
    folder = tmp_path / "runs" / "aba"
    wait_until_running(process, folder / "a1" / "manifest.json")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "what was measured until then: genie report runs/aba" in said
    assert read(folder, "aba.json")["status"] == "aborted"
    shown = run("report", "runs/aba", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "arm a1 (baseline before): the run was aborted: interrupted" in shown.stdout
    assert "ended early: interrupted" in shown.stdout


def test_the_kill_switch_ends_a_run_and_reverts(tmp_path):
    switch = tmp_path / "KILL"
    keys = (f"safety.kill_switch={switch}", "run_dir=runs/one")
    process = start("fault=link_rate_10pct", *LONG, *keys, cwd=tmp_path)
    wait_until_running(process, tmp_path / "runs" / "one" / "manifest.json")
    switch.touch()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 4, said
    assert f"stopped: the kill switch {switch} is there" in said
    manifest = read(tmp_path / "runs" / "one", "manifest.json")
    assert (manifest["status"], manifest["reason"]) == ("aborted", f"stopped: the kill switch {switch} is there")
    (fault,) = read(tmp_path / "runs" / "one", "faults.json")["faults"]
    assert fault["reverted"]
    actions = [action for action, *_ in audit(tmp_path)]
    assert actions == ["planned", "applied", "fired", "reverted"]
    again = run(*SHORT, keys[0], cwd=tmp_path)
    assert (again.returncode, f"the kill switch {switch} is there" in again.stderr) == (2, True)


def test_a_stall_ends_a_run_before_its_timeout(tmp_path):
    began = time.monotonic()
    done = run("fault=link_down", *LONG, "safety.stop.stall=2s", "run_dir=runs/one", cwd=tmp_path)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "stopped: no rank got on for 2s (safety.stop.stall)" in done.stderr
    assert time.monotonic() - began < 60
    assert [action for action, *_ in audit(tmp_path)][-2:] == ["fired", "reverted"]


def test_a_refusal_is_in_the_audit_log(tmp_path):
    done = run("fault=link_rate", *SHORT, "safety.max_links=0", cwd=tmp_path)
    assert done.returncode == 2
    assert "the faults touch 1 link (h2-switch0)" in done.stderr
    ((action, fault, result),) = audit(tmp_path)
    assert (action, fault) == ("refused", "link_rate")
    assert "safety.max_links is 0" in result
