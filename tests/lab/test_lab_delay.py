"""The role port_delay on a kernel with netem: made, read back, put back exactly; a foreign filter stays."""

import json
import subprocess
from dataclasses import replace

import pytest

from genie.errors import RunAborted
from genie.faults import life, warden

pytestmark = pytest.mark.lab

PORT = {
    "target": "vm1/wire0",
    "object": "wire0",
    "interface": "wire0",
    "mtu": 4200,
    "set": {"delay_ns": 15_000_000, "jitter": 0},
}


@pytest.fixture
def task(tmp_path):
    """A delay of what arrives at vm2, without a warden: undone by its own undo."""
    words = {"fault": "latency_add", "node": "vm2", "state": "/run"}
    return life.Task(
        run="r", fault="latency_add", role="port_delay", node="vm2", platform="linux", ports=(PORT,), words=words,
        journal=tmp_path / "journal", window=warden.Window("told"), is_whole=True, ttl_ns=10**10, warden="", state="",
        lock="",
    )  # fmt: skip


@pytest.fixture
def shell(wire):
    """Runs a line of shell on vm2, whose ingress is then as it was."""

    def run(line):
        done = wire.command("vm2", "sh", "-c", line)
        return done.returncode, done.stdout, done.stderr

    yield run
    run("tc qdisc del dev wire0 clsact; ip link del dev gd-wire0")


def look(shell):
    return shell("tc qdisc show dev wire0; tc filter show dev wire0 ingress; ip -o link")[1]


@pytest.mark.parametrize("before", ["true", "tc qdisc add dev wire0 clsact"], ids=["nothing there", "a hook there"])
def test_what_was_there_comes_back_and_twice_is_once(task, shell, wire, before):
    assert shell(before)[0] == 0
    found = look(shell)
    life.prepare(task, shell)
    assert look(shell) == found
    made = life.act(task, shell)["state"]["wire0"]
    assert (made["queue"], made["delay_ns"], made["filters"]) == ("netem", 15_000_000, "redirect to gd-wire0")
    least = wire.output("vm1", "sh", "-c", "ping -q -c 5 -i 0.1 10.77.0.2 | sed -n 's/.*= \\([0-9]*\\).*/\\1/p'")
    assert int(least) >= 15
    life.revert(task, shell)
    assert look(shell) == found
    life.revert(task, shell)
    assert look(shell) == found


def test_a_foreign_filter_is_refused_and_left_alone(task, shell):
    own = "tc filter add dev wire0 ingress pref 3 protocol ip u32 match u32 0 0 action ok"
    foreign = f"tc qdisc add dev wire0 clsact && {own}"
    assert shell(foreign)[0] == 0
    found = look(shell)
    with pytest.raises(RunAborted, match="filters expected none, found u32"):
        life.prepare(task, shell)
    assert look(shell) == found


def test_jitter_keeps_packets_in_order(task, shell, wire):
    task = replace(task, ports=({**PORT, "set": {"delay_ns": 15_000_000, "jitter": 80}},))
    life.prepare(task, shell)
    life.act(task, shell)
    listen = """
import json, socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", 5300)); s.settimeout(20)
print("listening", flush=True)
print(json.dumps([int(s.recv(64)) for _ in range(200)]))
"""
    send = """
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(200): s.sendto(str(number).encode(), ("10.77.0.2", 5300)); time.sleep(0.001)
"""
    receiver = subprocess.Popen(wire.ssh_argv("vm2", ["python3", "-c", listen]), stdout=subprocess.PIPE, text=True)
    try:
        assert receiver.stdout.readline() == "listening\n"
        wire.output("vm1", "python3", "-c", send)
        assert json.loads(receiver.communicate(timeout=60)[0]) == list(range(200))
    finally:
        receiver.kill()
        receiver.wait()
    life.revert(task, shell)
