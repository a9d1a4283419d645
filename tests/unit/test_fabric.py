"""Fabrics without a network: refusals explained, counters parsed, loopback, the marking program's object."""

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from genie.engine.binaries import find_binary
from genie.errors import ConfigError, EnvironmentUnfit, PlanError, RunAborted
from genie.fabric import FABRICS, LoopbackConfig, NetnsConfig, client, open_fabric
from genie.fabric.client import HolderClient
from genie.fabric.counters import parse_nft_counters, parse_snmp, parse_softnet
from genie.fabric.netns import NetnsFabric
from genie.fabric.probe import MARKER_OBJECT, Probe
from genie.topology import LeafSpineConfig, SingleSwitchConfig, build

MARKER_SOURCE = Path(__file__).parents[2] / "native" / "bpf" / "marker.c"


@pytest.mark.parametrize(
    ("step", "number", "settings", "words"),
    [
        pytest.param(
            "unshare(user)", errno.ENOSPC, {"user/max_user_namespaces": "0"},
            "user.max_user_namespaces is 0 or used up", id="no user namespaces left",
        ),
        pytest.param(
            "unshare(user)", errno.EPERM, {"kernel/unprivileged_userns_clone": "0"},
            "sysctl -w kernel.unprivileged_userns_clone=1", id="Debian's switch",
        ),
        pytest.param(
            "write /proc/self/uid_map", errno.EPERM, {"kernel/apparmor_restrict_unprivileged_userns": "1"},
            "kernel.apparmor_restrict_unprivileged_userns=1 takes", id="Ubuntu's AppArmor",
        ),
        pytest.param("unshare(user)", errno.EPERM, {}, "a seccomp or LSM policy forbids it", id="a container"),
        pytest.param("write /proc/self/uid_map", errno.EPERM, {}, "CAP_SYS_ADMIN nor CAP_SETFCAP", id="a bare root"),
        pytest.param("unshare(user)", errno.EINVAL, {}, "CONFIG_USER_NS", id="a kernel without"),
        pytest.param("unshare(mount, pid, net)", errno.ENOSPC, {}, "max_net_namespaces", id="no network namespaces"),
    ],
)  # fmt: skip
def test_a_refused_system_call_is_explained_with_the_way_out(monkeypatch, step, number, settings, words):
    monkeypatch.setattr(client, "_read_setting", lambda path: settings.get(path, ""))
    monkeypatch.setattr(client.os, "geteuid", lambda: 0)
    error = client.explain_refusal(step, number)
    assert words in str(error)
    assert step in str(error)
    assert "fabric=loopback" in str(error)


SNMP = """Tcp: RtoAlgorithm MaxConn RetransSegs
Tcp: 1 -1 42
Udp: InDatagrams
Udp: 7
"""


def test_snmp_counters_are_named_as_nstat_names_them():
    assert parse_snmp(SNMP) == {"TcpRtoAlgorithm": 1, "TcpMaxConn": -1, "TcpRetransSegs": 42, "UdpInDatagrams": 7}


def test_the_machines_own_drops_are_added_up_over_cpus():
    text = "0000000a 00000002 00000001 0\n00000014 00000003 00000000 0\n"
    assert parse_softnet(text) == {"softnet_dropped": 5, "softnet_time_squeezed": 1}


def test_nft_counters_are_by_chain():
    text = """{"nftables": [{"metainfo": {}}, {"chain": {"name": "from_h0"}},
      {"rule": {"chain": "from_h0",
                "expr": [{"match": {}}, {"counter": {"packets": 3, "bytes": 9}}, {"drop": null}]}}]}"""
    assert parse_nft_counters(text) == {"from_h0": 3}


def fabric_with(monkeypatch, tmp_path, found: Probe, config=None, topology=None) -> NetnsFabric:
    monkeypatch.setattr("genie.fabric.netns.probe", lambda: found)
    return NetnsFabric(config or NetnsConfig(), build(topology or SingleSwitchConfig(hosts=2)), tmp_path)


NO_RED = "kernel without sch_red: Error: Specified qdisc kind is unknown."
NEEDS_ROOT = "loading a tc-BPF program needs root, and this run is in a user namespace"


def test_without_root_and_sch_red_marking_is_refused_with_reason_and_remedy(monkeypatch, tmp_path):
    fabric = fabric_with(monkeypatch, tmp_path, Probe("", "", True, (), {"red": NO_RED, "bpf": NEEDS_ROOT}))
    found = fabric.capabilities()
    assert (found.shaping, found.ecn, found.loss, found.faults, found.marker) == (True, False, True, True, "none")
    assert NO_RED in found.reasons["ecn"]
    assert NEEDS_ROOT in found.reasons["ecn"]
    assert "Run as root, or on a kernel with sch_red" in found.reasons["ecn"]
    assert fabric.notes == (f"ports do not mark ECN. {found.reasons['ecn']}",)


def test_a_kernel_with_sch_red_needs_no_program(monkeypatch, tmp_path):
    fabric = fabric_with(monkeypatch, tmp_path, Probe("", "", True, (), {"bpf": NEEDS_ROOT}))
    assert fabric.capabilities().marker == "red"
    assert "red limit" in fabric.program().nodes[-1].tc
    assert "red limit" not in fabric.program().nodes[0].tc  # a host holds its sender back instead
    assert fabric.notes == ()


def test_without_namespaces_nothing_can_be_had_and_building_says_why(monkeypatch, tmp_path):
    fabric = fabric_with(monkeypatch, tmp_path, Probe("no private network here", "fabric=loopback", False, (), {}))
    found = fabric.capabilities()
    assert (found.shaping, found.ecn, found.loss, found.faults) == (False, False, False, False)
    assert set(found.reasons) == {"shaping", "ecn", "loss", "delay", "faults"}
    with pytest.raises(EnvironmentUnfit, match="no private network here"):
        fabric.build()


def test_a_kernel_without_tbf_is_refused_at_build(monkeypatch, tmp_path):
    fabric = fabric_with(monkeypatch, tmp_path, Probe("", "", False, (), {"tbf": "kernel without sch_tbf"}))
    with pytest.raises(EnvironmentUnfit, match="ports cannot be shaped: kernel without sch_tbf"):
        fabric.build()


def test_rates_beyond_the_machine_are_noted(monkeypatch, tmp_path):
    found = Probe("", "", False, (), {})
    topology = LeafSpineConfig(host_rate="1Gbps")
    assert "1 Gb/s with fabric.packets=exact" in fabric_with(monkeypatch, tmp_path, found, topology=topology).notes[0]
    for config in (NetnsConfig(packets="bulk"), NetnsConfig(time_dilation=10)):
        assert fabric_with(monkeypatch, tmp_path, found, config, topology).notes == ()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (NetnsConfig(packets="exakt"), "fabric.packets: no mode 'exakt', did you mean 'exact'?"),
        (NetnsConfig(time_dilation=1e9), "fabric.time_dilation: makes h0/switch0 a port of 0.1 bit/s"),
        (NetnsConfig(time_dilation=0.5), "fabric.time_dilation: expected a factor of at least 1, found 0.5"),
        (NetnsConfig(time_dilation=0), "fabric.time_dilation: expected a factor of at least 1, found 0"),
        (NetnsConfig(congestion="cubic; reboot"), "fabric.congestion: expected the name of a TCP congestion control"),
        (NetnsConfig(sample_interval="1us"), "fabric.sample_interval: expected at least 100us, found '1us'"),
    ],
)
def test_configurations_that_cannot_be_are_refused(tmp_path, config, message):
    with pytest.raises(ConfigError) as caught:
        open_fabric(config, build(SingleSwitchConfig(hosts=2)), tmp_path)
    assert message in str(caught.value)


def test_every_fabric_is_registered_under_its_own_name(tmp_path):
    for name, (kind, _) in FABRICS.items():
        if name == "inventory":  # asks its hosts when it is opened: tests/inventory
            continue
        assert open_fabric(kind(), build(SingleSwitchConfig(hosts=2)), tmp_path).name == name


@pytest.fixture
def loopback(tmp_path):
    fabric = open_fabric(LoopbackConfig(), build(SingleSwitchConfig(hosts=3)), tmp_path)
    fabric.build()
    yield fabric
    fabric.destroy()


def test_loopback_gives_each_host_an_address_and_refuses_the_rest(loopback, tmp_path):
    assert [loopback.address(host) for host in ("h0", "h2")] == ["127.64.0.1", "127.64.0.3"]
    found = loopback.capabilities()
    assert (found.shaping, found.ecn, found.loss, found.faults) == (False, False, False, False)
    assert "use fabric=netns" in found.reasons["faults"]
    assert loopback.start_sampler(tmp_path / "ports.smp", 10**7) is None
    assert "TcpRetransSegs" in loopback.counters()[""]
    with pytest.raises(PlanError, match="'h3' is no host"):
        loopback.address("h3")
    with pytest.raises(PlanError, match="no node 'h3'"):
        loopback.run("h3", ["true"])


def test_loopback_runs_and_spawns_programs(loopback, tmp_path):
    assert loopback.run("h0", ["cat"], stdin=b"said").stdout == "said"
    with pytest.raises(RunAborted, match="did not end within"):
        loopback.run("h0", ["sleep", "60"], timeout_s=0.05)
    with pytest.raises(RunAborted, match="could not run 'no-such-program'"):
        loopback.run("h0", ["no-such-program"])
    log = tmp_path / "log"
    process = loopback.spawn("h1", ["sh", "-c", "cat; pwd; exit 5"], stdin=b"in ", log=log, cwd=tmp_path)
    assert process.wait(10) == 5
    assert log.read_text() == f"in {tmp_path}\n"
    endless = loopback.spawn("h1", ["sleep", "600"], stdin=b"", log=log)
    assert endless.poll() is None
    loopback.destroy()
    assert endless.poll() == -9


def test_a_binary_that_was_not_built_says_how_to_build_it():
    with pytest.raises(EnvironmentUnfit, match=r"'genie-nothing' was not found.*\n  build it with"):
        find_binary("genie-nothing")


def _sections(path: Path) -> dict[str, bytes]:
    """Contents of an object's sections that decide what it does."""
    found = {}
    for name in ("tc", "maps", "license", ".reltc"):
        done = subprocess.run(
            ["llvm-objcopy", f"--dump-section={name}=/dev/stdout", str(path), "/dev/null"],
            capture_output=True, check=True,
        )  # fmt: skip
        found[name] = done.stdout
    return found


@pytest.mark.skipif(not shutil.which("clang") or not shutil.which("llvm-objcopy"), reason="needs clang and llvm")
def test_the_committed_marking_program_is_what_the_source_compiles_to(tmp_path):
    rebuilt = tmp_path / "marker.o"
    triplet = subprocess.run(["gcc", "-print-multiarch"], capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run(
        ["clang", "-O2", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror", f"-I/usr/include/{triplet}",
         "-c", str(MARKER_SOURCE), "-o", str(rebuilt)],
        check=True,
    )  # fmt: skip
    compiler = subprocess.run(["clang", "--version"], capture_output=True, text=True, check=True).stdout.lower()
    ours, theirs = _sections(rebuilt), _sections(MARKER_OBJECT)
    same_compiler = subprocess.run(["strings", str(MARKER_OBJECT)], capture_output=True, text=True, check=True)
    version = next(line for line in same_compiler.stdout.splitlines() if "Clang" in line).split()[-1]
    if f"clang version {version}" in compiler:
        assert ours == theirs, "native/bpf/marker.c was changed without rebuilding genie/fabric/marker.bpf.o"
    else:
        assert (ours["maps"], ours["license"]) == (theirs["maps"], theirs["license"])


def test_an_interpreter_that_cannot_be_started_is_said_in_one_sentence(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EnvironmentUnfit, match=r"holder cannot be started: .*'/nowhere/python'"):
        HolderClient()
