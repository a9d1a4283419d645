"""What a search has done so far, a JSON object a line in ``bisect.jsonl``: how it goes on after a kill.

Each line is on the disk before the next probe begins. The first says what is searched; a search may go on only where
that is the same. A last line that was cut short by a kill is left out: its probe is made again. `genie.bisect.hunt` and
`genie.bisect.changes` write and read it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from genie import jsontext
from genie.errors import ConfigError, GenieError

FILE_NAME = "bisect.jsonl"
FORMAT = "genie-bisect-journal"
VERSION = 1
STOPPED = "stopped"
"""The event that says why a search ended early."""


class BisectJournal:
    """An open journal. A context manager."""

    def __init__(self, folder: Path, subject: Mapping[str, Any]) -> None:
        """Opens the journal of ``folder``, or begins it. ``subject`` says what is searched, in plain JSON values.

        Raises ConfigError where the folder holds a search of something else, or another process is at it.
        """
        self.path = folder / FILE_NAME
        self.entries: tuple[dict[str, Any], ...] = ()
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._open(subject)
        except BaseException:
            os.close(self._file)
            raise

    def _open(self, subject: Mapping[str, Any]) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another process is at this search: it holds {self.path}") from error
        header = {"format": FORMAT, "version": VERSION, "subject": json.loads(json.dumps(subject))}
        whole, lines = _lines(self.path)
        if lines and lines[0] != header:
            raise ConfigError(
                f"{self.path} is the journal of another search: {_difference(lines[0], header)}",
                hint="go on with the words that began it, or begin a new one",
            )
        self.entries = tuple(lines[1:])
        # what a kill cut short is cut off
        os.ftruncate(self._file, len(whole))
        os.lseek(self._file, 0, os.SEEK_END)
        if not whole:
            self._write(header)

    def __enter__(self) -> BisectJournal:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        """Closes it; its last line says why, where the search ends early by something that can be said."""
        try:
            if isinstance(error, (GenieError, KeyboardInterrupt)):
                self.append(STOPPED, why=error.message if isinstance(error, GenieError) else "interrupted")
        finally:
            os.close(self._file)

    def append(self, event: str, **values: Any) -> None:
        """One more line, on the disk when this returns."""
        self._write({"event": event, **values})

    def of(self, event: str) -> list[dict[str, Any]]:
        """Lines of one kind that were there when the journal was opened."""
        return [entry for entry in self.entries if entry.get("event") == event]

    def _write(self, value: Mapping[str, Any]) -> None:
        data = (json.dumps(value, separators=(",", ":")) + "\n").encode()
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)


def read_journal(folder: Path) -> tuple[dict[str, Any], tuple[dict[str, Any], ...], bool]:
    """The subject of a search, its whole lines so far, and whether a process is at it. Raises ConfigError."""
    path = folder / FILE_NAME
    try:
        _, lines = _lines(path)
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                busy = False
            except BlockingIOError:
                busy = True
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    subject = lines[0].get("subject") if lines else None
    if not isinstance(subject, dict) or (lines[0].get("format"), lines[0].get("version")) != (FORMAT, VERSION):
        raise ConfigError(f"{path} does not begin as the journal of a bisect ({FORMAT}, version {VERSION})")
    return subject, tuple(lines[1:]), busy


def _lines(path: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """All whole lines: as they are, and read."""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    return whole, [_read(line, path) for line in whole.splitlines()]


def _read(line: bytes, path: Path) -> dict[str, Any]:
    try:
        value = jsontext.parse(line)
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {line[:80]!r} is no JSON") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is damaged: {line[:80]!r} is no object")
    return value


def _difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    if (found.get("format"), found.get("version")) != (FORMAT, VERSION):
        return f"expected {FORMAT!r} version {VERSION}, found {found.get('format')!r} version {found.get('version')!r}"
    old, new = found.get("subject", {}), wanted["subject"]
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return f"{keys[0]} was {old.get(keys[0])!r}, is {new.get(keys[0])!r}" if keys else "its head differs"
