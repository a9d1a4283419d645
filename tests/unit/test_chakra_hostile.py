"""Traces that cannot be replayed: each is refused before anything runs, with file, node and reason.

A row writes its files and names the golden text in tests/golden/traces/. GENIE_UPDATE_GOLDEN=1 rewrites them.
"""

import gzip
import json
import os
from pathlib import Path

import chakra_maker as make
import pytest
from chakra_maker import coll, comp, et, node, recv, send, v1, write_job

from genie.errors import TraceError
from genie.workload import load
from genie.workload.chakra import wire
from genie.workload.check import check

GOLDEN = Path(__file__).parent.parent / "golden" / "traces"


def two(*ranks):
    return lambda folder: write_job(folder, *ranks)


def one(data, name="job.0.et"):
    def write(folder):
        (folder / name).write_bytes(data)
        return str(folder)

    return write


def text(document, name="job.0.json"):
    return one((document if isinstance(document, str) else json.dumps(document)).encode(), name)


def grouped(groups, *ranks):
    def write(folder):
        (folder / "job.json").write_text(groups if isinstance(groups, str) else json.dumps(groups))
        return write_job(folder, *ranks)

    return write


def named(*names):
    def write(folder):
        for name in names:
            (folder / name).write_bytes(et(comp(1)))
        return str(folder)

    return write


def folders(folder):
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    return str(folder)


def groups_of(ranks, name="1"):
    return str([json.dumps([{"pg_name": name, "ranks": ranks}])])


LONG_VARINT = b"\xff" * 11
HOST = {"schema": "1.0.1", "pid": 1, "nodes": [{"name": "aten::add", "id": 2, "rf_id": 1, "parent": 1}]}


def linked(**node):
    return text({"schema": "1.0.2-chakra.0.0.4", "nodes": [{"id": 2, "name": "k", "ts": 1, "exclusive_dur": 3} | node]})


TENSOR = {"values": [[1, 2, 0, 6, 4, "cuda:0"]], "types": ["Tensor(float)"]}

ROWS = {
    # graph of one rank
    "a node depends on itself": two([comp(1, data=[1])]),
    "a cycle of three": two([comp(1, data=[3]), comp(2, data=[1]), comp(3, data=[2]), comp(4, data=[3])]),
    "a data dependency on an absent node": two([comp(1), comp(2, data=[77])]),
    "an id twice": two([comp(7, name="first"), comp(7, name="second")]),
    "no operators at all": two([], []),
    # node by node
    "an unknown node type": two([node(1, 9)]),
    "an unknown collective": two([node(1, "coll", comm_type=31, comm_size=4)], [coll(1)]),
    "a collective without its kind": two([node(1, "coll", comm_size=4)], [coll(1)]),
    "a collective without its size": two([node(1, "coll", comm_type=0)], [coll(1)]),
    "a negative size": two([coll(1, size=-5)], [coll(1)]),
    "a size above 2^63": two([coll(1, size=("uint64_val", 2**63))], [coll(1)]),
    "a size that is not whole": two([coll(1, size=1.5)], [coll(1)]),
    "a size that is not a number": two([coll(1, size=float("nan"))], [coll(1)]),
    "a size that is text": two([coll(1, size="many")], [coll(1)]),
    "a size that is a list": two([coll(1, size=("int64_list", [4]))], [coll(1)]),
    "a duration beyond measure": two([comp(1, micros=2**63)]),
    "a compute node without a duration": two([comp(1, micros=0)]),
    "a compute node that needs a device": two([comp(1, micros=0, num_ops=1000, tensor_size=10)]),
    "a send without a peer": two([node(1, "send", comm_size=4)], [recv(1, 0)]),
    "a send without a size": two([node(1, "send", comm_dst=1)], [recv(1, 0)]),
    "a send from another rank": two([send(1, 1, comm_src=1)], [recv(1, 0)]),
    "a send to itself": two([send(1, 0)], [recv(1, 0)]),
    "a send to a rank that is not there": two([send(1, 5)], [recv(1, 0)]),
    "an involved dimension": two([coll(1, involved_dim=("bool_list", [True, False]))], [coll(1)]),
    "two names of a group": two([coll(1, pg_name="1", comm_group=2)], [coll(1)]),
    "a broken attribute": two(et(comp(1)) + b"\x06\x08\x02\x52\x02\x0a\x09", [comp(1)]),
    "a node that is no node": two(et(comp(1)) + b"\x02\x0a\x09", [comp(1)]),
    "a name that is not text": two(et(comp(1)) + b"\x06\x08\x02\x12\x02\xff\xfe", [comp(1)]),
    # across ranks
    "a send without a receive": two([send(1, 1)], [comp(1)]),
    "a receive without a send": two([comp(1)], [recv(1, 0)]),
    "a second send without a receive": two([send(1, 1), send(2, 1, data=[1])], [recv(1, 0)]),
    "different tags": two([send(1, 1, tag=1)], [recv(1, 0, tag=2)]),
    "different sizes of a message": two([send(1, 1, size=100)], [recv(1, 0, size=99)]),
    "different kinds of a collective": two([coll(1)], [coll(1, kind="all_gather")]),
    "different sizes of a collective": two([coll(1)], [coll(1, size=1025)]),
    "one collective too few": two([coll(1), coll(2, data=[1])], [coll(9)]),
    "a rank without the collective": two([coll(1)], [comp(1)], [coll(1)]),
    "collectives in another order": two(
        [coll(1, size=10), coll(2, size=20, data=[1])], [coll(1, size=20), coll(2, size=10, data=[1])]
    ),
    "a deadlock of two communicators": grouped(
        {"1": [0, 1], "2": [0, 1]},
        [coll(1, pg_name="1"), coll(2, pg_name="2", data=[1])],
        [coll(1, pg_name="2"), coll(2, pg_name="1", data=[1])],
    ),
    "a deadlock of messages": two(
        [recv(1, 1), send(2, 1, data=[1])],
        [recv(1, 0), send(2, 0, data=[1])],
    ),
    "a deadlock of a message and a collective": two(
        [coll(1), send(2, 1, data=[1])],
        [recv(1, 0), coll(2, data=[1])],
    ),
    # communicators
    "an undefined communicator": two([coll(1, pg_name="7")], [coll(1, pg_name="7")]),
    "a rank outside its communicator": grouped({"1": [0, 1]}, [coll(1, pg_name="1")], [coll(1, pg_name="1")],
                                               [coll(1, pg_name="1")]),
    "a communicator with an unknown rank": grouped({"1": [0, 5]}, [coll(1, pg_name="1")], [comp(1)]),
    "a communicator with a rank twice": grouped({"1": [0, 0]}, [coll(1, pg_name="1")], [comp(1)]),
    "a communicator file with the world": grouped({"0": [0, 1]}, [coll(1)], [coll(1)]),
    "a communicator file with text": grouped({"1": ["a"]}, [coll(1)], [coll(1)]),
    "a communicator without ranks": grouped({"1": []}, [coll(1)], [coll(1)]),
    "process groups that differ": two(
        [node(1, "metadata", values=groups_of([0, 1]))], [node(1, "metadata", values=groups_of([1, 0]))]
    ),
    "process groups that are cut off": two([node(1, "metadata", values="['[{\"pg_name\": ")], [comp(1)]),
    # files
    "an empty file": one(b""),
    "text": one(b"this is not a trace, it is prose about one"),
    "noise": one(bytes(range(256))),
    "a message cut off": one(et(comp(1), comp(2))[:-3]),
    "a length cut off": one(et(comp(1)) + b"\x80"),
    "a length without end": one(et(comp(1)) + LONG_VARINT),
    "a length of four exabytes": one(et(comp(1)) + b"\xff\xff\xff\xff\xff\xff\xff\x7f" + b"x" * 50),
    "gzip cut off": one(gzip.compress(et(*map(comp, range(1, 50))), mtime=0)[:-9]),
    "gzip damaged": one(b"\x1f\x8b\x08\x00" + b"\x00" * 30),
    "schema v0.0.3": one(wire.write_frames([wire.GlobalMetadata(version="\n\x06schema")])),
    "schema v0.0.2": one(b"\x0a\x08\x01\x12\x01a\x18\x03\x5a\x01a" + b"\x0a\x08\x02\x12\x01a\x18\x03\x5a\x01a"),
    "an unknown type in v0.0.1": one(v1({"id": 1, "name": "x", "node_type": 7})),
    "an unknown collective in v0.0.1": one(v1({"id": 1, "name": "x", "node_type": 6, "comm_type": 0, "comm_size": 4})),
    "the algorithm of a collective": lambda folder: write_job(folder, _algorithm()),
    "JSON cut off": text('{"nodes": ['),
    "JSON too deep": text("[" * 100_000 + "]" * 100_000),
    "JSON of something else": text({"hello": "world"}),
    "JSON with an invalid byte": one(b'{"a": "\xff"}'),
    "a PyTorch host trace": text(HOST),
    "a linked PyTorch trace without ids": linked(id=None),
    "a linked PyTorch trace with an odd duration": linked(exclusive_dur="long"),
    "a linked PyTorch trace with a negative duration": linked(exclusive_dur=-1),
    "a linked PyTorch trace with an odd dependency": linked(sync_dep=["a"]),
    "a linked PyTorch trace that sends": linked(cat="kernel", name="ncclDevKernel_SendRecv(x)", inputs=TENSOR),
    "a linked PyTorch trace with an unknown kernel": linked(cat="kernel", name="ncclKernel_Wave(x)", inputs=TENSOR),
    "a linked PyTorch trace without sizes": linked(cat="kernel", name="ncclKernel_AllReduce(x)"),
    "a linked PyTorch trace with odd tensors": linked(
        cat="kernel", name="ncclKernel_AllReduce(x)", inputs={"values": [5], "types": ["Tensor(float)"]}
    ),
    "a linked PyTorch trace with odd splits": linked(
        cat="kernel", name="ncclKernel_AllToAll(x)", inputs=TENSOR, in_split_size="[1, 4]"
    ),
    "a Kineto trace": text({"schemaVersion": 1, "traceEvents": []}),
    "a Kineto trace named et": one(b'[{"ph": "X", "name": "a"}]'),
    "an MSCCL algorithm": one(b'<algo name="x">'),
    "an ASTRA-sim text workload": one(b"HYBRID_TRANSFORMER\n3\n"),
    "a GOAL schedule": one(b"num_ranks 2\n"),
    "a communicator file as the trace": text({"1": [0, 1]}),
    "a zip archive": one(b"PK\x03\x04 and so on"),
    "feeder JSON without an id": text({"workload_graph": [{"Name": "a", "NodeType": 4}]}),
    "feeder JSON whose graph is no list": text({"workload_graph": 5}),
    "feeder JSON whose type is text": text({"workload_graph": [{"Id": 1, "NodeType": "COMP"}]}),
    "feeder JSON whose node is no object": text({"workload_graph": [3]}),
    "STG JSON with an unknown type": text({"nodes": [{"id": 1, "name": "a", "node_type": "thinking_node"}]}),
    "STG JSON with an unknown collective": text(
        {"nodes": [{"id": 1, "name": "a", "node_type": "coll_comm_node", "comm_type": "WAVE", "comm_size": 1}]}
    ),
    "STG JSON with odd dependencies": text(
        {"nodes": [{"id": 1, "name": "a", "node_type": "comp_node", "data_deps": ["b"]}]}
    ),
    # folders
    "no such path": lambda folder: str(folder / "nowhere" / "job"),
    "no such prefix": lambda folder: write_job(folder, [comp(1)]) + "x",
    "a folder of folders": folders,
    "an empty folder": str,
    "a rank missing": named("job.0.et", "job.1.et", "job.3.et"),
    "the first rank missing": named("job.1.et"),
    "a rank twice": named("job.1.et", "job.01.et", "job.0.et"),
    "two jobs in a folder": named("a.0.et", "b.0.et", "b.1.et"),
    "names without a rank": named("trace.et"),
    "one rank of a bigger job": two([coll(1)]),
    "one rank that sends": two([send(1, 1)]),
}  # fmt: skip

OPTIONS = {
    "control dependencies honoured though cyclic": (
        two([comp(1, ctrl=[2]), comp(2, ctrl=[1])]),
        {"control_deps": "on"},
    ),
    "control dependencies honoured though open": (two([comp(1, ctrl=[2])]), {"control_deps": "on"}),
    "copies of a rank that sends": (two([send(1, 1)]), {"replicate_ranks": 4}),
    "copies of a rank with a communicator": (two([coll(1, pg_name="3")]), {"replicate_ranks": 4}),
    "copies of two ranks": (two([comp(1)], [comp(1)]), {"replicate_ranks": 4}),
    "a communicator file that is not there": (two([comp(1)]), {"comm_groups": "/nowhere/groups.json"}),
}


def _algorithm():
    metadata = wire.GlobalMetadata()
    make.add(metadata, "collective", "allreduce")
    return wire.write_frames([metadata, make.comp(1)])


def golden(name, message):
    path = GOLDEN / f"{name.replace(' ', '_')}.txt"
    if os.environ.get("GENIE_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(message + "\n")
    assert message + "\n" == path.read_text()


@pytest.mark.parametrize("name", [*ROWS, *OPTIONS])
def test_refused_by_name(name, tmp_path):
    write, options = (ROWS[name], {}) if name in ROWS else OPTIONS[name]
    path = write(tmp_path)
    with pytest.raises(TraceError) as caught:
        check(load({"name": "chakra", "path": path, **options}))
    golden(name, str(caught.value).replace(str(tmp_path), "DIR"))


def test_golden_texts_have_a_row_each():
    rows = {name.replace(" ", "_") for name in (*ROWS, *OPTIONS)}
    assert {path.stem for path in GOLDEN.glob("*.txt")} == rows


@pytest.mark.parametrize("value", ['{"id": "1", "colour": "blue"}', '{"id": []}', '{"type": "THINKING_NODE"}'])
def test_jsonizer_values_that_are_no_nodes(value, tmp_path):
    path = text('{"version": ""}\n' + value)(tmp_path)
    with pytest.raises(TraceError, match="JSON value number 2 is not a Chakra message"):
        load({"name": "chakra", "path": path})
