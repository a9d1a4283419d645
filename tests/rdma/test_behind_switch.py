"""Machines at a switch of the embedded fabric: their RDMA goes through its shaped ports, and suffers there."""

import json
import subprocess
import sys

import pytest
import roce
from lab_fixtures import RATE_MBPS
from roce import SWITCH_DEVICE

pytestmark = pytest.mark.rdma

SIZE_BYTES, COUNT = 65536, 30
TO_VM2 = "h1"
PATIENT = ("-u", "16")
"""perftest's timeout of 4.1 us × 2^16: what comes late on a busy host is not sent again."""

OTHERS_MBPS = RATE_MBPS * 3 // 4
OTHERS = """
import socket, sys, time
gap = 4000 * 8 / float(sys.argv[2]) / 1e6
due = time.monotonic()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
    while True:
        out.sendto(bytes(4000), (sys.argv[1], 9))
        due += gap
        time.sleep(max(0, due - time.monotonic()))
"""


def port(lab, name):
    """The shaper of the switch's port towards a host, as tc counts it."""
    argv = lab.node_argv("switch0", ["tc", "-s", "-j", "qdisc", "show", "dev", name])
    found = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    return next(entry for entry in found if entry.get("root"))


def writes(lab):
    """Mb/s from vm1 to vm2, and what the port and the devices counted meanwhile."""
    devices = roce.counters_of_all(lab, SWITCH_DEVICE)
    before = port(lab, TO_VM2)
    rate = 1000 * roce.write_gbps(lab, SIZE_BYTES, COUNT, *PATIENT, device=SWITCH_DEVICE)
    after = port(lab, TO_VM2)
    return (
        rate,
        {key: after[key] - before[key] for key in ("bytes", "drops")},
        roce.counted(lab, devices, SWITCH_DEVICE),
    )


def test_rdma_goes_through_the_switchs_ports_and_loses_there_what_does_not_fit(switched, say):
    alone, counted, devices = writes(switched)
    assert alone <= RATE_MBPS
    assert counted["bytes"] >= SIZE_BYTES * COUNT
    assert counted["drops"] == 0
    assert "rcvd_seq_err" not in devices["vm1"]

    argv = [sys.executable, "-c", OTHERS, switched.machine("vm2")["port_address"], str(OTHERS_MBPS)]
    flood = subprocess.Popen(switched.node_argv("h2", argv))
    try:
        contended, counted, devices = writes(switched)
    finally:
        flood.kill()
        flood.wait()
    gaps = devices["vm2"].get("out_of_seq_request", 0)
    say(
        f"ib_write_bw through the switch: {roce.shown(alone / 1000)}; beside {OTHERS_MBPS} Mb/s of another sender: "
        f"{roce.shown(contended / 1000)}, {counted['drops']} packets dropped at the port, {gaps} gaps seen by vm2"
    )
    assert counted["drops"] > 0
    assert gaps + devices["vm1"].get("completer_retry_err", 0) > 0
