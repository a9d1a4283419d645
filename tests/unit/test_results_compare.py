"""Baselines, slowdowns and the verdict, with the statistics below them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rundir_maker import FLAPPING, IN_EFFECT, MS, T, make_run

from genie.errors import GenieError
from genie.results import statistics
from genie.results.compare import (
    Thresholds,
    compare,
    find_baseline,
    find_baselines,
    judge,
    judge_and_store,
    load_judgement,
)
from genie.results.metrics import measure
from genie.results.records import Check, FaultOutcome

FLAT = (30, *[20] * 20)


def times(factor, tail=1.0, outliers=0):
    each = [20 * factor] * 20
    for slow in range(3, 3 + outliers):
        each[2 * slow] = 20 * tail
    return (30, *each)


def baseline(root, **changes):
    run = make_run(root, **{"iteration_ms": FLAT, **changes})
    judge_and_store(run, runs_root=root)
    return run


def verdict(root, run, **options):
    judgement = judge_and_store(run, runs_root=root, **options)
    return judgement.verdict, judgement.why


# -- baselines -----------------------------------------------------------------------------------------------


def test_the_newest_healthy_run_of_the_same_configuration_is_the_baseline(tmp_path):
    baseline(tmp_path)
    newest = baseline(tmp_path)
    run = make_run(tmp_path, faults=(IN_EFFECT,))
    assert find_baseline(run, tmp_path).path == newest.path
    assert len(find_baselines(run, tmp_path)) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"hashes": {"workload": "other"}},
        {"status": "aborted"},
        {"faults": (IN_EFFECT,)},
        {"busy": 0.95},
        {"dropped": 3},
    ],
    ids=["another configuration", "aborted", "had a fault", "saturated", "lost events"],
)
def test_a_run_that_is_no_healthy_twin_is_not_taken(tmp_path, changes):
    baseline(tmp_path, **changes)
    assert find_baseline(make_run(tmp_path), tmp_path) is None


def test_a_run_is_not_its_own_baseline(tmp_path):
    run = baseline(tmp_path)
    assert find_baseline(run, tmp_path) is None


def test_a_named_baseline_is_taken(tmp_path):
    other = baseline(tmp_path / "elsewhere")
    run = make_run(tmp_path / "here", iteration_ms=times(2))
    assert verdict(tmp_path / "here", run, baseline=str(other.path))[0] == "degraded"


def test_a_baseline_by_the_name_of_its_runs(tmp_path):
    baseline(tmp_path, name="golden")
    newest = baseline(tmp_path, name="golden")
    baseline(tmp_path, name="golden", hashes={"workload": "other"})
    run = make_run(tmp_path, iteration_ms=times(2))
    judgement = judge(run, measure(run), runs_root=tmp_path, baseline="golden")
    assert judgement.comparison.baseline == newest.path.name
    with pytest.raises(GenieError, match=r"expected auto, none, a run directory, or the name= of a run in .*'silver'"):
        judge(run, measure(run), runs_root=tmp_path, baseline="silver")
    baseline(tmp_path, name="other", hashes={"workload": "other"})
    with pytest.raises(GenieError, match="ran something else"):
        judge(run, measure(run), runs_root=tmp_path, baseline="other")


def test_the_effect_size_and_the_slowdown_of_each_kind(tmp_path):
    baseline(tmp_path)
    run = make_run(tmp_path, iteration_ms=times(2))
    found = judge(run, measure(run), runs_root=tmp_path).comparison
    # One healthy run: the spread is the prior's 2.5 %, of a difference between two runs sqrt(2) times that.
    assert found.median.effect_sd == pytest.approx(math.log(2) / (0.025 * math.sqrt(2)))
    kinds = {kind.kind: kind.ratio for kind in found.kinds}
    assert set(kinds) == {"all_gather", "all_reduce"}
    assert kinds["all_gather"].value == pytest.approx(1), "of 1 ms in each"
    # Half of an iteration without its last millisecond; rank 1 starts half a millisecond later.
    assert kinds["all_reduce"].value == pytest.approx((20 - 1 - 0.25) / (10 - 1 - 0.25))
    assert kinds["all_reduce"].low <= kinds["all_reduce"].value <= kinds["all_reduce"].high


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"faults": (IN_EFFECT,)}, "not healthy: it had link_rate_10pct"),
        ({"hashes": {"workload": "x"}}, "ran something else: engine, topology, transport, workload differ"),
        ({"busy": 0.9}, "of no use: it is finished, verdict invalid"),
    ],
    ids=["faulted", "another configuration", "invalid"],
)
def test_a_named_baseline_that_does_not_fit_is_refused(tmp_path, changes, said):
    other = baseline(tmp_path / "elsewhere", **changes)
    run = make_run(tmp_path / "here")
    with pytest.raises(GenieError, match=said):
        judge(run, measure(run), runs_root=tmp_path / "here", baseline=str(other.path))


# -- verdicts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("iteration_ms", "expected"),
    [
        (times(1), "ok"),
        (times(1.04), "ok"),
        (times(0.97), "ok"),
        (times(1.3), "degraded"),
        (times(0.7), "improved"),
        ((30, *[20, 20, 23, 20, 23, 23, 20, 23] * 2), "inconclusive"),
        (times(1, tail=3, outliers=5), "degraded"),
        (times(1, tail=3, outliers=1), "inconclusive"),
        (times(1, tail=1.2, outliers=1), "ok"),
    ],
    ids=[
        "equal",
        "4 % slower",
        "3 % faster",
        "30 % slower",
        "30 % faster",
        "two modes",
        "only the tail",
        "one outlier",
        "one small outlier",
    ],
)
def test_verdict_beside_one_healthy_run(tmp_path, iteration_ms, expected):
    baseline(tmp_path, iteration_ms=(30, *[20, 20.2] * 10))
    run = make_run(tmp_path, iteration_ms=iteration_ms)
    assert verdict(tmp_path, run)[0] == expected


def test_median_and_tail_are_both_said(tmp_path):
    baseline(tmp_path)
    run = make_run(tmp_path, iteration_ms=times(1, tail=3, outliers=5))
    assert verdict(tmp_path, run)[1].startswith(
        "slower than the healthy run, in the tail only: median 1.00x, p99 3.00x"
    )


def test_a_tail_of_a_handful_of_iterations_is_not_judged(tmp_path):
    baseline(tmp_path, iteration_ms=(30, 20, 20, 20))
    run = make_run(tmp_path, iteration_ms=(30, 20, 20, 60))
    judgement = judge_and_store(run, runs_root=tmp_path)
    assert judgement.comparison.p99.verdict == ""
    assert judgement.verdict != "degraded"


def test_many_steady_healthy_runs_make_small_slowdowns_visible(tmp_path):
    for _ in range(9):
        baseline(tmp_path)
    run = make_run(tmp_path, iteration_ms=times(1.07))
    assert verdict(tmp_path, run)[0] == "degraded"


def test_one_healthy_run_does_not(tmp_path):
    baseline(tmp_path)
    run = make_run(tmp_path, iteration_ms=times(1.07))
    assert verdict(tmp_path, run)[0] == "ok"


def test_without_a_baseline_a_run_is_measured(tmp_path):
    assert verdict(tmp_path, make_run(tmp_path))[0] == "measured"


def test_no_baseline_when_none_is_wanted(tmp_path):
    baseline(tmp_path)
    assert verdict(tmp_path, make_run(tmp_path), baseline="none") == ("measured", "no baseline was asked for")


IN_WARMUP = replace(FLAPPING, windows=((T + 5 * MS, T + 20 * MS),))
NOT_PLACED = replace(IN_EFFECT, state="not_in_effect", checks=(Check("shaper", "10 Mb/s", "none", False),))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"busy": 0.81}, "emulator saturated: the CPUs were 81% busy"),
        ({"dropped": 5}, "5 events found no room"),
        ({"faults": (NOT_PLACED,)}, "not in effect: shaper: expected 10 Mb/s, found none"),
        ({"faults": (replace(IN_EFFECT, start_mono_ns=None),)}, "never applied"),
        ({"faults": (IN_WARMUP,)}, "no measured iteration (the first 1 are to warm up) met a window of it"),
        ({"faults": (replace(IN_EFFECT, problem="could not be reverted: x"),)}, "could not be reverted"),
        ({"status": "aborted"}, "the run was aborted"),
        ({"iteration_ms": (30,)}, "warm-up"),
    ],
    ids=[
        "saturated",
        "lost events",
        "no evidence",
        "not applied",
        "in warm-up",
        "not reverted",
        "aborted",
        "nothing measured",
    ],
)
def test_numbers_that_are_not_what_they_say_are_invalid(tmp_path, changes, said):
    baseline(tmp_path)
    found, why = verdict(tmp_path, make_run(tmp_path, **{"iteration_ms": times(2), **changes}))
    assert found == "invalid"
    assert said in why


def test_busy_cpus_are_what_is_measured_where_nothing_is_shaped(tmp_path):
    run = make_run(tmp_path, busy=1.0)
    run.write_plan(replace(run.plan, fabric="loopback", shaped=False))
    assert verdict(tmp_path, run)[0] == "measured"


def test_one_iteration_is_never_judged(tmp_path):
    baseline(tmp_path)
    found, why = verdict(tmp_path, make_run(tmp_path, iteration_ms=(30, 90)))
    assert (found, why.rpartition(": ")[2]) == (
        "inconclusive", "one iteration tells nothing of chance; run more iterations",
    )  # fmt: skip


def test_a_higher_bar_for_iterations_is_named(tmp_path):
    baseline(tmp_path)
    run = make_run(tmp_path, iteration_ms=FLAT)
    said = verdict(tmp_path, run, thresholds=Thresholds(median_least_iterations=30))[1]
    assert "fewer than 30 iterations tell nothing of chance" in said


def test_a_planned_fault_without_a_record_is_invalid(tmp_path):
    run = make_run(tmp_path, faults=(IN_EFFECT,))
    run.write_faults(())
    assert verdict(tmp_path, run)[1] == "fault link_rate_10pct was planned, but there is no record of it"


ECN_OFF = FaultOutcome(
    "ecn_off",
    "port_ecn",
    ("leaf0/spine0",),
    1,
    None,
    "in_effect",
    True,
    (Check("CE", "0", "0", True),),
    {},
    "ce_marked",
)


@pytest.mark.parametrize(
    ("twin_ce", "expected"), [(40, "degraded"), (0, "invalid")], ids=["twin marked", "twin did not"]
)
def test_marking_switched_off_means_something_only_if_the_twin_was_marked(tmp_path, twin_ce, expected):
    baseline(tmp_path, ce=twin_ce)
    found, why = verdict(tmp_path, make_run(tmp_path, iteration_ms=times(2), faults=(ECN_OFF,), ce=0))
    assert found == expected
    if expected == "invalid":
        assert "ce_marked is 0 in the healthy twin too" in why


def test_without_a_twin_it_says_that_one_is_needed(tmp_path):
    found, why = verdict(tmp_path, make_run(tmp_path, faults=(ECN_OFF,)))
    assert found == "measured"
    assert "whether ecn_off changed anything shows only beside that twin" in why


def test_rows_and_exposed_communication_are_compared(tmp_path):
    baseline(tmp_path)
    comparison = judge_and_store(make_run(tmp_path, iteration_ms=times(2)), runs_root=tmp_path).comparison
    assert comparison.exposed.value == pytest.approx(19.75 / 9.75)
    assert {(row.kind, round(row.ratio.value, 2)) for row in comparison.collectives} == {
        ("all_reduce", round(18.75 / 8.75, 2)),
        ("all_gather", 1.0),
    }


def test_results_are_read_back_as_they_were(tmp_path):
    baseline(tmp_path)
    run = make_run(tmp_path, iteration_ms=times(2), faults=(IN_EFFECT,))
    assert judge_and_store(run, runs_root=tmp_path) == load_judgement(run)
    assert run.manifest.verdict == "degraded"


def test_nothing_measured_cannot_be_compared(tmp_path):
    run, empty = measure(make_run(tmp_path)), measure(make_run(tmp_path, iteration_ms=(30,)))
    with pytest.raises(GenieError, match="cannot be compared"):
        compare(run, empty)


def test_thresholds_are_configurable(tmp_path):
    a, b = measure(make_run(tmp_path, iteration_ms=FLAT)), measure(make_run(tmp_path, iteration_ms=times(1.07)))
    strict = Thresholds(tolerance_ratio=0.01, median_prior_sd=0.001)
    assert compare(b, a).median.verdict == "ok"
    assert compare(b, a, thresholds=strict).median.verdict == "degraded"


def test_what_lies_between_the_bands_is_not_laid_on_chance(tmp_path):
    baseline(tmp_path)
    run = make_run(tmp_path, iteration_ms=times(1.13), faults=(IN_EFFECT,))
    ietf = Thresholds(bands="ietf", median_prior_sd=0.01, p99_prior_sd=0.01)
    found, why = verdict(tmp_path, run, thresholds=ietf)
    assert found == "inconclusive"
    assert "slower than chance explains (±5%), but not beyond doubt above 1.15x, from where judge.bands=ietf" in why
    assert "run more iterations" not in why


# -- statistics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "ratio", "found"),
    [
        ([1, 2, 3, 4], 0.5, 2),
        ([1, 2, 3, 4], 0.99, 4),
        (range(1, 101), 0.99, 99),
        (range(1, 101), 0.9, 90),
        ([7], 0.5, 7),
    ],
)
def test_percentiles_are_nearest_rank(values, ratio, found):
    assert statistics.percentile(list(values), ratio) == found


def test_the_percentile_of_nothing_is_not_a_number():
    assert math.isnan(statistics.percentile([], 0.5))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=60), st.integers(0, 2**32))
def test_an_interval_holds_its_value_and_repeats_with_its_seed(values, seed):
    first = statistics.estimate(values, statistics.rows_median, seed)
    assert first == statistics.estimate(values, statistics.rows_median, seed)
    assert min(values) <= first.low <= first.high <= max(values)


def test_the_interval_of_the_mean_covers_as_often_as_it_says():
    rng = np.random.default_rng(11)
    hits = 0
    for number in range(200):
        found = statistics.estimate(rng.normal(100, 10, size=60), statistics.rows_mean, number)
        hits += found.low <= 100 <= found.high
    assert 0.86 <= hits / 200 <= 0.99


def test_the_ratio_of_equal_samples_is_one():
    found = statistics.ratio([5.0] * 9, [5.0] * 9, statistics.rows_median, 1)
    assert (found.value, found.low, found.high) == (1, 1, 1)


@pytest.mark.parametrize(
    ("healthy", "margin"),
    [([100], 0.103), ([100, 100], 0.085), ([100] * 9, 0.046), ([100, 130], 0.367)],
    ids=["one run: the prior alone", "two equal runs", "nine equal runs", "two runs far apart"],
)
def test_the_margin_between_runs(healthy, margin):
    assert statistics.between_runs(healthy, 0.025).margin_ratio == pytest.approx(margin, rel=0.06)


def test_nine_seldom_false_alarms_between_healthy_runs():
    """With the spread that the prior assumes, at most about one healthy run in twenty is called slower or faster."""
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(400):
        pool, run = np.exp(rng.normal(0, 0.025, size=3)), math.exp(rng.normal(0, 0.025))
        limit = 1 + statistics.between_runs(list(pool), 0.025).margin_ratio
        wrong += not 1 / limit <= run / pool[0] <= limit
    assert wrong / 400 <= 0.06
