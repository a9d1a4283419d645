"""Program blobs are what docs/formats.md §1 says, byte for byte, and fit together over the ranks."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from genie.collectives import build
from genie.collectives.config import CollectivesConfig
from genie.collectives.lower import lower
from genie.collectives.program import Lane, ProgramOp, RankProgram
from genie.engine import wire
from genie.engine.encode import Endpoint, EngineSettings, decode, encode, event_capacity
from genie.errors import PlanError
from genie.workload.check import check
from genie.workload.trace import CollectiveKind, Operator, OpKind, RankTrace, Trace

SETTINGS = EngineSettings(run_id=bytes(range(16)), iterations=3, seed=7)


def endpoints(world: int, on_host: int = 1) -> list[Endpoint]:
    return [Endpoint(0x0A000001 + rank // on_host) for rank in range(world)]


def job(world: int = 4, config: CollectivesConfig | None = None) -> list[RankProgram]:
    ranks = []
    for rank in range(world):
        ops = [
            Operator(10, "compute", OpKind.COMPUTE, duration_ns=1000),
            Operator(11, "reduce", OpKind.COLLECTIVE, (10,), collective=CollectiveKind.ALL_REDUCE, bytes=1_000_003),
            Operator(
                12,
                "exchange",
                OpKind.COLLECTIVE,
                (10, 11),
                collective=CollectiveKind.ALL_TO_ALL,
                bytes=sum(7 * rank + peer for peer in range(world)),
                per_peer_bytes=tuple(7 * rank + peer for peer in range(world)),
            ),
        ]
        if rank == 0:
            ops.append(Operator(13, "send", OpKind.SEND, (12,), bytes=5, peer=world - 1, tag=1))
        if rank == world - 1:
            ops.append(Operator(13, "recv", OpKind.RECV, (), bytes=5, peer=0, tag=1))
        ranks.append(RankTrace(rank, ops, "made up"))
    return lower(check(Trace(ranks, {"": tuple(range(world))})), config or CollectivesConfig())


def test_header_fields_are_where_the_format_says():
    blob = encode(job()[2], SETTINGS, endpoints(4))
    magic, version, flags, rank, world, iterations, window = struct.unpack_from("<8sIIIIII", blob)
    assert (magic, version, flags, rank, world, iterations, window) == (b"GNIEPRG1", 2, 2, 2, 4, 3, 0)
    assert struct.unpack_from("<QQ", blob, 32) == (30_000_000_000, 0)
    assert struct.unpack_from("<IHH", blob, 56) == (0x0A000003, 0, 10)
    assert blob[80:112] == bytes(range(16)) + bytes(16)
    assert struct.unpack_from("<Q", blob, 120) == (1_000_000,)
    assert blob[208:256] == b"tcp".ljust(48, b"\0")


def test_the_transport_is_told_its_settings_and_only_what_it_can_read():
    header, sections = decode(encode(job()[2], SETTINGS, endpoints(4), {"device": "mlx5_0", "timeout": "20"}))
    assert int(header["counts"][9]) == len("device=mlx5_0\ntimeout=20\n")
    assert sections["settings"].tobytes() == b"device=mlx5_0\ntimeout=20\n"
    for bad in ({"a=b": "1"}, {"": "1"}, {"a": "1\nb=2"}):
        with pytest.raises(PlanError, match="cannot be written as KEY=VALUE"):
            encode(job()[2], SETTINGS, endpoints(4), bad)


def test_sections_follow_each_other_without_gaps_and_decode_again():
    program = job()[3]
    header, sections = decode(encode(program, SETTINGS, endpoints(4)))
    assert [len(sections[name]) for name in wire.SECTIONS] == list(header["counts"])
    assert list(sections["ops"]["trace_id"]) == [op.trace_id for op in program.ops]
    assert list(sections["calls"]["bytes"]) == [call.bytes for call in program.calls]
    for op, row in zip(program.ops, sections["ops"], strict=True):
        assert row["dep_count"] == len(op.needs)
        assert row["call"] == (op.call if op.call >= 0 else wire.NONE)
    successors = {
        (index, int(edge))
        for index, row in enumerate(sections["ops"])
        for edge in sections["out_edges"][row["out_begin"] : row["out_end"]]
    }
    assert successors == {(need, index) for index, op in enumerate(program.ops) for need in op.needs}
    uneven = next(row for row in sections["calls"] if row["vector_len"])
    begin = int(uneven["vector_begin"])
    assert list(sections["vectors"][begin : begin + 8]) == [21, 22, 23, 24, 3, 10, 17, 24]


def test_steps_point_at_their_connection_and_their_needs():
    program = job(config=CollectivesConfig(channels=2))[1]
    _, sections = decode(encode(program, SETTINGS, endpoints(4)))
    for (comm, template), row in zip(program.templates, sections["templates"], strict=True):
        rows = sections["steps"][row["step_begin"] : row["step_end"]]
        for step, packed in zip(template.steps, rows, strict=True):
            connection = sections["connections"][packed["connection"]]
            assert connection["peer"] == program.comms[comm][step.peer]
            assert connection["channel"] == step.channel
            needs = sections["needs"][packed["need_begin"] : packed["need_end"]]
            assert [(need["step"], need["mode"]) for need in needs] == [(n.step, n.mode) for n in step.needs]


def test_the_lower_rank_accepts_and_both_sides_list_the_same_connections():
    tables = [
        decode(encode(program, SETTINGS, endpoints(5)))[1]["connections"]
        for program in job(5, CollectivesConfig(channels=3))
    ]
    ends = {(rank, int(row["peer"]), int(row["channel"])): row for rank, table in enumerate(tables) for row in table}
    for (rank, peer, channel), row in ends.items():
        assert (peer, rank, channel) in ends
        assert row["role"] == (wire.ROLE_CONNECT if rank > peer else wire.ROLE_ACCEPT)


@pytest.mark.parametrize("on_host", [1, 2, 6])
def test_seeded_source_ports_never_meet_on_a_host_and_repeat(on_host):
    programs = job(6, CollectivesConfig(channels=4))
    where = endpoints(6, on_host)

    def ports(seed):
        found = []
        for program in programs:
            table = decode(encode(program, EngineSettings(bytes(16), seed=seed), where))[1]["connections"]
            found += [
                (where[program.rank].ipv4, int(row["local_port"])) for row in table if row["role"] == wire.ROLE_CONNECT
            ]
        return found

    assert len(set(ports(1))) == len(ports(1))
    assert ports(1) == ports(1) != ports(2)
    assert all(port in range(10_000, 32_768) for _, port in ports(1))
    assert {port for _, port in ports(None)} == {0}


def test_more_connections_than_source_ports_are_refused():
    world = 200
    ring = build("ring", CollectiveKind.ALL_REDUCE, world - 1, world, 1)
    program = RankProgram(world - 1, world, (), (), (), (("", ring),), {"": tuple(range(world))})
    assert encode(program, SETTINGS, endpoints(world))
    with pytest.raises(PlanError, match="more connections than the 22768 source ports"):
        encode(program, SETTINGS, [Endpoint(1)] * world)


def test_event_capacity_counts_every_record():
    program = job()[1]
    with_messages = event_capacity(program, SETTINGS)
    without = event_capacity(program, EngineSettings(bytes(16), iterations=3, record_messages=False))
    # ring over 4: 6 sends and 6 receives of 250 kB, all below a chunk; all-to-all: 3 and 3
    assert without == 3 * (3 + 1)
    assert with_messages == without + 3 * (12 + 6)


def test_what_the_engine_would_refuse_is_refused_by_node():
    long = ProgramOp(9, "long", 2**61, -1, -1, ())
    with pytest.raises(PlanError, match=r"'long' \(node 9\) lasts 2305843009213693952 ns"):
        encode(RankProgram(0, 1, (long,), (), (), (), {"": (0,)}), SETTINGS, [Endpoint(1)])
    many = job(config=CollectivesConfig(chunk_bytes=1))[0]
    calls = tuple(replace(call, bytes=2**40) for call in many.calls)
    with pytest.raises(PlanError, match=r"'reduce' \(node 11\) cuts 1099511627776 bytes into messages of 1"):
        encode(replace(many, calls=calls), SETTINGS, endpoints(4))


@pytest.mark.parametrize(
    ("where", "complaint"),
    [
        ([Endpoint(1)] * 3, "4 ranks but 3 endpoints"),
        ([Endpoint(1)] * 3 + [Endpoint(1, 65536)], "rank 3 cannot listen on port 65536"),
    ],
    ids=["one missing", "port"],
)
def test_endpoints_must_fit_the_job(where, complaint):
    with pytest.raises(PlanError, match=complaint):
        encode(job()[0], SETTINGS, where)


def test_settings_out_of_range_are_named():
    with pytest.raises(PlanError, match="iterations"):
        EngineSettings(bytes(16), iterations=0)
    with pytest.raises(PlanError, match="run_id"):
        EngineSettings(b"short")
    with pytest.raises(PlanError, match="longer than 15 bytes"):
        EngineSettings(bytes(16), congestion_control="x" * 16)


@pytest.mark.parametrize(
    ("blob", "complaint"),
    [(b"nonsense" * 40, "not a program blob"), (b"GNIEPRG1" + struct.pack("<I", 9) + bytes(300), "version 9")],
)
def test_decode_refuses_what_it_does_not_know(blob, complaint):
    with pytest.raises(PlanError, match=complaint):
        decode(blob)


def test_a_blob_cut_short_is_refused():
    blob = encode(job()[0], SETTINGS, endpoints(4))
    with pytest.raises(PlanError, match=r"ends within|should have"):
        decode(blob[:-8])


def test_empty_and_chained_programs_encode():
    empty = RankProgram(0, 1, (), (), (), (), {"": (0,)})
    header, _ = decode(encode(empty, SETTINGS, [Endpoint(1)]))
    assert not header["counts"].any()
    chain = tuple(ProgramOp(i, "", 0, -1, 0, (i - 1,) if i else ()) for i in range(1000))
    _, sections = decode(
        encode(RankProgram(0, 1, chain, (Lane("c", False),), (), (), {"": (0,)}), SETTINGS, [Endpoint(1)])
    )
    assert np.array_equal(sections["out_edges"], np.arange(1, 1000))


def test_a_small_program_is_packed_as_it_always_was():
    """The golden blob is for engines too: what reads it must not notice a change of this side."""
    blob = encode(job(3)[2], SETTINGS, [Endpoint(0x0A000001, 7001), Endpoint(0x0A000002), Endpoint(0x0A000003)])
    golden = Path(__file__).parents[1] / "golden" / "program_rank2_of_3.hex"
    lines = [blob[at : at + 16].hex(" ", 4) for at in range(0, len(blob), 16)]
    assert "\n".join(lines) + "\n" == golden.read_text()
