"""Write-ahead journal of changes to a network: JSON lines, on disk before the change they undo.

`genie.faults.life` writes an intent between reading a node and arming its dead-man's switch; `genie.faults.session`
records that it was applied and closes it once the revert was verified; `genie.faults.revert` reads what a dead run
left open. Readable after kill -9 at any byte: a torn line was never acknowledged, so its change never began. Only
appends, never rewrites, never touches the network.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from genie import jsontext

VERSION = 1
FILE_NAME = "faults.journal"


@dataclass(frozen=True, slots=True)
class Intent:
    """One change about to be made: what was found there, and the commands (argv lists) that put it back.

    ``do`` makes it. ``port`` and ``platform`` are what the role's templates need to read the object again, also in
    another process long after.
    """

    run: str
    fault: str
    role: str
    node: str
    object: str
    old: Mapping[str, Any]
    undo: tuple[tuple[str, ...], ...]
    do: tuple[tuple[str, ...], ...] = ()
    port: Mapping[str, Any] = field(default_factory=dict)
    platform: str = "linux"

    @property
    def id(self) -> str:
        """Names the change within its journal: one fault changes one object of one node once."""
        return f"{self.fault}/{self.node}/{self.object}"


@dataclass(frozen=True, slots=True)
class Owner:
    """The process whose death ends the fabric that is changed, so that nobody mistakes a later one for it."""

    host: str
    boot_id: str
    pid: int
    start_ticks: int
    fabric: str

    @classmethod
    def this_process(cls, fabric: str) -> Owner:
        """Who calls, by host, boot, pid and start time."""
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return cls(socket.gethostname(), boot_id, os.getpid(), start_ticks(os.getpid()), fabric)


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot (field 22 of /proc/PID/stat); 0 if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(text.rpartition(")")[2].split()[19])


@dataclass(frozen=True, slots=True)
class Entry:
    """An intent with what became of it. ``state`` is "intended", "applied" or "closed"; ``how`` says how it closed."""

    intent: Intent
    state: str
    how: str = ""
    intended_mono_ns: int = 0
    intended_real_ns: int = 0


@dataclass(frozen=True, slots=True)
class JournalState:
    """All that a journal says. ``torn_lines`` counts records cut short by a crash while they were written.

    ``owner`` is the latest process that took charge; None where none said so. ``ended``: it said that it changes
    nothing (more); a process that was killed before its first intent could not.
    """

    entries: tuple[Entry, ...] = ()
    torn_lines: int = 0
    owner: Owner | None = None
    ended: bool = False
    opened: tuple[Entry, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "opened", tuple(entry for entry in self.entries if entry.state != "closed"))


class Journal:
    """Appends records to one file. Several processes may append at once; each record is whole or torn, never mixed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if not os.fstat(self._fd).st_size:
            self._sync_folder()  # whoever wrote what is in it has done so before

    def _sync_folder(self) -> None:
        """Make the file's own name durable, else the first intents could vanish with the machine."""
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def take_charge(self, owner: Owner) -> None:
        """Say whose life the fabric hangs on, before the first intent."""
        self._append([{"kind": "owner", **asdict(owner)}])

    def intend(self, intents: Iterable[Intent]) -> None:
        """Write the undo of changes about to be made. Returns when the disk has all of them; raises OSError."""
        self._append(
            {
                "kind": "intent",
                "run": intent.run,
                "fault": intent.fault,
                "role": intent.role,
                "node": intent.node,
                "object": intent.object,
                "old": dict(intent.old),
                "undo": [list(argv) for argv in intent.undo],
                "do": [list(argv) for argv in intent.do],
                "port": dict(intent.port),
                "platform": intent.platform,
            }
            for intent in intents
        )

    def mark_applied(self, entries: Iterable[Entry]) -> None:
        """The changes were made and read back."""
        self._append({"kind": "applied", "id": entry.intent.id} for entry in entries)

    def close_entries(self, entries: Iterable[Entry], how: str) -> None:
        """The changes are undone, and it was verified; ``how`` says by what ("reverted", "fabric gone by itself")."""
        self._append({"kind": "closed", "id": entry.intent.id, "how": how} for entry in entries)

    def end(self, how: str) -> None:
        """Say that whoever took charge last changes nothing (more)."""
        self._append([{"kind": "closed", "id": "", "how": how}])  # of no entry, so that older readers pass it over

    def _append(self, records: Iterable[Mapping[str, object]]) -> None:
        stamp = {"v": VERSION, "mono_ns": time.monotonic_ns(), "real_ns": time.time_ns()}
        lines = "".join(json.dumps({**stamp, **record}, sort_keys=True) + "\n" for record in records).encode()
        if not lines:
            return
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            size = os.fstat(self._fd).st_size
            if size and os.pread(self._fd, 1, size - 1) != b"\n":
                lines = b"\n" + lines  # an earlier writer died mid-line: end its line, so that ours stands alone
            written = 0
            while written < len(lines):
                written += os.write(self._fd, lines[written:])
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.fsync(self._fd)  # without the lock: the disk takes the records of many nodes at once

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_journal(path: Path) -> JournalState:
    """What the journal at ``path`` says; a missing file is an empty journal. Raises ValueError for a newer version
    and for a record that is whole and lacks what its kind has.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return JournalState()
    entries: dict[str, Entry] = {}
    owner: Owner | None = None
    torn = 0
    ended = False
    for line in raw.split(b"\n"):
        if not line:
            continue
        record = _parse(line)
        if record is None:
            torn += 1
            continue
        if record["v"] != VERSION:
            raise ValueError(f"{path}: a journal of version {record['v']}, this GENIE reads version {VERSION}")
        try:
            if record["kind"] == "owner":
                ended = False
                owner = Owner(
                    str(record["host"]),
                    str(record["boot_id"]),
                    _number(record["pid"]),
                    _number(record["start_ticks"]),
                    str(record["fabric"]),
                )
            elif record["kind"] == "closed" and not record["id"]:
                ended = True
            else:
                _fold(entries, record)
        except KeyError as error:  # whole, so not cut short by a crash: somebody else wrote it
            raise ValueError(f"{path}: a record of kind {record['kind']!r} lacks {error}") from error
    return JournalState(tuple(entries.values()), torn, owner, ended)


def _parse(line: bytes) -> dict[str, object] | None:
    """The record, or None for a line that was cut short. A cut JSON object is never valid JSON: it lacks its brace."""
    try:
        record = jsontext.parse(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "v" in record and "kind" in record else None


def _fold(entries: dict[str, Entry], record: Mapping[str, object]) -> None:
    kind = record["kind"]
    if kind == "intent":
        intent = Intent(
            run=str(record["run"]),
            fault=str(record["fault"]),
            role=str(record["role"]),
            node=str(record["node"]),
            object=str(record["object"]),
            old=_mapping(record["old"]),
            undo=_commands(record["undo"]),
            do=_commands(record.get("do")),
            port=_mapping(record.get("port")),
            platform=str(record.get("platform", "linux")),
        )
        earlier = entries.get(intent.id)
        if earlier is not None and earlier.state != "closed":
            return  # a second snapshot of a change still open would record the fault as the old state
        entries[intent.id] = Entry(intent, "intended", "", _number(record["mono_ns"]), _number(record["real_ns"]))
        return
    known = entries.get(str(record["id"]))
    if known is None or known.state == "closed":
        return
    state = "applied" if kind == "applied" else "closed"
    entries[str(record["id"])] = Entry(
        known.intent, state, str(record.get("how", "")), known.intended_mono_ns, known.intended_real_ns
    )


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}


def _commands(value: object) -> tuple[tuple[str, ...], ...]:
    listed: Sequence[Sequence[object]] = value if isinstance(value, list) else []
    return tuple(tuple(str(word) for word in argv) for argv in listed)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
