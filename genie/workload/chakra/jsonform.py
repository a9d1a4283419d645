"""JSON forms that write nodes with plain keys: Chakra's feeder JSON and the JSON of STG (symbolic tensor graph).

Feeder (chakra src/feeder/json_node.cpp): ``{"workload_graph": [{"Id", "Name", "NodeType": int, "data_deps", "runtime",
"is_cpu_op", "comm_type": int, …}]}``; ``ctrlDeps`` is written by some files and ignored by the feeder, so also here.
STG (backends/json_backend.py): ``{"nodes": [{"id", "name", "node_type": "coll_comm_node", "comm_type": "ALL_GATHER",
"comm_group": int, …}]}``. Durations are in microseconds; STG has none.
"""

from __future__ import annotations

from typing import Any

from genie.errors import TraceError
from genie.workload.chakra import wire
from genie.workload.chakra.nodes import COLL, COMP, INVALID, MEM_LOAD, MEM_STORE, METADATA, RECV, SEND, Maker
from genie.workload.chakra.rankfile import RankFile
from genie.workload.excerpt import excerpt

_STG_TYPES = {
    "comp_node": COMP,
    "coll_comm_node": COLL,
    "send_node": SEND,
    "recv_node": RECV,
    "comm_send_node": SEND,
    "comm_recv_node": RECV,
    "comm_coll_node": COLL,
    "mem_load_node": MEM_LOAD,
    "mem_store_node": MEM_STORE,
    "metadata_node": METADATA,
    "invalid_node": INVALID,
}
_PLAIN = (
    "num_ops",
    "tensor_size",
    "comm_size",
    "comm_src",
    "comm_dst",
    "comm_tag",
    "is_cpu_op",
    "pg_name",
    "comm_group",
)


def read_feeder(document: dict[str, Any], maker: Maker) -> RankFile:
    """A feeder JSON file. Raises TraceError for nodes that are not of the form above."""
    found = RankFile([])
    for place, node in enumerate(_list(document["workload_graph"], maker)):
        number, name = _identity(node, "Id", "Name", place, maker)
        kind = _whole(node.get("NodeType"), "NodeType", number, name, maker)
        values = {key: node[key] for key in (*_PLAIN, "comm_type") if node.get(key) is not None}
        micros = _micros(node.get("runtime"), number, name, maker)
        data_deps = _ids(node.get("data_deps"), "data_deps", number, name, maker)
        found.operators.append(maker.operator(number, name, kind, data_deps, (), micros, values))
    if any(node.get("ctrlDeps") for node in document["workload_graph"]):
        found.notes.append("ctrlDeps are not read, as in Chakra's own feeder")
    return found


def read_stg(document: dict[str, Any], maker: Maker) -> RankFile:
    """An STG JSON file. Raises TraceError for nodes that are not of the form above."""
    found = RankFile([])
    for place, node in enumerate(_list(document["nodes"], maker)):
        number, name = _identity(node, "id", "name", place, maker)
        word = node.get("node_type")
        kind = _STG_TYPES.get(word.lower()) if isinstance(word, str) else None
        if kind is None:
            maker.fail(number, name, f"unknown node_type {excerpt(word)}; STG writes {', '.join(_STG_TYPES)}")
        values = {key: node[key] for key in _PLAIN if node.get(key) is not None}
        collective = node.get("comm_type")
        if kind == COLL and collective is not None:
            if collective not in wire.COMM_TYPES:
                maker.fail(
                    number, name, f"unknown comm_type {excerpt(collective)}; there are {', '.join(wire.COMM_TYPES)}"
                )
            values["comm_type"] = wire.COMM_TYPES.index(collective)
        data_deps = _ids(node.get("data_deps"), "data_deps", number, name, maker)
        ctrl_deps = _ids(node.get("ctrl_deps"), "ctrl_deps", number, name, maker)
        found.operators.append(maker.operator(number, name, kind, data_deps, ctrl_deps, 0, values))
    return found


def _list(value: Any, maker: Maker) -> list[Any]:
    if not isinstance(value, list):
        raise TraceError(f"expected a list of nodes, found {type(value).__name__}", file=maker.file)
    return value


def _identity(node: Any, id_key: str, name_key: str, place: int, maker: Maker) -> tuple[int, str]:
    if not isinstance(node, dict):
        raise TraceError(f"node number {place + 1} is {excerpt(node)}, expected an object", file=maker.file)
    number, name = node.get(id_key), node.get(name_key, "")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**64:
        raise TraceError(f"node number {place + 1} has {id_key} {excerpt(number)}, expected an id", file=maker.file)
    if not isinstance(name, str):
        raise TraceError(f"node {number} has {name_key} {excerpt(name)}, expected text", file=maker.file)
    return number, name


def _whole(value: Any, key: str, number: int, name: str, maker: Maker) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        maker.fail(number, name, f"{key} is {excerpt(value)}, expected a whole number")
    return value


def _micros(value: Any, number: int, name: str, maker: Maker) -> int:
    if value is None:
        return 0
    micros = maker.integer({"runtime": value}, "runtime", number, name)
    return micros or 0


def _ids(value: Any, key: str, number: int, name: str, maker: Maker) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        maker.fail(number, name, f"{key} is {excerpt(value)}, expected a list of ids")
    return tuple(value)
