"""Folders of ssh connections: kept while their controller lives, wherever it lives, and swept when it is gone."""

from __future__ import annotations

import os
import select
import subprocess
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


def test_a_program_that_is_killed_takes_with_it_what_it_started(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(host: str, script: str, **_: object) -> None:
        subprocess.run(["/bin/sh", "-c", script], check=False)

    links = ssh.SshLinks({})
    monkeypatch.setattr(links, "_client_argv", lambda host, script: ["/bin/sh", "-c", script])
    monkeypatch.setattr(links, "run", run)
    os.mkfifo(tmp_path / "alive")
    process = links.spawn(
        "h0", ["sh", "-c", f"sleep 60 >{tmp_path / 'alive'}"], pid_file=str(tmp_path / "pid"), limit_s=60,
        folder=str(tmp_path), log=tmp_path / "log", stdin=b"",
    )  # fmt: skip
    heard = os.open(tmp_path / "alive", os.O_RDONLY)  # waits until it has begun
    process.kill()
    assert process.wait(5) == -9
    assert select.select([heard], [], [], 5)[0], "what it had started lives on"
    os.close(heard)
    links.close()
    parent.rmdir()
