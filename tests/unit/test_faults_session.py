"""A session when Ansible or wardens are killed under it: tried again, kept within the time limit, and told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from genie import topology
from genie.errors import RunAborted
from genie.fabric.base import Capabilities, Completed
from genie.faults import wardens as module
from genie.faults.config import FaultConfig, WindowConfig
from genie.faults.journal import Intent, Journal, read_journal
from genie.faults.observer import Observer
from genie.faults.plan import RunFacts, plan_faults
from genie.faults.session import FaultSession
from genie.faults.warden import Status, end_in_words
from genie.topology.config import SingleSwitchConfig

NETWORK = topology.build(SingleSwitchConfig(hosts=2))
CAN = Capabilities(shaping=True, ecn=False, loss=True, faults=True, marker="none", reasons={})
HOSTS = ("slow.h0", "slow.switch0")
TOLD_AT_NS = 1_764_000_000_000_000_000


def log(by: str, ran: bool) -> str:
    """A warden's answer to ``revert`` after its end."""
    last = {"event": "reverted", "by": by, "ran": ran, "mono_ns": 1, "real_ns": TOLD_AT_NS}
    return json.dumps({
        "ok": True, "error": "", "state": "reverted", "alive": False, "may_be_applied": False, "mono_ns": 0,
        "real_ns": 0, "ttl_end_mono_ns": 0, "log_error": "", "log": [last],
    })  # fmt: skip


def result(host: str, *, ok: bool = True, phase: str = "revert", log: str = "") -> dict[str, Any]:
    """What Ansible's job says of one host: of a place there, or that it is out of reach."""
    fault, node = host.split(".")
    place = {"fault": fault, "node": node, "ok": True, "message": "", "done_mono_ns": 5, "log": log}
    return {
        "host": host, "role": "port_rate", "phase": phase, "task": "t", "ok": ok, "skipped": False,
        "message": "" if ok else "out of reach", "stdout": "", "stderr": "", "rc": 0, "seen_mono_ns": 5,
        "told": {"phase": phase, "places": [place]} if ok else {},
    }  # fmt: skip


class Scripted:
    """A fabric whose Ansible answers as written: a list of results, or None where it was killed."""

    name = "inventory"

    def __init__(self, *answers: list[dict[str, Any]] | None) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str]] = []
        self.dead: set[str] = set()

    def run(self, node: str, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> Completed:
        if node:
            self.asked.append((node, argv[1]))
            return Completed(node, tuple(argv), 1 if node in self.dead else 0, "", "no warden")
        results = self.answers.pop(0)
        self.asked.append(("", ",".join(sorted(json.loads(stdin)["hosts"]))))
        if results is None:
            return Completed("", tuple(argv), -9, "", "")
        status = "successful" if all(r["ok"] for r in results) else "failed"
        return Completed("", tuple(argv), 0, json.dumps({"status": status, "results": results, "stdout": ""}), "")

    def tool(self, name: str) -> str:
        return name

    def ansible_host(self, node: str) -> dict[str, str]:
        return {"ansible_host": node}

    def state_dir(self, node: str) -> str:
        return f"/run/genie/{node}"

    def lock_file(self, node: str) -> str:
        return ""


def made(tmp_path: Path, fabric: Scripted) -> FaultSession:
    """A session with one open change on each end of a link."""
    plans = plan_faults({"slow": FaultConfig("port_rate", "h0", parameters={"rate": "10%"})}, NETWORK, CAN, RunFacts())
    found = FaultSession(plans, fabric, tmp_path / "journal", tmp_path, ttl_ns=10**9)  # type: ignore[arg-type]
    with Journal(found.journal_path) as journal:
        journal.intend(
            Intent("r", "slow", "port_rate", change.node, change.object, {}, (("undo",),))
            for change in plans[0].changes
        )
    return found


ALL = [result(host) for host in HOSTS]


@pytest.mark.parametrize(
    ("answers", "ok", "asked"),
    [
        pytest.param([ALL], True, [HOSTS], id="at once"),
        pytest.param([None, ALL], True, [HOSTS, HOSTS], id="Ansible was killed"),
        pytest.param([ALL[:1], ALL[1:]], True, [HOSTS, HOSTS[1:]], id="killed after the first host"),
        pytest.param([None, None], False, [HOSTS, HOSTS], id="killed twice"),
        pytest.param([[ALL[0], result(HOSTS[1], ok=False)]], False, [HOSTS], id="a host that fails says why"),
    ],
)
def test_a_revert_is_tried_again_where_ansible_died(
    tmp_path: Path, answers: list[list[dict[str, Any]] | None], ok: bool, asked: list[tuple[str, ...]]
) -> None:
    fabric = Scripted(*answers)
    session = made(tmp_path, fabric)
    (record,) = session.revert()
    assert record.ok is ok
    assert fabric.asked == [("", ",".join(hosts)) for hosts in asked]
    assert bool(read_journal(session.journal_path).opened) is not ok


def test_who_put_it_back_before_we_came_is_told_and_kept(tmp_path: Path) -> None:
    answer = [result(HOSTS[0], log=log("ttl", ran=True)), result(HOSTS[1], log=log("revert", True))]
    session = made(tmp_path, Scripted(answer))
    (record,) = session.revert()
    words = "the warden of h0 reverted it at 16:00:00 UTC, when its time limit had passed"
    assert (record.ok, record.message) == (True, words)
    assert [entry.how for entry in read_journal(session.journal_path).entries] == [f"reverted: {words}", "reverted"]


@pytest.mark.parametrize(
    ("by", "ran", "words"),
    [
        ("ttl", True, "the warden of n reverted it at 16:00:00 UTC, when its time limit had passed"),
        ("ttl", False, "the warden of n ended with nothing in place at 16:00:00 UTC, when its time limit had passed"),
        ("guardian", True, "the warden of n reverted it at 16:00:00 UTC, when its worker had been killed"),
        ("SIGTERM", True, "the warden of n reverted it at 16:00:00 UTC, when it was told to end by SIGTERM"),
        ("revert without a warden", True, "the warden of n was dead; its undo was run in its stead at 16:00:00 UTC"),
        ("revert without a warden", False, ""),
        ("revert", True, ""),
    ],
)
def test_the_end_of_a_warden_in_words(by: str, ran: bool, words: str) -> None:
    event = {"event": "reverted", "by": by, "ran": ran, "real_ns": TOLD_AT_NS}
    assert end_in_words(Status("", (event,)), "n") == words
    assert end_in_words(Status(""), "n") == ""


def test_the_time_limit_is_kept_once_even_where_no_warden_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0]
    monkeypatch.setattr(module.time, "monotonic_ns", lambda: now[0])
    applied = [result(host, phase="act") for host in HOSTS]
    fabric = Scripted(applied)
    fabric.dead = {"h0"}
    session = made(tmp_path, fabric)
    session.apply()
    fabric.asked.clear()
    for now_s in (0.5, 1.9, 2.1, 4):
        now[0] = int(now_s * 1e9)
        session.progress(0)
        assert sorted(fabric.asked) == ([] if now_s < 2 else [("h0", "revert"), ("switch0", "revert")])


def test_without_an_application_there_is_no_time_limit(tmp_path: Path) -> None:
    fabric = Scripted(None, None, None)
    session = made(tmp_path, fabric)
    with pytest.raises(RunAborted):
        session.apply()
    session.progress(3)
    assert all(node == "" for node, _ in fabric.asked)


OPENED = {"event": "opened", "i": 0, "planned_mono_ns": 5, "began_mono_ns": 5, "done_mono_ns": 6}
CLOSED = {"event": "closed", "i": 0, "planned_mono_ns": 8, "began_mono_ns": 8, "done_mono_ns": 9}


def shaped(rate_bps: int) -> str:
    """What the read-back of a port's shaper prints, as a reading of one command."""
    options = {"rate": rate_bps // 8, "burst": 6250, "burst_raw": "1312d", "limit": 100_000}
    text = json.dumps([{"kind": "tbf", "handle": "7e1e:", "root": True, "options": options}])
    return f"{text}\x1e0\x1e"


class Closing(Scripted):
    """A node whose window is open when its warden is first asked; ``later`` is what the warden adds after that."""

    def __init__(self, *later: dict[str, Any]) -> None:
        super().__init__()
        read = {"event": "checked", "i": 0, "stdout": shaped(10_000_000)}
        self.logs = [[OPENED, read], [OPENED, read, *later]]

    def run(self, node: str, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> Completed:
        if argv[0] == "sh":
            return Completed(node, tuple(argv), 0, shaped(100_000_000), "")
        events = self.logs.pop(0) if len(self.logs) > 1 else self.logs[0]
        answer = json.loads(log("revert", False)) | {"alive": True, "state": "open", "log": events}
        return Completed(node, tuple(argv), 0, json.dumps(answer), "")


@pytest.mark.parametrize(
    ("later", "rates"),
    [
        pytest.param([], (10_000_000, 100_000_000), id="still open: what we read counts"),
        pytest.param([CLOSED], (10_000_000,), id="closed while we looked: what we read does not"),
    ],
)
def test_a_window_that_ends_while_it_is_read_is_judged_by_its_warden(
    tmp_path: Path, later: list[dict[str, Any]], rates: tuple[int, ...]
) -> None:
    window = WindowConfig(at="1s", period="1s", duty=0.5)
    fault = FaultConfig("port_rate", "h0/switch0", parameters={"rate": "10%"}, window=window)
    (plan,) = plan_faults({"slow": fault}, NETWORK, CAN, RunFacts())
    session = FaultSession([plan], Closing(*later), tmp_path / "journal", tmp_path)  # type: ignore[arg-type]
    session.wardens.look(plan)
    states, _ = Observer(session.fabric, session.play, session.wardens).states(plan, "h0", plan.changes)
    assert tuple(state["rate_bps"] for state in states["h0/switch0"]) == rates
