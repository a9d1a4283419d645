"""The collective table in nccl-tests' own columns, for the parsers that read those (``genie report --nccl-table``).

Same header, same column positions (common.cu of nccl-tests 2.13 to 2.19), time in us and bandwidth in GB/s of 10^9
bytes. GENIE moves bytes, not numbers: type is ``uint8``, ``count`` is bytes a rank, #wrong is ``N/A``, and there is no
in-place variant: those columns repeat the out-of-place ones so that parsers which want 13 columns find them. One table
a kind, as one nccl-tests program measures one kind.
"""

from __future__ import annotations

from collections.abc import Sequence

from genie.results.collectives import CollectiveRow
from genie.results.metrics import Metrics
from genie.results.records import PlanRecord

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
PROGRAMS = {"all_to_all": "alltoall", "send_recv": "sendrecv"}
_COLUMNS = (
    "size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
)
_UNITS = "(B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"
_HEADER = (
    "#",
    f"#{'':62s}out-of-place{'':23s}in-place{'':10s}",
    f"#       {_COLUMNS}",
    f"#        {_UNITS}       ",
)
SHARED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


def nccl_table(metrics: Metrics, plan: PlanRecord) -> str:
    """All kinds and communicators of a run, one nccl-tests table each."""
    groups: dict[tuple[str, str], list[CollectiveRow]] = {}
    for row in metrics.collectives:
        groups.setdefault((row.kind, row.comm), []).append(row)
    measured = len(metrics.iteration.each_ns) if metrics.iteration else 0
    return "\n".join(
        _table(kind, comm, sorted(rows, key=lambda row: row.bytes), plan, measured)
        for (kind, comm), rows in sorted(groups.items())
    )


def _table(kind: str, comm: str, rows: Sequence[CollectiveRow], plan: PlanRecord, measured: int) -> str:
    program = f"{PROGRAMS.get(kind, kind)}_perf"
    lines = [
        f"# Collective test starting: {program}",
        f"# nThread 1 nGpus 1 minBytes {rows[0].bytes} maxBytes {rows[-1].bytes} step: 2(factor) "
        f"warmup iters: {plan.warmup} iters: {measured} agg iters: 1 validation: 0 graph: 0",
        "#",
        f"# GENIE: communicator {comm or 'world'}, {rows[0].ranks} ranks; bytes, not numbers; in-place is a copy",
        "# Using devices",
    ]
    for rank, host in enumerate(plan.placement):
        lines.append(f"#  Rank {rank:2d} Group  0 Pid {0:6d} on {host:>10s} device  0 [0x00] GENIE CPU rank")
    lines += _HEADER
    for row in rows:
        count = row.bytes // row.ranks if kind in SHARED else row.bytes
        redop = "sum" if kind in REDUCING else "none"
        root = "0" if kind in ROOTED else "-1"
        numbers = (
            f"{_time(row.time_mean_ns / 1000):>7s}  {_bandwidth(row.algbw_gbytes_per_s):>6s}  "
            f"{_bandwidth(row.busbw_gbytes_per_s):>6s} {'N/A':>6s}"
        )
        lines.append(f"{row.bytes:12d}  {count:12d}  {'uint8':>8s}  {redop:>6s}  {root:>6s}  {numbers}  {numbers}")
    average = sum(row.busbw_gbytes_per_s for row in rows) / len(rows)
    lines += [
        "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {average:g} ",
        "#",
        f"# Collective test concluded: {program}",
        "",
    ]
    return "\n".join(lines)


def _time(us: float) -> str:
    """Seven columns, digits after the point as fit (nccl-tests' getFloatStr)."""
    if us >= 10_000.0:
        return f"{us:.0f}"
    return f"{us:.1f}" if us >= 100.0 else f"{us:.2f}"


def _bandwidth(gbytes_per_s: float) -> str:
    if gbytes_per_s >= 10_000.0:
        return f"{gbytes_per_s:.0f}"
    return f"{gbytes_per_s:.1f}" if gbytes_per_s >= 1_000.0 else f"{gbytes_per_s:.2f}"
