"""The inventory's reading, the hosts' own words, the network drawn of both, hosts' clocks and samples, the lease."""

import os
import select
import struct
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from genie.clocks import ClockLook, Clocks, HostClock
from genie.errors import ConfigError, GenieError, PlanError
from genie.fabric import survey
from genie.fabric.lease import lease_script
from genie.fabric.samples import HostSamples, merge_samples
from genie.fabric.ssh import SshTarget
from genie.fabric.survey import (
    HostEntry,
    HostFacts,
    Survey,
    describe_holder,
    judge_facts,
    read_inventory,
    same_addresses,
)
from genie.results.ports import RECORD, read_ports
from genie.topology.inventory import draw

# -- the inventory ------------------------------------------------------------------------------------------------

INI = """
[train]
a ansible_host=192.0.2.1 genie_address=10.0.0.1 genie_rate=25Gbps
b ansible_host=192.0.2.2 ansible_port=2222 genie_interface=eth1 genie_platforms='["mlx5", "linux"]'

[train:vars]
ansible_user=ops
genie_allowed=true
ansible_become=true

[other]
z
"""


def test_an_ini_inventory_with_groups_is_read(tmp_path):
    (tmp_path / "hosts.ini").write_text(INI)
    a, b = read_inventory(tmp_path / "hosts.ini", "train")
    assert (a.name, a.address, a.rate_bps, a.platforms) == ("a", "10.0.0.1", 25_000_000_000, ("linux",))
    assert a.target == SshTarget("192.0.2.1", user="ops", become=True)
    assert (b.interface, b.target.port, b.platforms) == ("eth1", 2222, ("mlx5", "linux"))
    with pytest.raises(PlanError, match="host z: the inventory does not say genie_allowed: true"):
        read_inventory(tmp_path / "hosts.ini", "all")
    with pytest.raises(ConfigError, match="no group 'trian'; did you mean 'train'"):
        read_inventory(tmp_path / "hosts.ini", "trian")


def test_a_script_is_not_run_as_an_inventory(tmp_path):
    script = tmp_path / "hosts.sh"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\necho '{{}}'\n")
    script.chmod(0o755)
    with pytest.raises(ConfigError, match="no inventory in Ansible's INI or YAML form"):
        read_inventory(script, "all")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("genie_adress: 10.0.0.1", "did you mean 'genie_address'"),
        ("genie_address: 10.0.0.300", "expected an IPv4 address"),
        ("genie_interface: '-x'", "genie_interface is '-x'"),
        ("genie_state_dir: relative", "genie_state_dir is 'relative'"),
        ("genie_state_dir: '/run/$(id)'", "genie_state_dir"),
        ("genie_role: router", "genie_role is 'router'"),
        ("genie_platforms: [linux, 7]", "genie_platforms has 7"),
        ("genie_rdma_devices: [mlx5_0, 'mlx5_1:x']", "genie_rdma_devices has 'mlx5_1:x'"),
        ("ansible_host: -oProxyCommand=x", "ansible_host"),
        ("ansible_user: -lroot", "ansible_user"),
        ("ansible_port: 99999", "ansible_port is 99999"),
        ("ansible_connection: docker", "ansible_connection is 'docker'"),
        ("ansible_password: secret", "ansible_password is not used"),
        ("ansible_user: '{{ x }}'", "templates"),
        ("ansible_ssh_common_args: '-o stricthostkeychecking=no'", "check of host keys"),
        ("ansible_become: 3", "ansible_become is 3"),
    ],
)
def test_what_does_not_fit_is_refused_by_host_and_variable(tmp_path, monkeypatch, line, expected):
    variables = {"genie_allowed": True, **yaml.safe_load(line)}
    listed = {"all": {"hosts": ["h7"]}, "_meta": {"hostvars": {"h7": variables}}}
    monkeypatch.setattr(survey, "_listed", lambda path: listed)
    (tmp_path / "hosts.yml").touch()
    with pytest.raises(PlanError) as caught:
        read_inventory(tmp_path / "hosts.yml", "all")
    assert expected in str(caught.value)
    assert "host h7" in str(caught.value)


# -- what a host says ---------------------------------------------------------------------------------------------

SAID = """ssh 192.0.2.254 50000 192.0.2.1 22
arch x86_64
kernel 6.1.0-18-amd64
uid 0
cpus 16
boot 0f5c
tool flock
tool timeout
tool sha256sum
tool od
tool head
tool tc
default eth0
if eth0 2 1500 1000 up
if eth1 3 9000 100000 up
if eth2 4 9000 -1 down
rdma eth1 mlx5_0:1
addr lo 127.0.0.1/8
addr eth0 192.0.2.1/24
addr eth1 10.0.0.1/24
addr eth2 10.0.2.1/24
free 1048576
"""
ENTRY = HostEntry("h0", SshTarget("192.0.2.1"), {}, address="10.0.0.1")


def test_a_hosts_words_become_facts():
    facts = judge_facts(ENTRY, SAID)
    assert isinstance(facts, HostFacts)
    assert (facts.interface, facts.ifindex, facts.mtu, facts.rate_bps) == ("eth1", 3, 9000, 100_000_000_000)
    assert facts.management == {"eth0"}
    assert facts.seen_from == "192.0.2.254"
    assert facts.rdma == {"eth1": "mlx5_0:1"}
    assert (facts.rdma_devices, facts.libraries) == ((), None)
    assert (facts.cpus, facts.free_bytes, facts.lock) == (16, 1 << 30, "")


def test_what_a_host_says_of_rdma_is_kept_for_the_plan():
    said = (
        SAID
        + """rdmaport mlx5_0 1 Ethernet 4: ACTIVE
rdmafile /sys/class/infiniband/mlx5_0/ports/1/gids/3:0000:0000:0000:0000:0000:ffff:0a00:0001
rdmafile /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3:RoCE v2
rdmafile /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/3:eth1
rdmaverbs mlx5_0
libraries known
library libibverbs.so.1
"""
    )
    facts = judge_facts(ENTRY, said)
    assert isinstance(facts, HostFacts)
    (device,) = facts.rdma_devices
    (port,) = device.ports
    (gid,) = port.gids
    assert (device.name, device.is_open_to_programs, port.state, port.link_layer) == (
        "mlx5_0", True, "ACTIVE", "Ethernet",
    )  # fmt: skip
    assert (gid.index, gid.text, gid.type, gid.interface) == (3, "10.0.0.1", "RoCE v2", "eth1")
    assert facts.libraries == {"libibverbs.so.1"}


@pytest.mark.parametrize(
    ("entry", "said", "expected"),
    [
        (ENTRY, SAID.replace("x86_64", "aarch64"), "is of architecture aarch64"),
        (ENTRY, SAID.replace("tool flock\n", ""), "has no flock"),
        (ENTRY, SAID.replace("arch x86_64\n", ""), "did not say its arch"),
        (replace(ENTRY, address="10.9.9.9"), SAID, "has no address 10.9.9.9"),
        (replace(ENTRY, interface="eth0"), SAID, "on eth1, not on eth0"),
        (replace(ENTRY, interface="ib0"), SAID, "has no interface 'ib0'"),
        (replace(ENTRY, address=""), SAID, "gives neither genie_address nor genie_interface"),
        (replace(ENTRY, address="10.0.2.1"), SAID, "does not know the rate of eth2"),
    ],
)
def test_a_host_that_cannot_serve_says_why(entry, said, expected):
    found = judge_facts(entry, said)
    assert isinstance(found, str)
    assert expected in found


def test_a_host_whose_data_come_by_ssh_is_known():
    facts = judge_facts(replace(ENTRY, address="192.0.2.1"), SAID)
    assert isinstance(facts, HostFacts)
    assert facts.interface in facts.management


def test_the_holder_of_a_lock_is_named():
    assert describe_holder("abc 1700000000000000000\n") == "run abc, until 2023-11-14 22:13:20 UTC at the latest"
    assert describe_holder("") == "it does not say which"


# -- the network --------------------------------------------------------------------------------------------------


def surveyed(tmp_path, *entries):
    facts = {}
    for number, entry in enumerate(entries):
        if entry.is_linux:
            said = SAID.replace("10.0.0.1", f"10.0.0.{number + 1}")
            found = judge_facts(replace(entry, address=f"10.0.0.{number + 1}"), said)
            assert isinstance(found, HostFacts)
            facts[entry.name] = found
    return Survey(tmp_path, entries, facts)


def host(name, **more):
    return HostEntry(name, SshTarget(name), {}, **more)


def test_rails_that_the_inventory_names_are_an_attribute_of_the_host(tmp_path):
    network = draw(surveyed(tmp_path, host("a", rdma_devices=("mlx5_0", "mlx5_1:2")), host("b")))
    assert network.nodes[0].attributes["rdma_devices"] == "mlx5_0,mlx5_1:2"
    assert "rdma_devices" not in network.nodes[1].attributes


def test_cables_name_the_rails_where_nobody_else_does(tmp_path):
    two = {"eth1": "leaf0/Ethernet0", "eth2": "leaf0/Ethernet8"}
    leaf = host("leaf0", role="leaf", platforms=("sonic",), links={"Ethernet4": "b/eth1"}, rate_bps=40_000_000_000)
    found = surveyed(tmp_path, host("a", links=two), host("b", links={"eth1": "leaf0/Ethernet4"}), leaf)
    behind = {"eth1": "mlx5_0:1", "eth2": "mlx5_1:1", "eth0": "mlx5_2:1"}
    facts = {"a": replace(found.facts["a"], rdma=behind), "b": replace(found.facts["b"], rdma={"eth0": "mlx5_9:1"})}
    network = draw(replace(found, facts=facts))
    assert network.nodes[0].attributes["rdma_devices"] == "mlx5_0:1,mlx5_1:1"
    assert "rdma_devices" not in network.nodes[1].attributes  # its cable is of an interface without an RDMA port
    told = tuple(replace(entry, rdma_devices=("mlx5_7",)) if entry.name == "a" else entry for entry in found.entries)
    assert draw(replace(found, entries=told, facts=facts)).nodes[0].attributes["rdma_devices"] == "mlx5_7"


def test_hosts_without_cables_hang_on_one_opaque_node(tmp_path):
    network = draw(surveyed(tmp_path, host("a"), host("b")))
    assert [node.name for node in network.hosts] == ["a", "b"]
    assert [link.name for link in network.links] == ["a-fabric", "b-fabric"]
    assert [port.name for port in network.ports] == ["a/eth1", "fabric/a", "b/eth1", "fabric/b"]
    assert network.parameters["mtu"] == 9000


def test_cables_that_both_ends_tell_are_one(tmp_path):
    leaf = host("leaf0", role="leaf", platforms=("sonic",), links={"Ethernet0": "a/eth1"}, rate_bps=40_000_000_000)
    network = draw(
        surveyed(
            tmp_path, host("a", links={"eth1": "leaf0/Ethernet0"}), host("b", links={"eth1": "leaf0/Ethernet4"}), leaf
        )
    )
    assert [link.name for link in network.links] == ["a-leaf0", "b-leaf0"]
    assert {port.name for port in network.ports} == {"a/eth1", "leaf0/Ethernet0", "b/eth1", "leaf0/Ethernet4"}
    assert {port.model.rate_bps for port in network.ports} == {40_000_000_000}


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ({"eth1": "nobody/eth1"}, "expected a host of the inventory"),
        ({"eth9": "b/eth1"}, "a has no interface 'eth9'"),
        ({"eth1": "b/eth9"}, "b has no interface 'eth9'"),
        ({"eth1": "b/eth1", "eth2": "b/eth1"}, "is cabled to"),
    ],
)
def test_cables_that_cannot_be_are_refused(tmp_path, links, expected):
    with pytest.raises(PlanError) as caught:
        draw(surveyed(tmp_path, host("a", links=links), host("b")))
    assert expected in str(caught.value)


def test_a_switch_whose_cables_nobody_tells_is_refused(tmp_path):
    with pytest.raises(PlanError, match="nothing says what it is cabled to"):
        draw(surveyed(tmp_path, host("a"), host("leaf0", role="leaf", platforms=("sonic",))))


# -- clocks -------------------------------------------------------------------------------------------------------

OFFSETS = st.integers(-(10**15), 10**15)
ERRORS = st.integers(0, 10**7)


@given(offset=OFFSETS, drift=st.integers(-(10**6), 10**6), first=ERRORS, second=ERRORS, share=st.floats(0, 1))
def test_an_instant_is_within_the_stated_error_of_the_truth(offset, drift, first, second, share):
    """The true clock drifts evenly from ``offset``; each look is off by anything up to its error."""
    begin, span = 10**12, 10**10
    for sign in (-1, 0, 1):
        clock = HostClock(
            ClockLook(begin, offset + sign * first, first),
            ClockLook(begin + span, offset + drift - sign * second, second),
        )
        ours = begin + round(share * span)
        theirs = ours + offset + round(share * drift)
        (found,) = clock.to_ours(np.array([theirs], dtype=np.int64))
        # Rounding, and what the clock drifts while it is off, come to a few ns.
        assert abs(int(found) - ours) <= clock.error_ns + 3 + (abs(drift) + first + second) ** 2 // span


def test_a_clock_that_may_be_ours_is_left_alone():
    clock = HostClock(ClockLook(0, 900, 1000), ClockLook(10**9, -700, 1000))
    assert clock.to_ours(np.array([5], dtype=np.int64))[0] == 5
    assert clock.error_ns == 1900
    assert Clocks(0, {"a": clock, "b": HostClock(ClockLook(0, 0, 7))}).error_ns == 1900
    assert HostClock(ClockLook(0, 5000, 1000)).error_ns == 1000


# -- samples ------------------------------------------------------------------------------------------------------


def sample_file(path, times, dropped=0, ports=1):
    records = np.zeros(len(times), RECORD)
    records["mono_ns"] = times
    records["port"] = np.arange(len(times)) % ports
    records["backlog_bytes"] = np.arange(len(times))
    header = bytearray(4096)
    header[:8] = b"GNIESMP1"
    struct.pack_into("<III", header, 8, 1, 64, ports)
    struct.pack_into("<QQQ", header, 64, len(times), dropped, 10_000_000)
    path.write_bytes(bytes(header) + records.tobytes())
    return path


def test_samples_of_two_hosts_are_one_file_on_one_clock(tmp_path):
    a = HostSamples("a", sample_file(tmp_path / "a", [100, 300], dropped=2), [0])
    b = HostSamples("b", sample_file(tmp_path / "b", [10**12 + 200, 10**12 + 400], ports=2), [2, 3])
    merge_samples([a, b], {"b": HostClock(ClockLook(0, 10**12, 5))}, 4, tmp_path / "ports.smp")
    merged = read_ports(tmp_path / "ports.smp")
    assert (merged.ports, merged.dropped, merged.interval_ns) == (4, 2, 10_000_000)
    assert merged.records["mono_ns"].tolist() == [100, 200, 300, 400]
    assert merged.records["port"].tolist() == [0, 2, 0, 3]
    assert merged.records["backlog_bytes"].tolist() == [0, 0, 1, 1]


def test_no_file_of_samples_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 5000)
    with pytest.raises(GenieError, match="of a are no file of port samples"):
        merge_samples([HostSamples("a", tmp_path / "a", [0])], {}, 1, tmp_path / "out")
    with pytest.raises(GenieError, match="of ports it does not have"):
        merge_samples([HostSamples("b", sample_file(tmp_path / "b", [1, 2], ports=2), [0])], {}, 1, tmp_path / "out")


# -- the lease ----------------------------------------------------------------------------------------------------


class Lease:
    """The lease's script on this machine, in folders of a test."""

    def __init__(self, tmp_path, run="r1", patience_s=5):
        self.base = tmp_path / "genie"
        self.state = self.base / run
        script = lease_script(
            run, str(self.state), str(self.base), 60, lock=str(tmp_path / "lock"), patience_s=patience_s
        )
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def until(self, *words):
        lines = []
        for line in self.process.stdout:
            lines.append(line.strip())
            if lines[-1].split(" ")[0] in words:
                break
        return lines

    def say(self, text):
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def program(self):
        """A program of the run's, as `SshLinks.spawn` leaves it: its id in a file, its path in its words."""
        (self.state / "bin").mkdir(exist_ok=True)
        copy = self.state / "bin" / "sleeper"
        copy.symlink_to("/bin/sleep")
        child = subprocess.Popen([str(copy), "60"], start_new_session=True)
        (self.state / "pids" / "1").write_text(f"{child.pid}\n")
        return child

    def foreign(self, fifo):
        """A program that GENIE did not bring, perftest say, below ``timeout``; it has ``fifo`` open while it lives."""
        os.mkfifo(fifo)
        words = ["timeout", "60", "sh", "-c", f"sleep 60 >{fifo}"]
        folder = self.state / "work" / "0"
        folder.mkdir()
        child = subprocess.Popen(words, cwd=folder, start_new_session=True)
        (self.state / "pids" / "2").write_text(f"{child.pid}\n")
        return child, os.open(fifo, os.O_RDONLY)


@pytest.fixture
def lease(tmp_path):
    made = Lease(tmp_path)
    assert made.until("ready") == ["ready"]
    yield made
    made.process.kill()
    made.process.wait()


def test_a_lease_that_is_asked_to_end_leaves_nothing(lease):
    child = lease.program()
    lease.say("kkq")
    assert lease.until("clean") == ["clean"]
    assert lease.process.wait(10) == 0
    assert child.wait(5) == -9
    assert not lease.state.exists()


def test_a_lease_ends_programs_that_were_not_brought_with_all_they_started(lease, tmp_path):
    child, heard = lease.foreign(tmp_path / "alive")
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)  # its number in a file, but not below the run
    (lease.state / "pids" / "3").write_text(f"{other.pid}\n")
    lease.say("q")
    assert lease.until("clean") == ["clean"]
    assert child.wait(5) == -9
    assert select.select([heard], [], [], 5)[0], "what it had started lives on"
    assert other.poll() is None
    other.kill()
    other.wait()
    os.close(heard)


@pytest.mark.parametrize("how", ["end of input", "silence"])
def test_a_lease_whose_controller_is_gone_leaves_nothing(tmp_path, how):
    lease = Lease(tmp_path, patience_s=1)
    lease.until("ready")
    child = lease.program()
    if how == "end of input":
        lease.process.stdin.close()
    lease.process.stdout.close()  # nobody hears it any more
    assert child.wait(10) == -9
    assert lease.process.wait(10) == 0
    assert not lease.state.exists()


def test_a_host_is_leased_once(lease, tmp_path):
    second = Lease(tmp_path, "r2")
    (said,) = second.until("ready")
    assert said.startswith("busy r1 ")
    assert second.process.wait(5) == 75
    assert lease.process.poll() is None


def test_what_an_earlier_run_left_is_swept_but_for_its_faults(tmp_path):
    old, faulty = "0" * 32, "f" * 32
    (tmp_path / "genie" / old / "bin").mkdir(parents=True)
    (tmp_path / "genie" / faulty / "link_rate").mkdir(parents=True)
    others = {"project", "b" * 31, "B" * 32, "c" * 33}  # somebody else's, in a folder that the inventory chose
    for name in others:
        (tmp_path / "genie" / name / "bin").mkdir(parents=True)
    (tmp_path / "genie" / ("e" * 32)).symlink_to(tmp_path / "genie" / "project")
    lease = Lease(tmp_path)
    assert sorted(lease.until("ready")) == [f"left {faulty}", "ready", f"swept {old}"]
    lease.say("q")
    lease.until("clean")
    assert lease.process.wait(5) == 0
    assert {path.name for path in (tmp_path / "genie").iterdir()} == {faulty, "e" * 32, *others}
    for name in others:
        assert (tmp_path / "genie" / name / "bin").is_dir()


def test_a_lease_outlives_its_controller_while_a_warden_does(tmp_path):
    lease = Lease(tmp_path, patience_s=1)
    lease.until("ready")
    fault = lease.state / "link_rate"
    fault.mkdir()
    holder = subprocess.Popen(["flock", str(fault / "alive"), sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    wait_for(lambda: (fault / "alive").exists() and not is_free(fault / "alive"))
    lease.process.stdin.close()
    wait_for(lambda: not (lease.state / "work").exists())
    assert Lease(tmp_path, "r2").until("ready")[0].startswith("busy r1")
    holder.communicate(b"\n")
    lease.process.stdout.close()
    assert lease.process.wait(10) == 0
    assert fault.exists()  # for genie revert to read


def test_a_lease_is_refused_where_a_fault_of_another_run_stands(tmp_path):
    alive = tmp_path / "genie" / ("0" * 32) / "link_rate" / "alive"
    alive.parent.mkdir(parents=True)
    with subprocess.Popen(["flock", str(alive), sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as holder:
        wait_for(lambda: alive.exists() and not is_free(alive))
        lease = Lease(tmp_path)
        assert lease.until("ready") == ["faulty " + "0" * 32]
        assert lease.process.wait(5) == 75
        holder.communicate(b"\n")


def is_free(path):
    return subprocess.run(["flock", "-n", str(path), "true"], check=False).returncode == 0


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# -- ssh ----------------------------------------------------------------------------------------------------------


def test_words_of_an_inventory_stay_words_of_ssh(tmp_path):
    target = SshTarget("192.0.2.1", 2222, "ops", "/k", ("-o", "ProxyJump=gate"), become=True)
    argv = target.argv(tmp_path / "0", "-o", "ControlMaster=no")
    assert argv[argv.index("-p") + 1] == "2222"
    assert argv[-2:] == ["--", "192.0.2.1"]
    assert argv.index("ControlMaster=no") < argv.index("ProxyJump=gate")
    assert "BatchMode=yes" in argv
    shown = target.shell("echo 'a b'; id")
    assert shown.startswith("exec sudo -n /bin/sh -c ")
    local = SshTarget("x").shell("printf '%s|' \"$1\" 'a b'")
    done = subprocess.run(
        ["/bin/sh", "-c", local],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "SSH_CONNECTION": "1 2"},
    )
    assert done.stdout == "1 2|a b|"


@pytest.mark.parametrize(
    ("addresses", "refused"),
    [
        ({"n1": "10.0.0.1", "n2": "10.0.0.2"}, {}),
        ({"n1": "10.0.0.1", "n2": "10.0.0.1"}, {"n2": "has the address 10.0.0.1, as n1 has: is it one machine"}),
        ({"leaf1": "", "leaf2": ""}, {}),
    ],
    ids=["two hosts", "one machine under two names", "switches without a data address"],
)
def test_two_hosts_of_one_address_are_refused_by_name(addresses, refused) -> None:
    facts = {name: replace(judge_facts(ENTRY, SAID), name=name, address=own) for name, own in addresses.items()}
    found = same_addresses(facts)
    assert found.keys() == refused.keys()
    assert all(found[name].startswith(words) for name, words in refused.items())
