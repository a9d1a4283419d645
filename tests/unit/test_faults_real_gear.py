"""Faults on gear that nobody here has, against stand-ins: the whole life on every platform, its traps, its failures.

Every case goes through `genie.faults.life` as Ansible's action does; one session a platform goes through Ansible.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "standins"))
import cumulus
import eos
import infiniband
import mlx5_link
import pci
import sonic
from node import Gear
from standin import State

from genie.engine.binaries import find_binary
from genie.errors import EnvironmentUnfit, FaultRefused, GenieError, PlanError, RunAborted
from genie.fabric.base import Capabilities, Completed
from genie.faults import life, safety, warden
from genie.faults.config import FaultConfig, WindowConfig
from genie.faults.evidence import Observed, judge
from genie.faults.journal import read_journal
from genie.faults.plan import FaultPlan, RunFacts, plan_faults
from genie.faults.reading import VENDOR_PARSERS
from genie.faults.recipe import load_mechanism, load_platform, roles
from genie.faults.session import FaultSession
from genie.topology.model import Ecn, Link, Node, Port, PortModel, Topology

CAN = Capabilities(shaping=True, ecn=True, loss=True, faults=True, marker="none", reasons={})
TTL_NS = 300_000_000_000


def host(**changed: Any) -> State:
    return mlx5_link.host(**changed) | {"pci": {"0000:17:00.0": pci.slot()}}


def with_function() -> State:
    """The card in switchdev mode, with the representor of one virtual function."""
    name = "pci/0000:17:00.0/1"
    return host() | {"rates": {name: {"tx_max": 0, "tx_share": 0}}, "netdevs": {name: "ens1f0npf0vf0"}}


MAKERS: Mapping[str, Callable[[], State]] = {
    "mlx5": host, "mlx5_inbox": host, "mlx5_vf": with_function, "infiniband": infiniband.subnet,
    "sonic": sonic.switch, "cumulus": cumulus.switch, "eos": eos.switch,
}  # fmt: skip
INTERFACES = {
    "mlx5": "ens1f0np0",
    "mlx5_inbox": "ens1f0np0",
    "mlx5_vf": "ens1f0npf0vf0",
    "infiniband": "ib0",
    "sonic": "Ethernet0",
    "cumulus": "swp1",
    "eos": "Ethernet1",
}
PORTS = {
    "mlx5": ["ens1f0np0"], "infiniband": ["ib0"], "sonic": ["Ethernet0", "Ethernet4", "Ethernet8"],
    "cumulus": ["swp1"], "eos": ["Ethernet1"],
}  # fmt: skip
RATES = {"mlx5": 200, "mlx5_inbox": 200, "mlx5_vf": 200, "infiniband": 200, "sonic": 400, "cumulus": 400, "eos": 400}


def planned(
    platform: str, faults: Mapping[str, FaultConfig], interfaces: tuple[str, ...] = ()
) -> tuple[FaultPlan, ...]:
    """Plans for a node of this kind, one link an interface."""
    names = interfaces or (INTERFACES[platform],)
    model = PortModel(RATES[platform] * 10**9, 1_000_000, Ecn(150_000, 1_500_000, 0.1))
    is_host = platform.startswith("mlx5") or platform == "infiniband"
    near = Node("gear", "host" if is_host else "leaf")
    links = tuple(
        Link(f"gear-n{index}", Port("gear", f"n{index}", name, model), Port(f"n{index}", "gear", "eth0", model), "host")
        for index, name in enumerate(names)
    )
    far = tuple(Node(f"n{index}", "leaf" if is_host else "host") for index in range(len(names)))
    facts = RunFacts(congestion_control="cubic", packets="exact", platforms={"gear": (platform,)})
    return plan_faults(faults, Topology("wire", (near, *far), links), CAN, facts)


def fault(role: str, index: int = 0, **parameters: Any) -> FaultConfig:
    acts_on = load_mechanism(role).acts_on
    targets = "gear" if acts_on in ("node", "host") else f"gear/n{index}"
    return FaultConfig(role, targets, parameters=parameters)


def task(plan: FaultPlan, journal: Path) -> life.Task:
    return life.Task(
        run="r", fault=plan.name, role=plan.role, node="gear", platform=plan.changes[0].platform,
        ports=tuple(plan.port_variables(change) for change in plan.changes),
        words={"fault": plan.name, "node": "gear", "marker": "none", "marker_map": "", "state": "/nonexistent"},
        journal=journal, window=warden.Window("told"), is_whole=True, ttl_ns=TTL_NS, warden="", state="", lock="",
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One role on one platform. ``seen`` looks at the state while the fault is in effect."""

    role: str
    platform: str
    seen: Callable[[State], object]
    expected: object
    parameters: Mapping[str, Any] = field(default_factory=dict)
    also: Mapping[str, Any] = field(default_factory=dict)
    """What the state has more than its maker gives it."""

    def __str__(self) -> str:
        return f"{self.role} on {self.platform}"


def dcb(state: State) -> dict[str, Any]:
    return state["devices"]["ens1f0np0"]["dcb"]


def queue(state: State) -> dict[str, str]:
    return state["config"]["QUEUE|Ethernet0|3"]


def bound(state: State, table: str, key: str, name: str) -> dict[str, str]:
    return state["config"][f"{table}|{state['config'][key][name]}"]


def nvue(state: State, *path: str) -> Any:
    tree = cumulus.applied(state)
    for word in path:
        tree = tree[word]
    return tree


def _watchdog(state: State) -> str:
    (own,) = (counters for counters in state["queue_counters"].values() if "DEBUG_STORM" in counters)
    return own["PFC_WD_STATUS"]


CASES = [
    Case("port_rate", "mlx5", lambda s: dcb(s)["maxrate_kbps"], [50_000_000] * 8, {"rate": "25%"}),
    Case("port_speed", "mlx5", lambda s: s["devices"]["ens1f0np0"]["speed"], 100_000, {"rate": "60%"}),
    Case("port_state", "mlx5", lambda s: s["devices"]["ens1f0np0"]["carrier"], False),
    Case("port_pfc", "mlx5", lambda s: dcb(s)["pfc"], [0] * 8),
    Case("port_buffer", "mlx5", lambda s: dcb(s)["buffer_size"][1], 99_968, {"limit": "100000"}),
    Case("port_bus", "mlx5", lambda s: s["pci"]["0000:17:00.0"]["speed"], 3, {"rate": "25%"}),
    Case("host_ecn", "mlx5", lambda s: _file(s, "ecn/roce_rp/enable/3"), "0\n"),
    Case("host_cnp", "mlx5", lambda s: _file(s, "ecn/roce_np/cnp_dscp"), "0\n"),
    Case("host_class", "mlx5", lambda s: dcb(s)["dscp_prio"], {}),
    Case("port_pfc", "mlx5_inbox", lambda s: dcb(s)["pfc"], [0] * 8),
    Case("port_buffer", "mlx5_inbox", lambda s: dcb(s)["buffer_size"][1], 99_968, {"limit": "100000"}),
    Case("port_rate", "mlx5_vf", lambda s: s["rates"]["pci/0000:17:00.0/1"]["tx_max"], 6_250_000_000, {"rate": "25%"}),
    Case("port_state", "infiniband", lambda s: s["nodes"]["2"]["ports"]["1"]["physical"], 3),
    Case("port_speed", "infiniband", lambda s: s["nodes"]["5"]["ports"]["1"]["espeed_active"], 2, {"rate": "50%"}),
    Case("port_ecn", "sonic", queue, {"scheduler": "scheduler.1"}),
    Case(
        "port_wred",
        "sonic",
        lambda s: bound(s, "WRED_PROFILE", "QUEUE|Ethernet0|3", "wred_profile")["green_max_threshold"],
        "6000000",
        {"kmin": "400%", "kmax": "400%"},
    ),
    Case("port_pfc", "sonic", lambda s: s["config"]["PORT_QOS_MAP|Ethernet0"]["pfc_enable"], "4"),
    Case(
        "port_rate",
        "sonic",
        lambda s: bound(s, "SCHEDULER", "PORT_QOS_MAP|Ethernet0", "scheduler")["pir"],
        "12500000000",
        {"rate": "25%"},
    ),
    Case("port_speed", "sonic", lambda s: s["config"]["PORT|Ethernet0"]["speed"], "200000", {"rate": "50%"}),
    Case("port_state", "sonic", lambda s: s["config"]["PORT|Ethernet0"]["admin_status"], "down"),
    Case("port_mtu", "sonic", lambda s: s["config"]["PORT|Ethernet0"]["mtu"], "1500"),
    Case(
        "port_buffer",
        "sonic",
        lambda s: bound(s, "BUFFER_PROFILE", "BUFFER_PG|Ethernet0|3-4", "profile")["dynamic_th"],
        "-2",
        {"limit": "25%"},
    ),
    Case("port_pfcwd", "sonic", _watchdog, "stormed"),
    Case("port_state", "cumulus", lambda s: nvue(s, "interface", "swp1", "link", "state"), "down"),
    Case("port_mtu", "cumulus", lambda s: nvue(s, "interface", "swp1", "link", "mtu"), "1500"),
    Case("port_speed", "cumulus", lambda s: nvue(s, "interface", "swp1", "link", "speed"), "200G", {"rate": "50%"}),
    Case("port_ecn", "cumulus", lambda s: _congestion(s)["ecn"], "disable"),
    Case("port_wred", "cumulus", lambda s: _congestion(s)["min-threshold"], "5000", {"kmin": "5KB", "kmax": "15KB"}),
    Case("port_state", "eos", lambda s: s["running"]["Ethernet1"]["shutdown"], "shutdown"),
    Case("port_mtu", "eos", lambda s: s["running"]["Ethernet1"]["mtu"], "mtu 1500"),
    Case("port_speed", "eos", lambda s: s["running"]["Ethernet1"]["speed"], "speed forced 100gfull", {"rate": "25%"}),
    Case("port_rate", "eos", lambda s: s["running"]["Ethernet1"]["shape"], "shape rate 100000000", {"rate": "25%"}),
    Case("port_ecn", "eos", lambda s: s["running"]["Ethernet1"]["ecn 3"], ""),
    Case(
        "port_wred",
        "eos",
        lambda s: "minimum-threshold 600000 bytes" in s["running"]["Ethernet1"]["ecn 3"],
        True,
        {"kmin": "400%", "kmax": "400%"},
    ),
    Case("port_pfc", "eos", lambda s: s["running"]["Ethernet1"]["pfc 3"], ""),
]


def _file(state: State, below: str) -> str:
    return (Path(state["sysfs"]) / "class/net/ens1f0np0" / below).read_text()


def _congestion(state: State) -> dict[str, str]:
    name = nvue(state, "interface", "swp1", "qos", "congestion-control", "profile")
    return nvue(state, "qos", "congestion-control", name, "traffic-class", "3")


@pytest.fixture(autouse=True, scope="module")
def mount_namespace(tmp_path_factory: pytest.TempPathFactory) -> None:
    gear = Gear(tmp_path_factory.mktemp("probe"), infiniband.subnet())
    if gear.shell("true")[0] != 0:
        pytest.skip("no mount namespace can be had")


@pytest.mark.sample(12)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_fault_lives_and_leaves_nothing(case: Case, tmp_path: Path) -> None:
    gear = Gear(tmp_path / "gear", MAKERS[case.platform]() | dict(case.also))
    before = gear.configuration()
    (plan,) = planned(case.platform, {"f": fault(case.role, **case.parameters)})
    told = task(plan, tmp_path / "journal")
    life.prepare(told, gear.shell)
    assert gear.configuration() == before, "reading and journaling changed something"
    life.act(told, gear.shell)
    assert case.seen(gear.state()) == case.expected
    states = {
        change.target: (state,)
        for change, state in zip(plan.changes, life.read(told, told.ports, gear.shell), strict=True)
    }
    evidence = judge(plan, Observed({}, {}, None, states=states))
    assert evidence.state == ("in_effect" if case.role == "port_pfcwd" else "not_exercised"), evidence.summary()
    life.revert(told, gear.shell)
    assert gear.configuration() == before
    life.revert(told, gear.shell)
    assert gear.configuration() == before, "an undo that runs twice must change nothing"
    assert not gear.state().get("saved"), "the startup configuration was written"


def test_every_platform_file_of_real_gear_has_a_case() -> None:
    written = {
        (role, path.stem)
        for role in roles()
        for path in (load_mechanism(role).folder / "platforms").glob("*.yml")
        if load_platform(role, path.stem).support == "stand-in" and role != "sham" and path.stem in MAKERS
    }
    assert written == {(case.role, case.platform) for case in CASES}


def through(case_role: str, platform: str, gear: Gear, journal: Path, **parameters: Any) -> life.Task:
    (plan,) = planned(platform, {"f": fault(case_role, **parameters)})
    told = task(plan, journal)
    life.prepare(told, gear.shell)
    return told


# ---- SONiC's traps ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["port_ecn", "port_wred"])
def test_marking_changes_on_one_port_only_and_the_operators_profile_comes_back(role: str, tmp_path: Path) -> None:
    gear = Gear(tmp_path / "gear", sonic.switch(orch_lag=2))
    before = gear.state()["config"]
    told = through(
        role, "sonic", gear, tmp_path / "j", **({} if role == "port_ecn" else {"kmin": "5KB", "kmax": "9KB"})
    )
    life.act(told, gear.shell)
    during = gear.state()["config"]
    changed = {key for key in {**before, **during} if before.get(key) != during.get(key)}
    assert changed - {"WRED_PROFILE|genie_f_Ethernet0"} == {"QUEUE|Ethernet0|3"}
    life.revert(told, gear.shell)
    assert gear.state()["config"] == before
    assert before["QUEUE|Ethernet0|3"]["wred_profile"] == "CUSTOM_400G"
    assert not {"ecnconfig"} & {call[0] for call in gear.state()["calls"]}


def test_no_command_of_any_role_saves_a_configuration() -> None:
    for case in CASES:
        how = load_platform(case.role, case.platform)
        words = [word for step in (*how.do, *how.undo) for word in step.argv]
        text = " ".join(words)
        assert "ecnconfig" not in words, case
        assert not any(word in text for word in ("config save", "write memory", "startup-config", "save -y")), case


def test_a_reference_in_brackets_stays_one(tmp_path: Path) -> None:
    state = sonic.switch()
    state["config"]["QUEUE|Ethernet0|3"]["wred_profile"] = "[WRED_PROFILE|CUSTOM_400G]"
    gear = Gear(tmp_path / "gear", state)
    before = gear.state()["config"]
    told = through("port_wred", "sonic", gear, tmp_path / "j", kmin="5KB", kmax="15KB")
    life.act(told, gear.shell)
    assert queue(gear.state())["wred_profile"] == "[WRED_PROFILE|genie_f_Ethernet0]"
    life.revert(told, gear.shell)
    assert gear.state()["config"] == before


# ---- what is refused before anything is touched -------------------------------------------------------------------


def without_profile(state: State) -> State:
    del state["config"]["QUEUE|Ethernet0|3"]
    state["config"]["QUEUE|Ethernet0|3-4"] = {"wred_profile": "AZURE_LOSSLESS"}
    return state


def left_behind(state: State) -> State:
    state["config"]["WRED_PROFILE|genie_f_Ethernet0"] = sonic.wred("1", "2", "3")
    return state


def unwatched(state: State) -> State:
    del state["config"]["PFC_WD|Ethernet0"]
    return state


def pending(state: State) -> State:
    state["pending"] = json.loads(json.dumps(cumulus.applied(state)))
    state["pending"]["interface"]["swp2"]["link"] = {"mtu": "1500"}
    return state


WAITING = eos.switch(sessions={"x": None}, pending={"session": "x", "before": {}, "until": 1e12})


def firmware(state: State) -> State:
    state["devices"]["ens1f0np0"]["dcb"]["dcbx"] = "fw"
    return state


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("role", "platform", "state", "parameters", "said"),
    [
        ("port_ecn", "sonic", without_profile(sonic.switch()), {}, "wred_profile"),
        ("port_wred", "sonic", left_behind(sonic.switch()), {"kmin": "1KB", "kmax": "2KB"}, "own_key expected none"),
        ("port_pfc", "sonic", sonic.switch(), {"priority": 5}, "pfc_on expected true, found false"),
        ("port_state", "sonic", sonic.switch(peer_down=["Ethernet0"]), {}, "oper_status expected up, found down"),
        ("port_pfcwd", "sonic", unwatched(sonic.switch()), {}, "watchdog expected operational, found none"),
        ("port_pfcwd", "sonic", sonic.switch(), {"ratio": "50%"}, "drops_all expected true, found false"),
        ("port_state", "cumulus", pending(cumulus.switch()), {}, "pending expected none, found changes"),
        ("port_pfc", "mlx5", firmware(host()), {}, "dcbx expected os, found fw"),
        ("port_rate", "mlx5", host(), {"rate": "2.5Gbps"}, "rate_fits expected true, found false"),
        ("port_speed", "mlx5", host(), {"rate": "5Gbps"}, "wanted_mbps expected at least 1000"),
        ("port_bus", "mlx5", host(), {"rate": "2%"}, "wanted_generation expected at least 1, found 0"),
        ("port_speed", "infiniband", infiniband.subnet(), {"rate": "1%"}, "fits expected true, found false"),
        ("port_state", "eos", WAITING, {}, "commit_timer"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else None,
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_it_is_touched(
    role: str, platform: str, state: State, parameters: Mapping[str, Any], said: str, tmp_path: Path
) -> None:
    gear = Gear(tmp_path / "gear", state)
    before = gear.configuration()
    with pytest.raises(RunAborted, match=said):
        through(role, platform, gear, tmp_path / "j", **parameters)
    assert gear.configuration() == before
    assert read_journal(tmp_path / "j").entries == ()


@pytest.mark.sample(4)
@pytest.mark.parametrize("layout", ["ofed", "ofed-old", "upstream", "none"])
@pytest.mark.parametrize("role", ["host_ecn", "host_cnp"])
def test_the_drivers_paths_are_looked_for_and_not_assumed(role: str, layout: str, tmp_path: Path) -> None:
    gear = Gear(tmp_path / "gear", host(), layout)
    before = gear.configuration()
    if layout == "none" or (role, layout) == ("host_ecn", "upstream"):
        with pytest.raises(RunAborted, match="no such attribute at any of its known paths"):
            through(role, "mlx5", gear, tmp_path / "j")
        return
    told = through(role, "mlx5", gear, tmp_path / "j")
    life.act(told, gear.shell)
    assert gear.configuration() != before
    life.revert(told, gear.shell)
    assert gear.configuration() == before


def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    gear = Gear(tmp_path / "gear", host())
    (gear.bin / "mlxlink").unlink()
    with pytest.raises(RunAborted, match=r"mlxlink.*not found"):
        through("port_state", "mlx5", gear, tmp_path / "j")


HIGH = {("port_bus", "mlx5")} | {("port_speed", platform) for platform in PORTS}


def test_what_may_break_real_gear_needs_allow_risk_high() -> None:
    found = {
        (c.role, c.platform)
        for c in CASES
        if planned(c.platform, {"f": fault(c.role, **c.parameters)})[0].risk == "high"
    }
    assert found == HIGH


class Told:
    name = "inventory"

    def protected_interfaces(self, node: str) -> tuple[str, ...]:
        return ()


def test_a_pcie_fault_is_refused_without_allow_risk_high() -> None:
    from genie.schema import SafetyConfig

    plans = planned("mlx5", {"pcie_downgrade": fault("port_bus", rate="25%")})
    model = plans[0].ports[0].model
    wire = Link("gear-n0", Port("gear", "n0", "ens1f0np0", model), Port("n0", "gear", "eth0", model), "host")
    topology = Topology("wire", (Node("gear", "host"), Node("n0", "leaf")), (wire,))
    with pytest.raises(FaultRefused, match="high risk"):
        safety.check(plans, topology, SafetyConfig(), "medium", Told())
    safety.check(plans, topology, SafetyConfig(), "high", Told())


# ---- what fails half way ------------------------------------------------------------------------------------------


def failing(tool: str, *words: str, **more: Any) -> dict[str, Any]:
    return {"tool": tool, "words": list(words), "stderr": f"{tool} broke down", **more}


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("role", "platform", "failure", "parameters"),
    [
        ("port_wred", "sonic", failing("sonic-db-cli", "wred_profile", "HSET"), {"kmin": "1KB", "kmax": "2KB"}),
        ("port_wred", "sonic", failing("sonic-db-cli", "HSET", after=True), {"kmin": "1KB", "kmax": "2KB"}),
        ("port_state", "sonic", failing("config", "shutdown", after=True), {}),
        ("port_rate", "sonic", failing("sonic-db-cli", "scheduler", after=True), {"rate": "25%"}),
        ("port_pfc", "mlx5", failing("mlnx_qos", "--pfc", after=True), {}),
        ("port_speed", "mlx5", failing("ethtool", "-s", after=True), {"rate": "50%"}),
        ("port_bus", "mlx5", failing("setpci", "CAP_EXP+10.w=20:20"), {"rate": "25%"}),
        ("port_speed", "infiniband", failing("ibportstate", "reset"), {"rate": "50%"}),
        ("port_ecn", "cumulus", failing("nv", "apply"), {}),
        ("port_ecn", "cumulus", failing("nv", "apply", after=True), {}),
        ("port_state", "eos", failing("FastCli", "-c", skip=3, after=True), {}),
    ],
    ids=lambda value: value if isinstance(value, str) else (value.get("tool") if "tool" in value else None),
)  # fmt: skip
def test_a_tool_that_breaks_half_way_is_undone(
    role: str, platform: str, failure: dict[str, Any], parameters: Mapping[str, Any], tmp_path: Path
) -> None:
    gear = Gear(tmp_path / "gear", MAKERS[platform]())
    before = gear.configuration()
    told = through(role, platform, gear, tmp_path / "j", **parameters)
    gear.change(failures=[{**failure, "skip": 0}])
    with pytest.raises(RunAborted, match="broke down"):
        life.act(told, gear.shell)
    life.revert(told, gear.shell)
    assert gear.configuration() == before


def test_a_command_that_says_yes_and_does_nothing_is_found_out(tmp_path: Path) -> None:
    gear = Gear(tmp_path / "gear", sonic.switch())
    told = through("port_pfc", "sonic", gear, tmp_path / "j")
    state = gear.state()
    state["config"]["PORT_QOS_MAP|Ethernet0"]["pfc_enable"] = "4"  # somebody was faster: "not enabled", exit code 0
    state["config"]["PORT_QOS_MAP|Ethernet4"]["pfc_enable"] = "4"
    gear.change(config=state["config"])
    life.act(told, gear.shell)
    assert "is not enabled" in gear.shell("config interface pfc priority Ethernet4 3 off")[1]


def test_a_peer_without_the_speed_leaves_no_link_and_the_undo_brings_it_back(tmp_path: Path) -> None:
    gear = Gear(tmp_path / "gear", host(peer_needs_autoneg=True))
    before = gear.configuration()
    told = through("port_speed", "mlx5", gear, tmp_path / "j", rate="50%")
    quick = _with_patience(gear, 3)
    with pytest.raises(RunAborted):
        life.act(told, quick)
    assert not gear.state()["devices"]["ens1f0np0"]["carrier"]
    life.revert(told, quick)
    assert gear.configuration() == before


def _with_patience(gear: Gear, looks: int) -> Callable[[str], tuple[int, str, str]]:
    """The node's shell, with fewer looks at a link that never comes."""
    return lambda line: gear.shell(line.replace("-lt 300", f"-lt {looks}"))


def test_a_link_that_takes_its_time_is_waited_for(tmp_path: Path) -> None:
    gear = Gear(tmp_path / "gear", host(training_looks=3))
    before = gear.configuration()
    told = through("port_speed", "mlx5", gear, tmp_path / "j", rate="50%")
    life.act(told, gear.shell)
    life.revert(told, gear.shell)
    assert gear.configuration() == before


def test_the_operators_dscp_map_and_modes_come_back(tmp_path: Path) -> None:
    state = host(advertised=[100_000, 200_000])
    mapping = state["devices"]["ens1f0np0"]["dcb"]["dscp_prio"]
    mapping["26"] = 5
    del mapping["63"]
    gear = Gear(tmp_path / "gear", state)
    before = gear.configuration()
    for role, parameters in (("host_class", {}), ("port_speed", {"rate": "50%"})):
        told = through(role, "mlx5", gear, tmp_path / f"j-{role}", **parameters)
        life.act(told, gear.shell)
        life.revert(told, gear.shell)
        assert gear.configuration() == before, role


def test_mlxlink_that_cannot_take_the_port_down_is_an_error(tmp_path: Path) -> None:
    gear = Gear(tmp_path / "gear", host(keep_link_up=True))
    before = gear.configuration()
    told = through("port_state", "mlx5", gear, tmp_path / "j")
    with pytest.raises(RunAborted, match="port is not Down"):
        life.act(told, gear.shell)
    life.revert(told, gear.shell)
    assert gear.configuration() == before


def test_a_lossless_buffer_below_what_is_on_the_wire_is_the_drivers_no(tmp_path: Path) -> None:
    gear = Gear(tmp_path / "gear", host())
    before = gear.configuration()
    told = through("port_buffer", "mlx5", gear, tmp_path / "j", limit="20000")
    with pytest.raises(RunAborted, match="Buffers commands error"):
        life.act(told, gear.shell)
    life.revert(told, gear.shell)
    assert gear.configuration() == before


def test_old_infiniband_tools_refuse_a_hosts_port(tmp_path: Path) -> None:
    gear = Gear(tmp_path / "gear", infiniband.subnet() | {"switch_ports_only": True})
    told = through("port_state", "infiniband", gear, tmp_path / "j")
    with pytest.raises(RunAborted, match="switch port"):
        life.act(told, gear.shell)


@pytest.mark.parametrize("role", ["port_ecn", "port_pfc", "port_pfcwd"])
def test_what_a_fabric_cannot_emulate_is_no_matter_on_gear(role: str) -> None:
    """An inventory knows of a switch neither its buffers nor its marks, and has nothing to lose packets with."""
    model = PortModel(400 * 10**9, 0)
    wire = Link("gear-n0", Port("gear", "n0", "Ethernet0", model), Port("n0", "gear", "eth0", model), "host")
    topology = Topology("wire", (Node("gear", "leaf"), Node("n0", "host")), (wire,))
    none = Capabilities(shaping=False, ecn=False, loss=False, faults=True, marker="none", reasons={})
    facts = RunFacts(congestion_control="cubic", platforms={"gear": ("sonic", "linux"), "n0": ("linux",)})
    (plan,) = plan_faults({"f": FaultConfig(role, "gear/n0")}, topology, none, facts)
    assert [change.platform for change in plan.changes if change.node == "gear"] == ["sonic"]
    with pytest.raises((EnvironmentUnfit, PlanError)):
        plan_faults({"f": FaultConfig(role, "n0/gear")}, topology, none, facts)


def test_a_window_on_gear_that_keeps_the_time_limit_itself_is_refused() -> None:
    with pytest.raises(PlanError, match="the switch itself holds the time limit"):
        planned("eos", {"f": FaultConfig("port_state", "gear/n0", window=WindowConfig(at="1s", for_="2s"))})


def test_a_port_of_a_modular_switch_has_slashes_in_its_name(tmp_path: Path) -> None:
    state = eos.switch()
    state["running"]["Ethernet1/1"] = dict(state["running"]["Ethernet1"])
    gear = Gear(tmp_path / "gear", state)
    before = gear.configuration()
    (plan,) = planned("eos", {"f": fault("port_state")}, ("Ethernet1/1",))
    told = task(plan, tmp_path / "j")
    life.prepare(told, gear.shell)
    life.act(told, gear.shell)
    assert gear.state()["running"]["Ethernet1/1"]["shutdown"] == "shutdown"
    life.revert(told, gear.shell)
    assert gear.configuration() == before
    with pytest.raises(PlanError, match="cannot be the name of a interface"):
        planned("eos", {"f": fault("port_state")}, ("Ethernet1/../1",))


def test_without_a_controller_eos_takes_the_change_back_by_itself(tmp_path: Path) -> None:
    gear = Gear(tmp_path / "gear", eos.switch(now=1000))
    before = gear.configuration()
    told = through("port_state", "eos", gear, tmp_path / "j")
    life.act(told, gear.shell)
    gear.change(now=1000 + TTL_NS / 1e9)
    gear.shell("FastCli -p 15 -c 'show interfaces Ethernet1 | json'")
    assert gear.state()["running"] == before["running"]
    life.revert(told, gear.shell)
    assert gear.state()["running"] == before["running"]


# ---- through Ansible ----------------------------------------------------------------------------------------------


class GearFabric:
    """A fabric of one node a platform: enough for a session, its Ansible run and its wardens included."""

    name = "stand-in"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gear = {name: Gear(folder / name, make()) for name, make in MAKERS.items() if name in PORTS}
        self.bin = folder / "controller"
        self.bin.mkdir()
        # The connection plugin of namespaces runs: ip netns exec NODE /bin/sh -c LINE
        ip = self.bin / "ip"
        script = "\n".join(f"  {name}) exec {entered(gear)} ;;" for name, gear in self.gear.items())
        ip.write_text(f'#!/bin/sh\nexport LINE="$6"\ncase "$3" in\n{script}\nesac\nexit 99\n')
        ip.chmod(0o755)

    def run(self, node: str, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> Completed:
        command = self.gear[node].enter(shlex.join(argv)) if node else list(argv)
        environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}
        done = subprocess.run(
            command, input=stdin, capture_output=True, timeout=timeout_s, check=False, env=environment
        )
        return Completed(node, tuple(argv), done.returncode, done.stdout.decode(), done.stderr.decode())

    def ansible_host(self, node: str) -> dict[str, str]:
        return {"ansible_host": node, "ansible_connection": "genie_netns"}

    def tool(self, name: str) -> str:
        return str(find_binary(name)) if name == warden.PROGRAM else name

    def state_dir(self, node: str) -> str:
        return str(self.folder / "run" / node)

    def lock_file(self, node: str) -> str:
        return ""

    def configurations(self) -> dict[str, Any]:
        return {name: gear.configuration() for name, gear in self.gear.items()}


def entered(gear: Gear) -> str:
    """The shell words that run the line in $LINE on a node."""
    return shlex.join(gear.enter('eval "$LINE"'))


def one_of_each() -> tuple[FaultPlan, ...]:
    """Nine faults on five kinds of node at once."""
    model = PortModel(200 * 10**9, 1_000_000, Ecn(150_000, 1_500_000, 0.1))
    nodes = [Node(name, "host" if name in ("mlx5", "infiniband") else "leaf") for name in PORTS]
    links = []
    for name, interfaces in PORTS.items():
        for index, interface in enumerate(interfaces):
            far = f"{name}-{index}"
            nodes.append(Node(far, "leaf" if name in ("mlx5", "infiniband") else "host"))
            ends = Port(name, far, interface, model), Port(far, name, "eth0", model)
            links.append(Link(f"{name}-{far}", *ends, "host"))
    faults = {
        "class": FaultConfig("host_class", "mlx5/mlx5-0"),
        "pfc": FaultConfig("port_pfc", "mlx5/mlx5-0"),
        "cnp": FaultConfig("host_cnp", "mlx5/mlx5-0"),
        "slow": FaultConfig("port_speed", "infiniband/infiniband-0", parameters={"rate": "50%"}),
        "ecn": FaultConfig("port_ecn", ("sonic/sonic-0", "sonic/sonic-1")),
        "late": FaultConfig("port_wred", "sonic/sonic-2", parameters={"kmin": "400%", "kmax": "400%"}),
        "shut": FaultConfig("port_state", "sonic/sonic-1"),
        "blind": FaultConfig("port_ecn", "cumulus/cumulus-0"),
        "small": FaultConfig("port_mtu", "eos/eos-0"),
    }
    facts = RunFacts(congestion_control="cubic", platforms={name: (name,) for name in PORTS})
    return plan_faults(faults, Topology("wire", tuple(nodes), tuple(links)), CAN, facts)


@pytest.fixture
def fabric(tmp_path: Path) -> GearFabric:
    try:
        find_binary(warden.PROGRAM)
    except EnvironmentUnfit:
        pytest.skip("genie-warden is not built")
    return GearFabric(tmp_path)


def test_ansible_drives_every_platform_at_once_and_leaves_nothing(fabric: GearFabric, tmp_path: Path) -> None:
    before = fabric.configurations()
    session = FaultSession(one_of_each(), fabric, tmp_path / "journal", tmp_path, ttl_ns=120_000_000_000)  # type: ignore[arg-type]
    try:
        assert {record.action for record in session.apply()} == {"applied"}
        during = fabric.configurations()
        assert all(during[name] != before[name] for name in PORTS)
        evidence = session.evidence({}, {}, None)
        checks = [check for record in evidence for check in record.checks if check.kind == "in_place"]
        # There are no counters and no samples of these nodes, which is for the fabric to bring.
        wrong = [c for c in checks if not c.ok and "recorded" not in (*c.expected.split(), *c.found.split())]
        assert not wrong
    finally:
        reverted = session.revert()
    assert [record.message for record in reverted if not record.ok] == []
    assert fabric.configurations() == before
    assert read_journal(tmp_path / "journal").opened == ()


def test_one_tool_that_breaks_takes_back_every_fault_of_the_session(fabric: GearFabric, tmp_path: Path) -> None:
    before = fabric.configurations()
    fabric.gear["cumulus"].change(failures=[failing("nv", "apply", after=True)])
    session = FaultSession(one_of_each(), fabric, tmp_path / "journal", tmp_path, ttl_ns=120_000_000_000)  # type: ignore[arg-type]
    with pytest.raises(GenieError, match=r"fault blind on cumulus, phase act: .*nv broke down"):
        session.apply()
    assert fabric.configurations() == before
    assert read_journal(tmp_path / "journal").opened == ()


# ---- what tools print ---------------------------------------------------------------------------------------------

PORT = {"interface": "X", "rate_bps": 10**9, "own_bps": 4 * 10**9, "limit_bytes": 1, "ratio_ppb": 1, "kmin_bytes": 1}


@pytest.mark.parametrize("name", sorted(VENDOR_PARSERS))
@pytest.mark.parametrize("text", ["", "\n", "no such device", "{}", "[]", '{"a": 1}', "1\n2\n3"])
def test_a_tool_that_failed_is_never_read(name: str, text: str) -> None:
    with pytest.raises((ValueError, KeyError, IndexError, TypeError, AttributeError, StopIteration)):
        VENDOR_PARSERS[name](text, 1, {"port": PORT, "fault": "f"})


@pytest.mark.parametrize("name", sorted(set(VENDOR_PARSERS) - {"pause_counters", "sonic_oper", "eos_running"}))
def test_what_says_nothing_of_the_object_is_refused(name: str) -> None:
    with pytest.raises((ValueError, KeyError, IndexError, TypeError, AttributeError, StopIteration)):
        VENDOR_PARSERS[name]("Warning: something else altogether", 0, {"port": PORT, "fault": "f"})
