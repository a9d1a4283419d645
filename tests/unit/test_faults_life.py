"""The life of a fault on a node that is a stand-in: what is on disk before what is changed, and what ends well."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from fault_node import Node, port

from genie.errors import ConfigError, RunAborted
from genie.faults.journal import Journal, read_journal
from genie.faults.life import Task, act, prepare, revert
from genie.faults.plan import DRY_TOOLS, words
from genie.faults.warden import Window

WARDENS = pytest.mark.parametrize("warden", ["", "genie-warden"], ids=["by itself", "by its warden"])
ENDED = {"reverted", "armed"}


def task(folder: Path, warden: str = "", role: str = "port_rate", **values: Any) -> Task:
    told = {"mtu": 1500, "own_bps": 100_000_000, "set": values or {"rate_bps": 8_000_000}}
    ports = tuple({"target": f"n/{name}", "object": name, "interface": name, **told} for name in ("e0", "e1"))
    return Task(
        run="r", fault="slow", role=role, node="n", platform="linux", ports=ports,
        words={**words("slow", "n", "none"), **DRY_TOOLS}, journal=folder / "journal", window=Window("told"),
        is_whole=True, ttl_ns=10**10, warden=warden, state="/run/genie/n", lock="",
    )  # fmt: skip


def fresh() -> Node:
    return Node({f"e{i}": port(100_000_000, 6_250, 100_000, i) for i in range(3)})


def rates(node: Node) -> list[int]:
    return [state["tbf"]["rate"] * 8 for state in node.ports.values()]


def changing(argv: list[str]) -> bool:
    return argv[:3] == ["tc", "qdisc", "change"]


def refusing(*which: Callable[[list[str]], bool], words: str = "RTNETLINK answers: Device or resource busy") -> Any:
    return lambda argv: words if any(one(argv) for one in which) else ""


@WARDENS
def test_a_fault_is_found_journaled_made_and_put_back(tmp_path: Path, warden: str) -> None:
    node, slow = fresh(), task(tmp_path, warden)
    before = copy.deepcopy(node.ports)
    found = prepare(slow, node.answer)["found"]
    assert node.ports == before
    assert not any(map(changing, node.ran))
    assert found["e0"]["rate_bps"] == 100_000_000
    entries = read_journal(slow.journal).opened
    assert [(entry.intent.object, entry.intent.old) for entry in entries] == list(found.items())
    assert all(entry.intent.do and entry.intent.undo and entry.intent.platform == "linux" for entry in entries)
    state = act(slow, node.answer)["state"]
    assert rates(node) == [8_000_000, 8_000_000, 100_000_000], "the port that is no target was changed too"
    assert state["e1"]["rate_bps"] == 8_000_000
    revert(slow, node.answer)
    assert node.ports == before
    assert {told["state"] for told in node.wardens.values()} <= ENDED


@WARDENS
def test_the_undo_is_on_disk_and_the_switch_armed_before_anything_is_changed(tmp_path: Path, warden: str) -> None:
    node, slow = fresh(), task(tmp_path, warden)
    seen: list[tuple[int, bool]] = []

    def look(argv: list[str]) -> str:
        if changing(argv):
            seen.append((len(read_journal(slow.journal).opened), "/run/genie/n/slow" in node.wardens))
        return ""

    node.refuse = look
    prepare(slow, node.answer)
    act(slow, node.answer)
    assert seen == [(2, bool(warden))] * 2


def test_the_warden_is_told_everything_that_it_needs_alone(tmp_path: Path) -> None:
    node, slow = fresh(), task(tmp_path, "genie-warden")
    prepare(slow, node.answer)
    armed = node.wardens["/run/genie/n/slow"]
    entries = read_journal(slow.journal).opened
    assert armed["do"] == [list(argv) for entry in entries for argv in entry.intent.do]
    assert armed["undo"] == [list(argv) for entry in reversed(entries) for argv in entry.intent.undo]
    assert len(armed["check"]) == 1
    assert armed["check"][0][:2] == ["sh", "-c"]


def test_a_node_that_is_not_as_the_role_knows_it_is_refused_before(tmp_path: Path) -> None:
    node, slow = fresh(), task(tmp_path, "genie-warden")
    before = copy.deepcopy(node.ports)

    def other(line: str) -> tuple[int, str, str]:
        code, out, err = node.answer(line)
        return code, out.replace('"kind": "tbf"', '"kind": "fq_codel"', 1), err

    with pytest.raises(RunAborted, match="cannot be applied: e0: kind expected tbf, found fq_codel"):
        prepare(slow, other)
    assert read_journal(slow.journal).entries == ()
    assert (node.ports, node.wardens) == (before, {})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param((0, "", ""), "0 of 2 answers: it said nothing", id="no answer"),
        pytest.param((255, "", "ssh: connection closed\n"), "code 255 and 0 of 2 answers: ssh", id="no connection"),
        pytest.param((0, "[]\0360\036", ""), "1 of 2 answers", id="half an answer"),
        pytest.param((0, "[]\036x\036[]\0360\036", ""), "reading the state ended", id="a garbled exit code"),
        pytest.param(
            (0, "\0361\036\0361\036", 'Cannot find device "e0"\n'), 'Cannot find device "e0"', id="no such port"
        ),
    ],
)  # fmt: skip
def test_a_state_that_cannot_be_read_is_refused_in_the_nodes_words(
    tmp_path: Path, answer: tuple[int, str, str], words: str
) -> None:
    slow = task(tmp_path, "genie-warden")
    lines: list[str] = []

    def shell(line: str) -> tuple[int, str, str]:
        lines.append(line)
        return answer

    with pytest.raises(RunAborted) as caught:
        prepare(slow, shell)
    assert words in caught.value.message
    assert len(lines) == 1, "something was run after the reading failed"
    assert read_journal(slow.journal).entries == ()


def test_a_journal_that_cannot_be_written_keeps_the_node_as_it_is(tmp_path: Path) -> None:
    node = fresh()
    before = copy.deepcopy(node.ports)
    with pytest.raises(OSError, match="No such file"):
        prepare(replace(task(tmp_path, "genie-warden"), journal=tmp_path / "gone" / "journal"), node.answer)
    assert (node.ports, node.wardens) == (before, {})
    assert not any(map(changing, node.ran))


def test_a_switch_that_cannot_be_armed_closes_the_journal_and_changes_nothing(tmp_path: Path) -> None:
    node, slow = fresh(), task(tmp_path, "genie-warden")
    before = copy.deepcopy(node.ports)
    node.refuse = refusing(lambda argv: argv[0] == "genie-warden", words="genie-warden: another run holds the lock")
    with pytest.raises(RunAborted, match="could not be armed: genie-warden: another run holds the lock"):
        prepare(slow, node.answer)
    state = read_journal(slow.journal)
    assert [(entry.state, entry.how) for entry in state.entries] == [("closed", "never armed, nothing changed")] * 2
    assert node.ports == before
    assert not any(map(changing, node.ran))


@WARDENS
@pytest.mark.parametrize("which", ["e0", "e1"], ids=["the first", "the second, after the first was made"])
def test_a_change_that_fails_is_said_in_the_tools_words_and_put_back(tmp_path: Path, warden: str, which: str) -> None:
    node, slow = fresh(), task(tmp_path, warden)
    before = copy.deepcopy(node.ports)
    prepare(slow, node.answer)
    node.refuse = refusing(lambda argv: changing(argv) and which in argv)
    with pytest.raises(RunAborted, match="Device or resource busy"):
        act(slow, node.answer)
    node.refuse = lambda argv: ""
    assert read_journal(slow.journal).opened, "the undo must stay open until it was made"
    revert(slow, node.answer)
    assert node.ports == before


@WARDENS
def test_a_change_that_does_not_show_is_an_error(tmp_path: Path, warden: str) -> None:
    node, slow = fresh(), task(tmp_path, warden)
    prepare(slow, node.answer)
    for armed in node.wardens.values():
        armed["do"] = []  # it says that it did what it was told, and did nothing

    def deaf(line: str) -> tuple[int, str, str]:
        return (0, "", "") if "change" in line else node.answer(line)

    with pytest.raises(RunAborted, match="read-back does not show it: e0: rate_bps expected 8000000, found 100000000"):
        act(slow, deaf)


def test_a_fault_with_a_window_is_only_armed(tmp_path: Path) -> None:
    node = fresh()
    timed = replace(task(tmp_path, "genie-warden"), window=Window("timed", at_ns=10**9, for_ns=10**9), is_whole=False)
    before = copy.deepcopy(node.ports)
    prepare(timed, node.answer)
    assert act(timed, node.answer) == {"armed": True}
    assert node.ports == before
    revert(timed, node.answer)
    assert node.ports == before


@WARDENS
def test_a_revert_is_idempotent_and_nothing_to_do_is_a_success(tmp_path: Path, warden: str) -> None:
    node, slow = fresh(), task(tmp_path, warden)
    before = copy.deepcopy(node.ports)
    revert(slow, node.answer)
    assert not any(map(changing, node.ran))
    prepare(slow, node.answer)
    act(slow, node.answer)
    for _ in range(3):
        revert(slow, node.answer)
        assert node.ports == before
    with Journal(slow.journal) as journal:
        journal.close_entries(read_journal(slow.journal).opened, "reverted")
    node.ran.clear()
    revert(slow, node.answer)
    assert not any(map(changing, node.ran)), "a closed change was undone again"


@WARDENS
def test_what_is_not_as_it_was_is_named_field_by_field(tmp_path: Path, warden: str) -> None:
    node, slow = fresh(), task(tmp_path, warden)
    prepare(slow, node.answer)
    act(slow, node.answer)
    node.refuse = refusing(lambda argv: changing(argv) and "e1" in argv)
    with pytest.raises(RunAborted) as caught:
        revert(slow, node.answer)
    assert "e1: rate_bps was 100000000, is 8000000" in caught.value.message
    assert "Device or resource busy" in caught.value.message
    assert read_journal(slow.journal).opened
    node.refuse = lambda argv: ""
    revert(slow, node.answer)
    assert rates(node) == [100_000_000] * 3


def test_an_undo_that_the_warden_lost_is_made_by_the_controller(tmp_path: Path) -> None:
    node, slow = fresh(), task(tmp_path, "genie-warden")
    before = copy.deepcopy(node.ports)
    prepare(slow, node.answer)
    act(slow, node.answer)
    node.wardens.clear()  # killed with all that it knew
    revert(slow, node.answer)
    assert node.ports == before


def test_a_warden_that_only_says_so_is_not_believed(tmp_path: Path) -> None:
    node, slow = fresh(), task(tmp_path, "genie-warden")
    before = copy.deepcopy(node.ports)
    prepare(slow, node.answer)
    act(slow, node.answer)

    def shell(line: str) -> tuple[int, str, str]:
        return (0, "{}", "") if "genie-warden" in line else node.answer(line)

    revert(slow, shell)
    assert node.ports == before


def test_the_faults_of_others_in_the_same_journal_are_left_alone(tmp_path: Path) -> None:
    node, slow = fresh(), task(tmp_path)
    other = replace(slow, fault="other", ports=({**slow.ports[0], "object": "e2", "interface": "e2"},))
    for each in (slow, other):
        prepare(each, node.answer)
        act(each, node.answer)
    revert(slow, node.answer)
    assert rates(node) == [100_000_000, 100_000_000, 8_000_000]
    revert(other, node.answer)
    assert rates(node) == [100_000_000] * 3


@pytest.mark.parametrize("name", ["x; flush ruleset", "$(reboot)", "../x", "", "a b", "-x", "{{ 7 }}"])
@pytest.mark.parametrize("which", ["fault", "node", "object"])
def test_a_name_that_is_none_reaches_no_node(tmp_path: Path, name: str, which: str) -> None:
    slow = task(tmp_path)
    changes: dict[str, Any] = {which: name}
    if which == "object":
        changes = {"ports": ({**slow.ports[0], "object": name},)}
    hostile = replace(slow, **changes)
    node = fresh()
    with pytest.raises(RunAborted, match="cannot be a name"):
        prepare(hostile, node.answer)
    assert node.ran == []


def test_a_value_that_the_shell_would_obey_stays_one_word(tmp_path: Path) -> None:
    node = fresh()
    hostile = task(tmp_path, rate_bps="8000000; tc qdisc del dev e2 root; #")
    prepare(hostile, node.answer)
    with pytest.raises(RunAborted, match='Illegal "rate"'):
        act(hostile, node.answer)
    assert not any("del" in argv for argv in node.ran)
    assert rates(node)[2] == 100_000_000


def test_a_template_that_names_what_there_is_not_is_refused_before(tmp_path: Path) -> None:
    node = fresh()
    with pytest.raises(ConfigError, match="rate_bps"):
        prepare(task(tmp_path, speed_bps=1), node.answer)
    assert read_journal(tmp_path / "journal").entries == ()
    assert not any(map(changing, node.ran))


def test_a_task_is_what_the_inventory_says(tmp_path: Path) -> None:
    slow = task(tmp_path, "/opt/genie-warden")
    told = {
        "genie_run": "r", "genie_fault": "slow", "genie_role": "port_rate", "genie_node": "n",
        "genie_platform": "linux", "genie_ports_json": json.dumps(slow.ports),
        "genie_words_json": json.dumps(slow.words),
        "genie_journal_path": str(slow.journal), "genie_window_json": '{"kind": "told"}', "genie_is_whole": True,
        "genie_ttl_ns": 10**10, "genie_warden": "/opt/genie-warden", "genie_state": "/run/genie/n", "genie_lock": "",
    }  # fmt: skip
    assert Task.from_variables(told) == slow
    assert slow.has_warden
    assert not task(tmp_path).has_warden


PORTS = st.tuples(st.integers(2_000, 5_000_000_000), st.integers(1514, 4_000_000), st.integers(3_000, 64_000_000))
FAILURES = st.sampled_from(["none", "e0", "e1", "read-back"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes=st.tuples(PORTS, PORTS), rate=st.integers(1_000, 10**8), failing=FAILURES, warden=st.booleans())
def test_whatever_a_port_is_like_and_whatever_fails_it_ends_as_it_began(
    tmp_path_factory: pytest.TempPathFactory, shapes: Any, rate: int, failing: str, warden: bool
) -> None:
    folder = tmp_path_factory.mktemp("life")
    node = Node({f"e{i}": port(speed * 8, burst, limit, i) for i, (speed, burst, limit) in enumerate(shapes)})
    before = copy.deepcopy(node.ports)
    slow = task(folder, "genie-warden" if warden else "", rate_bps=rate * 8)
    prepare(slow, node.answer)
    if failing in ("e0", "e1"):
        node.refuse = refusing(lambda argv: changing(argv) and failing in argv)
        with pytest.raises(RunAborted):
            act(slow, node.answer)
    elif failing == "read-back":
        with pytest.raises(RunAborted):
            act(slow, lambda line: (1, "", "gone") if "show" in line else node.answer(line))
    else:
        act(slow, node.answer)
        assert rates(node) == [rate * 8] * 2
    node.refuse = lambda argv: ""
    revert(slow, node.answer)
    assert node.ports == before
