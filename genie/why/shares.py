"""What part of the mean iteration each cause, operator, communicator, pair, link and rank carries.

`share_out` adds up the pieces of the walked paths (`genie.why.path`), each of which belongs to one of each kind; only
links share a piece: the time of the bytes goes to the slowest port of their route, waiting to its ports by the queues
that they had then, or, where these were not sampled, by how suspect they are. So every kind sums to the iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from genie.results.ports import PortSamples
from genie.results.statistics import Floats
from genie.why.network import Network
from genie.why.path import Piece
from genie.why.recording import Recording
from genie.why.records import ELSEWHERE, QUEUEING, RECOVERY, SERIALIZATION, Share

WORLD = "world"
"""How reports name the communicator of all ranks, whose name is ""."""

_WAITING = (QUEUEING, RECOVERY)


@dataclass(frozen=True, slots=True)
class Shares:
    """Model ns of the mean measured iteration, by name; every mapping sums to it. ``waiting`` is the part of ``links``
    that is queueing and recovery. A pair is "sender>receiver".
    """

    causes: Mapping[str, float]
    operators: Mapping[str, float]
    comms: Mapping[str, float]
    pairs: Mapping[str, float]
    links: Mapping[str, float]
    ranks: Mapping[str, float]
    waiting: Mapping[str, float]


class Queues:
    """How long the queue of a port was, as the time to empty it, on average over a stretch of time."""

    def __init__(self, samples: PortSamples | None, recording: Recording, network: Network) -> None:
        self._series: dict[int, tuple[Floats, Floats]] = {}
        job = recording.job
        if samples is None or not job.one_clock or not job.start_mono_ns:
            return
        begun = min(job.start_mono_ns.values())
        order = np.argsort(samples.records["port"], kind="stable")
        port = samples.records["port"][order]
        time = (samples.records["mono_ns"][order] - begun).astype(np.float64)
        depth = samples.records["backlog_bytes"][order].astype(np.float64)
        edges = np.searchsorted(port, np.arange(len(network.ports) + 1))
        for number in range(len(network.ports)):
            a, b = int(edges[number]), int(edges[number + 1])
            rate = network.rates[number]
            if b - a > 1 and rate > 0:
                own, delay = time[a:b], depth[a:b] / rate
                area = np.concatenate([[0.0], np.cumsum((delay[1:] + delay[:-1]) / 2 * np.diff(own))])
                self._series[number] = (own, area)

    def __bool__(self) -> bool:
        return bool(self._series)

    def mean_ns(self, port: int, start: Floats, end: Floats) -> Floats:
        """For each stretch; 0 for a port that was not sampled."""
        if port not in self._series:
            return np.zeros(len(start))
        time, area = self._series[port]
        found: Floats = (np.interp(end, time, area) - np.interp(start, time, area)) / np.maximum(end - start, 1.0)
        return found


def share_out(
    paths: Sequence[Sequence[Piece]], recording: Recording, network: Network, queues: Queues, taken: Floats
) -> Shares:
    """Add up the paths of the measured iterations. ``taken`` is how suspect each port is by its messages."""
    scale = 1 / recording.plan.dilation / max(1, len(paths))
    sums: dict[str, dict[str, float]] = {name: {} for name in ("causes", "operators", "comms", "pairs", "ranks")}
    carried: list[Piece] = []
    elsewhere = 0.0
    for path in paths:
        for piece in path:
            ns = (piece.end - piece.start) * scale
            names = {"causes": piece.cause, "ranks": str(piece.rank), "operators": ELSEWHERE, "comms": ELSEWHERE}
            if piece.op >= 0:
                op = recording.operator(piece.rank, piece.op)
                names["operators"] = op.name or f"node {op.trace_id}"
                if op.call_id >= 0:
                    names["comms"] = comm_name(op.comm)
            names["pairs"] = pair_name(recording, piece.message)
            for kind, name in names.items():
                sums[kind][name] = sums[kind].get(name, 0.0) + ns
            if (
                piece.message >= 0
                and network.begin[recording.messages.flow[piece.message] + 1]
                > network.begin[recording.messages.flow[piece.message]]
            ):
                carried.append(piece)
            else:
                elsewhere += ns
    links, waiting = _links(carried, recording, network, queues, taken, scale)
    if elsewhere:
        links[ELSEWHERE] = elsewhere
    return Shares(links=links, waiting=waiting, **sums)


def comm_name(comm: str) -> str:
    """A communicator as reports name it."""
    return comm or WORLD


def pair_name(recording: Recording, message: int) -> str:
    """The pair of ranks of a row of `Messages`, "-" for none."""
    if message < 0:
        return ELSEWHERE
    return f"{recording.messages.sender[message]}>{recording.messages.receiver[message]}"


def _links(
    pieces: Sequence[Piece], recording: Recording, network: Network, queues: Queues, taken: Floats, scale: float
) -> tuple[dict[str, float], dict[str, float]]:
    """By port: all, and the waiting part."""
    if not pieces:
        return {}, {}
    flow = recording.messages.flow[[piece.message for piece in pieces]]
    start = np.array([piece.start for piece in pieces], dtype=np.float64)
    end = np.array([piece.end for piece in pieces], dtype=np.float64)
    waits = np.array([piece.cause in _WAITING for piece in pieces])
    bytes_ = np.array([piece.cause == SERIALIZATION for piece in pieces])
    count = network.begin[flow + 1] - network.begin[flow]
    firsts = np.cumsum(count) - count
    entry = np.repeat(np.arange(len(pieces)), count)
    place = np.arange(len(entry)) - np.repeat(firsts, count) + network.begin[flow][entry]
    port, even = network.route_ports[place], network.route_weights[place]
    weight = even.copy()
    slowest = network.rates[port] <= network.slowest[flow][entry]
    known = ~np.isnan(network.slowest[flow])
    weight[(bytes_ & known)[entry] & ~slowest] = 0.0
    for by in (_by_queue(queues, port, start[entry], end[entry]), taken[port]):
        # the first evidence that says anything about a piece decides
        decided = waits & (np.add.reduceat(even * by, firsts) > 0)
        weight = np.where(decided[entry], even * by, weight)
        waits = waits & ~decided
    weight /= np.add.reduceat(weight, firsts)[entry]
    ns = weight * ((end - start) * scale)[entry]
    waited = np.isin(entry, np.flatnonzero([piece.cause in _WAITING for piece in pieces]))
    total = np.bincount(port, weights=ns, minlength=len(network.ports))
    part = np.bincount(port, weights=ns * waited, minlength=len(network.ports))
    found = [{network.ports[k]: float(values[k]) for k in np.flatnonzero(values).tolist()} for values in (total, part)]
    return found[0], found[1]


def _by_queue(queues: Queues, port: np.ndarray, start: Floats, end: Floats) -> Floats:
    found = np.zeros(len(port))
    if queues:
        for number in np.unique(port).tolist():
            own = np.flatnonzero(port == number)
            found[own] = queues.mean_ns(number, start[own], end[own])
    return found


def ranked(parts: Mapping[str, float], whole: float) -> tuple[Share, ...]:
    """Shares of a whole, largest first."""
    rows = (Share(name, ns, ns / whole if whole else 0.0) for name, ns in parts.items())
    return tuple(sorted(rows, key=lambda share: (-share.ns, share.name)))
