"""Rules of evidence, as a table: what is in effect, what was never met, what is missing and therefore not so."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from fault_node import Node as FaultNode
from fault_node import port, red

from genie.errors import RunAborted
from genie.fabric.base import Capabilities
from genie.faults.change import State, parse_state, render_word
from genie.faults.config import FaultConfig, WindowConfig
from genie.faults.evidence import EvidenceRecord, Observed, in_place, is_plausible_count, judge, peak_rate_bps
from genie.faults.parameters import PPB
from genie.faults.plan import DRY_TOOLS, Change, FaultPlan, RunFacts, plan_faults
from genie.faults.plan import words as plan_words
from genie.results.ports import NOT_KNOWN, RECORD
from genie.topology.model import Ecn, Link, Node, Port, PortModel, Topology

MODEL = PortModel(100_000_000, 100_000, Ecn(20_000, 60_000, 0.1))
WIRE = Topology(
    "wire",
    (Node("h0", "host"), Node("leaf0", "leaf")),
    (Link("h0-leaf0", Port("h0", "leaf0", "leaf0", MODEL), Port("leaf0", "h0", "h0", MODEL), "host"),),
)


def plan(role: str, target: str = "h0/leaf0", marker: str = "bpf", **parameters: str) -> FaultPlan:
    can = Capabilities(shaping=True, ecn=True, loss=True, faults=True, marker=marker, reasons={})
    facts = RunFacts(packets="exact", congestion_control="cubic")
    return plan_faults({"f": FaultConfig(role, target, parameters=parameters)}, WIRE, can, facts)[0]


def samples(port: int = 0, rate_bps: float = 10e6, seconds: float = 1.0, backlog: int = 0, overlimits: int = 5) -> Any:
    """A port sampled every 10 ms while it sends at a steady rate."""
    count = int(seconds * 100) + 1
    made = np.zeros(count, RECORD)
    made["mono_ns"] = 10**12 + np.arange(count) * 10_000_000
    made["port"] = port
    made["tx_bytes"] = np.arange(count) * rate_bps / 8 / 100
    made["overlimits"] = np.linspace(0, overlimits, count)
    made["backlog_bytes"] = backlog
    return made


def shaper(rate_bps: int, kind: str = "tbf") -> str:
    options = {"rate": rate_bps // 8, "burst": 6250, "burst_raw": "1312d", "limit": 100_000}
    return json.dumps([{"kind": kind, "handle": "7e1e:", "root": True, "options": options}])


def drops(packets: int, lost: int, ppb: int = 1_000_000, chain: str = "at_h0") -> str:
    match = {"match": {"op": "<", "left": {"numgen": {"mode": "random", "mod": PPB}}, "right": ppb}}
    rules = [[{"counter": {"packets": packets}}], [match, {"counter": {"packets": lost}}, {"drop": None}]]
    told = [{"rule": {"table": "genie_f_h0", "chain": chain, "expr": expression}} for expression in rules]
    return json.dumps({"nftables": [{"table": {"name": "genie_f_h0"}}, *told]})


def read(fault: FaultPlan, text: str, change: Change) -> State:
    """What the role's own platform makes of what its command printed; "" is a command that failed."""
    told = fault.port_variables(change)
    variables = {"port": {**told, **told["set"]}, **plan_words(fault.name, change.node, fault.marker), **DRY_TOOLS}
    return parse_state(fault.platform(change).read, [(0 if text else 2, text)], variables)


def observe(fault: FaultPlan, text: str, taken: Any = None, before: Any = None, after: Any = None) -> Observed:
    """One reading at the end of the run, as `genie.faults.session` hands it over."""
    target = fault.changes[0].target
    try:
        states, failures = {target: (read(fault, text, fault.changes[0]),)}, {}
    except RunAborted as error:
        states, failures = {}, {target: error.message}
    return Observed(before or {}, after or {}, taken, {}, states, failures)


SLOW = plan("port_rate", rate="10%")


def rate(text: str = "", taken: Any = None, **more: Any) -> EvidenceRecord:
    return judge(SLOW, observe(SLOW, text, taken, **more))


@pytest.mark.parametrize(
    ("record", "state", "words"),
    [
        pytest.param(rate(shaper(10_000_000), samples()), "in_effect", "in effect", id="limiting"),
        pytest.param(rate(shaper(10_000_000), samples(overlimits=0)), "not_exercised", "on none", id="never limiting"),
        pytest.param(rate(shaper(10_000_000), samples(rate_bps=2e6)), "not_exercised", "20% of its rate", id="idle"),
        pytest.param(
            rate(shaper(100_000_000), samples()),
            "not_in_effect",
            "expected rate 10 Mb/s, found rate 100 Mb/s",
            id="reset by someone",
        ),
        pytest.param(rate(shaper(10_000_000), samples(rate_bps=30e6)), "not_in_effect", "at most", id="too fast"),
        pytest.param(rate(shaper(10_000_000), None), "not_in_effect", "no samples", id="no samples"),
        pytest.param(rate(shaper(10_000_000), samples(1)), "not_in_effect", "no samples", id="samples of another port"),
        pytest.param(rate(shaper(10_000_000), samples(seconds=0.05)), "not_in_effect", "no samples", id="too short"),
        pytest.param(rate("", samples()), "not_in_effect", "(exit code 2) cannot be read", id="the port is gone"),
        pytest.param(
            rate(shaper(10_000_000, "bfifo"), samples()), "not_in_effect", "found kind bfifo", id="no tbf any more"
        ),
        pytest.param(rate("junk", samples()), "not_in_effect", "it printed junk", id="not JSON"),
    ],
)
def test_rate(record: EvidenceRecord, state: str, words: str) -> None:
    assert record.state == state
    assert words in record.summary()
    assert record.valid is (state == "in_effect")


LOSSY = plan("port_loss", ratio="0.1%")


@pytest.mark.parametrize(
    ("text", "state", "words"),
    [
        pytest.param(drops(100_000, 103), "in_effect", "in effect", id="as many as expected"),
        pytest.param(drops(100_000, 300), "not_in_effect", "near 100.0 of 100000", id="three times too many"),
        pytest.param(drops(100_000, 1), "not_in_effect", "near 100.0", id="a hundredth"),
        pytest.param(drops(500, 0), "not_exercised", "0 of 500 (expected some 0.5)", id="too few packets"),
        pytest.param(drops(0, 0), "not_exercised", "0 of 0", id="no packets"),
        pytest.param(
            drops(100_000, 103, ppb=2),
            "not_in_effect",
            "expected ratio 0.1%, found ratio 0.0000002%",
            id="another chance",
        ),
        pytest.param(drops(100_000, 103, chain="at_x"), "not_in_effect", "found verdict nothing", id="no such chain"),
        pytest.param("", "not_in_effect", "(exit code 2) cannot be read", id="it cannot be read"),
    ],
)
def test_loss(text: str, state: str, words: str) -> None:
    record = judge(LOSSY, observe(LOSSY, text))
    assert record.state == state
    assert words in record.summary()


def test_a_table_that_is_gone_is_no_loss() -> None:
    assert judge(LOSSY, observe(LOSSY, '{"nftables": []}')).state == "not_in_effect"


UNMARKED = plan("port_ecn")
OFF, ON = json.dumps({"enabled": False}), json.dumps({"enabled": True})
START = {"h0/leaf0": {"ce_marked": 3, "ect_over": 0}, "h0": {"IpExtInECT0Pkts": 10, "IpExtInCEPkts": 1}}


def end(marked: int = 3, over: int = 40, ect: int = 99) -> dict[str, dict[str, int]]:
    return {"h0/leaf0": {"ce_marked": marked, "ect_over": over}, "h0": {"IpExtInECT0Pkts": ect, "IpExtInCEPkts": 1}}


FULL = samples(backlog=50_000)


@pytest.mark.parametrize(
    ("text", "after", "taken", "state", "words"),
    [
        pytest.param(OFF, end(), FULL, "in_effect", "in effect", id="would have marked and did not"),
        pytest.param(OFF, end(marked=4), FULL, "not_in_effect", "packets marked CE", id="one mark is too many"),
        pytest.param(ON, end(), FULL, "not_in_effect", "marking of h0/leaf0", id="switched on by someone"),
        pytest.param(OFF, end(over=0), samples(), "not_exercised", "0% of Kmin", id="no queue"),
        pytest.param(OFF, end(ect=10), FULL, "not_exercised", "TCP negotiated ECN", id="ECN was not negotiated"),
        pytest.param(OFF, {"h0/leaf0": {"ect_over": 9}}, FULL, "not_in_effect", "not recorded", id="marks not counted"),
        pytest.param(OFF, end(marked=NOT_KNOWN), FULL, "not_in_effect", "not recorded", id="marks not known"),
        pytest.param(OFF, end(), None, "not_in_effect", "no samples", id="queues not recorded"),
        pytest.param("", end(), FULL, "not_in_effect", "(exit code 2) cannot be read", id="the marker is gone"),
    ],
)
def test_marking(text: str, after: Any, taken: Any, state: str, words: str) -> None:
    record = judge(UNMARKED, observe(UNMARKED, text, taken, START, after))
    assert record.state == state
    assert words in record.summary()


def test_marking_by_red_is_off_when_there_is_no_red() -> None:
    fault = plan("port_ecn", marker="red")
    after = {"h0/leaf0": {}, "h0": {"IpExtInECT0Pkts": 99}}
    gone = judge(fault, observe(fault, shaper(100_000_000), FULL, {"h0": {"IpExtInECT0Pkts": 1}}, after))
    assert gone.state == "in_effect", gone.summary()
    node = {**port(100_000_000, 6_250, 100_000, 3), "child": red(20_000, 60_000, 100_000, 1500, 100_000_000, "0.1")}
    still = FaultNode({"leaf0": node}).run(["tc", "-j", "-d", "qdisc", "show", "dev", "leaf0"])
    assert judge(fault, observe(fault, still, FULL, START, after)).state == "not_in_effect"


def test_what_passed_alike_on_many_ports_is_one_line() -> None:
    hosts = [Node(f"h{i}", "host") for i in range(9)]
    links = [
        Link(f"s-h{i}", Port("s", f"h{i}", f"h{i}", MODEL), Port(f"h{i}", "s", "s", MODEL), "host") for i in range(9)
    ]
    star = Topology("star", (Node("s", "switch"), *hosts), tuple(links))
    can = Capabilities(shaping=True, ecn=True, loss=True, faults=True, marker="bpf", reasons={})
    fault = plan_faults({"f": FaultConfig("port_ecn", "switches")}, star, can, RunFacts())[0]
    names = [port.name for port in fault.ports]
    after = {name: {"ce_marked": int(name == "s/h4"), "ect_over": 1} for name in names}
    before = {name: {"ce_marked": 0, "ect_over": 0} for name in names}
    taken = np.concatenate([samples(change.index) for change in fault.changes])
    states = {change.target: (read(fault, OFF, change),) for change in fault.changes}
    record = judge(fault, Observed(before, after, taken, {}, states))
    assert len(names) == 9
    assert [check.what for check in record.checks if check.kind == "in_place"] == [
        "marking of 9 ports",
        "packets marked CE by 8 ports",
        "packets marked CE by s/h4",
    ]


def windowed(role: str, window: WindowConfig, **parameters: str) -> FaultPlan:
    can = Capabilities(shaping=True, ecn=True, loss=True, faults=True, marker="bpf", reasons={})
    fault = FaultConfig(role, "h0/leaf0", parameters=parameters, window=window)
    return plan_faults({"f": fault}, WIRE, can, RunFacts(packets="exact", congestion_control="cubic"))[0]


BRIEF = windowed("port_rate", WindowConfig(at="200ms", for_="600ms"), rate="10%")
TENTH, WHOLE = read(BRIEF, shaper(10_000_000), BRIEF.changes[0]), read(BRIEF, shaper(100_000_000), BRIEF.changes[0])
T0 = 10**12  # when the samples begin


@pytest.mark.parametrize(
    ("states", "windows", "fired", "state", "words"),
    [
        pytest.param((TENTH,), ((T0, T0 + 10**9),), (), "in_effect", "in effect", id="in effect while it was open"),
        pytest.param((TENTH, TENTH), ((T0, T0 + 10**9), (T0 + 10**9, 0)), (), "in_effect", "", id="in each of two"),
        pytest.param((TENTH, WHOLE), ((T0, T0 + 10**9),), (), "not_in_effect", "100 Mb/s", id="but not in the second"),
        pytest.param((TENTH,), (), (), "not_in_effect", "within the run: expected at least 1", id="never opened"),
        pytest.param(
            (TENTH,), ((T0, T0 + 10**9),), ("h0",), "not_in_effect", "h0 put itself back during the run", id="timed out"
        ),
        pytest.param((TENTH,), ((T0 - 9, T0 - 1),), (), "not_in_effect", "0 (1 when it did not run)", id="before it"),
    ],
)  # fmt: skip
def test_a_fault_with_windows(states: Any, windows: Any, fired: Any, state: str, words: str) -> None:
    seen = Observed({}, {}, samples(), {}, {"h0/leaf0": states}, {}, windows, fired)
    record = judge(BRIEF, seen)
    assert record.state == state, record.summary()
    assert words in record.summary()


def test_a_fault_whose_warden_died_is_not_in_effect_whatever_its_windows_say() -> None:
    seen = Observed({}, {}, samples(), {}, {"h0/leaf0": (TENTH,)}, {}, ((T0, T0 + 10**9),))
    record = judge(BRIEF, replace(seen, dead=("the warden of h0 is dead",)))
    assert record.state == "not_in_effect"
    assert "warden of the fault: expected alive to the end, found the warden of h0 is dead" in record.summary()


DARK = windowed("port_state", WindowConfig(at="200ms"))


@pytest.mark.parametrize(
    ("window", "state"),
    [
        pytest.param((T0 + 10**9 + 1, T0 + 2 * 10**9), "not_in_effect", id="when all had ended"),
        pytest.param((T0 - 2 * 10**9, T0 - 1), "not_in_effect", id="before any began"),
        pytest.param((T0 + 990_000_000, 0), "in_effect", id="in the last moment"),
    ],
)
def test_a_port_that_went_down_when_nothing_ran_was_no_fault(window: tuple[int, int], state: str) -> None:
    taken = samples()
    taken["tx_bytes"] = np.minimum(taken["tx_bytes"], taken["tx_bytes"][-2])
    record = judge(DARK, Observed({}, {}, taken, {}, {"h0/leaf0": ({"up": False},)}, {}, (window,)))
    assert record.state == state, record.summary()


UNMARKED_BRIEFLY = windowed("port_ecn", WindowConfig(at_iteration=2, for_iterations=1))
TINY = windowed("port_buffer", WindowConfig(at="200ms", for_="400ms"), limit="25%")


@pytest.mark.parametrize(
    ("fault", "counter", "at_ms", "state"),
    [
        pytest.param(UNMARKED_BRIEFLY, "ce_marked", 100, "in_effect", id="marks before the window are none of its"),
        pytest.param(UNMARKED_BRIEFLY, "ce_marked", 700, "in_effect", id="nor those after it"),
        pytest.param(UNMARKED_BRIEFLY, "ce_marked", 400, "not_in_effect", id="marks within it are"),
        pytest.param(TINY, "drops", 100, "not_exercised", id="drops before the window prove nothing"),
        pytest.param(TINY, "drops", 700, "not_exercised", id="nor do those after it"),
        pytest.param(TINY, "drops", 400, "in_effect", id="drops within it do"),
    ],
)
def test_what_a_counter_did_outside_the_windows_says_nothing(
    fault: FaultPlan, counter: str, at_ms: int, state: str
) -> None:
    taken = samples(backlog=50_000)
    taken[counter] = np.where(taken["mono_ns"] > T0 + at_ms * 1_000_000, 7, 0)
    arrived = ({"h0": {"IpExtInECT0Pkts": 0}}, {"h0": {"IpExtInECT0Pkts": 9}})
    told = fault.port_variables(fault.changes[0])
    variables = {"port": {**told, **told["set"]}}
    after = fault.platform(fault.changes[0]).after
    as_made = {key: render_word(said, variables) if isinstance(said, str) else said for key, said in after.items()}
    states = {"h0/leaf0": (as_made,)}
    window = (T0 + 200_000_000, T0 + 600_000_000)
    record = judge(fault, Observed(*arrived, taken, {}, states, {}, (window,)))
    assert record.state == state, record.summary()


@pytest.mark.parametrize(
    "counted",
    [
        pytest.param([(9, 0), (50_000, 40), (7, 0), (50_000, 60)], id="it falls from one to the next"),
        pytest.param([(9, 0), (50_000, 40), (50_000, 41), (50_000, 60)], id="it does not"),
    ],
)
def test_losses_of_all_windows_are_taken_together(counted: list[tuple[int, int]]) -> None:
    """Each window has its own table, read as it opens and as it ends."""
    fault = windowed("port_loss", WindowConfig(period="1s", duty=0.5), ratio="0.1%")
    states = tuple(read(fault, drops(packets, lost), fault.changes[0]) for packets, lost in counted)
    rounds = {"h0/leaf0": (0, 0, 1, 1)}
    record = judge(fault, Observed({}, {}, None, {}, {"h0/leaf0": states}, {}, ((1, 2), (3, 4)), rounds=rounds))
    assert record.state == "in_effect", record.summary()
    assert record.facts["h0/leaf0.lost"] == 100


def test_oversize_packets_of_before_the_fault_are_not_its_own() -> None:
    fault = plan("port_mtu", mtu="1500")
    big = ({"mtu": 1500, "up": True, "rx_dropped": 70},)
    for before, state in ((70, "not_exercised"), (60, "in_effect")):
        found = {"h0/leaf0": {"mtu": 4200, "rx_dropped": before}}
        record = judge(fault, Observed({}, {}, None, {}, {"h0/leaf0": big}, found=found))
        assert (record.state, record.facts["h0/leaf0.dropped"]) == (state, 70 - before)


def test_conditions_may_name_what_commands_may() -> None:
    """As while a fault lives: the fault, the node, its time limit."""
    told = {"fault": "f", "node": "h0", "ttl_hms": "00:10:00"}
    how = replace(SLOW.platform(SLOW.changes[0]), after={"limit": "{{ fault }} on {{ node }} for {{ ttl_hms }}"})
    with patch.object(FaultPlan, "platform", lambda *_: how):
        states = {"h0/leaf0": ({"limit": "f on h0 for 00:10:00"},)}
        checks = in_place(SLOW, Observed({}, {}, None, {}, states, words={"h0": told}))
    assert [check.ok for check in checks] == [True]


def test_what_was_not_read_is_not_in_place() -> None:
    record = judge(SLOW, Observed({}, {}, samples()))
    assert record.state == "not_in_effect"
    assert "shaper of h0/leaf0: expected kind tbf, rate 10 Mb/s, found not read" in record.summary()


def test_facts_for_the_healthy_twin() -> None:
    facts = judge(UNMARKED, observe(UNMARKED, OFF, FULL, START, end())).facts
    assert facts["ect_packets"] == 89
    assert facts["h0/leaf0.would_have_marked"] == 40
    assert facts["h0/leaf0.queue_max_bytes"] == 50_000


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20_000), st.sampled_from([1e-4, 1e-3, 0.02, 0.5, 1.0]), st.integers(0, 2**32))
def test_a_true_loss_is_plausible(packets: int, chance: float, seed: int) -> None:
    lost = int(np.random.default_rng(seed).binomial(packets, chance))
    assert is_plausible_count(lost, packets, chance)


@pytest.mark.parametrize(
    ("count", "trials", "chance", "plausible"),
    [
        (0, 0, 0.1, True),
        (1, 0, 0.1, False),
        (11, 10, 0.1, False),
        (10, 10, 1.0, True),
        (9, 10, 1.0, False),
        (5, 10, 0, False),
    ],
)
def test_edges_of_the_binomial(count: int, trials: int, chance: float, plausible: bool) -> None:
    assert is_plausible_count(count, trials, chance) is plausible


def test_a_burst_shorter_than_the_window_does_not_raise_the_peak_beyond_itself() -> None:
    taken = samples(rate_bps=10e6, seconds=3.0)
    taken["tx_bytes"][50:] += 6_250
    peak, span = peak_rate_bps(taken)  # type: ignore[misc]
    assert peak == pytest.approx(10e6 + 6_250 * 8 / (span / 1e9))
