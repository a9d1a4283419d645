"""The main job as a user runs it: real namespaces, real TCP, real Ansible, a real MLflow database."""

import gzip
import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from genie_command import SMALL, command, read, run, run_directories

pytestmark = pytest.mark.netns

ROOT = os.geteuid() == 0
CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """A healthy run and its faulty twin in one folder."""
    cwd = tmp_path_factory.mktemp("twins")
    fault = "ecn_off" if ROOT else "link_rate"
    healthy = run("fault=[]", "+workload=moe", *SMALL, cwd=cwd)
    faulty = run(f"+fault={fault}", "+workload=moe", *SMALL, cwd=cwd)
    return cwd, fault, healthy, faulty


def test_both_runs_end_with_a_verdict_first(twins):
    _, _, healthy, faulty = twins
    for done in (healthy, faulty):
        assert done.returncode in (0, 4), done.stderr + done.stdout
        verdict = done.stdout.splitlines()[1].split()[0]
        assert verdict in {"MEASURED", "OK", "DEGRADED", "INCONCLUSIVE", "INVALID"}
        assert (verdict == "INVALID") == (done.returncode == 4)
        for said in (
            "iteration, median",
            "busbw",
            "ui.perfetto.dev",
            "again",
            "MLflow: ",
            "mlflow ui --backend-store-uri",
        ):
            assert said in done.stdout


def test_the_fault_was_in_effect_and_reverted(twins):
    cwd, fault, _, faulty = twins
    (record,) = read(run_directories(cwd / "runs")[1], "faults.json")["faults"]
    assert record["name"] == fault
    assert record["state"] == "in_effect", faulty.stdout
    assert record["reverted"] is True
    assert all(check["ok"] for check in record["checks"])


def test_the_second_run_is_compared_with_the_first(twins):
    cwd, _, healthy, _ = twins
    first, second = run_directories(cwd / "runs")
    if read(first, "results.json")["verdict"] == "invalid":
        assert "saturated" in healthy.stdout  # no baseline on a machine too busy to make one
        return
    comparison = read(second, "results.json")["comparison"]
    assert comparison["baseline_run_id"] == read(first, "manifest.json")["run_id"]
    assert comparison["median"]["ratio"]["value"] > 0


def test_the_timeline_is_a_chrome_trace_with_every_rank(twins):
    cwd, _, _, _ = twins
    for directory in run_directories(cwd / "runs"):
        trace = json.loads(gzip.decompress((directory / "timeline.json.gz").read_bytes()))
        names = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == "process_name"}
        assert {f"rank {rank} on h{rank}" for rank in range(8)} <= names


def test_mlflow_has_both_runs(twins):
    cwd, _, _, _ = twins
    with sqlite3.connect(cwd / "runs" / "genie.db") as database:
        (count,) = database.execute("select count(*) from runs where status in ('FINISHED', 'FAILED')").fetchone()
    assert count == 2


def test_a_report_can_be_made_again_from_the_directory(twins):
    cwd, _, healthy, _ = twins
    directory = run_directories(cwd / "runs")[0]
    shown = run("report", str(directory), cwd=cwd)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[0] in healthy.stdout


def test_a_dry_run_touches_nothing(tmp_path):
    before = _namespaces()
    done = run("dry_run=true", "fault=link_rate_10pct", *SMALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for said in ("h7: rank 7", "links of", "apply: tc qdisc", "undo:", "expected healthy iteration"):
        assert said in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert _namespaces() == before


def test_a_sweep_is_one_table_and_one_nested_mlflow_run(tmp_path):
    done = run("-m", "fault=[],link_rate", "workload=moe,dp", *SMALL[:2], *SMALL[3:], cwd=tmp_path)
    assert done.returncode in (0, 4), done.stderr
    directories = run_directories(tmp_path / "runs")
    assert len(directories) == 4, done.stdout
    table = done.stdout[done.stdout.index("sweep: 4 runs") :]
    rows = [line.split()[1:3] for line in table.splitlines() if len(line.split()) > 3]
    for cell in (["none", "moe"], ["none", "dp"], ["link_rate", "moe"], ["link_rate", "dp"]):
        assert cell in rows, table
    with sqlite3.connect(tmp_path / "runs" / "genie.db") as database:
        parents = database.execute("select value from tags where key = 'mlflow.parentRunId'").fetchall()
    assert len(parents) == 4
    assert len(set(parents)) == 1


def test_two_runs_at_once_do_not_meet(tmp_path):
    runs = [
        subprocess.Popen(
            command(
                "workload=collective",
                "workload.max_bytes=256KiB",
                "topology.host_rate=20Mbps",
                "tracking.mlflow.enabled=false",
                f"out=r{i}",
            ),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    for process in runs:
        said, _ = process.communicate(timeout=240)
        assert process.returncode in (0, 4), said
    for i in range(2):
        (directory,) = run_directories(tmp_path / f"r{i}")
        assert read(directory, "manifest.json")["status"] == "finished"


MOMENTS = random.Random(20260).sample(range(50, 6000), 5)


@pytest.mark.sample(2)
@pytest.mark.parametrize("moment_ms", MOMENTS, ids=lambda ms: f"killed after {ms} ms")
def test_kill_9_leaves_nothing_but_readable_results(tmp_path, moment_ms):
    tag = f"GENIE_TEST_KILL={tmp_path.name}-{moment_ms}"
    name, _, value = tag.partition("=")
    before, interfaces, mounts = _namespaces(), _interfaces(), _mounts()
    made = set()  # namespaces of this run; other runs of the machine have theirs
    process = subprocess.Popen(
        command("+fault=link_rate_10pct", *SMALL),
        cwd=tmp_path,
        env={**os.environ, name: value},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + moment_ms / 1000
    while process.poll() is None and time.monotonic() < deadline:
        made |= {name for pid in _tagged(tag) if (name := _namespace(Path(f"/proc/{pid}")))} - before
        time.sleep(0.001)
    process.kill()
    process.wait()
    _wait_until(lambda: not _tagged(tag), "its processes to be gone")
    _wait_until(lambda: not made & _namespaces(), "its namespaces to be gone")
    assert _interfaces() == interfaces
    assert _mounts() == mounts
    for directory in run_directories(tmp_path / "runs"):
        shown = run("report", str(directory), cwd=tmp_path)
        assert shown.returncode in (0, 4), shown.stderr
        assert "Traceback" not in shown.stderr


AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]


def _nobodys_genie(environment: dict[str, str], cwd: Path) -> list[str]:
    """The command as the user nobody can start it: with this interpreter, else (it may lie in a closed home) with
    the system's and this environment's packages. Skips, with what both of them said, if neither works.
    """
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    said = []
    for python, search in ((sys.executable, ""), ("/usr/bin/python3", f"{CHECKOUT}:{packages}")):
        if search:
            environment["PYTHONPATH"] = search
        tried = subprocess.run(
            # setpriv can start what nobody could not start again, as every part of genie starts others.
            [
                *AS_NOBODY,
                python,
                "-c",
                "import os, sys, genie.experiment, ansible; os.execv(sys.executable, ['python', '-V'])",
            ],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
        )
        if tried.returncode == 0:
            return [*AS_NOBODY, python, "-m", "genie"]
        said.append((tried.stderr.strip().splitlines() or ["no word"])[-1])
    pytest.skip(f"the user nobody can use no interpreter here: {'; '.join(said)}")


@pytest.mark.skipif(not ROOT, reason="not root: every test here runs as a user already")
@pytest.mark.root
def test_an_ordinary_user_can_run_it(nobodys_folder):
    """As nobody: healthy and link_rate run; ecn_off is refused with its reason unless the kernel has sch_red."""
    cwd = nobodys_folder
    environment = {**os.environ, "HOME": str(cwd), "TMPDIR": str(cwd), "XDG_RUNTIME_DIR": str(cwd)}
    genie = _nobodys_genie(environment, cwd)

    def user(*arguments):
        return subprocess.run(
            [*genie, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240
        )

    done = user("+fault=link_rate", *SMALL)
    assert done.returncode in (0, 4), done.stderr + done.stdout
    directories = run_directories(cwd / "runs")
    assert len(directories) == 1, done.stderr + done.stdout
    assert (directories[0] / "faults.json").is_file(), done.stderr + done.stdout
    (record,) = read(directories[0], "faults.json")["faults"]
    assert record["state"] == "in_effect", done.stdout
    refused = user("+fault=ecn_off", *SMALL)
    if refused.returncode not in (0, 4):
        assert refused.returncode == 3
        assert "sch_red" in refused.stderr
        assert len(run_directories(cwd / "runs")) == 1


def _namespaces() -> set[str]:
    """Network namespaces that processes of this machine live in."""
    return {name for entry in Path("/proc").iterdir() if entry.name.isdigit() and (name := _namespace(entry))}


def _namespace(process: Path) -> str:
    try:
        return str((process / "ns" / "net").readlink())
    except OSError:
        return ""


def _interfaces() -> list[str]:
    return sorted(path.name for path in Path("/sys/class/net").iterdir())


def _mounts() -> list[str]:
    return sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())


def _tagged(tag: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                alive = (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
                if alive and tag.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def _wait_until(condition, what: str, timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)
