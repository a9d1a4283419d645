"""Chakra ET files in protobuf: v0.0.4 as it is, v0.0.1 converted.

`genie.workload.chakra.read` calls one of the two with the file's bytes; both return a `RankFile`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from genie.errors import TraceError
from genie.workload.chakra import groups, wire
from genie.workload.chakra.nodes import COLL, COMP, INVALID, MEM_LOAD, MEM_STORE, METADATA, RECV, SEND, Maker
from genie.workload.chakra.rankfile import RankFile
from genie.workload.excerpt import excerpt, label
from genie.workload.trace import Operator

_V1_TYPES = {0: INVALID, 1: MEM_LOAD, 2: MEM_STORE, 3: COMP, 4: SEND, 5: RECV, 6: COLL}
_V1_COLLECTIVES = {1: 0, 2: 6, 3: 2, 4: 7}  # ALL_REDUCE, ALL_TO_ALL, ALL_GATHER, REDUCE_SCATTER in today's numbers


def read_current(data: bytes, maker: Maker, headless: bool) -> RankFile:
    """A v0.0.4 file. ``headless``: the first message is a node already."""
    walk = wire.frames(data, maker.file)
    found = RankFile([])
    if headless:
        found.notes.append("no GlobalMetadata, but the nodes are plainly of the v0.0.4 schema")
    else:
        _, body = next(walk)
        _read_metadata(body, found, maker.file)
    found.operators = _nodes(walk, maker, found.groups)
    return found


def _read_metadata(body: bytes, found: RankFile, file: str) -> None:
    metadata = wire.GlobalMetadata.FromString(body)
    for attribute in metadata.attr:
        case = attribute.WhichOneof("value")
        if case and not case.endswith("_list"):
            found.labels[attribute.name] = str(getattr(attribute, case))
    if "collective" in found.labels:
        raise TraceError(
            f"is the algorithm of one collective ({excerpt(found.labels['collective'])}), not a workload: "
            "its nodes are the steps of one call, and its reductions have no duration",
            file=file,
            hint="replay a workload that calls the collective",
        )


def _nodes(
    walk: Iterator[tuple[int, bytes]], maker: Maker, process_groups: dict[str, tuple[int, ...]]
) -> list[Operator]:
    operators = []
    parse, attributes, operator = wire.Node.FromString, maker.attributes, maker.operator
    for offset, body in walk:
        try:
            node = parse(body)
        except wire.DecodeError:
            raise TraceError(f"message at byte {offset} cannot be decoded as a node", file=maker.file) from None
        number, name, kind = node.id, node.name, node.type
        if kind == METADATA:
            here = label(number, name)
            groups.merge(process_groups, groups.process_groups(node.inputs.values, maker.file, here), maker.file)
        raw = node.attr
        values = attributes(raw, number, name) if raw else {}
        data_deps, ctrl_deps = tuple(node.data_deps), tuple(node.ctrl_deps)
        operators.append(operator(number, name, kind, data_deps, ctrl_deps, node.duration_micros, values))
    return operators


def read_first(data: bytes, maker: Maker) -> RankFile:
    """A v0.0.1 file: no metadata, other type and collective numbers, fields instead of attributes.

    ``simulated_run_time`` is in microseconds, as ASTRA-sim of that time read it; ``communicator_id`` 0 is the world.
    """
    found = RankFile([])
    for offset, body in wire.frames(data, maker.file):
        try:
            node = wire.NodeV1.FromString(body)
        except wire.DecodeError:
            raise TraceError(f"message at byte {offset} cannot be decoded as a v0.0.1 node", file=maker.file) from None
        kind = _V1_TYPES.get(node.node_type)
        if kind is None:
            maker.fail(node.id, node.name, f"unknown node type {node.node_type}; the v0.0.1 schema has 0 to 6")
        values = _v1_values(node, kind, maker)
        run_time = node.simulated_run_time
        found.operators.append(maker.operator(node.id, node.name, kind, tuple(node.parent), (), run_time, values))
    return found


def _v1_values(node: Any, kind: int, maker: Maker) -> dict[str, Any]:
    values: dict[str, Any] = {
        key: getattr(node, key)
        for key in ("num_ops", "tensor_size", "comm_size", "comm_src", "comm_dst", "comm_tag")
        if node.HasField(key)
    }
    if kind == COLL:
        number = _V1_COLLECTIVES.get(node.comm_type)
        if number is None:
            maker.fail(node.id, node.name, f"unknown comm_type {node.comm_type}; the v0.0.1 schema has 1 to 4")
        values["comm_type"] = number
        values["pg_name"] = str(node.communicator_id)
        if node.involved_dim:
            values["involved_dim"] = list(node.involved_dim)
    return values
