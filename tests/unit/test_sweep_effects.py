"""Effects of swept keys and the map of two, on responses whose effects are known."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.report.sweep import render_effects
from genie.sweep.cells import Cell, SweepPlan, order
from genie.sweep.effects import effects, heat_map


def plan_of(factors, repeats=1):
    keys = list(factors)
    cells = tuple(
        Cell(number, "x", dict(zip(keys, values, strict=True)), ())
        for number, values in enumerate(itertools.product(*factors.values()))
    )
    return SweepPlan((), ".", 1, cells, order(len(cells), repeats, shuffled=True, seed=3))


TWO = {"workload": ["moe", "dp"], "rate": ["100Mbps", "50Mbps", "10Mbps"]}
SLOWER = {"moe": 1.0, "dp": 3.0, "100Mbps": 1.0, "50Mbps": 2.0, "10Mbps": 10.0}


def responses_of(plan, drift=lambda slot: 1.0):
    return {
        slot.number: 1e6 * drift(slot) * math.prod(SLOWER[value] for value in plan.cell_of(slot).factors.values())
        for slot in plan.slots
    }


def test_multiplied_effects_are_found_apart():
    plan = plan_of(TWO, repeats=2)
    found = {(e.key, e.value): e for e in effects(plan, responses_of(plan))}
    assert {name: round(e.ratio.value, 9) for name, e in found.items()} == {
        ("workload", "dp"): 3.0, ("rate", "50Mbps"): 2.0, ("rate", "10Mbps"): 10.0,
    }  # fmt: skip
    assert [e.pairs for e in found.values()] == [6, 4, 4]


def test_drift_from_repeat_to_repeat_is_no_effect():
    plan = plan_of(TWO, repeats=3)
    drifting = responses_of(plan, lambda slot: 2.0**slot.repeat)
    assert [e.ratio.value for e in effects(plan, drifting)] == pytest.approx([3.0, 2.0, 10.0])


def test_a_failed_run_costs_its_pairs_only():
    plan = plan_of(TWO)
    measured = responses_of(plan)
    lost = next(s.number for s in plan.slots if plan.cell_of(s).factors == {"workload": "dp", "rate": "100Mbps"})
    del measured[lost]
    found = effects(plan, measured)
    assert [e.ratio.value for e in found] == pytest.approx([3.0, 2.0, 10.0])
    assert [e.pairs for e in found] == [2, 1, 1]
    assert math.isnan(heat_map(plan, measured).median_ns[1][0])


def test_no_pair_is_said_and_no_number_made_up():
    plan = plan_of({"rate": ["a", "b"]})
    (effect,) = effects(plan, {})
    assert (effect.ratio, effect.pairs) == (None, 0)
    assert "no two finished runs differ in this only" in render_effects([effect], None)


def test_the_interval_is_students():
    plan = plan_of({"rate": ["a", "b"]}, repeats=2)
    measured = {s.number: {("a", 0): 1.0, ("b", 0): 2.0, ("a", 1): 1.0, ("b", 1): 8.0}[
        plan.cell_of(s).factors["rate"], s.repeat] for s in plan.slots}  # fmt: skip
    (effect,) = effects(plan, measured)
    # ln 2 and ln 8: mean ln 4, deviation sqrt(2) ln 2 / sqrt(2) ... the margin is t(1) times their standard error.
    margin = 12.706 * math.sqrt(2) * math.log(2) / math.sqrt(2)
    assert effect.ratio.value == pytest.approx(4.0)
    assert (math.log(effect.ratio.low), math.log(effect.ratio.high)) == pytest.approx(
        (math.log(4) - margin, math.log(4) + margin)
    )


def test_the_map_of_two_keys_and_none_of_one_or_three():
    plan = plan_of(TWO, repeats=3)
    heat = heat_map(plan, responses_of(plan, lambda slot: (1.0, 5.0, 2.0)[slot.repeat]))
    assert (heat.rows, heat.columns) == ("workload", "rate")
    assert heat.median_ns == ((2e6, 4e6, 20e6), (6e6, 12e6, 60e6)), "the median of the repeats"
    assert heat_map(plan_of({"rate": ["a", "b"]}), {}) is None
    assert heat_map(plan_of({**TWO, "third": ["x", "y"]}), {}) is None


def test_golden_text():
    plan = plan_of(TWO)
    measured = responses_of(plan)
    text = render_effects(effects(plan, measured), heat_map(plan, measured))
    assert text == (
        "effect on the median iteration, other keys alike (ratio to the first value, 95 % CI)\n"
        "  workload=dp / moe: 3.00x (3.00 - 3.00), 3 pairs\n"
        "  rate=50Mbps / 100Mbps: 2.00x (2.00 - 2.00), 2 pairs\n"
        "  rate=10Mbps / 100Mbps: 10.00x (10.00 - 10.00), 2 pairs\n"
        "\n"
        "median iteration, workload down, rate across\n"
        "       100Mbps  50Mbps  10Mbps\n"
        "  moe    1 ms     2 ms  ░ 10 ms\n"
        "  dp     3 ms   ░ 6 ms  █ 30 ms\n"
    )


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_every_block_of_an_order_has_every_cell_once(cells, repeats, seed):
    slots = order(cells, repeats, shuffled=True, seed=seed)
    assert [slot.number for slot in slots] == list(range(cells * repeats))
    for repeat in range(repeats):
        block = slots[repeat * cells : (repeat + 1) * cells]
        assert sorted(slot.cell for slot in block) == list(range(cells))
        assert {slot.repeat for slot in block} == {repeat}
