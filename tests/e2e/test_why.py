"""Runs on the embedded fabric explained: where the blame goes, and whether paths are those that packets took."""

import json
from pathlib import Path

import pytest
from genie_command import read, run

pytestmark = pytest.mark.netns

SMALL = (
    "workload=collective",
    "workload.kind=all_to_all",
    "workload.sizes=[512KiB]",
    "workload.iterations=3",
    "topology.hosts=8",
    "topology.leaves=2",
    "topology.spines=2",
    "topology.host_rate=20Mbps",
    "tracking.mlflow.enabled=false",
    "baseline=none",
)
"""Eight ranks, some 0.2 s an iteration. Whether a loaded machine keeps up does not matter: queues empty at the rate
that their port has.
"""


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    cwd = tmp_path_factory.mktemp("why")
    done = run("+fault=uplink_degraded", *SMALL, "run_dir=runs/slow", cwd=cwd)
    assert done.returncode in (0, 4), done.stdout + done.stderr
    return cwd


def why(cwd: Path) -> dict:
    return read(cwd / "runs" / "slow", "why.json")


def test_the_slow_uplink_comes_first(slow):
    (fault,) = read(slow / "runs" / "slow", "faults.json")["faults"]
    found = why(slow)
    assert found["link_scores"][0]["port"] in fault["targets"]
    assert found["suspect"]["kind"] == "link"
    assert found["suspect"]["names"][0] in fault["targets"]
    assert found["link_scores"][0]["drain_ratio"] == pytest.approx(0.25, abs=0.05)
    # what is printed is what was kept at the end of the run
    printed = run("why", "runs/slow", "--json", cwd=slow)
    assert printed.returncode == 0, printed.stderr
    assert json.loads(printed.stdout) == found


def test_blame_sums_to_the_iterations_that_were_measured(slow):
    found = why(slow)
    each = read(slow / "runs" / "slow", "results.json")["metrics"]["iteration"]["each_ns"]
    assert [blame["duration_ns"] for blame in found["iterations"]] == pytest.approx(each, rel=1e-6)
    for blame in found["iterations"]:
        assert sum(blame["causes"].values()) == pytest.approx(blame["duration_ns"], rel=1e-6)
    for kind in ("causes", "operators", "comms", "links", "ranks"):
        assert sum(share["ns"] for share in found[kind]) == pytest.approx(found["iteration_ns"], rel=1e-6), kind


@pytest.mark.skipif(
    not Path("/proc/sys/net/ipv4/fib_multipath_hash_seed").exists(),
    reason="this kernel has no fib_multipath_hash_seed (6.11 has)",
)
def test_ports_counted_what_the_computed_paths_say(slow):
    routes = why(slow)["routes"]
    assert routes["basis"] == "computed", routes["text"]
    assert routes["known"] == routes["flows"] == 56
