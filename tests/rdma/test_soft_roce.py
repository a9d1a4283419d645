"""Soft-RoCE itself, by tools that are not GENIE's: a device a machine, traffic on the wire, what loss does to it."""

import json

import pytest
import roce
from lab_fixtures import RATE_MBPS
from roce import DEVICE, GID_INDEX

pytestmark = pytest.mark.rdma

PORT = """
import json
from pyverbs.device import Context
with Context(name="rxe0") as context:
    port = context.query_port(1)
    gids = [[str(context.query_gid(1, index)), context.query_gid_type(1, index)] for index in range(4)]
    print(json.dumps({"state": port.state, "mtu": port.active_mtu, "gids": gids}))
"""
ACTIVE, MTU_4096, ROCE_V2 = 4, 5, 1  # of ibv_port_state, ibv_mtu and ibv_gid_type_sysfs
SIZE_BYTES, COUNT = 65536, 60
PACKETS = COUNT * SIZE_BYTES // roce.PAYLOAD_BYTES


@pytest.mark.parametrize("name", ["vm1", "vm2"])
def test_the_wire_of_each_machine_has_a_device_that_is_up(lab, name):
    (link,) = json.loads(lab.output(name, "rdma", "-j", "link", "show", f"{DEVICE}/1"))
    assert (link["ifname"], link["state"], link["physical_state"], link["netdev"]) == (
        DEVICE,
        "ACTIVE",
        "LINK_UP",
        "wire0",
    )
    assert roce.resources(lab, name) == []


@pytest.mark.parametrize("name", ["vm1", "vm2"])
def test_pyverbs_sees_the_port_and_its_address_as_a_gid(lab, name):
    port = json.loads(lab.output(name, "/usr/bin/python3", "-c", PORT))
    assert (port["state"], port["mtu"]) == (ACTIVE, MTU_4096)
    address = bytes(int(byte) for byte in lab.machine(name)["address"].split(".")).hex(":", 2).split(":")
    assert port["gids"][GID_INDEX] == ["0000:0000:0000:0000:0000:ffff:" + ":".join(address), ROCE_V2]


@pytest.mark.parametrize("receiver", ["vm1", "vm2"])
def test_perftest_writes_within_a_machine_and_over_the_wire(lab, say, receiver):
    before = {name: roce.counters(lab, name) for name in {"vm1", receiver}}
    gbps = roce.write_gbps(lab, SIZE_BYTES, COUNT, receiver=receiver)
    say(f"ib_write_bw of 64 KiB from vm1 to {receiver}: {roce.shown(gbps)}")
    found = roce.counted(lab, before)
    assert found["vm1"]["sent_pkts"] >= PACKETS
    assert found[receiver]["rcvd_pkts"] >= PACKETS
    if receiver == "vm2":
        # The shaper counts headers too.
        assert gbps * 1000 <= RATE_MBPS
    for name in before:
        assert roce.resources(lab, name) == []


def test_lost_packets_are_seen_by_the_responder_and_cost_more_than_their_share(wire, say):
    before = roce.counters_of_all(wire)
    whole = roce.write_gbps(wire, SIZE_BYTES, COUNT)
    sent = roce.counted(wire, before)["vm1"]["sent_pkts"]
    wire.output("vm1", *f"tc qdisc replace dev wire0 root netem rate {RATE_MBPS}mbit loss 2%".split())
    before = roce.counters_of_all(wire)
    lossy = roce.write_gbps(wire, SIZE_BYTES, COUNT)
    found = roce.counted(wire, before)
    # Some 19 packets of 960 are lost, fewer than 4 of them once in 200,000 runs.
    assert found["vm2"]["out_of_seq_request"] >= 2, found
    assert found["vm1"]["rcvd_seq_err"] >= 2, found
    # Go-back-N: whatever was under way behind a lost packet is sent again.
    assert found["vm1"]["sent_pkts"] > sent + found["vm1"]["rcvd_seq_err"], (sent, found)
    again = found["vm1"]["sent_pkts"] / sent - 1
    say(f"ib_write_bw at 2 % loss: {roce.shown(whole)} → {roce.shown(lossy)}, {again:.0%} of the packets sent again")
