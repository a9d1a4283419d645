"""Scores of links and hosts on small networks: what is slow, what is innocent, what cannot be told apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from why_maker import RATE_BPS, Job, call, compute, leaf_spine, payload

from genie.results.rundir import RunDir
from genie.why.explain import explain, host_scores, link_scores
from genie.why.losses import find_losses
from genie.why.network import read_network
from genie.why.recording import Recording
from genie.why.records import Why

BYTES_A_MS = RATE_BPS // 8000


def star(ranks: int = 4, **changes) -> Job:
    """All ranks at one switch, with a compute and a call each: no choice of paths."""
    ops = [[compute(planned_ms=10), call("all", 0)] for _ in range(ranks)]
    return leaf_spine(ranks, leaves=1, spines=1, operators=ops, **changes)


def all_to_all(job: Job, took) -> Job:
    """Every rank sends 1 ms of bytes to every other in turn; ``took(sender, receiver)`` ms each. No link is shared."""
    ranks = len(job.operators)
    end = 10.0
    ends = [10.0] * ranks
    for shift in range(1, ranks):
        begin, end = end, end + max(took(rank, (rank + shift) % ranks) for rank in range(ranks))
        for rank in range(ranks):
            peer = (rank + shift) % ranks
            ends[peer] = begin + took(rank, peer)
            job.message(rank, peer, 0, (begin, begin, begin, ends[peer]), payload(1))
    for rank in range(ranks):
        job.op(rank, 0, 0, 0, 10)
        job.op(rank, 1, 10, 10, ends[rank])
        job.iteration(rank, 0, ends[rank])
    return job


@pytest.mark.parametrize(
    ("slow", "port"),
    [
        pytest.param(lambda sender, receiver: sender == 2, "h2/leaf0", id="a host that sends at a third of its rate"),
        pytest.param(lambda sender, receiver: receiver == 1, "leaf0/h1", id="a port that delivers at a third"),
    ],
)
def test_messages_alone_find_the_slow_port(tmp_path: Path, slow, port) -> None:
    job = all_to_all(star(5), lambda sender, receiver: 3.0 if slow(sender, receiver) else 1.0)
    scores = link_scores(job.write(tmp_path / "run"))
    first, second = list(scores.values())[:2]
    assert first.port == port
    assert first.score == pytest.approx(2 / 3, abs=0.02)
    assert first.rate_ratio == pytest.approx(1 / 3, abs=0.02)
    assert second.score < 0.05, "shared with fast flows, so cleared"
    assert (first.messages, first.known, first.drain_ratio) == (4, 1.0, None)


def test_a_busy_link_is_no_slow_link(tmp_path: Path) -> None:
    """All send to rank 0 at once: four times the bytes take four times the time, which its load explains."""
    job = star(5)
    for sender in range(1, 5):
        job.message(sender, 0, 0, (10, 10, 10, 14), payload(1))
    for rank in range(5):
        job.op(rank, 0, 0, 0, 10)
        job.op(rank, 1, 10, 10, 14)
        job.iteration(rank, 0, 14)
    why = explain(job.write(tmp_path / "run"))
    assert max(score.score for score in why.link_scores) < 0.01
    assert why.suspect.kind == "none"
    assert why.link_scores[0].load_ratio is None or why.link_scores[0].load_ratio == pytest.approx(1, abs=0.02)


def test_what_nothing_tells_apart_shares_the_blame(tmp_path: Path) -> None:
    """One flow is slow, and nothing else passes its two ports."""
    job = star(4)
    for sender, receiver, done in ((0, 1, 14), (2, 3, 11)):
        job.message(sender, receiver, 0, (10, 10, 10, done), payload(1))
    for rank in range(4):
        job.op(rank, 0, 0, 0, 10)
        job.op(rank, 1, 10, 10, 14)
        job.iteration(rank, 0, 14)
    scores = link_scores(job.write(tmp_path / "run"))
    assert scores["h0/leaf0"].score == pytest.approx(scores["leaf0/h1"].score, rel=1e-6)
    assert scores["h0/leaf0"].score > 0.3
    assert scores["h2/leaf0"].score < 0.01


def queue_samples(job: Job, port: int, ratio: float, *, count: int = 40) -> None:
    """A queue of a port that empties at ``ratio`` of its rate for ``count`` ms."""
    job.samples += [(10 + k, port, 5000, round(k * BYTES_A_MS * ratio)) for k in range(count)]


@pytest.mark.parametrize(
    ("ratio", "count", "named"),
    [
        pytest.param(0.5, 40, True, id="half of its rate"),
        pytest.param(0.82, 40, True, id="eighteen per cent short in 30 samples"),
        pytest.param(1.0, 40, False, id="all of its rate"),
        pytest.param(0.95, 10, False, id="a little short in few samples"),
        pytest.param(0.2, 5, False, id="too few samples to say"),
    ],
)
def test_a_sampled_queue_tells_its_rate(tmp_path: Path, ratio: float, count: int, named: bool) -> None:
    job = all_to_all(star(4), lambda sender, receiver: 10.0)
    queue_samples(job, 2, ratio, count=count)
    why = explain(job.write(tmp_path / "run"))
    score = {score.port: score for score in why.link_scores}["h1/leaf0"]
    assert score.drain_ratio == pytest.approx(ratio, abs=0.01)
    assert score.drain_samples == min(count - 1, 30), "samples after the last iteration are left out"
    assert (why.suspect.names[:1] == ("h1/leaf0",)) == named
    if named:
        assert why.suspect.kind == "link"
        assert f"emptied its queue at {ratio:.0%} of its rate" in why.verdict


@pytest.mark.parametrize(
    ("seen", "named"),
    [
        pytest.param(10, True, id="a queue at every sample"),
        pytest.param(8, True, id="a queue at most samples"),
        pytest.param(4, False, id="a queue in bursts that its full rate explains"),
    ],
)
def test_a_port_that_had_nothing_to_send_is_not_slow(tmp_path: Path, seen: int, named: bool) -> None:
    """Half of its rate left in any stretch; only where there always was a queue does that say that it is slow."""
    job = all_to_all(star(4), lambda sender, receiver: 100.0)
    job.samples += [(10 + k, 2, 5000 if k % 10 < seen else 0, round(k * BYTES_A_MS * 0.5)) for k in range(300)]
    score = {score.port: score for score in explain(job.write(tmp_path / "run")).link_scores}["h1/leaf0"]
    assert (score.drain_ratio is not None) == named
    assert ("emptied its queue at 50%" in score.text) == named


@pytest.mark.parametrize(
    ("share", "named"),
    [pytest.param(0.3, True, id="at a quarter for a third of the time"), pytest.param(0.0, False, id="never")],
)
def test_a_port_that_is_slow_at_times_is_named(tmp_path: Path, share: float, named: bool) -> None:
    """Its median is all of its rate, which says nothing about the rest."""
    job = all_to_all(star(4), lambda sender, receiver: 100.0)
    sent = 0.0
    for k in range(300):
        job.samples.append((10 + k, 2, 5000, round(sent)))
        sent += BYTES_A_MS * (0.25 if k % 100 < 100 * share else 1.0)
    why = explain(job.write(tmp_path / "run"))
    score = {score.port: score for score in why.link_scores}["h1/leaf0"]
    assert score.drain_ratio == pytest.approx(1, abs=0.01)
    assert score.slow_ratio == pytest.approx(share, abs=0.03)
    assert (why.suspect.names[:1] == ("h1/leaf0",)) == named
    if named:
        assert score.score == pytest.approx(0.3 * 0.75, abs=0.04)
        assert "but at 25% for 3" in why.verdict


def test_waiting_is_laid_where_the_queue_was(tmp_path: Path) -> None:
    """A message waits 9 ms; only the receiver's port of its route had a queue then."""
    job = all_to_all(star(2), lambda sender, receiver: 10.0 if sender == 0 else 1.0)
    queue_samples(job, 3, 1.0, count=12)  # leaf0/h1
    why = explain(job.write(tmp_path / "run"))
    links = {share.name: share.ns / 1e6 for share in why.links}
    assert links["leaf0/h1"] == pytest.approx(9 + 0.5, abs=0.01), "9 ms of queue, half of 1 ms of bytes"
    assert links["h0/leaf0"] == pytest.approx(0.5, abs=0.01)


def test_a_host_that_computes_slowly_is_told_from_its_network(tmp_path: Path) -> None:
    job = star(4)
    for rank in range(4):
        end = 20 if rank == 3 else 10 + rank / 10
        job.op(rank, 0, 0, 0, end)
        job.op(rank, 1, end, end, 21)
        job.message(rank, (rank + 1) % 4, 0, (end, end, end, 21 if rank == 3 else end + 1), payload(1))
        job.iteration(rank, 0, 21)
    run = job.write(tmp_path / "run")
    why = explain(run)
    assert (why.suspect.kind, why.suspect.names) == ("host", ("h3",))
    assert "its compute, not the network" in why.verdict
    scores = host_scores(run)
    assert scores["h3"].stretch == pytest.approx(2)
    assert (scores["h3"].score, scores["h3"].excess_ns) == (pytest.approx(0.5), 10e6)
    assert scores["h0"].score == 0


def test_one_operator_kept_off_its_core_is_no_slow_host(tmp_path: Path) -> None:
    """Nine operators as planned and one of ten times its plan: the machine was busy, the host is not slow."""
    ops = [[compute(f"c{k}", 1) for k in range(10)]] * 2
    job = Job(ops, ["h0", "h1"], fabric="loopback")
    for rank in range(2):
        at = 0
        for k in range(10):
            took = 10 if rank == 1 and k == 4 else 1
            job.op(rank, k, at, at, at + took)
            at += took
        job.iteration(rank, 0, at)
    why = explain(job.write(tmp_path / "run"))
    assert why.suspect.kind == "none"
    assert {score.host: score.excess_ns for score in why.host_scores} == {"h0": 0, "h1": 9e6}


def test_hosts_are_compared_with_their_peers_where_no_plan_was_recorded(tmp_path: Path) -> None:
    job = Job([[compute("step")] for _ in range(3)], ["h0", "h1", "h2"], fabric="loopback")
    for rank, took in enumerate((10, 10, 15)):
        job.op(rank, 0, 0, 0, took)
        job.iteration(rank, 0, took)
    why = explain(job.write(tmp_path / "run"))
    assert why.host_scores[0].host == "h2"
    assert why.host_scores[0].stretch == pytest.approx(1.5)
    assert "does not record planned compute" in " ".join(why.notes)


# -- loss ----------------------------------------------------------------------------------------------------


def with_losses(lost: dict[int, int], gaps: dict[int, int], *, needless: int = 0) -> tuple[dict, dict]:
    """Counters of four hosts before and after."""
    names = ("TcpRetransSegs", "TcpExtTCPDSACKRecv", "TcpExtTCPDSACKOfoRecv", "TcpExtTCPOFOQueue")
    before = {f"h{k}": dict.fromkeys(names, 100) for k in range(4)}
    after = {
        f"h{k}": {
            "TcpRetransSegs": 100 + lost.get(k, 0) + needless,
            "TcpExtTCPDSACKRecv": 100 + needless,
            "TcpExtTCPDSACKOfoRecv": 100,
            "TcpExtTCPOFOQueue": 100 + gaps.get(k, 0),
        }
        for k in range(4)
    }
    return before, after


def losses(tmp_path: Path, counters, *, megabytes: int = 10) -> dict[str, float]:
    """Port → likelihood, for four hosts at one switch that send each other 10 MB each."""
    job = all_to_all(star(4, counters=counters), lambda sender, receiver: 1.0)
    run: RunDir = job.write(tmp_path / "run")
    recording = Recording.read(run)
    sent = np.full(len(recording.flows), megabytes * 1e6)
    network = read_network(run, recording.plan, run.counters(), recording.flows, sent)
    found = find_losses(network, recording.plan, run.counters(), sent)
    return {network.ports[port]: round(loss.likely, 2) for port, loss in found.items()}


@pytest.mark.parametrize(
    ("lost", "gaps", "ports"),
    [
        pytest.param({0: 60}, {1: 60, 2: 60, 3: 60}, {"h0/leaf0"}, id="a sender's port: one repeats, all see gaps"),
        pytest.param({0: 20, 1: 20, 3: 20}, {2: 180}, {"leaf0/h2"}, id="a receiver's port: all repeat, one sees gaps"),
        pytest.param({0: 60, 1: 20, 2: 20, 3: 20}, {0: 60, 1: 20, 2: 20, 3: 20}, {"h0/leaf0", "leaf0/h0"},
                     id="a cable, both ways"),
        pytest.param({0: 1, 2: 1}, {3: 2}, set(), id="next to nothing"),
        pytest.param({0: 30, 1: 30, 2: 30, 3: 30}, {0: 30, 1: 30, 2: 30, 3: 30}, set(), id="all alike: nobody's port"),
    ],
)  # fmt: skip
def test_the_lossy_port_is_the_one_that_fits_who_repeated_and_who_saw_gaps(tmp_path, lost, gaps, ports) -> None:
    found = losses(tmp_path, with_losses(lost, gaps))
    assert {port for port, likely in found.items() if likely > 0.5} == ports


def test_packets_repeated_for_nothing_are_no_losses(tmp_path: Path) -> None:
    assert losses(tmp_path, with_losses({}, {}, needless=50)) == {}


def test_drops_that_a_port_counts_are_its_queues(tmp_path: Path) -> None:
    before, after = with_losses({0: 20, 1: 20, 3: 20}, {2: 180})
    before["leaf0/h2"], after["leaf0/h2"] = {"drops": 0}, {"drops": 60}
    assert losses(tmp_path, (before, after)) == {}


def test_a_lossy_port_is_named(tmp_path: Path) -> None:
    counters = with_losses({0: 20, 1: 20, 3: 20}, {2: 180})
    job = star(4, counters=counters)
    big = 10_000_000
    end = 10.0
    for rank in range(4):
        job.op(rank, 0, 0, 0, 10)
        for peer in range(4):
            if peer != rank:
                done = 10 + 1000 * ((peer - rank) % 4)
                job.message(rank, peer, 0, (done - 1000, done - 1000, done, done), big)
                end = max(end, done)
    for rank in range(4):
        job.op(rank, 1, 10, 10, end)
        job.iteration(rank, 0, end)
    why: Why = explain(job.write(tmp_path / "run"))
    assert (why.suspect.kind, why.suspect.names) == ("link", ("leaf0/h2",))
    assert "seems to lose" in why.verdict
    assert why.link_scores[0].loss_ratio == pytest.approx(60 / (3 * big / 1448), rel=0.3)
