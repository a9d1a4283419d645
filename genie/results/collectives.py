"""The collective table: one row a (kind, bytes, communicator), counted as nccl-tests counts.

`genie.results.metrics` calls it with all operator records. Bandwidth is GB/s of 10^9 bytes; the size is the one that
nccl-tests prints (an all-gather's is the gathered vector, not the shard), the factors are those of its sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genie.results.records import JobOperators, OperatorRecord
from genie.results.statistics import median, percentile

SEND_RECV = "send_recv"
_SHARE_KINDS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_SHARD_KINDS = ("all_gather", "gather", "scatter")


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One row. Times are model ns over all measured calls and ranks, from an operator's start to its end on a rank
    (nccl-tests' habit). ``span``: first start to last end of a call; ``transfer``: last start to last end, the part
    that no early rank can be blamed for; ``skew``: first start to last start. ``by_iteration_ns``: mean time in each
    measured iteration. ``algbw`` = bytes / mean time, ``busbw`` = algbw × ``busbw_factor``; both 0 for no bytes.
    """

    kind: str
    comm: str
    ranks: int
    bytes: int
    calls: int
    time_mean_ns: float
    time_median_ns: float
    time_p99_ns: float
    span_median_ns: float
    span_p99_ns: float
    transfer_median_ns: float
    skew_median_ns: float
    skew_p99_ns: float
    algbw_gbytes_per_s: float
    busbw_factor: float
    busbw_gbytes_per_s: float
    by_iteration_ns: tuple[float, ...]
    uneven: bool = False

    @property
    def total_ns(self) -> float:
        """Time of one rank in all calls of this row: what orders the table."""
        return self.time_mean_ns * self.calls


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What one call id is: the same on all of its ranks."""

    kind: str
    comm: str
    ranks: int
    bytes: int
    uneven: bool


def busbw_factor(kind: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth (nccl-tests, src/*.cu): what crosses each rank's link, by size."""
    if ranks < 2:
        return 1.0
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in _SHARE_KINDS else 1.0


def call_facts(operators: JobOperators) -> dict[int, CallFacts]:
    """Kind, communicator and nccl-tests size of every call of the job."""
    members: dict[int, list[tuple[int, OperatorRecord]]] = {}
    for rank in operators.ranks:
        for op in rank.ops:
            if op.call_id >= 0:
                members.setdefault(op.call_id, []).append((rank.rank, op))
    return {call_id: _facts(ops, operators.comms) for call_id, ops in members.items()}


def _facts(ops: list[tuple[int, OperatorRecord]], comms: Mapping[str, tuple[int, ...]]) -> CallFacts:
    first = ops[0][1]
    if first.kind in ("send", "recv"):
        return CallFacts(SEND_RECV, "", 2, max(op.bytes for _, op in ops), False)
    kind = first.collective or first.kind
    ranks = len(comms.get(first.comm, ())) or len(ops)
    vectors = [op.per_peer_bytes for _, op in ops]
    if any(vector is not None for vector in vectors):
        # alltoallv of nccl-tests: the most that any rank sends or receives
        rows = [list(vector) for vector in vectors if vector is not None]
        sends = [sum(row) for row in rows]
        receives = [sum(column) for column in zip(*rows, strict=False)]
        return CallFacts(kind, first.comm, ranks, max(sends + receives), any(len(set(row)) > 1 for row in rows))
    size = max(op.bytes for _, op in ops)
    return CallFacts(kind, first.comm, ranks, size * ranks if kind in _SHARD_KINDS else size, False)


def collective_rows(
    records: npt.NDArray[np.void], facts: Mapping[int, CallFacts], iterations: range, dilation: float
) -> tuple[CollectiveRow, ...]:
    """Rows in order of the time they take, longest first. ``records`` are operator records of the measured iterations
    with fields ``rank``, ``call_id``, ``iteration``, ``t1_ns``, ``t2_ns`` on one common clock.
    """
    groups: dict[CallFacts, list[int]] = {}
    for call_id, fact in facts.items():
        groups.setdefault(fact, []).append(call_id)
    by_call = records[np.lexsort((records["iteration"], records["call_id"]))]
    rows = []
    for fact, call_ids in groups.items():
        own = by_call[np.isin(by_call["call_id"], np.asarray(call_ids, dtype=np.int64))]
        if len(own):
            rows.append(_row(fact, own, iterations, dilation))
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.kind, row.comm, row.bytes)))


def instances(records: npt.NDArray[np.void]) -> npt.NDArray[np.intp]:
    """Index of the first record of each (call, iteration) in records sorted by those two."""
    fresh = np.ones(len(records), dtype=bool)
    for name in ("call_id", "iteration"):
        if name == "call_id":
            fresh[1:] = records[name][1:] != records[name][:-1]
        else:
            fresh[1:] |= records[name][1:] != records[name][:-1]
    return np.flatnonzero(fresh)


def _row(fact: CallFacts, own: npt.NDArray[np.void], iterations: range, dilation: float) -> CollectiveRow:
    times = (own["t2_ns"] - own["t1_ns"]) / dilation
    starts = instances(own)
    first_start = np.minimum.reduceat(own["t1_ns"], starts) / dilation
    last_start = np.maximum.reduceat(own["t1_ns"], starts) / dilation
    last_end = np.maximum.reduceat(own["t2_ns"], starts) / dilation
    span, transfer, skew = last_end - first_start, last_end - last_start, last_start - first_start
    index = own["iteration"].astype(np.int64) - iterations.start
    sums = np.bincount(index, weights=times, minlength=len(iterations))
    counts = np.bincount(index, minlength=len(iterations))
    mean = float(times.mean())
    algbw = fact.bytes / mean if fact.bytes and mean > 0 else 0.0
    factor = busbw_factor(fact.kind, fact.ranks)
    return CollectiveRow(
        kind=fact.kind,
        comm=fact.comm,
        ranks=fact.ranks,
        bytes=fact.bytes,
        calls=len(starts),
        time_mean_ns=mean,
        time_median_ns=median(times),
        time_p99_ns=percentile(times, 0.99),
        span_median_ns=median(span),
        span_p99_ns=percentile(span, 0.99),
        transfer_median_ns=median(transfer),
        skew_median_ns=median(skew),
        skew_p99_ns=percentile(skew, 0.99),
        algbw_gbytes_per_s=algbw,
        busbw_factor=factor,
        busbw_gbytes_per_s=algbw * factor,
        by_iteration_ns=tuple(float(s / c) for s, c in zip(sums, counts, strict=True) if c),
        uneven=fact.uneven,
    )
