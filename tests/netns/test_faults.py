"""Faults on real namespaces, by the real Ansible: in effect, proved, reverted to the byte; refused without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from genie.engine.binaries import find_binary
from genie.errors import RunAborted
from genie.fabric.config import NetnsConfig
from genie.fabric.netns import MARKER_MAP, NetnsFabric
from genie.fabric.probe import probe
from genie.faults.config import FaultConfig
from genie.faults.journal import read_journal
from genie.faults.plan import FaultPlan, RunFacts, plan_faults
from genie.faults.play import BATCH
from genie.faults.revert import settle
from genie.faults.session import FaultSession
from genie.results.ports import read_ports
from genie.topology import SingleSwitchConfig, build
from genie.topology.model import Topology

TRAFFIC = Path(__file__).with_name("traffic.py")
FACTS = RunFacts(packets="exact", congestion_control="cubic")
pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(probe().unfit), reason=f"no namespaces here: {probe().unfit}"),
]


@pytest.fixture(scope="module")
def topology() -> Topology:
    return build(SingleSwitchConfig(hosts=3, host_rate="50Mbps"))


@pytest.fixture(scope="module")
def fabric(topology: Topology, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetnsFabric]:
    built = NetnsFabric(NetnsConfig(), topology, tmp_path_factory.mktemp("fabric"))
    built.build()
    try:
        yield built
    finally:
        built.destroy()


def planned(fabric: NetnsFabric, topology: Topology, **faults: FaultConfig) -> tuple[FaultPlan, ...]:
    return plan_faults(faults, topology, fabric.capabilities(), FACTS)


def session(fabric: NetnsFabric, plans: tuple[FaultPlan, ...], tmp_path: Path) -> FaultSession:
    return FaultSession(plans, fabric, tmp_path / "faults.journal", tmp_path)


def tell(monkeypatch: pytest.MonkeyPatch, faults: FaultSession, **wrong: Any) -> None:
    """Have the play told otherwise of every node."""
    hosts = faults.play.hosts()
    batch = [{**told, **wrong} for told in json.loads(hosts[BATCH]["genie_batch_json"])]
    hosts[BATCH]["genie_batch_json"] = json.dumps(batch)
    monkeypatch.setattr(faults.play, "hosts", lambda *_: hosts)


def slow(targets: str = "h0", rate: str = "10%") -> FaultConfig:
    return FaultConfig("port_rate", targets, parameters={"rate": rate})


def state(fabric: NetnsFabric, topology: Topology) -> dict[str, Any]:
    """All that faults can change, of every node, without the counters."""
    found: dict[str, Any] = {}
    for node in topology.nodes:
        queues = json.loads(fabric.run(node.name, ["tc", "-j", "-r", "qdisc", "show"]).stdout)
        found[node.name] = [queues, fabric.run(node.name, ["nft", "list", "ruleset"]).stdout]
    if fabric.capabilities().marker == "bpf":
        for port in topology.ports:
            if port.model.ecn is None:
                continue  # hosts do not mark
            index = str(fabric.plan.interface(port.name).ifindex)
            argv = [str(find_binary("genie-port")), "marker", "get", "--map", MARKER_MAP, "--ifindex", index]
            found[port.name] = json.loads(fabric.run("", argv).stdout)["enabled"]
    return found


def race(fabric: NetnsFabric, folder: Path, size: int, senders: tuple[str, ...] = ("h0", "h2")) -> dict[str, Any]:
    """``senders`` send ``size`` bytes to h1 each; counters around it and port samples within it."""
    log = folder / "serve.log"
    server = fabric.spawn("h1", [sys.executable, str(TRAFFIC), "serve", "0.0.0.0", "5001"], stdin=b"", log=log)
    while "listening" not in (log.read_text() if log.exists() else ""):
        assert server.poll() is None, log.read_text()
    before = fabric.counters()
    sampler = fabric.start_sampler(folder / "ports.smp", 5_000_000)
    argv = [sys.executable, str(TRAFFIC), "send", fabric.address("h1"), "5001", str(size), "2"]
    clients = [fabric.spawn(node, argv, stdin=b"", log=folder / f"{node}.log") for node in senders]
    for client in clients:
        client.wait(timeout_s=30)
    sampler.kill()
    server.kill()
    return {"before": before, "after": fabric.counters(), "samples": read_ports(folder / "ports.smp").records}


def test_a_slow_link_is_slow_proved_and_put_back_exactly(
    fabric: NetnsFabric, topology: Topology, tmp_path: Path
) -> None:
    before = state(fabric, topology)
    faults = session(fabric, planned(fabric, topology, slow=slow()), tmp_path)
    applied = faults.apply()
    assert [record.ok for record in applied] == [True]
    assert [entry.state for entry in read_journal(faults.journal_path).entries] == ["applied", "applied"]
    found = race(fabric, tmp_path, 400_000, ("h0",))
    evidence = faults.evidence(**found)[0]
    assert evidence.state == "in_effect", evidence.summary()
    assert 2.5e6 < evidence.facts["h0/switch0.peak_bps"] < 5.6e6
    assert [record.ok for record in faults.revert()] == [True]
    assert state(fabric, topology) == before
    assert read_journal(faults.journal_path).opened == ()
    window = faults.windows()[0]
    assert applied[0].began_ns <= window.started_ns < window.ended_ns
    assert faults.revert() == (), "a second revert finds nothing to do"


def test_a_fault_that_the_traffic_never_met_is_not_exercised(
    fabric: NetnsFabric, topology: Topology, tmp_path: Path
) -> None:
    faults = session(fabric, planned(fabric, topology, slow=slow("h0", "90%")), tmp_path)
    faults.apply()
    evidence = faults.evidence(**race(fabric, tmp_path, 1_500_000, ("h2",)))[0]
    faults.revert()
    assert evidence.state == "not_exercised"
    assert "never" not in evidence.summary()
    assert "a faulted port was limiting" in evidence.summary()


def test_loss_is_lost_counted_and_gone(fabric: NetnsFabric, topology: Topology, tmp_path: Path) -> None:
    before = state(fabric, topology)
    lossy = FaultConfig("port_loss", "h0", parameters={"ratio": "2%"})
    faults = session(fabric, planned(fabric, topology, lossy=lossy), tmp_path)
    faults.apply()
    found = race(fabric, tmp_path, 1_000_000, ("h0",))
    evidence = faults.evidence(**found)[0]
    assert evidence.state == "in_effect", evidence.summary()
    assert evidence.facts["h0/switch0.lost"] > 0
    assert found["after"]["h0"]["TcpRetransSegs"] > found["before"]["h0"]["TcpRetransSegs"]
    assert [record.ok for record in faults.revert()] == [True]
    assert state(fabric, topology) == before


@pytest.mark.skipif(not probe().has("bpf"), reason=f"no BPF marker here: {probe().missing.get('bpf')}")
def test_ecn_off_stops_the_marks_of_an_incast_and_marking_comes_back(
    fabric: NetnsFabric, topology: Topology, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("healthy", "faulty", "after")]
    for folder in folders:
        folder.mkdir()
    before = state(fabric, topology)

    def marked(found: dict[str, Any]) -> int:
        return sum(found["after"][p]["ce_marked"] - found["before"][p]["ce_marked"] for p in ("switch0/h1",))

    assert marked(race(fabric, folders[0], 1_500_000)) > 0
    faults = session(fabric, planned(fabric, topology, ecn_off=FaultConfig("port_ecn", "switches")), tmp_path)
    faults.apply()
    found = race(fabric, folders[1], 1_500_000)
    evidence = faults.evidence(**found)[0]
    assert marked(found) == 0
    assert evidence.state == "in_effect", evidence.summary()
    assert evidence.facts["switch0/h1.would_have_marked"] > 0
    assert evidence.facts["ect_packets"] > 0
    assert [record.ok for record in faults.revert()] == [True]
    assert state(fabric, topology) == before
    assert marked(race(fabric, folders[2], 1_500_000)) > 0


def test_two_faults_go_in_one_run_of_ansible(fabric: NetnsFabric, topology: Topology, tmp_path: Path) -> None:
    before = state(fabric, topology)
    lossy = FaultConfig("port_loss", "h0", parameters={"ratio": "1%"})
    faults = session(fabric, planned(fabric, topology, slow=slow(), lossy=lossy), tmp_path)
    assert [record.fault for record in faults.apply()] == ["slow", "lossy"]
    assert len(read_journal(faults.journal_path).opened) == 4
    assert all(record.ok for record in faults.revert())
    assert state(fabric, topology) == before


def test_a_foreign_shaper_is_refused_before_anything_is_changed(
    fabric: NetnsFabric, topology: Topology, tmp_path: Path
) -> None:
    bfifo = ["tc", "qdisc", "replace", "dev", "switch0", "root", "handle", "42:", "bfifo", "limit", "9999"]
    saved = json.loads(fabric.run("h2", ["tc", "-j", "-r", "qdisc", "show", "dev", "switch0", "root"]).stdout)[0]
    assert fabric.run("h2", bfifo).returncode == 0
    before = state(fabric, topology)
    faults = session(fabric, planned(fabric, topology, slow=slow("tier=host")), tmp_path)
    with pytest.raises(RunAborted) as caught:
        faults.apply()
    refused = "fault slow on h2, phase prepare: cannot be applied: switch0: kind expected tbf, found bfifo"
    assert refused in str(caught.value)
    assert state(fabric, topology) == before
    assert {entry.how for entry in read_journal(faults.journal_path).entries} <= {"reverted"}
    assert read_journal(faults.journal_path).opened == ()
    options = saved["options"]
    tbf = f"rate {options['rate'] * 8}bit burst {options['burst'] + 13}b limit {options['limit']}b"
    assert fabric.run("h2", ["tc", *["qdisc", "del", "dev", "switch0", "root", "handle", "42:"]]).returncode == 0
    made = fabric.run("h2", ["tc", *f"qdisc add dev switch0 root handle {saved['handle']} tbf {tbf}".split()])
    assert made.returncode == 0, made.stderr


def test_a_node_that_cannot_be_put_back_is_named_and_hides_no_other(
    fabric: NetnsFabric, topology: Topology, tmp_path: Path
) -> None:
    before = state(fabric, topology)
    faults = session(fabric, planned(fabric, topology, slow=slow("tier=host")), tmp_path)
    faults.apply()
    # Somebody else takes the shaper of one port away, so that its undo has nothing to change.
    found = json.loads(fabric.run("h1", ["tc", "-j", "-r", "qdisc", "show", "dev", "switch0", "root"]).stdout)[0]
    removed = ["tc", "qdisc", "del", "dev", "switch0", "root", "handle", found["handle"]]
    assert fabric.run("h1", removed).returncode == 0
    (record,) = faults.revert()
    assert not record.ok
    assert "switch0 on h1 is not as it was found" in record.message
    assert [(entry.intent.node, entry.intent.object) for entry in read_journal(faults.journal_path).opened] == [
        ("h1", "switch0")
    ]
    after = state(fabric, topology)
    assert {node: after[node] for node in after if node != "h1"} == {
        node: before[node] for node in before if node != "h1"
    }
    options = before["h1"][0][-1]["options"]
    tbf = f"rate {options['rate'] * 8}bit burst {options['burst'] + 13}b limit {options['limit']}b"
    made = fabric.run("h1", ["tc", *f"qdisc add dev switch0 root handle {found['handle']} tbf {tbf}".split()])
    assert made.returncode == 0, made.stderr
    assert [record.ok for record in faults.revert()] == [True]
    assert state(fabric, topology) == before


def test_an_unwritable_journal_changes_nothing(fabric: NetnsFabric, topology: Topology, tmp_path: Path) -> None:
    before = state(fabric, topology)
    plans = planned(fabric, topology, slow=slow())
    with pytest.raises(RunAborted, match="nothing is changed"):
        FaultSession(plans, fabric, tmp_path / "no" / "journal", tmp_path).apply()
    assert state(fabric, topology) == before


def test_an_undo_that_cannot_be_written_stops_the_play_before_any_change(
    fabric: NetnsFabric, topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(fabric, topology)
    faults = session(fabric, planned(fabric, topology, slow=slow()), tmp_path)
    tell(monkeypatch, faults, genie_journal_path="/proc/no-such-folder/journal")
    with pytest.raises(RunAborted, match="journal of faults could not be written, so nothing is changed"):
        faults.apply()
    assert state(fabric, topology) == before


def test_half_an_apply_is_reverted_before_the_error_is_told(
    fabric: NetnsFabric, topology: Topology, tmp_path: Path
) -> None:
    before = state(fabric, topology)
    plans = planned(fabric, topology, slow=slow())
    # The second node is told a rate that tc refuses: by then the first may have been changed.
    first, second = plans[0].changes
    broken = replace(plans[0], changes=(first, replace(second, values={"rate_bps": 0})))
    faults = session(fabric, (broken,), tmp_path)
    refused = "fault slow on switch0, phase act: the change could not be made: genie-warden: do tc"
    with pytest.raises(RunAborted, match=refused):
        faults.apply()
    assert state(fabric, topology) == before
    assert {entry.state for entry in read_journal(faults.journal_path).entries} == {"closed"}


def test_a_variable_of_the_wrong_type_is_refused_by_the_roles_specification(
    fabric: NetnsFabric, topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = session(fabric, planned(fabric, topology, slow=slow()), tmp_path)
    tell(monkeypatch, faults, genie_parameters={"rat": "10%"})
    with pytest.raises(RunAborted, match=r"rat\b.*not valid|Unsupported parameters.*rat|missing required.*rate"):
        faults.apply()


@pytest.mark.parametrize(
    "fault",
    [slow("h0"), FaultConfig("port_loss", "h0", parameters={"ratio": "1%"}), FaultConfig("port_ecn", "switches")],
    ids=lambda fault: fault.role,
)
def test_values_reach_no_shell_and_no_template(
    fabric: NetnsFabric, topology: Topology, tmp_path: Path, fault: FaultConfig
) -> None:
    """The plan's grammar refuses such names; this goes round it and asks the roles themselves."""
    if not getattr(fabric.capabilities(), "ecn" if fault.role == "port_ecn" else "loss"):
        pytest.skip("this fabric cannot have the fault")
    mark = tmp_path / "mark"
    evil = f"x; touch {mark}; $(touch {mark}) `touch {mark}` {{{{ lookup('pipe', 'touch {mark}') }}}}"
    plans = planned(fabric, topology, evil=fault)
    wrong = replace(plans[0], changes=tuple(replace(c, object=evil) for c in plans[0].changes))
    with pytest.raises(RunAborted, match="phase prepare"):
        session(fabric, (wrong,), tmp_path).apply()
    assert not mark.exists()


_RUNNER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_faults as t
from genie.fabric.netns import NetnsFabric
from genie.fabric.config import NetnsConfig
folder = Path(sys.argv[2])
topology = t.build(t.SingleSwitchConfig(hosts=3, host_rate="50Mbps"))
fabric = NetnsFabric(NetnsConfig(), topology, folder)
fabric.build()
faults = t.session(fabric, t.planned(fabric, topology, slow=t.slow("tier=host")), folder)
faults.apply()
print("applied", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("moment", ["owner", "intent", "applied"])
def test_kill_9_of_the_runner_leaves_a_journal_that_settles(tmp_path: Path, moment: str) -> None:
    """The runner dies as soon as a record of this kind is in the journal; the fabric goes with it."""
    journal = tmp_path / "faults.journal"
    argv = [sys.executable, "-c", _RUNNER, str(Path(__file__).parent), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    runner = subprocess.Popen(argv, stdin=subprocess.PIPE, env=environment)
    try:
        while not journal.exists() or f'"kind": "{moment}"' not in journal.read_text():
            with contextlib.suppress(subprocess.TimeoutExpired):
                pytest.fail(f"the runner ended by itself with {runner.wait(0.01)}")
    finally:
        runner.send_signal(signal.SIGKILL)
        runner.wait()
        assert runner.stdin is not None
        runner.stdin.close()
    outcome = settle(journal)
    while outcome.state == "open" and "still ending" in outcome.message:
        outcome = settle(journal)
    assert outcome.state == "closed", outcome.message
    assert ("died before it changed anything" in outcome.message) == (moment == "owner")
    assert read_journal(journal).opened == ()
    assert settle(journal).state == "clean"
