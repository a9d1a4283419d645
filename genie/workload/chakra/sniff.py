"""Which kind of trace a file is, told by its content alone: extensions lie.

Used by `genie.workload.chakra.read` before it chooses a reader. Kinds that cannot be replayed are recognised too, so
that the refusal can say what the file is instead of what it is not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from genie.errors import TraceError
from genie.workload.chakra import wire


class Kind(Enum):
    """A kind of file; the value is how messages call it."""

    ET = "Chakra ET (protobuf, v0.0.4 schema)"
    ET_V1 = "Chakra ET (protobuf, v0.0.1 schema)"
    ET_V2 = "Chakra ET (protobuf, v0.0.2 or v0.0.3 schema)"
    JSONIZER = "Chakra ET as JSON (chakra_jsonizer)"
    FEEDER_JSON = "Chakra feeder JSON (workload_graph)"
    STG_JSON = "STG JSON (symbolic tensor graph)"
    PYTORCH_HOST = "PyTorch execution trace (host)"
    PYTORCH_LINKED = "PyTorch execution trace linked with Kineto (ET+)"
    KINETO = "Kineto / Chrome trace (traceEvents)"
    COMM_GROUPS = "communicator file (JSON)"
    MSCCL = "MSCCL algorithm (XML)"
    ASTRA_TEXT = "ASTRA-sim 1.0 text workload"
    GOAL = "GOAL schedule"
    ARCHIVE = "archive"
    EMPTY = "empty file"
    UNKNOWN = "no known trace format"


@dataclass(frozen=True, slots=True)
class Sniffed:
    """``documents`` are the parsed JSON values, if it is JSON; ``headless`` says a v0.0.4 file lacks its metadata."""

    kind: Kind
    documents: tuple[Any, ...] = ()
    headless: bool = False
    reason: str = ""


_TEXT = (
    (b"<algo", Kind.MSCCL),
    (b"num_ranks", Kind.GOAL),
    (b"HYBRID_", Kind.ASTRA_TEXT),
    (b"MICRO", Kind.ASTRA_TEXT),
    (b"DATA\n", Kind.ASTRA_TEXT),
    (b"MODEL\n", Kind.ASTRA_TEXT),
    (b"PK\x03\x04", Kind.ARCHIVE),
    (b"\x28\xb5\x2f\xfd", Kind.ARCHIVE),
    (b"BZh", Kind.ARCHIVE),
    (b"\xfd7zXZ\x00", Kind.ARCHIVE),
)


def sniff(data: bytes, file: str) -> Sniffed:
    """What ``data`` (already unpacked) is.

    Raises:
        TraceError: JSON that is cut off, broken or too deeply nested.
    """
    if not data:
        return Sniffed(Kind.EMPTY)
    if data[257:262] == b"ustar":
        return Sniffed(Kind.ARCHIVE)
    for magic, kind in _TEXT:
        if data.startswith(magic):
            return Sniffed(kind)
    if data.removeprefix(b"\xef\xbb\xbf")[:4096].lstrip()[:1] in (b"{", b"["):
        return _sniff_json(data, file)
    return _sniff_protobuf(data)


def _sniff_json(data: bytes, file: str) -> Sniffed:
    try:
        documents = _documents(data.decode("utf-8-sig"))
    except RecursionError:
        raise TraceError("JSON is nested too deeply", file=file) from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError too
        # '{' is 123, a possible length of a first protobuf message, and a newline the tag of its first field.
        protobuf = _sniff_protobuf(data)
        if protobuf.kind is Kind.ET:
            return protobuf
        raise TraceError(f"JSON is cut off or broken: {error}", file=file) from error
    return Sniffed(_json_kind(documents), documents)


def _documents(text: str) -> tuple[Any, ...]:
    """Every JSON value of ``text``, one after the other with or without white space between."""
    decoder = json.JSONDecoder()
    documents: list[Any] = []
    position, end = 0, len(text)
    while True:
        while position < end and text[position] in " \t\r\n":
            position += 1
        if position == end:
            return tuple(documents)
        value, position = decoder.raw_decode(text, position)
        documents.append(value)


def _json_kind(documents: tuple[Any, ...]) -> Kind:
    first = documents[0]
    if len(documents) > 1:
        return Kind.JSONIZER if all(isinstance(document, dict) for document in documents) else Kind.UNKNOWN
    if isinstance(first, list):
        chrome = bool(first) and isinstance(first[0], dict) and "ph" in first[0]
        return Kind.KINETO if chrome else Kind.UNKNOWN
    if "traceEvents" in first:
        return Kind.KINETO
    if "workload_graph" in first:
        return Kind.FEEDER_JSON
    nodes = first.get("nodes")
    if isinstance(nodes, list):
        sample = [node for node in nodes if isinstance(node, dict)]
        if any("node_type" in node for node in sample[:100]):
            return Kind.STG_JSON
        if "schema" in first or any("rf_id" in node or "attrs" in node for node in sample[:100]):
            linked = any("ts" in node for node in sample)
            return Kind.PYTORCH_LINKED if linked else Kind.PYTORCH_HOST
        return Kind.STG_JSON if not nodes else Kind.UNKNOWN
    if first and all(isinstance(value, list) for value in first.values()):
        ranks = all(isinstance(rank, int) for value in first.values() for rank in value)
        return Kind.COMM_GROUPS if ranks or all(name.isdecimal() for name in first) else Kind.UNKNOWN
    if first.keys() <= {"version", "attr"}:
        return Kind.JSONIZER
    return Kind.UNKNOWN


def _sniff_protobuf(data: bytes) -> Sniffed:
    """By the first message: GlobalMetadata (strings and messages in fields 1 and 2) means the current schema.

    A v0.0.1 node decodes as a v0.0.4 node without any error and with wrong types, so nodes are never tried out: the
    wire types of their fields are looked at, which differ.
    """
    walk = wire.frames(data, "")
    shapes: list[set[tuple[int, int]]] = []
    try:
        first = next(walk)[1]
        shape = wire.wire_shape(first)
        if shape is None:
            return Sniffed(Kind.UNKNOWN, reason="its first message is not protobuf")
        if shape <= {(1, 2), (2, 2)}:
            return _sniff_metadata(first, shape)
        shapes.append(shape)
        for _, body in walk:
            shape = wire.wire_shape(body)
            if shape is None:
                return Sniffed(Kind.UNKNOWN, reason="it has a message that is not protobuf")
            shapes.append(shape)
            if len(shapes) >= 2000:
                break
    except TraceError as error:
        if not shapes:
            return Sniffed(Kind.UNKNOWN, reason=error.message)
    fields = set().union(*shapes)
    if not all((1, 0) in shape for shape in shapes[:1]) or any(number > 20 for number, _ in fields):
        return Sniffed(Kind.UNKNOWN, reason="its first message is neither Chakra's metadata nor a node")
    if any((number, 2) in fields for number in (6, 7, 11, 12, 13)):
        return Sniffed(Kind.ET_V2)
    if any((number, 2) in fields for number in (4, 5, 8, 9, 10)):
        return Sniffed(Kind.ET, headless=True)
    return Sniffed(Kind.ET_V1)


def _sniff_metadata(first: bytes, shape: set[tuple[int, int]]) -> Sniffed:
    try:
        metadata = wire.GlobalMetadata.FromString(first)
    except wire.DecodeError:
        return Sniffed(Kind.UNKNOWN, reason="its first message is not Chakra's metadata")
    if shape == {(1, 2)} and _is_attribute(metadata.version):
        return Sniffed(Kind.ET_V2)
    return Sniffed(Kind.ET)


def _is_attribute(version: str) -> bool:
    """Whether a version text is really an AttributeProto: v0.0.3 had the attributes in field 1."""
    if not version.startswith("\n"):
        return False
    shape = wire.wire_shape(version.encode())
    return shape is not None and (1, 2) in shape
