"""The lab itself: both machines boot, are reached safely, have what the embedded fabric's kernel lacks, and end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import lab as lab_module
import pytest
import tsc

pytestmark = pytest.mark.lab

HERE = Path(__file__).resolve().parent
MODULES = ("sch_netem", "sch_red", "sch_fq", "sch_tbf", "tcp_dctcp", "rdma_rxe", "ib_uverbs", "dummy")


def until(condition, what, seconds=20.0):
    """Wait for a condition that something else brings about."""
    ends = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < ends, f"after {seconds:g} s: {what}"
        time.sleep(0.05)
    return value


def qdisc(lab, name):
    """The root queueing discipline of the wire's interface, as tc tells it."""
    found = json.loads(lab.output(name, "tc", "-s", "-j", "qdisc", "show", "dev", "wire0"))
    return next(entry for entry in found if entry.get("root"))


def tc(lab, name, words):
    """Run tc on a machine."""
    lab.output(name, "tc", *words.split())


def ping(lab, count=5, interval="0.1"):
    """Packets received of `count`, and the smallest round trip in ms (None if none came back)."""
    said = lab.command("vm1", "ping", "-q", "-c", str(count), "-i", interval, "-W", "1", "10.77.0.2").stdout
    received = int(re.search(r"(\d+) (?:packets )?received", said)[1])
    least = re.search(r"= ([\d.]+)/", said)
    return received, float(least[1]) if least else None


def flow(lab, seconds, flows=1):
    """Goodput of TCP flows from vm1 to vm2 together, in bits a second, as the receiver measured it."""
    program = (HERE / "guest_traffic.py").read_text()
    receiver = subprocess.Popen(
        lab.ssh_argv("vm2", ["python3", "-c", program, "receive", str(flows)]), stdout=subprocess.PIPE, text=True
    )
    try:
        assert receiver.stdout.readline() == "listening\n"
        lab.output("vm1", "python3", "-c", program, "send", str(flows), "10.77.0.2", str(seconds))
        got = json.loads(receiver.communicate(timeout=60)[0])
    finally:
        receiver.kill()
        receiver.wait()
    return got["bytes"] * 8 / got["seconds"]


def test_both_machines_run_the_kernel_that_was_downloaded(lab):
    for name in lab.names:
        said = lab.output(name, "sh", "-c", "uname -r; hostname; id -u").split()
        assert said == [lab.state["kernel"], name, "0"]


def test_a_user_finds_the_lab_by_its_folder(lab):
    def command(*words):
        argv = [sys.executable, str(HERE / "command.py"), "--run", str(lab.run), *words]
        return subprocess.run(argv, capture_output=True, text=True)

    assert f"lab: up, Linux {lab.state['kernel']}" in command("status").stdout
    assert command("ssh", "vm2", "hostname", "&&", "uname", "-r").stdout.split() == ["vm2", lab.state["kernel"]]
    assert "genie-lab: ready" in command("console", "vm1").stdout
    again = command("up")
    assert again.returncode == 3
    assert "a lab is up in" in again.stderr


def test_a_second_of_a_machine_is_a_second_of_the_host(lab):
    """A kernel that measured its counter wrongly has clocks that are several times too fast."""
    clock = lab.output("vm1", "cat", str(tsc.CLOCK_SOURCE)).strip()
    assert clock == ("kvm-clock" if lab.state["accelerator"] == "kvm" else "tsc" if tsc.khz() else "hpet")
    for name in lab.names:
        began = time.monotonic()
        lab.output(name, "sleep", "3")
        assert 2.9 <= time.monotonic() - began <= 6


def test_the_hosts_files_are_seen_but_cannot_be_changed(lab, tmp_path):
    probe = f"genie-lab-{os.getpid()}"
    assert lab.output("vm1", "sh", "-c", f"touch /usr/{probe} && ls /usr/{probe}").strip() == f"/usr/{probe}"
    assert not Path(f"/usr/{probe}").exists()
    # What is the host's own: users' files and temporary ones.
    assert lab.output("vm1", "sh", "-c", "ls -A /home /root /tmp").split() == ["/home:", "/root:", "/tmp:"]


def test_a_machine_with_another_host_key_is_refused(lab, tmp_path):
    known = (lab.run / "known_hosts").read_text().splitlines()
    ports = [line.split()[0] for line in known]
    swapped = tmp_path / "known_hosts"
    swapped.write_text(
        "".join(f"{port} {line.split(' ', 1)[1]}\n" for port, line in zip(ports, known[::-1], strict=True))
    )
    ssh, *words = lab.ssh_argv("vm1", ["true"])
    other = ["-o", f"UserKnownHostsFile={swapped}", "-o", "ControlPath=none"]
    done = subprocess.run([ssh, *other, *words], capture_output=True, text=True)
    assert done.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr


def test_a_machine_reaches_the_other_and_one_address_of_the_host(lab):
    dial = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5).close()"
    with socket.create_server((lab.state["control_address"], 0)) as server:
        port = str(server.getsockname()[1])
        lab.output("vm1", "python3", "-c", dial, lab.state["control_address"], port)
    assert "unreachable" in lab.command("vm1", "python3", "-c", dial, "192.0.2.1", port).stderr


def test_ansible_reaches_both_through_the_inventory(lab):
    ansible = Path(sys.executable).with_name("ansible")
    argv = [str(ansible), "all", "-i", str(lab.inventory), "-m", "ansible.builtin.raw", "-a", "hostname"]
    done = subprocess.run(
        argv, capture_output=True, text=True, env={**os.environ, "ANSIBLE_SSH_CONTROL_PATH_DIR": str(lab.run / "cp")}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"vm1", "vm2"} <= set(done.stdout.split())


@pytest.mark.parametrize("module", MODULES)
def test_module_loads(lab, module):
    lab.output("vm2", "modprobe", module)
    lab.output("vm2", "ls", "-d", f"/sys/module/{module}")


def test_netem_delays_what_the_wire_carries(wire):
    _, plain = ping(wire)
    tc(wire, "vm1", "qdisc replace dev wire0 root netem delay 40ms")
    _, delayed = ping(wire)
    # One way only, and never less than asked for; above that, emulated machines are slow to wake up.
    assert 39 <= delayed - plain <= 60, (plain, delayed)


def test_netem_loses_what_it_is_told_to(wire):
    tc(wire, "vm1", "qdisc replace dev wire0 root netem loss 30%")
    received, _ = ping(wire, count=200, interval="0.01")
    # 200 at 0.7: five standard deviations to either side.
    assert 107 <= received <= 173
    # ARP may be among what was lost.
    assert abs(qdisc(wire, "vm1")["drops"] - (200 - received)) <= 5


def test_the_wire_keeps_its_rate_and_marks_what_fills_its_queue(wire):
    marked = "nstat -asz IpExtInCEPkts | awk '/CE/ {print $2}'"
    before = int(wire.output("vm2", "sh", "-c", marked))
    # A single flow is held back by its own host (TCP small queues) and fills no queue.
    rate = flow(wire, seconds=3, flows=8)
    shaped = wire.state["rate_mbps"] * 1e6
    # On a busy host emulated machines do not always keep up.
    assert 0.5 * shaped <= rate <= shaped, rate
    said = json.loads(wire.output("vm1", "tc", "-s", "-j", "qdisc", "show", "dev", "wire0"))
    red = next(entry for entry in said if entry["kind"] == "red")
    assert red["marked"] > 0
    assert int(wire.output("vm2", "sh", "-c", marked)) - before > 0


def test_a_pulled_cable_is_seen_by_both(wire):
    def carriers():
        return {wire.output(name, "cat", "/sys/class/net/wire0/carrier").strip() for name in wire.names}

    assert carriers() == {"1"}
    wire.cable(plugged=False)
    until(lambda: carriers() == {"0"}, "a machine still has carrier on a pulled cable")
    assert ping(wire, count=1)[0] == 0
    wire.cable(plugged=True)
    until(lambda: carriers() == {"1"}, "no carrier after the cable was plugged in")
    until(lambda: ping(wire, count=1)[0] == 1, "no packet came through after the cable was plugged in")


def test_the_ssh_server_comes_back_when_it_is_killed(lab):
    lab.command("vm2", "sh", "-c", "kill -9 $(pidof sshd)")
    until(lambda: lab.command("vm2", "true").returncode == 0, "no SSH server came back")


def machines_below(keeper):
    """The keeper's QEMU processes."""
    children = Path(f"/proc/{keeper}/task/{keeper}/children")
    return [int(pid) for pid in children.read_text().split() if "qemu" in Path(f"/proc/{pid}/comm").read_text()]


def gone(pid):
    """Whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def starting(booted_from, tmp_path):
    """A second lab that belongs to a process of its own, caught while it boots: owner, keeper and machines."""
    program = f"""
        import sys; sys.path.insert(0, {str(HERE)!r})
        from pathlib import Path
        import lab
        with lab.session(Path({str(tmp_path)!r}), Path({str(booted_from)!r}), options=("--accelerator", "tcg")):
            sys.stdin.read()
    """
    owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE)
    try:
        until(lambda: (tmp_path / "vm2/console").exists(), "the second lab did not start")
        keeper = int((tmp_path / "pid").read_text())
        yield owner, keeper, until(lambda: len(found := machines_below(keeper)) == 2 and found, "no two machines")
    finally:
        owner.kill()
        owner.wait()
        lab_module.stop(tmp_path)


@pytest.mark.parametrize("victim", ["owner", "keeper"])
def test_machines_end_with_whoever_is_killed(starting, victim):
    owner, keeper, machines = starting
    os.kill(owner.pid if victim == "owner" else keeper, signal.SIGKILL)
    until(lambda: all(gone(pid) for pid in machines), "machines outlive the lab")
    until(lambda: gone(keeper), "the keeper outlives its owner")
