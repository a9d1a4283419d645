"""Apply, then the journal's undo, restores a port exactly: on a stand-in, for any state a port can be in.

The commands and the undo are the roles' own, rendered from their files and run by `genie.faults.life`; Ansible itself
runs them on the stand-in once for ``red``, which the kernel of the test machines may lack.
"""

from __future__ import annotations

import copy
import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from fault_node import Node, port, red

from genie.fabric.base import Capabilities, Completed
from genie.faults.config import FaultConfig
from genie.faults.journal import read_journal
from genie.faults.life import Task, act, prepare, revert
from genie.faults.plan import DRY_TOOLS, RunFacts, plan_faults, words
from genie.faults.session import FaultSession
from genie.faults.warden import Window
from genie.topology.model import Ecn, Link, Port, PortModel, Topology
from genie.topology.model import Node as TopologyNode


class Lives:
    """One fault on a stand-in, through prepare, act and a revert that is made twice."""

    def __init__(self, role: str, platform: str, node: Node, *, warden: str = "", **values: Any) -> None:
        ports = [
            {"target": f"n/{name}", "object": name, "interface": name, "mtu": 1500, "own_bps": 1, "set": {}}
            | {key: value for key, value in values.items() if key in ("mtu", "own_bps")}
            for name in node.ports
        ]
        for told in ports:
            told["set"] = {key: value for key, value in values.items() if key not in ("mtu", "own_bps")}
        self.node, self.ports = node, ports
        self.role, self.platform, self.warden = role, platform, warden

    def task(self, folder: str) -> Task:
        marker = self.platform.partition(".")[2]
        return Task(
            run="r", fault="f", role=self.role, node="n", platform=self.platform, ports=tuple(self.ports),
            words={**words("f", "n", marker), **DRY_TOOLS}, journal=Path(folder) / "journal", window=Window("told"),
            is_whole=True, ttl_ns=10**10, warden=self.warden, state="/run/genie/n", lock="",
        )  # fmt: skip

    def live(self) -> None:
        node = self.node
        before = copy.deepcopy((node.ports, node.tables))
        with tempfile.TemporaryDirectory() as folder:
            task = self.task(folder)
            prepare(task, node.answer)
            assert (node.ports, node.tables) == before, "preparing changed something"
            act(task, node.answer)
            assert (node.ports, node.tables) != before, "the fault changed nothing"
            for _ in range(2):  # the second time, as after a crash that lost the closing of the journal
                revert(task, node.answer)
                assert (node.ports, node.tables) == before


RATES = st.integers(1_000, 50_000_000_000).map(lambda bytes_s: bytes_s * 8)
PORTS = st.lists(st.tuples(RATES, st.integers(1514, 4_000_000), st.integers(3_000, 64_000_000)), min_size=1, max_size=4)


WARDENS = pytest.mark.parametrize("warden", ["", "genie-warden"], ids=["by itself", "by its warden"])


@WARDENS
@settings(max_examples=40, deadline=None)
@given(shapes=PORTS, share=st.floats(0.001, 0.999))
def test_a_rate_is_undone_to_the_tick(shapes: list[tuple[int, int, int]], share: float, warden: str) -> None:
    node = Node({f"e{i}": port(rate, burst, limit, i) for i, (rate, burst, limit) in enumerate(shapes)})
    lives = Lives("port_rate", "linux", node, warden=warden)
    for described, (rate, _, _) in zip(lives.ports, shapes, strict=True):
        described["set"] = {"rate_bps": max(8, int(rate * share) // 8 * 8)}
    lives.live()


@WARDENS
@settings(max_examples=25, deadline=None)
@given(ppb=st.integers(1, 10**9), count=st.integers(1, 5))
def test_loss_leaves_no_table(ppb: int, count: int, warden: str) -> None:
    node = Node({f"e{i}": port(8_000_000, 6000, 100_000, i) for i in range(count)}, {"filter": {"in": ["accept"]}})
    Lives("port_loss", "linux", node, warden=warden, ratio_ppb=ppb).live()


@WARDENS
@settings(max_examples=25, deadline=None)
@given(
    kmin=st.integers(9_001, 500_000),  # tc finds no weight for one at or below the size of a packet
    more=st.integers(1_000, 900_000),
    probability=st.sampled_from(["0.1", "0.02", "1", "0.35", "0.00123"]),
    rate=RATES,
    mtu=st.sampled_from([1500, 9000]),
)
def test_red_comes_back_with_every_option(
    kmin: int, more: int, probability: str, rate: int, mtu: int, warden: str
) -> None:
    node = Node({f"e{i}": port(rate, 6_000, 4_000_000, i) for i in range(2)})
    for state in node.ports.values():
        state["child"] = red(kmin, kmin + more, 4_000_000, mtu, rate, probability)
    Lives("port_ecn", "linux.red", node, warden=warden, own_bps=rate, mtu=mtu).live()


@WARDENS
@pytest.mark.parametrize("enabled", [[True], [True, False, True]], ids=["all on", "one was off before"])
def test_a_marker_comes_back_as_it_was(enabled: list[bool], warden: str) -> None:
    node = Node({f"e{i}": port(8_000_000, 6000, 100_000, i) for i in range(len(enabled))})
    for state, was in zip(node.ports.values(), enabled, strict=True):
        state["enabled"] = was
    Lives("port_ecn", "linux.bpf", node, warden=warden).live()


class StandIn:
    """A fabric whose commands are the stand-in's: enough for a session, its Ansible run included."""

    name = "stand-in"

    def __init__(self, folder: Path, ports: dict[str, Any]) -> None:
        self.state = folder / "state.json"
        self.state.write_text(json.dumps({"ports": ports, "tables": {}, "wardens": {}}))
        self.bin = folder / "bin"
        self.bin.mkdir()
        program = Path(__file__).with_name("fault_node.py")
        for name in ("ip", "tc", "nft", "genie-port", "genie-warden"):
            path = self.bin / name
            path.write_text(f'#!/bin/sh\nexec {sys.executable} {program} {self.state} {name} "$@"\n')
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def read(self) -> dict[str, Any]:
        """Ports and tables of the node, without the wardens that ended."""
        content: dict[str, Any] = json.loads(self.state.read_text())
        del content["wardens"]
        return content

    def run(self, node: str, argv: list[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> Completed:
        path = f"{self.bin}:{os.environ['PATH']}"
        done = subprocess.run(
            argv, input=stdin, capture_output=True, timeout=timeout_s, check=False, env={**os.environ, "PATH": path}
        )
        return Completed(node, tuple(argv), done.returncode, done.stdout.decode(), done.stderr.decode())

    def tool(self, name: str) -> str:
        return name

    def ansible_host(self, node: str) -> dict[str, str]:
        return {"ansible_host": node, "ansible_connection": "genie_netns"}

    def state_dir(self, node: str) -> str:
        return f"/run/genie/{node}"

    def lock_file(self, node: str) -> str:
        return ""


def test_ecn_off_by_red_through_ansible(tmp_path: Path) -> None:
    """On a kernel with sch_red the port's red is replaced, and comes back with every option."""
    model = PortModel(100_000_000, 100_000, Ecn(20_000, 60_000, 0.1))
    wire = Link("a-b", Port("a", "b", "b", model), Port("b", "a", "a", model), "fabric")
    topology = Topology("wire", (TopologyNode("a", "leaf"), TopologyNode("b", "leaf")), (wire,))
    ports = {name: port(100_000_000, 6_250, 100_000, index) for index, name in enumerate("ab")}
    for state in ports.values():
        state["child"] = red(20_000, 60_000, 100_000, 1500, 100_000_000, "0.1")
    fabric = StandIn(tmp_path, ports)
    can = Capabilities(shaping=True, ecn=True, loss=True, faults=True, marker="red", reasons={})
    fault = FaultConfig("port_ecn", "a/b")
    plans = plan_faults({"ecn_off": fault}, topology, can, RunFacts(congestion_control="cubic"))
    session = FaultSession(plans, fabric, tmp_path / "journal", tmp_path)  # type: ignore[arg-type]
    before = fabric.read()
    session.apply()
    during = fabric.read()["ports"]
    assert during["b"]["child"]["kind"] == "bfifo"
    assert during["a"] == before["ports"]["a"], "a port that is no target was changed"
    evidence = session.evidence({}, {}, None)[0]
    marking = [check for check in evidence.checks if check.what.startswith("marking of")]
    assert [(check.expected, check.found, check.ok) for check in marking] == [("marking off", "off", True)]
    assert [record.ok for record in session.revert()] == [True]
    assert fabric.read() == before
    assert read_journal(tmp_path / "journal").opened == ()
