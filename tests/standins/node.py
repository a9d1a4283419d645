"""A node of stand-ins: runs lines of shell where the PATH begins with the doubles and /sys is the fake one, if any.

`Gear.shell` is a `genie.faults.life.Shell`; `enter` is the command that runs a line there, for a connection plugin.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import infiniband
import mlx5_sysfs
from standin import STATE_VARIABLE, State, install

PASSING = ("calls", "failures", "asic", "lag", "polls", "revision", "revisions", "startup", "confirm", "sessions")
"""What a state may have more of afterwards: history, not configuration."""


OPERATIONAL = {"PFC_WD_STATUS": "operational"}


class Gear:
    """One node of one kind, below ``folder``. ``layout``: whose driver's sysfs a ConnectX host has."""

    def __init__(self, folder: Path, state: State, layout: str = "ofed") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.tree: Path | None = None
        if state["platform"] == "mlx5":
            self.tree = mlx5_sysfs.build(folder, state, layout)
        elif state["platform"] == "infiniband":
            self.tree = infiniband.build(folder)
        self.bin = install(folder, state)
        self.state_file = folder / "state.json"

    def state(self) -> State:
        """The whole state now."""
        return json.loads(self.state_file.read_text(encoding="utf-8"))

    def change(self, **changed: Any) -> None:
        """Set keys of the state."""
        self.state_file.write_text(json.dumps(self.state() | changed), encoding="utf-8")

    def configuration(self) -> dict[str, Any]:
        """All of the state but history and event counters, and the files of sysfs that can be written."""
        kept = {key: value for key, value in self.state().items() if key not in PASSING}
        if kept["platform"] == "cumulus":
            state = self.state()
            kept["applied"] = _pruned(state["revisions"][str(state["revision"])])
        text = json.dumps(kept, sort_keys=True)
        kept = json.loads(text)
        for own in kept.get("queue_counters", {}).values():
            own.pop("PFC_WD_QUEUE_STATS_TX_DROPPED_PACKETS_LAST", None)
        kept["queue_counters"] = {k: v for k, v in kept.get("queue_counters", {}).items() if v != OPERATIONAL}
        for own in kept.get("devices", {}).values():
            own.pop("link_down_events_phy")
        for node in kept.get("nodes", {}).values():
            for port in node["ports"].values():
                port.pop("link_downed")
        if self.tree is not None:
            kept["files"] = {str(path): path.read_text() for path in sorted(self.tree.rglob("*")) if path.is_file()}
        return kept

    def enter(self, line: str) -> list[str]:
        """The command that runs ``line`` by /bin/sh on this node."""
        path = f"{self.bin}:{os.environ['PATH']}"
        inside = ["env", f"{STATE_VARIABLE}={self.state_file}", f"PATH={path}", "/bin/sh", "-c", line]
        if self.tree is None:
            return inside
        bind = f"mount --bind {shlex.quote(str(self.tree))} /sys && exec {shlex.join(inside)}"
        return ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", bind]

    def shell(self, line: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error of a line of shell on this node."""
        done = subprocess.run(self.enter(line), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr


def _pruned(tree: Any) -> Any:
    """Without empty branches, which mean nothing."""
    if not isinstance(tree, dict):
        return tree
    found = {key: _pruned(value) for key, value in tree.items()}
    return {key: value for key, value in found.items() if value != {}}
