"""How runs over verbs end when the network, a program or a machine does: in time, by name, and leaving nothing."""

import json
import time

import pytest
import roce
from held import running
from lab_runs import Started, until

pytestmark = [pytest.mark.rdma, pytest.mark.timeout(600)]

ENDLESS = ("transport=verbs", "workload=collective", "workload.ranks=2", "workload.sizes=[64KiB]", "timeout=60s")
ENDLESS = (*ENDLESS, "workload.iterations=100000")
PATIENCE = ("transport.timeout=16", "transport.retry_cnt=3")
"""0.27 s, four times."""

IN_TIME_S = 50
"""Much more than the patience, since the machines are slow, and less than a run without progress is let be."""


def moving(lab, run):
    """Wait until packets of the run go over the wire. Raises what ended it, if that is over already."""
    before = roce.counters(lab, "vm1")["rcvd_pkts"]
    until(lambda: run.done() or roce.counters(lab, "vm1")["rcvd_pkts"] > before + 50, "no RDMA on the wire", 120)
    assert not run.done(), run.exception()


def ended(run):
    """The words of the error that ended a run, and how long that took from now."""
    began = time.monotonic()
    error = run.exception(IN_TIME_S)
    assert error is not None
    return " ".join(str(error).split()), time.monotonic() - began


def test_a_pulled_cable_ends_the_run_by_the_name_of_what_gave_up(wire, over_wire, clean, say):
    with running(over_wire, *ENDLESS, *PATIENCE) as run:
        moving(wire, run)
        wire.cable(plugged=False)
        text, seconds = ended(run)
    say(f"cable pulled, {seconds:.1f} s later: {text}")
    assert "IBV_WC_RETRY_EXC_ERR" in text
    assert {"vm1", "vm2"} <= set(text.replace(":", " ").split())


def test_a_killed_agent_leaves_no_queue_pair_and_no_region(lab, over_wire, clean, say):
    with running(over_wire, *ENDLESS, *PATIENCE) as run:
        moving(lab, run)
        lab.output("vm1", "sh", "-c", "kill -9 $(pidof genie-agent-dl)")
        until(lambda: roce.resources(lab, "vm1") == [], "what the kernel should have freed is there", 20)
        text, seconds = ended(run)
    say(f"agent of vm1 killed, {seconds:.1f} s later: {text}")
    assert "vm1" in text


def test_a_machine_that_dies_ends_the_run(dying, tmp_path, say):
    run = Started(dying, tmp_path, *ENDLESS, *PATIENCE)
    try:
        run.running()
        dying.kill("vm2")
        began = time.monotonic()
        end = run.finish()
    finally:
        run.kill()
    reason = json.loads((end.run / "manifest.json").read_text())["reason"]
    say(f"vm2 died, {time.monotonic() - began:.1f} s later: {reason}")
    assert end.code == 4
    assert "vm2" in reason
    until(lambda: roce.resources(dying, "vm1") == [], "the living machine keeps RDMA resources", 30)
