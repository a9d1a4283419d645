"""Port samples of several hosts, each by its own clock, merged into one ``ports.smp`` (docs/formats.md §5)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from genie.clocks import HostClock
from genie.errors import GenieError

MAGIC = b"GNIESMP1"
HEADER_BYTES = 4096
COMMITTED_AT, DROPPED_AT, INTERVAL_AT = 64, 72, 80
RECORD_BYTES = 64
_HEAD = np.dtype([("mono_ns", "<i8"), ("port", "<u4"), ("rest", "V52")])


@dataclass(frozen=True, slots=True)
class HostSamples:
    """A host's file, and the number in the whole topology of each port that it sampled, in its own order."""

    host: str
    path: Path
    ports: Sequence[int]


def merge_samples(parts: Sequence[HostSamples], clocks: Mapping[str, HostClock], ports: int, out: Path) -> None:
    """Write ``out``: all records in order of time, by our clock. Raises GenieError for a file that is none of these."""
    records: list[npt.NDArray[np.void]] = []
    dropped = interval_ns = 0
    for part in parts:
        raw = part.path.read_bytes()
        if len(raw) < HEADER_BYTES or raw[:8] != MAGIC or struct.unpack_from("<II", raw, 8) != (1, RECORD_BYTES):
            raise GenieError(f"the port samples of {part.host} are no file of port samples: {part.path}")
        committed, lost, interval_ns = struct.unpack_from("<QQQ", raw, COMMITTED_AT)
        present = min(committed, (len(raw) - HEADER_BYTES) // RECORD_BYTES)
        dropped += lost + committed - present
        own = np.frombuffer(raw, _HEAD, present, HEADER_BYTES).copy()
        if present and int(own["port"].max()) >= len(part.ports):
            raise GenieError(f"the port samples of {part.host} are of ports it does not have: {part.path}")
        own["port"] = np.asarray(part.ports, dtype="<u4")[own["port"]]
        clock = clocks.get(part.host)
        if clock is not None:
            own["mono_ns"] = clock.to_ours(own["mono_ns"].astype(np.int64))
        records.append(own)
    merged = np.concatenate(records) if records else np.zeros(0, _HEAD)
    merged = merged[np.argsort(merged["mono_ns"], kind="stable")]
    header = bytearray(HEADER_BYTES)
    header[:8] = MAGIC
    struct.pack_into("<IIIIQ", header, 8, 1, RECORD_BYTES, ports, 0, len(merged))
    struct.pack_into("<QQQ", header, COMMITTED_AT, len(merged), dropped, interval_ns)
    beside = out.with_name(f".{out.name}.tmp")
    beside.write_bytes(bytes(header) + merged.tobytes())
    beside.replace(out)
