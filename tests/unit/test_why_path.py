"""The critical path on runs whose every nanosecond can be worked out on paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from why_maker import Job, call, compute, leaf_spine, pair, payload

from genie.errors import GenieError
from genie.why.explain import explain
from genie.why.records import Why


def causes(why: Why) -> dict[str, float]:
    """Cause → ms. Rounded, since a message's bytes are whole ones; what rounds to nothing is left out."""
    return {name: ms for name, ms in named(why.causes).items() if ms}


def named(shares) -> dict[str, float]:
    return {share.name: round(share.ns / 1e6, 2) for share in shares}


def test_compute_then_a_message(tmp_path: Path) -> None:
    """Rank 0 computes 10 ms of which 8 were planned; its message, 5 ms of bytes, arrives 20 ms later."""
    job = pair()
    job.op(0, 0, 0, 0, 10)
    job.op(0, 1, 10, 10, 11)
    job.op(1, 0, 0, 0, 30)
    job.message(0, 1, 0, (10, 10, 11, 30), payload(5))
    job.iteration(0, 0, 11)
    job.iteration(1, 0, 30)
    why = explain(job.write(tmp_path / "run"))
    assert causes(why) == {"compute": 8, "stretch": 2, "serialization": 5, "queueing": 15}
    assert named(why.operators) == {"recv": 20, "compute": 10}
    assert named(why.ranks) == {"1": 20, "0": 10}
    assert [(row.sender, row.receiver, round(row.path_ns / 1e6, 2)) for row in why.pairs] == [(0, 1, 20)]
    assert why.pairs[0].slowdown == pytest.approx(4, rel=1e-3)
    assert why.iteration_ns == 30e6
    assert [(s.cause, s.start_ns / 1e6, s.rank, s.peer) for s in why.path] == [
        ("compute", 0, 0, -1), ("stretch", 8, 0, -1), ("queueing", 10, 1, 0),
        ("serialization", pytest.approx(25, abs=1e-3), 1, 0),
    ]  # fmt: skip
    assert why.path[2].route == ("h0/switch0", "switch0/h1")


def test_a_dilated_run_is_told_in_model_time(tmp_path: Path) -> None:
    """The same events at dilation 2: half of every time, and bytes at half of the rate."""
    job = pair(dilation=2.0)
    job.op(0, 0, 0, 0, 20)
    job.op(0, 1, 20, 20, 22)
    job.op(1, 0, 0, 0, 60)
    job.message(0, 1, 0, (20, 20, 22, 60), payload(5))
    job.iteration(0, 0, 22)
    job.iteration(1, 0, 60)
    assert causes(explain(job.write(tmp_path / "run"))) == {
        "compute": 8, "stretch": 2, "serialization": 5, "queueing": 15
    }  # fmt: skip


def test_a_message_waits_behind_the_one_before_it(tmp_path: Path) -> None:
    """Three messages handed over at once arrive 5, 10 and 20 ms later: only the last lost time, 5 ms of it."""
    job = pair()
    job.op(0, 0, 0, 0, 8)
    job.op(0, 1, 8, 8, 9)
    job.op(1, 0, 0, 0, 28)
    for seq, done in enumerate((13, 18, 28)):
        job.message(0, 1, 0, (8, 8, 8 + 0.1 * seq, done), payload(5), seq=seq)
    job.iteration(0, 0, 9)
    job.iteration(1, 0, 28)
    assert causes(explain(job.write(tmp_path / "run"))) == {"serialization": 15, "compute": 8, "queueing": 5}


def test_a_forwarded_message_leads_back_to_the_one_it_forwards(tmp_path: Path) -> None:
    """Rank 0 sends to 1, which forwards to 2 at the instant of arrival; a fast third way is not on the path."""
    ops = [[compute(planned_ms=10), call("bcast", 0)], [call("bcast", 0)], [call("bcast", 0)]]
    job = leaf_spine(3, leaves=1, spines=1, operators=ops)
    job.op(0, 0, 0, 0, 10)
    job.op(0, 1, 10, 10, 16)
    job.message(0, 1, 0, (10, 10, 11, 15), payload(4))
    job.message(1, 2, 0, (15, 15, 16, 19.5), payload(4))
    job.message(0, 2, 0, (10, 10, 16, 17), payload(0.5))
    job.op(1, 0, 10, 10, 16)
    job.op(2, 0, 10, 10, 19.5)
    for rank, end in enumerate((16, 16, 19.5)):
        job.iteration(rank, 0, end)
    why = explain(job.write(tmp_path / "run"))
    assert causes(why) == {"compute": 10, "serialization": 8, "queueing": 1.5}
    assert {(row.sender, row.receiver): round(row.path_ns / 1e6, 2) for row in why.pairs} == {
        (1, 2): 4.5, (0, 1): 5, (0, 2): 0
    }  # fmt: skip


def test_an_operator_waits_for_its_stream(tmp_path: Path) -> None:
    """Two computes on one lane: the second was ready at once, and began when the first had ended."""
    job = Job([[compute("a", 4), compute("b", 6)]], ["h0"], fabric="loopback")
    job.op(0, 0, 0, 0, 4)
    job.op(0, 1, 0, 4, 10)
    job.iteration(0, 0, 10)
    why = explain(job.write(tmp_path / "run"))
    assert causes(why) == {"compute": 10}
    assert named(why.operators) == {"b": 6, "a": 4}


def test_credits_lead_back_to_the_message_that_freed_them(tmp_path: Path) -> None:
    """One message may be unacknowledged: the second leaves 3 ms after the first arrived."""
    job = pair(window_messages=1)
    job.op(0, 0, 0, 0, 8)
    job.op(0, 1, 8, 8, 25)
    job.message(0, 1, 0, (8, 8, 9, 14), payload(5), seq=0)
    job.message(0, 1, 0, (8, 17, 18, 23), payload(5), seq=1)
    job.op(1, 0, 0, 0, 23)
    job.iteration(0, 0, 22)
    job.iteration(1, 0, 23)
    assert causes(explain(job.write(tmp_path / "run"))) == {
        "serialization": 10, "compute": 8, "credits": 3, "queueing": 2
    }  # fmt: skip


def test_a_full_connection_is_no_compute(tmp_path: Path) -> None:
    """The send ends when its last byte is handed over: the connection took 9 ms for 5 ms of bytes."""
    job = pair()
    job.op(0, 0, 0, 0, 8)
    job.op(0, 1, 8, 8, 17)
    job.message(0, 1, 0, (8, 8, 17, 16.5), payload(5))
    job.op(1, 0, 0, 0, 16.5)
    job.iteration(0, 0, 17)
    job.iteration(1, 0, 16.5)
    assert causes(explain(job.write(tmp_path / "run"))) == {"compute": 8, "serialization": 5, "queueing": 4}


def late_rank(job: Job, starts: list[float], done: float) -> None:
    """An all-reduce in which rank 0, the last, sends to all others, and that ends at ``done``."""
    for rank, start in enumerate(starts):
        job.op(rank, 0, 0, 0, start)
    for rank in range(1, len(starts)):
        job.message(0, rank, 0, (starts[0], starts[0], starts[0] + 0.1, done), payload(1))
    for rank, start in enumerate(starts):
        job.op(rank, 1, start, start, starts[0] + 0.1 if rank == 0 else done)
        job.iteration(rank, 0, starts[0] + 0.1 if rank == 0 else done)


def test_what_most_ranks_waited_for_is_the_late_ranks(tmp_path: Path) -> None:
    """Others start at 4, 5 and 6 ms: rank 0's compute from 5 ms to its start at 9 is waiting for it."""
    job = leaf_spine(4, leaves=1, spines=1, operators=[[compute(planned_ms=9), call("grads", 0)] for _ in range(4)])
    late_rank(job, [9, 4, 5, 6], 10)
    why = explain(job.write(tmp_path / "run"))
    assert causes(why) == {"compute": 5, "peer": 4, "serialization": 1}
    (row,) = why.stragglers
    assert (row.rank, row.comm, row.last, row.calls) == (0, "world", 1, 1)
    assert row.cost_ns == 3e6, "the last but one came at 6"
    assert row.waited_ns == (5 + 4 + 3) * 1e6
    assert row.lateness_ns == 5e6


def test_compute_beyond_its_plan_is_not_laid_on_the_workload(tmp_path: Path) -> None:
    """The same, but 9 ms were planned to be 6: 3 ms are the host's, 1 ms is a late rank's."""
    job = leaf_spine(4, leaves=1, spines=1, operators=[[compute(planned_ms=6), call("grads", 0)] for _ in range(4)])
    late_rank(job, [9, 4, 5, 6], 10)
    assert causes(explain(job.write(tmp_path / "run"))) == {"compute": 5, "stretch": 3, "peer": 1, "serialization": 1}


def test_an_iteration_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    """Rank 1 is in iteration 1 while rank 0 is still in 0: the path is cut at end(0), and no time counts twice."""
    ops = [[compute("x", 10)], [compute("x", 10)]]
    job = Job(ops, ["h0", "h1"], fabric="loopback")
    job.op(0, 0, 0, 0, 10, iteration=0)
    job.op(0, 0, 10, 10, 20, iteration=1)
    job.op(1, 0, 0, 0, 6, iteration=0)
    job.op(1, 0, 6, 6, 25, iteration=1)
    job.iteration(0, 0, 10)
    job.iteration(0, 10, 20, 1)
    job.iteration(1, 0, 6)
    job.iteration(1, 6, 25, 1)
    why = explain(job.write(tmp_path / "run"))
    assert [(b.duration_ns / 1e6, b.last_rank) for b in why.iterations] == [(10, 0), (15, 1)]
    assert {k: v / 1e6 for k, v in why.iterations[1].causes.items()} == {"compute": 6, "stretch": 9}


def test_warmup_is_in_no_number(tmp_path: Path) -> None:
    job = Job([[compute("x", 10)]], ["h0"], fabric="loopback", warmup=1)
    job.op(0, 0, 0, 0, 50, iteration=0)
    job.op(0, 0, 50, 50, 60, iteration=1)
    job.iteration(0, 0, 50)
    job.iteration(0, 50, 60, 1)
    why = explain(job.write(tmp_path / "run"))
    assert (why.iteration_ns, causes(why)) == (10e6, {"compute": 10})


def test_without_messages_a_call_begins_with_its_last_rank(tmp_path: Path) -> None:
    ops = [[compute(planned_ms=2), call("grads", 0)], [compute(planned_ms=7), call("grads", 0)]]
    job = Job(ops, ["h0", "h1"], fabric="loopback")
    for rank, start in enumerate((2, 7)):
        job.op(rank, 0, 0, 0, start)
        job.op(rank, 1, start, start, 12)
        job.iteration(rank, 0, 12)
    why = explain(job.write(tmp_path / "run"))
    assert causes(why) == {"compute": 7, "queueing": 5}
    assert "messages were not recorded" in why.notes[0]


STALL = {"TcpRetransSegs": 3, "TcpExtTCPTimeouts": 1}


@pytest.mark.parametrize(
    ("rise", "expected", "sure"),
    [
        pytest.param(STALL, {"recovery": 245}, "counted", id="the kernel counted a time-out"),
        pytest.param({**STALL, "TcpExtTCPTimeouts": 0}, {"queueing": 245}, "none", id="no time-out was counted"),
        pytest.param({"TcpRetransSegs": 2}, {"recovery": 245}, "likely", id="segments were repeated"),
        pytest.param({"TcpRetransSegs": 0}, {"queueing": 245}, "none", id="no segment was repeated"),
        pytest.param({}, {"recovery": 245}, "possible", id="nothing was counted"),
    ],
)
def test_a_silence_of_200_ms_is_a_time_out_if_the_sender_had_one(tmp_path, rise, expected, sure) -> None:
    job = pair(counters=({"h0": dict.fromkeys(rise, 5)}, {"h0": {name: 5 + n for name, n in rise.items()}}))
    job.op(0, 0, 0, 0, 8)
    job.op(0, 1, 8, 8, 9)
    job.message(0, 1, 0, (8, 8, 9, 258), payload(5))
    job.op(1, 0, 0, 0, 258)
    job.iteration(0, 0, 9)
    job.iteration(1, 0, 258)
    why = explain(job.write(tmp_path / "run"))
    assert causes(why) == {**expected, "compute": 8, "serialization": 5}
    assert why.recovery.sure == sure


def test_one_counted_time_out_explains_one_silence(tmp_path: Path) -> None:
    counters = ({"h0": dict.fromkeys(STALL, 0)}, {"h0": STALL})
    job = pair(counters=counters)
    job.op(0, 0, 0, 0, 8)
    job.op(0, 1, 8, 8, 10)
    job.message(0, 1, 0, (8, 8, 9, 258), payload(5), seq=0)
    job.message(0, 1, 0, (8, 9, 10, 558), payload(5), seq=1)
    job.op(1, 0, 0, 0, 558)
    job.iteration(0, 0, 10)
    job.iteration(1, 0, 558)
    why = explain(job.write(tmp_path / "run"))
    assert causes(why) == {"recovery": 295, "queueing": 245, "serialization": 10, "compute": 8}
    assert why.recovery.stalls == 1


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        pytest.param({"warmup": 1}, "all 1 completed iterations are warm-up", id="only warm-up"),
        pytest.param({"drop": 4}, "no iteration was completed by all ranks", id="no end"),
    ],
)
def test_what_cannot_be_explained_is_refused_with_the_reason(tmp_path: Path, spoil, expected) -> None:
    job = Job([[compute("x", 10)]], ["h0"], fabric="loopback", warmup=spoil.get("warmup", 0))
    job.op(0, 0, 0, 0, 10)
    job.iteration(0, 0, 10)
    job.events[0] = [row for row in job.events[0] if row[0] != spoil.get("drop")]
    with pytest.raises(GenieError, match=expected):
        explain(job.write(tmp_path / "run"))
