"""A run as lines of SuperBench's ``results-summary.jsonl``, one a host (``genie report --superbench``).

SuperBench names a number ``benchmark[:annotation]/metric[:rank]`` and tells a failed benchmark by ``return_code``.
What is of the whole job is on the line of rank 0's host, where SuperBench has the results of jobs of many nodes:
collectives as its ``nccl-bw`` (time in us, bandwidth in GB/s), annotated with ``genie-`` and the communicator. What
is of a rank is on its own host's line, under ``genie``, so that ``sb result diagnosis`` sees a host that differs from
the others.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

from genie.errors import EXIT_INVALID, EXIT_OK
from genie.results.collectives import CollectiveRow
from genie.results.compare import Judgement
from genie.results.records import digest
from genie.results.rundir import RunDir

_ODD = re.compile(r"[^A-Za-z0-9_.-]+")


def summary_lines(run: RunDir, judgement: Judgement) -> str:
    """A JSON object a line, hosts in the order of their first rank. Numbers are finite; others are left out."""
    plan, metrics = run.plan, judgement.metrics
    hosts = list(dict.fromkeys(plan.placement))
    code = EXIT_INVALID if judgement.verdict == "invalid" else EXIT_OK
    lines: dict[str, dict[str, float | int | str]] = {host: {"node": host, "genie/return_code": code} for host in hosts}
    if hosts:
        lines[hosts[0]] |= dict(_job(judgement, code))
    ordinal: dict[str, int] = {}
    for row in metrics.ranks:
        local = ordinal[row.host] = ordinal.get(row.host, -1) + 1
        lines[row.host] |= {
            f"genie/compute_time_ms:{local}": row.compute_ns / 1e6,
            f"genie/exposed_comm_time_ms:{local}": row.exposed_ns / 1e6,
            f"genie/idle_time_ms:{local}": row.idle_ns / 1e6,
            f"genie/lateness_us:{local}": row.lateness_ns / 1e3,
        }
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines.values())


def _job(judgement: Judgement, code: int) -> Iterator[tuple[str, float]]:
    metrics = judgement.metrics
    if metrics.iteration is not None:
        yield "genie/iteration_time_median_ms", metrics.iteration.median.value / 1e6
        yield "genie/iteration_time_p99_ms", metrics.iteration.p99.value / 1e6
    if metrics.exposed is not None:
        yield "genie/exposed_comm_median_ms", metrics.exposed.value / 1e6
    comparison = judgement.comparison
    if comparison is not None and not math.isnan(comparison.median.ratio.value):
        yield "genie/slowdown_median_ratio", comparison.median.ratio.value
    for row in metrics.collectives:
        if not row.bytes:
            continue  # SuperBench leaves out the size 0 as well
        benchmark = f"nccl-bw:genie-{_name(row.comm or 'world')}"
        yield f"{benchmark}/return_code", code
        for metric, value in (
            ("busbw", row.busbw_gbytes_per_s), ("algbw", row.algbw_gbytes_per_s), ("time", row.time_mean_ns / 1e3),
        ):  # fmt: skip
            yield f"{benchmark}/{_operation(row)}_{row.bytes}_{metric}", value


def _operation(row: CollectiveRow) -> str:
    """``allreduce``, ``alltoallv`` …: SuperBench's words are nccl-tests' without signs between."""
    return row.kind.replace("_", "") + ("v" if row.uneven else "")


def _name(comm: str) -> str:
    """A communicator's name without signs of a metric's name; a changed one gets a digest, to stay apart."""
    clean = _ODD.sub("-", comm)
    return clean if clean == comm else f"{clean}-{digest(comm)[:8]}"
