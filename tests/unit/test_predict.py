"""The prediction of an iteration: textbook times of single calls, overlap, lanes, and cards that are shared."""

from __future__ import annotations

import pytest

from genie.collectives.config import CollectivesConfig
from genie.collectives.lower import lower
from genie.engine.predict import predict
from genie.errors import PlanError
from genie.workload.check import check
from genie.workload.trace import CollectiveKind as Kind
from genie.workload.trace import Operator, OpKind, RankTrace, Trace

MS = 1_000_000
RATE = 8_000_000  # 1 byte a µs
US = 1000


def collective(number, kind, size, deps=(), **more):
    return Operator(number, kind.value, OpKind.COLLECTIVE, deps, collective=kind, bytes=size, **more)


def compute(number, duration_ns, deps=()):
    return Operator(number, "compute", OpKind.COMPUTE, deps, duration_ns=duration_ns)


def run(make, world=4, hosts=None, latency_ns=0, comms=None, **config):
    ranks = [RankTrace(rank, make(rank), "made up") for rank in range(world)]
    checked = check(Trace(ranks, {"": tuple(range(world)), **(comms or {})}))
    programs = lower(checked, CollectivesConfig(small_bytes=0, **config))
    hosts = hosts or [f"h{rank}" for rank in range(world)]
    return predict(programs, hosts, dict.fromkeys(hosts, RATE), latency_ns)


@pytest.mark.parametrize(
    ("kind", "size", "config", "bytes_a_card", "hops"),
    [
        (Kind.ALL_REDUCE, 4000, {}, 6000, 6),
        (Kind.ALL_REDUCE, 4000, {"all_reduce": "halving_doubling"}, 6000, 4),
        (Kind.ALL_GATHER, 1000, {}, 3000, 3),
        (Kind.REDUCE_SCATTER, 4000, {}, 3000, 3),
        (Kind.ALL_TO_ALL, 4000, {}, 3000, 1),
        (Kind.ALL_TO_ALL, 4000, {"all_to_all": "pairwise"}, 3000, 3),
        (Kind.GATHER, 1000, {}, 3000, 1),
        (Kind.BARRIER, 0, {}, 0, 2),
    ],
    ids=["ring", "halving-doubling", "all-gather", "reduce-scatter", "direct", "pairwise", "gather", "barrier"],
)
def test_single_calls_take_hops_times_latency_plus_bytes_over_rate(kind, size, config, bytes_a_card, hops):
    found = run(lambda _: [collective(1, kind, size)], latency_ns=50 * US, **config)
    assert found.busiest_host_ns == bytes_a_card * US
    assert found.iteration_ns == bytes_a_card * US + hops * 50 * US
    assert found.exact


def test_a_chain_is_pipelined_by_message():
    """Broadcast of 1000 bytes over three hops, in messages of 100: 1000 + 2 * 100 bytes' time."""
    found = run(lambda _: [collective(1, Kind.BROADCAST, 1000)], chunk_bytes=100)
    assert found.iteration_ns == 1200 * US


def test_ranks_of_one_host_use_no_card():
    found = run(lambda _: [collective(1, Kind.ALL_REDUCE, 4000)], hosts=["a", "a", "b", "b"])
    assert found.host_tx_bytes == {"a": 6000, "b": 6000}
    assert sum(found.sent_bytes) == 24000


def test_overlapping_calls_share_a_card():
    alone = run(lambda _: [collective(1, Kind.ALL_REDUCE, 4000)])
    both = run(
        lambda _: [collective(1, Kind.ALL_REDUCE, 4000), collective(2, Kind.ALL_REDUCE, 4000, comm="x")],
        comms={"x": (0, 1, 2, 3)},
    )
    assert (alone.iteration_ns, both.iteration_ns) == (6 * MS, 12 * MS)


def test_compute_overlaps_communication_but_not_itself():
    found = run(lambda _: [compute(1, 4 * MS), compute(2, 3 * MS), collective(3, Kind.ALL_REDUCE, 4000)])
    assert found.iteration_ns == 7 * MS
    assert found.compute_ns == (7 * MS,) * 4


def test_a_collective_waits_for_its_slowest_rank():
    found = run(lambda rank: [compute(1, rank * MS), collective(2, Kind.ALL_REDUCE, 4000, (1,))])
    assert found.iteration_ns == 9 * MS
    assert found.compute_ns == (0, MS, 2 * MS, 3 * MS)


def test_a_root_does_not_wait_for_who_listens():
    def make(rank):
        if rank == 0:
            return [collective(1, Kind.BROADCAST, 1000), compute(2, 5 * MS, (1,))]
        return [compute(3, 4 * MS), collective(1, Kind.BROADCAST, 1000, (3,))]

    assert run(make, world=2).iteration_ns == 6 * MS


@pytest.mark.parametrize(("receiver_ms", "end_ms"), [(0, 3), (2, 3), (9, 9)], ids=["early", "meanwhile", "late"])
def test_a_message_is_there_when_it_was_sent_in_time(receiver_ms, end_ms):
    def make(rank):
        if rank == 0:
            return [compute(1, 2 * MS), Operator(2, "send", OpKind.SEND, (1,), bytes=1000, peer=1)]
        return [compute(1, receiver_ms * MS), Operator(2, "receive", OpKind.RECV, (1,), bytes=1000, peer=0)]

    assert run(make, world=2).iteration_ns == end_ms * MS


def test_too_large_calls_are_said_to_be_estimates(monkeypatch):
    monkeypatch.setattr("genie.engine.predict.MOST_STEPS", 10)
    found = run(lambda _: [collective(1, Kind.ALL_REDUCE, 4000)], latency_ns=7)
    assert (found.iteration_ns, found.exact) == (6 * MS + 7, False)


def test_senseless_rates_and_hosts_are_refused():
    checked = check(Trace([RankTrace(0, [compute(1, 5)], "x")], {"": (0,)}))
    programs = lower(checked, CollectivesConfig())
    assert predict(programs, ["a"], {}, 0).iteration_ns == 5
    with pytest.raises(PlanError, match="the rate of host a is 0"):
        predict(programs, ["a"], {"a": 0}, 0)
    with pytest.raises(PlanError, match="1 programs, but hosts for 2 ranks"):
        predict(programs, ["a", "b"], {}, 0)
