"""Lowering: algorithms, channels and totals of every call, lanes of every operator, shared templates."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genie.collectives import ALGORITHMS, ROOTED, able
from genie.collectives.check import check as check_templates
from genie.collectives.check import check_sizes
from genie.collectives.config import CollectivesConfig
from genie.collectives.lower import channels_for, lower
from genie.engine.encode import Endpoint, EngineSettings, decode, encode
from genie.errors import ConfigError, PlanError
from genie.workload.check import check
from genie.workload.trace import CollectiveKind as Kind
from genie.workload.trace import Operator, OpKind, RankTrace, Trace


def collective(number, kind, size, deps=(), comm="", root=0, vector=None):
    return Operator(
        number, f"{kind.value} {number}", OpKind.COLLECTIVE, deps, collective=kind, bytes=size, comm=comm, root=root,
        per_peer_bytes=vector,
    )  # fmt: skip


def trace(make, world=4, comms=None):
    ranks = [RankTrace(rank, make(rank), "made up") for rank in range(world)]
    return check(Trace(ranks, {"": tuple(range(world)), **(comms or {})}))


@pytest.mark.parametrize(
    ("kind", "size", "total"),
    [
        (Kind.ALL_REDUCE, 1001, 1001),
        (Kind.REDUCE, 1001, 1001),
        (Kind.BROADCAST, 1001, 1001),
        (Kind.REDUCE_SCATTER, 1001, 1001),
        (Kind.ALL_TO_ALL, 1001, 1001),
        (Kind.ALL_GATHER, 1001, 4004),
        (Kind.GATHER, 1001, 4004),
        (Kind.SCATTER, 1001, 4004),
        (Kind.BARRIER, 0, 0),
    ],
    ids=lambda value: getattr(value, "value", None),
)
@pytest.mark.parametrize("small", [0, 10**9], ids=["large", "small"])
def test_every_kind_is_lowered_to_proved_templates_and_the_right_total(kind, size, total, small):
    programs = lower(trace(lambda _: [collective(1, kind, size)]), CollectivesConfig(small_bytes=small))
    assert [program.calls[0].bytes for program in programs] == [total] * 4
    templates = [program.templates[0][1] for program in programs]
    check_templates(templates, kind)
    check_sizes(templates, total)


def test_shards_of_gathers_arrive_whole():
    """Shards of 1001 bytes: a total of n shards cut in n blocks gives everybody exactly its shard."""
    programs = lower(trace(lambda _: [collective(1, Kind.ALL_GATHER, 1001)], world=3), CollectivesConfig(small_bytes=0))
    sent = check_sizes([program.templates[0][1] for program in programs], programs[0].calls[0].bytes)
    assert sent == [2002, 2002, 2002]


def test_uneven_all_to_all_knows_what_comes_in():
    rows = [(0, 5, 7), (1, 0, 2), (3, 4, 0)]
    checked = trace(lambda rank: [collective(1, Kind.ALL_TO_ALL, sum(rows[rank]), vector=rows[rank])], world=3)
    programs = lower(checked, CollectivesConfig())
    assert [program.calls[0].vector for program in programs] == [
        (0, 5, 7, 0, 1, 3), (1, 0, 2, 5, 0, 4), (3, 4, 0, 7, 2, 0),
    ]  # fmt: skip
    templates = [program.templates[0][1] for program in programs]
    assert check_sizes(templates, 0, [program.calls[0].vector for program in programs]) == [12, 3, 7]


def test_uneven_all_to_all_of_a_sub_communicator_in_its_own_order():
    rows = {3: (0, 8), 1: (9, 0)}
    checked = trace(
        lambda rank: (
            [collective(1, Kind.ALL_TO_ALL, sum(rows[rank]), comm="tp", vector=rows[rank])] if rank in rows else []
        ),
        comms={"tp": (3, 1)},
    )
    programs = lower(checked, CollectivesConfig())
    assert programs[3].calls[0].vector == (0, 8, 0, 9)
    assert programs[1].calls[0].vector == (9, 0, 8, 0)
    assert programs[3].comms["tp"] == (3, 1)
    assert programs[3].templates[0][1].rank == 0
    assert not programs[0].ops


def test_templates_are_shared_by_calls_of_the_same_shape():
    def make(_):
        sizes = [300_000, 200_000, 300_001, 10]
        return [collective(number, Kind.ALL_REDUCE, size) for number, size in enumerate(sizes)] + [
            collective(10 + root, Kind.BROADCAST, 300_000, root=root) for root in (0, 1, 0)
            for _ in (0,)
        ][:2]  # fmt: skip

    programs = lower(trace(make), CollectivesConfig())
    assert [call.template for call in sorted(programs[0].calls, key=lambda call: call.op)] == [0, 0, 0, 1, 2, 3]
    assert [template.algorithm for _, template in programs[0].templates] == [
        "ring", "halving_doubling", "ring", "ring",
    ]  # fmt: skip


def test_messages_are_lowered_on_the_world_with_world_peers():
    def make(rank):
        if rank == 1:
            return [Operator(5, "s", OpKind.SEND, bytes=9, peer=3, tag=2)]
        return [Operator(6, "r", OpKind.RECV, bytes=9, peer=1, tag=2)] if rank == 3 else []

    programs = lower(trace(make), CollectivesConfig(channels=4))
    (send,), (receive,) = programs[1].calls, programs[3].calls
    assert (send.call_id, send.bytes, send.comm) == (receive.call_id, receive.bytes, receive.comm) == (0, 9, "")
    assert [step.peer for step in programs[1].templates[0][1].steps] == [3]
    assert [step.peer for step in programs[3].templates[0][1].steps] == [1]
    assert programs[1].ops[0].lane == -1


def test_lanes_follow_the_kinds_and_communicators_are_ordered():
    def make(_):
        return [
            Operator(1, "gpu", OpKind.COMPUTE, duration_ns=10, stream=7),
            Operator(2, "gpu too", OpKind.COMPUTE, duration_ns=10, stream=8),
            Operator(3, "cpu", OpKind.COMPUTE, duration_ns=10, is_cpu=True),
            Operator(4, "load", OpKind.MEMORY, duration_ns=10),
            Operator(5, "note", OpKind.NOOP),
            collective(6, Kind.BARRIER, 0),
            collective(7, Kind.BARRIER, 0, comm="x"),
        ]

    def lanes(program):
        names = {op.trace_id: program.lanes[op.lane] if op.lane >= 0 else None for op in program.ops}
        return {number: (lane.name, lane.ordered) if lane else None for number, lane in names.items()}

    checked = trace(make, comms={"x": (0, 1, 2, 3)})
    expected = {
        1: ("compute", False), 2: ("compute", False), 3: ("cpu", False), 4: ("memory", False), 5: None,
        6: ("comm world", True), 7: ("comm x", True),
    }  # fmt: skip
    assert lanes(lower(checked, CollectivesConfig())[0]) == expected
    recorded = {**expected, 1: ("compute 7", False), 2: ("compute 8", False)}
    assert lanes(lower(checked, CollectivesConfig(), streams="recorded")[0]) == recorded
    with pytest.raises(ConfigError, match=r"workload\.streams"):
        lower(checked, CollectivesConfig(), streams="some")


def test_ordered_lanes_see_the_same_sequence_of_calls_on_every_rank():
    def make(rank):
        calls = [collective(number, Kind.ALL_REDUCE, 100 + number) for number in range(6)]
        compute = [Operator(20 + n, "c", OpKind.COMPUTE, (n,), duration_ns=5) for n in range(rank)]
        return calls + compute

    programs = lower(trace(make), CollectivesConfig())
    sequences = []
    for program in programs:
        ordered = [op for op in program.ops if op.lane >= 0 and program.lanes[op.lane].ordered]
        sequences.append([program.calls[op.call].call_id for op in ordered])
        assert all(need < index for index, op in enumerate(program.ops) for need in op.needs)
    assert all(sequence == sequences[0] for sequence in sequences)


@pytest.mark.parametrize(
    ("total", "least", "expected"),
    [(0, 1, 1), (64 * 1024, 1, 1), (128 * 1024, 1, 2), (10**9, 1, 8), (0, 2, 2)],
)
def test_small_calls_use_fewer_channels(total, least, expected):
    assert channels_for(total, CollectivesConfig(channels=8), least=least) == expected


def test_the_cut_of_channels_can_be_switched_off():
    assert channels_for(0, CollectivesConfig(channels=8, channel_min_bytes=0)) == 8


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"all_reduce": "rnig"}, "collective.all_reduce: unknown algorithm 'rnig': did you mean 'ring'?"),
        ({"all_to_all": "ring"}, "collective.all_to_all: ring cannot do all_to_all: choose one of: direct, pairwise"),
        (
            {"all_reduce": "double_binary_tree"},
            "collective.all_reduce: double_binary_tree needs collective.channels of 2",
        ),
    ],
    ids=["typo", "cannot", "channels"],
)
def test_choices_are_refused_even_where_no_call_uses_them(config, complaint):
    with pytest.raises(ConfigError) as error:
        lower(trace(lambda _: [Operator(1, "note", OpKind.NOOP)]), CollectivesConfig(**config))
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"channels": 0}, "channels: must lie between 1 and 64, found 0"),
        ({"chunk_bytes": 0}, "chunk_bytes: must lie between 1 and 2^31-1 bytes, found 0"),
        ({"window_messages": -1}, "window_messages: must lie between 0 and 1048576, found -1"),
        ({"peers_in_flight": -1}, "peers_in_flight: must be 0 or more, found -1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_numbers_out_of_range_are_named(keys, complaint):
    with pytest.raises(ConfigError) as error:
        CollectivesConfig(**keys)
    assert str(error.value) == complaint


def test_a_buffer_beyond_63_bits_is_refused_by_node():
    with pytest.raises(PlanError, match=r"all_gather 'all_gather 1' \(node 1 of rank 0\)"):
        lower(trace(lambda _: [collective(1, Kind.ALL_GATHER, 2**62)]), CollectivesConfig())


@st.composite
def jobs(draw):
    """A job of random collectives on random communicators, the same on all their ranks, with a random configuration."""
    world = draw(st.integers(2, 7))
    comms = {"": tuple(range(world))}
    for name in ("a", "b"):
        comms[name] = tuple(draw(st.permutations(range(world)))[: draw(st.integers(2, world))])
    operators = [[] for _ in range(world)]
    for number in range(draw(st.integers(1, 6))):
        comm, kind = draw(st.sampled_from(sorted(comms))), draw(st.sampled_from(sorted(Kind)))
        members = comms[comm]
        size = draw(st.one_of(st.integers(0, 40), st.integers(0, 2**33)))
        root = draw(st.integers(0, len(members) - 1))
        uneven = kind is Kind.ALL_TO_ALL and draw(st.booleans())
        for rank in members:
            vector = tuple(draw(st.integers(0, 2**33)) for _ in members) if uneven else None
            total = sum(vector) if vector is not None else 0 if kind is Kind.BARRIER else size
            deps = tuple(op.id for op in operators[rank][-1:]) if draw(st.booleans()) else ()
            operators[rank].append(collective(number, kind, total, deps, comm, root if kind in ROOTED else 0, vector))
    channels = draw(st.integers(1, 4))
    choices = {
        kind.value: draw(st.sampled_from(["auto", *(n for n in able(kind) if ALGORITHMS[n].min_channels <= channels)]))
        for kind in Kind
    }
    config = CollectivesConfig(
        **choices,
        channels=channels,
        channel_min_bytes=draw(st.sampled_from([0, 100, 65536])),
        chunk_bytes=draw(st.integers(2**12, 2**20)),
        peers_in_flight=draw(st.integers(0, 3)),
    )
    ranks = [RankTrace(rank, ops, "made up") for rank, ops in enumerate(operators)]
    return Trace(ranks, comms), config


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(jobs())
def test_any_job_lowers_to_calls_that_are_proved_and_blobs_that_agree(drawn):
    made, config = drawn
    checked = check(made)
    programs = lower(checked, config)
    for call in checked.calls:
        parts = [next(c for c in programs[rank].calls if c.call_id == call.call_id) for rank in call.ranks]
        templates = [programs[r].templates[part.template][1] for r, part in zip(call.ranks, parts, strict=True)]
        check_templates(templates, call.kind, call.root)
        check_sizes(templates, parts[0].bytes, [part.vector for part in parts], config.chunk_bytes)
        assert len({(part.bytes, part.chunk_bytes) for part in parts}) == 1
    blobs = [encode(p, EngineSettings(bytes(16), seed=3), [Endpoint(9)] * made.world) for p in programs]
    ends = set()
    for rank, blob in enumerate(blobs):
        header, sections = decode(blob)
        assert header["event_capacity"] >= len(programs[rank].ops) + 1
        for row in sections["connections"]:
            ends.add((rank, int(row["peer"]), int(row["channel"])))
    assert all((peer, rank, channel) in ends for rank, peer, channel in ends)
