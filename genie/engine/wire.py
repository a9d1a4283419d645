"""The numpy layout of docs/formats.md: program blobs (§1) and event files (§3).

`genie.engine.encode` writes the first, `genie.engine.events` reads the second; native/ has the same structures in
C++. Every dtype is packed and little-endian; sizes are checked when this module is imported.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

PROGRAM_MAGIC = b"GNIEPRG1"
PROGRAM_VERSION = 2
EVENT_MAGIC = b"GNIEEVT1"
EVENT_VERSION = 1
EVENT_HEADER_BYTES = 4096
NONE = 0xFFFFFFFF
"""The u32 that stands for "no such thing": no call, no lane, no connection, no peer."""

FLAG_VERIFY = 1
FLAG_RECORD_MESSAGES = 2

SECTIONS = ("ops", "out_edges", "lanes", "calls", "templates", "steps", "needs", "vectors", "connections", "settings")

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("flags", "<u4"),
        ("rank", "<u4"),
        ("world", "<u4"),
        ("iterations", "<u4"),
        ("window_messages", "<u4"),
        ("timeout_ns", "<u8"),
        ("spin_ns", "<u8"),
        ("event_capacity", "<u8"),
        ("listen_ipv4", "<u4"),
        ("listen_port", "<u2"),
        ("connect_timeout_s", "<u2"),
        ("congestion_control", "S16"),
        ("run_id", "u1", (32,)),
        ("sndbuf_bytes", "<u4"),
        ("rcvbuf_bytes", "<u4"),
        ("compute_scale_ppm", "<u8"),
        ("counts", "<u8", (10,)),
        ("transport", "S16"),
        ("zero", "u1", (32,)),
    ]
)
OP = np.dtype(
    [
        ("duration_ns", "<i8"),
        ("call", "<u4"),
        ("lane", "<u4"),
        ("dep_count", "<u4"),
        ("out_begin", "<u4"),
        ("out_end", "<u4"),
        ("reserved", "<u4"),
        ("trace_id", "<u8"),
    ]
)
U32 = np.dtype("<u4")
CALL = np.dtype(
    [
        ("call_id", "<u4"),
        ("op", "<u4"),
        ("template", "<u4"),
        ("comm", "<u4"),
        ("bytes", "<u8"),
        ("vector_begin", "<u8"),
        ("vector_len", "<u4"),
        ("chunk_bytes", "<u4"),
        ("reserved", "<u8"),
    ]
)
TEMPLATE = np.dtype([("step_begin", "<u4"), ("step_end", "<u4"), ("channels", "<u4"), ("reserved", "<u4")])
STEP = np.dtype(
    [
        ("kind", "u1"),
        ("size_kind", "u1"),
        ("channel", "<u2"),
        ("connection", "<u4"),
        ("size_index", "<u4"),
        ("size_of", "<u4"),
        ("need_begin", "<u4"),
        ("need_end", "<u4"),
        ("local_ns", "<i8"),
        ("reserved", "<u8"),
    ]
)
NEED = np.dtype([("step", "<u4"), ("mode", "<u4")])
U64 = np.dtype("<u8")
U8 = np.dtype("u1")
CONNECTION = np.dtype(
    [
        ("peer", "<u4"),
        ("channel", "<u2"),
        ("role", "<u2"),
        ("remote_ipv4", "<u4"),
        ("remote_port", "<u2"),
        ("local_port", "<u2"),
        ("reserved", "<u8"),
    ]
)
ROLE_ACCEPT = 0
ROLE_CONNECT = 1

SECTION_DTYPES: tuple[np.dtype[Any], ...] = (OP, U32, U32, CALL, TEMPLATE, STEP, NEED, U64, CONNECTION, U8)

EVENT_HEADER = np.dtype(
    {
        "names": [
            "magic", "version", "record_bytes", "rank", "world", "capacity", "committed", "dropped", "iterations_done",
            "state", "ops_done", "bytes_sent", "bytes_received", "messages_sent", "messages_received", "start_mono_ns",
            "start_real_ns", "cpu_user_ns", "cpu_system_ns",
        ],
        "formats": [
            "S8", "<u4", "<u4", "<u4", "<u4", "<u8", "<u8", "<u8", "<u4",
            "<u4", "<u8", "<u8", "<u8", "<u8", "<u8", "<i8",
            "<i8", "<i8", "<i8",
        ],
        "offsets": [0, 8, 12, 16, 20, 24, 64, 72, 80, 84, 88, 96, 104, 112, 120, 128, 136, 144, 152],
        "itemsize": EVENT_HEADER_BYTES,
    }
)  # fmt: skip
EVENT = np.dtype(
    [
        ("type", "<u2"),
        ("channel", "<u2"),
        ("iteration", "<u4"),
        ("op", "<u4"),
        ("peer", "<u4"),
        ("bytes", "<u8"),
        ("t0_ns", "<i8"),
        ("t1_ns", "<i8"),
        ("t2_ns", "<i8"),
        ("call_id", "<u4"),
        ("message", "<u4"),
        ("seq", "<u8"),
    ]
)


class EventType(IntEnum):
    """Types of event records; the meaning of the times is in docs/formats.md §3."""

    OPERATOR = 1
    SENT = 2
    RECEIVED = 3
    ITERATION = 4
    TIMER = 5


class RankState(IntEnum):
    """``state`` of an event file's header."""

    NEW = 0
    CONNECTED = 1
    RUNNING = 2
    DONE = 3
    FAILED = 4
    ABORTED = 5


def padded(count: int, dtype: np.dtype[Any]) -> int:
    """Bytes that ``count`` records of a section take in a blob, with the padding of short ones."""
    return -(-count * dtype.itemsize // 8) * 8


for _dtype, _bytes in ((HEADER, 256), (OP, 40), (CALL, 48), (TEMPLATE, 16), (STEP, 40), (NEED, 8), (CONNECTION, 24),
                       (EVENT_HEADER, 4096), (EVENT, 64)):  # fmt: skip
    if _dtype.itemsize != _bytes:
        raise AssertionError(f"{_dtype} takes {_dtype.itemsize} bytes, not {_bytes}")
