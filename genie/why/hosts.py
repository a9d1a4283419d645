"""How suspect each host's compute is: what its compute operators took, over what the trace says they take.

Called by `genie.why.explain`, so that a slow host can be told from a slow network. A host whose processors an emulation
shares with all others is slow with them; what stands out is what the others do not show.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from genie.engine.wire import EventType
from genie.results.metrics import COMPUTE_KINDS
from genie.results.records import OperatorRecord
from genie.results.statistics import Floats
from genie.why.recording import Recording
from genie.why.records import HostScore


def score_hosts(recording: Recording) -> tuple[HostScore, ...]:
    """A score for the compute of every host that has ranks, the most suspect first."""
    plan, records = recording.plan, recording.job.records
    inside = (records["iteration"] >= recording.window.start) & (records["iteration"] < recording.window.stop)
    ops = records[(records["type"] == EventType.OPERATOR) & inside]
    typical = _typical_compute(recording, ops)
    took: dict[str, list[Floats]] = {}
    expected: dict[str, list[Floats]] = {}
    for own in recording.operators.ranks:
        mine = ops[ops["rank"] == own.rank]
        plans = np.array([_planned(op, typical, plan.dilation) for op in own.ops], dtype=np.float64)
        expects = plans[mine["op"]] if len(plans) else np.zeros(0)
        host = plan.host(own.rank)
        took.setdefault(host, []).append((mine["t2_ns"] - mine["t1_ns"])[expects > 0].astype(np.float64))
        expected.setdefault(host, []).append(expects[expects > 0])
    iterations = max(1, len(recording.window))
    scores = []
    for host in took:
        times, plans = np.concatenate(took[host]), np.concatenate(expected[host])
        stretch = _middle(times / plans, plans) if len(plans) else None
        text = "computes nothing"
        if stretch is not None:
            text = f"compute takes {stretch:.2f} times its plan"
        scores.append(
            HostScore(
                host=host,
                score=max(0.0, 1 - 1 / stretch) if stretch else 0.0,
                stretch=stretch,
                excess_ns=float(np.maximum(times - plans, 0.0).sum()) / iterations / plan.dilation,
                operators=len(plans),
                text=text,
            )
        )
    return tuple(sorted(scores, key=lambda score: (-score.score, score.host)))


def _middle(values: Floats, weights: Floats) -> float:
    """The weighted median: half of the planned time was stretched by more. A thread that was kept off its core for a
    moment stretches one operator, a slow host all of them.
    """
    order = np.argsort(values, kind="stable")
    reach = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reach, reach[-1] / 2)])


def _planned(op: OperatorRecord, typical: Mapping[str, float], dilation: float) -> float:
    """What an operator should take, in real ns; 0 for what does not compute, or should take no time."""
    if op.kind not in COMPUTE_KINDS:
        return 0.0
    return op.planned_ns * dilation if op.planned_ns >= 0 else typical.get(op.name, 0.0)


def _typical_compute(recording: Recording, ops: npt.NDArray[np.void]) -> dict[str, float]:
    """For runs that did not record their plan: the median over ranks of what an operator of a name took."""
    if all(op.planned_ns >= 0 for own in recording.operators.ranks for op in own.ops):
        return {}
    times: dict[str, list[float]] = {}
    for own in recording.operators.ranks:
        mine = ops[ops["rank"] == own.rank]
        for number, took in zip(mine["op"].tolist(), (mine["t2_ns"] - mine["t1_ns"]).tolist(), strict=True):
            if own.ops[number].kind in COMPUTE_KINDS:
                times.setdefault(own.ops[number].name, []).append(took)
    return {name: float(np.median(values)) for name, values in times.items()}
