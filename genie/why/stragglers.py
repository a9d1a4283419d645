"""Who arrived last at the collectives, how often, and what it cost, communicator by communicator.

A call of n ranks cannot end before its last rank has started. What the last one added beyond the last but one is what
the job would have gained had it been as early as that one; what all others waited for it is what it kept idle. Called
by `genie.why.explain`; sends and receives are no collectives.
"""

from __future__ import annotations

import numpy as np

from genie.why.recording import Recording
from genie.why.records import Straggler
from genie.why.shares import comm_name


def find_stragglers(recording: Recording) -> tuple[Straggler, ...]:
    """One row for each rank of each communicator that was ever the last to start, the costliest first."""
    calls = recording.calls
    if not len(calls.call):
        return ()
    group = np.repeat(np.arange(len(calls.begin) - 1), np.diff(calls.begin))
    order = np.lexsort((calls.rank, calls.started, group))
    started, rank = calls.started[order], calls.rank[order]
    first, end = calls.begin[:-1], calls.begin[1:]
    size = end - first
    comm = _communicators(recording)
    comm_of_group = np.array([comm.get(int(call), -1) for call in calls.call[first]])
    usable = (size >= 2) & (comm_of_group >= 0)
    latest = started[end - 1]
    second = started[np.maximum(end - 2, first)]
    sums = np.add.reduceat(started, first)
    iterations = max(1, len(recording.window))
    scale = 1 / recording.plan.dilation
    names = sorted({own.comm for rank_ops in recording.operators.ranks for own in rank_ops.ops})
    world = recording.plan.world
    rows: list[Straggler] = []
    shape = (len(names), world)
    joined, last, late, cost, waited = (np.zeros(shape) for _ in range(5))
    keep = usable[group]
    at = (comm_of_group[group][keep], rank[keep])
    np.add.at(joined, at, 1)
    np.add.at(late, at, (started - np.repeat(started[first], size))[keep])
    ends = usable & (latest > started[first])  # where all start at once nobody is last
    where = (comm_of_group[ends], rank[end - 1][ends])
    np.add.at(last, where, 1)
    np.add.at(cost, where, (latest - second)[ends])
    np.add.at(waited, where, (latest * size - sums)[ends])
    for number, name in enumerate(names):
        for member in np.flatnonzero(last[number]).tolist():
            rows.append(
                Straggler(
                    comm=comm_name(name),
                    rank=member,
                    host=recording.plan.host(member),
                    calls=int(joined[number, member]),
                    last=int(last[number, member]),
                    lateness_ns=float(late[number, member] / joined[number, member] * scale),
                    cost_ns=float(cost[number, member] * scale / iterations),
                    waited_ns=float(waited[number, member] * scale / iterations),
                )
            )
    return tuple(sorted(rows, key=lambda row: (-row.cost_ns, row.comm, row.rank)))


def _communicators(recording: Recording) -> dict[int, int]:
    """Call → number of its communicator; collectives only."""
    names = sorted({op.comm for own in recording.operators.ranks for op in own.ops})
    number = {name: k for k, name in enumerate(names)}
    return {
        op.call_id: number[op.comm]
        for own in recording.operators.ranks
        for op in own.ops
        if op.call_id >= 0 and op.kind == "collective"
    }
