"""Hand-made run directories for the tests of results, report and tracking. Writes formats §3 and §5 by itself."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from genie.results.ports import RECORD as PORT_RECORD
from genie.results.records import Check, FaultOutcome, JobOperators, OperatorRecord, PlanRecord, RankOperators
from genie.results.rundir import HostRecord, RunDir

NONE = 0xFFFF_FFFF
T = 1_000_000_000
MS = 1_000_000
EVENT = np.dtype(
    [("type", "<u2"), ("channel", "<u2"), ("iteration", "<u4"), ("op", "<u4"), ("peer", "<u4"), ("bytes", "<u8"),
     ("t0", "<i8"), ("t1", "<i8"), ("t2", "<i8"), ("call_id", "<u4"), ("message", "<u4"), ("seq", "<u8")]
)  # fmt: skip


@dataclass
class EventWriter:
    """Event file of one rank; times are given in ns since T."""

    rank: int
    world: int
    start: int = T
    dropped: int = 0
    records: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, kind, iteration, t0, t1, t2, *, op=NONE, peer=NONE, size=0, call=NONE, channel=0, message=0):
        seq = len(self.records)
        at = self.start
        self.records.append((kind, channel, iteration, op, peer, size, at + t0, at + t1, at + t2, call, message, seq))

    def op(self, iteration, op, start, end, *, ready=None, call=NONE):
        self.add(1, iteration, start if ready is None else ready, start, end, op=op, call=call)

    def iteration(self, number, start, end):
        self.add(4, number, start, start, end)

    def write(self, path: Path) -> None:
        header = bytearray(4096)
        struct.pack_into("<8sII", header, 0, b"GNIEEVT1", 1, 64)
        struct.pack_into("<IIQ", header, 16, self.rank, self.world, len(self.records))
        struct.pack_into("<QQ", header, 64, len(self.records), self.dropped)
        done = sum(1 for r in self.records if r[0] == 4)
        struct.pack_into("<II", header, 80, done, 3)
        struct.pack_into("<QQQQQ", header, 88, 0, 4096 * (self.rank + 1), 0, 0, 0)
        struct.pack_into("<qq", header, 128, self.start, self.start)
        struct.pack_into("<qq", header, 144, 3 * MS, 1 * MS)
        path.write_bytes(bytes(header) + np.array(self.records, dtype=EVENT).tobytes())


def write_samples(path: Path, ports: int, rows: Sequence[tuple[int, int, int]], *, dropped: int = 0) -> None:
    """Rows are (ns since T, port, backlog bytes); CE marks grow by one a row."""
    header = bytearray(4096)
    struct.pack_into("<8sIII", header, 0, b"GNIESMP1", 1, 64, ports)
    struct.pack_into("<Q", header, 24, len(rows))
    struct.pack_into("<QQQ", header, 64, len(rows), dropped, 1_000_000)
    records = np.zeros(len(rows), dtype=PORT_RECORD)
    for i, (at, port, backlog) in enumerate(rows):
        records[i] = (T + at, port, 0, backlog, i * 1000, 0, 0, i, backlog)
    path.write_bytes(bytes(header) + records.tobytes())


IN_EFFECT = FaultOutcome(
    name="link_rate_10pct", role="link_rate", targets=("leaf0/spine0",), start_mono_ns=T - 5 * MS,
    end_mono_ns=T + 900 * MS, state="in_effect", reverted=True, hypothesis="the slowest link sets the pace",
    checks=(
        Check("shaper of leaf0/spine0 at the end", "10 Mb/s", "10 Mb/s", True),
        Check("a faulted port was limiting", "overlimits rose", "on leaf0/spine0", True, "exercised"),
    ),
)  # fmt: skip

FLAPPING = replace(
    IN_EFFECT, name="link_flap_short", hypothesis="spikes inside its windows, none outside",
    start_mono_ns=T + 45 * MS, end_mono_ns=T + 168 * MS,
    windows=((T + 45 * MS, T + 55 * MS), (T + 155 * MS, T + 168 * MS)),
)  # fmt: skip
"""In effect twice: within the second and third iteration of `SPIKES`, and within its sixth."""
SPIKES = (30, 30, 30, 20, 20, 40, 20, 20, 20, 20, 20, 20)


def plan(**changes) -> PlanRecord:
    base = PlanRecord(
        name="healthy-moe", workload="moe", topology="leaf_spine", transport="tcp", fabric="netns", iterations=4,
        warmup=1, placement=("h0", "h1"), ports=("leaf0/spine0", "spine0/leaf0"),
    )  # fmt: skip
    return replace(base, **changes)


def operators(world: int = 2) -> JobOperators:
    """compute (0), all-reduce of 1 MB (1, call 0), all-gather of a 1000-byte shard (2, call 1)."""
    ops = (
        OperatorRecord(10, "forward", "compute", "", "", 0, 0, -1),
        OperatorRecord(11, "grads", "collective", "all_reduce", "", 1_000_000, 1, 0),
        OperatorRecord(12, "params", "collective", "all_gather", "dp", 1000, 2, 1),
    )
    ranks = tuple(RankOperators(rank, ("compute", "world", "dp"), ops) for rank in range(world))
    everyone = tuple(range(world))
    return JobOperators(ranks, {"": everyone, "dp": everyone})


def make_run(
    root: Path,
    *,
    name: str = "healthy-moe",
    iteration_ms: Sequence[float] = (30, 20, 20, 20, 20, 21, 20, 20, 22, 20, 20, 20),
    faults: Sequence[FaultOutcome] = (),
    ce: int = 40,
    busy: float = 0.4,
    dropped: int = 0,
    hashes=None,
    status: str = "finished",
    parent: str = "",
) -> RunDir:
    """A plausible two-rank run: half of an iteration is compute, half exposed communication, rank 1 0.5 ms late."""
    names = tuple(fault.name for fault in faults)
    run = RunDir.create(
        root, name, argv=("genie", "workload=moe"), reproduce="genie workload=moe seed=1", seed=1, parent=parent,
        faults=names, hashes=hashes or {"workload": "aaaa", "topology": "bbbb", "transport": "cccc", "engine": "dddd"},
        config_yaml="workload:\n  kind: moe\n  layers: 2\nseed: 1\n",
    )  # fmt: skip
    run.write_plan(
        plan(
            name=name,
            iterations=len(iteration_ms),
            faults=tuple({"name": n} for n in names),
            predicted_iteration_ns=18e6,
        )
    )
    run.write_operators(operators())
    run.mark_running()
    at = 0.0
    writers = [EventWriter(rank, 2, dropped=dropped if rank == 0 else 0) for rank in range(2)]
    for i, length in enumerate(iteration_ms):
        for writer in writers:
            start, end = int(at * MS), int((at + length) * MS)
            half = (start + end) // 2
            late = MS // 2 * writer.rank
            writer.op(i, 0, start, half + late)
            writer.op(i, 1, half + late, end - MS, call=0)
            writer.op(i, 2, end - MS, end, call=1)
            writer.add(2, i, half - start + start, half, half + 1000, peer=1 - writer.rank, size=500_000, call=0)
            writer.add(3, i, half + MS, half + MS, end - MS, peer=1 - writer.rank, size=500_000, call=0)
            writer.iteration(i, start, end)
        at += length
    for writer in writers:
        writer.write(run.event_path(writer.rank))
    rows = [(int(i * MS), i % 2, (i % 40) * 1000) for i in range(int(at))]
    write_samples(run.ports_path, 2, rows)
    before = {
        "h0": {"TcpRetransSegs": 5, "TcpOutSegs": 100},
        "leaf0/spine0": {"tx_bytes": 0, "drops": 1, "ce_marked": 2},
    }
    after = {
        "h0": {"TcpRetransSegs": 12, "TcpOutSegs": 4100},
        "leaf0/spine0": {"tx_bytes": 9_000_000, "drops": 4, "ce_marked": 2 + ce},
    }
    run.write_counters(before, after)
    run.write_host(HostRecord(2, ((T, 0.9), (T + int(at * MS), busy))))
    run.write_faults(faults)
    run.mark_ended(status)
    return run
