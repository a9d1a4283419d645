import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie import units
from genie.errors import ConfigError, closest


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        pytest.param(units.parse_rate_bps, "400Gbps", 400_000_000_000, id="rate in Gbps"),
        pytest.param(units.parse_rate_bps, "100 mbit", 100_000_000, id="rate as tc writes it"),
        pytest.param(units.parse_rate_bps, 5_000, 5_000, id="rate as a plain number"),
        pytest.param(units.parse_bytes, "512KiB", 524_288, id="binary size"),
        pytest.param(units.parse_bytes, "1.5MB", 1_500_000, id="decimal size with a fraction"),
        pytest.param(units.parse_bytes, str(2**63 - 1), 2**63 - 1, id="largest size"),
        pytest.param(units.parse_ns, "20us", 20_000, id="microseconds"),
        pytest.param(units.parse_ns, "1.5 ms", 1_500_000, id="milliseconds with a space"),
        pytest.param(units.parse_ns, 0, 0, id="zero needs no unit"),
    ],
)
def test_quantities_become_integers(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        pytest.param(units.parse_rate_bps, "fast", "expected a rate such as '100Mbps', found 'fast'", id="no number"),
        pytest.param(units.parse_bytes, "12 parsecs", "found '12 parsecs'", id="unknown unit"),
        pytest.param(units.parse_bytes, "-1", "found '-1'", id="negative"),
        pytest.param(units.parse_bytes, 2**63, "above 2^63-1", id="too large"),
        pytest.param(units.parse_ns, 5, "found '5'", id="duration without a unit"),
        pytest.param(units.parse_bytes, True, "found True", id="boolean"),
        pytest.param(units.parse_ratio, "120%", "between 0 and 1", id="ratio above one"),
    ],
)
def test_refusals_name_key_and_what_was_found(parse, text, said):
    with pytest.raises(ConfigError, match=r"a\.key: ") as refused:
        parse(text, key="a.key")
    assert said in str(refused.value)


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_plain_sizes_survive(size):
    assert units.parse_bytes(size) == size


def test_closest_choice():
    assert closest("ecn_of", ["ecn_off", "link_rate"]) == "did you mean 'ecn_off'?"
    assert closest("zzz", ["b", "a"]) == "choose one of: a, b"
