"""docs/metrics.md, checked by hand-made events whose numbers can be worked out on paper."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rundir_maker import (
    FLAPPING,
    IN_EFFECT,
    MS,
    SPIKES,
    EventWriter,
    T,
    make_run,
    operators,
    plan,
    write_samples,
)

from genie.clocks import ClockLook, Clocks, HostClock
from genie.errors import GenieError
from genie.results.collectives import busbw_factor, call_facts
from genie.results.metrics import covered, measure
from genie.results.records import FaultOutcome, JobOperators, OperatorRecord, RankOperators, to_plain
from genie.results.rundir import HostRecord, RunDir

GOLDEN = Path(__file__).parent.parent / "golden" / "report"


def run_of(tmp_path, writers, *, plan_changes=None, ops=None):
    run = RunDir.create(tmp_path, "x", argv=(), reproduce="", seed=1, hashes={}, config_yaml="")
    run.write_plan(plan(ports=(), **(plan_changes or {})))
    run.write_operators(ops or operators())
    for writer in writers:
        writer.write(run.event_path(writer.rank))
    return run


def two(iterations, *, starts=(1_000_000_000, 1_000_000_000)):
    """Writers of two ranks; ``iterations`` is a list of ((start, end) of rank 0, (start, end) of rank 1) in ms."""
    writers = [EventWriter(rank, 2, start=starts[rank]) for rank in range(2)]
    for number, spans in enumerate(iterations):
        for writer, (start, end) in zip(writers, spans, strict=True):
            writer.iteration(number, start * MS, end * MS)
    return writers


def test_an_iteration_lasts_from_the_latest_end_to_the_next_latest_end(tmp_path):
    writers = two([((0, 10), (0, 12)), ((10, 21), (12, 20)), ((21, 30), (20, 33)), ((30, 41), (33, 40))])
    metrics = measure(run_of(tmp_path, writers))
    assert metrics.iteration.warmup_ns == (12 * MS,)
    assert metrics.iteration.each_ns == (9 * MS, 12 * MS, 8 * MS)
    assert metrics.iteration.median.value == 9 * MS
    assert metrics.iteration.p99.value == 12 * MS


def test_clocks_of_different_hosts_meet_at_the_agreed_start(tmp_path):
    writers = two([((0, 10), (0, 12))] * 1, starts=(5, 9_000_000_000_000))
    metrics = measure(run_of(tmp_path, writers, plan_changes={"iterations": 1, "warmup": 0, "one_clock": False}))
    assert metrics.iteration.each_ns == (12 * MS,)
    assert metrics.start_mono_ns is None


def test_hosts_clocks_that_were_compared_are_one(tmp_path):
    """h1's clock is 1000 s ahead and gains 2 ms over the 100 ms between the looks, which its events have in them."""
    ahead = 1_000 * 10**9
    writers = two([((0, 50), (0, 51))], starts=(T, T + ahead))  # it ends at 50 ms: 1 ms of the 51 is drift
    writers[0].add(2, 0, 10 * MS, 10 * MS, 11 * MS, peer=1, size=5, call=0)
    writers[1].add(3, 0, 25 * MS + MS // 2, 25 * MS + MS // 2, 25 * MS + MS // 2, peer=0, size=5, call=0)
    run = run_of(tmp_path, writers, plan_changes={"iterations": 1, "warmup": 0, "one_clock": False})
    clock = HostClock(ClockLook(T, ahead, 1000), ClockLook(T + 100 * MS, ahead + 2 * MS, 3000))
    run.write_clocks(Clocks(T, {"h0": HostClock(ClockLook(T, 5, 10)), "h1": clock}))
    metrics = measure(run)
    assert metrics.iteration.each_ns == pytest.approx((50 * MS,), abs=0.03 * MS)
    assert metrics.messages.basis == "receiver"
    assert metrics.messages.max_ns == pytest.approx(15 * MS, abs=0.02 * MS)
    assert (metrics.start_mono_ns, metrics.clock_error_ns) == (T, 3000)


def test_an_iteration_that_one_rank_did_not_end_is_not_counted(tmp_path):
    writers = two([((0, 10), (0, 10)), ((10, 20), (10, 20))])
    writers[0].iteration(2, 20 * MS, 30 * MS)
    metrics = measure(run_of(tmp_path, writers))
    assert metrics.iterations_done == 2
    assert metrics.iteration.each_ns == (10 * MS,)
    assert "2 of 4 iterations were completed by all ranks" in metrics.flags


def test_only_warm_up_measures_nothing_and_says_so(tmp_path):
    metrics = measure(run_of(tmp_path, two([((0, 10), (0, 10))]), plan_changes={"iterations": 1}))
    assert metrics.iteration is None
    assert any("warm-up" in flag for flag in metrics.flags)


@pytest.mark.parametrize(
    ("compute", "comm", "exposed"),
    [
        ([(0, 10)], [], 0),
        ([(0, 10)], [(5, 10)], 0),
        ([(0, 5)], [(5, 10)], 5),
        ([(0, 5)], [(3, 8)], 3),
        ([(2, 4), (6, 8)], [(0, 10)], 6),
        ([(0, 4)], [(2, 6), (5, 9), (8, 9)], 5),
        ([], [(1, 2), (1, 2), (4, 6)], 3),
        ([(0, 10), (2, 3)], [(0, 10)], 0),
    ],
    ids=["no communication", "hidden", "after", "partly", "between", "overlapping calls", "no compute", "two computes"],
)
def test_exposed_is_communication_while_nothing_computes(tmp_path, compute, comm, exposed):
    writers = two([((0, 10), (0, 10))])
    for writer in writers:
        for start, end in compute:
            writer.op(0, 0, start * MS, end * MS)
        for start, end in comm:
            writer.op(0, 1, start * MS, end * MS)
    metrics = measure(run_of(tmp_path, writers, plan_changes={"iterations": 1, "warmup": 0}))
    assert metrics.exposed_ns == (exposed * MS,)
    rank = metrics.ranks[0]
    assert rank.compute_ns + rank.exposed_ns + rank.idle_ns == 10 * MS


def test_the_union_of_intervals_is_that_of_counting_every_instant():
    rng = np.random.default_rng(7)
    for _ in range(50):
        starts = rng.integers(0, 100, size=rng.integers(0, 12))
        ends = starts + rng.integers(0, 30, size=len(starts))
        seen = np.zeros(200, dtype=bool)
        for start, end in zip(starts, ends, strict=True):
            seen[start:end] = True
        times, lengths = covered(starts.astype(np.int64), ends.astype(np.int64))
        for left, right in [(0, 200), (10, 50), (33, 34), (60, 60)]:
            assert np.interp(right, times, lengths) - np.interp(left, times, lengths) == seen[left:right].sum()


@pytest.mark.parametrize(
    ("kind", "ranks", "factor"),
    [
        ("all_reduce", 8, 1.75), ("all_gather", 8, 0.875), ("reduce_scatter", 8, 0.875), ("all_to_all", 4, 0.75),
        ("gather", 4, 0.75), ("scatter", 4, 0.75), ("broadcast", 8, 1), ("reduce", 8, 1), ("send_recv", 2, 1),
        ("all_reduce", 1, 1), ("barrier", 8, 1),
    ],
)  # fmt: skip
def test_bus_bandwidth_factors_are_those_of_nccl_tests(kind, ranks, factor):
    assert busbw_factor(kind, ranks) == factor


def one_call(kind, size, ranks, vectors=None):
    ops = []
    for rank in range(ranks):
        vector = vectors[rank] if vectors else None
        op = OperatorRecord(1, "x", "collective", kind, "g", size if vector is None else sum(vector), 0, 0, -1, vector)
        ops.append(RankOperators(rank, ("g",), (op,)))
    return call_facts(JobOperators(tuple(ops), {"": tuple(range(ranks)), "g": tuple(range(ranks))}))[0]


@pytest.mark.parametrize(
    ("kind", "size", "counted"),
    [
        ("all_reduce", 100, 100), ("reduce_scatter", 100, 100), ("all_to_all", 100, 100), ("broadcast", 100, 100),
        ("reduce", 100, 100), ("all_gather", 100, 400), ("gather", 100, 400), ("scatter", 100, 400),
    ],
)  # fmt: skip
def test_sizes_are_those_of_nccl_tests(kind, size, counted):
    assert one_call(kind, size, 4).bytes == counted


def test_an_uneven_all_to_all_counts_the_most_that_a_rank_sends_or_receives():
    fact = one_call("all_to_all", 0, 3, vectors=[(0, 10, 50), (5, 0, 60), (1, 1, 0)])
    assert (fact.bytes, fact.uneven) == (110, True)


def test_an_all_to_all_with_equal_entries_is_even():
    assert not one_call("all_to_all", 0, 2, vectors=[(5, 5), (5, 5)]).uneven


def test_collective_times_span_skew_and_bandwidth(tmp_path):
    writers = two([((0, 10), (0, 10))])
    writers[0].op(0, 1, 1 * MS, 9 * MS)
    writers[1].op(0, 1, 3 * MS, 9 * MS)
    metrics = measure(run_of(tmp_path, writers, plan_changes={"iterations": 1, "warmup": 0}))
    (row,) = metrics.collectives
    assert (row.kind, row.bytes, row.ranks, row.calls) == ("all_reduce", 1_000_000, 2, 1)
    assert (row.time_mean_ns, row.time_p99_ns) == (7 * MS, 8 * MS)
    assert (row.span_median_ns, row.transfer_median_ns, row.skew_median_ns) == (8 * MS, 6 * MS, 2 * MS)
    assert row.algbw_gbytes_per_s == pytest.approx(1e6 / 7e6)
    assert row.busbw_gbytes_per_s == pytest.approx(1e6 / 7e6)


def test_all_times_are_model_time_under_dilation(tmp_path):
    writers = two([((0, 10), (0, 10)), ((10, 30), (10, 30))])
    for writer in writers:
        writer.op(1, 1, 12 * MS, 22 * MS)
    metrics = measure(run_of(tmp_path, writers, plan_changes={"iterations": 2, "dilation": 10.0}))
    assert metrics.iteration.each_ns == (2 * MS,)
    assert metrics.exposed_ns == (1 * MS,)
    assert metrics.collectives[0].algbw_gbytes_per_s == pytest.approx(1.0)


def test_messages_are_paired_in_the_order_of_their_connection(tmp_path):
    writers = two([((0, 10), (0, 10))])
    for k in range(3):
        writers[0].add(2, 0, k * MS, k * MS, k * MS + 1, peer=1, size=5, call=0, message=0)
    for k in range(3):
        writers[1].add(3, 0, 0, 0, (2 * k + 1) * MS, peer=0, size=5, call=0, message=0)
    metrics = measure(run_of(tmp_path, writers, plan_changes={"iterations": 1, "warmup": 0}))
    assert (metrics.messages.count, metrics.messages.unpaired, metrics.messages.basis) == (3, 0, "receiver")
    assert (metrics.messages.p50_ns, metrics.messages.max_ns) == (2 * MS, 3 * MS)


def test_a_message_without_its_other_half_is_counted_not_guessed(tmp_path):
    writers = two([((0, 10), (0, 10))])
    for k in range(3):
        writers[0].add(2, 0, 0, 0, 1, peer=1, size=5, call=k)
    writers[1].add(3, 0, 0, 0, 4 * MS, peer=0, size=5, call=1)
    metrics = measure(run_of(tmp_path, writers, plan_changes={"iterations": 1, "warmup": 0}))
    assert (metrics.messages.count, metrics.messages.unpaired, metrics.messages.max_ns) == (1, 2, 4 * MS)
    assert any("2 message records" in flag for flag in metrics.flags)


def test_without_one_clock_messages_are_timed_at_the_sender(tmp_path):
    writers = two([((0, 10), (0, 10))])
    writers[0].add(2, 0, 0, 1, 3 * MS, peer=1, size=5, call=0)
    changes = {"iterations": 1, "warmup": 0, "one_clock": False}
    metrics = measure(run_of(tmp_path, writers, plan_changes=changes))
    assert (metrics.messages.basis, metrics.messages.max_ns) == ("sender", 3 * MS)


def test_the_rank_that_is_always_late_is_the_straggler(tmp_path):
    writers = two([((10 * i, 10 * i + 10), (10 * i, 10 * i + 10)) for i in range(4)])
    for i in range(4):
        writers[0].op(i, 1, (10 * i + 1) * MS, (10 * i + 9) * MS)
        writers[1].op(i, 1, (10 * i + 4) * MS, (10 * i + 9) * MS)
    metrics = measure(run_of(tmp_path, writers))
    assert metrics.straggler == 1
    assert metrics.ranks[1].lateness_ns == 3 * MS
    assert metrics.ranks[1].last_ratio == 1


def test_ranks_that_start_together_have_no_straggler(tmp_path):
    writers = two([((10 * i, 10 * i + 10), (10 * i, 10 * i + 10)) for i in range(4)])
    for i in range(4):
        for writer in writers:
            writer.op(i, 1, (10 * i + 1) * MS, (10 * i + 9) * MS)
    assert measure(run_of(tmp_path, writers)).straggler is None


def test_counters_that_were_not_read_are_none_not_zero(tmp_path):
    metrics = measure(run_of(tmp_path, two([((0, 10), (0, 10))] * 4)))
    fabric = metrics.fabric
    assert (fabric.retransmits, fabric.ce_marked, fabric.drops, metrics.cpu_busy_ratio) == (None, None, None, None)


def test_counters_are_differences_and_all_ones_is_not_known(tmp_path):
    run = run_of(tmp_path, two([((0, 10), (0, 10))]), plan_changes={"iterations": 1, "warmup": 0})
    unknown = 2**64 - 1
    run.write_counters(
        {"h0": {"TcpRetransSegs": 10}, "h1": {"TcpRetransSegs": 1}, "p": {"ce_marked": unknown, "drops": 9}},
        {"h0": {"TcpRetransSegs": 15}, "h1": {"TcpRetransSegs": 2}, "p": {"ce_marked": unknown, "drops": 3}},
    )
    metrics = measure(run)
    assert (metrics.fabric.retransmits, metrics.fabric.ce_marked, metrics.fabric.drops) == (6, None, None)
    assert any("went down" in flag for flag in metrics.flags)


def test_queue_depths_are_those_within_the_run(tmp_path):
    run = run_of(tmp_path, two([((0, 10), (0, 10))]), plan_changes={"iterations": 1, "warmup": 0})
    run.write_plan(plan(iterations=1, warmup=0))
    samples = [(-5 * MS, 0, 9_000_000), (1 * MS, 0, 100), (2 * MS, 0, 300), (3 * MS, 0, 200), (50 * MS, 0, 9_000_000)]
    write_samples(run.ports_path, 2, samples)
    metrics = measure(run)
    port = metrics.ports[0]
    assert (port.queue_p50_bytes, port.queue_p99_bytes, port.queue_max_bytes) == (200, 300, 300)
    assert (metrics.fabric.queue_p99_bytes, metrics.fabric.queue_p99_port) == (300, "leaf0/spine0")
    assert metrics.ports[1].queue_p99_bytes is None


def test_cpu_busy_is_weighted_by_the_time_within_the_run(tmp_path):
    run = run_of(tmp_path, two([((0, 10), (0, 10))]), plan_changes={"iterations": 1, "warmup": 0})
    t = 1_000_000_000
    run.write_host(HostRecord(2, ((t - MS, 1.0), (t + 5 * MS, 0.2), (t + 50 * MS, 0.6))))
    assert measure(run).cpu_busy_ratio == pytest.approx(0.4)


def test_lost_events_are_flagged(tmp_path):
    writers = two([((0, 10), (0, 10))] * 4)
    writers[1].dropped = 7
    metrics = measure(run_of(tmp_path, writers))
    assert metrics.events_dropped == 7
    assert any("7 events found no room" in flag for flag in metrics.flags)


def test_a_rank_without_events_is_flagged(tmp_path):
    metrics = measure(run_of(tmp_path, two([((0, 10), (0, 10))] * 4)[:1]))
    assert metrics.iteration is None
    assert "no events of rank 1" in metrics.flags


def test_events_of_another_run_are_refused(tmp_path):
    writers = two([((0, 10), (0, 10))] * 4)
    writers[0].op(0, 99, 0, 1)
    with pytest.raises(GenieError, match="operator 99"):
        measure(run_of(tmp_path, writers))


def test_samples_of_another_format_are_refused(tmp_path):
    run = run_of(tmp_path, two([((0, 10), (0, 10))] * 4))
    run.ports_path.write_bytes(b"GNIESMP1" + b"\x07" + bytes(5000))
    with pytest.raises(GenieError, match="version 7"):
        measure(run)


@pytest.mark.parametrize(
    ("windows", "met"),
    [
        ([(15, 16)], (True, False, False)),
        ([(15, 35)], (True, True, True)),
        ([(20, 25)], (False, True, False)),
        ([(15, 20)], (True, False, False)),
        ([(11, 12), (31, None)], (True, False, True)),
        ([(31, None), (11, 12)], (True, False, True)),
        ([(0, 5)], (False, False, False)),
        ([(45, 50)], (False, False, False)),
        ([(1, None)], (True, True, True)),
        ([(19.999_999, 30.000_001)], (True, True, True)),
    ],
    ids=["within one", "over three", "from an end on", "to an end", "two, one open", "in any order", "in warm-up",
         "after the end", "all but the very start", "by a nanosecond"],
)  # fmt: skip
def test_an_iteration_that_a_window_overlaps_met_it(tmp_path, windows, met):
    run = run_of(tmp_path, two([((10 * i, 10 * i + 10),) * 2 for i in range(4)]))
    own = tuple((T + round(a * MS), None if b is None else T + round(b * MS)) for a, b in windows)
    run.write_faults([FaultOutcome("x", start_mono_ns=own[0][0], windows=own)])
    (parts,) = measure(run).windowed
    assert (parts.fault, parts.met) == ("x", met)
    assert (parts.inside is None, parts.outside is None) == (not any(met), all(met))
    assert (parts.slowdown is None) == (all(met) or not any(met))


def test_the_median_inside_the_windows_stands_beside_that_outside(tmp_path):
    (parts,) = measure(make_run(tmp_path, iteration_ms=SPIKES, faults=(FLAPPING,))).windowed
    assert [number for number, flag in enumerate(parts.met, 1) if flag] == [1, 5]
    assert parts.inside.value == 35 * MS
    assert parts.outside.value == 20 * MS
    assert parts.slowdown.value == 1.75


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        (IN_EFFECT, {}),
        (replace(IN_EFFECT, windows=((T - 5, None),), end_mono_ns=None), {}),
        (replace(IN_EFFECT, start_mono_ns=None, end_mono_ns=None), {}),
        (FLAPPING, {"one_clock": False}),
    ],
    ids=["whole run", "not reverted", "never in effect", "several clocks"],
)
def test_without_windows_that_can_be_placed_there_is_no_inside(tmp_path, fault, changes):
    run = make_run(tmp_path, faults=(fault,))
    run.write_plan(replace(run.plan, **changes))
    assert measure(run).windowed == ()


def test_golden_windows(tmp_path):
    """The formula of docs/metrics.md over two faults, one cut short by its dead-man's switch."""
    cut = replace(IN_EFFECT, windows=((T - 5 * MS, T + 100 * MS),))
    metrics = measure(make_run(tmp_path, iteration_ms=SPIKES, faults=(FLAPPING, cut)))
    text = json.dumps(to_plain(metrics.windowed), indent=1) + "\n"
    golden = GOLDEN / "windows.json"
    if os.environ.get("GENIE_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert golden.read_text() == text


def test_golden_metrics(tmp_path):
    metrics = to_plain(measure(make_run(tmp_path)))
    golden = GOLDEN / "metrics.json"
    text = json.dumps(metrics, indent=1) + "\n"
    if os.environ.get("GENIE_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert json.loads(golden.read_text()) == json.loads(text)
