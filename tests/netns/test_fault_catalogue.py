"""What every recipe of the catalogue does to a job: the effect that its role states, and the evidence for it.

One test a recipe, on one fabric. Comparisons are between flows of one run, or between times in and outside a fault's
windows, wherever that can be: the machine may be busy with other things. The fabric is compared after each run with
what it was before.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from stage import HOSTS, Flow, Run, Stage, flows, opened

from genie import paths
from genie.engine import wire
from genie.errors import GenieError
from genie.fabric.probe import probe

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(probe().unfit), reason=f"no namespaces here: {probe().unfit}"),
]
MARKS = probe().has("bpf") or probe().has("red")
SETTLED_NS = 120_000_000
"""What is on its way when a port stops arrives within this long."""
BULK = tuple(flow for flow in flows() if flow.kind == "bulk")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with opened(Path(tempfile.mkdtemp(prefix="genie-stage-"))) as opening:
        yield opening


# ---- what flows meet ----------------------------------------------------------------------------------------------


def ports_of(run: Run, flow: Flow) -> set[str]:
    """Every port that the packets of a flow leave by."""
    leaf = {"h0": "leaf0", "h1": "leaf0", "h2": "leaf1", "h3": "leaf1"}
    own = {f"{flow.source}/{leaf[flow.source]}", f"{leaf[flow.target]}/{flow.target}"}
    if up := run.paths[flow]:
        own |= {up, f"{up.split('/')[1]}/{leaf[flow.target]}"}
    return own


def split(run: Run, ports: set[str] | None = None) -> tuple[list[Flow], list[Flow]]:
    """Bulk flows whose packets meet a faulted port, and the others."""
    faulted = set(run.fault["targets"]) if ports is None else ports
    met = [flow for flow in BULK if ports_of(run, flow) & faulted]
    return met, [flow for flow in BULK if flow not in met]


def split_pairs(run: Run, ports: set[str] | None = None) -> tuple[list[Flow], list[Flow]]:
    """Both directions of pairs of which one meets a faulted port, and the others."""
    pairs = {frozenset(flow[:2]) for flow in split(run, ports)[0]}
    met = [flow for flow in BULK if frozenset(flow[:2]) in pairs]
    return met, [flow for flow in BULK if flow not in met]


def in_effect(run: Run) -> Run:
    assert run.error == "", run.error
    assert run.fault["state"] == "in_effect", run.proof
    assert run.fault["reverted"]
    return run


def times(run: Run, healthy: Run, these: list[Flow], measure: Callable[[np.ndarray], float] = np.median) -> list[float]:
    """How many times as long as in the healthy run the messages of each flow took."""

    def one(of: Run, flow: Flow) -> float:
        allowed, arrived = of.messages(flow.sender, flow.receiver)
        return float(measure((arrived - allowed)[1:]))

    return [one(run, flow) / one(healthy, flow) for flow in these]


def show_slower(stage: Stage, recipe: str, *words: str, factor: float, iterations: int = 16) -> Run:
    """The flows that meet the fault are slower by the factor than those that do not, each and all of them."""
    healthy, run = stage.healthy(), in_effect(stage.run(recipe, *words, iterations=iterations))
    met, others = split(run)
    slow, rest = times(run, healthy, met), times(run, healthy, others)
    said = " ".join(f"{flow.name} {ratio:.2f}x" for flow, ratio in zip([*met, *others], [*slow, *rest], strict=True))
    assert min(slow) > factor * np.median(rest), said
    assert min(slow) > max(rest), said
    return run


def show_stall(stage: Stage, recipe: str, *words: str, most: int = 0, iterations: int = 50) -> Run:
    """In every window the pairs that meet the fault stand (``most`` messages a flow arrive), the others go on; and all
    come to their end, so after it they go on, too. A pair exchanges, so it stands as a whole.
    """
    run = in_effect(stage.run(recipe, *words, iterations=iterations))
    show_standing(run, *split_pairs(run), most=most)
    return run


def show_standing(run: Run, met: list[Flow], others: list[Flow], *, most: int = 0) -> None:
    """`show_stall` for a run that there is, and for flows that were told apart already."""
    assert met
    for start, end in run.windows:
        stalled = {flow.name: run.arrived_within(flow, start + SETTLED_NS, end) for flow in met}
        going = {flow.name: run.arrived_within(flow, start, end) for flow in others}
        assert max(stalled.values()) <= most, f"{stalled}, others {going}\n{run.proof}"
        assert min(going.values(), default=99) >= most + 3, f"{going}\n{run.proof}"


# ---- rates --------------------------------------------------------------------------------------------------------


def half_rate(stage: Stage, recipe: str) -> None:
    show_slower(stage, recipe, factor=1.4)


def tenth_rate(stage: Stage, recipe: str) -> None:
    show_slower(stage, recipe, factor=3, iterations=8)


def quarter_rate(stage: Stage, recipe: str) -> None:
    show_slower(stage, recipe, factor=1.5)


def oversubscription(stage: Stage, recipe: str) -> None:
    """A ring over all hosts, which crosses between leaves, takes about four times as long at a quarter of the rate."""
    healthy, run = stage.healthy("ring"), in_effect(stage.run(recipe, job="ring", iterations=8))
    assert 2.5 < run.iteration_ms / healthy.iteration_ms < 6, (healthy.iteration_ms, run.iteration_ms)


# ---- stops --------------------------------------------------------------------------------------------------------

SHORT = "window={at: 300ms, for: 600ms}"


def stall(stage: Stage, recipe: str) -> None:
    show_stall(stage, recipe, SHORT)


def pfc_storm(stage: Stage, recipe: str) -> None:
    """Everything that feeds the victim's leaf stands, its neighbour there too; hosts of the other leaf go on."""
    run = show_stall(stage, recipe, SHORT, most=2)
    met, others = split_pairs(run)
    assert {flow.source for flow in met} == {flow.target for flow in met} == set(HOSTS)
    assert {frozenset(flow[:2]) for flow in others} in ({frozenset(("h0", "h1"))}, {frozenset(("h2", "h3"))})


def mtu_mismatch(stage: Stage, recipe: str) -> None:
    """Bulk to the host hangs in the window and goes on after it; small messages to the same host pass all the while.
    What it sends itself may adapt: its own stack knows the MTU.
    """
    run = in_effect(stage.run(recipe, "targets=[h2]", SHORT, iterations=50))
    met = [flow for flow in BULK if flow.target == "h2"]
    show_standing(run, met, [flow for flow in BULK if "h2" not in flow[:2]])
    start, end = run.window
    small = {f.name: run.arrived_within(f, start, end) for f in flows() if f.kind == "small" and "h2" in f[:2]}
    assert min(small.values()) >= 5, small


def spine_down(stage: Stage, recipe: str) -> None:
    """What was hashed onto the spine is lost until routes converge, then goes on over the other one."""
    after_ms = 500
    run = in_effect(
        stage.run(
            recipe, "targets=[spine1]", "window.at=300ms", f"parameters.converge_after={after_ms}ms", iterations=60
        )
    )
    met = [flow for flow in BULK if "spine1" in run.paths[flow]]
    pairs = {frozenset(flow[:2]) for flow in met}
    start, end = run.window
    lost = {flow.name: run.arrived_within(flow, start + SETTLED_NS, start + after_ms * 1_000_000) for flow in met}
    going = {
        flow.name: run.arrived_within(flow, start, start + after_ms * 1_000_000)
        for flow in BULK
        if frozenset(flow[:2]) not in pairs
    }
    later = {flow.name: run.arrived_within(flow, start + after_ms * 1_000_000, end) for flow in met}
    assert max(lost.values()) == 0, lost
    assert min(going.values()) >= 3, going
    assert min(later.values()) >= 10, later
    sent = (
        run.samples("leaf0/spine0")["tx_bytes"].astype(np.int64),
        run.samples("leaf0/spine1")["tx_bytes"].astype(np.int64),
    )
    assert sent[0][-1] - sent[0][0] > 1.5 * (sent[1][-1] - sent[1][0])


def spikes(stage: Stage, recipe: str) -> None:
    """Messages that meet a window take as long as it and a timeout; all others as long as ever."""
    run = in_effect(stage.run(recipe, "window={at: 300ms, period: 1200ms, duty: 0.25}", iterations=90))
    met, others = split_pairs(run)
    hit: dict[tuple[int, int], list[float]] = {}
    missed = [run.took(flow) for flow in others]
    for flow in met:
        allowed, arrived = run.messages(flow.sender, flow.receiver)
        took = (arrived - allowed) / 1e6
        meets = {window: (allowed < window[1]) & (arrived > window[0]) for window in run.windows}
        for window, these in meets.items():
            hit.setdefault(window, []).extend(took[these])
        missed.append(took[~np.any([*meets.values()], axis=0)][1:])
    whole = {window: max(own) for window, own in hit.items() if own}
    rest = np.concatenate(missed)
    assert len(whole) >= 2, run.proof
    for (start, end), worst in [*whole.items()][:2]:
        assert worst > 0.8 * (end - start) / 1e6, (worst, run.proof)
    assert np.percentile(rest, 98) < 150, np.percentile(rest, 98)


def link_down(stage: Stage, recipe: str) -> None:
    """The job dies within its timeout, and says which rank on which host waited for whom; the link comes back."""
    run = stage.run(recipe, "targets=[leaf1/h3]", "window.at=300ms", ":timeout=2s", iterations=60)
    assert re.match(r"rank \d+: on h\d made no progress .* waiting for rank \d+ on h\d for 2", run.error), run.error
    assert "h3" in run.error, run.error
    assert run.fault["reverted"]
    assert run.json("manifest.json")["status"] == "aborted"
    start, end = run.windows[0]
    assert all(run.arrived_within(flow, start + SETTLED_NS, end) == 0 for flow in BULK if "h3" in flow[:2])


# ---- loss ---------------------------------------------------------------------------------------------------------


def loss(stage: Stage, recipe: str) -> None:
    """Single packets are lost, by chance; what TCP must repair is late, and only on the faulted links."""
    healthy, run = stage.healthy(), in_effect(stage.run(recipe, "parameters.ratio=8%", iterations=16))
    packets = sum(value for key, value in run.fault["facts"].items() if key.endswith(".packets"))
    lost = sum(value for key, value in run.fault["facts"].items() if key.endswith(".lost"))
    met, others = split(run)
    # With super-packets a message of 48 KiB would be one or two; here it is twelve of 4200 bytes.
    assert packets > 8 * sum(len(run.messages(flow.sender, flow.receiver)[0]) for flow in met)
    assert lost > 0
    again = sum(run.risen(host, "TcpRetransSegs") for host in HOSTS)
    slow, rest = times(run, healthy, met, np.mean), times(run, healthy, others, np.mean)
    assert again >= lost / 2
    assert np.mean(slow) > 1.3 * np.mean(rest), (slow, rest)


# ---- marking ------------------------------------------------------------------------------------------------------

VICTIM_PORT = "leaf0/h0"


def ecn_job(stage: Stage, recipe: str, *words: str) -> tuple[Run, Run]:
    """Three hosts send to h0 at once, again and again: the queue of its port, without and with the fault."""
    if not MARKS:
        pytest.skip("no ECN marking here (needs root or sch_red)")
    healthy, run = stage.healthy("incast", 6), in_effect(stage.run(recipe, *words, job="incast", iterations=6))
    assert healthy.risen(VICTIM_PORT, "ce_marked") > 0
    return healthy, run


def share(run: Run, sender: int) -> float:
    """How much faster than the others' a sender's part of the incast arrived."""
    own, *rest = [
        float(np.median(run.took(Flow("", "", "", s, 0)))) for s in sorted((1, 2, 3), key=lambda s: s != sender)
    ]
    return float(np.mean(rest)) / own


def ecn_off(stage: Stage, recipe: str) -> None:
    healthy, run = ecn_job(stage, recipe)
    assert run.risen(VICTIM_PORT, "ce_marked") == 0
    assert run.risen("h0", "IpExtInCEPkts") == 0
    assert run.queue_bytes(VICTIM_PORT) > 1.3 * healthy.queue_bytes(VICTIM_PORT)


def ecn_host_off(stage: Stage, recipe: str) -> None:
    healthy, run = ecn_job(stage, recipe, "targets=[h1]")
    assert run.risen(VICTIM_PORT, "not_ect_over") > 0
    assert share(run, 1) > 1.2 * share(healthy, 1), (share(run, 1), share(healthy, 1))


def cnp_lost(stage: Stage, recipe: str) -> None:
    healthy, run = ecn_job(stage, recipe, "targets=[h0]")
    assert run.risen(VICTIM_PORT, "ce_marked") > 0
    assert run.risen("h0", "IpExtInCEPkts") == 0
    assert run.queue_bytes(VICTIM_PORT) > 1.3 * healthy.queue_bytes(VICTIM_PORT)


def threshold_low(stage: Stage, recipe: str) -> None:
    healthy, run = ecn_job(stage, recipe)
    assert run.queue_bytes(VICTIM_PORT) < 0.8 * healthy.queue_bytes(VICTIM_PORT)
    rate = [of.risen(VICTIM_PORT, "ce_marked") / of.risen(VICTIM_PORT, "tx_packets") for of in (healthy, run)]
    assert rate[1] > 1.3 * rate[0], rate


def threshold_high(stage: Stage, recipe: str) -> None:
    healthy, run = ecn_job(stage, recipe)
    assert run.queue_bytes(VICTIM_PORT) > 1.3 * healthy.queue_bytes(VICTIM_PORT)
    rate = [of.risen(VICTIM_PORT, "ce_marked") / of.risen(VICTIM_PORT, "tx_packets") for of in (healthy, run)]
    assert rate[1] < 0.7 * rate[0], rate


# ---- buffers ------------------------------------------------------------------------------------------------------


def small_buffer(stage: Stage, recipe: str) -> None:
    """An all-to-all overflows what it did not before, and sends again."""
    healthy, run = stage.healthy("all_to_all", 8), in_effect(stage.run(recipe, job="all_to_all", iterations=8))
    drops = [sum(of.risen(port, "drops") for port in run.fault["targets"]) for of in (healthy, run)]
    again = [sum(of.risen(host, "TcpRetransSegs") for host in HOSTS) for of in (healthy, run)]
    assert drops[1] > 2 * drops[0] + 10, drops
    assert again[1] > 2 * again[0] + 10, again


# ---- paths --------------------------------------------------------------------------------------------------------


def shares(run: Run, leaf: str) -> list[float]:
    """Of what a leaf sent up, the share of each of its uplinks, the largest first."""
    sent = [run.risen(f"{leaf}/{spine}", "tx_bytes") for spine in ("spine0", "spine1")]
    return sorted((count / sum(sent) for count in sent), reverse=True)


def ecmp_collision(stage: Stage, recipe: str) -> None:
    """All that goes up takes one uplink, and half as fast; below one leaf nothing changes."""
    healthy, run = stage.healthy(), in_effect(stage.run(recipe, iterations=20))
    for leaf in ("leaf0", "leaf1"):
        assert shares(healthy, leaf)[0] < 0.7
        assert shares(run, leaf)[0] > 0.95
    across = [flow for flow in BULK if run.paths[flow]]
    slow = times(run, healthy, across)
    rest = times(run, healthy, [flow for flow in BULK if flow not in across])
    assert np.median(slow) > 1.3 * np.median(rest), (slow, rest)


def ecmp_polarised(stage: Stage, recipe: str) -> None:
    """The preferred uplinks carry more than their share; nothing is lost and nothing unused."""
    healthy, run = stage.healthy(), in_effect(stage.run(recipe, iterations=20))
    ups = [(leaf, shares(healthy, leaf)[0], shares(run, leaf)[0]) for leaf in ("leaf0", "leaf1")]
    assert any(now > max(0.62, was + 0.1) for _, was, now in ups), ups


# ---- hosts --------------------------------------------------------------------------------------------------------


def slow_compute(factor: float) -> Callable[[Stage, str], None]:
    def show(stage: Stage, recipe: str) -> None:
        """The compute operators of the host's rank take longer by the factor, those of others and messages do not."""
        healthy, run = stage.healthy("dp", 8), in_effect(stage.run(recipe, "targets=[h1]", job="dp", iterations=8))
        stretched = [compute_ms(run, rank) / compute_ms(healthy, rank) for rank in range(4)]
        assert stretched[1] == pytest.approx(factor, rel=0.07), stretched
        assert [stretched[rank] for rank in (0, 2, 3)] == pytest.approx([1, 1, 1], rel=0.07), stretched
        wire_ms = [np.median([np.median(of.took(f)) for f in neighbours()]) for of in (healthy, run)]
        assert wire_ms[1] < 1.6 * wire_ms[0], wire_ms

    return show


def neighbours() -> list[Flow]:
    """The ring's messages between ranks of which none is slowed down."""
    return [Flow("", "", "", 2, 3)]


def compute_ms(run: Run, rank: int) -> float:
    """A rank's compute operators, each as long as in the undisturbed half of its iterations, added up."""
    ops = run.of(rank, wire.EventType.OPERATOR)
    ops = ops[ops["call_id"] == wire.NONE]
    took = ops["t2_ns"] - ops["t1_ns"]
    return float(sum(np.percentile(took[ops["op"] == op], 25) for op in np.unique(ops["op"]))) / 1e6


def cross_traffic(stage: Stage, recipe: str) -> None:
    """Real packets of the other senders leave by the victim's port, in the bursts; what is sent to the victim is slower
    in them than between, and what is sent elsewhere below the other leaf is not.
    """
    run = in_effect(stage.run(recipe, "window={at: 300ms, period: 1s, duty: 0.5}", iterations=60))
    assert sum(run.risen(host, "UdpOutDatagrams") for host in HOSTS) > 100
    assert run.risen("h0", "UdpNoPorts") > 100

    def slowdown(these: list[Flow]) -> float:
        ratios = []
        for flow in these:
            allowed, arrived = run.messages(flow.sender, flow.receiver)
            hit = np.any([(allowed >= start) & (allowed < end) for start, end in run.windows], axis=0)
            took = arrived - allowed
            ratios.append(np.median(took[hit][1:]) / np.median(took[~hit][1:]))
        return float(np.median(ratios))

    to, elsewhere = slowdown([f for f in BULK if f.target == "h0"]), slowdown([f for f in BULK if "h0" not in f[:2]])
    assert to > 1.5 * elsewhere, (to, elsewhere)


# ---- none ---------------------------------------------------------------------------------------------------------


def sham(stage: Stage, recipe: str) -> None:
    """Armed, journaled, read back and reverted on every node, and nothing that could be measured."""
    healthy, run = stage.healthy(), in_effect(stage.run(recipe, iterations=20))
    assert (run.path / "faults.journal").read_text().count('"intent"') == 8
    found = times(run, healthy, list(BULK))
    assert 0.5 < np.median(found) < 2, found


def none(stage: Stage, recipe: str) -> None:
    run = stage.run(recipe, iterations=20)
    assert not (run.path / "faults.json").exists() or run.json("faults.json")["faults"] == []
    found = times(run, stage.healthy(), list(BULK))
    assert 0.5 < np.median(found) < 2, found


def latency_add(stage: Stage, recipe: str) -> None:
    """Small messages over the link are later by the delay; refused, with the reason, where the kernel cannot delay."""
    reason = probe().missing.get("detour", "")
    if reason:
        with pytest.raises(GenieError) as refused:
            stage.plan(recipe)
        assert reason in str(refused.value)
        return
    run = in_effect(stage.run(recipe, "parameters.delay=20ms", iterations=20))
    small = [flow for flow in flows() if flow.kind == "small"]
    met = [flow for flow in small if ports_of(run, flow) & set(run.fault["targets"])]
    for flow in met:
        later = np.median(run.took(flow)) - np.median(stage.healthy().took(flow))
        assert 15 < later < 40, (flow.name, later)


def cpu_quota(stage: Stage, recipe: str) -> None:
    """Real hosts only: the plan for an embedded fabric says so."""
    with pytest.raises(GenieError, match="its hosts share this machine's cores"):
        stage.plan(recipe)


CASES: dict[str, Callable[[Stage, str], None]] = {
    "bit_errors": loss,
    "blackhole_path": stall,
    "cnp_lost": cnp_lost,
    "compute_slow": slow_compute(1 / 0.83),
    "cpu_quota": cpu_quota,
    "cpu_throttle": slow_compute(2),
    "ecmp_collision": ecmp_collision,
    "ecmp_polarised": ecmp_polarised,
    "ecn_host_off": ecn_host_off,
    "ecn_off": ecn_off,
    "ecn_threshold_high": threshold_high,
    "ecn_threshold_low": threshold_low,
    "incast_cross_traffic": cross_traffic,
    "latency_add": latency_add,
    "leaf_flap_all": stall,
    "link_down": link_down,
    "link_flap_long": stall,
    "link_flap_short": spikes,
    "link_loss": loss,
    "link_rate": half_rate,
    "link_rate_10pct": tenth_rate,
    "link_rate_half": half_rate,
    "mtu_mismatch": mtu_mismatch,
    "nic_tx_throttle": half_rate,
    "none": none,
    "oversubscription": oversubscription,
    "packet_loss": loss,
    "pcie_downgrade": quarter_rate,
    "pfc_off": small_buffer,
    "pfc_slow_receiver": half_rate,
    "pfc_storm": pfc_storm,
    "pfcwd_drop": spikes,
    "sham": sham,
    "small_buffer": small_buffer,
    "spine_down": spine_down,
    "uplink_degraded": quarter_rate,
    "wrong_qos_class": ecn_host_off,
}


@pytest.mark.sample(9)
@pytest.mark.parametrize("recipe", CASES)
def test_the_recipe_does_what_it_says(stage: Stage, recipe: str) -> None:
    CASES[recipe](stage, recipe)


def test_every_recipe_is_here() -> None:
    assert {path.stem for path in (paths.conf_dir() / "fault").glob("*.yaml")} | {"none"} == set(CASES)
