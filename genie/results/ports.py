"""Reader of ``ports.smp``: the queue depth of every port over time (docs/formats.md §5).

The fabric's sampler writes the file; metrics and timeline read it, also while it is being written or after its
writer was killed: only committed records are looked at. Never interprets; all numbers are as sampled.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from genie.errors import GenieError

MAGIC = b"GNIESMP1"
HEADER_BYTES = 4096
NOT_KNOWN = 0xFFFF_FFFF_FFFF_FFFF
RECORD = np.dtype(
    [
        ("mono_ns", "<i8"),
        ("port", "<u4"),
        ("zero", "<u4"),
        ("backlog_bytes", "<u8"),
        ("tx_bytes", "<u8"),
        ("drops", "<u8"),
        ("overlimits", "<u8"),
        ("ce_marked", "<u8"),
        ("marker_queue_bytes", "<u8"),
    ]
)


@dataclass(frozen=True, slots=True)
class PortSamples:
    """``records`` has the fields of `RECORD`; ``dropped`` samples found no room in the file."""

    ports: int
    interval_ns: int
    dropped: int
    records: npt.NDArray[np.void]

    def of(self, port: int) -> npt.NDArray[np.void]:
        """Samples of one port, in time order."""
        own: npt.NDArray[np.void] = self.records[self.records["port"] == port]
        return own


def read_ports(path: Path) -> PortSamples:
    """Samples committed so far. Raises GenieError for a file that is not one of these or is shorter than it says."""
    raw = path.read_bytes()
    if len(raw) < HEADER_BYTES or raw[:8] != MAGIC:
        raise GenieError(f"{path}: not a file of port samples: expected {MAGIC.decode()} and a header of 4096 bytes")
    version, record_bytes, ports = struct.unpack_from("<III", raw, 8)
    committed, dropped, interval_ns = struct.unpack_from("<QQQ", raw, 64)
    if version != 1 or record_bytes != RECORD.itemsize:
        raise GenieError(
            f"{path}: port samples of version {version} with records of {record_bytes} bytes; "
            f"this GENIE reads version 1 with {RECORD.itemsize}"
        )
    if HEADER_BYTES + committed * record_bytes > len(raw):
        raise GenieError(f"{path}: the header says {committed} records, the file ends before them")
    records = np.frombuffer(raw, dtype=RECORD, count=committed, offset=HEADER_BYTES)
    if committed and int(records["port"].max()) >= ports:
        raise GenieError(f"{path}: a sample names port {int(records['port'].max())} of {ports}")
    return PortSamples(ports, interval_ns, dropped, records)
