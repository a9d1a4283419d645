"""Rules of evidence, as a table: what is in effect, what was never met, what is missing and therefore not so."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.fabric.base import Capabilities
from genie.faults.config import FaultConfig
from genie.faults.evidence import EvidenceRecord, Observed, is_plausible_count, judge, peak_rate_bps
from genie.faults.plan import FaultPlan, RunFacts, plan_faults
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
    match = {"match": {"op": "<", "left": {}, "right": ppb}}
    rules = [[{"counter": {"packets": packets}}], [match, {"counter": {"packets": lost}}, {"drop": None}]]
    return json.dumps({"nftables": [{"rule": {"chain": chain, "expr": expression}} for expression in rules]})


def observe(rule: str, text: str = "", taken: Any = None, before: Any = None, after: Any = None) -> Observed:
    texts = {(rule, "h0/leaf0"): text} if text else {}
    return Observed(before or {}, after or {}, taken, texts, {} if text else {(rule, "h0/leaf0"): "Cannot find device"})


SLOW = plan("port_rate", rate="10%")


def rate(text: str = "", taken: Any = None, **more: Any) -> EvidenceRecord:
    return judge(SLOW, observe("rate_capped", text, taken, **more))


@pytest.mark.parametrize(
    ("record", "state", "words"),
    [
        pytest.param(rate(shaper(10_000_000), samples()), "in_effect", "in effect", id="limiting"),
        pytest.param(rate(shaper(10_000_000), samples(overlimits=0)), "not_exercised", "on none", id="never limiting"),
        pytest.param(rate(shaper(10_000_000), samples(rate_bps=2e6)), "not_exercised", "20% of its rate", id="idle"),
        pytest.param(rate(shaper(100_000_000), samples()), "not_in_effect", "found 100 Mb/s", id="reset by someone"),
        pytest.param(rate(shaper(10_000_000), samples(rate_bps=30e6)), "not_in_effect", "at most", id="too fast"),
        pytest.param(rate(shaper(10_000_000), None), "not_in_effect", "no samples", id="no samples"),
        pytest.param(rate(shaper(10_000_000), samples(1)), "not_in_effect", "no samples", id="samples of another port"),
        pytest.param(rate(shaper(10_000_000), samples(seconds=0.05)), "not_in_effect", "no samples", id="too short"),
        pytest.param(rate("", samples()), "not_in_effect", "Cannot find device", id="the port is gone"),
        pytest.param(rate(shaper(10_000_000, "bfifo"), samples()), "not_in_effect", "shaper", id="no tbf any more"),
        pytest.param(rate("junk", samples()), "not_in_effect", "shaper", id="not JSON"),
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
        pytest.param(drops(100_000, 103, ppb=2), "not_in_effect", "2 in a billion", id="another chance"),
        pytest.param(drops(100_000, 103, chain="at_x"), "not_in_effect", "no counted drop rule", id="no such chain"),
        pytest.param("", "not_in_effect", "Cannot find device", id="the table is gone"),
    ],
)
def test_loss(text: str, state: str, words: str) -> None:
    seen = observe("drops_binomial", text)
    if text:
        seen = Observed({}, {}, None, seen.texts, {})
    record = judge(LOSSY, seen)
    assert record.state == state
    assert words in record.summary()


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
        pytest.param(ON, end(), FULL, "not_in_effect", "marker of h0/leaf0 at the end", id="switched on by someone"),
        pytest.param(OFF, end(over=0), samples(), "not_exercised", "0% of Kmin", id="no queue"),
        pytest.param(OFF, end(ect=10), FULL, "not_exercised", "TCP negotiated ECN", id="ECN was not negotiated"),
        pytest.param(OFF, {"h0/leaf0": {"ect_over": 9}}, FULL, "not_in_effect", "not recorded", id="marks not counted"),
        pytest.param(OFF, end(marked=NOT_KNOWN), FULL, "not_in_effect", "not recorded", id="marks not known"),
        pytest.param(OFF, end(), None, "not_in_effect", "no samples", id="queues not recorded"),
        pytest.param("", end(), FULL, "not_in_effect", "Cannot find device", id="the marker is gone"),
    ],
)
def test_marking(text: str, after: Any, taken: Any, state: str, words: str) -> None:
    record = judge(UNMARKED, observe("marking_off", text, taken, START, after))
    assert record.state == state
    assert words in record.summary()


def test_marking_by_red_is_off_when_there_is_no_red() -> None:
    fault = plan("port_ecn", marker="red")
    after = {"h0/leaf0": {}, "h0": {"IpExtInECT0Pkts": 99}}
    gone = judge(fault, observe("marking_off", shaper(100_000_000), FULL, {"h0": {"IpExtInECT0Pkts": 1}}, after))
    assert gone.state == "in_effect", gone.summary()
    still = json.dumps([{"kind": "red", "parent": "7e1e:1"}])
    assert judge(fault, observe("marking_off", still, FULL, START, after)).state == "not_in_effect"


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
    record = judge(fault, Observed(before, after, taken, {("marking_off", name): OFF for name in names}, {}))
    assert [check.what for check in record.checks if check.kind == "in_place"] == [
        "packets marked CE by 8 ports",
        "marker of 9 ports at the end",
        "packets marked CE by s/h4",
    ]


def test_facts_for_the_healthy_twin() -> None:
    facts = judge(UNMARKED, observe("marking_off", OFF, FULL, START, end())).facts
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
