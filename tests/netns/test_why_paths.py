"""The computed choice of paths against the kernel's own, and against what ports counted."""

import ipaddress
import json
import random
from pathlib import Path

import numpy as np
import pytest
from fabrics import PORT, PYTHON, difference, running, serve

from genie.fabric import NetnsConfig
from genie.fabric.probe import probe
from genie.topology import LeafSpineConfig
from genie.why.multipath import next_hops

SEED = 7
SPINES = 3
SENDER = """
import socket, sys
target, port, own, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
with socket.socket() as connection:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    connection.bind(("", own))
    connection.connect((target, port))
    connection.sendall(bytes(size))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
"""

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(probe().unfit), reason=f"no namespaces: {probe().unfit}"),
    pytest.mark.skipif(
        not Path("/proc/sys/net/ipv4/fib_multipath_hash_seed").exists(),
        reason="this kernel has no fib_multipath_hash_seed (6.11 has)",
    ),
]


@pytest.fixture(scope="module")
def fabric(tmp_path_factory):
    directory = tmp_path_factory.mktemp("paths")
    topology = LeafSpineConfig(hosts=4, leaves=2, spines=SPINES)
    with running(directory, topology, NetnsConfig(seed=SEED)) as built:
        serve(built, "h3", directory / "h3.log")
        yield built


def number(address: str) -> int:
    return int(ipaddress.IPv4Address(address))


def chosen(node: str, source: str, target: str, ports: tuple[int, int]) -> int:
    flow = np.array([[number(source), number(target), *ports]], dtype=np.int64)
    return int(next_hops(SEED, node, flow, [SPINES])[0])


def test_a_leaf_chooses_the_spine_that_is_computed(fabric):
    rng = random.Random(20)
    source, target = fabric.address("h0"), fabric.address("h3")
    seen = set()
    for _ in range(40):
        ports = (rng.randrange(1024, 65536), rng.randrange(1024, 65536))
        question = ["ip", "-j", "route", "get", target, "from", source, "iif", "h0", "ipproto", "tcp"]
        answer = fabric.run("leaf0", [*question, "sport", str(ports[0]), "dport", str(ports[1])])
        assert answer.returncode == 0, answer.stderr
        spine = chosen("leaf0", source, target, ports)
        assert json.loads(answer.stdout)[0]["dev"] == f"spine{spine}", ports
        seen.add(spine)
    assert seen == set(range(SPINES)), "40 flows leave no spine out"


def test_both_directions_are_told_by_one_five_tuple(fabric):
    source, target = fabric.address("h0"), fabric.address("h3")
    for own in range(20_000, 20_020):
        there = chosen("leaf0", source, target, (own, 5000))
        assert there == chosen("leaf0", target, source, (5000, own))


def test_bytes_leave_by_the_port_that_is_computed(fabric):
    source, target = fabric.address("h0"), fabric.address("h3")
    for own in (21_001, 21_002, 21_003, 21_004):
        spine = chosen("leaf0", source, target, (own, int(PORT)))
        before = fabric.counters()
        argv = [PYTHON, "-I", "-S", "-c", SENDER, target, PORT, str(own), "200000"]
        done = fabric.run("h0", argv)
        assert done.returncode == 0, done.stderr
        after = fabric.counters()
        sent = [difference(before, after, f"leaf0/spine{k}", "tx_bytes") for k in range(SPINES)]
        assert sent[spine] > 200_000, (own, sent)
        assert sum(sent) - sent[spine] < 20_000, (own, sent)
