"""PyTorch execution traces that were linked with their Kineto trace (chakra_trace_link's "ET+").

Such a file has when and for how long each host operator and GPU kernel ran, and who launched whom, but no execution
dependencies. They follow from how PyTorch runs (the file's order of time is kept, nothing is measured again):

* a kernel starts after the host operator that launched it (its ``ctrl_deps``) and the one before it on its stream;
* a host operator starts after the one before it on its thread, by start time;
* ``inter_thread_dep`` and ``sync_dep`` are dependencies as well.

A duration is the exclusive one, so that nested host operators are not counted twice. A kernel whose name begins with
ncclKernel or ncclDevKernel communicates: kind by its name, bytes by its input tensors, peers by pg_name. Nodes without
a start time (thread and process marks) take no time.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from itertools import pairwise
from typing import Any

from genie import jsontext
from genie.errors import TraceError
from genie.workload.chakra import groups, wire
from genie.workload.chakra.nodes import COLL, COMP, METADATA, RECV, SEND, Maker
from genie.workload.chakra.rankfile import RankFile
from genie.workload.excerpt import excerpt, label
from genie.workload.trace import Operator

_NCCL = re.compile(r"^nccl(Dev)?Kernel")
_WORDS = (
    ("allreduce", "ALL_REDUCE"),
    ("alltoall", "ALL_TO_ALL"),
    ("allgather", "ALL_GATHER"),
    ("reducescatter", "REDUCE_SCATTER"),
    ("broadcast", "BROADCAST"),
    ("reduce", "REDUCE"),
)


def read_linked(document: dict[str, Any], maker: Maker) -> RankFile:
    """The operators of a linked trace.

    Raises:
        TraceError: a node is not of the form above, or a kernel communicates in a way its node does not tell.
    """
    nodes = _nodes(document, maker)
    found = RankFile([])
    needs = _dependencies(nodes, maker)
    for number, node in nodes.items():
        found.operators.append(_operator(number, node, nodes, tuple(needs[number]), maker, found))
    found.notes.append("dependencies follow from the launch, stream and thread order of the linked trace")
    return found


def _nodes(document: dict[str, Any], maker: Maker) -> dict[int, dict[str, Any]]:
    nodes: dict[int, dict[str, Any]] = {}
    for place, node in enumerate(document["nodes"]):
        number = node.get("id") if isinstance(node, dict) else None
        if type(number) is not int or not 0 <= number < 2**64 or not isinstance(node.get("name"), str):
            raise TraceError(f"node number {place + 1} has no id and name: {excerpt(node)}", file=maker.file)
        if number in nodes:
            maker.fail(number, node["name"], f"id {number} is used twice: also by {excerpt(nodes[number]['name'])}")
        nodes[number] = {key: value for key, value in node.items() if value is not None}
        attributes = node.get("attrs") or []
        if not isinstance(attributes, list):
            maker.fail(number, node["name"], f"attrs are {excerpt(attributes)}, expected a list")
        for attribute in attributes:
            if isinstance(attribute, dict) and isinstance(attribute.get("name"), str):
                nodes[number].setdefault(attribute["name"], attribute.get("value"))
    return nodes


def _is_kernel(node: dict[str, Any]) -> bool:
    """Only the GPU's events have a category."""
    return "cat" in node


def _launcher(node: dict[str, Any], nodes: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The host operator that launched a kernel, {} if the file does not have it."""
    number = node.get("ctrl_deps")
    return nodes.get(number, {}) if type(number) is int else {}


def _dependencies(nodes: dict[int, dict[str, Any]], maker: Maker) -> dict[int, dict[int, None]]:
    """For each node the ids it waits for, each once, in a stable order."""
    needs: dict[int, dict[int, None]] = {number: {} for number in nodes}
    lanes: dict[tuple[str, Any], list[tuple[float, int]]] = defaultdict(list)
    for number, node in nodes.items():
        if "ts" in node:
            kernel = _is_kernel(node)
            lane = ("stream", str(node.get("stream", 0))) if kernel else ("thread", str(node.get("tid", 0)))
            lanes[lane].append((_microseconds(node, "ts", number, maker), number))
            if kernel and _launcher(node, nodes):
                needs[number][node["ctrl_deps"]] = None
        for key in ("inter_thread_dep", "sync_dep"):
            listed = node.get(key, [])
            for other in listed if isinstance(listed, list) else [listed]:
                if type(other) is not int:
                    maker.fail(number, node["name"], f"{key} is {excerpt(listed)}, expected ids")
                needs[number][other] = None
    for events in lanes.values():
        events.sort()
        for (_, before), (_, after) in pairwise(events):
            needs[after][before] = None
    return needs


def _microseconds(node: dict[str, Any], key: str, number: int, maker: Maker) -> float:
    value = node.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > 2**52:
        maker.fail(number, node["name"], f"{key} is {excerpt(value)}, expected microseconds")
    return value


def _operator(
    number: int,
    node: dict[str, Any],
    nodes: dict[int, dict[str, Any]],
    needs: tuple[int, ...],
    maker: Maker,
    found: RankFile,
) -> Operator:
    name = node["name"]
    if "process_group:init" in name:
        values = _strings(node)
        for text in values:
            groups.merge(found.groups, _groups(text, maker.file, label(number, name)), maker.file)
        return maker.operator(number, name, METADATA, needs, (), 0, {})
    if _is_kernel(node) and _NCCL.match(name):
        return _communication(number, node, nodes, needs, maker)
    op = maker.operator(number, name, COMP, needs, (), 0, {"is_cpu_op": not _is_kernel(node)})
    if "ts" not in node:
        op.duration_ns = 0
        return op
    duration = _microseconds(node, "exclusive_dur" if "exclusive_dur" in node else "dur", number, maker)
    if duration < 0:
        maker.fail(number, name, f"duration of {duration} us is negative")
    op.duration_ns = round(duration * 1000)
    if _is_kernel(node):
        stream = node.get("stream")
        op.stream = stream if type(stream) is int and stream >= 0 else None
    return op


def _strings(node: dict[str, Any]) -> list[str]:
    inputs = node.get("inputs")
    values = inputs.get("values") if isinstance(inputs, dict) else inputs
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def _groups(text: str, file: str, node: str) -> dict[str, tuple[int, ...]]:
    try:
        entries = jsontext.parse(text)
    except ValueError:
        raise TraceError(f"process groups cannot be understood: {excerpt(text)}", file=file, node=node) from None
    return groups.group_entries(entries if isinstance(entries, list) else [entries], file, node)


def _communication(
    number: int, node: dict[str, Any], nodes: dict[int, dict[str, Any]], needs: tuple[int, ...], maker: Maker
) -> Operator:
    name = node["name"]
    word = name.lower().replace("_", "")
    launcher = _launcher(node, nodes)
    values: dict[str, Any] = {"comm_size": _input_bytes(number, node, maker)}
    stream = node.get("stream")
    if type(stream) is int:
        values["stream"] = stream
    group = node.get("pg_name", launcher.get("pg_name"))
    if group is not None:
        values["pg_name"] = str(group)
    if "sendrecv" in word:
        asked = str(launcher.get("name", "")).lower().replace("_", "")
        if "alltoall" not in asked:
            return maker.operator(number, name, RECV if "recv" in asked else SEND, needs, (), 0, values)
        word = "alltoall"
    kind = next((kind for part, kind in _WORDS if part in word), None)
    if kind is None:
        maker.fail(number, name, "is an NCCL kernel of a kind that its name does not tell")
    values["comm_type"] = wire.COMM_TYPES.index(kind)
    op = maker.operator(number, name, COLL, needs, (), 0, values)
    splits = node.get("in_split_size", launcher.get("in_split_size"))
    if kind == "ALL_TO_ALL" and splits:
        op.per_peer_bytes = _vector(number, name, splits, op.bytes, maker)
    return op


def _input_bytes(number: int, node: dict[str, Any], maker: Maker) -> int:
    """Elements times element size over all input tensors, each ``[id, storage, offset, elements, bytes, device]``."""
    inputs = node.get("inputs")
    if isinstance(inputs, dict):
        values, types = inputs.get("values"), inputs.get("types")
    else:
        values, types = inputs, node.get("input_types")
    total = 0
    try:
        for value, kind in zip(values or [], types or [], strict=True):
            if "Tensor" not in kind:
                continue
            for tensor in value if kind.startswith("GenericList[Tensor") else [value]:
                elements, width = tensor[3], tensor[4]
                if type(elements) is not int or type(width) is not int:
                    raise TypeError("no whole numbers")
                total += elements * width
    except (TypeError, ValueError, IndexError, KeyError):
        maker.fail(number, node["name"], "its input tensors cannot be understood: how many bytes it moves is unknown")
    if not values:
        maker.fail(number, node["name"], "has no input tensors: how many bytes it moves is unknown")
    return total


def _vector(number: int, name: str, splits: Any, size: int, maker: Maker) -> tuple[int, ...] | None:
    """Bytes to each peer from PyTorch's split sizes (rows); None if all are alike."""
    try:
        rows = jsontext.parse(splits) if isinstance(splits, str) else splits
    except ValueError:
        rows = None
    if not isinstance(rows, list) or not all(type(row) is int and row >= 0 for row in rows):
        maker.fail(number, name, f"in_split_size is {excerpt(splits)}, expected whole numbers")
    total = sum(rows)
    if len(set(rows)) < 2:
        return None
    if size % total:
        maker.fail(number, name, f"its {size} input bytes are not a multiple of the {total} rows of in_split_size")
    return tuple(row * (size // total) for row in rows)
