"""Ticks are round, few and inside; places rise with values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.report.html.scale import Linear, Log, Tail, Unit, rate_unit, round_step, size_unit, time_unit

ONE = Unit(1.0, "")
positive = st.floats(min_value=1e-3, max_value=1e15)


@pytest.mark.parametrize(
    ("scale", "ticks"),
    [
        (Linear(0, 2.9e9, 0, 290), [(0.0, "0"), (100.0, "1"), (200.0, "2")]),
        (Linear(0, 1.0e9, 0, 100), [(0.0, "0"), (50.0, "0.5"), (100.0, "1")]),
        (Linear(2e9, 8e9, 0, 60), [(0.0, "2"), (20.0, "4"), (40.0, "6"), (60.0, "8")]),
        (Linear(5e9, 5e9, 7, 60), [(7, "5")]),
        (Log(1e9, 100e9, 0, 200), [(0.0, "1"), (100.0, "10"), (200.0, "100")]),
    ],
    ids=["whole seconds", "halves", "from above zero", "nothing to span", "decades"],
)
def test_ticks_worked_out_by_hand(scale, ticks):
    found = scale.ticks(time_unit(1e9), 3)
    assert [label for _, label in found] == [label for _, label in ticks]
    assert [at for at, _ in found] == pytest.approx([at for at, _ in ticks])


@given(low=positive, factor=st.floats(min_value=1.0001, max_value=1e9), most=st.integers(1, 12))
def test_ticks_lie_on_their_axis_and_are_few(low, factor, most):
    for scale in (Linear(0, low * factor, 10, 500), Log(low, low * factor, 10, 500)):
        found = scale.ticks(ONE, most)
        assert len(found) <= most + 1
        assert all(10 - 1e-6 <= at <= 500 + 1e-6 for at, _ in found)
        assert sorted(at for at, _ in found) == [at for at, _ in found]


@given(span=positive, most=st.integers(1, 20))
def test_a_step_is_one_two_or_five(span, most):
    step = round_step(span, most)
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert round(mantissa, 6) in (1, 2, 5, 10)
    assert span / step <= most * (1 + 1e-6)


@pytest.mark.parametrize("span", [0, -1, math.nan, math.inf])
def test_no_step_for_no_span(span):
    with pytest.raises(ValueError, match="positive span"):
        round_step(span, 4)


def test_nines_are_evenly_spaced():
    tail = Tail(3, 300, 0)
    assert [tail(share) for share in (0, 0.9, 0.99, 0.999, 1.0)] == pytest.approx([300, 200, 100, 0, 0])
    assert [label for _, label in tail.ticks()] == ["0 %", "50 %", "90 %", "99 %", "99.9 %"]


@pytest.mark.parametrize(
    ("unit", "name"),
    [
        (time_unit(2.5e6), "ms"), (time_unit(999), "ns"), (time_unit(0), "ns"), (size_unit(1024), "KiB"),
        (rate_unit(1e8), "Mb/s"),
    ],
)  # fmt: skip
def test_units_make_numbers_of_one_and_more(unit, name):
    assert unit.name == name
