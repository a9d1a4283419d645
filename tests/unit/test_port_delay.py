"""The role port_delay: what it reads, what it plans, and what it refuses before anything is touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from genie.errors import ConfigError, EnvironmentUnfit, PlanError
from genie.fabric.base import Capabilities
from genie.faults.config import FaultConfig
from genie.faults.plan import FaultPlan, RunFacts, plan_faults
from genie.faults.reading import PARSERS
from genie.topology.model import Link, Node, Port, PortModel, Topology

ABLE = Capabilities(shaping=True, ecn=True, loss=True, delay=True, faults=True, marker="bpf", reasons={})
NETEM = (
    '[{"kind":"netem","handle":"8002:","root":true,"options":{"limit":100000,"delay":{"delay":0.001234,'
    '"jitter":0.0005,"correlation":0}},"packets":7,"drops":1}]'
)
REDIRECT = (
    '[{"pref":7,"kind":"matchall"},{"pref":7,"kind":"matchall","options":{"actions":[{"kind":"mirred",'
    '"mirred_action":"redirect","to_dev":"gd-b"}]}}]'
)


@pytest.mark.parametrize(
    ("parser", "code", "text", "expected"),
    [
        pytest.param("trial", 0, "works\n", {"trial": "works"}, id="a trial that works"),
        pytest.param("trial", 2, "Error: no such\n qdisc", {"trial": "Error: no such qdisc"}, id="one that does not"),
        pytest.param("trial", 127, "", {"trial": "exit code 127"}, id="one that says nothing"),
        pytest.param("netem", 1, "", {"queue": "none"}, id="no device"),
        pytest.param("netem", 0, '[{"kind":"noqueue","root":true}]', {"queue": "noqueue"}, id="another queue"),
        pytest.param("netem", 0, NETEM,
                     {"queue": "netem", "delay_ns": 1_234_000, "jitter_ns": 500_000, "packets": 7, "drops": 1},
                     id="netem to the microsecond"),
        pytest.param("ingress_hook", 0, '[{"kind":"tbf"},{"kind":"clsact"}]', {"hook": "clsact"}, id="clsact"),
        pytest.param("ingress_hook", 0, '[{"kind":"tbf"}]', {"hook": "none"}, id="no hook"),
        pytest.param("ingress_filters", 0, "", {"filters": "none"}, id="no filters"),
        pytest.param("ingress_filters", 0, REDIRECT, {"filters": "redirect to gd-b"}, id="the redirect"),
        pytest.param("ingress_filters", 0, '[{"kind":"u32","options":{}}]', {"filters": "u32"}, id="a foreign filter"),
    ],
)  # fmt: skip
def test_what_tools_print_is_read(parser: str, code: int, text: str, expected: Mapping[str, Any]) -> None:
    assert PARSERS[parser](text, code, {}) == expected


def plan(parameters: Mapping[str, Any], able: Capabilities = ABLE, dilation: float = 1.0) -> FaultPlan:
    model = PortModel(100_000_000, 100_000)
    wire = Link("a-b", Port("a", "b", "b", model), Port("b", "a", "enp129s0f0np0", model), "fabric")
    topology = Topology("wire", (Node("a", "leaf"), Node("b", "leaf")), (wire,))
    fault = FaultConfig("port_delay", "a/b", parameters=dict(parameters))
    return plan_faults({"f": fault}, topology, able, RunFacts(time_dilation=dilation))[0]


def test_it_is_made_where_packets_arrive_and_named_for_a_long_interface() -> None:
    (change,) = plan({"delay": "5ms", "jitter": 20}).changes
    assert (change.node, change.object) == ("b", "enp129s0f0np0")
    assert "tc qdisc add dev gd-np129s0f0np0 root netem limit 100000 delay 5000us 1000us rate 1tbit" in change.commands
    assert all(len(word) <= 15 for word in " ".join(change.commands).split() if word.startswith("gd-"))


def test_a_dilated_fabric_delays_as_much_longer() -> None:
    assert plan({"delay": "5us"}, dilation=100).changes[0].values["delay_ns"] == 500_000


@pytest.mark.parametrize(
    ("parameters", "dilation", "words"),
    [
        pytest.param({"delay": "100ns"}, 1, "whole microseconds from 1us to 1s", id="below what tc can say"),
        pytest.param({"delay": "2s"}, 1, "found 2s", id="longer than an undo should wait"),
        pytest.param({"delay": "20ms"}, 100, "found 20ms, which is 2 s on the wire", id="too long when dilated"),
        pytest.param({"delay": "5"}, 1, "20ms", id="no unit"),
        pytest.param({"delay": "5ms", "jitter": 120}, 1, "from 0 to 100", id="jitter beyond the delay"),
    ],
)
def test_what_cannot_be_is_refused(parameters: Mapping[str, Any], dilation: float, words: str) -> None:
    with pytest.raises((ConfigError, PlanError), match=words):
        plan(parameters, dilation=dilation)


def test_a_kernel_without_netem_is_refused_with_its_reason() -> None:
    unable = Capabilities(True, True, True, True, "bpf", {"delay": "kernel without sch_netem"})
    with pytest.raises(EnvironmentUnfit, match="kernel without sch_netem"):
        plan({"delay": "5ms"}, unable)
