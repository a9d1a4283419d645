"""Parsers of what tools print: on what they printed on Debian 12 (iproute2 6.1, nftables 1.0.6), and on garbage."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from fault_node import Node, port, red, ticks

from genie.errors import RunAborted
from genie.faults.change import parse_state
from genie.faults.reading import PARSERS, TBF_TICK_NS, root_qdisc
from genie.faults.recipe import Read

PRINTED = Path(__file__).parent.parent / "data" / "faults"
PORT = {"fault": "f", "port": {"interface": "e1", "mtu": 1500}}


def printed(name: str) -> str:
    return (PRINTED / f"{name}.json").read_text()


def red_below_the_shaper() -> str:
    """As iproute2 prints it; the kernels of the test machines lack sch_red."""
    shaped = port(100_000_000, 6_250, 100_000, 3)
    shaped["child"] = red(20_000, 60_000, 100_000, 1500, 100_000_000, "0.1")
    return Node({"e1": shaped}).run(["tc", "-j", "-d", "qdisc", "show", "dev", "e1"])


TBF = {
    "kind": "tbf", "handle": "7e1e:", "rate_bps": 100_000_000, "burst_ticks": 0x1E84, "burst_bytes": 6250,
    "limit_bytes": 100_000,
}  # fmt: skip
RED = {
    "marking": True, "parent": "7e1e:1", "handle": "7e1f:", "limit": 100_000, "min": 20_000, "max": 60_000,
    "probability": 0.1, "ewma": 4, "flags": "ecn nodrop", "burst": 23,
}  # fmt: skip
LOSING = {"table": "there", "chain": "at_e1", "verdict": "drop", "packets": 0, "taken": 0}
MARKER = {"marking": True, "ifindex": 3, "enabled": True, "kmin_bytes": 20_000, "kmax_bytes": 60_000, "pmax": 0.1}


@pytest.mark.parametrize(
    ("parser", "text", "code", "fields"),
    [
        pytest.param("root_qdisc", printed("tc_qdisc_tbf"), 0, TBF, id="the fabric's tbf"),
        pytest.param("root_qdisc", printed("tc_qdisc_noqueue"), 0, {"kind": "noqueue", "handle": "0:"}, id="no queue"),
        pytest.param("child_red", printed("tc_qdisc_bfifo"), 0, {"marking": False}, id="a bfifo instead of red"),
        pytest.param("child_red", red_below_the_shaper(), 0, RED, id="red below the shaper"),
        pytest.param("marker", printed("genie_port_marker"), 0, MARKER, id="a marker"),
        pytest.param("nft_table", printed("nft_table_other"), 0, {"table": "none"}, id="no such table"),
        pytest.param("nft_table", printed("nft_table_empty"), 0, {"table": "there", "chain": "none"}, id="no chain"),
        pytest.param("nft_table", printed("nft_table_drop"), 0, {**LOSING, "ratio_ppb": 10**6}, id="a chance"),
        pytest.param("nft_table", printed("nft_table_drop_all"), 0, {**LOSING, "ratio_ppb": 10**9}, id="every packet"),
        pytest.param("ip_link", printed("ip_link"), 0, {"mtu": 1500, "up": True, "group": "default"}, id="a link"),
        pytest.param("value", "1\n", 0, {"value": "1"}, id="a setting"),
        pytest.param("value", "4096\t131072\t6291456\n", 0, {"value": "4096 131072 6291456"}, id="of three numbers"),
        pytest.param("nothing", "whatever", 0, {"there": True}, id="it ran"),
    ],
)
def test_what_tools_print(parser: str, text: str, code: int, fields: dict[str, Any]) -> None:
    assert PARSERS[parser](text, code, PORT) == fields


def test_the_table_of_another_port_or_fault_is_not_ours() -> None:
    for other in ({**PORT, "port": {"interface": "e2"}}, {**PORT, "fault": "g"}):
        assert PARSERS["nft_table"](printed("nft_table_drop"), 0, other) == {"table": "none"}


def test_counters_are_read_from_their_own_rules() -> None:
    text = (
        printed("nft_table_drop").replace('"packets": 0', '"packets": 900', 1).replace('"packets": 0', '"packets": 7')
    )
    found = PARSERS["nft_table"](text, 0, PORT)
    assert (found["packets"], found["taken"]) == (900, 7)


def test_a_link_that_is_down() -> None:
    text = printed("ip_link").replace('"UP","LOWER_UP"', '"NO-CARRIER"')
    assert PARSERS["ip_link"](text, 0, PORT)["up"] is False


GARBAGE = [
    pytest.param("", 1, id="nothing"),
    pytest.param("", 127, id="the tool is not there"),
    pytest.param("", 126, id="it may not be run"),
    pytest.param("", 137, id="it was killed"),
    pytest.param("not JSON", 0, id="not JSON"),
    pytest.param("[]", 0, id="an empty list"),
    pytest.param("{}", 0, id="an empty object"),
    pytest.param("null", 0, id="null"),
    pytest.param("7", 0, id="a number"),
    pytest.param('[{"kind": "red"}, {"ifname": "e1"}]', 0, id="objects without their fields"),
    pytest.param('[7, {"kind": "tbf", "root": true}]', 0, id="a list of something else"),
    pytest.param(
        '{"nftables": [{"table": {"name": "genie_f_e1"}}, '
        '{"rule": {"table": "genie_f_e1", "chain": "at_e1", "expr": []}}]}',
        0,
        id="a rule without a counter",
    ),
]


@pytest.mark.parametrize(
    ("parser", "text", "code"),
    [
        pytest.param(parser, *case.values, id=f"{parser}: {case.id}")
        for parser in ("root_qdisc", "child_red", "marker", "nft_table", "ip_link")
        for case in GARBAGE
    ],
)
def test_garbage_is_an_error_in_the_tools_words(parser: str, text: str, code: int) -> None:
    with pytest.raises(RunAborted, match=f"exit code {code}\\) cannot be read"):
        parse_state([Read(("tool",), parser)], [(code, text)], PORT)


@pytest.mark.parametrize(("parser", "text", "code"), [("value", "", 0), ("value", "1", 1), ("nothing", "", 1)])
def test_a_value_that_could_not_be_read_is_an_error(parser: str, text: str, code: int) -> None:
    with pytest.raises(RunAborted, match="cannot be read"):
        parse_state([Read(("cat", "x"), parser)], [(code, text)], PORT)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["root", "kind", "options", "handle", "nftables", "rule", "expr"]), inner)
    ),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.text(max_size=40), JSON.map(json.dumps)), st.sampled_from([0, 1, 2, 127]))
def test_no_garbage_ends_in_anything_but_an_answer_or_our_own_error(text: str, code: int) -> None:
    for name in PARSERS:
        with contextlib.suppress(RunAborted):
            assert isinstance(parse_state([Read(("tool",), name)], [(code, text)], PORT), dict)


@settings(max_examples=150, deadline=None)
@given(rate=st.integers(1_000, 50_000_000_000), burst=st.integers(1514, 4_000_000))
def test_the_burst_read_is_the_least_that_makes_the_same_ticks(rate: int, burst: int) -> None:
    made = ticks(burst, rate)
    options = {"rate": rate, "burst_raw": f"{made:x}", "limit": 1}
    queue = {"kind": "tbf", "handle": "1:", "root": True, "options": options}
    found = root_qdisc(json.dumps([queue]), 0, {})
    assert found["burst_ticks"] == made
    assert found["burst_bytes"] <= burst
    assert ticks(found["burst_bytes"], rate) == made
    assert (found["burst_bytes"] - 1) * 1_000_000_000 // (TBF_TICK_NS * rate) < made


def test_a_parser_is_known_by_its_own_name() -> None:
    assert all(parser.__name__ == name and parser.__doc__ for name, parser in PARSERS.items())
