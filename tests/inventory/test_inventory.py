"""Runs on machines that are reached by ssh: to the end, and when hosts, agents, disks or the controller fail."""

import contextlib
import gzip
import json
import os
import re
import signal
import socket
import subprocess
import time
from ipaddress import IPv4Address
from pathlib import Path

import numpy as np
import pytest
from machines import genie, wait_until

from genie.engine.binaries import find_binary
from genie.engine.wire import EventType
from genie.errors import EnvironmentUnfit
from genie.results.metrics import load_records, measure
from genie.results.rundir import RunDir
from genie.transport import TRANSPORTS
from genie.transport.built import PACKAGES, refuse_missing

pytestmark = pytest.mark.inventory

SMALL = (
    "workload=dp", "transport.spin=0", "timeout=20s", "tracking.mlflow.enabled=false", "fabric=inventory", "out=runs",
)  # fmt: skip
FOUR = ("m0", "m1", "m2", "m3")


def four(lab, **changes):
    """An inventory of the first four machines."""
    return lab.inventory(hosts=FOUR, **changes)


started = []


@pytest.fixture(autouse=True)
def none_outlives_its_test():
    """A run that a failed test left is interrupted, so that the next test finds its machines free."""
    yield
    while started:
        process = started.pop()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def start(tmp_path, inventory, *more):
    """A run in the background, its words in files."""
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(
            genie(*SMALL, f"fabric.inventory={inventory}", *more), cwd=tmp_path, stdout=out, stderr=err
        )
    started.append(process)
    return process


def run(tmp_path, inventory, *more):
    """A run to its end: (exit code, all it said, its directory or None)."""
    code = start(tmp_path, inventory, *more).wait(180)
    return code, said(tmp_path), directory(tmp_path)


def said(tmp_path):
    return re.sub(r"\s+", " ", (tmp_path / "out").read_text() + (tmp_path / "err").read_text())


def directory(tmp_path):
    """The newest run directory."""
    found = sorted((tmp_path / "runs").glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
    return found[-1].parent if found else None


def racing(lab, process, hosts=FOUR):
    """Until agents on all hosts have been sending for a while."""

    def sending():
        assert process.poll() is None, "the run ended early"
        return all(lab[host].processes("genie-agent") and lab[host].processes("genie-port") for host in hosts)

    wait_until(sending, "the start of the ranks", 60)
    before = {host: lab[host].run("cat /sys/class/net/data0/statistics/tx_bytes") for host in hosts}
    wait_until(
        lambda: all(
            int(lab[host].run("cat /sys/class/net/data0/statistics/tx_bytes")) > int(before[host]) + 100_000
            for host in hosts
        ),
        "traffic",
    )


LONG = ("workload.iterations=2000", "workload.ranks=4", "record.messages=false")


def test_eight_hosts_to_the_end(lab, tmp_path):
    code, words, folder = run(tmp_path, lab.inventory(), "workload.iterations=4")
    # Eight engines on the few cores of one machine may well keep them busy; then the numbers are refused, rightly.
    assert code == 0 or "hosts saturated" in words, words
    if code == 0:
        assert "MEASURED" in words
    opened = RunDir.open(folder)
    plan = opened.plan
    assert plan.placement == tuple(f"m{number}" for number in range(8))
    assert not plan.one_clock
    metrics = measure(opened)
    assert metrics.iterations_done == plan.iterations
    assert metrics.messages.basis == "receiver"
    assert metrics.messages.unpaired == 0
    assert metrics.clock_error_ns < 50_000_000
    assert "hosts' clocks are moved to one" in words
    assert json.loads((folder / "results.json").read_text())["metrics"]["clock_error_ns"] == metrics.clock_error_ns
    counters = opened.counters()
    for host in plan.placement:
        sent = counters.after[f"{host}/data0"]["tx_bytes"] - counters.before[f"{host}/data0"]["tx_bytes"]
        assert sent > sum(rank.bytes_sent for rank in metrics.ranks if rank.host == host) * 0.9


def need(transport):
    """Skip where this build lacks it."""
    try:
        refuse_missing(TRANSPORTS[transport][0]())
    except EnvironmentUnfit:
        pytest.skip(f"needs {PACKAGES[transport]} where GENIE is built")


@pytest.mark.parametrize("transport", ["ofi", "gloo"])
def test_other_transports_of_sockets_run_by_the_data_network(lab, tmp_path, transport):
    need(transport)
    more = (f"transport={transport}", "workload.ranks=4", "workload.iterations=2", "verify=true")
    code, words, folder = run(tmp_path, four(lab), *more)
    assert code == 0 or "hosts saturated" in words, words
    opened = RunDir.open(folder)
    metrics = measure(opened)
    assert metrics.iterations_done == opened.plan.iterations
    assert metrics.messages.unpaired == 0
    counters = opened.counters()
    for host in FOUR:
        sent = counters.after[f"{host}/data0"]["tx_bytes"] - counters.before[f"{host}/data0"]["tx_bytes"]
        assert sent > sum(rank.bytes_sent for rank in metrics.ranks if rank.host == host) * 0.9


@pytest.mark.parametrize(
    ("transport", "files", "said"),
    [("ofi", "libfabric.so*", "has no libfabric.so.1"), ("gloo", "libgloo.so*", "has no libgloo.so.0")],
)
def test_a_host_without_the_library_is_refused_before_anything_is_changed(lab, tmp_path, transport, files, said):
    need(transport)
    lab["m1"].run(_WITHOUT.replace("FILES", files))
    try:
        code, words, folder = run(tmp_path, four(lab), f"transport={transport}", "workload.ranks=4")
    finally:
        lab["m1"].run(_WITH_AGAIN)
    assert (code, folder) == (3, None), words
    assert f"host m1 {said}" in words
    assert "host m0" not in words


_WITHOUT = """set -e
lib=$(readlink -f /lib); mkdir -p /run/lock/without/up /run/lock/without/work
mount -t overlay overlay -o lowerdir=$lib,upperdir=/run/lock/without/up,workdir=/run/lock/without/work $lib
find $lib -name 'FILES' -exec rm -f {} +
ldconfig -C /run/lock/without/cache
mount --bind /run/lock/without/cache /etc/ld.so.cache
"""
"""Of one machine's own view of its file system: the library is gone, and its loader knows."""

_WITH_AGAIN = "umount /etc/ld.so.cache; umount -l $(readlink -f /lib); rm -rf /run/lock/without"


def test_a_clock_that_is_ahead_is_corrected(lab, tmp_path):
    _, words, folder = run(tmp_path, four(lab), "workload.iterations=3", "workload.ranks=4")
    opened = RunDir.open(folder)
    clocks = opened.clocks()
    assert clocks is not None, words
    bound = clocks.error_ns
    assert abs(clocks.hosts["m3"].before.offset_ns - 1000 * 10**9) < 10**9
    assert abs(clocks.hosts["m0"].before.offset_ns) <= bound
    raw = [opened.events(rank) for rank in range(4)]
    assert raw[3].start_mono_ns - raw[0].start_mono_ns > 999 * 10**9
    # The barrier at an iteration's end: all ranks end it together, as far as the clocks can tell.
    job = load_records(opened, opened.plan, (EventType.ITERATION,))
    assert job.one_clock
    for iteration in range(opened.plan.iterations):
        ends = job.records[job.records["iteration"] == iteration]["t2_ns"]
        assert len(ends) == 4
        assert np.ptp(ends) < 100_000_000 + 2 * bound
    # A message cannot arrive before it was allowed, beyond what the clocks' error explains.
    assert measure(opened).messages.p50_ns > -2 * bound
    samples = opened.ports()
    start = clocks.start_mono_ns
    assert (np.diff(samples.records["mono_ns"]) >= 0).all()
    numbers = {opened.plan.ports.index(f"{host}/data0") for host in FOUR}
    assert set(np.unique(samples.records["port"])) == numbers
    for port in numbers:
        assert abs(int(samples.of(port)["mono_ns"][0]) - start) < 20 * 10**9
    timeline = json.loads(gzip.decompress((folder / "timeline.json.gz").read_bytes()))
    slices = [event for event in timeline["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in slices} == {1, 2, 3, 4}
    assert max(event["ts"] for event in slices) < 60e6
    assert timeline["otherData"]["clock_error_us"] == pytest.approx(bound / 1000, abs=0.01)


def test_dry_run_changes_nothing(lab, tmp_path):
    code, words, folder = run(tmp_path, four(lab), "dry_run=true", "workload.ranks=4")
    assert code == 0, words
    assert folder is None
    assert "plan (nothing was touched)" in words
    assert "4 host links of 100 Mb" in words
    assert not lab.leftovers()


@pytest.mark.parametrize(
    ("changes", "code", "expected"),
    [
        pytest.param({"m1": {"ansible_port": 23}}, 3, "m1: cannot be reached by ssh", id="unreachable"),
        pytest.param({"m2": {"genie_allowed": None}}, 2, "host m2: the inventory does not say", id="not-allowed"),
        pytest.param({"m2": {"genie_allowed": 1}}, 2, "host m2: the inventory does not say", id="one-is-not-true"),
        pytest.param({"m0": {"genie_interface": "eth9"}}, 3, "m0: has no interface 'eth9'", id="no-such-interface"),
        pytest.param({"m0": {"genie_address": "10.9.9.9"}}, 3, "m0: has no address 10.9.9.9", id="no-such-address"),
        pytest.param({"m0": {"genie_rat": "1Gbps"}}, 2, "did you mean 'genie_rate'", id="misspelt"),
        pytest.param(
            {"m0": {"ansible_ssh_common_args": "-o StrictHostKeyChecking=no"}}, 2, "check of host keys", id="no-keys"
        ),
        pytest.param({"m0": {"ansible_ssh_common_args": ""}}, 3, "m0: cannot be reached by ssh", id="unknown-key"),
        pytest.param({"m0": {"ansible_host": "-oProxyCommand=touch x"}}, 2, "ansible_host", id="option-for-an-address"),
        pytest.param({"m0": {"ansible_user": "{{ lookup('pipe', 'id') }}"}}, 2, "templates", id="template"),
    ],
)
def test_refused_by_name_before_anything_is_changed(lab, tmp_path, changes, code, expected):
    got, words, folder = run(tmp_path, four(lab, **changes), "workload.ranks=4")
    assert (got, folder) == (code, None), words
    assert expected in words
    assert not (tmp_path / "x").exists()
    for machine in lab.machines:
        assert not machine.run("find /run/genie /run/lock -mindepth 1 ! -name genie.lock")


def test_an_agent_that_is_killed_is_named_and_the_others_are_kept(lab, tmp_path):
    process = start(tmp_path, four(lab), *LONG)
    racing(lab, process)
    for pid in lab["m2"].processes("genie-agent"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert process.wait(60) == 4
    words = said(tmp_path)
    assert "the agent on m2 was killed by SIGKILL" in words
    opened = RunDir.open(directory(tmp_path))
    for rank in range(4):  # the killed one's too: what it had committed was in its file
        assert len(opened.events(rank).records) > 0
    assert opened.ports() is not None


def test_a_host_without_room_is_named_before_the_run(lab, tmp_path):
    lab["m1"].run("dd if=/dev/zero of=/run/genie/fill bs=1M count=140 2>/dev/null", check=False)
    try:
        code, words, _ = run(tmp_path, four(lab), "workload.ranks=4")
    finally:
        lab["m1"].run("rm /run/genie/fill")
    assert code == 3
    assert re.search(r"m1: .* are free at /run/genie, .* are needed", words), words


def test_a_host_without_room_for_its_events_is_named(lab, tmp_path):
    # Every host's own file system has 160 MB; the events of so many iterations do not fit on m1 any more.
    lab["m1"].run("dd if=/dev/zero of=/run/genie/fill bs=1M count=110 2>/dev/null")
    try:
        more = ("workload.ranks=4", "workload.iterations=15000", "fabric.time_limit=10h")
        code, words, folder = run(tmp_path, four(lab), *more)
    finally:
        lab["m1"].run("rm /run/genie/fill")
    assert code == 4
    assert "rank 1 on m1 could not load its program" in words
    assert "No space left on device" in words
    assert RunDir.open(folder).status[0] == "aborted"


def connections_of(pid):
    """Processes of this machine that hold a controller's ssh connections."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"genie-ssh-{pid}-".encode() in entry.read_bytes():
                found.append(entry)
    return found


def test_controller_killed_and_the_next_run_is_clean(lab, tmp_path):
    process = start(tmp_path, four(lab), *LONG)
    racing(lab, process)
    process.kill()
    process.wait()
    killed_s = time.monotonic()
    wait_until(lambda: not lab.leftovers(), "the end of what the controller had started", 30)
    assert time.monotonic() - killed_s < 20, "at once, not when patience ends"
    wait_until(lambda: not connections_of(process.pid), "the end of its connections", 10)
    code, words, _ = run(tmp_path, four(lab), "workload.ranks=4", "workload.iterations=1")
    assert code == 0 or "hosts saturated" in words, words


def test_a_second_controller_is_refused_and_the_first_goes_on(lab, tmp_path):
    process = start(tmp_path, four(lab), *LONG)
    racing(lab, process)
    (tmp_path / "second").mkdir()
    code, words, _ = run(tmp_path / "second", lab.inventory("other.yml", hosts=("m3", "m4")), "workload.ranks=2")
    assert code == 3
    run_id = RunDir.open(directory(tmp_path)).manifest.run_id
    assert f"m3: another run has this host: run {run_id}" in words
    assert "m4:" not in words
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def test_a_host_that_falls_silent_is_named_and_cleans_itself(lab, tmp_path):
    process = start(tmp_path, four(lab), *LONG)
    racing(lab, process)
    cable = lab["m1"].cable("mgmt")
    subprocess.run(["ip", "link", "set", cable, "down"], check=True)
    try:
        assert process.wait(90) == 4
        words = said(tmp_path)
        assert "the run was aborted: the connection to the agent on m1 was lost" in words, words
        assert "m1 was lost; it removes the run's files by itself" in words
        # Nobody can reach it: its lease ends everything there by itself.
        wait_until(lambda: not lab["m1"].processes("genie-agent"), "the end of the agent", 40)
        wait_until(lambda: not lab["m1"].run("find /run/genie -mindepth 1"), "the end of the files", 40)
    finally:
        subprocess.run(["ip", "link", "set", cable, "up"], check=True)
    opened = RunDir.open(directory(tmp_path))
    for rank in (0, 2, 3):
        assert len(opened.events(rank).records) > 0


def test_a_timed_fault_on_a_host_with_another_clock(lab, tmp_path):
    lab["m3"].run("tc qdisc add dev data0 root handle 7e1e: tbf rate 80mbit burst 32k limit 512k")
    before = lab["m3"].run("tc -r qdisc show dev data0")
    fault = "fault.link_rate"
    try:
        _, words, folder = run(
            tmp_path, four(lab), "workload.ranks=4", "workload.iterations=4", "fault=link_rate",
            f"{fault}.targets=[m3/data0]", f"{fault}.window.at=500ms", f"{fault}.window.for=1s",
        )  # fmt: skip
        after = lab["m3"].run("tc -r qdisc show dev data0")
    finally:
        lab["m3"].run("tc qdisc del dev data0 root")
    opened = RunDir.open(folder)
    (outcome,) = opened.faults()
    assert (outcome.state, outcome.reverted) == ("in_effect", True), words
    assert after == before
    start = opened.clocks().start_mono_ns
    assert outcome.start_mono_ns - start == pytest.approx(0.5e9, abs=0.3e9)
    assert outcome.end_mono_ns - start == pytest.approx(1.5e9, abs=0.3e9)


def test_a_fault_of_the_interface_that_ssh_comes_by_is_refused(lab, tmp_path):
    code, words, folder = run(
        tmp_path, four(lab, m2={"genie_address": None, "genie_interface": "mgmt0"}), "workload.ranks=4",
        "fault=link_rate", "fault.link_rate.targets=[m2/mgmt0]",
    )  # fmt: skip
    assert code == 2, words
    assert "no key allows this one" in words
    assert folder is None


def test_clean_removes_what_runs_have_left_and_nothing_else(lab, tmp_path):
    gone = "0123456789abcdef" * 2
    lab["m0"].run(f"mkdir -p /run/genie/{gone}/bin /run/genie/somebodys")
    from genie.paths import playbooks_dir

    done = subprocess.run(
        [genie()[0], "-m", "ansible", "playbook", "-i", str(four(lab)), str(playbooks_dir() / "clean.yml")],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "ANSIBLE_LOCAL_TEMP": str(tmp_path), "ANSIBLE_HOME": str(tmp_path)},
    )  # fmt: skip
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        assert lab["m0"].run("ls /run/genie").split() == ["somebodys"]
    finally:
        lab["m0"].run("rmdir /run/genie/somebodys")


def test_the_time_limit_ends_a_run_and_is_named(lab, tmp_path):
    # Such links are a promise that the lab does not keep: the run takes longer than was predicted.
    fast = {"genie_rate": "100Gbps"}
    code, words, folder = run(
        tmp_path, lab.inventory(hosts=FOUR[:2], m0=fast, m1=fast), "workload.iterations=60", "workload.ranks=2",
        "workload.compute_scale=0.01", "workload.hidden=512", "workload.ffn=2048", "fabric.time_limit=8s",
    )  # fmt: skip
    assert code == 4, words
    assert re.search(r"the time limit \(fabric.time_limit=8s\) ended m[01]", words), words
    assert all(len(RunDir.open(folder).events(rank).records) > 0 for rank in range(2))


def test_an_agent_ends_by_itself_when_the_way_to_its_controller_is_cut(lab):
    """Without a lease: nothing closes the connection, nobody sends a reset; the kernel of the agent's host notices."""
    machine = lab["m5"]
    with socket.create_server((str(IPv4Address(machine.management) - machine.number - 1 + 254), 0)) as listener:
        where = "tcp:{}:{}".format(*listener.getsockname())
        inside = ["ip", "netns", "exec", machine.space]
        agent = subprocess.Popen(
            [*inside, find_binary("genie-agent"), "run", "--control", where, "--host", "m5"],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            agent.stdin.write("t" * 32)
            agent.stdin.close()
            connection, _ = listener.accept()
            assert connection.recv(1000)  # HELLO
            subprocess.run(["ip", "link", "set", machine.cable("mgmt"), "down"], check=True)
            assert agent.wait(30) == 1
            assert "the controller went away" in agent.stderr.read()
        finally:
            agent.kill()
            subprocess.run(["ip", "link", "set", machine.cable("mgmt"), "up"], check=True)


SUDO = """#!/bin/sh
while :; do case $1 in -n|-H|-S) shift ;; -u|-p) shift 2 ;; *) break ;; esac; done
unset SSH_CONNECTION
echo "$1" >>/run/lock/sudoed
exec "$@"
"""


def test_everything_goes_through_sudo_where_the_inventory_says_become(lab, tmp_path):
    """With a double of sudo in the machine's own mount namespace; it forgets the environment, as the real one does."""
    machines = [lab["m5"], lab["m6"]]
    for machine in machines:
        machine.run(
            "mount -t tmpfs tmpfs /usr/local/bin && "
            f"cat >/usr/local/bin/sudo <<'E'\n{SUDO}E\nchmod 755 /usr/local/bin/sudo"
        )
    become = {"ansible_become": True}
    try:
        code, words, folder = run(
            tmp_path,
            lab.inventory(hosts=("m5", "m6"), m5=become, m6=become),
            "workload.ranks=2",
            "workload.iterations=1",
        )
    finally:
        for machine in machines:
            said = machine.run("cat /run/lock/sudoed; rm -f /run/lock/sudoed; umount /usr/local/bin")
            assert set(said.split()) == {"/bin/sh"}
    assert code == 0 or "hosts saturated" in words, words
    assert len(RunDir.open(folder).events(1).records) > 0


def test_a_run_that_hosts_would_end_is_refused(lab, tmp_path):
    code, words, folder = run(tmp_path, four(lab), *LONG, "fabric.time_limit=1min")
    assert (code, folder) == (2, None), words
    assert "longer than fabric.time_limit=1min" in words
