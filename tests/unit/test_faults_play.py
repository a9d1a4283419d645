"""The play's inventory and its answers by place; a batch of nodes of which one fails, hangs or has a wrong argument."""

from __future__ import annotations

import importlib.util
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from genie import topology
from genie.errors import RunAborted
from genie.fabric.base import Capabilities
from genie.faults.config import FaultConfig
from genie.faults.plan import FaultPlan, RunFacts, plan_faults
from genie.faults.play import BATCH, ENTERED, Answer, Outcome, Place, Play, _outcomes
from genie.paths import playbooks_dir
from genie.topology.config import SingleSwitchConfig

CAN = Capabilities(shaping=True, ecn=False, loss=True, faults=True, marker="none", reasons={})


def plugin(kind: str, name: str) -> ModuleType:
    """A plugin of playbooks/ as a module."""
    spec = importlib.util.spec_from_file_location(name, playbooks_dir() / f"{kind}_plugins" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Reached:
    """A fabric as far as an inventory goes; nodes of ``by_ssh`` are machines."""

    def __init__(self, *by_ssh: str) -> None:
        self.by_ssh = by_ssh

    def ansible_host(self, node: str) -> dict[str, str]:
        return {"ansible_host": node, **({} if node in self.by_ssh else {"ansible_connection": ENTERED})}

    def tool(self, name: str) -> str:
        return name

    def state_dir(self, node: str) -> str:
        return f"/run/genie/{node}"

    def lock_file(self, node: str) -> str:
        return ""


def plans(*targets: str) -> tuple[FaultPlan, ...]:
    network = topology.build(SingleSwitchConfig(hosts=4))
    slow = FaultConfig("port_rate", list(targets) or "tier=host", ends="up", parameters={"rate": "10%"})
    return plan_faults({"slow": slow}, network, CAN, RunFacts())


def play(*by_ssh: str) -> Play:
    return Play(plans(), Reached(*by_ssh), Path("/j"), "r", 10**9)  # type: ignore[arg-type]


def names(host: Mapping[str, Any]) -> list[str]:
    return [told["genie_node"] for told in json.loads(host["genie_batch_json"])]


def test_nodes_of_this_machine_are_one_host_and_machines_one_each() -> None:
    hosts = play("h1", "h3").hosts()
    assert sorted(hosts) == [BATCH, "slow.h1", "slow.h3"]
    assert names(hosts[BATCH]) == ["h0", "h2"]
    assert "genie_batch_json" not in hosts["slow.h1"]
    assert hosts["slow.h1"]["genie_node"] == hosts["slow.h1"]["ansible_host"] == "h1"


def test_some_places_only() -> None:
    only = {Place("slow", "h2"), Place("slow", "h3")}
    assert {name: host.get("genie_node") or names(host) for name, host in play("h1", "h3").hosts(only).items()} == {
        BATCH: ["h2"],
        "slow.h3": "h3",
    }


def event(host: str, *, ok: bool, told: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"host": host, "phase": "act", "ok": ok, "message": "gone\n away", "stdout": "", "stderr": "", "told": told
            or {}, "seen_mono_ns": 9}  # fmt: skip


def test_a_batch_answers_by_node_and_a_host_that_failed_failed_at_all_its_places() -> None:
    hosts = play("h1").hosts()
    own = {"fault": "slow", "done_mono_ns": 7}
    told = {"phase": "act", "places": [
        {**own, "node": "h0", "ok": True, "message": ""},
        {**own, "node": "h2", "ok": False, "message": "no\n queue"},
        {**own, "node": "h3", "ok": True, "message": "", "log": "words"},
    ]}  # fmt: skip
    found = Answer(
        "failed", tuple(_outcomes([event(BATCH, ok=False, told=told), event("slow.h1", ok=False)], hosts)), ""
    )
    assert [(o.place.node, o.ok, o.message, o.done_ns, o.log) for o in found.outcomes] == [
        ("h0", True, "", 7, ""), ("h2", False, "no queue", 7, ""), ("h3", True, "", 7, "words"),
        ("h1", False, "gone away", 9, ""),
    ]  # fmt: skip
    assert found.failure() == found.failure(Place("slow", "h2"))
    assert found.failure(Place("slow", "h0")) is None
    died = tuple(_outcomes([event(BATCH, ok=False)], hosts))
    assert [(o.place.node, o.ok) for o in died] == [("h0", False), ("h2", False), ("h3", False)]


@pytest.mark.parametrize(
    ("outcomes", "reverted"),
    [
        pytest.param([("revert", True)], True, id="it was"),
        pytest.param([("revert", False)], False, id="it failed"),
        pytest.param([], False, id="nothing was heard of it"),
        pytest.param([("prepare", True)], False, id="another phase"),
    ],
)
def test_a_place_is_reverted_where_it_says_so(outcomes: list[tuple[str, bool]], reverted: bool) -> None:
    place = Place("slow", "h0")
    found = [Outcome(place, phase, ok, "", 1) for phase, ok in outcomes]
    other = Outcome(Place("slow", "h1"), "revert", not reverted, "", 1)
    assert Answer("", (*found, other), "").was_reverted(place) is reverted


# ---- the plugins --------------------------------------------------------------------------------------------------

CHANGE = plugin("action", "genie_change")


class Nodes:
    """The connection of a batch: what each node does when it is entered."""

    def __init__(self) -> None:
        self.entered: dict[str, int] = {}
        self.limits: set[float] = set()
        self.lock = threading.Lock()

    def enter(self, node: str, cmd: str, in_data: bytes = b"", limit_s: float = 0.0) -> tuple[int, bytes, bytes]:
        with self.lock:
            self.entered[node] = self.entered.get(node, 0) + 1
            self.limits.add(limit_s)
        queue = {"kind": "tbf" if node != "h2" else "bfifo", "handle": "1:", "root": True,
                 "options": {"rate": 10**6, "burst": 1, "burst_raw": "10", "limit": 9}}  # fmt: skip
        if "genie-warden" in cmd:
            return 0, b"{}", b""
        return 0, f"{json.dumps([queue])}\x1e0\x1e".encode(), b""


def performed(batch: list[dict[str, Any]], nodes: Nodes, phase: str) -> dict[str, Any]:
    """What genie_change gives for a batch."""

    class Task:
        args: Mapping[str, str] = {"phase": phase}
        async_val = 0
        check_mode = False
        diff = False

    action = CHANGE.ActionModule.__new__(CHANGE.ActionModule)
    action._task, action._connection = Task(), nodes
    action._play_context = action._templar = action._loader = action._shared_loader_obj = None
    return dict(action.run(None, {"genie_batch_json": json.dumps(batch)}))


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr(CHANGE.ActionBase, "run", lambda *_: {})
    found = Play(plans(), Reached(), tmp_path / "journal", "r", 10**9)  # type: ignore[arg-type]
    told: list[dict[str, Any]] = json.loads(found.hosts()[BATCH]["genie_batch_json"])
    return told


def test_one_node_that_fails_hides_no_other(batch: list[dict[str, Any]], tmp_path: Path) -> None:
    batch[3]["genie_parameters"] = {"rat": "10%"}
    nodes = Nodes()
    result = performed(batch, nodes, "prepare")
    assert result["failed"] is True
    said = {place["node"]: place["message"] for place in result["genie"]["places"]}
    assert (said["h0"], said["h1"]) == ("", "")
    assert said["h2"] == "cannot be applied: switch0: kind expected tbf, found bfifo"
    assert "rat" in said["h3"]
    assert "slow on h2: cannot be applied" in result["msg"]
    assert nodes.entered == {"h0": 2, "h1": 2, "h2": 1}, "read and armed; read; and never entered"
    journaled = [json.loads(line)["node"] for line in (tmp_path / "journal").read_text().splitlines()]
    assert sorted(journaled) == ["h0", "h1"]


def test_every_command_on_a_node_of_a_batch_has_a_limit(batch: list[dict[str, Any]]) -> None:
    nodes = Nodes()
    performed(batch, nodes, "prepare")
    assert nodes.limits == {CHANGE._COMMAND_LIMIT_S}


CONNECTION = plugin("connection", "genie_netns")


def test_a_node_that_hangs_is_left_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ip = tmp_path / "ip"
    ip.write_text('#!/bin/sh\nexec "$4" "$5" "$6"\n')
    ip.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    enter = CONNECTION.Connection.enter
    assert enter(None, "h0", "cat; echo no >&2; exit 3", b"in", 60.0) == (3, b"in", b"no\n")
    began_s = time.monotonic()
    code, out, error = enter(None, "h0", f"sleep 3600 & echo $! >{tmp_path}/pid; wait", limit_s=0.5)
    assert (code, out, error.decode()) == (-9, b"", "h0 did not end it within 0.5 s, and it was killed")
    assert time.monotonic() - began_s < 600
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)  # it was sent the signal; the kernel is about to end it


@pytest.mark.parametrize("node", ["", "a b", "-n", "$(x)", "a/b"])
def test_what_is_no_name_is_not_entered(node: str) -> None:
    with pytest.raises(CONNECTION.AnsibleConnectionFailure, match="is not the name of a node"):
        CONNECTION.Connection.enter(None, node, "true")


def test_ansible_that_ended_badly_is_told_in_its_own_words() -> None:
    class Broken(Reached):
        def run(self, *_: Any, **__: Any) -> Any:
            from genie.fabric.base import Completed

            return Completed("", (), 3, "", "no module\n")

    broken = Play(plans(), Broken(), Path("/j"), "r", 10**9)  # type: ignore[arg-type]
    with pytest.raises(RunAborted, match="ended with exit code 3: no module"):
        broken.run(("prepare",), stop_at_first_error=True)
