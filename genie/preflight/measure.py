"""From the events of a run of ``workload=pairs`` to bandwidth and latency of every pair.

`genie.preflight.command` calls it when the run is over, however it ended: what is not complete is left out. Bandwidth
is taken at the receiver by its own clock, from the end of the first quarter of a load's messages to the end of the
last: by then the transport has found its pace. Latency is half of ping and pong by the clock of the rank that began,
the first quarter left out as well. So no two clocks are ever compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from genie.engine.wire import EventType
from genie.preflight.record import Matrices, matrix_of
from genie.results.records import RankOperators
from genie.results.rundir import RunDir

Cell = tuple[int, int]
Array = npt.NDArray[np.void]


@dataclass(slots=True)
class Samples:
    """A value a repeat, of every direction (bits/s of payload) and pair (ns, the lower place first)."""

    bandwidth_bps: dict[Cell, list[float]] = field(default_factory=dict)
    latency_ns: dict[Cell, list[float]] = field(default_factory=dict)


def measure(run: RunDir, hosts: int, rails: Sequence[str], *, dilation: float = 1.0) -> tuple[Matrices, ...]:
    """Matrices of each rail in model time. Rank r is on host ``r // rails``, rail ``r % rails``."""
    samples = [Samples() for _ in rails]
    for rank in run.operators.ranks:
        events = run.events(rank.rank)
        if events is None:
            continue
        place, rail = divmod(rank.rank, len(rails))
        _add_loads(samples[rail], rank, events.of(EventType.RECEIVED), place, len(rails), dilation)
        _add_pings(samples[rail], rank, events.of(EventType.OPERATOR), len(rails), dilation)
    return tuple(matrices_of(name, hosts, found) for name, found in zip(rails, samples, strict=True))


def _add_loads(samples: Samples, rank: RankOperators, received: Array, place: int, rails: int, dilation: float) -> None:
    for source, rate in loads_to(rank, received, dilation):
        samples.bandwidth_bps.setdefault((source // rails, place), []).append(rate)


def loads_to(rank: RankOperators, received: Array, dilation: float) -> Iterator[tuple[int, float]]:
    """(sending rank, payload bit/s in model time) of each load that came to a rank whole, iteration by iteration.
    ``received`` are its records of messages received.
    """
    for op in rank.ops:
        kind, _, ends = op.name.partition(" ")
        source, arrow, target = ends.partition(">")
        if kind != "load" or not arrow or int(target) != rank.rank:
            continue
        own = received[received["call_id"] == op.call_id]
        for iteration in np.unique(own["iteration"]):
            found = own[own["iteration"] == iteration]
            rate = rate_bps(found["t2_ns"], found["bytes"], op.bytes)
            if rate is not None:
                yield int(source), rate * dilation


def rate_bps(ends_ns: npt.ArrayLike, sizes: npt.ArrayLike, total_bytes: int) -> float | None:
    """Payload bit/s of one load from when each of its messages was complete; None if not all of it arrived.

    The first quarter is left out, at least one message: the clock runs from its end.
    """
    ends, amounts = np.asarray(ends_ns, dtype=np.int64), np.asarray(sizes, dtype=np.int64)
    skip = max(1, len(ends) // 4)
    if int(amounts.sum()) != total_bytes or len(ends) <= skip:
        return None
    order = np.argsort(ends, kind="stable")
    took_ns = int(ends[order[-1]] - ends[order[skip - 1]])
    return float(8e9 * amounts[order[skip:]].sum() / took_ns) if took_ns > 0 else None


def _add_pings(samples: Samples, rank: RankOperators, operators: Array, rails: int, dilation: float) -> None:
    pings: dict[Cell, dict[int, list[int]]] = {}  # pair → turn → [ping, pong] by index of the operator
    for index, op in enumerate(rank.ops):
        kind, _, rest = op.name.partition(" ")
        if kind not in ("ping", "pong"):
            continue
        ends, _, turn = rest.partition(" #")
        low, _, high = ends.partition("-")
        if int(low) == rank.rank:
            pings.setdefault((int(low), int(high)), {}).setdefault(int(turn), [-1, -1])[kind == "pong"] = index
    if not pings or not len(operators):
        return
    shape = int(operators["iteration"].max()) + 1, len(rank.ops)
    begun, ended = np.full(shape, -1, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    begun[operators["iteration"], operators["op"]] = operators["t1_ns"]
    ended[operators["iteration"], operators["op"]] = operators["t2_ns"]
    for (one, other), turns in pings.items():
        ping, pong = np.array([turns[turn] for turn in sorted(turns)]).T
        for started, done in zip(begun[:, ping], ended[:, pong], strict=True):
            if (started < 0).any() or (done < 0).any():
                continue
            trips = (done - started)[len(turns) // 4 :]
            cell = one // rails, other // rails
            samples.latency_ns.setdefault(cell, []).append(float(np.median(trips)) / 2 / dilation)


def matrices_of(name: str, hosts: int, samples: Samples) -> Matrices:
    """The matrices of rail ``name`` among so many hosts: medians and extremes of the samples."""

    def of(values: dict[Cell, list[float]], statistic: object) -> dict[Cell, float]:
        assert callable(statistic)
        return {cell: float(statistic(found)) for cell, found in values.items()}

    latency = of(samples.latency_ns, np.median)
    return Matrices(
        name,
        matrix_of(hosts, of(samples.bandwidth_bps, np.median)),
        matrix_of(hosts, of(samples.bandwidth_bps, min)),
        matrix_of(hosts, of(samples.bandwidth_bps, max)),
        matrix_of(hosts, latency | {(b, a): value for (a, b), value in latency.items()}),
    )
