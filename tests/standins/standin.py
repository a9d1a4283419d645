"""Doubles of the tools of gear that nobody here has: one program that is any of them, with state in a JSON file.

Called as TOOL it answers as TOOL does on a node whose state is the file named by ``GENIE_STANDIN_STATE``: it
prints what the real tool prints, changes what it changes, and fails as it fails. `install` makes a folder of
executables of the tools' own names for a PATH. The behaviour comes from the sources named in each module; the docs call
everything that is tested with these "stand-in", never "hardware".

Any tool can be told to fail by the state's ``failures``: ``{"tool": "nv", "words": ["apply"], "skip": 1, "code": 1,
"stderr": "…", "after": true}`` lets the first matching call pass and fails the second, with its effect made
(``after``) or not, once. ``calls`` keeps every command line, so that a test can say what never ran.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

STATE_VARIABLE = "GENIE_STANDIN_STATE"
State = dict[str, Any]


class Failed(Exception):
    """The tool ends with ``code``; what it printed until then is ``out`` and ``err``. Its changes so far stay."""

    def __init__(self, err: str = "", code: int = 1, out: str = "") -> None:
        super().__init__(err or out)
        self.err, self.code, self.out = err, code, out


_START = "import sys; sys.path.insert(0, sys.argv[1]); import standin; sys.exit(standin.main(*sys.argv[2:]))"
"""Imported rather than run, so that Python keeps it compiled: a test runs hundreds of these."""

Tool = Callable[[State, list[str]], str]


def tools_of(platform: str) -> Mapping[str, Tool]:
    """The doubles that a node of this kind has."""
    import importlib

    names = {
        "mlx5": ("mlx5_qos", "mlx5_link", "mlx5_sysfs", "pci"),
        "infiniband": ("infiniband",),
        "sonic": ("sonic", "sonic_qos"),
        "cumulus": ("cumulus",),
        "eos": ("eos",),
    }[platform]
    found: dict[str, Tool] = {}
    for name in names:
        found |= importlib.import_module(name).TOOLS
    return found


def install(folder: Path, state: State) -> Path:
    """Write ``state`` and the executables of its platform below ``folder``; returns the folder for the PATH."""
    sys.path.insert(0, str(Path(__file__).parent))
    path = folder / "state.json"
    path.write_text(json.dumps({"calls": [], "failures": [], **state}), encoding="utf-8")
    bin_dir = folder / "bin"
    bin_dir.mkdir(exist_ok=True)
    for name in tools_of(state["platform"]):
        tool = bin_dir / name
        tool.write_text(
            f"#!/bin/sh\n{STATE_VARIABLE}=${{{STATE_VARIABLE}:-{path}}} exec {sys.executable} -ES -c '{_START}' "
            f'{Path(__file__).parent} {name} "$@"\n',
            encoding="utf-8",
        )
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return bin_dir


def call(state: State, tool: str, argv: list[str]) -> str:
    """One command on ``state``: what it prints. Raises Failed as the tool fails."""
    state.setdefault("calls", []).append([tool, *argv])
    failure = _due_failure(state, tool, argv)
    if failure is not None and not failure.get("after"):
        raise Failed(str(failure.get("stderr", f"{tool}: failed")) + "\n", int(failure.get("code", 1)))
    out = tools_of(str(state["platform"]))[tool](state, argv)
    if failure is not None:
        raise Failed(str(failure.get("stderr", f"{tool}: failed")) + "\n", int(failure.get("code", 1)), out)
    return out


def _due_failure(state: State, tool: str, argv: list[str]) -> Mapping[str, Any] | None:
    for failure in state.get("failures", []):
        if failure["tool"] != tool or not set(failure.get("words", ())) <= set(argv) or failure.get("done"):
            continue
        if failure.get("skip", 0) > 0:
            failure["skip"] -= 1
            continue
        failure["done"] = True
        return dict(failure)
    return None


def main(tool: str, *words: str) -> int:
    """Run one command against the state file, exclusively."""
    with Path(os.environ[STATE_VARIABLE]).open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        state = json.load(file)
        code = 0
        try:
            sys.stdout.write(call(state, tool, list(words)))
        except Failed as failed:
            sys.stdout.write(failed.out)
            sys.stderr.write(failed.err)
            code = failed.code
        file.seek(0)
        file.truncate()
        json.dump(state, file)
    return code
