"""The collectives as nccl-tests' JSON (``-J FILE``), for what reads that (``genie report --nccl-json``).

A document a line, one for each kind and communicator, as one nccl-tests program measures one kind; keys, nesting and
the odd types (booleans as words, ``root`` padded) are those of its writer (``src/util.cu`` of 2.19, file version 3).
GENIE's own key is ``genie``, which says what the numbers are of and what became of the run. Bytes are moved, not
numbers: type is ``uint8``, ``nwrong`` is null, and the in-place columns repeat the others, as in ``--nccl-table``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from genie.report.nccl_table import PROGRAMS, REDUCING, ROOTED, SHARED
from genie.results.collectives import CollectiveRow
from genie.results.compare import Judgement
from genie.results.rundir import RunDir

FILE_VERSION = 3
_ROOT = "{:6d}"


def nccl_json(run: RunDir, judgement: Judgement) -> str:
    """All kinds and communicators of a run, a document a line, in the order of ``--nccl-table``."""
    groups: dict[tuple[str, str], list[CollectiveRow]] = {}
    for row in judgement.metrics.collectives:
        groups.setdefault((row.kind, row.comm), []).append(row)
    documents = [
        _document(run, judgement, kind, comm, sorted(rows, key=lambda row: row.bytes))
        for (kind, comm), rows in sorted(groups.items())
    ]
    return "".join(json.dumps(document, allow_nan=False) + "\n" for document in documents)


def _document(run: RunDir, judgement: Judgement, kind: str, comm: str, rows: Sequence[CollectiveRow]) -> dict[str, Any]:
    manifest, plan, measured = run.manifest, run.plan, judgement.metrics.iteration
    members = run.operators.comms.get(comm) or tuple(range(plan.world))
    average = sum(row.busbw_gbytes_per_s for row in rows) / len(rows)
    return {
        "version": FILE_VERSION,
        "start_time": _clock(manifest.started_ns),
        "args": [f"{PROGRAMS.get(kind, kind)}_perf"],
        "env": [],
        "nccl_version": 0,
        "genie": {
            "version": manifest.genie_version,
            "run_id": manifest.run_id,
            "collective": kind,
            "communicator": comm or "world",
            "verdict": judgement.verdict,
            "faults": list(manifest.faults),
            "reproduce": manifest.reproduce,
        },
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "minimum_bytes": rows[0].bytes,
            "maximum_bytes": rows[-1].bytes,
            "step_bytes": 0,
            "warmup_iters": plan.warmup,
            "iterations": len(measured.each_ns) if measured else 0,
            "aggregated_iterations": 1,
            "validation": 0,
            "graph": 0,
            "blocking_collectives": "false",
            "per_iter_timing": "false",
            "per_iter_skip": 0,
            "parallel_init": "false",
            "devices": [_device(rank, plan.host(rank)) for rank in members],
        },
        "results": [_result(kind, row) for row in rows],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": average, "okay": "unchecked"},
        "end_time": _clock(manifest.ended_ns),
    }


def _device(rank: int, host: str) -> dict[str, Any]:
    return {
        "rank": rank, "group": 0, "pid": 0, "hostname": host, "device": 0, "device_hex": "0x00",
        "device_info": "GENIE CPU rank",
    }  # fmt: skip


def _result(kind: str, row: CollectiveRow) -> dict[str, Any]:
    numbers = {
        "time": row.time_mean_ns / 1000,
        "alg_bw": row.algbw_gbytes_per_s,
        "bus_bw": row.busbw_gbytes_per_s,
        "nwrong": None,
    }
    return {
        "size": row.bytes,
        "count": row.bytes // row.ranks if kind in SHARED else row.bytes,
        "type": "uint8",
        "redop": "sum" if kind in REDUCING else "none",
        "root": _ROOT.format(0 if kind in ROOTED else -1),
        "out_of_place": numbers,
        "in_place": dict(numbers),
        "actual_iterations": row.calls,
        "experiment_name": "",
    }


def _clock(ns: int | None) -> str:
    """As nccl-tests writes it, in UTC; "" where it never came to that."""
    return "" if ns is None else f"{datetime.fromtimestamp(ns / 1e9, UTC):%Y-%m-%d %H:%M:%S}"
