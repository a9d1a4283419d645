"""Apply, then the journal's undo, restores a port exactly: on a stand-in, for any state a port can be in.

The commands and the undo are the roles' own, rendered from their files; Ansible itself runs them on the stand-in once
for ``red``, which the kernel of the test machines may lack.
"""

from __future__ import annotations

import copy
import json
import os
import shlex
import stat
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jinja2.nativetypes
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from fault_node import Node, port, red

from genie.fabric.base import Capabilities, Completed
from genie.faults.config import FaultConfig
from genie.faults.journal import read_journal
from genie.faults.plan import RunFacts, plan_faults
from genie.faults.recipe import load_mechanism
from genie.faults.session import FaultSession
from genie.topology.model import Ecn, Link, Port, PortModel, Topology
from genie.topology.model import Node as TopologyNode


@cache
def environment() -> jinja2.nativetypes.NativeEnvironment:
    """Ansible's templates, as far as the roles use them."""
    made = jinja2.nativetypes.NativeEnvironment(undefined=jinja2.StrictUndefined)
    made.filters |= {
        "from_json": json.loads,
        "quote": lambda value: shlex.quote(str(value)),
        "dict2items": lambda value: [{"key": key, "value": inner} for key, inner in value.items()],
    }
    return made


@cache
def last_task(role: str, phase: str) -> dict[str, Any]:
    return yaml.safe_load((load_mechanism(role).folder / "tasks" / f"{phase}.yml").read_text())[-1]


def rendered(role: str, phase: str, key: str, variables: dict[str, Any]) -> Any:
    task = last_task(role, phase)
    known = dict(variables)
    if phase == "snapshot":
        for name, text in task.get("vars", {}).items():
            known[name] = environment().from_string(text).render(known)
    return environment().from_string(task["genie_journal"][key] if key == "entries" else task[key]).render(known)


def live_through(role: str, node: Node, variables: dict[str, Any]) -> None:
    """Precondition's reading, snapshot, apply, undo, on ``node``."""
    if role == "port_rate":
        said = node.run(["tc", "-j", "-r", "qdisc", "show"])
        variables["genie_queues"] = {"stdout": said}
    elif role == "port_ecn":
        if variables["genie_marker"] == "red":
            said = node.run(["tc", "-j", "-d", "qdisc", "show"])
        else:
            shown = (["genie-port", "marker", "get", "--ifindex", str(p["ifindex"])] for p in node.ports.values())
            said = "".join(node.run(argv) for argv in shown)
        variables["genie_marking"] = {"stdout": said, "stdout_lines": said.splitlines()}
    entries = rendered(role, "snapshot", "entries", variables)
    variables["genie_found"] = {entry["object"]: entry["old"] for entry in entries}
    before = copy.deepcopy((node.ports, node.tables))
    node.shell(rendered(role, "apply", "ansible.builtin.raw", variables))
    assert (node.ports, node.tables) != before, "the fault changed nothing"
    for _ in range(2):  # the second time, as after a crash that lost the closing of the journal
        for entry in entries:
            for argv in entry["undo"]:
                node.run([str(word) for word in argv])
    assert (node.ports, node.tables) == before


RATES = st.integers(1_000, 50_000_000_000).map(lambda bytes_s: bytes_s * 8)
PORTS = st.lists(st.tuples(RATES, st.integers(1514, 4_000_000), st.integers(3_000, 64_000_000)), min_size=1, max_size=4)


def told(names: list[str], marker: str, **values: Any) -> dict[str, Any]:
    ports = [{"port": f"n/{name}", "interface": name, "mtu": 1500, "own_bps": 1, **values} for name in names]
    return {
        "genie_fault": "f", "genie_node": "n", "genie_marker": marker, "genie_marker_map": "/m",
        "genie_tool": "genie-port", "genie_ports": ports,
    }  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(shapes=PORTS, share=st.floats(0.001, 0.999))
def test_a_rate_is_undone_to_the_tick(shapes: list[tuple[int, int, int]], share: float) -> None:
    node = Node({f"e{i}": port(rate, burst, limit, i) for i, (rate, burst, limit) in enumerate(shapes)})
    variables = told(list(node.ports), "none")
    for described, (rate, _, _) in zip(variables["genie_ports"], shapes, strict=True):
        described["rate_bps"] = max(8, int(rate * share) // 8 * 8)
    live_through("port_rate", node, variables)


@settings(max_examples=25, deadline=None)
@given(ppb=st.integers(1, 10**9), count=st.integers(1, 5))
def test_loss_leaves_no_table(ppb: int, count: int) -> None:
    node = Node({f"e{i}": port(8_000_000, 6000, 100_000, i) for i in range(count)}, {"filter": {"in": ["accept"]}})
    live_through("port_loss", node, told(list(node.ports), "none", ratio_ppb=ppb))


@settings(max_examples=25, deadline=None)
@given(
    kmin=st.integers(9_000, 500_000),
    more=st.integers(1_000, 900_000),
    probability=st.sampled_from(["0.1", "0.02", "1", "0.35", "0.00123"]),
    rate=RATES,
    mtu=st.sampled_from([1500, 9000]),
)
def test_red_comes_back_with_every_option(kmin: int, more: int, probability: str, rate: int, mtu: int) -> None:
    node = Node({f"e{i}": port(rate, 6_000, 4_000_000, i) for i in range(2)})
    for state in node.ports.values():
        state["child"] = red(kmin, kmin + more, 4_000_000, mtu, rate, probability)
    live_through("port_ecn", node, told(list(node.ports), "red", own_bps=rate, mtu=mtu))


@pytest.mark.parametrize("enabled", [[True], [True, False, True]], ids=["all on", "one was off before"])
def test_a_marker_comes_back_as_it_was(enabled: list[bool]) -> None:
    node = Node({f"e{i}": port(8_000_000, 6000, 100_000, i) for i in range(len(enabled))})
    for state, was in zip(node.ports.values(), enabled, strict=True):
        state["enabled"] = was
    live_through("port_ecn", node, told(list(node.ports), "bpf"))


class StandIn:
    """A fabric whose commands are the stand-in's: enough for a session, its Ansible run included."""

    name = "stand-in"

    def __init__(self, folder: Path, ports: dict[str, Any]) -> None:
        self.state = folder / "state.json"
        self.state.write_text(json.dumps({"ports": ports, "tables": {}}))
        self.bin = folder / "bin"
        self.bin.mkdir()
        program = Path(__file__).with_name("fault_node.py")
        for name in ("ip", "tc", "nft", "genie-port"):
            path = self.bin / name
            path.write_text(f'#!/bin/sh\nexec {sys.executable} {program} {self.state} {name} "$@"\n')
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, node: str, argv: list[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> Completed:
        path = f"{self.bin}:{os.environ['PATH']}"
        done = subprocess.run(
            argv, input=stdin, capture_output=True, timeout=timeout_s, check=False, env={**os.environ, "PATH": path}
        )
        return Completed(node, tuple(argv), done.returncode, done.stdout.decode(), done.stderr.decode())


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
    before = json.loads(fabric.state.read_text())
    session.apply()
    during = json.loads(fabric.state.read_text())["ports"]
    assert during["b"]["child"]["kind"] == "bfifo"
    assert during["a"] == before["ports"]["a"], "a port that is no target was changed"
    evidence = session.evidence({}, {}, None)[0]
    assert [check.found for check in evidence.checks if check.what.startswith("marker of")] == ["off"]
    assert [record.ok for record in session.revert()] == [True]
    assert json.loads(fabric.state.read_text()) == before
    assert read_journal(tmp_path / "journal").opened == ()
