"""What to look at first, and the sentence that says so. Pure: scores and shares in, words out.

A component is named only where its evidence stands out by itself and from its peers: a port whose queue emptied below
its rate, a port that unexplained time points to and to no other as much, a host whose compute is stretched where that
of others is not. Called by `genie.why.explain`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from genie.units import format_ns
from genie.why.records import (
    COMPUTE,
    CREDITS,
    HOST,
    LATENCY,
    PEER,
    QUEUEING,
    RECOVERY,
    SERIALIZATION,
    STRETCH,
    HostScore,
    LinkScore,
    Suspect,
)
from genie.why.scores import LEAST_LACK
from genie.why.shares import Shares

LEAST_MESSAGE_SCORE = 0.25
"""Messages alone: in healthy runs on a machine that is busy with other work, no port comes to this."""

LEAST_STRETCH_SCORE = 0.1
ALIKE_RATIO = 0.75
_MOST_NAMES = 6
"""Of more, none stands out. A flow that is alone on its way leaves four or five ports that nothing tells apart."""

_PHRASES: Mapping[str, str] = {
    COMPUTE: "compute",
    STRETCH: "compute beyond its plan",
    PEER: "waiting for a late rank",
    SERIALIZATION: "bytes on the slowest link of their way",
    LATENCY: "latency",
    QUEUEING: "queueing",
    RECOVERY: "retransmission time-outs",
    CREDITS: "waiting for credits",
    HOST: "ranks themselves",
}


def find_suspect(
    links: Sequence[LinkScore], hosts: Sequence[HostScore], shares: Shares, iteration_ns: float
) -> Suspect:
    """The first suspect: the host or link whose excess holds more of the iteration, if any stands out."""
    link, host = _link(links, iteration_ns), _host(hosts, iteration_ns)
    if link is None and host is None:
        return Suspect("none", (), "no link lacks rate and no host's compute is stretched beyond the others'")
    if host is not None and link is not None:
        stretched = shares.causes.get(STRETCH, 0.0) + shares.causes.get(PEER, 0.0)
        waits = shares.causes.get(QUEUEING, 0.0) + shares.causes.get(RECOVERY, 0.0)
        first, second = (host, link) if stretched > waits else (link, host)
        return Suspect(first.kind, first.names, f"{first.text}. Besides, {second.text}")
    return host or link or Suspect("none", (), "")


def _link(links: Sequence[LinkScore], iteration_ns: float) -> Suspect | None:
    if not links:
        return None
    best = links[0]
    lossy = [score for score in links if score.loss_ratio is not None]
    if best.lack >= LEAST_LACK:
        alike = [score for score in links if score.link == best.link and score.score >= ALIKE_RATIO * best.score]
    elif lossy and lossy[0] is best:
        alike = lossy
    elif best.score >= LEAST_MESSAGE_SCORE:
        alike = [score for score in links if score.score >= ALIKE_RATIO * best.score]
    else:
        return None
    if len(alike) > _MOST_NAMES:
        return None
    waited = sum(score.excess_ns for score in alike)
    waits = f"{waited / iteration_ns:.0%} of the iteration waits there" if iteration_ns else ""
    cables = list(dict.fromkeys(score.link for score in alike))
    where = f"link {' or '.join(cables)}: {best.port} {best.text}; {waits}"
    return Suspect("link", tuple(score.port for score in alike), where)


def _host(hosts: Sequence[HostScore], iteration_ns: float) -> Suspect | None:
    if not hosts or hosts[0].stretch is None:
        return None
    best = hosts[0]
    typical = float(np.median([score.score for score in hosts]))
    if best.score - typical < LEAST_STRETCH_SCORE:
        return None
    alike = tuple(score.host for score in hosts if score.score - typical >= ALIKE_RATIO * (best.score - typical))
    if len(alike) > _MOST_NAMES:
        return None
    part = best.excess_ns / iteration_ns if iteration_ns else 0.0
    return Suspect(
        "host",
        alike,
        f"host {' and '.join(alike)}: {best.text}, {part:.0%} of the iteration: its compute, not the network",
    )


def verdict(suspect: Suspect, causes: Mapping[str, float], iteration_ns: float) -> str:
    """One sentence: what an iteration consists of, and what to look at."""
    parts = sorted(causes.items(), key=lambda item: -item[1])
    shown = [f"{ns / iteration_ns:.0%} {_PHRASES[cause]}" for cause, ns in parts if ns >= 0.01 * iteration_ns]
    lead = "nothing stands out" if suspect.kind == "none" else suspect.text
    return f"{lead}. An iteration of {format_ns(iteration_ns)} is {', '.join(shown)}."
