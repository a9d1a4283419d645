"""Routes of flows: the only one, the computed one that counters confirm, and what is not known."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

import numpy as np
import pytest
from why_maker import MTU, RATE_BPS, Job, call, compute, leaf_spine, payload

from genie.results.rundir import RunDir
from genie.topology import LeafSpineConfig, build
from genie.topology.routes import address_plan
from genie.why.explain import explain
from genie.why.multipath import next_hops
from genie.why.network import Network, read_network, topology_of, wire_bytes
from genie.why.recording import Recording

KERNEL_SAID = (
    ("10.0.0.62", 20900, 7785, 0), ("10.0.0.186", 26980, 32407, 3), ("10.0.0.41", 6928, 5383, 1),
    ("10.0.0.7", 27342, 37029, 1), ("10.0.0.236", 19988, 53482, 0), ("10.0.0.197", 4880, 15568, 0),
    ("10.0.0.135", 36195, 24633, 2), ("10.0.0.72", 52125, 12339, 3), ("10.0.0.213", 7982, 18176, 3),
    ("10.0.0.56", 62821, 61807, 1),
)  # fmt: skip
"""Target, ports, and which of four next hops Linux 6.18 gave ("ip route get", forwarding) for packets from 10.0.0.1,
the seed being that of node leaf0 in a run of seed 7. tests/netns asks the kernel of this machine."""


@pytest.mark.parametrize(("target", "source_port", "target_port", "hop"), KERNEL_SAID)
def test_a_hop_is_the_one_that_the_kernel_gave(target: str, source_port: int, target_port: int, hop: int) -> None:
    ends = [int(IPv4Address(address)) for address in ("10.0.0.1", target)]
    flow = np.array([[*ends, source_port, target_port]], dtype=np.int64)
    assert next_hops(7, "leaf0", flow, [4]) == [hop]


def load(job: Job, path: Path, sent: float | None = None) -> tuple[RunDir, Network]:
    run = job.write(path)
    recording = Recording.read(run)
    size = recording.all_sent_bytes if sent is None else np.full(len(recording.flows), sent)
    return run, read_network(run, recording.plan, run.counters(), recording.flows, size)


def talk(job: Job) -> Job:
    """Every rank sends every other one message of 1 ms."""
    ranks = len(job.hosts)
    job.operators = [[compute(planned_ms=1), call("all", 0)] for _ in range(ranks)]
    for rank in range(ranks):
        job.op(rank, 0, 0, 0, 1)
        for peer in range(ranks):
            if peer != rank:
                job.message(rank, peer, 0, (1, 1, 1, 9), payload(1))
        job.op(rank, 1, 1, 1, 9)
        job.iteration(rank, 0, 9)
    return job


def counted(job: Job, path: Path, *, off: str = "") -> tuple[dict, dict]:
    """Counters as the computed routes would have them; ``off`` sends its bytes over the leaf's other uplink."""
    _, network = load(job, path)
    sent = dict.fromkeys(network.ports, 0.0)
    size = float(wire_bytes(np.array([payload(1)]), MTU)[0]) * 100
    for flow in range(len(network.flows)):
        for port in network.route(flow):
            sent[port] += size
    if off:
        leaf, spine = off.split("/")
        other = f"{leaf}/spine{1 - int(spine[-1])}"
        sent[off], sent[other] = 0, sent[off] + sent[other]
    before = {port: {"tx_bytes": 1000} for port in sent}
    return before, {port: {"tx_bytes": 1000 + round(size)} for port, size in sent.items()}


def test_one_path_is_known_without_computing(tmp_path: Path) -> None:
    _, network = load(talk(leaf_spine(3, leaves=1, spines=1)), tmp_path / "run")
    assert (network.facts.basis, network.facts.known, network.facts.flows) == ("single", 6, 6)
    assert network.route(network.flows.index((0, 2, 0))) == ("h0/leaf0", "leaf0/h2")
    assert network.slowest[0] == RATE_BPS / 8e9
    assert network.link(0) == "h0-leaf0"


def test_computed_paths_hold_where_counters_agree(tmp_path: Path) -> None:
    job = talk(leaf_spine(4))
    job.counters = counted(job, tmp_path / "first")
    _, network = load(job, tmp_path / "run", sent=payload(1) * 100)
    assert (network.facts.basis, network.facts.known) == ("computed", 12)
    assert "confirmed by the counters of 4 ports" in network.facts.text
    there, back = (network.route(network.flows.index(flow)) for flow in ((0, 3, 0), (3, 0, 0)))
    assert (there[0], there[-1], len(there)) == ("h0/leaf0", "leaf1/h3", 4)
    assert (back[0], back[-1], len(back)) == ("h3/leaf1", "leaf0/h0", 4)
    assert there[1].split("/")[1] == there[2].split("/")[0]


def test_paths_that_counters_deny_are_unknown_and_spread(tmp_path: Path) -> None:
    job = talk(leaf_spine(4))
    _, after = counted(job, tmp_path / "first")
    busy = max((port for port in after if port.startswith("leaf0/spine")), key=lambda port: after[port]["tx_bytes"])
    job.counters = counted(job, tmp_path / "second", off=busy)
    _, network = load(job, tmp_path / "run", sent=payload(1) * 100)
    assert network.facts.basis == "unknown"
    assert "not those that Linux would choose" in network.facts.text
    flow = network.flows.index((0, 3, 0))
    assert network.route(flow) == ()
    ports = slice(network.begin[flow], network.begin[flow + 1])
    spread = dict(
        zip((network.ports[p] for p in network.route_ports[ports]), network.route_weights[ports], strict=True)
    )
    assert spread == {"h0/leaf0": 1, "leaf0/spine0": 0.5, "leaf0/spine1": 0.5, "spine0/leaf1": 0.5,
                      "spine1/leaf1": 0.5, "leaf1/h3": 1}  # fmt: skip
    within = network.flows.index((0, 1, 0))
    assert network.route(within) == ("h0/leaf0", "leaf0/h1"), "this one had no choice"


@pytest.mark.parametrize(
    ("changes", "basis", "words"),
    [
        pytest.param({"kernel": "6.8.0-45-generic"}, "unknown", "kernel 6.8.0-45-generic has no seed", id="old kernel"),
        pytest.param({"kernel": ""}, "unknown", "kernel unknown has no seed", id="unknown kernel"),
        pytest.param({"fabric": "inventory"}, "unknown", "switches of its own", id="real switches"),
        pytest.param({}, "unconfirmed", "no port counters confirm it", id="no counters"),
        pytest.param({"fabric": "loopback"}, "unknown", "the fabric has no ports", id="no network at all"),
        pytest.param({"nodes": {}}, "unknown", "does not say how it was cabled", id="a run of an older version"),
    ],
)
def test_what_is_not_known_is_said(tmp_path: Path, changes, basis, words) -> None:
    run, network = load(talk(leaf_spine(4, **changes)), tmp_path / "run")
    assert network.facts.basis == basis
    assert words in network.facts.text
    why = explain(run)
    assert why.routes == network.facts
    assert sum(share.ns for share in why.links) == pytest.approx(why.iteration_ns)


def test_ranks_of_one_host_use_no_link(tmp_path: Path) -> None:
    job = leaf_spine(4)
    job.hosts = ["h0", "h0", "h1", "h2"]
    _, network = load(talk(job), tmp_path / "run")
    flow = network.flows.index((0, 1, 0))
    assert network.begin[flow] == network.begin[flow + 1]
    assert network.hops[flow] == 0


def test_the_topology_of_a_plan_is_the_one_that_ran(tmp_path: Path) -> None:
    """Addresses and routes made from plan.json are those that the fabric was built with."""
    original = build(LeafSpineConfig(hosts=6, leaves=3, spines=2))
    job = leaf_spine(6, leaves=3, spines=2)
    again = topology_of(talk(job).write(tmp_path / "run").plan)
    assert again is not None
    assert [port.name for port in again.ports] == [port.name for port in original.ports]
    ours, theirs = address_plan(again), address_plan(original)
    for node in original.nodes:
        assert ours.nodes[node.name].routes == theirs.nodes[node.name].routes
        assert ours.nodes[node.name].address == theirs.nodes[node.name].address


def test_hops_are_chosen_evenly_and_by_each_nodes_own_seed() -> None:
    rng = np.random.default_rng(3)
    flows = np.column_stack([rng.integers(0, 2**32, (4000, 2)), rng.integers(1024, 65536, (4000, 2))])
    chosen = {node: next_hops(1, node, flows, [4] * len(flows)) for node in ("leaf0", "leaf1")}
    for hops in chosen.values():
        assert np.bincount(hops, minlength=4) == pytest.approx([1000] * 4, rel=0.12)
    assert (chosen["leaf0"] == chosen["leaf1"]).mean() == pytest.approx(0.25, abs=0.05)
    assert not next_hops(1, "leaf0", flows, [1] * len(flows)).any()


def test_both_directions_of_a_connection_hash_alike() -> None:
    there = np.array([[0x0A000001, 0x0A000102, 11_111, 7003]])
    back = there[:, [1, 0, 3, 2]]
    for choices in (2, 3, 4, 7):
        assert next_hops(5, "leaf0", there, [choices]) == next_hops(5, "leaf0", back, [choices])


@pytest.mark.parametrize("unknown", [1, 4], ids=["one rate is not known", "no rate is known"])
def test_rates_that_nobody_read_make_no_numbers_of_nothing(tmp_path: Path, unknown: int) -> None:
    job = talk(leaf_spine(2, leaves=1, spines=1, fabric="inventory"))
    ports = ["h0/leaf0", "leaf0/h0", "h1/leaf0", "leaf0/h1", "leaf0/spine0", "spine0/leaf0"]
    job.rates = dict.fromkeys(ports[:unknown], 0)
    why = explain(job.write(tmp_path / "run"))
    for shares in (why.causes, why.links, why.operators):
        assert sum(share.ns for share in shares) == pytest.approx(why.iteration_ns)
    assert all(score.score == score.score for score in why.link_scores), "no NaN"
    assert (why.pairs[0].slowdown is None) == (unknown == 4)
    assert ("rates of links are not known" in " ".join(why.notes)) == (unknown == 4)


def test_a_network_that_nobody_described_is_said_to_be_one(tmp_path: Path) -> None:
    job = leaf_spine(3, fabric="inventory")
    job.nodes = {"h0": "host", "h1": "host", "h2": "host", "fabric": "switch"}
    job.links = [("h0", "fabric"), ("h1", "fabric"), ("h2", "fabric")]
    _, network = load(talk(job), tmp_path / "run")
    assert network.facts.basis == "single"
    assert "their own ports are known, and nothing behind them" in network.facts.text
