"""How suspect each port of the network is, from what a run recorded; the bisect takes suspects in this order.

A port's evidence is of two kinds. Its queue, where it was sampled: bytes that left while there was a queue over what
its rate lets leave is the rate that it has. And the messages over it: a message that took longer than its bytes need
although no link of its route was busy has lost time that no load explains; that time is divided among the ports by
non-negative least squares over flows, so that a port shared with fast flows is cleared. Called by `genie.why.explain`;
works with the message part alone where queues were not sampled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from genie.results.ports import NOT_KNOWN, PortSamples
from genie.results.rundir import CountersRecord
from genie.results.statistics import Floats
from genie.why.loads import Loads
from genie.why.losses import Loss
from genie.why.network import Network
from genie.why.recording import Recording
from genie.why.records import LinkScore

LEAST_DRAIN_SAMPLES = 8
DRAIN_NOISE = 0.5
"""How far a single sample's rate is off, of the whole rate, where the emulating machine is busy."""

STRETCH_SAMPLES = 5
SLOW_RATIO = 0.8
LEAST_SLOW = 0.1
"""A busy machine that stands still makes a queue look slow for a moment: in healthy runs for up to 5 % of its time."""

LEAST_LACK = 0.05
"""What a port must lack for sure to be named; 10 % of a rate are enough."""

CLEARED_RATIO = 0.25
"""What messages count against a port whose own queue says how fast it is."""

_SWEEPS = 400
_TINY = 1e-12
LOSS_SCORE = 0.5
"""What a port's score is at most for losing packets: below that of a port that lacks half of its rate."""

_BASE_RATIO = 0.25
"""The share of unexplained time that the better quarter of flows has is the machine's, and nobody's in particular."""


@dataclass(frozen=True, slots=True)
class Drain:
    """How fast one port's queue emptied while it was not empty: rate over the rate it should have, the median. It may
    come and go: in ``slow`` of the stretches of `STRETCH_SAMPLES` samples it was below `SLOW_RATIO`, at ``slow_ratio``.
    """

    samples: int
    ratio: float | None
    slow: float = 0.0
    slow_ratio: float = 1.0

    @property
    def sure(self) -> bool:
        """Whether there are enough samples to say so."""
        return self.ratio is not None and self.samples >= LEAST_DRAIN_SAMPLES

    @property
    def lack(self) -> float:
        """The share of its rate that it surely lacks: what chance may do to so few samples is taken off."""
        if self.ratio is None or not self.sure:
            return 0.0
        noise = DRAIN_NOISE / math.sqrt(self.samples)
        at_times = self.slow * (1 - self.slow_ratio) if self.slow >= LEAST_SLOW else 0.0
        return max(0.0, 1 - self.ratio - noise, at_times - noise)


def unexplained_by_port(
    loads: Loads | None, recording: Recording, network: Network, drains: Mapping[int, Drain]
) -> Floats:
    """The share of its messages' time that each port seems to have taken without any load that explains it. What a
    port lacks by its queue is taken as known; only the rest is divided.
    """
    if loads is None:
        return np.zeros(len(network.ports))
    flow = recording.messages.flow[loads.rows]
    flows = len(network.flows)
    time = np.bincount(flow, weights=loads.taken, minlength=flows)
    idle = loads.taken * (1 - np.minimum(1.0, loads.busiest))
    lost = np.bincount(flow, weights=idle, minlength=flows)
    some = time > 0
    ratio = np.divide(lost, time, out=np.zeros(flows), where=some)
    base = float(np.quantile(ratio[some], _BASE_RATIO, method="lower"))
    design = np.zeros((flows, len(network.ports)))
    design[np.repeat(np.arange(flows), np.diff(network.begin)), network.route_ports] = network.route_weights
    known = np.zeros(len(network.ports))
    for port, drain in drains.items():
        if drain.ratio is not None and drain.lack >= LEAST_LACK:
            known[port] = max(drain.lack, 1 - drain.ratio)
    root = np.sqrt(time / time[some].mean())
    rest = np.maximum(ratio - base - design @ known, 0.0)
    return _non_negative(design * root[:, None], rest * root)


def _non_negative(design: Floats, wanted: Floats) -> Floats:
    """Non-negative least squares by multiplicative updates (Lee and Seung, 2001): ports that no flow tells apart share
    what is theirs instead of the first taking it all.
    """
    gram, aim = design.T @ design, design.T @ wanted
    found = np.where(aim > 0, 1.0, 0.0)
    for _ in range(_SWEEPS):
        found *= aim / np.maximum(gram @ found, _TINY)
    return found


def measure_drains(samples: PortSamples | None, recording: Recording, network: Network) -> dict[int, Drain]:
    """Port number → `Drain`, over the measured iterations. Empty where queues were not sampled on events' clock."""
    job = recording.job
    if samples is None or not job.one_clock or not job.start_mono_ns or not len(recording.ends):
        return {}
    begun = min(job.start_mono_ns.values())
    low = begun + (int(recording.ends[recording.window.start - 1]) if recording.window.start else 0)
    high = begun + int(recording.ends[-1])
    records = samples.records
    records = records[(records["mono_ns"] >= low) & (records["mono_ns"] <= high)]
    order = np.argsort(records["port"], kind="stable")
    port = records["port"][order].astype(np.int64)
    time, sent, queue = (records[name][order].astype(np.float64) for name in ("mono_ns", "tx_bytes", "backlog_bytes"))
    backlogged = (np.diff(port) == 0) & (queue[1:] > 0) & (queue[:-1] > 0) & (np.diff(time) > 0)
    # between two samples of a short queue it may have been empty: one of its neighbours must have seen a queue too
    in_company = np.concatenate([[False], backlogged[:-1]]) | np.concatenate([backlogged[1:], [False]])
    places = np.flatnonzero(backlogged & in_company)
    rate = (sent[places + 1] - sent[places]) / (time[places + 1] - time[places])
    at = port[places]
    # stretches of samples that all saw a queue
    reach = np.concatenate([[0], np.cumsum(backlogged)])
    whole = np.flatnonzero(reach[STRETCH_SAMPLES:] - reach[:-STRETCH_SAMPLES] == STRETCH_SAMPLES)
    stretch = (sent[whole + STRETCH_SAMPLES] - sent[whole]) / (time[whole + STRETCH_SAMPLES] - time[whole])
    stretch_at = port[whole]
    found = {}
    for number in range(len(network.ports)):
        own, should = rate[at == number], network.rates[number]
        if not len(own) or np.isnan(should):
            found[number] = Drain(len(own), None)
            continue
        ratio = float(np.median(own) / should)
        mine = port == number
        if ratio < SLOW_RATIO and _idle_between(ratio, time[mine], sent[mine], queue[mine], should):
            found[number] = Drain(len(own), None)
            continue
        each = stretch[stretch_at == number] / should
        slow = each[each < SLOW_RATIO]
        found[number] = Drain(
            samples=len(own),
            ratio=ratio,
            slow=len(slow) / len(each) if len(each) >= LEAST_DRAIN_SAMPLES else 0.0,
            slow_ratio=float(np.median(slow)) if len(slow) else 1.0,
        )
    return found


def _idle_between(ratio: float, time: Floats, sent: Floats, queue: Floats, should: float) -> bool:
    """Whether a port with bursts may have sent each at its full rate and had nothing to send between samples that saw a
    queue, as ports have that feed a slow one. A port sends at least while it has a queue: where it sent no less of what
    its rate lets leave than the share of samples that saw one, nothing says that it was slow.
    """
    seen = float(np.mean(queue > 0))
    used = float((sent[-1] - sent[0]) / (time[-1] - time[0]) / should)
    return used / seen > (1 + ratio) / 2


def score_links(
    loads: Loads | None,
    taken: Floats,
    recording: Recording,
    network: Network,
    drains: Mapping[int, Drain],
    losses: Mapping[int, Loss],
    counters: CountersRecord,
    excess_ns: Mapping[str, float],
) -> tuple[LinkScore, ...]:
    """A score for every port of the network, the most suspect first. ``taken`` is what
    `unexplained_by_port` gave, ``excess_ns``: time of the mean critical path that
    each port holds beyond the bytes themselves.
    """
    count = len(network.ports)
    messages, known, busiest = np.zeros(count), np.zeros(count), np.full(count, np.nan)
    if loads is not None:
        messages += np.bincount(loads.port, minlength=count)
        sure = network.known[recording.messages.flow[loads.rows]][loads.entry]
        known += np.bincount(loads.port, weights=sure, minlength=count)
        busiest = _typical_load(loads, count)
    scores = []
    for k, name in enumerate(network.ports):
        drain = drains.get(k, Drain(0, None))
        score, rate = _combine(float(taken[k]), drain, messages[k] > 0)
        loss = losses.get(k)
        if loss is not None:
            score = max(score, LOSS_SCORE * min(1.0, loss.likely))
        scores.append(
            LinkScore(
                port=name,
                link=network.link(k),
                score=score,
                rate_ratio=rate,
                excess_ns=excess_ns.get(name, 0.0),
                messages=int(messages[k]),
                load_ratio=None if np.isnan(busiest[k]) else float(busiest[k]),
                drain_ratio=drain.ratio,
                drain_samples=drain.samples,
                lost=_lost(counters, name),
                known=float(known[k] / messages[k]) if messages[k] else 0.0,
                text=_say(float(taken[k]), drain, int(messages[k]), loss),
                loss_ratio=loss.ratio if loss else None,
                slow_ratio=drain.slow if drain.sure else None,
                lack=drain.lack,
            )
        )
    return tuple(sorted(scores, key=lambda score: (-score.score, -score.excess_ns, score.port)))


def _combine(taken: float, drain: Drain, used: bool) -> tuple[float, float | None]:
    """Score and rate. A queue that emptied at its full rate clears the port; what messages say of it is then more
    likely the host's behind it.
    """
    taken = min(taken, 1.0)
    if not drain.sure:
        return taken, 1 - taken if used else None
    return max(drain.lack, taken * CLEARED_RATIO), drain.ratio


def _typical_load(loads: Loads, ports: int) -> Floats:
    """By port, the load that the busiest link on the way bore for the middle of its messages' time."""
    found = np.full(ports, np.nan)
    order = np.lexsort((loads.busiest[loads.entry], loads.port))
    port, entry = loads.port[order], loads.entry[order]
    edges = np.append(np.flatnonzero(np.diff(port, prepend=-1)), len(port))
    for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        reach = np.cumsum(loads.taken[entry[a:b]])
        found[port[a]] = loads.busiest[entry[a + int(np.searchsorted(reach, reach[-1] / 2))]]
    return found


def _lost(counters: CountersRecord, port: str) -> int | None:
    total = None
    for name in ("drops", "lost"):
        before, after = counters.before.get(port, {}).get(name), (counters.after or {}).get(port, {}).get(name)
        if before is not None and after is not None and NOT_KNOWN not in (before, after) and after >= before:
            total = (total or 0) + after - before
    return total


def _say(taken: float, drain: Drain, messages: int, loss: Loss | None) -> str:
    parts = []
    if loss is not None:
        parts.append(f"seems to lose {loss.ratio:.1%} of its packets without counting them")
    if drain.sure and drain.ratio is not None:
        parts.append(f"emptied its queue at {drain.ratio:.0%} of its rate ({drain.samples} samples)")
        if drain.slow >= LEAST_SLOW and drain.ratio >= SLOW_RATIO:
            parts[-1] += f", but at {drain.slow_ratio:.0%} for {drain.slow:.0%} of that time"
    if taken >= 0.05:
        parts.append(f"{taken:.0%} of the time of its {messages} messages is explained by no load")
    return "; ".join(parts)
