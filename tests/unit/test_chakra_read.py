"""Reading Chakra: every encoding, framing, schema and form gives the same operators; damage gives TraceError only."""

import gzip
import json
import tempfile
from pathlib import Path

import pytest
from chakra_maker import coll, comp, et, node, recv, send, v1, write_job
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genie.errors import ConfigError, TraceError
from genie.workload import load
from genie.workload.chakra import wire
from genie.workload.chakra.et import read_current
from genie.workload.chakra.files import find
from genie.workload.chakra.groups import process_groups
from genie.workload.chakra.nodes import Maker
from genie.workload.chakra.sniff import Kind, sniff
from genie.workload.check import check
from genie.workload.trace import CollectiveKind, OpKind

INTEGER_CASES = [case for case in wire.ATTRIBUTE_CASES if case not in ("bool", "string", "bytes")]
LIMITS = {"int32": 2**31, "sint32": 2**31, "sfixed32": 2**31, "uint32": 2**32, "fixed32": 2**32, "float": 2**24}


def job(path, **options):
    return load({"name": "chakra", "path": str(path), **options})


def operators(data):
    return read_current(data, Maker(0, "job.0.et"), headless=False).operators


@given(st.sampled_from(INTEGER_CASES), st.data())
def test_every_numeric_encoding_of_every_number(case, data):
    limit = min(LIMITS.get(case, 2**53 if case == "double" else 2**63), 2**63)
    numbers = st.integers(0, limit - 1)
    size, kind, flops, touched = (data.draw(numbers) for _ in range(4))

    def wrapped(value):
        return (f"{case}_val", float(value) if case in ("double", "float") else value)

    collective, compute, message = operators(
        et(
            node(
                1,
                "coll",
                comm_type=wrapped(kind % 10),
                comm_size=wrapped(size),
                is_cpu_op=wrapped(0),
                stream=wrapped(7),
            ),
            node(2, "comp", num_ops=wrapped(flops), tensor_size=wrapped(touched), is_cpu_op=wrapped(1)),
            node(3, "send", comm_src=wrapped(0), comm_dst=wrapped(3), comm_tag=wrapped(9), comm_size=wrapped(size)),
        )
    )
    assert collective.bytes == size
    assert collective.stream == 7
    assert collective.collective is not None
    assert (compute.flops, compute.memory_bytes, compute.is_cpu) == (flops, touched, True)
    assert (message.peer, message.tag, message.bytes) == (3, 9, size)
    assert type(collective.bytes) is int


@pytest.mark.parametrize("flag", [("bool_val", False), ("int32_val", 0), ("uint32_val", 0), (None, None)], ids=str)
def test_is_cpu_op_false_or_absent_leaves_communication_alone(flag):
    (op,) = operators(et(node(1, "coll", comm_type=0, comm_size=5, is_cpu_op=flag)))
    assert op.kind is OpKind.COLLECTIVE


@pytest.mark.parametrize("value", ["4", 4, ("int32_val", 4), ("string_val", "4")], ids=str)
@pytest.mark.parametrize("key", ["pg_name", "comm_group"])
def test_both_names_of_a_communicator_in_every_encoding(key, value):
    (op,) = operators(et(coll(1, **{key: value})))
    assert op.comm == "4"


def test_attributes_without_value_are_absent():
    (op,) = operators(et(comp(1, inputs=None, outputs=None, stream=None, num_ops=None)))
    assert op.stream is None
    assert op.flops == 0


def test_the_last_of_a_repeated_attribute_wins():
    made = coll(1)
    made.attr.add(name="comm_size").uint64_val = 77
    assert operators(et(made))[0].bytes == 77


@pytest.mark.parametrize(("number", "kind"), [*enumerate(wire.COMM_TYPES)])
def test_every_collective_of_the_schema(number, kind):
    (op,) = operators(et(node(1, "coll", comm_type=number, comm_size=8)))
    assert op.collective is CollectiveKind(kind.lower().removesuffix("_block"))


def test_barrier_needs_no_size():
    (op,) = operators(et(node(1, "coll", comm_type=wire.COMM_TYPES.index("BARRIER"))))
    assert op.bytes == 0


def test_four_gibibytes_and_more_keep_their_size():
    sizes = [2**32, 2**32 + 1, 2**63 - 1]
    assert [op.bytes for op in operators(et(*(coll(i, size=size) for i, size in enumerate(sizes, 1))))] == sizes


def test_empty_messages_are_nodes_and_no_end_of_file():
    ops = operators(et() + b"\x00" + et(comp(5), metadata=False))
    assert [(op.id, op.kind) for op in ops] == [(0, OpKind.NOOP), (5, OpKind.COMPUTE)]


def test_an_empty_metadata_is_metadata():
    data = b"\x00" + et(comp(5), metadata=False)
    assert sniff(data, "") == sniff(et(comp(5)), "")
    assert len(operators(data)) == 1


def test_a_metadata_of_123_bytes_is_not_taken_for_json():
    for size in range(90, 130):
        data = wire.write_frames([wire.GlobalMetadata(version="v" * size), comp(1)])
        assert sniff(data, "").kind is Kind.ET


def test_nodes_without_metadata_are_read_when_plainly_of_todays_schema(tmp_path):
    trace = job(write_job(tmp_path, et(comp(1), comp(2, data=[1], is_cpu_op=True), metadata=False)))
    assert [op.id for op in trace.ranks[0].operators] == [1, 2]
    assert any("no GlobalMetadata" in note for note in trace.notes)


def test_version_labels_are_not_judged(tmp_path):
    for version in ("", "0.0.4", "1.0.0", "1.1.1-chakra.0.0.4", "anything"):
        data = wire.write_frames([wire.GlobalMetadata(version=version), comp(1)])
        check(job(write_job(tmp_path, data)))


def test_parents_may_follow_children_and_ids_may_be_sparse(tmp_path):
    big = 2**64 - 1
    checked = check(job(write_job(tmp_path, [comp(big, data=[7]), comp(7)])))
    assert checked.order == ((1, 0),)
    assert checked.needs == (((), (0,)),)


def test_gzip_is_told_by_its_first_bytes(tmp_path):
    data = et(comp(1), comp(2, data=[1]))
    plain = job(write_job(tmp_path, data))
    packed = job(write_job(tmp_path, gzip.compress(data)))
    assert packed.ranks[0].operators == plain.ranks[0].operators


def test_a_rank_without_work_is_fine(tmp_path):
    checked = check(job(write_job(tmp_path, [comp(1)], [])))
    assert checked.order == ((0,), ())


def test_more_ranks_than_ten_are_in_numeric_order(tmp_path):
    trace = job(write_job(tmp_path, *([comp(rank + 1)] for rank in range(12))))
    assert [rank.operators[0].id for rank in trace.ranks] == list(range(1, 13))


# --- what a path may be


def test_directory_prefix_and_file_name_the_same(tmp_path):
    prefix = write_job(tmp_path, [comp(1)])
    assert find(str(tmp_path)).files == find(prefix).files == find(prefix + ".0.et").files
    assert find(prefix + ".<rank>.et").files == find(prefix).files


def test_one_of_several_jobs_by_prefix(tmp_path):
    write_job(tmp_path, [comp(1)], prefix="a")
    write_job(tmp_path, [comp(1)], [comp(1)], prefix="ab")
    assert len(find(str(tmp_path / "ab")).files) == 2
    assert len(find(str(tmp_path / "a")).files) == 1


def test_odd_names_are_found(tmp_path):
    (tmp_path / "megatron_et_0.json.gz").write_bytes(b"")
    assert list(find(str(tmp_path)).files) == [0]


def test_extensions_lie(tmp_path):
    (tmp_path / "x.0.json").write_bytes(et(comp(1)))
    check(job(tmp_path))


# --- control dependencies


def test_control_dependencies_are_honoured_if_closed_and_acyclic(tmp_path):
    trace = job(write_job(tmp_path, [comp(1), comp(2, ctrl=[1])]))
    assert trace.ranks[0].operators[1].ctrl_deps == (1,)
    assert any("1 control dependencies are honoured" in note for note in trace.notes)
    assert check(trace).needs == (((), (0,)),)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([comp(1, ctrl=[9])], "1 point to nodes that do not exist and 0 nodes depend on themselves"),
        ([comp(1, ctrl=[1])], "0 point to nodes that do not exist and 1 nodes depend on themselves"),
        ([comp(1, ctrl=[2]), comp(2, data=[1])], "they put 2 nodes in or behind a cycle"),
    ],
    ids=["absent", "self", "cycle"],
)
def test_unusable_control_dependencies_are_dropped_for_all_ranks_and_said(tmp_path, nodes, why):
    trace = job(write_job(tmp_path, [comp(1), comp(2, ctrl=[1])], nodes))
    assert all(not op.ctrl_deps for rank in trace.ranks for op in rank.operators)
    (note,) = [note for note in trace.notes if "dropped" in note]
    assert note.endswith(why)
    check(trace)


def test_control_dependencies_off(tmp_path):
    trace = job(write_job(tmp_path, [comp(1), comp(2, ctrl=[1])]), control_deps="off")
    assert trace.ranks[0].operators[1].ctrl_deps == ()


def test_a_data_cycle_is_not_blamed_on_control_dependencies(tmp_path):
    prefix = write_job(tmp_path, [comp(1, data=[2]), comp(2, data=[1]), comp(3, ctrl=[1])])
    with pytest.raises(TraceError, match="depends on a cycle of 2 nodes"):
        check(job(prefix))


# --- durations


def test_zero_means_below_a_microsecond_if_others_have_durations(tmp_path):
    trace = job(write_job(tmp_path, [comp(1, micros=3), comp(2, micros=0)]))
    assert [op.duration_ns for op in trace.ranks[0].operators] == [3000, 0]
    assert any("1 compute nodes have duration 0" in note for note in trace.notes)


def test_work_without_duration_takes_the_roofline_even_beside_recorded_ones(tmp_path):
    nodes = [
        comp(1, micros=3),
        comp(2, micros=0, num_ops=312_000_000, tensor_size=1),
        node(3, "load", tensor_size=2039),
    ]
    trace = job(write_job(tmp_path, nodes), device="a100")
    assert [op.duration_ns for op in trace.ranks[0].operators] == [3000, 1000, 1]
    assert [op.kind for op in trace.ranks[0].operators][2] is OpKind.MEMORY


# --- communicators


def test_process_groups_of_nodes_and_file(tmp_path):
    values = str([json.dumps([{"pg_name": "0", "ranks": []}, {"pg_name": "tp", "ranks": [1, 0]}])])
    nodes = [
        node(9, "metadata", "## process_group:init ##", values=values),
        coll(1, pg_name="tp"),
        coll(2, pg_name="0"),
    ]
    (tmp_path / "job.json").write_text('{"3": [0, 1], "tp": [0, 1]}')
    trace = job(write_job(tmp_path, nodes, nodes))
    assert trace.communicators == {"": (0, 1), "0": (0, 1), "tp": (1, 0), "3": (0, 1)}
    calls = check(trace).calls
    assert {call.comm: call.ranks for call in calls} == {"tp": (1, 0), "0": (0, 1)}


def test_world_is_zero_or_nothing(tmp_path):
    nodes = [coll(1, pg_name="0"), coll(2, pg_name="", data=[1]), coll(3, data=[2])]
    assert {call.comm for call in check(job(write_job(tmp_path, nodes, nodes))).calls} == {""}


def test_a_group_of_one_moves_nothing(tmp_path):
    (tmp_path / "groups").write_text('{"1": [0], "2": [1]}')
    prefix = write_job(tmp_path, [coll(1, pg_name="1")], [coll(1, pg_name="2")])
    checked = check(job(prefix, comm_groups=str(tmp_path / "groups")))
    assert not checked.calls
    assert any("2 collectives on communicators of one rank" in note for note in checked.trace.notes)


@given(st.text(max_size=60))
def test_process_group_texts_fail_by_name_only(text):
    for values in (text, f"['{text}']", f"[{text!r}, 'pg_name']"):
        try:
            process_groups(values, "file", "node")
        except TraceError:
            continue


# --- one rank for many


def test_copies_of_one_rank(tmp_path):
    prefix = write_job(tmp_path, [comp(1), coll(2, data=[1]), coll(3, kind="broadcast", data=[2])])
    checked = check(job(prefix, replicate_ranks=4))
    assert [(call.kind, call.ranks, call.root) for call in checked.calls] == [
        (CollectiveKind.ALL_REDUCE, (0, 1, 2, 3), 0),
        (CollectiveKind.BROADCAST, (0, 1, 2, 3), 0),
    ]
    assert any("all 4 ranks run copies" in note for note in checked.trace.notes)
    assert any("Chakra has no root" in note for note in checked.trace.notes)


def test_copies_must_be_at_least_two(tmp_path):
    with pytest.raises(ConfigError, match=r"workload\.replicate_ranks: expected 0 \(off\) or 2 to 65536, found 1"):
        job(write_job(tmp_path, [comp(1)]), replicate_ranks=1)


def test_host_side_of_a_collective_is_compute(tmp_path):
    nodes = [node(1, "coll", "c10d::allreduce_", micros=4, is_cpu_op=True), coll(2, data=[1], is_cpu_op=False)]
    checked = check(job(write_job(tmp_path, nodes, nodes)))
    assert len(checked.calls) == 1
    assert checked.trace.ranks[0].operators[0].kind is OpKind.COMPUTE
    assert checked.trace.ranks[0].operators[0].duration_ns == 4000
    assert any("2 communication nodes are the host's calls" in note for note in checked.trace.notes)


def test_messages_without_tag_are_matched_by_order(tmp_path):
    out = [node(1, "send", comm_dst=1, comm_size=5), node(2, "send", comm_dst=1, comm_size=6, data=[1])]
    into = [node(1, "recv", comm_src=0, comm_size=5), node(2, "recv", comm_src=0, comm_size=6, data=[1])]
    trace = job(write_job(tmp_path, out, into))
    assert [call.bytes for call in check(trace).calls] == [5, 6]
    assert any("4 messages have no comm_tag" in note for note in trace.notes)


# --- other forms

CURRENT = [
    comp(1, num_ops=7, tensor_size=9),
    coll(2, size=2**33, pg_name="1", data=[1]),
    send(3, 1, size=6, tag=4, data=[2]),
    recv(4, 1, size=8, tag=5, data=[2]),
]
GROUPS = '{"1": [0, 1]}'


def peer():
    return et(
        coll(1, size=2**33, pg_name="1"), recv(2, 0, size=6, tag=4, data=[1]), send(3, 0, size=8, tag=5, data=[1])
    )


def same_as_current(tmp_path, data, note_part=""):
    (tmp_path / "groups").write_text(GROUPS)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    reference = job(write_job(tmp_path / "a", CURRENT, peer()), comm_groups=str(tmp_path / "groups"))
    other = job(write_job(tmp_path / "b", data, peer()), comm_groups=str(tmp_path / "groups"))
    assert other.ranks[0].operators == reference.ranks[0].operators
    check(other)
    assert any(note_part in note for note in other.notes)


def test_jsonizer_form(tmp_path):
    documents = [json_format.MessageToJson(message) for message in (wire.GlobalMetadata(version="0.0.4"), *CURRENT)]
    same_as_current(tmp_path, "".join(documents).encode(), "1 Chakra ET as JSON")


def test_stg_form(tmp_path):
    coll_keys = {"node_type": "coll_comm_node", "comm_type": "ALL_REDUCE", "comm_size": 2**33, "comm_group": 1}
    send_keys = {"node_type": "send_node", "comm_dst": 1, "comm_src": 0, "comm_size": 6, "comm_tag": 4}
    recv_keys = {"node_type": "recv_node", "comm_src": 1, "comm_size": 8, "comm_tag": 5}
    nodes = [
        {"id": 1, "name": "comp1", "node_type": "comp_node", "num_ops": 312_000_000, "tensor_size": 9},
        {"id": 2, "name": "coll2", "data_deps": [1], "ctrl_deps": []} | coll_keys,
        {"id": 3, "name": "send3", "data_deps": [2]} | send_keys,
        {"id": 4, "name": "recv4", "data_deps": [2]} | recv_keys,
    ]
    data = json.dumps({"nodes": nodes}).encode()
    assert sniff(data, "").kind is Kind.STG_JSON
    (tmp_path / "groups").write_text(GROUPS)
    trace = job(write_job(tmp_path, data, peer()), comm_groups=str(tmp_path / "groups"), device="a100")
    assert [op.bytes for op in trace.ranks[0].operators] == [0, 2**33, 6, 8]
    assert trace.ranks[0].operators[0].duration_ns == 1000
    check(trace)


def test_feeder_form(tmp_path):
    graph = [
        {"Id": 1, "Name": "comp1", "NodeType": 4, "runtime": 5, "data_deps": [], "is_cpu_op": False, "tensor_size": 9},
        {
            "Id": 2,
            "Name": "coll2",
            "NodeType": 7,
            "data_deps": [1],
            "ctrlDeps": [3],
            "comm_type": 0,
            "comm_size": 2**33,
        },
    ]
    data = json.dumps({"workload_graph": graph}).encode()
    checked = check(job(write_job(tmp_path, data, data)))
    assert checked.calls[0].bytes == 2**33
    assert checked.trace.ranks[0].operators[0].duration_ns == 5000
    assert any("ctrlDeps are not read, as in Chakra's own feeder (2 files)" in note for note in checked.trace.notes)


def test_first_schema(tmp_path):
    send_keys = {"node_type": 4, "comm_src": 0, "comm_dst": 1, "comm_size": 6, "comm_tag": 4}
    recv_keys = {"node_type": 5, "comm_src": 1, "comm_dst": 0, "comm_size": 8, "comm_tag": 5}
    coll_keys = {"node_type": 6, "comm_type": 1, "comm_size": 2**33, "communicator_id": 1}
    rank = [
        {"id": 1, "name": "comp1", "node_type": 3, "simulated_run_time": 5, "num_ops": 7, "tensor_size": 9},
        {"id": 2, "name": "coll2", "parent": [1]} | coll_keys,
        {"id": 3, "name": "send3", "parent": [2]} | send_keys,
        {"id": 4, "name": "recv4", "parent": [2]} | recv_keys,
    ]
    same_as_current(tmp_path, v1(*rank), "1 Chakra ET (protobuf, v0.0.1 schema)")


def linked_document():
    """Two threads and two streams; times in microseconds, out of order in the file."""
    init = json.dumps([{"pg_name": "0", "ranks": []}])
    tensor = {"values": [[1, 2, 0, 1000, 2, "cuda:0"]], "types": ["Tensor(c10::Half)"]}
    splits = [{"name": "in_split_size", "value": "[1, 3]"}, {"name": "tid", "value": 1}]
    return {
        "schema": "1.1.1-chakra.0.0.4",
        "nodes": [
            {"id": 1, "name": "process", "ctrl_deps": 1},
            {"id": 2, "name": "## process_group:init ##", "inputs": {"values": [init], "types": ["String"]}},
            {"id": 10, "name": "aten::mm", "ctrl_deps": 1, "ts": 20.0, "exclusive_dur": 2.5, "attrs": splits[1:]},
            {"id": 5, "name": "aten::add", "ctrl_deps": 1, "ts": 10.0, "exclusive_dur": 0.4, "attrs": splits[1:]},
            {"id": 11, "name": "gemm", "cat": "kernel", "ctrl_deps": 10, "ts": 30, "exclusive_dur": 7, "stream": 7},
            {"id": 12, "name": "ncclDevKernel_AllReduce_Sum_f16_RING_LL", "cat": "kernel", "ctrl_deps": 10, "ts": 31,
             "exclusive_dur": 9, "stream": 8, "pg_name": "0", "inputs": tensor, "sync_dep": [11]},
            {"id": 13, "name": "c10d::alltoall_base_", "ctrl_deps": 1, "ts": 32, "exclusive_dur": 1, "attrs": splits},
            {"id": 14, "name": "ncclDevKernel_SendRecv(x)", "cat": "kernel", "ctrl_deps": 13, "ts": 40,
             "exclusive_dur": 9, "stream": 8, "pg_name": "0", "inputs": tensor},
        ],
    }  # fmt: skip


def test_linked_pytorch_form(tmp_path):
    data = json.dumps(linked_document()).encode()
    assert sniff(data, "").kind is Kind.PYTORCH_LINKED
    checked = check(job(write_job(tmp_path, data, data, ending=".json")))
    ops = {op.id: op for op in checked.trace.ranks[0].operators}
    assert {number: set(op.data_deps) for number, op in ops.items()} == {
        1: set(), 2: set(), 5: set(), 10: {5}, 11: {10}, 12: {10, 11}, 13: {10}, 14: {13, 12},
    }  # fmt: skip
    assert [ops[number].duration_ns for number in (1, 5, 10, 11)] == [0, 400, 2500, 7000]
    assert ops[10].is_cpu
    assert not ops[11].is_cpu
    assert ops[11].stream == 7
    reduce, exchange = checked.calls
    assert (reduce.kind, reduce.bytes) == (CollectiveKind.ALL_REDUCE, 2000)
    assert (exchange.kind, exchange.vectors) == (CollectiveKind.ALL_TO_ALL, ((500, 1500), (500, 1500)))
    assert any("launch, stream and thread order of the linked trace (2 files)" in note for note in checked.trace.notes)


# --- damage


def survives(data, name="job.0.et"):
    """Whatever the bytes: a trace, or TraceError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            check(load({"name": "chakra", "path": str(path), "replicate_ranks": 2}))
        except TraceError:
            return False
    return True


def sample():
    values = str([json.dumps([{"pg_name": "1", "ranks": []}])])
    return et(
        node(9, "metadata", values=values),
        comp(1, num_ops=10**12, inputs=("string_list", ["a", "b"])),
        coll(2, data=[1], ctrl=[1], pg_name="1"),
        coll(300, kind="broadcast", size=2**40, data=[1, 2]),
    )


def test_a_file_cut_at_any_byte_is_refused_unless_it_ends_between_messages():
    data = sample()
    ends = {offset + len(body) for offset, body in wire.frames(data, "")}
    for cut in range(len(data)):
        whole = data[:cut]
        assert not survives(whole) or cut in ends, cut
    for cut in ends:
        assert sum(1 for _ in wire.frames(data[:cut], "")) >= 1


def test_gzip_cut_at_any_byte_is_refused():
    data = gzip.compress(sample(), mtime=0)
    for cut in range(1, len(data)):
        assert not survives(data[:cut]), cut


def test_v1_and_json_cut_at_any_byte_never_crash():
    first = v1({"id": 1, "name": "a", "node_type": 3, "simulated_run_time": 4}, {"id": 2, "name": "b", "node_type": 3})
    text = json.dumps({"nodes": [{"id": 1, "name": "a", "node_type": "comp_node"}]}).encode()
    for data in (first, text):
        for cut in range(len(data)):
            survives(data[:cut])


FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@FUZZ
@given(st.binary(max_size=200))
def test_random_bytes_never_crash(data):
    survives(data)
    survives(et() + data)


@FUZZ
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6), st.integers(0, 10**6), st.booleans()
)
def test_mutated_traces_never_crash(changes, cut, shorten):
    data = bytearray(sample())
    for place, value in changes:
        data[place % len(data)] = value
    survives(bytes(data[: cut % len(data)] if shorten else data))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    *("id", "Id", "name", "Name", "node_type", "NodeType", "type", "data_deps", "dataDeps", "ctrl_deps", "runtime"),
    *("comm_type", "comm_size", "comm_group", "pg_name", "is_cpu_op", "comm_src", "comm_dst", "attr", "version"),
    *("ts", "cat", "exclusive_dur", "sync_dep", "inputs", "attrs", "schema", "stream", "tid", "in_split_size"),
]
USUAL = st.sampled_from([1, 4, 7, "1", "comp_node", "coll_comm_node", "ALL_REDUCE", "COMM_COLL_NODE", [], [1]])
json_node = st.dictionaries(st.sampled_from(KEYS), USUAL | json_values, max_size=8)


@FUZZ
@given(st.lists(json_node, max_size=4), st.sampled_from(["workload_graph", "nodes", "stream", "traceEvents"]))
def test_odd_json_never_crashes(nodes, form):
    if form == "stream":
        data = json.dumps({"version": ""}) + "".join(map(json.dumps, nodes))
    else:
        data = json.dumps({form: nodes})
    survives(data.encode())


@FUZZ
@given(json_values)
def test_any_json_never_crashes(value):
    survives(json.dumps(value).encode())


@FUZZ
@given(st.integers(0, 7), st.sampled_from(KEYS), json_values | USUAL, st.booleans())
def test_odd_values_in_a_linked_trace_never_crash(place, key, value, remove):
    document = linked_document()
    if remove:
        document["nodes"][place].pop(key, None)
    else:
        document["nodes"][place][key] = value
    survives(json.dumps(document).encode())
