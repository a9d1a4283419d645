"""Whole runs over the lab: faults of a real kernel's netem and red, put back exactly; a controller that is cut off."""

import json
import re
import time

import pytest
from lab_runs import Started, until

pytestmark = pytest.mark.lab

STATE = """
tc -d -r qdisc show; tc filter show dev wire0 ingress; tc filter show dev wire0 egress
ip -o link show | sed 's/ \\(qlen\\|promiscuity\\) .*//'; ip -o -4 address show; ip -4 route show table all
nft list ruleset; ls -A /run/genie /run/lock 2>/dev/null | grep -v genie.lock
"""


def state(lab):
    """All that a fault could have left, by machine."""
    return {name: lab.output(name, "sh", "-c", STATE) for name in lab.names}


def slowed(lab):
    """The wire at a rate that emulated machines fill its queues at, whatever else runs on this host."""
    slower = "$(echo $shaper | sed 's/rate [0-9]*mbit/rate 10mbit/')"
    for name in lab.names:
        lab.output(name, "sh", "-c", f". /run/lab/conf/settings; tc qdisc change dev wire0 root handle 7e1e: {slower}")


def round_trip_ms(lab, name, address):
    """The least of three, None if none came back."""
    text = lab.command(name, "ping", "-q", "-c", "3", "-i", "0.1", "-W", "1", address).stdout
    least = re.search(r"= ([\d.]+)/", text)
    return float(least[1]) if least else None


def test_netem_and_red_faults_take_effect_and_leave_nothing(wire, tmp_path):
    slowed(wire)
    before = state(wire)
    words = ("workload.kind=all_to_all", "workload.ranks=8", "workload.sizes=[500KB]", "workload.iterations=2")
    faults = (
        "fault=[latency_add,ecn_off]",
        "fault.latency_add.targets=[vm1-vm2]",
        "fault.latency_add.parameters.delay=3ms",
    )
    targets = "fault.ecn_off.targets=[vm1/wire0,vm2/wire0]"
    ended = Started(wire, tmp_path, "workload=collective", *words, *faults, targets).finish()
    assert (ended.run / "faults.json").exists(), ended.text
    found = {fault["name"]: fault for fault in json.loads((ended.run / "faults.json").read_text())["faults"]}
    assert {name: (fault["state"], fault["reverted"]) for name, fault in found.items()} == {
        "latency_add": ("in_effect", True),
        "ecn_off": ("in_effect", True),
    }, ended.text
    assert found["latency_add"]["facts"]["vm1/wire0.delay_ns"] == 3_000_000
    assert state(wire) == before


@pytest.mark.timeout(600)
def test_a_machine_that_is_cut_off_puts_itself_back_and_the_next_run_says_so(wire, tmp_path):
    before = state(wire)
    ttl_s = 30
    fault = ("+fault=latency_add", "fault.latency_add.targets=[vm1-vm2]", "fault.latency_add.parameters.delay=20ms")
    small = ("workload=collective", "workload.ranks=2", "workload.sizes=[4KB]", *fault)
    started = Started(wire, tmp_path, *small, "workload.iterations=2000", f"safety.ttl={ttl_s}s", "timeout=20s")
    try:
        started.running()
        until(lambda: (round_trip_ms(wire, "vm2", "10.77.0.1") or 0) > 39, "no delay on the wire", 20)
        wire.cable(plugged=False, card="manage0", names=("vm1",))
        cut = time.monotonic()
        ended = started.finish()
        assert ended.code not in (0, 1), ended.text
        assert "vm1" in ended.text
        # vm2 is reached, and was put back by the controller; vm1 does it alone, when its time is over.
        until(lambda: 0 < (round_trip_ms(wire, "vm2", "10.77.0.1") or 0) < 15, "still delayed", ttl_s + 60)
        assert time.monotonic() - cut < ttl_s + 60
    finally:
        started.kill()
        wire.cable(plugged=True, card="manage0", names=("vm1",))
    until(lambda: wire.command("vm1", "true").returncode == 0, "vm1 is not reached again", 60)

    ended = Started(wire, tmp_path, *small, "workload.iterations=5").finish()
    assert "ended with latency_add on vm1 open; it is put back before this run begins" in ended.text
    assert (ended.run / "faults.json").exists(), ended.text
    fault = json.loads((ended.run / "faults.json").read_text())["faults"][0]
    assert (fault["state"], fault["reverted"]) == ("in_effect", True)
    # Two dependent messages an iteration, each 20 ms late.
    assert ended.results["metrics"]["iteration"]["median"]["value"] >= 40e6
    assert state(wire) == before
