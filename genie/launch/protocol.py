"""The control protocol's frames and its mutual proof, as bytes: docs/formats.md §4 made code.

Used by the controller; the agent's side is native (`native/src/control.cpp`). No sockets here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from genie.errors import RunAborted

VERSION = 3
TOKEN_BYTES = 32
NONCE_BYTES = 32
MAX_FRAME_BYTES = 1 << 20  # agents only send short frames; programs travel the other way
_HEADER = struct.Struct("<IHH")


class Frame(IntEnum):
    """Frame types; the direction is in docs/formats.md §4."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    PROGRAM = 4
    LISTENING = 5
    CONNECT = 6
    CONNECTED = 7
    PING = 8
    PONG = 9
    START = 10
    PROGRESS = 11
    DONE = 12
    FAILED = 13
    ABORT = 14
    BYE = 15


class FailureCode(IntEnum):
    """Why a rank failed."""

    PEER_CLOSED = 1
    STALL = 2
    SIZE_MISMATCH = 3
    PROTOCOL = 4
    OUT_OF_MEMORY = 5
    CONNECT = 6
    BAD_PAYLOAD = 7
    INTERNAL = 8
    ABORTED = 9
    TRANSPORT = 10


@dataclass(frozen=True, slots=True)
class Failure:
    """One rank's own account of why it stopped. ``op``, ``iteration``, ``peer``, ``call_id`` are 0xffffffff where none
    applies.
    """

    rank: int
    code: FailureCode
    op: int
    iteration: int
    peer: int
    call_id: int
    waited_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one rank is."""

    rank: int
    iteration: int
    ops_done: int
    bytes_sent: int
    bytes_received: int


def frame(kind: Frame, payload: bytes = b"") -> bytes:
    """A whole frame, header included."""
    return _HEADER.pack(len(payload), kind, VERSION) + payload


def text(value: str) -> bytes:
    """A string as the protocol writes it."""
    data = value.encode()
    return struct.pack("<H", len(data)) + data


class FrameReader:
    """Cuts a byte stream into frames. Feed it what arrived, take what is whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[Frame, bytes]]:
        """All frames that ``data`` completes. Raises RunAborted on another version, type, or an oversized frame."""
        self._buffer += data
        frames: list[tuple[Frame, bytes]] = []
        while len(self._buffer) >= _HEADER.size:
            size, kind, version = _HEADER.unpack_from(self._buffer)
            if version != VERSION:
                raise RunAborted(f"an agent speaks control protocol version {version}, this controller {VERSION}")
            if size > MAX_FRAME_BYTES or kind not in Frame.__members__.values():
                raise RunAborted(f"an agent sent a frame of type {kind} with {size} bytes, which the protocol lacks")
            end = _HEADER.size + size
            if len(self._buffer) < end:
                break
            frames.append((Frame(kind), bytes(self._buffer[_HEADER.size : end])))
            del self._buffer[:end]
        return frames


class Fields:
    """Reads a payload field by field; RunAborted if it is shorter than its type says."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def take(self, layout: str) -> tuple[int, ...]:
        """Integers by a `struct` layout (little-endian implied)."""
        packed = struct.Struct("<" + layout)
        if self._at + packed.size > len(self._payload):
            raise RunAborted("an agent sent a frame shorter than its type")
        values = packed.unpack_from(self._payload, self._at)
        self._at += packed.size
        return values

    def raw(self, size: int) -> bytes:
        """``size`` bytes as they are."""
        if self._at + size > len(self._payload):
            raise RunAborted("an agent sent a frame shorter than its type")
        self._at += size
        return self._payload[self._at - size : self._at]

    def text(self) -> str:
        """A string; undecodable bytes are shown as escapes, for it may come from a stranger."""
        (size,) = self.take("H")
        return self.raw(size).decode("utf-8", "backslashreplace")


def controller_proof(token: bytes, nonce_agent: bytes, nonce_controller: bytes) -> bytes:
    """What the controller shows an agent: HMAC-SHA256 (RFC 2104) over both nonces."""
    return hmac.new(token, b"genie-controller" + nonce_agent + nonce_controller, hashlib.sha256).digest()


def agent_proof(token: bytes, nonce_agent: bytes, nonce_controller: bytes) -> bytes:
    """What an agent must answer; the order of the nonces differs so that neither proof can be reflected."""
    return hmac.new(token, b"genie-agent" + nonce_controller + nonce_agent, hashlib.sha256).digest()


def program_frame(rank: int, event_path: str, blob: bytes) -> bytes:
    """PROGRAM for one rank."""
    return frame(Frame.PROGRAM, struct.pack("<I", rank) + text(event_path) + struct.pack("<I", len(blob)) + blob)


@dataclass(frozen=True, slots=True)
class Listener:
    """How peers reach a rank: where it listens (``ipv4`` as an integer in host order) and its transport's ``card``."""

    rank: int
    ipv4: int
    port: int
    card: bytes = b""


def connect_frame(listeners: Sequence[Listener]) -> bytes:
    """CONNECT with every rank's listener."""
    parts = [struct.pack("<I", len(listeners))]
    for one in listeners:
        parts += [struct.pack("<IIHHI", one.rank, one.ipv4, one.port, 0, len(one.card)), one.card]
    return frame(Frame.CONNECT, b"".join(parts))


@dataclass(frozen=True, slots=True)
class Opened:
    """A rank that its peers can reach: its ``port`` (0 where its transport has none) and ``card``, and what its
    transport ``used``: facts of the device and of what was settled with it, for the record.
    """

    port: int
    card: bytes = b""
    used: Mapping[str, Any] = field(default_factory=dict)


def parse_listening(payload: bytes) -> tuple[int, Opened]:
    """LISTENING of a rank. Raises RunAborted where ``used`` is no object of JSON."""
    fields = Fields(payload)
    rank, port, _, size = fields.take("IHHI")
    card, said = fields.raw(size), fields.text()
    try:
        used = json.loads(said or "{}")
    except ValueError:
        used = None
    if not isinstance(used, dict):
        raise RunAborted(f"rank {rank} said what no transport of this version uses: {said[:200]!r}")
    return rank, Opened(port, card, used)


def parse_failure(payload: bytes) -> Failure:
    """FAILED."""
    fields = Fields(payload)
    rank, code, op, iteration, peer, call_id, waited_ns = fields.take("IIIIIIQ")
    known = code if code in FailureCode.__members__.values() else FailureCode.INTERNAL
    return Failure(rank, FailureCode(known), op, iteration, peer, call_id, waited_ns, fields.text())


def parse_progress(payload: bytes) -> Progress:
    """PROGRESS."""
    rank, iteration, ops_done, sent, received = Fields(payload).take("IIQQQ")
    return Progress(rank, iteration, ops_done, sent, received)
