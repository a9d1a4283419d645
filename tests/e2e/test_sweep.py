"""Sweeps of real runs: one that is killed and resumed, and one whose cells Optuna chooses."""

from __future__ import annotations

import re
import subprocess
import time

import pytest
from genie_command import command

from genie.results.rundir import RunDir

SMALL = (
    "workload=dp", "workload.layers=1", "workload.iterations=2", "fabric=loopback", "transport.spin=0",
    "tracking.mlflow.enabled=false", "report.timeline=false", "report.html=false", "out=runs",
)  # fmt: skip


def finished(folder):
    return [path for path in folder.glob("*/manifest.json") if '"status": "finished"' in path.read_text()]


def test_a_killed_sweep_goes_on_where_it_was(tmp_path):
    words = ("-m", *SMALL, "workload.ranks=2,3", "sweep.repeats=2")
    process = subprocess.Popen(command(*words), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        deadline_s = time.monotonic() + 120
        while not (found := finished(next(iter((tmp_path / "runs/sweeps").glob("*")), tmp_path))):
            assert process.poll() is None, process.stdout.read().decode()
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    folder = found[0].parent.parent
    kept = {path: path.stat().st_mtime_ns for path in finished(folder)}
    done = subprocess.run(
        command("resume", str(folder)), cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode in (0, 4), done.stdout + done.stderr
    assert f"{len(kept)} of 4 runs of {folder} are done" in done.stdout
    assert f"{4 - len(kept)} of them left" in done.stdout
    assert "sweep: 4 runs, 0 of them without a result" in done.stdout
    assert re.search(r"workload\.ranks=3 / 2: \d", done.stdout), done.stdout
    assert len(finished(folder)) == 4
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "what was done is not done again"
    again = subprocess.run(command("resume", str(folder)), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode in (0, 4), "4 where the machine was too busy for one of the runs"
    assert "4 of 4 runs of" in again.stdout


def test_optuna_chooses_by_what_runs_answer(tmp_path):
    pytest.importorskip("optuna")
    words = (
        "-m", *SMALL, "hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=1",
        "workload.ranks=choice(2,3)",
    )  # fmt: skip
    done = subprocess.run(command(*words), cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    if "gives no median to optimise by" in done.stderr:
        assert "emulator saturated" in done.stderr  # a busy machine: said, and not taken for a slow network
        return
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "runs/sweeps").iterdir()
    runs = sorted(RunDir.open(path.parent).path.name for path in folder.glob("*/manifest.json"))
    assert runs == ["0-healthy-dp", "1-healthy-dp", "2-healthy-dp"]
    assert (folder / "optimization_results.yaml").is_file()
    assert re.search(r"^best: .*: [\d.]+ ms \(run \d of 3\)$", done.stdout, re.MULTILINE), done.stdout
