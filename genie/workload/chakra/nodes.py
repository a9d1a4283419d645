"""One Chakra node of any form to one `Operator`.

All readers of this package end here, so every form has the same rules. Attributes may come in every numeric encoding
of the schema, and without a value (STG writes empty lists so), which counts as absent. What a node must say and does
not is a TraceError with the node's id and name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from genie.errors import TraceError
from genie.units import MAX_BYTES
from genie.workload.chakra import wire
from genie.workload.excerpt import excerpt, label
from genie.workload.trace import CollectiveKind, Operator, OpKind

INVALID, METADATA, MEM_LOAD, MEM_STORE, COMP, SEND, RECV, COLL = range(8)

COLLECTIVES = {
    number: CollectiveKind("reduce_scatter" if name == "REDUCE_SCATTER_BLOCK" else name.lower())
    for number, name in enumerate(wire.COMM_TYPES)
}

USED = frozenset(
    {"is_cpu_op", "num_ops", "tensor_size", "comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "pg_name",
     "comm_group", "involved_dim", "involve_dims", "stream"}
)  # fmt: skip
"""Attributes that change what is replayed. All others are descriptions (op_schema, inputs, rf_id …)."""

_USED_BYTES = frozenset(key.encode() for key in USED)
MAX_MICROS = 2**62 // 1000


class Maker:
    """Makes the operators of one rank's file. ``counts`` says how often a rule for absent data was used."""

    def __init__(self, rank: int, file: str, decoded: dict[bytes, tuple[str, Any]] | None = None) -> None:
        self.rank = rank
        self.file = file
        self.counts = {"host_side": 0, "untagged": 0, "rootless": 0, "instant": 0}
        self._decoded = {} if decoded is None else decoded

    def fail(self, node: int, name: str, message: str, hint: str = "") -> NoReturn:
        """Raise a TraceError about one node."""
        raise TraceError(message, file=self.file, node=label(node, name), hint=hint)

    def attributes(self, raw: Any, node: int, name: str) -> dict[str, Any]:
        """The attributes in `USED` of a protobuf node, ``raw`` being their encoded forms. Last wins, as in protobuf."""
        found: dict[str, Any] = {}
        decoded = self._decoded
        for item in raw:
            pair = decoded.get(item)
            if pair is None:
                # Most attributes only describe. Their name comes first: no need to decode the rest.
                name_end = 2 + item[1] if len(item) > 1 and item[0] == 0x0A and item[1] < 0x80 else 0
                if 0 < name_end <= len(item) and item[2:name_end] not in _USED_BYTES:
                    continue
                pair = self._attribute(item, node, name)
                if pair is None:
                    continue
                decoded[item] = pair
            found[pair[0]] = pair[1]
        return found

    def _attribute(self, item: bytes, node: int, name: str) -> tuple[str, Any] | None:
        try:
            attribute = wire.AttributeProto.FromString(item)
        except wire.DecodeError:
            self.fail(node, name, "has an attribute that cannot be decoded: the file is damaged")
        if attribute.name not in USED:
            return None
        case = attribute.WhichOneof("value")
        if case is None:
            return None
        value = getattr(attribute, case)
        return attribute.name, list(value.values) if case.endswith("_list") else value

    def integer(self, values: Mapping[str, Any], key: str, node: int, name: str) -> int | None:
        """Attribute ``key`` as an integer of at least 0, None if absent. Whole floats and booleans count."""
        value = values.get(key)
        if value is None:
            return None
        if type(value) is int and 0 <= value <= MAX_BYTES:
            return value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int):
            self.fail(node, name, f"attribute {key} is {excerpt(value)}, expected a whole number")
        if not 0 <= value <= MAX_BYTES:
            self.fail(node, name, f"attribute {key} is {value}, expected 0 to 2^63-1")
        return int(value)

    def operator(
        self,
        node: int,
        name: str,
        kind: int,
        data_deps: tuple[int, ...],
        ctrl_deps: tuple[int, ...],
        micros: int,
        values: dict[str, Any],
    ) -> Operator:
        """The operator of a node of type ``kind`` (NodeType of the current schema).

        Raises:
            TraceError: unknown type, or something the node must say is missing or impossible.
        """
        if micros > MAX_MICROS:
            self.fail(node, name, f"duration of {micros} us is above 2^62 ns")
        if kind in (COMP, MEM_LOAD, MEM_STORE):
            return self._timed(node, name, kind, data_deps, ctrl_deps, micros, values)
        if kind == COLL:
            return self._collective(node, name, data_deps, ctrl_deps, micros, values)
        if kind in (SEND, RECV):
            return self._message(node, name, kind, data_deps, ctrl_deps, values)
        if kind in (INVALID, METADATA):
            return Operator(node, name, OpKind.NOOP, data_deps, ctrl_deps, 0)
        self.fail(node, name, f"unknown node type {kind}; the schema has 0 to 7 ({', '.join(wire.NODE_TYPES)})")

    def _timed(
        self,
        node: int,
        name: str,
        kind: int,
        data_deps: tuple[int, ...],
        ctrl_deps: tuple[int, ...],
        micros: int,
        values: dict[str, Any],
    ) -> Operator:
        op = Operator(
            node,
            name,
            OpKind.COMPUTE if kind == COMP else OpKind.MEMORY,
            data_deps,
            ctrl_deps,
            micros * 1000 if micros else None,
        )
        if values:
            op.flops = self.integer(values, "num_ops", node, name) or 0
            op.memory_bytes = self.integer(values, "tensor_size", node, name) or 0
            op.is_cpu = bool(self.integer(values, "is_cpu_op", node, name))
            op.stream = self._stream(values, node, name)
        return op

    def _stream(self, values: dict[str, Any], node: int, name: str) -> int | None:
        """PyTorch writes -1 for "no stream"."""
        value = values.get("stream")
        return None if value is None or value == -1 else self.integer(values, "stream", node, name)

    def _collective(
        self,
        node: int,
        name: str,
        data_deps: tuple[int, ...],
        ctrl_deps: tuple[int, ...],
        micros: int,
        values: dict[str, Any],
    ) -> Operator:
        on_cpu = bool(self.integer(values, "is_cpu_op", node, name))
        number = self.integer(values, "comm_type", node, name)
        size = self.integer(values, "comm_size", node, name)
        if on_cpu and number is None and size is None:
            # The call that launches a kernel (c10d::allreduce_): the converter types it as communication as well,
            # but the bytes are the kernel's node's.
            self.counts["host_side"] += 1
            duration = micros * 1000 if micros else None
            return Operator(node, name, OpKind.COMPUTE, data_deps, ctrl_deps, duration, is_cpu=True)
        if number is None:
            self.fail(node, name, "is a collective without comm_type", "the tool that wrote it lost the kind")
        collective = COLLECTIVES.get(number)
        if collective is None:
            self.fail(node, name, f"unknown comm_type {number}; the schema has 0 to 9 ({', '.join(wire.COMM_TYPES)})")
        if size is None and collective is not CollectiveKind.BARRIER:
            hint = "the tool that wrote it lost the size: convert the original again with a current converter"
            self.fail(node, name, f"{collective} without comm_size: how many bytes it moves is unknown", hint)
        for key in ("involved_dim", "involve_dims"):
            dimensions = values.get(key)
            if dimensions is not None and not (isinstance(dimensions, list) and all(dimensions)):
                self.fail(
                    node,
                    name,
                    f"{key} is {excerpt(dimensions)}: a collective over some dimensions of ASTRA-sim's network",
                    "name its ranks with pg_name and a communicator file instead",
                )
        if collective in (
            CollectiveKind.REDUCE,
            CollectiveKind.GATHER,
            CollectiveKind.SCATTER,
            CollectiveKind.BROADCAST,
        ):
            self.counts["rootless"] += 1
        return Operator(
            node,
            name,
            OpKind.COLLECTIVE,
            data_deps,
            ctrl_deps,
            stream=self._stream(values, node, name),
            collective=collective,
            bytes=size or 0,
            comm=self.communicator(values, node, name),
        )

    def communicator(self, values: Mapping[str, Any], node: int, name: str) -> str:
        """``pg_name``, or the older ``comm_group``; "" for the world. Numbers and texts of numbers are the same."""
        chosen = ""
        for key in ("pg_name", "comm_group"):
            value = values.get(key)
            if value is None:
                continue
            if not isinstance(value, str):
                value = str(self.integer(values, key, node, name))
            if chosen and value and value != chosen:
                self.fail(node, name, f"pg_name is {excerpt(chosen)}, but comm_group is {excerpt(value)}")
            chosen = chosen or value
        return chosen

    def _message(
        self,
        node: int,
        name: str,
        kind: int,
        data_deps: tuple[int, ...],
        ctrl_deps: tuple[int, ...],
        values: dict[str, Any],
    ) -> Operator:
        own, other = ("comm_src", "comm_dst") if kind == SEND else ("comm_dst", "comm_src")
        word = "send" if kind == SEND else "receive"
        me = self.integer(values, own, node, name)
        if me is not None and me != self.rank:
            self.fail(node, name, f"is a {word} on rank {self.rank}, but its {own} is {me}")
        peer = self.integer(values, other, node, name)
        if peer is None:
            hint = "chakra_converter does not write the peers of PyTorch's send and receive kernels"
            self.fail(node, name, f"{word} without {other}: its peer is unknown", hint)
        size = self.integer(values, "comm_size", node, name)
        if size is None:
            self.fail(node, name, f"{word} without comm_size: how many bytes it moves is unknown")
        tag = self.integer(values, "comm_tag", node, name)
        if tag is None:
            self.counts["untagged"] += 1
        return Operator(
            node,
            name,
            OpKind.SEND if kind == SEND else OpKind.RECV,
            data_deps,
            ctrl_deps,
            stream=self._stream(values, node, name),
            bytes=size,
            peer=peer,
            tag=tag or 0,
        )


__all__ = [
    "COLL",
    "COLLECTIVES",
    "COMP",
    "INVALID",
    "MEM_LOAD",
    "MEM_STORE",
    "METADATA",
    "RECV",
    "SEND",
    "USED",
    "Maker",
]
