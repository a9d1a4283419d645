"""The timeline of a run as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open.

A process a rank ("rank 3 on h3") with a thread a stream; a process for the network with queue depth and CE marks of
each port over time; a process for the faults, each window a slice. Times are µs of model time since the agreed start
T. Bounded in size: what was left out is said in the file's metadata and by the return value. Made from the run
directory alone.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from genie.engine.wire import EventType
from genie.results.metrics import JobRecords, load_records
from genie.results.ports import NOT_KNOWN, PortSamples
from genie.results.records import FaultOutcome, PlanRecord, RankOperators
from genie.results.rundir import RunDir

MOST_SLICES = 100_000
MOST_PORTS = 64
POINTS_PER_PORT = 500
MOST_WINDOWS = 2000
NETWORK_PID = 1_000_000
FAULTS_PID = 1_000_001
_ITERATION_TID = 0
_LOOSE_TID = 1_000
_COLORS = {"compute": "good", "memory": "good", "collective": "thread_state_runnable", "send": "thread_state_iowait",
           "recv": "thread_state_iowait"}  # fmt: skip

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Where it is, and sentences about what is not in it (none: everything is)."""

    path: Path
    slices: int
    notes: tuple[str, ...]


def write_timeline(run: RunDir, *, most_slices: int = MOST_SLICES) -> Timeline:
    """Write ``timeline.json.gz``. Raises GenieError where the run's files are missing or damaged."""
    plan = run.plan
    job = load_records(run, plan, (EventType.OPERATOR, EventType.ITERATION))
    clocks = None if plan.one_clock else run.clocks()
    notes: list[str] = []
    if clocks:
        notes.append(f"hosts' clocks were moved to one; instants may be off by {_us(clocks.error_ns, plan):g} us")
    last = _last_iteration(job, most_slices)
    if last is not None:
        notes.append(f"only iterations 0 to {last} are shown: the others would make more than {most_slices} slices")
    slices: list[Event] = []
    names: list[Event] = []
    for own in run.operators.ranks:
        names += _process(own.rank + 1, f"rank {own.rank} on {plan.host(own.rank)}", own.rank)
        made, threads = _rank_slices(job, own, plan, last)
        slices += made
        names += [_thread(own.rank + 1, tid, name) for tid, name in threads.items()]
    one_start = min(job.start_mono_ns.values(), default=None)
    counters: list[Event] = []
    if job.one_clock and one_start is not None:
        names += _process(NETWORK_PID, "network", len(plan.placement))
        counters = list(_port_counters(run.ports(), plan, one_start, notes))
        end_us = max((event["ts"] + event["dur"] for event in slices), default=0.0)
        faults = run.faults()
        names += _process(FAULTS_PID, "faults", -1) if faults else []
        for number, fault in enumerate(faults):
            names.append(_thread(FAULTS_PID, number, fault.name))
            slices += _fault_slices(fault, number, plan, one_start, end_us, notes)
    events = names + sorted(slices + counters, key=lambda event: float(event["ts"]))
    content = {
        "displayTimeUnit": "ms",
        "otherData": {
            "format": "genie-timeline",
            "version": 1,
            "run": run.manifest.run_id,
            "name": run.manifest.name,
            "clock": "us of model time since the agreed start",
            "dilation": plan.dilation,
            "clock_error_us": _us(clocks.error_ns, plan) if clocks else 0.0,
            "notes": notes,
        },
        "traceEvents": events,
    }
    raw = json.dumps(content, separators=(",", ":")).encode()
    path = run.write_bytes(run.timeline_path.name, gzip.compress(raw, compresslevel=4, mtime=0))
    return Timeline(path, len(slices), tuple(notes))


def _us(ns: float, plan: PlanRecord) -> float:
    return round(ns / plan.dilation / 1000, 3)


def _process(pid: int, name: str, order: int) -> list[Event]:
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": order}},
    ]


def _thread(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _last_iteration(job: JobRecords, most: int) -> int | None:
    """The last iteration that fits into ``most`` slices (at least the first one); None when all do."""
    shown = job.records[(job.records["type"] == EventType.OPERATOR) | (job.records["type"] == EventType.ITERATION)]
    if len(shown) <= most:
        return None
    totals = np.cumsum(np.bincount(shown["iteration"]))
    return max(0, int(np.searchsorted(totals, most, side="right")) - 1)


def _rank_slices(
    job: JobRecords, own: RankOperators, plan: PlanRecord, last: int | None
) -> tuple[list[Event], dict[int, str]]:
    mine = job.records[job.records["rank"] == own.rank]
    if last is not None:
        mine = mine[mine["iteration"] <= last]
    pid = own.rank + 1
    threads = {_ITERATION_TID: "iteration"} | {lane + 1: name for lane, name in enumerate(own.lanes)}
    events: list[Event] = []
    for record in mine[mine["type"] == EventType.ITERATION]:
        start, end = int(record["t0_ns"]), int(record["t2_ns"])
        events.append(
            _slice(f"iteration {record['iteration']}", "iteration", start, end, pid, _ITERATION_TID, plan, {})
        )
    loose_until: list[int] = []
    ops = mine[mine["type"] == EventType.OPERATOR]
    for record in ops[np.argsort(ops["t1_ns"], kind="stable")]:
        op = own.ops[int(record["op"])]
        ready, start, end = int(record["t0_ns"]), int(record["t1_ns"]), int(record["t2_ns"])
        if op.kind == "noop" and start == end:
            continue
        tid = op.lane + 1 if op.lane >= 0 else _LOOSE_TID + _free_row(loose_until, start, end)
        if tid >= _LOOSE_TID:
            threads.setdefault(tid, f"other {tid - _LOOSE_TID}")
        arguments: dict[str, Any] = {
            "iteration": int(record["iteration"]),
            "trace_id": op.trace_id,
            "waited_for_stream_us": _us(start - ready, plan),
        }
        if op.call_id >= 0:
            arguments |= {"call": op.call_id, "bytes": op.bytes, "comm": op.comm or "world"}
            arguments |= {"peer": op.peer} if op.peer >= 0 else {}
        label = op.name if not op.collective else f"{op.collective} {op.name}"
        events.append(_slice(label, op.kind, start, end, pid, tid, plan, arguments))
    return events, threads


def _free_row(until: list[int], start: int, end: int) -> int:
    """First row that is free at ``start``: slices of one row of a Chrome trace must not overlap."""
    for row, busy in enumerate(until):
        if busy <= start:
            until[row] = end
            return row
    until.append(end)
    return len(until) - 1


def _slice(
    name: str, kind: str, start: int, end: int, pid: int, tid: int, plan: PlanRecord, arguments: dict[str, Any]
) -> Event:
    ts = _us(start, plan)
    event: Event = {"ph": "X", "name": name, "cat": kind, "ts": ts, "dur": max(0.0, round(_us(end, plan) - ts, 3))}
    event |= {"pid": pid, "tid": tid, "args": arguments}
    if kind in _COLORS:
        event["cname"] = _COLORS[kind]
    return event


def _port_counters(samples: PortSamples | None, plan: PlanRecord, start: int, notes: list[str]) -> Iterator[Event]:
    """Queue depth (the most of each stretch) and new CE marks of the busiest ports."""
    if samples is None or not len(samples.records):
        return
    depths = {port: samples.of(port) for port in range(min(samples.ports, len(plan.ports)))}
    used = [port for port, own in depths.items() if len(own) and int(own["backlog_bytes"].max()) > 0]
    used.sort(key=lambda port: -int(depths[port]["backlog_bytes"].max()))
    if len(used) > MOST_PORTS:
        notes.append(f"queues of the {MOST_PORTS} deepest of {len(used)} used ports are shown")
        used = used[:MOST_PORTS]
    for port in used:
        own, name = depths[port], plan.ports[port]
        bounds = _stretches(len(own))
        depth = np.maximum.reduceat(own["backlog_bytes"], bounds)
        marks = own["ce_marked"]
        known = not (marks == NOT_KNOWN).any()
        new_marks = np.diff(marks[bounds], prepend=marks[:1]) if known else np.zeros(0, dtype=np.uint64)
        for number, first in enumerate(bounds):
            ts = _us(int(own["mono_ns"][first]) - start, plan)
            yield _counter(f"queue {name}", ts, {"bytes": int(depth[number])})
            if known and int(marks[-1]) > int(marks[0]):
                yield _counter(f"CE marks {name}", ts, {"packets": int(new_marks[number])})


def _stretches(samples: int) -> npt.NDArray[np.intp]:
    """First sample of each of at most `POINTS_PER_PORT` stretches of near equal length."""
    count = min(samples, POINTS_PER_PORT)
    return np.unique(np.arange(count) * samples // count).astype(np.intp)


def _counter(name: str, ts: float, values: dict[str, int]) -> Event:
    return {"ph": "C", "name": name, "ts": ts, "pid": NETWORK_PID, "tid": 0, "args": values}


def _fault_slices(
    fault: FaultOutcome, number: int, plan: PlanRecord, start: int, end_us: float, notes: list[str]
) -> Iterator[Event]:
    """A slice for each window of a fault; one that never ended goes on to the end."""
    windows = fault.stretches
    if len(windows) > MOST_WINDOWS:
        notes.append(f"the first {MOST_WINDOWS} of {len(windows)} windows of {fault.name} are shown")
    for count, (begun, ended) in enumerate(windows[:MOST_WINDOWS], 1):
        begin = _us(begun - start, plan)
        finish = _us(ended - start, plan) if ended is not None else max(end_us, begin)
        arguments = {"targets": ", ".join(fault.targets), "state": fault.state, "reverted": fault.reverted}
        yield {
            "ph": "X",
            "name": fault.name,
            "cat": "fault",
            "ts": begin,
            "dur": round(max(0.0, finish - begin), 3),
            "pid": FAULTS_PID,
            "tid": number,
            "cname": "terrible",
            "args": arguments | ({"window": f"{count} of {len(windows)}"} if len(windows) > 1 else {}),
        }
