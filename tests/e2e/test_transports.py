"""Every collective by every algorithm over each transport that has a library under it, each byte checked.

On the loopback fabric and through the ports of the embedded one. What arrives is compared with the pattern that was
sent (``verify=true``), so a message in a wrong place, order or size ends the run.
"""

import pytest
from genie_command import SMALL, read, run, run_directories
from one_job import Job, interface

from genie.collectives import ALGORITHMS
from genie.errors import EnvironmentUnfit
from genie.fabric.probe import probe
from genie.results.ports import read_ports
from genie.transport import TRANSPORTS
from genie.transport.built import PACKAGES, refuse_missing

NAMES = ("ofi", "gloo")
FABRICS = ("loopback", "netns")
CASES = [
    *sorted((kind.value, name) for name, algorithm in ALGORITHMS.items() for kind in algorithm.kinds),
    ("send_recv", "auto"),
]
QUICK = ("workload.iterations=2", "verify=true", "tracking.mlflow.enabled=false", "report.html=false", "timeout=60s")


def _need(transport, fabric):
    try:
        refuse_missing(TRANSPORTS[transport][0]())
    except EnvironmentUnfit:
        pytest.skip(f"needs {PACKAGES[transport]} where GENIE is built")
    if fabric == "netns" and (reasons := probe().unfit):
        pytest.skip(f"no namespaces: {'; '.join(reasons)}")


@pytest.mark.sample(6)
@pytest.mark.parametrize(("kind", "algorithm"), CASES, ids=["-".join(case) for case in CASES])
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("transport", NAMES)
def test_every_collective_arrives_as_it_was_sent(transport, fabric, kind, algorithm, tmp_path):
    _need(transport, fabric)
    chosen = () if kind == "send_recv" else (f"collective.{kind}={algorithm}",)
    done = run(
        f"transport={transport}", f"fabric={fabric}", "workload=collective", f"workload.kind={kind}",
        "workload.ranks=5" if algorithm != "halving_doubling" else "workload.ranks=4", "workload.sizes=[3,100001]",
        "collective.channels=2", "collective.channel_min_bytes=1000", "collective.chunk_bytes=30000", *chosen, *QUICK,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode in (0, 4), done.stdout + done.stderr  # 4: this machine was too busy for its numbers
    assert run_directories(tmp_path / "runs"), done.stdout + done.stderr


@pytest.mark.parametrize("transport", NAMES)
def test_what_is_sent_goes_through_the_ports_of_the_fabric(transport, tmp_path):
    _need(transport, "netns")
    done = run(
        f"transport={transport}", "workload=collective", "workload.kind=all_to_all", "workload.ranks=8",
        "workload.sizes=[800000]", *QUICK, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode in (0, 4), done.stdout + done.stderr
    (directory,) = run_directories(tmp_path / "runs")
    names = read(directory, "plan.json")["ports"]
    samples = read_ports(directory / "ports.smp")
    for rank in range(8):
        port = samples.of(next(i for i, name in enumerate(names) if name.startswith(f"h{rank}/")))
        seen = int(port["tx_bytes"][-1]) - int(port["tx_bytes"][0])
        assert seen >= 7 * 100_000, f"h{rank} sent {seen} bytes through its port, of 700,000 to others an iteration"
    record = read(directory, "transport.json")
    assert (record["transport"], [rank["host"] for rank in record["ranks"]]) == (
        transport, [f"h{rank}" for rank in range(8)],
    )  # fmt: skip
    used = {rank["used"].get("provider") for rank in record["ranks"]}
    assert used == ({"tcp;ofi_rxm"} if transport == "ofi" else {None})


@pytest.mark.parametrize("transport", NAMES)
def test_an_agent_that_dies_is_named_and_the_others_are_stopped(transport, tmp_path):
    _need(transport, "netns")
    long = ("workload=moe", "workload.iterations=60", *SMALL[1:-1], "timeout=20s")
    job = Job((f"transport={transport}", *long), tmp_path)
    race = job.race(lambda job: job.signal("h2", "KILL"))
    assert "h2" in job.error(race).message
    assert race.outcome.statuses[2] == -1
    assert all(status in (1, 2) for rank, status in race.outcome.statuses.items() if rank != 2)
    assert job.ended_at - job.done_at < 15  # the connection of its agent ended: nobody waits for the timeout


@pytest.mark.parametrize("transport", NAMES)
def test_a_dead_link_ends_every_rank_by_name(transport, tmp_path):
    _need(transport, "netns")
    long = ("workload=moe", "workload.iterations=60", *SMALL[1:-1], "timeout=3s")
    job = Job((f"transport={transport}", *long), tmp_path)
    race = job.race(lambda job: job.fabric.run("h3", ["ip", "link", "set", interface(job, "h3"), "down"]))
    assert "made no progress in operator" in job.error(race).message
    assert all(status in (1, 2) for status in race.outcome.statuses.values())
