"""Protobuf side of Chakra: message classes made at run time, and the framing of a trace file.

No generated ``_pb2`` module is used, so no protobuf version can be too old or too new for it. `frames` cuts a file into
messages and tells the end of the file from a cut-off one, which the formats' own readers do not. Field numbers are
those of et_def.proto (v0.0.4, unchanged since 2023-10) and of eg_def.proto (v0.0.1, 2023-01).

`Node` declares its attributes as ``bytes``: the same on the wire, and each distinct attribute of a trace has to be
decoded only once. `FullNode` declares all of it, for JSON and for writing traces.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from genie.errors import TraceError
from genie.units import format_bytes

MAX_FILE_BYTES = 2**31
"""Largest trace file of one rank, after decompression. A message beyond 2 GiB cannot be protobuf anyway."""

NODE_TYPES = ("INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
              "COMM_RECV_NODE", "COMM_COLL_NODE")  # fmt: skip
COMM_TYPES = ("ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL", "REDUCE_SCATTER",
              "REDUCE_SCATTER_BLOCK", "BARRIER")  # fmt: skip

ATTRIBUTE_CASES = ("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64",
                   "sfixed32", "sfixed64", "bool", "string", "bytes")  # fmt: skip
"""Case i is field 3 + 2·i as ``<case>_val`` and 4 + 2·i as ``<case>_list``."""

_Field = descriptor_pb2.FieldDescriptorProto
_TYPES = {case: getattr(_Field, f"TYPE_{case.upper()}") for case in ATTRIBUTE_CASES}
_PACKAGE = "ChakraProtoMsg"


def _message(file: Any, name: str, fields: list[tuple[int, str, Any, bool]]) -> Any:
    """Add a message. A field is (number, name, scalar type or message name, repeated)."""
    made = file.message_type.add(name=name)
    for number, field, kind, repeated in fields:
        label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
        if not isinstance(kind, str):
            made.field.add(name=field, number=number, type=kind, label=label)
        elif kind == "NodeType":
            made.field.add(
                name=field, number=number, type=_Field.TYPE_ENUM, type_name=f".{_PACKAGE}.{kind}", label=label
            )
        else:
            type_name = f".{_PACKAGE}.{kind}"
            made.field.add(name=field, number=number, type=_Field.TYPE_MESSAGE, type_name=type_name, label=label)
    return made


def _current_schema() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="genie/et_def.proto", package=_PACKAGE, syntax="proto3")
    kinds = file.enum_type.add(name="NodeType")
    for number, name in enumerate(NODE_TYPES):
        kinds.value.add(name=name, number=number)
    for case in ATTRIBUTE_CASES:
        _message(file, f"{case.capitalize()}List", [(1, "values", _TYPES[case], True)])
    string, u64 = _Field.TYPE_STRING, _Field.TYPE_UINT64
    attribute = _message(file, "AttributeProto", [(1, "name", string, False), (2, "doc_string", string, False)])
    attribute.oneof_decl.add(name="value")
    for index, case in enumerate(ATTRIBUTE_CASES):
        attribute.field.add(name=f"{case}_val", number=3 + 2 * index, type=_TYPES[case], oneof_index=0)
        type_name = f".{_PACKAGE}.{case.capitalize()}List"
        attribute.field.add(
            name=f"{case}_list", number=4 + 2 * index, type=_Field.TYPE_MESSAGE, type_name=type_name, oneof_index=0
        )
    _message(file, "IOInfo", [(1, "values", string, False), (2, "shapes", string, False), (3, "types", string, False)])
    _message(file, "GlobalMetadata", [(1, "version", string, False), (2, "attr", "AttributeProto", True)])
    head = [
        (1, "id", u64, False),
        (2, "name", string, False),
        (4, "ctrl_deps", u64, True),
        (5, "data_deps", u64, True),
        (6, "start_time_micros", u64, False),
        (7, "duration_micros", u64, False),
        (8, "inputs", "IOInfo", False),
        (9, "outputs", "IOInfo", False),
    ]
    _message(file, "FullNode", [*head, (3, "type", "NodeType", False), (10, "attr", "AttributeProto", True)])
    _message(file, "Node", [*head[:6], (8, "inputs", "IOInfo", False), (3, "type", _Field.TYPE_INT32, False),
                            (10, "attr", _Field.TYPE_BYTES, True)])  # fmt: skip
    return file


def _first_schema() -> Any:
    """v0.0.1, proto2: nodes only. ``comm_size`` is 64 bits wide, which reads 32-bit writers too."""
    file = descriptor_pb2.FileDescriptorProto(name="genie/eg_def.proto", package="ChakraProtoMsgV1", syntax="proto2")
    u32, u64, i32 = _Field.TYPE_UINT32, _Field.TYPE_UINT64, _Field.TYPE_INT32
    _message(file, "Node", [
        (1, "id", u64, False), (2, "name", _Field.TYPE_STRING, False), (3, "node_type", i32, False),
        (4, "parent", u64, True), (5, "tensor_loc", u32, False), (6, "tensor_size", u64, False),
        (7, "simulated_run_time", u64, False), (12, "num_ops", u64, False), (13, "comm_type", i32, False),
        (14, "involved_dim", _Field.TYPE_BOOL, True), (15, "communicator_id", u32, False),
        (16, "comm_src", u32, False), (17, "comm_dst", u32, False), (18, "comm_size", u64, False),
        (19, "comm_tag", u32, False), (20, "comm_priority", u32, False),
    ])  # fmt: skip
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_current_schema())
_POOL.Add(_first_schema())


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


Node = _class(f"{_PACKAGE}.Node")
FullNode = _class(f"{_PACKAGE}.FullNode")
GlobalMetadata = _class(f"{_PACKAGE}.GlobalMetadata")
AttributeProto = _class(f"{_PACKAGE}.AttributeProto")
NodeV1 = _class("ChakraProtoMsgV1.Node")
DecodeError = message.DecodeError


def read_bytes(path: Path) -> bytes:
    """The content of ``path``, decompressed if it is gzip by its first bytes.

    Raises:
        TraceError: unreadable, not a regular file, truncated or broken gzip, or larger than `MAX_FILE_BYTES`.
    """
    try:
        if not path.is_file():
            raise TraceError("is not a regular file", file=str(path))
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise TraceError(
                f"is {format_bytes(size)}; at most {format_bytes(MAX_FILE_BYTES)} are read", file=str(path)
            )
        return unpack(path.read_bytes(), str(path))
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}", file=str(path)) from error


def unpack(data: bytes, file: str) -> bytes:
    """``data``, decompressed if it starts with the gzip magic (1f 8b)."""
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            plain = stream.read(MAX_FILE_BYTES + 1)
    except EOFError as error:
        raise TraceError("the gzip stream ends before its end mark: the file is truncated", file=file) from error
    except (OSError, zlib.error) as error:
        raise TraceError("the gzip stream is broken: the file is damaged", file=file) from error
    if len(plain) > MAX_FILE_BYTES:
        raise TraceError(f"unpacks to more than {format_bytes(MAX_FILE_BYTES)}", file=file)
    return plain


def varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The varint at ``position`` and the position after it. Raises ValueError if it does not end before ``end``."""
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("varint without an end")


def frames(data: bytes, file: str) -> Iterator[tuple[int, bytes]]:
    """The messages of a length-delimited file as (byte offset of the message, message). Empty messages count.

    Raises:
        TraceError: the file ends inside a length or a message.
    """
    position, total = 0, len(data)
    while position < total:
        start = position
        length = data[position]
        if length < 0x80:
            position += 1
        else:
            try:
                length, position = varint(data, position, total)
            except ValueError:
                raise TraceError(f"truncated or damaged: no valid message length at byte {start}", file=file) from None
        if length > total - position:
            message = f"message at byte {start} says it is {length} bytes long, but only {total - position} follow"
            raise TraceError(f"truncated or damaged: {message}", file=file)
        yield position, data[position : position + length]
        position += length


def wire_shape(data: bytes) -> set[tuple[int, int]] | None:
    """The (field number, wire type) pairs of one message, not looking inside; None if it is not protobuf at all."""
    shape: set[tuple[int, int]] = set()
    position, end = 0, len(data)
    try:
        while position < end:
            key, position = varint(data, position, end)
            number, kind = key >> 3, key & 7
            if not 0 < number < 2**29:
                return None
            if kind == 0:
                _, position = varint(data, position, end)
            elif kind == 1:
                position += 8
            elif kind == 2:
                length, position = varint(data, position, end)
                position += length
            elif kind == 5:
                position += 4
            else:
                return None
            shape.add((number, kind))
    except ValueError:
        return None
    return shape if position == end else None


def write_frames(messages: list[Any]) -> bytes:
    """A trace file's bytes from protobuf messages, GlobalMetadata first."""
    out = bytearray()
    for item in messages:
        body = item.SerializeToString()
        length = len(body)
        while length >= 0x80:
            out.append(length & 0x7F | 0x80)
            length >>= 7
        out.append(length)
        out += body
    return bytes(out)
