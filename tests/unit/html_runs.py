"""Run directories for the tests of the HTML report: one with hostile names, one of 64 ranks, three arms, a why.json."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from rundir_maker import EVENT, IN_EFFECT, MS, NONE, SPIKES, EventWriter, T, make_run, plan

from genie.results.aba import AbaDir
from genie.results.compare import judge_and_store
from genie.results.ports import RECORD as PORT_RECORD
from genie.results.records import JobOperators, OperatorRecord, RankOperators
from genie.results.rundir import HostRecord, RunDir
from genie.sweep.cells import Cell, Slot, SweepPlan
from genie.why import records as why
from genie.why.store import write_why

EVIL = '<script>document.title="owned"</script>'
EVIL_HOST = 'h0"><img src=x onerror=alert(1)>'


def compared(root: Path) -> RunDir:
    """A degraded run beside its healthy twin, with a fault whose windows cover some iterations."""
    judge_and_store(make_run(root), runs_root=root)
    flap = replace(
        IN_EFFECT, name="link_flap_short", windows=((T + 45 * MS, T + 55 * MS), (T + 155 * MS, T + 168 * MS)),
        start_mono_ns=T + 45 * MS, end_mono_ns=T + 168 * MS,
    )  # fmt: skip
    run = make_run(root, name="link_flap_short-moe", iteration_ms=SPIKES, faults=(flap,))
    with_host_load(run, sum(SPIKES))
    judge_and_store(run, runs_root=root)
    return run


def with_host_load(run: RunDir, length_ms: float) -> None:
    """A load sample every tenth of the run."""
    step = int(length_ms * MS / 10)
    samples = ((T, 0.9), *((T + i * step, 0.2 + 0.05 * (i % 4)) for i in range(1, 11)))
    run.write_host(HostRecord(2, samples, kernel="6.12.0-test", details={"machine": "a machine"}))


def hostile(root: Path) -> RunDir:
    """Every name that comes from outside is markup."""
    fault = replace(
        IN_EFFECT, name=EVIL, hypothesis=EVIL, checks=(replace(IN_EFFECT.checks[0], what=EVIL, found=EVIL),)
    )
    run = make_run(root, name=EVIL, faults=(fault,))
    ops = (
        OperatorRecord(10, EVIL, "compute", "", "", 0, 0, -1),
        OperatorRecord(11, EVIL, "collective", "all_reduce", EVIL, 1_000_000, 1, 0),
        OperatorRecord(12, EVIL, "collective", "all_gather", EVIL, 1000, 2, 1),
    )
    ranks = tuple(RankOperators(rank, (EVIL, "world", "dp"), ops) for rank in range(2))
    run.write_operators(JobOperators(ranks, {"": (0, 1), EVIL: (0, 1)}))
    run.write_plan(
        plan(
            name=EVIL, workload=EVIL, topology=EVIL, iterations=12, placement=(EVIL_HOST, "h1"), notes=(EVIL,),
            ports=(EVIL, "spine0/leaf0"), faults=({"name": EVIL},),
        )
    )  # fmt: skip
    judge_and_store(run, runs_root=root)
    write_why(run, reason(EVIL))
    return run


def reason(name: str = "grads") -> why.Why:
    """A why.json whose numbers add up to an iteration of 20 ms."""
    segments = (
        why.Segment(0, 9e6, why.COMPUTE, 0, -1, name, None),
        why.Segment(9e6, 15e6, why.QUEUEING, 1, 0, name, "", ("h0/leaf0", "leaf0/spine0")),
        why.Segment(15e6, 20e6, why.SERIALIZATION, 1, 0, name, ""),
    )
    causes = (
        why.Share(why.COMPUTE, 9e6, 0.45), why.Share(why.QUEUEING, 6e6, 0.3), why.Share(why.SERIALIZATION, 5e6, 0.25),
    )  # fmt: skip
    return why.Why(
        verdict="queueing carries 30 % of an iteration",
        suspect=why.Suspect("link", (name,), f"{name} has about 10 % of its rate"),
        iteration_ns=20e6,
        iterations=(why.IterationBlame(3, 0, 20e6, 1, {why.COMPUTE: 9e6, why.QUEUEING: 6e6, why.SERIALIZATION: 5e6}),),
        causes=causes,
        operators=(why.Share(name, 20e6, 1.0),),
        comms=(),
        links=(why.Share(name, 6e6, 0.3),),
        ranks=(why.Share("0", 9e6, 0.45), why.Share("1", 11e6, 0.55)),
        pairs=(why.PairRow(0, 1, 10, 5_000_000, 11e6, 2e6, 9e6, 1.8),),
        path_iteration=3,
        path=segments,
        stragglers=(why.Straggler("", 1, name, 12, 9, 5e5, 4e5, 4e5),),
        link_scores=(
            why.LinkScore(name, "leaf0-spine0", 0.9, 0.1, 6e6, 40, 0.2, 0.1, 30, 3, 1.0, "drains at a tenth"),
        ),
        host_scores=(why.HostScore(name, 0.5, 2.0, 1e6, 12, "twice its plan"),),
        routes=why.RouteFacts("single", 2, 2, "there is one path"),
        recovery=why.RecoveryFacts(0, 0.0, 0, 7, "none"),
        notes=(name,),
    )


def three_arms(root: Path) -> AbaDir:
    """A baseline/fault/baseline that slowed down and recovered."""
    folder = AbaDir.create(
        root, "link_rate_10pct-moe", argv=("genie",), reproduce="genie protocol=aba fault=link_rate_10pct", seed=1,
        faults=("link_rate_10pct",), path=root / "aba",
    )  # fmt: skip
    lengths = {"a1": (30, *[20, 21, 20] * 4), "b": (60, *[40, 41, 44] * 4), "a2": (30, *[20, 20, 21] * 4)}
    for arm, iteration_ms in lengths.items():
        made = make_run(
            root / "made", name=f"{arm}-moe", iteration_ms=iteration_ms, faults=(IN_EFFECT,) if arm == "b" else ()
        )
        made.path.rename(folder.path / arm)
        judge_and_store(RunDir.open(folder.path / arm), runs_root=folder.path, baseline="none")
    folder.finish("finished")
    return folder


def swept(root: Path) -> Path:
    """A sweep of two keys, twice each, of which the last run is missing."""
    cells = tuple(
        Cell(n, f"{fault}-{workload}", {"fault": fault, "workload": workload}, ())
        for n, (fault, workload) in enumerate(product(("none", "link_rate"), ("moe", "dp")))
    )
    slots = tuple(Slot(8 // 2 * repeat + n, n, repeat) for repeat in range(2) for n in range(4))
    folder = root / "sweeps" / "2026-01-01_00-00-00"
    SweepPlan(("-m", "fault=none,link_rate", "workload=moe,dp"), str(root), 1, cells, slots).write(folder)
    for slot in slots[:-1]:
        cell = cells[slot.cell]
        length = 40 if cell.factors["fault"] == "link_rate" else 20
        made = make_run(root / "made", name=cell.label, iteration_ms=(30, *[length + slot.repeat] * 11))
        made.path.rename(folder / f"{slot.number}-{cell.label}")
        judge_and_store(RunDir.open(folder / f"{slot.number}-{cell.label}"), runs_root=root, baseline="none")
    return folder


def large(root: Path, ranks: int = 64, iterations: int = 6, samples: int = 300) -> RunDir:
    """All-to-all between all ranks, every iteration, over 192 ports: what the size of a report is judged by."""
    hosts = tuple(f"h{n}" for n in range(ranks))
    ports = tuple(name for n in range(ranks * 3 // 2) for name in (f"h{n}/leaf{n // 8}", f"leaf{n // 8}/h{n}"))
    run = RunDir.create(
        root, "healthy-moe64", argv=("genie",), reproduce="genie workload=moe", seed=1, hashes={"workload": "aaaa"},
        config_yaml="workload:\n  kind: moe\n",
    )  # fmt: skip
    run.write_plan(
        plan(
            name="healthy-moe64",
            iterations=iterations,
            placement=hosts,
            ports=ports,
            port_rates_bps=(10**8,) * len(ports),
        )
    )
    ops = (
        OperatorRecord(10, "forward", "compute", "", "", 0, 0, -1),
        OperatorRecord(11, "dispatch", "collective", "all_to_all", "", 64_000, 1, 0),
    )
    everyone = tuple(range(ranks))
    run.write_operators(JobOperators(tuple(RankOperators(rank, ("a", "b"), ops) for rank in everyone), {"": everyone}))
    run.mark_running()
    length, rng = 20 * MS, np.random.default_rng(1)
    others = {rank: np.array([peer for peer in everyone if peer != rank], dtype=np.uint32) for rank in everyone}
    took = rng.integers(MS, 9 * MS, size=(iterations, ranks, ranks))
    for rank in everyone:
        writer = EventWriter(rank, ranks)
        for i in range(iterations):
            writer.op(i, 0, i * length, i * length + length // 2)
            writer.op(i, 1, i * length + length // 2, (i + 1) * length, call=0)
            writer.iteration(i, i * length, (i + 1) * length)
        writer.write(run.event_path(rank))
        _append(run.event_path(rank), [
            _messages(kind, i, rank, others[rank], took[i], T + i * length + length // 2)
            for i in range(iterations) for kind in (2, 3)
        ])  # fmt: skip
    end = iterations * length
    rows = np.zeros(samples * len(ports), dtype=PORT_RECORD)
    rows["mono_ns"] = np.repeat(T + np.arange(samples) * end // samples, len(ports))
    rows["port"] = np.tile(np.arange(len(ports)), samples)
    rows["backlog_bytes"] = rng.integers(0, 100_000, len(rows))
    rows["tx_bytes"] = np.repeat(np.arange(samples) * 1000, len(ports)) * (1 + rows["port"] % 7)
    rows["ce_marked"] = np.repeat(np.arange(samples), len(ports))
    header = bytearray(4096)
    header[:20] = b"GNIESMP1" + np.array([1, 64, len(ports)], "<u4").tobytes()
    header[64:88] = np.array([len(rows), 0, MS], "<u8").tobytes()
    run.ports_path.write_bytes(bytes(header) + rows.tobytes())
    counters = {port: {"tx_bytes": 0, "drops": 0, "ce_marked": 0} for port in ports}
    after = {port: {"tx_bytes": 300_000 + 1000 * n, "drops": n % 3, "ce_marked": n} for n, port in enumerate(ports)}
    run.write_counters(counters, after)
    run.write_host(HostRecord(2, ((T, 0.9), (T + end, 0.4))))
    run.mark_ended("finished")
    judge_and_store(run, runs_root=root)
    return run


def _messages(kind: int, iteration: int, rank: int, peers: np.ndarray, took: np.ndarray, at: int) -> np.ndarray:
    records = np.zeros(len(peers), dtype=EVENT)
    records["type"], records["iteration"], records["op"], records["peer"] = kind, iteration, NONE, peers
    records["bytes"], records["call_id"] = 1000, 0
    done = at + (took[rank, peers] if kind == 2 else took[peers, rank])
    records["t0"], records["t1"], records["t2"] = at, at, at + 1000 if kind == 2 else done
    return records


def _append(path: Path, parts: list[np.ndarray]) -> None:
    """Records after those that the writer made; their number and order are set to go on."""
    raw = bytearray(path.read_bytes())
    before = (len(raw) - 4096) // EVENT.itemsize
    more = np.concatenate(parts)
    more["seq"] = before + np.arange(len(more))
    for offset in (24, 64):
        raw[offset : offset + 8] = np.array([before + len(more)], "<u8").tobytes()
    path.write_bytes(bytes(raw) + more.tobytes())
