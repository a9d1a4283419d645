"""The audit log: who did which fault to what, when, and how it ended. JSON lines in ``OUT/audit.log``.

`genie.experiment` writes a line for each action of each fault (docs/safety.md, "Audit log"), on the embedded fabric
too. Appended only, each line on disk before the call returns. It is a record for people and auditors: nothing reads
it back to decide, the journal (`genie.faults.journal`) does that.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from genie.errors import RunAborted

FILE_NAME = "audit.log"
VERSION = 1
ACTIONS = ("planned", "applied", "reverted", "refused", "fired")


class AuditLog:
    """The log of one folder of runs. ``run`` is the run directory and ``run_id`` its id, "" where there is none yet."""

    def __init__(self, out: Path, *, run: str = "", run_id: str = "") -> None:
        self.path = out / FILE_NAME
        self._run = run
        self._run_id = run_id

    def write(self, action: str, fault: str, targets: Sequence[str] = (), *, result: str = "ok", **more: Any) -> None:
        """Append one line; returns when the disk has it. ``result`` is "ok" or why not.

        Raises RunAborted where it cannot be written: what nobody can look up later is not done.
        """
        if action not in ACTIONS:
            raise ValueError(f"an action is one of {ACTIONS}, not {action!r}")
        now_ns = time.time_ns()
        line = {
            "v": VERSION,
            "time": datetime.fromtimestamp(now_ns / 1e9, UTC).isoformat(timespec="microseconds"),
            "real_ns": now_ns,
            "action": action,
            "result": result,
            "fault": fault,
            "targets": list(targets),
            "run": self._run,
            "run_id": self._run_id,
            **_who(),
            **more,
        }
        data = json.dumps(line, default=str).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.write(handle, data) != len(data):
                    raise OSError("the disk took only a part of the line")
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise RunAborted(
                f"the audit log {self.path} cannot be written: {error.strerror or error}",
                hint="faults are not injected without it; make room, or choose another folder with out=DIR",
            ) from error


def _who() -> dict[str, Any]:
    """Whoever runs this process: by user id, since anybody can set USER; and who became root by sudo to do so."""
    uid = os.getuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    who = {"user": user, "uid": uid, "host": socket.gethostname(), "pid": os.getpid(), "argv": list(sys.argv)}
    return who | ({"sudo_user": os.environ["SUDO_USER"]} if uid == 0 and os.environ.get("SUDO_USER") else {})
