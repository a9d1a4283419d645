"""What a message's time on its way consists of: its own bytes, an empty network's latency, a time-out, and the rest.

A message waits behind the one before it on its connection, so its own time begins when that one was complete, or, if
later, when its first byte was handed over (less the latency: bytes of the next message travel while the last of this
one do). `measure_transit` gives that beginning and the parts for every message of a run; `genie.why.path` walks along
them, `genie.why.scores` looks for links that explain the rest. Times are real ns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genie.results.records import PlanRecord
from genie.results.rundir import CountersRecord
from genie.results.statistics import Floats
from genie.why.network import Network
from genie.why.recording import Ints, Messages
from genie.why.records import RecoveryFacts

LEAST_RTO_NS = 200_000_000
"""The shortest retransmission time-out of Linux (TCP_RTO_MIN); silence of a connection below it is no time-out."""

LATENCY_RATIO = 0.05
BEST_RATE_RATIO = 0.95
_LEAST_SAMPLES = 20
_LARGE_BYTES = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Transit:
    """A row a message. From ``begin`` to ``Messages.done`` it took ``serialization`` + ``latency`` + ``rest``, none of
    them negative; ``stalled`` says that the rest was a retransmission time-out. ``behind``: it began when the message
    before it on its connection was complete, not when it was handed over. ``text`` says what was assumed, "" nothing.
    """

    begin: Ints
    behind: npt.NDArray[np.bool_]
    serialization: Floats
    latency: Floats
    rest: Floats
    stalled: npt.NDArray[np.bool_]
    recovery: RecoveryFacts
    text: str


def measure_transit(messages: Messages, network: Network, plan: PlanRecord, counters: CountersRecord) -> Transit:
    """The parts of every message's time."""
    size = network.wire_bytes(messages.bytes)
    rate = network.slowest[messages.flow] if len(messages) else np.zeros(0)
    earlier = np.where(messages.previous >= 0, messages.done[messages.previous], np.iinfo(np.int64).min)
    text = ""
    unknown = np.isnan(rate) if len(messages) else np.zeros(0, dtype=bool)
    if unknown.any():
        alone = messages.done - np.maximum(earlier, messages.first)
        large = unknown & (messages.bytes >= _LARGE_BYTES) & (alone > 0)
        best = float(np.quantile(size[large] / alone[large], BEST_RATE_RATIO)) if large.any() else np.inf
        rate = np.where(unknown, best, rate)
        text = "rates of links are not known: bytes count at the rate of the fastest twentieth of large messages"
    serialization = size / rate
    latency = _latency(messages, network, serialization, earlier)
    behind = earlier > messages.first + latency
    begin = np.where(behind, earlier, messages.first)
    # hosts' clocks may differ a little; nothing arrives before it left
    taken = np.maximum(messages.done - begin, 0).astype(np.float64)
    serialization = np.minimum(serialization, taken)
    latency = np.where(behind, 0.0, np.minimum(latency, taken - serialization))
    rest = taken - serialization - latency
    stalled, recovery = _stalls(messages, rest, serialization, plan, counters)
    return Transit(begin.astype(np.int64), behind, serialization, latency, rest, stalled, recovery, text)


def _latency(messages: Messages, network: Network, serialization: Floats, earlier: Ints) -> Floats:
    """Latency of an empty network, by the number of ports on the way: what the fastest of the messages that waited for
    none before them took beyond their bytes. 0 where there are too few to tell.
    """
    found = np.zeros(len(messages))
    if not len(messages):
        return found
    hops = network.hops[messages.flow]
    alone = earlier <= messages.first
    beyond = messages.done - messages.first - serialization
    for count in np.unique(hops).tolist():
        own = hops == count
        samples = beyond[own & alone]
        if len(samples) >= _LEAST_SAMPLES:
            found[own] = max(0.0, float(np.quantile(samples, LATENCY_RATIO)))
    return found


def _rise(counters: CountersRecord, host: str, name: str) -> int | None:
    before, after = counters.before.get(host, {}).get(name), (counters.after or {}).get(host, {}).get(name)
    return None if before is None or after is None or after < before else after - before


def _sum(values: Mapping[str, int | None]) -> int | None:
    known = [value for value in values.values() if value is not None]
    return sum(known) if known else None


def _stalls(
    messages: Messages, rest: Floats, serialization: Floats, plan: PlanRecord, counters: CountersRecord
) -> tuple[npt.NDArray[np.bool_], RecoveryFacts]:
    """Messages whose rest was a time-out. A long wait may also be a deep queue, so a host has no more of them than it
    counted time-outs (the longest waits first), and none where it repeated no segment.
    """
    hosts = sorted(set(plan.placement))
    timeouts = {host: _rise(counters, host, "TcpExtTCPTimeouts") for host in hosts}
    repeats = {host: _rise(counters, host, "TcpRetransSegs") for host in hosts}
    stalled = np.zeros(len(messages), dtype=bool)
    silent = np.flatnonzero((rest >= LEAST_RTO_NS) & (rest >= serialization) & (plan.transport == "tcp"))
    sure = "none"
    if len(silent):
        host_of = np.array([hosts.index(host) for host in plan.placement])
        at = host_of[messages.sender[silent]]
        for k, host in enumerate(hosts):
            own = silent[at == k]
            counted, repeated = timeouts[host], repeats[host]
            if not len(own) or counted == 0 or repeated == 0:
                continue
            if counted is not None:
                own = own[np.argsort(-rest[own], kind="stable")][:counted]
                sure = "counted" if sure == "none" else sure
            elif repeated is not None:
                sure = "likely" if sure != "possible" else sure
            else:
                sure = "possible"
            stalled[own] = True
    facts = RecoveryFacts(
        stalls=int(stalled.sum()),
        stalled_ns=float(rest[stalled].sum() / plan.dilation),
        timeouts=_sum(timeouts),
        retransmits=_sum(repeats),
        sure=sure,
    )
    return stalled, facts
