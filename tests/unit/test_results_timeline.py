"""The timeline: a Chrome trace that Perfetto takes, bounded, with nothing left out in silence."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace

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

from genie.results.records import JobOperators
from genie.results.rundir import RunDir
from genie.results.timeline import FAULTS_PID, NETWORK_PID, write_timeline

REQUIRED = {
    "X": {"name", "ts", "dur", "pid", "tid"},
    "C": {"name", "ts", "pid", "tid", "args"},
    "M": {"name", "pid", "args"},
}


def load(run, **options):
    timeline = write_timeline(run, **options)
    return timeline, json.loads(gzip.decompress(timeline.path.read_bytes()))


def names_of(content, kind):
    return {
        (e["pid"], e["tid"]): e["args"]["name"] for e in content["traceEvents"] if e["ph"] == "M" and e["name"] == kind
    }


def test_every_event_has_what_its_phase_needs_and_times_rise(tmp_path):
    _, content = load(make_run(tmp_path, faults=(IN_EFFECT,)))
    times = []
    for event in content["traceEvents"]:
        assert REQUIRED[event["ph"]] <= set(event), event
        if event["ph"] != "M":
            times.append(event["ts"])
            assert isinstance(event["ts"], float)
        assert event.get("dur", 0) >= 0
    assert times == sorted(times)


def test_a_process_a_rank_and_a_thread_a_stream(tmp_path):
    _, content = load(make_run(tmp_path))
    assert names_of(content, "process_name") == {
        (1, 0): "rank 0 on h0",
        (2, 0): "rank 1 on h1",
        (NETWORK_PID, 0): "network",
    }
    threads = names_of(content, "thread_name")
    assert [threads[1, tid] for tid in range(4)] == ["iteration", "compute", "world", "dp"]


def test_slices_of_one_thread_do_not_overlap(tmp_path):
    run = make_run(tmp_path)
    loose = [replace(rank, ops=tuple(replace(op, lane=-1) for op in rank.ops)) for rank in run.operators.ranks]
    run.write_operators(JobOperators(tuple(loose), run.operators.comms))
    _, content = load(run)
    until = defaultdict(float)
    for event in content["traceEvents"]:
        if event["ph"] == "X":
            key = event["pid"], event["tid"]
            assert event["ts"] >= until[key] - 0.002, event
            until[key] = event["ts"] + event["dur"]


def test_a_slice_says_what_it_is(tmp_path):
    _, content = load(make_run(tmp_path))
    event = next(e for e in content["traceEvents"] if e.get("cat") == "collective")
    assert event["name"] == "all_reduce grads"
    assert event["args"] == {
        "iteration": 0, "trace_id": 11, "waited_for_stream_us": 0.0, "call": 0, "bytes": 1_000_000, "comm": "world",
    }  # fmt: skip
    assert (event["ts"], event["dur"]) == (15_000.0, 14_000.0)


def test_the_fault_window_is_a_slice_of_its_own(tmp_path):
    _, content = load(make_run(tmp_path, faults=(IN_EFFECT,)))
    (event,) = [e for e in content["traceEvents"] if e.get("cat") == "fault"]
    assert (event["pid"], event["ts"], event["dur"]) == (FAULTS_PID, -5000.0, 905_000.0)
    assert event["args"]["targets"] == "leaf0/spine0"


def test_a_fault_that_was_never_reverted_lasts_to_the_end(tmp_path):
    _, content = load(make_run(tmp_path, faults=(replace(IN_EFFECT, end_mono_ns=None),)))
    (event,) = [e for e in content["traceEvents"] if e.get("cat") == "fault"]
    assert event["ts"] + event["dur"] == 253_000.0


def test_every_window_of_a_fault_is_a_slice_of_its_track(tmp_path):
    _, content = load(make_run(tmp_path, iteration_ms=SPIKES, faults=(IN_EFFECT, FLAPPING)))
    own = [e for e in content["traceEvents"] if e["ph"] == "X" and (e["pid"], e["tid"]) == (FAULTS_PID, 1)]
    assert [(e["ts"], e["dur"], e["args"]["window"]) for e in own] == [
        (45_000.0, 10_000.0, "1 of 2"), (155_000.0, 13_000.0, "2 of 2"),
    ]  # fmt: skip


def test_of_too_many_windows_the_first_are_shown(tmp_path):
    windows = tuple((T + 2 * i, T + 2 * i + 1) for i in range(2001))
    timeline, content = load(make_run(tmp_path, faults=(replace(FLAPPING, windows=windows),)))
    assert timeline.notes == ("the first 2000 of 2001 windows of link_flap_short are shown",)
    assert sum(e.get("cat") == "fault" for e in content["traceEvents"]) == 2000


def test_queue_depth_keeps_its_peaks_when_thinned(tmp_path):
    run = make_run(tmp_path)
    rows = [(i * MS // 10, 0, 77_000 if i == 1234 else 10) for i in range(5000)]
    write_samples(run.ports_path, 2, rows)
    _, content = load(run)
    depths = [e["args"]["bytes"] for e in content["traceEvents"] if e["ph"] == "C" and e["name"].startswith("queue")]
    assert len(depths) == 500
    assert max(depths) == 77_000


def test_what_is_left_out_is_said(tmp_path):
    timeline, content = load(make_run(tmp_path), most_slices=30)
    assert timeline.notes == ("only iterations 0 to 2 are shown: the others would make more than 30 slices",)
    assert content["otherData"]["notes"] == list(timeline.notes)
    assert timeline.slices <= 30


def test_a_dilated_run_is_shown_in_model_time(tmp_path):
    run = make_run(tmp_path)
    run.write_plan(replace(run.plan, dilation=10.0))
    _, content = load(run)
    last = max(e["ts"] + e["dur"] for e in content["traceEvents"] if e["ph"] == "X")
    assert last == pytest.approx(25_300.0)


def test_ranks_without_events_are_empty_tracks(tmp_path):
    run = RunDir.create(tmp_path, "x", argv=(), reproduce="", seed=1, hashes={}, config_yaml="")
    run.write_plan(plan())
    run.write_operators(operators())
    writer = EventWriter(0, 2)
    writer.op(0, 0, 0, MS)
    writer.write(run.event_path(0))
    timeline, content = load(run)
    assert timeline.slices == 1
    assert (2, 0) in names_of(content, "process_name")
