"""Reads an event file (docs/formats.md §3) without copying it.

Results are made from what this returns. Only committed records are seen, so a file of a run that was killed at any
moment is as good as what it holds; a file that is not an event file, or of another version, is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from genie.engine import wire
from genie.errors import GenieError


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Header fields and ``records``, a read-only structured array of `wire.EVENT` mapped from the file.

    ``truncated`` says that the file is shorter than its header claims: ``records`` are those that are there.
    Times are CLOCK_MONOTONIC of the rank's host.
    """

    path: Path
    rank: int
    world: int
    capacity: int
    committed: int
    dropped: int
    iterations_done: int
    state: wire.RankState
    ops_done: int
    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int
    start_mono_ns: int
    start_real_ns: int
    cpu_user_ns: int
    cpu_system_ns: int
    truncated: bool
    records: npt.NDArray[np.void]

    def of(self, kind: wire.EventType) -> npt.NDArray[np.void]:
        """The records of one type (a copy)."""
        chosen: npt.NDArray[np.void] = self.records[self.records["type"] == kind]
        return chosen


def read_events(path: Path | str) -> Events:
    """Map the event file at ``path``.

    Raises:
        GenieError: not an event file, an unknown version, or shorter than its header.
        OSError: it cannot be opened.
    """
    path = Path(path)
    with path.open("rb") as file:
        raw = file.read(wire.EVENT_HEADER_BYTES)
    if raw[:8] != wire.EVENT_MAGIC:
        raise GenieError(f"{path}: expected an event file ({wire.EVENT_MAGIC!r}), found {raw[:8]!r}")
    if len(raw) < wire.EVENT_HEADER_BYTES:
        raise GenieError(f"{path}: an event file begins with {wire.EVENT_HEADER_BYTES} bytes, found {len(raw)}")
    header = np.frombuffer(raw, wire.EVENT_HEADER)[0]
    if header["version"] != wire.EVENT_VERSION or header["record_bytes"] != wire.EVENT.itemsize:
        raise GenieError(
            f"{path}: event file of version {header['version']} with records of {header['record_bytes']} bytes, "
            f"this is version {wire.EVENT_VERSION} with {wire.EVENT.itemsize}",
            hint="read it with the release of GENIE that wrote it",
        )
    committed, capacity = int(header["committed"]), int(header["capacity"])
    if committed > capacity:
        raise GenieError(f"{path}: {committed} records committed, but there is room for {capacity}")
    state = int(header["state"])
    if state not in set(wire.RankState):
        raise GenieError(f"{path}: unknown rank state {state}")
    present = (path.stat().st_size - wire.EVENT_HEADER_BYTES) // wire.EVENT.itemsize
    readable = min(committed, present)
    records: npt.NDArray[np.void] = np.zeros(0, wire.EVENT)
    if readable:
        records = np.memmap(path, wire.EVENT, "r", wire.EVENT_HEADER_BYTES, (readable,))
    numbers = {name: int(header[name]) for name in wire.EVENT_HEADER.names or () if name in _COPIED}
    return Events(
        path=path, state=wire.RankState(state), truncated=readable < committed, records=records, **numbers
    )  # fmt: skip


_COPIED = frozenset(
    {
        "rank", "world", "capacity", "committed", "dropped", "iterations_done", "ops_done", "bytes_sent",
        "bytes_received", "messages_sent", "messages_received", "start_mono_ns", "start_real_ns", "cpu_user_ns",
        "cpu_system_ns",
    }
)  # fmt: skip
