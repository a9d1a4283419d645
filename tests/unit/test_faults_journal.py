"""The write-ahead journal: whatever byte a writer died at, what it acknowledged is there and nothing else."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.errors import GenieError
from genie.faults.journal import Intent, Journal, read_journal
from genie.faults.revert import settle


def intent(node: str = "h0", fault: str = "link_rate") -> Intent:
    return Intent("run1", fault, "port_rate", node, "leaf0", {"rate_bps": 100}, (("tc", "qdisc", "a b"), ("true",)))


def test_an_intent_is_open_until_closed_and_keeps_its_words(tmp_path: Path) -> None:
    path = tmp_path / "faults.journal"
    with Journal(path) as journal:
        journal.intend([intent("h0"), intent("h1")])
        journal.mark_applied(read_journal(path).entries[:1])
        assert [entry.state for entry in read_journal(path).entries] == ["applied", "intended"]
        journal.close_entries(read_journal(path).opened, "reverted")
    state = read_journal(path)
    assert state.opened == ()
    assert state.entries[0].intent == intent("h0")
    assert state.entries[0].how == "reverted"


def test_what_a_role_needs_to_read_and_undo_again_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "j"
    told = {"object": "leaf0", "mtu": 1500, "set": {"rate_bps": 8_000}}
    old = {"kind": "tbf", "marking": True, "list": [1, "a"], "nested": {"b": 1, "a": None}}
    do, undo = (("tc", "a b", "{{ x }}"), ("true",)), (("tc", "'"),)
    made = Intent("run1", "slow", "port_rate", "h0", "leaf0", old, undo, do, told, "linux.red")
    with Journal(path) as journal:
        journal.intend([made])
    assert read_journal(path).opened[0].intent == made


def test_a_record_without_the_newer_fields_is_still_undone(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.intend([intent()])
    record = json.loads(path.read_text())
    for key in ("do", "port", "platform"):
        del record[key]
    path.write_text(json.dumps(record) + "\n")
    assert [entry.intent for entry in read_journal(path).opened] == [intent()]


def test_a_second_snapshot_of_an_open_change_does_not_replace_the_first(tmp_path: Path) -> None:
    path = tmp_path / "j"
    later = Intent("run2", "link_rate", "port_rate", "h0", "leaf0", {"rate_bps": 10}, (("false",),))
    with Journal(path) as journal:
        journal.intend([intent()])
        journal.intend([later])
    assert [entry.intent.old for entry in read_journal(path).opened] == [{"rate_bps": 100}]


def test_a_closed_change_can_be_made_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.intend([intent()])
        journal.close_entries(read_journal(path).opened, "reverted")
        journal.intend([intent()])
    assert [entry.state for entry in read_journal(path).entries] == ["intended"]


def test_a_missing_journal_is_empty(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "none").entries == ()


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text(json.dumps({"v": 2, "kind": "intent"}) + "\n")
    with pytest.raises(ValueError, match="version 2"):
        read_journal(path)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_cut_at_any_byte_it_reads_as_a_prefix_and_takes_more(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "j"
    with Journal(path) as journal:
        journal.intend([intent("h0")])
        acknowledged = path.stat().st_size
        journal.intend([intent("h1")])
    whole = path.read_bytes()
    cut = data.draw(st.integers(acknowledged, len(whole)))
    path.write_bytes(whole[:cut])
    nodes = [entry.intent.node for entry in read_journal(path).opened]
    assert nodes in (["h0"], ["h0", "h1"])
    assert nodes == ["h0", "h1"] or cut < len(whole)
    with Journal(path) as journal:
        journal.intend([intent("h2")])
    assert [entry.intent.node for entry in read_journal(path).opened] == [*nodes, "h2"]


def _write_until_killed(path: Path, pipe: int) -> None:
    with Journal(path) as journal:
        for number in range(10_000):
            journal.intend([intent(f"h{number}")])
            os.write(pipe, b".")


@pytest.mark.parametrize("acknowledged", [1, 7, 40])
def test_after_kill_9_every_acknowledged_intent_is_there(tmp_path: Path, acknowledged: int) -> None:
    path = tmp_path / "j"
    reader, writer = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=_write_until_killed, args=(path, writer))
    process.start()
    os.close(writer)
    told = 0
    while told < acknowledged:
        told += len(os.read(reader, 1))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    while rest := os.read(reader, 4096):
        told += len(rest)
    os.close(reader)
    written = len(read_journal(path).opened)
    assert told <= written <= told + 1


def _append_some(path: Path, name: str) -> None:
    with Journal(path) as journal:
        for number in range(30):
            journal.intend([intent(f"{name}{number}")])


def test_two_writers_at_once_never_mix_their_records(tmp_path: Path) -> None:
    path = tmp_path / "j"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_append_some, args=(path, name)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    state = read_journal(path)
    assert len(state.opened) == 60
    assert state.torn_lines == 0


def test_a_record_that_lacks_what_its_kind_has_is_no_defect_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "faults.journal"
    path.write_text('{"v": 1, "kind": "intent", "fault": "f"}\n')
    with pytest.raises(ValueError, match="a record of kind 'intent' lacks 'run'"):
        read_journal(path)
    with pytest.raises(GenieError, match="cannot be read as a journal"):
        settle(path)


def test_a_journal_of_nothing_but_garbage_is_not_called_clean(tmp_path: Path) -> None:
    path = tmp_path / "faults.journal"
    path.write_bytes(b"\xff\x00\n{]\n")
    with pytest.raises(GenieError, match="none of its 2 lines is a record"):
        settle(path)
