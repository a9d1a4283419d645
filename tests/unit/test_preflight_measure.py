"""Rates and round trips from event records, on one clock each, complete ones only."""

from types import SimpleNamespace

import numpy as np
import pytest

from genie.engine import wire
from genie.engine.wire import EventType
from genie.preflight.measure import measure, rate_bps
from genie.results.records import OperatorRecord, RankOperators

MS = 1_000_000


def operator(name: str, call: int, size: int = 0) -> OperatorRecord:
    return OperatorRecord(0, name, "recv", "", "", size, -1, call)


class Run:
    """Operators and events of ranks that never ran."""

    def __init__(self, operators: dict[int, list[OperatorRecord]]) -> None:
        self.operators = SimpleNamespace(ranks=[RankOperators(rank, (), tuple(ops)) for rank, ops in operators.items()])
        self.rows: dict[int, list[dict[str, int]]] = {rank: [] for rank in operators}

    def add(self, rank: int, kind: EventType, **fields: int) -> None:
        self.rows[rank].append({"type": int(kind), **fields})

    def events(self, rank: int):
        rows = self.rows[rank]
        if not rows:
            return None
        records = np.zeros(len(rows), wire.EVENT)
        for number, row in enumerate(rows):
            for name, value in row.items():
                records[number][name] = value
        return SimpleNamespace(of=lambda kind: records[records["type"] == kind])


def loaded(run: Run, rank: int, call: int, ends_ms: list[float], size: int, iteration: int = 0) -> None:
    for end in ends_ms:
        run.add(rank, EventType.RECEIVED, call_id=call, iteration=iteration, bytes=size, t2_ns=int(end * MS))


def test_a_rate_runs_from_the_end_of_the_first_quarter() -> None:
    ends = [100, 110, 120, 130, 140, 150, 160, 170]  # the first two are slow to start, and not counted
    assert rate_bps(np.array(ends) * MS, [1000] * 8, 8000) == pytest.approx(8 * 6000 / 60e-3)
    assert rate_bps(np.array(ends[::-1]) * MS, [1000] * 8, 8000) == pytest.approx(8 * 6000 / 60e-3)
    assert rate_bps([MS, 2 * MS], [500, 500], 1000) == pytest.approx(8 * 500 / 1e-3)


@pytest.mark.parametrize(
    ("ends", "sizes", "total"),
    [([MS, 2 * MS], [500, 500], 1500), ([MS], [500], 500), ([], [], 500), ([MS, MS, MS, MS], [1] * 4, 4)],
    ids=["not-all-of-it", "one-message", "nothing", "no-time-at-all"],
)
def test_what_is_not_complete_has_no_rate(ends, sizes, total) -> None:
    assert rate_bps(ends, sizes, total) is None


def test_loads_are_taken_at_the_receiver_the_median_of_repeats() -> None:
    run = Run({0: [operator("load 1>0", 3, 4000)], 1: [operator("load 0>1", 2, 4000), operator("load 1>0", 3, 4000)]})
    for iteration, step in enumerate((1, 2, 4)):
        loaded(run, 1, 2, [step, 2 * step, 3 * step, 4 * step], 1000, iteration)
    loaded(run, 1, 9, [1, 2, 3, 4], 1000)  # somebody else's
    (found,) = measure(run, 2, [""], dilation=1.0)
    assert found.bandwidth_bps[0][1] == pytest.approx(8 * 1000 / 2e-3)
    assert (found.bandwidth_low_bps[0][1], found.bandwidth_high_bps[0][1]) == (
        pytest.approx(8 * 1000 / 4e-3),
        pytest.approx(8 * 1000 / 1e-3),
    )
    assert found.bandwidth_bps[1][0] is None  # rank 0 left no events: it died before it had any
    assert found.measured == 1


def pinged(run: Run, turn: int, begun_us: float, ended_us: float) -> None:
    run.add(0, EventType.OPERATOR, op=2 * turn, t1_ns=round(begun_us * 1000), t2_ns=0)
    run.add(0, EventType.OPERATOR, op=2 * turn + 1, t1_ns=0, t2_ns=round(ended_us * 1000))


PINGS = [operator(f"{kind} 0-1 #{turn}", 0) for turn in range(4) for kind in ("ping", "pong")]


def test_latency_is_half_a_round_trip_without_the_first_quarter() -> None:
    run = Run({0: PINGS, 1: []})
    for turn, trip_us in enumerate((900, 20, 24, 22)):  # the first one finds a cold path
        pinged(run, turn, 1000 * turn, 1000 * turn + trip_us)
    (found,) = measure(run, 2, [""])
    assert found.latency_ns == ((None, 11_000.0), (11_000.0, None))


def test_pings_that_never_came_back_have_no_latency() -> None:
    run = Run({0: PINGS, 1: []})
    for turn in range(3):
        pinged(run, turn, 1000 * turn, 1000 * turn + 20)
    (found,) = measure(run, 2, [""])
    assert found.latency_ns == ((None, None), (None, None))


def test_model_time_is_real_time_over_the_dilation() -> None:
    run = Run({0: PINGS, 1: [operator("load 0>1", 2, 4000)]})
    loaded(run, 1, 2, [1, 2, 3, 4], 1000)
    for turn in range(4):
        pinged(run, turn, 1000 * turn, 1000 * turn + 20)
    (found,) = measure(run, 2, [""], dilation=4.0)
    assert found.bandwidth_bps[0][1] == pytest.approx(4 * 8 * 1000 / 1e-3)
    assert found.latency_ns[0][1] == 2500.0


def test_ranks_of_one_host_are_its_rails() -> None:
    ops = {rank: [] for rank in range(4)}  # two hosts, two rails: ranks 0 and 1 on the first
    ops[2] = [operator("load 0>2", 5, 4000)]
    ops[3] = [operator("load 1>3", 6, 4000)]
    run = Run(ops)
    loaded(run, 2, 5, [1, 2, 3, 4], 1000)
    loaded(run, 3, 6, [2, 4, 6, 8], 1000)
    first, second = measure(run, 2, ["mlx5_0", "mlx5_1"])
    assert (first.name, second.name) == ("mlx5_0", "mlx5_1")
    assert first.bandwidth_bps[0][1] == pytest.approx(2 * second.bandwidth_bps[0][1])
