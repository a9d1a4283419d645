"""Targets and plans of faults: what is selected, what is refused and in which words, what will be run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from genie.errors import ConfigError, EnvironmentUnfit, PlanError
from genie.fabric.base import Capabilities
from genie.faults.config import FaultConfig, WindowConfig, available_faults
from genie.faults.plan import FaultPlan, RunFacts, plan_faults
from genie.paths import conf_dir
from genie.schema import build
from genie.topology import build as build_topology
from genie.topology.config import LeafSpineConfig
from genie.topology.model import Ecn, Link, Node, Port, PortModel, Topology

GOLDEN = Path(__file__).parent.parent / "golden" / "faults"
ALL_CAN = Capabilities(shaping=True, ecn=True, loss=True, delay=True, faults=True, marker="bpf", reasons={})
UPLINKS = [f"leaf{i}/spine{j}" for i in (0, 1) for j in (0, 1)]
NODES = (*(f"h{i}" for i in range(4)), "leaf0", "leaf1", "spine0", "spine1")
EXACT = RunFacts(
    packets="exact", congestion_control="cubic", seed=1, addresses={"h0": "10.0.0.1"},
    platforms=dict.fromkeys(NODES, ("netns", "linux")),
)  # fmt: skip


def clos(ecn_on_hosts: bool = True) -> Topology:
    """Four hosts, two leaves, two spines; 100 Mb/s at hosts, 200 between switches."""
    mark = Ecn(20_000, 60_000, 0.1)
    nodes = [*(Node(f"h{i}", "host", {"rack": str(i // 2)}) for i in range(4))]
    nodes += [*(Node(f"leaf{i}", "leaf") for i in range(2)), *(Node(f"spine{i}", "spine") for i in range(2))]
    links = []
    for i in range(4):
        leaf = f"leaf{i // 2}"
        up = PortModel(100_000_000, 100_000, mark if ecn_on_hosts else None)
        down = PortModel(100_000_000, 100_000, mark)
        links.append(Link(f"h{i}-{leaf}", Port(f"h{i}", leaf, leaf, up), Port(leaf, f"h{i}", f"h{i}", down), "host"))
    for leaf in ("leaf0", "leaf1"):
        for spine in ("spine0", "spine1"):
            model = PortModel(200_000_000, 100_000, mark)
            links.append(
                Link(f"{leaf}-{spine}", Port(leaf, spine, spine, model), Port(spine, leaf, leaf, model), "fabric")
            )
    return Topology("small_clos", tuple(nodes), tuple(links))


def config(role: str = "port_rate", targets: Any = "all", **more: Any) -> FaultConfig:
    defaults = {"port_rate": {"rate": "10%"}, "port_loss": {"ratio": "0.1%"}}.get(role, {})
    return FaultConfig(role, targets, parameters=more.pop("parameters", defaults), **more)


def ports(found: tuple[FaultPlan, ...]) -> list[str]:
    return [f"{port.node}/{port.peer}" for port in found[0].ports]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        pytest.param(config(targets="h0-leaf0"), ["h0/leaf0", "leaf0/h0"], id="a link by name is both its ports"),
        pytest.param(config(targets="h0-leaf0", ends="up"), ["h0/leaf0"], id="up is away from the hosts"),
        pytest.param(config(targets="h0-leaf0", ends="down"), ["leaf0/h0"], id="down is towards them"),
        pytest.param(config(targets="leaf0/spine1"), ["leaf0/spine1"], id="a port by name"),
        pytest.param(config(targets="spine*/leaf1"), ["spine0/leaf1", "spine1/leaf1"], id="ports by glob"),
        pytest.param(config(targets="spine0", ends="down"), ["spine0/leaf0", "spine0/leaf1"], id="a node is its links"),
        pytest.param(config("port_loss", "h3"), ["h3/leaf1", "leaf1/h3"], id="a host is its link"),
        pytest.param(config(targets="leaf*-spine0", ends="up"), ["leaf0/spine0", "leaf1/spine0"], id="links by glob"),
        pytest.param(config(targets="role=spine", ends="up"), UPLINKS, id="by role"),
        pytest.param(config(targets="rack=1", ends="up"), ["h2/leaf1", "h3/leaf1"], id="by a free attribute"),
        pytest.param(config(targets="tier=host", ends="up"), [f"h{i}/leaf{i // 2}" for i in range(4)], id="by tier"),
        pytest.param(config(targets=("h1", "h0-leaf0"), ends="up"), ["h0/leaf0", "h1/leaf0"], id="a union"),
        pytest.param(config(targets="rank=1", ends="up"), ["h3/leaf1"], id="the host of a rank"),
    ],
)
def test_selectors(fault: FaultConfig, expected: list[str]) -> None:
    facts = RunFacts(packets="exact", placement=("h0", "h3"))
    assert ports(plan_faults({"f": fault}, clos(), ALL_CAN, facts)) == expected


def test_a_count_takes_whole_links_and_the_same_for_the_same_seed() -> None:
    fault = config(targets="tier=host", count=2)
    drawn = {seed: ports(plan_faults({"f": fault}, clos(), ALL_CAN, RunFacts(seed=seed))) for seed in range(20)}
    again = {seed: ports(plan_faults({"f": fault}, clos(), ALL_CAN, RunFacts(seed=seed))) for seed in range(20)}
    assert drawn == again
    assert all(len(found) == 4 for found in drawn.values())
    assert len({tuple(found) for found in drawn.values()}) > 1


def test_a_fraction_takes_at_least_one() -> None:
    assert len(ports(plan_faults({"f": config(targets="tier=host", fraction=0.01)}, clos(), ALL_CAN, EXACT))) == 2
    assert len(ports(plan_faults({"f": config(targets="tier=host", fraction=0.5)}, clos(), ALL_CAN, EXACT))) == 4


REFUSALS = [
    pytest.param({"f": config(targets="h9")}, ALL_CAN, EXACT, id="nothing matches"),
    pytest.param({"f": config(targets="h0; rm -rf /")}, ALL_CAN, EXACT, id="an injection"),
    pytest.param({"f": config(targets="$(reboot)")}, ALL_CAN, EXACT, id="a substitution"),
    pytest.param({"f": config(targets="{{ 7 * 7 }}")}, ALL_CAN, EXACT, id="a template"),
    pytest.param({"f": config(targets="tier=host", count=9)}, ALL_CAN, EXACT, id="more than there are"),
    pytest.param({"f": config(parameters={"rate": "100%"})}, ALL_CAN, EXACT, id="a rate that changes nothing"),
    pytest.param({"f": config(parameters={"rate": "0%"})}, ALL_CAN, EXACT, id="rate 0"),
    pytest.param({"f": config(parameters={"rate": "10 apples"})}, ALL_CAN, EXACT, id="not a rate"),
    pytest.param({"f": config(parameters={"rate": "1kbps"})}, ALL_CAN, EXACT, id="below what the shaper can"),
    pytest.param({"f": config("port_loss", parameters={"ratio": "120%"})}, ALL_CAN, EXACT, id="more than all packets"),
    pytest.param({"f": config("port_loss", parameters={"ratio": 0})}, ALL_CAN, EXACT, id="a loss of nothing"),
    pytest.param({"x; flush ruleset; #": config("port_loss")}, ALL_CAN, EXACT, id="a name that nft would obey"),
    pytest.param({"../x": config()}, ALL_CAN, EXACT, id="a name that leaves its folder"),
    pytest.param({"a.b": config()}, ALL_CAN, EXACT, id="a name with a dot"),
    pytest.param({"f": config("port_loss")}, ALL_CAN, RunFacts(packets="bulk"), id="loss of super-packets"),
    pytest.param(
        {"f": config()},
        Capabilities(False, False, False, False, "none", {"faults": "fabric=loopback shapes nothing"}),
        EXACT,
        id="a fabric without faults",
    ),
    pytest.param(
        {"f": config("port_loss")},
        Capabilities(True, True, False, True, "bpf", {"loss": "nft refused a drop rule"}),
        EXACT,
        id="a fabric without loss",
    ),
    pytest.param({"a": config(targets="h0"), "b": config(targets="tier=host")}, ALL_CAN, EXACT, id="two on one port"),
]


@pytest.mark.parametrize(("faults", "capabilities", "facts"), REFUSALS)
def test_refusals(
    faults: dict[str, FaultConfig], capabilities: Capabilities, facts: RunFacts, request: pytest.FixtureRequest
) -> None:
    with pytest.raises((PlanError, ConfigError, EnvironmentUnfit)) as caught:
        plan_faults(faults, clos(), capabilities, facts)
    lacks = capabilities.faults and not (capabilities.ecn and capabilities.loss and capabilities.shaping)
    assert caught.value.exit_code == (3 if lacks else 2)
    check_golden("refusals.yml", request.node.callspec.id, str(caught.value))


def test_marking_cannot_be_taken_from_ports_that_do_not_mark() -> None:
    unmarked = build_topology(LeafSpineConfig(ecn=False))
    with pytest.raises(PlanError, match="every port that switches selects is one which marks nothing"):
        plan_faults({"f": config("port_ecn", "switches", parameters={})}, unmarked, ALL_CAN, EXACT)


DOWN = FaultConfig("port_state", "leaf0-spine0")
DEAD, SKEWED = FaultConfig("node_down", "spine0"), FaultConfig("node_ecmp", "leaf0", parameters={"uplinks": 1})


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        pytest.param({"a": SKEWED, "b": DEAD}, "'b' and 'a' do not go together on leaf0", id="its neighbours' routes"),
        pytest.param({"a": DEAD, "b": SKEWED}, "'a' and 'b' do not go together on leaf0", id="in the other order"),
        pytest.param({"a": DOWN, "b": SKEWED}, "puts back the ECMP next hops", id="the routes of its node"),
        pytest.param(
            {"a": DEAD, "b": replace(DEAD, targets="spine1")}, "on leaf0: .* the ECMP next hops", id="two switches"
        ),
        pytest.param({"a": DEAD, "b": DOWN}, "do not go together", id="a port that is down already"),
        pytest.param(
            {"a": DEAD, "b": replace(DOWN, targets="leaf0/h0")}, "on leaf0", id="routes, by way of a host's port"
        ),
    ],
)
def test_faults_whose_undo_would_undo_another_are_refused(faults: dict[str, FaultConfig], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan_faults(faults, clos(), ALL_CAN, EXACT)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param({"a": replace(DEAD, targets=("spine0", "spine1"))}, id="two switches in one"),
        pytest.param({"a": DOWN, "b": replace(DOWN, targets="leaf0/h0")}, id="two ports of a node"),
        pytest.param({"a": DOWN, "b": replace(SKEWED, targets="leaf1")}, id="other nodes"),
        pytest.param({"a": DEAD, "b": config(targets="h0")}, id="other things"),
    ],
)
def test_faults_that_leave_each_other_alone_go_together(faults: dict[str, FaultConfig]) -> None:
    assert len(plan_faults(faults, clos(), ALL_CAN, EXACT)) == len(faults)


def test_a_window_of_iterations_must_begin_within_the_run() -> None:
    late = replace(config(), window=WindowConfig(at_iteration=9))
    assert plan_faults({"f": late}, clos(), ALL_CAN, replace(EXACT, iterations=10))
    with pytest.raises(PlanError, match=r"at_iteration: 9 is past the end: the run has 9 iterations .* the last is 8"):
        plan_faults({"f": late}, clos(), ALL_CAN, replace(EXACT, iterations=9))


def test_faults_on_different_things_of_one_port_go_together() -> None:
    both = {"slow": config(targets="h0"), "lossy": config("port_loss", "h0")}
    assert [plan.name for plan in plan_faults(both, clos(), ALL_CAN, EXACT)] == ["slow", "lossy"]


def test_dilation_divides_the_rate_on_the_wire() -> None:
    fault = config(targets="h0-leaf0", parameters={"rate": "50Mbps"})
    plan = plan_faults({"f": fault}, clos(), ALL_CAN, RunFacts(time_dilation=10))[0]
    assert {change.values["rate_bps"] for change in plan.changes} == {5_000_000}


def shipped(name: str) -> FaultConfig:
    content = yaml.safe_load((conf_dir() / "fault" / f"{name}.yaml").read_text())
    return build(FaultConfig, content, f"fault.{name}")


@pytest.mark.parametrize("name", sorted(available_faults()))
def test_shipped_recipes_plan_as_the_golden_text_says(name: str) -> None:
    text = plan_faults({name: shipped(name)}, clos(), ALL_CAN, EXACT)[0].describe()
    check_golden("plans.yml", name, text)


@pytest.mark.parametrize("name", sorted(available_faults()))
def test_shipped_recipes_say_what_they_are(name: str) -> None:
    raw = (conf_dir() / "fault" / f"{name}.yaml").read_text()
    assert raw.startswith(f"# @package fault.{name}\n# "), "Hydra reads the package from the first line only"
    assert 20 < len(available_faults()[name]) < 110


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param({"role": "port_rat", "targets": ["all"]}, "did you mean 'port_rate'", id="a role with a typo"),
        pytest.param({"role": "port_rate", "targets": []}, "expected a selector", id="no target"),
        pytest.param({"role": "port_rate", "targets": "all"}, "parameters.rate: must be given", id="no rate"),
        pytest.param(
            {"role": "port_rate", "targets": "all", "parameters": {"rat": 1}},
            "did you mean 'rate'",
            id="a parameter with a typo",
        ),
        pytest.param({"role": "port_rate", "targets": "all", "windows": 1}, "fault.f.windows", id="an unknown key"),
        pytest.param(
            {"role": "port_rate", "targets": "all", "count": 0, "parameters": {"rate": "1%"}},
            "count",
            id="a count of 0",
        ),
        pytest.param(
            {"role": "port_rate", "targets": "all", "count": 1, "fraction": 0.5, "parameters": {"rate": "1%"}},
            "choose one of the two",
            id="count and fraction",
        ),
        pytest.param(
            {"role": "port_rate", "targets": "all", "ends": "left", "parameters": {"rate": "1%"}},
            "fault.f.ends",
            id="ends",
        ),
    ],
)
def test_configuration_errors(content: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(FaultConfig, content, "fault.f")
    assert words in str(caught.value)
    assert str(caught.value).startswith("fault.f")


def check_golden(file: str, key: str, text: str) -> None:
    """Compare with tests/golden/faults/FILE; with GENIE_GOLDEN=write in the environment, write it."""
    import os

    path = GOLDEN / file
    known = yaml.safe_load(path.read_text()) if path.exists() else {}
    if os.environ.get("GENIE_GOLDEN") == "write":
        known[key] = text

        class Dumper(yaml.SafeDumper):
            pass

        Dumper.add_representer(
            str, lambda d, s: d.represent_scalar("tag:yaml.org,2002:str", s, style="|" if "\n" in s else None)
        )
        path.write_text(yaml.dump(known, Dumper=Dumper, sort_keys=True, width=10**6, allow_unicode=True))
        return
    assert text == known.get(key), f"{path}: differs for {key!r}; look, then run again with GENIE_GOLDEN=write"


def test_what_nobody_described_cannot_be_changed() -> None:
    facts = replace(EXACT, platforms={**EXACT.platforms, "leaf0": ()})
    with pytest.raises(PlanError, match=r"nothing can be changed on node 'leaf0', which '.*leaf0.*' means") as refused:
        plan_faults({"own": config(targets="leaf0")}, clos(), ALL_CAN, facts)
    assert "fault.own.targets=[HOST]" in refused.value.hint
