"""Settling the journals of dead runs: closed when the fabric is gone, left alone while it lives, honest otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from genie.errors import GenieError
from genie.faults.journal import FILE_NAME, Intent, Journal, Owner, read_journal
from genie.faults.revert import GONE_BY_ITSELF, holder_of, is_alive, revert_runs, settle

ME = Owner.this_process("netns")


def journal(folder: Path, owner: Owner | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    with Journal(path) as opened:
        if owner is not None:
            opened.take_charge(owner)
        opened.intend([Intent("r", "slow", "port_rate", "h0", "leaf0", {}, (("tc", "qdisc", "change"),))])
    return path


def dead_owner() -> Owner:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = Owner(ME.host, ME.boot_id, child.pid, 1, "netns")
    child.communicate()
    return owner


@pytest.mark.parametrize(
    ("owner", "state", "words"),
    [
        pytest.param(dead_owner(), "closed", "its fabric ended with it", id="a dead runner"),
        pytest.param(
            replace(ME, start_ticks=ME.start_ticks + 1), "closed", "died", id="its pid is somebody else's now"
        ),
        pytest.param(replace(ME, boot_id="before"), "closed", "died", id="the machine was rebooted"),
        pytest.param(ME, "running", f"process {os.getpid()}", id="a run that is going"),
        pytest.param(replace(ME, host="elsewhere"), "open", "run genie revert there", id="another machine's"),
        pytest.param(replace(ME, fabric="inventory"), "running", f"process {os.getpid()}", id="real hosts, going"),
        pytest.param(
            replace(ME, fabric="inventory", start_ticks=1), "open", "on h0: tc qdisc change", id="real hosts, unknown"
        ),
        pytest.param(None, "open", "undo by hand", id="nobody took charge"),
    ],
)
def test_settling(tmp_path: Path, owner: Owner | None, state: str, words: str) -> None:
    path = journal(tmp_path / "run", owner)
    outcome = settle(path)
    assert (outcome.state, outcome.changes) == (state, 1)
    assert words in outcome.message
    assert outcome.ok is (state != "open")
    assert bool(read_journal(path).opened) is (state != "closed")
    if state == "closed":
        assert read_journal(path).entries[0].how == GONE_BY_ITSELF
        assert settle(path).state == "clean", "a second time is a success"


def test_all_runs_below_a_folder(tmp_path: Path) -> None:
    journal(tmp_path / "sweep" / "0", dead_owner())
    journal(tmp_path / "sweep" / "1", ME)
    (tmp_path / "healthy").mkdir()
    assert [outcome.state for outcome in revert_runs(tmp_path)] == ["closed", "running"]
    assert [outcome.state for outcome in revert_runs(tmp_path)] == ["clean", "running"]
    assert revert_runs(tmp_path / "healthy") == ()


def test_a_holder_that_is_still_there_is_waited_for(tmp_path: Path) -> None:
    owner = dead_owner()
    program = tmp_path / "holder.py"
    program.write_text("input()")
    child = subprocess.Popen([sys.executable, str(program), "3", str(owner.pid)], stdin=subprocess.PIPE)
    try:
        while not holder_of(owner):
            assert child.poll() is None
        path = journal(tmp_path / "run", owner)
        assert settle(path).state == "open"
        assert "still ending" in settle(path).message
    finally:
        child.communicate()
    assert settle(path).state == "closed"


def test_this_process_is_alive() -> None:
    assert is_alive(ME)


def test_a_journal_of_the_future_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"v": 9, "kind": "intent"}\n')
    with pytest.raises(GenieError, match="version 9"):
        revert_runs(tmp_path)


def test_a_runner_that_died_before_its_first_intent_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    with Journal(path) as opened:
        opened.take_charge(dead_owner())
    assert (settle(path).state, settle(path).state) == ("closed", "clean")
    with Journal(path) as opened:
        opened.take_charge(ME)
    assert settle(path).state == "clean", "it lives"
    with Journal(path) as opened:
        opened.take_charge(dead_owner())
        opened.end("nothing was changed")
    assert settle(path).state == "clean", "it said so itself"
