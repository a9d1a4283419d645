"""Folders of ssh connections: kept while their controller lives, wherever it lives, and swept when it is gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from genie.fabric import ssh


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of its own; a short name, since sockets go below it."""
    monkeypatch.setattr(ssh.tempfile, "tempdir", "/tmp")
    made = Path(ssh.tempfile.mkdtemp(prefix="gst-"))
    monkeypatch.setattr(ssh.tempfile, "tempdir", str(made))
    return made


def old(parent: Path) -> list[str]:
    """Make all that is there old, and give its names."""
    for folder in parent.iterdir():
        os.utime(folder, (0, 0))
    return sorted(folder.name for folder in parent.iterdir())


def test_the_folder_of_a_controller_that_we_cannot_see_is_kept(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In a container with process ids of its own and our /tmp, say.
    monkeypatch.setattr(ssh.os, "getpid", lambda: 99_999_999)
    links = ssh.SshLinks({})
    monkeypatch.undo()
    kept = old(parent)
    ssh._sweep(parent)
    assert old(parent) == kept
    links.close()
    assert old(parent) == []
    parent.rmdir()


def test_what_a_killed_controller_left_is_removed_once_it_is_old(parent: Path) -> None:
    links = ssh.SshLinks({})
    os.close(links._lock)  # as the kernel does when a process ends
    links._lock = -1
    ssh._sweep(parent)
    assert list(parent.iterdir()), "it may be about to take its lock"
    old(parent)
    ssh._sweep(parent)
    assert list(parent.iterdir()) == []
    parent.rmdir()
