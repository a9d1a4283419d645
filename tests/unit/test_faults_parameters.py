"""A fault's parameters: what a user writes becomes a number for one port, or a refusal that says what was expected."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.errors import ConfigError, GenieError, PlanError
from genie.faults.parameters import PPB, convert
from genie.faults.plan import RunFacts
from genie.faults.recipe import Parameter
from genie.topology.model import Ecn, Port, PortModel

MARKING = Port("h0", "leaf0", "leaf0", PortModel(100_000_000, 100_000, Ecn(20_000, 60_000, 0.1)))
PLAIN = Port("h0", "leaf0", "leaf0", PortModel(100_000_000, 100_000))
FACTS = RunFacts(addresses={"h0": "10.0.0.1", "h1": "10.0.0.2"})

RATE = Parameter("rate", "rate", "a rate")
RATIO = Parameter("ratio", "ratio", "a share")
ALL = Parameter("ratio", "ratio", "a share", most=1)
HALF = Parameter("ratio", "ratio", "a share", most=0.5)
SIZE = Parameter("limit", "bytes", "a size")
OF_LIMIT = Parameter("limit", "bytes", "a size", of="limit_bytes")
OF_KMIN = Parameter("kmin", "bytes", "a size", of="kmin_bytes")
OF_KMAX = Parameter("kmax", "bytes", "a size", of="kmax_bytes")
TIME = Parameter("delay", "time", "a time")
NUMBER = Parameter("flows", "number", "how many", least=1, most=64)
CHOICE = Parameter("mode", "choice", "how", choices=("drop", "corrupt"))
HOST = Parameter("to", "host", "a host")


def told(parameter: Parameter, said: object, port: Port | None = MARKING, facts: RunFacts = FACTS) -> dict[str, Any]:
    return convert("f", parameter, said, "h0/leaf0", port, facts)


@pytest.mark.parametrize(
    ("parameter", "said", "expected"),
    [
        pytest.param(RATE, "10%", {"rate_bps": 10_000_000}, id="a share of the port's rate"),
        pytest.param(RATE, "25Mbps", {"rate_bps": 25_000_000}, id="a rate"),
        pytest.param(RATE, 8_000_007, {"rate_bps": 8_000_000}, id="a plain number, whole bytes a second"),
        pytest.param(RATIO, "0.1%", {"ratio_ppb": 1_000_000}, id="a ratio in percent"),
        pytest.param(RATIO, 0.001, {"ratio_ppb": 1_000_000}, id="a ratio"),
        pytest.param(RATIO, "0.999999999", {"ratio_ppb": PPB - 1}, id="nearly everything"),
        pytest.param(ALL, "100%", {"ratio_ppb": PPB}, id="everything where that makes sense"),
        pytest.param(HALF, "50%", {"ratio_ppb": PPB // 2}, id="up to its bound"),
        pytest.param(SIZE, "64KB", {"limit_bytes": 64_000}, id="a size"),
        pytest.param(OF_LIMIT, "400%", {"limit_bytes": 400_000}, id="a multiple of the port's limit"),
        pytest.param(OF_LIMIT, " 12.5 % ", {"limit_bytes": 12_500}, id="a share of it, spaced"),
        pytest.param(OF_KMIN, "50%", {"kmin_bytes": 10_000}, id="a share of Kmin"),
        pytest.param(OF_KMAX, "200%", {"kmax_bytes": 120_000}, id="a multiple of Kmax"),
        pytest.param(TIME, "5ms", {"delay_ns": 5_000_000}, id="a time"),
        pytest.param(TIME, "20us", {"delay_ns": 20_000}, id="a short time"),
        pytest.param(NUMBER, 4, {"flows": 4}, id="a number"),
        pytest.param(NUMBER, "64", {"flows": 64}, id="a number as text"),
        pytest.param(CHOICE, "drop", {"mode": "drop"}, id="a choice"),
        pytest.param(HOST, "h1", {"to": "h1", "to_address": "10.0.0.2"}, id="a host"),
    ],
)
def test_conversions(parameter: Parameter, said: object, expected: dict[str, int | str]) -> None:
    assert told(parameter, said) == expected


def test_dilation_divides_a_rate_and_stretches_a_time() -> None:
    slow = RunFacts(time_dilation=4)
    assert told(RATE, "50%", facts=slow) == {"rate_bps": 12_500_000}
    assert told(RATE, "50Mbps", facts=slow) == {"rate_bps": 12_500_000}
    assert told(TIME, "4ms", facts=slow) == {"delay_ns": 16_000_000}
    assert told(SIZE, "64KB", facts=slow) == {"limit_bytes": 64_000}
    assert told(RATIO, "1%", facts=slow) == {"ratio_ppb": PPB // 100}


def test_a_fault_of_a_node_takes_a_rate_but_no_share() -> None:
    assert told(RATE, "25Mbps", None) == {"rate_bps": 25_000_000}
    with pytest.raises(ConfigError, match=r"fault\.f\.parameters\.rate: expected a rate"):
        told(RATE, "10%", None)


@pytest.mark.parametrize(
    ("parameter", "said", "words"),
    [
        pytest.param(RATE, "100%", "below the port's own", id="its own rate"),
        pytest.param(RATE, "200Mbps", "which has 100 Mb/s", id="above its own"),
        pytest.param(RATE, "0%", "above 0", id="no rate"),
        pytest.param(RATE, "7kbps", "the shaper needs 8 kbit/s", id="below what the shaper can"),
        pytest.param(RATE, "10 apples", "expected a rate such as", id="not a rate"),
        pytest.param(RATE, "-10%", "found '-10%'", id="a negative share"),
        pytest.param(RATE, True, "found True", id="a truth"),
        pytest.param(RATE, ["10%"], "found ['10%']", id="a list"),
        pytest.param(RATE, None, "found None", id="nothing"),
        pytest.param(RATIO, 0, "below one in a billion", id="a ratio of 0"),
        pytest.param(RATIO, "0.00000001%", "below one in a billion", id="a ratio too small"),
        pytest.param(RATIO, 1, "would lose every packet", id="everything"),
        pytest.param(RATIO, "120%", "between 0 and 1", id="more than everything"),
        pytest.param(HALF, "51%", "at most 0.5, found 51%", id="above its bound"),
        pytest.param(SIZE, "400%", "expected a size, found '400%'", id="a share of nothing"),
        pytest.param(SIZE, "0", "found 0 (0 bytes", id="no bytes"),
        pytest.param(SIZE, "5ms", "expected a size such as", id="a time instead of a size"),
        pytest.param(OF_LIMIT, "0%", "0 bytes at h0/leaf0", id="a share of 0"),
        pytest.param(OF_LIMIT, "²%", "expected a size, found '²%'", id="a digit that is no number"),
        pytest.param(OF_LIMIT, "-5%", "found '-5%'", id="a negative share of bytes"),
        pytest.param(OF_LIMIT, "nan%", "found 'nan%'", id="not a number"),
        pytest.param(TIME, "5", "expected a duration such as", id="a time without a unit"),
        pytest.param(TIME, "soon", "expected a duration such as", id="not a time"),
        pytest.param(NUMBER, 0, "a whole number from 1 to 64, found 0", id="too few"),
        pytest.param(NUMBER, 65, "a whole number from 1 to 64, found 65", id="too many"),
        pytest.param(NUMBER, 1.5, "a whole number", id="not whole"),
        pytest.param(NUMBER, "nan", "a whole number", id="nan"),
        pytest.param(NUMBER, "inf", "a whole number", id="infinity"),
        pytest.param(NUMBER, "many", "expected how many, found 'many'", id="not a number, but a word"),
        pytest.param(CHOICE, "dropp", "did you mean 'drop'", id="a choice with a typo"),
        pytest.param(HOST, "h9", "there is no host 'h9'", id="no such host"),
        pytest.param(HOST, "$(reboot)", "there is no host", id="an injection"),
    ],
)
def test_refusals_name_the_key_and_what_was_found(parameter: Parameter, said: object, words: str) -> None:
    with pytest.raises((ConfigError, PlanError)) as caught:
        told(parameter, said)
    assert str(caught.value).startswith(f"fault.f.parameters.{parameter.name}: ")
    assert words in str(caught.value)


def test_a_share_of_what_the_port_does_not_have() -> None:
    with pytest.raises(PlanError, match="50% of kmin_bytes, which h0/leaf0 does not have; give it in bytes"):
        told(OF_KMIN, "50%", PLAIN)
    assert told(OF_KMIN, "9KB", PLAIN) == {"kmin_bytes": 9_000}


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([RATE, RATIO, ALL, HALF, SIZE, OF_LIMIT, OF_KMIN, TIME, NUMBER, CHOICE, HOST]),
    st.one_of(
        st.text(max_size=8),
        st.integers(),
        st.floats(),
        st.builds("{}%".format, st.text(max_size=4)),
        st.builds("{:g}%".format, st.floats(0, 1e6)),
    ),
    st.sampled_from([MARKING, PLAIN, None]),
)
def test_whatever_is_written_is_numbers_or_a_refusal(parameter: Parameter, said: object, port: Port | None) -> None:
    try:
        found = told(parameter, said, port)
    except GenieError as error:
        refused = str(error)
        assert refused.startswith(f"fault.f.parameters.{parameter.name}: ")
        return
    assert found
    assert all(isinstance(value, int | str) and not isinstance(value, bool) for value in found.values())
    if parameter.kind in ("rate", "ratio", "bytes"):
        assert all(value > 0 for value in found.values() if isinstance(value, int))
