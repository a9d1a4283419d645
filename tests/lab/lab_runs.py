"""Runs of GENIE over the lab, started as a user would: what `tests/lab` and `tests/rdma` share."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import Lab

RUN_LIMIT_S = 200
SMALL = ("transport.spin=0", "tracking.mlflow.enabled=false")


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over: its exit code, all it said on one line, its directory."""

    code: int
    text: str
    run: Path

    @property
    def results(self) -> dict[str, Any]:
        """`results.json`."""
        return dict(json.loads((self.run / "results.json").read_text()))


class Started:
    """A run in the background, with a folder of its own for what it says and makes."""

    def __init__(self, lab: Lab, folder: Path, *words: str, inventory: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        argv = [sys.executable, "-m", "genie", *SMALL, "fabric=inventory"]
        argv += [f"fabric.inventory={inventory or lab.inventory}", f"out={folder / 'runs'}"]
        argv += [f"fabric.control_address={lab.state['control_address']}", *words]
        until(lambda: answers_soon(lab), "the machines are too slow for a run: what else runs on this host?", 120)
        with (folder / "said").open("wb") as out:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=folder
            )

    def said(self) -> str:
        """All it said so far, on one line."""
        return re.sub(r"\s+", " ", (self._folder / "said").read_text())

    def running(self) -> None:
        """Wait until its ranks run."""
        until(lambda: "running" in self.said() or self.process.poll() is not None, "the run did not start", RUN_LIMIT_S)
        assert self.process.poll() is None, self.said()

    def finish(self, limit_s: float = RUN_LIMIT_S) -> Ended:
        """Wait for its end."""
        try:
            code = self.process.wait(limit_s)
        finally:
            self.kill()
        made = list((self._folder / "runs").glob("2*/"))
        assert made, self.said()
        return Ended(code, self.said(), max(made, key=lambda path: path.stat().st_mtime))

    def kill(self) -> None:
        """End it now; nothing if it has ended."""
        self.process.kill()
        self.process.wait()


def answers_soon(lab: Lab) -> bool:
    """Whether both machines let somebody in within 5 s; a run gives each 10, which a busy host may use up."""
    began = time.monotonic()
    argvs = [lab.ssh_argv(name, ["true"]) for name in lab.names]
    clients = [subprocess.Popen([ssh, "-o", "ControlPath=none", *rest]) for ssh, *rest in argvs]
    return [client.wait(60) for client in clients] == [0, 0] and time.monotonic() - began < 5


def until(condition: Callable[[], Any], what: str, seconds: float) -> Any:
    """Wait for a condition that something else brings about; its first true value."""
    ends = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < ends, f"after {seconds:g} s: {what}"
        time.sleep(0.1)
    return value
