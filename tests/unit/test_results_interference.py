"""What else had the machine: how it is sampled, what it means, and what it does to a verdict."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rundir_maker import make_run

from genie.results.compare import judge_and_store
from genie.results.interference import CLOCK_STEP_NS, Interference, interference, widened
from genie.results.load import LoadWatch
from genie.results.rundir import HostRecord, RunDir
from genie.results.thresholds import Thresholds

FLAT = (30, *[20] * 20)
SLOWER = (30, *[26] * 20)
S = 10**9


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (HostRecord(2, span_ns=10 * S, work_ns=9 * S, own_ns=1 * S), (0.199, 0.0)),  # less a tick a core
        (HostRecord(2, span_ns=10 * S, work_ns=5 * S, own_ns=1 * S, stolen_ns=3 * S), (0.0, 0.15)),
        (HostRecord(2, span_ns=10 * S, work_ns=4 * S, own_ns=1 * S), (0.0, 0.0)),
        (HostRecord(2), (None, None)),
    ],
    ids=["other work", "the hypervisor", "less than was counted", "not recorded"],
)
def test_shares_of_the_processors(host, expected):
    found = interference(host, [2 * S, 2 * S])
    assert (found.others_ratio, found.stolen_ratio) == expected


def test_ticks_of_a_short_run_are_no_other_work():
    """39 ms of which the kernel counted three ticks as work on two cores, as measured on an idle machine."""
    host = HostRecord(2, span_ns=39_007_058, work_ns=30_000_000, own_ns=1_392_847)
    assert interference(host, [4_636_000]).ratio < 0.1


def test_without_a_record_nothing_is_known():
    assert interference(None, [1]) == Interference()
    assert Interference().ratio == 0


@pytest.mark.parametrize(
    ("step_ns", "notes"),
    [
        (CLOCK_STEP_NS, 0),
        (3 * S, 1),
        (-3 * S, 1),
    ],
    ids=["slewed", "forward", "back"],
)
def test_a_wall_clock_that_was_set_is_a_note(step_ns, notes):
    found = interference(HostRecord(2, span_ns=S, clock_step_ns=step_ns), [])
    assert len(found.notes) == notes
    assert all("set by 3 s during the run" in note for note in found.notes)


@given(st.floats(0.01, 2), st.floats(0, 1))
def test_margins_only_grow_and_only_above_the_limit(margin, taken):
    found = widened(margin, taken, 0.1)
    assert found == margin if taken <= 0.1 else found > margin


def test_the_margin_of_half_a_machine():
    assert widened(0.1, 0.5, 0.1) == pytest.approx(1.2)


def with_host(run: RunDir, **changes) -> RunDir:
    host = run.host()
    assert host is not None
    run.write_host(replace(host, **changes))
    return run


def verdict(root, run, **thresholds):
    judgement = judge_and_store(run, runs_root=root, thresholds=Thresholds(**thresholds))
    return judgement.verdict, judgement.why


def test_other_work_widens_what_chance_may_do(tmp_path):
    verdict(tmp_path, make_run(tmp_path, iteration_ms=FLAT))
    assert verdict(tmp_path, make_run(tmp_path, iteration_ms=SLOWER))[0] == "degraded"
    busy = with_host(make_run(tmp_path, iteration_ms=SLOWER), span_ns=10 * S, work_ns=8 * S)
    found, why = verdict(tmp_path, busy)
    assert found == "inconclusive"
    assert "other work took 40% of the processors, which widened what chance may do" in why
    much_slower = with_host(make_run(tmp_path, iteration_ms=(30, *[60] * 20)), span_ns=10 * S, work_ns=8 * S)
    assert verdict(tmp_path, much_slower)[0] == "degraded", "what it cannot explain still counts"


def test_a_machine_that_slept_has_measured_nothing(tmp_path):
    found, why = verdict(tmp_path, with_host(make_run(tmp_path), suspended_ns=4 * S))
    assert (found, why) == ("invalid", "this machine was suspended for 4 s while the ranks ran, and so were they")


def test_the_bands_of_the_ietf(tmp_path):
    verdict(tmp_path, make_run(tmp_path, iteration_ms=FLAT))
    ratios = {}
    for factor in (1.04, 1.13, 1.2):
        run = make_run(tmp_path, iteration_ms=(30, *[20 * factor] * 20))
        ratios[factor] = verdict(tmp_path, run, bands="ietf", median_prior_sd=0.01, p99_prior_sd=0.01)[0]
    assert ratios == {1.04: "ok", 1.13: "inconclusive", 1.2: "degraded"}


def test_watching_a_busy_process(tmp_path):
    run = make_run(tmp_path)
    with LoadWatch(run):
        began_ns = time.process_time_ns()
        while time.process_time_ns() - began_ns < 150_000_000:
            sum(range(1000))
    host = run.host()
    assert host.own_ns >= 150_000_000
    assert host.span_ns >= 150_000_000
    assert host.work_ns > 0
    assert host.suspended_ns == 0
    assert host.stolen_ns >= 0
    assert abs(host.clock_step_ns) < S
