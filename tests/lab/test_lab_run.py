"""Whole runs over the lab: faults of a real kernel's netem and red, put back exactly; a controller that is cut off."""

import json
import re
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.lab

RUN_LIMIT_S = 200
STATE = """
tc -d -r qdisc show; tc filter show dev wire0 ingress; tc filter show dev wire0 egress
ip -o link show | sed 's/ \\(qlen\\|promiscuity\\) .*//'; ip -o -4 address show; ip -4 route show table all
nft list ruleset; ls -A /run/genie /run/lock 2>/dev/null | grep -v genie.lock
"""


def state(lab):
    """All that a fault could have left, by machine."""
    return {name: lab.output(name, "sh", "-c", STATE) for name in lab.names}


def answers_soon(lab):
    """Whether both machines let somebody in within 5 s; a run gives each 10, which a busy host may use up."""
    began = time.monotonic()
    argvs = [lab.ssh_argv(name, ["true"]) for name in lab.names]
    clients = [subprocess.Popen([ssh, "-o", "ControlPath=none", *rest]) for ssh, *rest in argvs]
    return [client.wait(60) for client in clients] == [0, 0] and time.monotonic() - began < 5


def start(lab, folder, *words):
    """A run over the lab in the background; its words in a file."""
    until(lambda: answers_soon(lab), "the machines are too slow for a run: what else runs on this host?", 120)
    argv = [sys.executable, "-m", "genie", "workload=collective", "transport.spin=0", "tracking.mlflow.enabled=false"]
    argv += ["fabric=inventory", f"fabric.inventory={lab.inventory}", f"out={folder / 'runs'}"]
    argv += [f"fabric.control_address={lab.state['control_address']}", *words]
    with (folder / "said").open("wb") as out:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=folder)


def finish(process, folder):
    """The end of a run: exit code, all it said on one line, its directory."""
    try:
        code = process.wait(RUN_LIMIT_S)
    finally:
        process.kill()
        process.wait()
    made = list((folder / "runs").glob("2*/"))
    assert made, said(folder)
    return code, said(folder), max(made, key=lambda path: path.stat().st_mtime)


def said(folder):
    return re.sub(r"\s+", " ", (folder / "said").read_text())


def until(condition, what, seconds):
    ends = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < ends, f"after {seconds:g} s: {what}"
        time.sleep(0.1)
    return value


def round_trip_ms(lab, name, address):
    """The least of three, None if none came back."""
    text = lab.command(name, "ping", "-q", "-c", "3", "-i", "0.1", "-W", "1", address).stdout
    least = re.search(r"= ([\d.]+)/", text)
    return float(least[1]) if least else None


def test_netem_and_red_faults_take_effect_and_leave_nothing(wire, tmp_path):
    before = state(wire)
    words = ("workload.kind=all_to_all", "workload.ranks=8", "workload.sizes=[500KB]", "workload.iterations=2")
    faults = (
        "fault=[latency_add,ecn_off]",
        "fault.latency_add.targets=[vm1-vm2]",
        "fault.latency_add.parameters.delay=3ms",
    )
    targets = "fault.ecn_off.targets=[vm1/wire0,vm2/wire0]"
    _, text, run = finish(start(wire, tmp_path, *words, *faults, targets), tmp_path)
    assert (run / "faults.json").exists(), text
    found = {fault["name"]: fault for fault in json.loads((run / "faults.json").read_text())["faults"]}
    assert {name: (fault["state"], fault["reverted"]) for name, fault in found.items()} == {
        "latency_add": ("in_effect", True),
        "ecn_off": ("in_effect", True),
    }, text
    assert found["latency_add"]["facts"]["vm1/wire0.delay_ns"] == 3_000_000
    assert state(wire) == before


@pytest.mark.timeout(600)
def test_a_machine_that_is_cut_off_puts_itself_back_and_the_next_run_says_so(wire, tmp_path):
    before = state(wire)
    ttl_s = 30
    fault = ("+fault=latency_add", "fault.latency_add.targets=[vm1-vm2]", "fault.latency_add.parameters.delay=20ms")
    small = ("workload.ranks=2", "workload.sizes=[4KB]", *fault)
    process = start(wire, tmp_path, *small, "workload.iterations=2000", f"safety.ttl={ttl_s}s", "timeout=20s")
    try:
        until(lambda: "running" in said(tmp_path) or process.poll() is not None, "the run did not start", RUN_LIMIT_S)
        assert process.poll() is None, said(tmp_path)
        until(lambda: (round_trip_ms(wire, "vm2", "10.77.0.1") or 0) > 39, "no delay on the wire", 20)
        wire.cable(plugged=False, card="manage0", names=("vm1",))
        cut = time.monotonic()
        code, text, _ = finish(process, tmp_path)
        assert code not in (0, 1), text
        assert "vm1" in text
        # vm2 is reached, and was put back by the controller; vm1 does it alone, when its time is over.
        until(lambda: 0 < (round_trip_ms(wire, "vm2", "10.77.0.1") or 0) < 15, "still delayed", ttl_s + 60)
        assert time.monotonic() - cut < ttl_s + 60
    finally:
        process.kill()
        process.wait()
        wire.cable(plugged=True, card="manage0", names=("vm1",))
    until(lambda: wire.command("vm1", "true").returncode == 0, "vm1 is not reached again", 60)

    _, text, run = finish(start(wire, tmp_path, *small, "workload.iterations=5"), tmp_path)
    assert "ended with latency_add on vm1 open; it is put back before this run begins" in text
    assert (run / "faults.json").exists(), text
    fault = json.loads((run / "faults.json").read_text())["faults"][0]
    assert (fault["state"], fault["reverted"]) == ("in_effect", True)
    # Two dependent messages an iteration, each 20 ms late.
    assert json.loads((run / "results.json").read_text())["metrics"]["iteration"]["median"]["value"] >= 40e6
    assert state(wire) == before
