"""The engine alone, and the plan before it: operators a second, timer error, reading traces, start-up, many ranks."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import Row, call_times_ns, fabric, replay

from genie import _native
from genie.collectives.config import CollectivesConfig
from genie.collectives.program import Lane, ProgramOp, RankProgram
from genie.engine.encode import Endpoint, EngineSettings, encode
from genie.engine.events import read_events

LOOPBACK = 0x7F000001


def _run_local(programs: list[RankProgram], **settings: object) -> list:
    chosen = EngineSettings(run_id=bytes(16), **settings)
    blobs = [encode(p, chosen, [Endpoint(LOOPBACK)] * len(programs)) for p in programs]
    with tempfile.TemporaryDirectory(prefix="genie-bench-") as folder:
        paths = [str(Path(folder) / f"{p.rank}.evt") for p in programs]
        _native.run_local(blobs, paths, bytes(32))
        return [np.array(read_events(path).records) for path in paths]


def _chain(rank: int, world: int, durations_ns: list[int]) -> RankProgram:
    ops = tuple(ProgramOp(i, "op", duration, -1, 0, (i - 1,) if i else ()) for i, duration in enumerate(durations_ns))
    return RankProgram(rank, world, ops, (Lane("compute", False),), (), (), {"": tuple(range(world))})


def walk(count: int = 1_000_000) -> list[Row]:
    """A chain of operators without duration, every one recorded."""
    (records,) = _run_local([_chain(0, 1, [0] * count)])
    ops = records[records["type"] == 1]
    rate = (len(ops) - 1) / ((ops["t2_ns"][-1] - ops["t2_ns"][0]) / 1e9)
    return [Row("operators walked in one rank, recorded", f"{rate / 1e6:.1f} M/s", "-", "-", ">= 5 M/s")]


def timers() -> list[Row]:
    """Lateness of compute: two ranks on idle cores, then more ranks than cores with and without spinning."""
    rng = np.random.default_rng(1)
    durations = [int(x) for x in rng.uniform(50_000, 10_000_000, 200)]

    def lateness(ranks: int, spin_ns: int) -> np.ndarray:
        records = _run_local([_chain(r, ranks, durations) for r in range(ranks)], spin_ns=spin_ns)
        late = []
        for rank in records:
            ops = rank[rank["type"] == 1]
            late.append(ops["t2_ns"] - ops["t1_ns"] - np.array(durations)[ops["op"]])
        return np.concatenate(late)

    two = [lateness(2, 150_000) for _ in range(5)]  # a machine of a cloud takes its cores away now and then
    mean_ns = statistics.median(run.mean() for run in two)
    p99_ns = statistics.median(np.percentile(run, 99) for run in two)
    cores = os.cpu_count() or 1
    spun, slept = lateness(4 * cores, 150_000), lateness(4 * cores, 0)
    return [
        Row("compute timer, 2 ranks, 50 us to 10 ms, 5 runs: mean", f"{mean_ns / 1e3:.2f} us", "-", "-", "<= 2 us"),
        Row("same: p99", f"{p99_ns / 1e3:.2f} us", "-", "-", "<= 10 us"),
        Row(f"{4 * cores} ranks on {cores} cores: mean error, spinning against sleeping", f"{spun.mean() / 1e3:.1f} us",
            f"{slept.mean() / 1e3:.1f} us", f"{spun.mean() / slept.mean():.2f}", "<= 1"),
    ]  # fmt: skip


def read_trace() -> list[Row]:
    """A 20,000-node Chakra file, read and checked, the best of three in a fresh process each."""
    script = Path(__file__).parent / "peers" / "read_trace.py"
    found = []
    for _ in range(3):
        done = subprocess.run([sys.executable, str(script), "20000"], capture_output=True, text=True, check=True)
        found.append(float(done.stdout))
    return [Row("20,000-node trace read and checked", f"{statistics.median(found):.2f} s", "-", "-", "<= 0.5 s")]


def scale() -> list[Row]:
    """64 ranks in 64 hosts, then 256 ranks in them: build, memory of agents, all-to-all completes."""
    rows = []
    began = time.monotonic()
    with fabric(64) as net:
        rows.append(Row("fabric of 64 hosts up", f"{time.monotonic() - began:.2f} s", "-", "-", "<= 2 s"))
        for ranks in (64, 256):
            job = {"name": "collective", "ranks": ranks, "kind": "all_to_all", "sizes": [4096 * ranks], "iterations": 3}
            began = time.monotonic()
            events = replay(net, job, CollectivesConfig(all_to_all="direct"), iterations=3, congestion_control="cubic")
            op_s = statistics.median(call_times_ns(events, skip=1)) / 1e9
            said = f"{op_s:.3f} s (in all {time.monotonic() - began:.1f} s)"
            rows.append(Row(f"{ranks} ranks, all-to-all of 4 KiB a peer", said, "-", "-", "completes"))
    return rows


def start_up() -> list[Row]:
    """From the command to the first byte, from the journal and events of real runs; and the help's time."""
    rows = []
    genie = [sys.executable, "-m", "genie"]
    for fault, target in (("[]", 3), ("link_rate_10pct", 6)):
        with tempfile.TemporaryDirectory() as folder:
            began_ns = time.monotonic_ns()
            argv = [*genie, f"fault={fault}", "workload=collective", "workload.iterations=1", "workload.max_bytes=4KiB"]
            subprocess.run([*argv, f"out={folder}", "tracking.mlflow.enabled=false"], capture_output=True, check=False)
            (path, *_) = Path(folder).glob("*/events/rank-0.evt")
            first_s = (int(np.min(read_events(path).records["t0_ns"])) - began_ns) / 1e9
            rows.append(Row(f"Enter to first byte, fault={fault}", f"{first_s:.2f} s", "-", "-", f"<= {target} s"))
    times = []
    for _ in range(5):
        began = time.monotonic()
        subprocess.run([*genie, "--help"], capture_output=True, check=True)
        times.append(time.monotonic() - began)
    rows.append(Row("genie --help", f"{statistics.median(times):.2f} s", "-", "-", "<= 0.4 s"))
    return rows


def memory() -> list[Row]:
    """Proportional set size of agents while 64 hosts have one rank each, then four."""
    found = {}
    for a_host in (1, 4):
        with fabric(64) as net:
            job = {
                "name": "collective", "ranks": 64 * a_host, "kind": "all_reduce", "sizes": ["64KiB"], "iterations": 40,
            }  # fmt: skip
            log = Path(tempfile.gettempdir()) / f"genie-bench-memory-{a_host}.log"
            watch = str(Path(__file__).parent / "peers" / "watch_memory.py")
            watcher = net.spawn("", [sys.executable, watch], stdin=b"", log=log)
            # Without message records: the pages of an event file are the kernel's cache, not the agent's.
            replay(net, job, CollectivesConfig(), iterations=40, congestion_control="cubic", record_messages=False)
            watcher.kill()
        found[a_host] = max(float(line) for line in log.read_text().split())
        log.unlink()
    further = (found[4] - found[1]) / 3
    return [
        Row("PSS of a host's agent, 64 of them, one rank each", f"{found[1]:.2f} MB", "-", "-", "<= 6 MB"),
        Row("PSS of a further rank in it", f"{further:.2f} MB", "-", "-", "<= 0.2 MB"),
    ]
