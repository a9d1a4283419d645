"""A preflight of a small embedded network as a user runs it: healthy, with a planted slow host, and interrupted."""

import json
import signal
import subprocess
import time

import pytest
from genie_command import command, read, run

pytestmark = pytest.mark.netns

RATE_BPS = 20_000_000
NETWORK = ("preflight", "topology=single_switch", "topology.hosts=4", "topology.host_rate=20Mbps",
           "preflight.repeats=1", "preflight.message_bytes=64KiB", "timeout=30s",
           "tracking.mlflow.enabled=false")  # fmt: skip
"""Little enough that a loaded machine keeps up: two pairs at a time, 5 MB a second."""


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    cwd = tmp_path_factory.mktemp("preflight")
    return cwd, run(*NETWORK, "preflight.keep=always", "run_dir=runs/healthy", cwd=cwd)


def test_every_pair_has_bandwidth_and_latency_and_the_whole_is_kept(healthy):
    cwd, done = healthy
    assert done.returncode in (0, 4), done.stdout + done.stderr  # 4: this machine was too busy to tell
    record = read(cwd / "runs" / "healthy", "preflight.json")
    (rail,) = record["rails"]
    for a in range(4):
        for b in range(4):
            if a != b:
                assert 0 < rail["bandwidth_bps"][a][b] <= 1.02 * RATE_BPS
                assert rail["latency_ns"][a][b] > 0
    assert done.stdout.splitlines()[1].split()[0].lower() == record["verdict"]
    if done.returncode == 0:
        kept = json.loads((cwd / "runs" / "preflight" / f"{record['fabric_hash']}.json").read_text())
        assert kept["rails"] == record["rails"]


def test_the_run_that_measured_is_a_run_like_any_other(healthy):
    cwd, _ = healthy
    inner = cwd / "runs" / "healthy" / "run"
    assert json.loads((inner / "manifest.json").read_text())["status"] == "finished"
    shown = run("report", "runs/healthy/run", cwd=cwd)
    assert "send_recv" in shown.stdout
    again = run("report", "runs/healthy", cwd=cwd)
    assert "row sends to column" in again.stdout


def test_a_host_whose_link_trained_down_is_named(healthy):
    cwd, _ = healthy
    words = (*NETWORK, "preflight.pings=0", "fault=link_rate", "fault.link_rate.targets=[h2-switch0]")
    done = run(*words, "run_dir=runs/slow", "expect=degraded", cwd=cwd)
    record = read(cwd / "runs" / "slow", "preflight.json")
    assert [(f["what"], f["where"], f["hosts"]) for f in record["findings"]] == [("bandwidth", "host", ["h2"])], (
        done.stdout
    )
    (finding,) = record["findings"]
    assert {"others", "ports"} <= set(finding["against"])
    assert (record["verdict"], done.returncode) in {("degraded", 0), ("invalid", 4)}, done.stdout + done.stderr
    assert record["verdict"] == "degraded" or "saturated" in record["why"]
    assert record["kept_why"]


def test_ctrl_c_leaves_what_was_measured(tmp_path):
    words = (*NETWORK, "preflight.pings=5", "preflight.repeats=500", "run_dir=runs/cut")
    words = tuple(word for word in words if word != "preflight.repeats=1")
    process = subprocess.Popen(command(*words), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    events = tmp_path / "runs" / "cut" / "run" / "events" / "rank-0.evt"
    deadline = time.monotonic() + 120
    while not (events.is_file() and int.from_bytes(events.read_bytes()[80:84], "little") >= 1):  # one whole repeat
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    record = read(tmp_path / "runs" / "cut", "preflight.json")
    assert (record["status"], record["verdict"], record["kept"]) == ("interrupted", "invalid", "")
    assert sum(value is not None for row in record["rails"][0]["bandwidth_bps"] for value in row) == 12
    assert "interrupted; 12 of 12 directions were measured until then" in out
