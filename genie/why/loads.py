"""How busy the links of a message's route were while it was on its way, from the messages themselves.

Each message's bytes are taken to flow evenly from its begin to its end (`genie.why.transit`); what all messages of the
run sent over a port in that time, over what the port's rate lets pass, is its load. `genie.why.scores` takes a message
that was slow on a route of idle links as time that some port lost. Needs no counters and no samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from genie.results.statistics import Floats
from genie.why.network import Network
from genie.why.recording import Ints, Recording
from genie.why.transit import Transit

LEAST_BYTES = 4096
"""Smaller messages say more about latency and processors than about the rate of a link."""

_BINS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """Measured messages of some size, and how busy the links of their routes were while they were on their way.

    ``rows`` of `Messages`; ``busiest`` is the highest load of a port of its route, 1 = all of its rate. Entries are one
    a message and port: ``entry`` is the index of the message, ``port``, ``weight``.
    """

    rows: Ints
    taken: Floats
    busiest: Floats
    entry: Ints
    port: Ints
    weight: Floats


def measure_loads(recording: Recording, transit: Transit, network: Network) -> Loads | None:
    """Loads over the measured iterations; None where no message has a route with known rates."""
    messages = recording.messages
    if not len(messages) or not len(network.route_ports):
        return None
    lengths = np.diff(network.begin)
    usable = (lengths > 0) & ~np.isnan(network.slowest)
    measured = (messages.iteration >= recording.window.start) & (messages.bytes >= LEAST_BYTES)
    rows = np.flatnonzero(measured & usable[messages.flow])
    if not len(rows):
        return None
    flow = messages.flow[rows]
    begin = transit.begin[rows].astype(np.float64)
    end = np.maximum(messages.done[rows].astype(np.float64), begin + 1)
    count = lengths[flow]
    firsts = np.cumsum(count) - count
    entry = np.repeat(np.arange(len(rows)), count)
    place = np.arange(len(entry)) - np.repeat(firsts, count) + network.begin[flow][entry]
    port, weight = network.route_ports[place], network.route_weights[place]
    carried = _Carried(begin, end, len(network.ports))
    size = network.wire_bytes(messages.bytes[rows])
    carried.add(entry, port, size[entry] * weight)
    load = carried.between(entry, port) / (end - begin)[entry] / network.rates[port]
    busiest = np.maximum.reduceat(np.nan_to_num(load, nan=0.0), firsts)
    return Loads(rows, end - begin, busiest, entry, port, weight)


class _Carried:
    """Bytes that each port carried by a time, if each message's bytes flow evenly from its begin to its end."""

    def __init__(self, begin: Floats, end: Floats, ports: int) -> None:
        self._low = float(begin.min())
        self._bin = max(1.0, (float(end.max()) - self._low) / _BINS)
        self._ends = (self._split(begin), self._split(end))
        self._duration = end - begin
        self._ports, self._width = ports, _BINS + 3
        self._total = np.zeros((ports, self._width))

    def _split(self, times: Floats) -> tuple[Ints, Floats]:
        place = (times - self._low) / self._bin
        whole = np.minimum(np.floor(place), _BINS).astype(np.int64)
        return whole, place - whole

    def add(self, entry: Ints, port: Ints, size: Floats) -> None:
        """Sum over messages of a ramp from begin to end: its second difference has weight in four places."""
        slope = size / self._duration[entry] * self._bin
        bent = np.zeros(self._ports * self._width)
        for (whole, part), sign in zip(self._ends, (1.0, -1.0), strict=True):
            at, inside = port * self._width + whole[entry] + 1, part[entry]
            bent += np.bincount(at, weights=sign * slope * (1 - inside), minlength=len(bent))
            bent += np.bincount(at + 1, weights=sign * slope * inside, minlength=len(bent))
        self._total = bent.reshape(self._ports, self._width).cumsum(axis=1).cumsum(axis=1)

    def between(self, entry: Ints, port: Ints) -> Floats:
        """Bytes that a port carried while a message was on its way, for each entry."""

        def until(whole: Ints, part: Floats) -> Floats:
            k, inside = whole[entry], part[entry]
            found: Floats = self._total[port, k] * (1 - inside) + self._total[port, k + 1] * inside
            return found

        return until(*self._ends[1]) - until(*self._ends[0])
