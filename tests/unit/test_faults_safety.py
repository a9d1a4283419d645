"""Limits of faults, the guard of a run, and the audit log."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from genie import topology
from genie.errors import ConfigError, FaultRefused, RunAborted
from genie.faults.audit import AuditLog
from genie.faults.safety import Guard, blast_radius, check, kill_switch, refuse_killed
from genie.launch.protocol import Progress
from genie.schema import SafetyConfig, StopConfig, build
from genie.topology.config import TOPOLOGIES

NETWORK = topology.build(build(TOPOLOGIES["leaf_spine"][0], {"leaves": 2, "spines": 2, "hosts": 4}, "topology"))
PORTS = {port.name: port for port in NETWORK.ports}


@dataclass(frozen=True)
class Fault:
    name: str = "link_down"
    risk: str = "medium"
    ports: tuple = ()
    nodes: tuple = ()
    aimed_at: tuple = ()
    changes: tuple = ()


@dataclass
class Fabric:
    name: str = "netns"
    protected: dict = field(default_factory=dict)

    def protected_interfaces(self, node):
        return self.protected.get(node, ("lo",))


def fault(*ports, nodes=(), **more):
    chosen = tuple(PORTS[name] for name in ports)
    changes = tuple(SimpleNamespace(node=port.node, object=port.interface) for port in chosen)
    return Fault(ports=chosen, nodes=tuple(nodes) or tuple(port.node for port in chosen), changes=changes, **more)


def refused(plans, *, safety=None, allow_risk="medium", fabric=None, **more):
    with pytest.raises(FaultRefused) as caught:
        check(plans, NETWORK, safety or SafetyConfig(), allow_risk, fabric or Fabric(), **more)
    return caught.value


def names(prefix):
    return [name for name in PORTS if name.startswith(prefix)]


HOST_LINK = ("h0/leaf0", "leaf0/h0")


# -- blast radius --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plans", "nodes", "hosts", "links"),
    [
        ([fault(*HOST_LINK)], {"h0", "leaf0"}, ("h0",), ("h0-leaf0",)),
        ([fault("leaf0/spine1")], {"leaf0", "spine1"}, (), ("leaf0-spine1",)),
        ([fault("leaf0/h1")], {"leaf0", "h1"}, ("h1",), ("h1-leaf0",)),
        ([Fault(nodes=("h2",))], {"h2"}, ("h2",), ()),
        ([fault(*HOST_LINK), Fault(nodes=("h3",))], {"h0", "leaf0", "h3"}, ("h0", "h3"), ("h0-leaf0",)),
        ([fault("h1/leaf0", aimed_at=("h3",))], {"h1", "leaf0", "h3", "leaf1"}, ("h1", "h3"), ("h1-leaf0",)),
        ([], set(), (), ()),
    ],
    ids=[
        "a host's link",
        "an uplink",
        "a downlink reaches its host",
        "a host",
        "two faults",
        "aimed at a host",
        "none",
    ],
)
def test_the_blast_radius_has_both_ends_of_every_port(plans, nodes, hosts, links):
    radius = blast_radius(plans, NETWORK)
    assert radius.nodes == nodes
    assert radius.hosts == hosts
    assert radius.links == links
    assert set(radius.outside_hosts) == {node.name for node in NETWORK.hosts} - nodes
    assert set(radius.outside_ports) == {name for name, port in PORTS.items() if port.node not in nodes}


# -- limits --------------------------------------------------------------------------------------------------


def test_what_the_defaults_let_pass():
    check([fault(*PORTS)], NETWORK, SafetyConfig(), "medium", Fabric())
    check([], NETWORK, SafetyConfig(ttl="2h"), "low", Fabric())


@pytest.mark.parametrize(
    ("plans", "options", "said", "key"),
    [
        (
            [fault(*HOST_LINK, risk="high")],
            {},
            "link_down is of high risk, and allow_risk is medium",
            "allow_risk=high",
        ),
        ([fault(*HOST_LINK)], {"allow_risk": "low"}, "is of medium risk, and allow_risk is low", "allow_risk=medium"),
        (
            [fault(*names("leaf0/h"))],
            {"safety": SafetyConfig(max_hosts=1)},
            "touch 2 hosts (h0, h1), and safety.max_hosts is 1",
            "safety.max_hosts=2",
        ),
        (
            [fault(*names("leaf0/spine"))],
            {"safety": SafetyConfig(max_links=1)},
            "touch 2 links (leaf0-spine0, leaf0-spine1), and safety.max_links is 1",
            "safety.max_links=2",
        ),
        (
            [fault(*HOST_LINK)],
            {"safety": SafetyConfig(ttl="2h")},
            "safety.ttl is 2h, and safety.max_ttl is 1h",
            "safety.max_ttl",
        ),
        (
            [fault(*HOST_LINK)],
            {"predicted_ns": 700e9},
            "takes about 700 s when healthy, and safety.ttl undoes its faults after 10min",
            "safety.ttl",
        ),
        (
            [fault(*HOST_LINK)],
            {"fabric": Fabric("inventory", {"h0": ("leaf0",)})},
            "would change leaf0 of h0, which carries its management",
            "fault.link_down.targets",
        ),
    ],
    ids=["risk", "low only", "hosts", "links", "ttl", "longer than ttl", "management"],
)
def test_a_refusal_names_what_was_asked_the_limit_and_the_key(plans, options, said, key):
    error = refused(plans, **options)
    assert said in error.message
    assert key in error.hint
    assert error.exit_code == 2


def test_real_hosts_have_low_limits_of_their_own():
    big = topology.build(build(TOPOLOGIES["single_switch"][0], {"hosts": 9}, "topology"))
    plan = Fault(nodes=tuple(node.name for node in big.hosts))
    check([plan], big, SafetyConfig(), "medium", Fabric("netns"))
    with pytest.raises(FaultRefused, match=r"9 hosts \(h0, h1, h2, h3 and 5 more\).* is 8, the default on real hosts"):
        check([plan], big, SafetyConfig(), "medium", Fabric("inventory", dict.fromkeys(plan.nodes, ())))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ttl": "10"}, "safety.ttl: expected a duration"),
        ({"ttl": "1ms"}, "safety.ttl: must be at least 1s"),
        ({"max_hosts": -1}, "safety.max_hosts: expected a count"),
        ({"kill_switch": "KILL"}, "safety.kill_switch: expected an absolute path"),
        ({"stop": {"stall": "5ms"}}, "safety.stop.stall: must be at least 1s"),
        ({"stop": {"drops_outside": -2}}, "safety.stop.drops_outside: expected a count"),
        ({"max_host": 3}, "safety.max_host: there is no such key; did you mean 'max_hosts'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_safety_keys_are_checked(given, said):
    with pytest.raises(ConfigError, match=said):
        build(SafetyConfig, given, "safety")


# -- kill switch ---------------------------------------------------------------------------------------------


def test_the_kill_switch(tmp_path):
    switch = tmp_path / "KILL"
    safety = SafetyConfig(kill_switch=str(switch))
    assert kill_switch(safety) == ""
    refuse_killed(safety)
    switch.touch()
    assert kill_switch(safety) == f"the kill switch {switch} is there"
    with pytest.raises(FaultRefused, match="is there"):
        refuse_killed(safety)
    assert kill_switch(SafetyConfig(kill_switch="")) == ""


def test_a_dangling_link_is_a_kill_switch_too(tmp_path):
    (tmp_path / "KILL").symlink_to("nowhere")
    assert kill_switch(SafetyConfig(kill_switch=str(tmp_path / "KILL")))


def test_a_kill_switch_that_cannot_be_seen_counts_as_there(monkeypatch):
    def shut(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "lstat", shut)
    assert kill_switch(SafetyConfig()) == "the kill switch /run/genie/KILL cannot be looked at: Permission denied"


# -- guard ---------------------------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Watched:
    """A guard with its clock, its counters, and how often these were read."""

    def __init__(self, tmp_path, plans=None, **stop):
        self.clock = Clock()
        self.values = {name: {"drops": 5} for name in PORTS} | {f"h{i}": {"TcpRetransSegs": 7} for i in range(4)}
        self.reads = 0
        self.switch = tmp_path / "KILL"
        safety = SafetyConfig(kill_switch=str(self.switch), stop=StopConfig(**stop))
        radius = blast_radius([fault(*HOST_LINK)] if plans is None else plans, NETWORK)
        self.fired = []
        self.guard = Guard(safety, radius, self._read, on_fire=self.fired.append, clock=self.clock)
        self.guard.begin(self._read())
        self.reads = 0

    def _read(self):
        self.reads += 1
        return {name: dict(values) for name, values in self.values.items()}

    def look(self, after_s=0.5, done=0):
        self.clock.now += after_s
        self.guard.look({0: Progress(0, done, 0, 0, 0), 1: Progress(1, 0, 0, 0, 0)})


def test_a_guard_without_stop_conditions_reads_no_counters(tmp_path):
    watched = Watched(tmp_path)
    for _ in range(20):
        watched.look()
    assert watched.reads == 0


def test_looks_are_half_a_second_apart(tmp_path):
    watched = Watched(tmp_path, drops_outside=0)
    for _ in range(20):
        watched.look(after_s=0.1)
    assert watched.reads == 4


def test_looks_that_take_long_are_rare(tmp_path):
    watched = Watched(tmp_path, drops_outside=0)
    read = watched._read

    def slow():
        watched.clock.now += 0.1
        return read()

    watched.guard._counters = slow
    for _ in range(21):
        watched.look(after_s=0.2)
    assert watched.reads == 3  # in 4.5 s; a look each half second would be 9


def test_the_kill_switch_stops_a_run(tmp_path):
    watched = Watched(tmp_path)
    watched.look()
    watched.switch.touch()
    with pytest.raises(RunAborted, match=r"^stopped: the kill switch .* is there"):
        watched.look()
    assert watched.fired == [f"the kill switch {watched.switch} is there"]


def test_a_stall_stops_a_run(tmp_path):
    watched = Watched(tmp_path, stall="3s")
    watched.look(done=1)
    for _ in range(5):
        watched.look(done=1)
    with pytest.raises(RunAborted, match=r"no rank got on for 3s \(safety.stop.stall\)"):
        watched.look(done=1)


def test_ranks_that_get_on_are_no_stall(tmp_path):
    watched = Watched(tmp_path, stall="3s")
    for step in range(30):
        watched.look(done=step // 5)


def test_standing_still_ourselves_is_no_stall(tmp_path):
    watched = Watched(tmp_path, stall="3s")
    watched.look()
    watched.look(after_s=60)
    watched.look()


@pytest.mark.parametrize(
    ("stop", "name", "counter", "rise", "said"),
    [
        ({"drops_outside": 3}, "spine0/leaf1", "drops", 4, "4 packets were dropped at ports.* most at spine0/leaf1"),
        ({"drops_outside": 3}, "spine0/leaf1", "drops", 3, ""),
        ({"drops_outside": 0}, "leaf0/spine0", "drops", 99, ""),
        ({"drops_outside": 0}, "leaf1/spine0", "drops", -5, ""),
        ({"retransmits_outside": 9}, "h3", "TcpRetransSegs", 10, "10 segments were sent again by hosts.* at h3"),
        ({"retransmits_outside": 9}, "h0", "TcpRetransSegs", 99, ""),
        ({"drops_outside": 9}, "h3", "TcpRetransSegs", 99, ""),
    ],
    ids=["drops", "as many as allowed", "inside", "set anew", "retransmits", "inside, a host", "not watched"],
)
def test_damage_outside_the_blast_radius_stops_a_run(tmp_path, stop, name, counter, rise, said):
    watched = Watched(tmp_path, **stop)
    watched.values[name][counter] += rise
    if said:
        with pytest.raises(RunAborted, match=said):
            watched.look()
    else:
        watched.look()


# -- audit log -----------------------------------------------------------------------------------------------


def test_every_line_says_who_did_what_to_what(tmp_path):
    log = AuditLog(tmp_path / "runs", run="runs/one", run_id="ab")
    log.write("planned", "link_down", ["h0/leaf0"])
    log.write("refused", "link_down", ["h0/leaf0"], result="is of high risk")
    first, second = [json.loads(line) for line in (tmp_path / "runs" / "audit.log").read_text().splitlines()]
    assert (first["v"], first["action"], first["fault"], first["result"]) == (1, "planned", "link_down", "ok")
    assert (first["targets"], first["run"], first["run_id"]) == (["h0/leaf0"], "runs/one", "ab")
    assert (first["uid"], first["pid"]) == (os.getuid(), os.getpid())
    assert first["user"]
    assert first["host"]
    assert first["argv"]
    assert second["result"] == "is of high risk"
    assert second["real_ns"] >= first["real_ns"]


def test_the_name_in_the_environment_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setenv("USER", "nobody-at-all")
    monkeypatch.setenv("LOGNAME", "nobody-at-all")
    AuditLog(tmp_path).write("planned", "x")
    assert "nobody-at-all" not in (tmp_path / "audit.log").read_text()


def test_a_log_that_cannot_be_written_stops_the_run(tmp_path):
    (tmp_path / "audit.log").mkdir()
    with pytest.raises(RunAborted, match=r"the audit log .* cannot be written"):
        AuditLog(tmp_path).write("planned", "link_down")


def test_an_unknown_action_is_a_defect(tmp_path):
    with pytest.raises(ValueError, match="not 'undone'"):
        AuditLog(tmp_path).write("undone", "x")
