"""Blame sums to the iteration whatever was recorded: runs of the engine itself, and runs that no engine would write."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from why_maker import Job, call, compute, leaf_spine

from genie import _native, workload
from genie.collectives.config import CollectivesConfig
from genie.collectives.lower import lower
from genie.engine.encode import Endpoint, EngineSettings, encode
from genie.results.metrics import measure
from genie.results.records import PlanRecord, job_operators
from genie.results.rundir import RunDir
from genie.why.difference import compare
from genie.why.explain import explain
from genie.why.records import Why
from genie.why.store import explain_and_store, load_why
from genie.workload.check import check

LOOPBACK = 0x7F000001


def parts(why: Why):
    return {"causes": why.causes, "operators": why.operators, "comms": why.comms, "links": why.links,
            "ranks": why.ranks}  # fmt: skip


def check_sums(why: Why) -> None:
    for blame in why.iterations:
        assert sum(blame.causes.values()) == pytest.approx(blame.duration_ns, rel=1e-9)
    mean = np.mean([blame.duration_ns for blame in why.iterations])
    assert why.iteration_ns == pytest.approx(mean, rel=1e-9)
    for kind, shares in parts(why).items():
        assert sum(share.ns for share in shares) == pytest.approx(why.iteration_ns, rel=1e-9), kind
        assert sum(share.ratio for share in shares) == pytest.approx(1, rel=1e-9), kind
        assert all(share.ns >= 0 for share in shares), kind
    middle = next(blame for blame in why.iterations if blame.iteration == why.path_iteration)
    assert why.path[0].start_ns == pytest.approx(middle.start_ns, abs=1)
    assert why.path[-1].end_ns == pytest.approx(middle.start_ns + middle.duration_ns, abs=1)
    for left, right in zip(why.path[:-1], why.path[1:], strict=True):
        assert left.end_ns == pytest.approx(right.start_ns, abs=1), "the path has no gap"


def real_run(path: Path, mapping: dict, *, window: int = 0, record: bool = True) -> RunDir:
    """The engine's own ranks over loopback, in this process."""
    checked = check(workload.load(mapping))
    programs = lower(checked, CollectivesConfig(chunk_bytes=16_384, window_messages=window))
    run = RunDir.create(path.parent, path.name, argv=(), reproduce="", seed=1, hashes={}, config_yaml="seed: 1\n",
                        path=path)  # fmt: skip
    given = EngineSettings(run_id=bytes(16), iterations=4, window_messages=window, record_messages=record,
                           timeout_ns=20 * 10**9)  # fmt: skip
    blobs = [encode(program, given, [Endpoint(LOOPBACK)] * len(programs)) for program in programs]
    plan = PlanRecord("run", "w", "t", "tcp", "loopback", 4, tuple(f"h{p.rank}" for p in programs), warmup=1,
                      shaped=False, collective={"window_messages": window})  # fmt: skip
    run.write_plan(plan)
    run.write_operators(job_operators(programs, checked.trace))
    run.mark_running()
    results = _native.run_local(blobs, [str(run.event_path(program.rank)) for program in programs], bytes(32))
    assert [result["status"] for result in results] == [0] * len(programs), results
    run.mark_ended("finished")
    return run


TINY = {"device": "h100", "iterations": 4, "ranks": 4, "scale_down": 100_000.0}
WORKLOADS = [
    pytest.param({"name": "dp", **TINY, "layers": 2, "hidden": 64, "ffn": 128}, {}, id="data parallel"),
    pytest.param({"name": "moe", **TINY, "layers": 1, "hidden": 64, "ffn": 64, "experts": 4}, {}, id="experts"),
    pytest.param({"name": "tp_pp", **TINY, "layers": 2, "hidden": 64, "ffn": 64, "sequence": 64}, {}, id="pipeline"),
    pytest.param({"name": "dp", **TINY, "layers": 2, "hidden": 64, "ffn": 128}, {"window": 2}, id="with credits"),
    pytest.param({"name": "dp", **TINY, "layers": 2, "hidden": 64, "ffn": 128}, {"record": False}, id="no messages"),
]


@pytest.mark.parametrize(("mapping", "how"), WORKLOADS)
def test_blame_of_the_engines_own_runs_sums_to_their_iterations(tmp_path: Path, mapping, how) -> None:
    run = real_run(tmp_path / "run", mapping, **how)
    why = explain(run)
    check_sums(why)
    measured = measure(run).iteration
    assert measured is not None
    assert [blame.duration_ns for blame in why.iterations] == pytest.approx(measured.each_ns, rel=1e-9)
    host = {share.name: share.ratio for share in why.causes}.get("host", 0.0)
    assert host < 0.01, "an engine's records tell what each thing waited for, to the nanosecond"


def test_a_difference_sums_to_the_slowdown_and_a_file_holds_all(tmp_path: Path) -> None:
    (name,) = (param.values[0] for param in WORKLOADS[:1])
    runs = [real_run(tmp_path / label, name) for label in ("a", "b")]
    before, after = (explain_and_store(run) for run in runs)
    assert before is not None
    assert after is not None
    assert load_why(runs[0]) == before
    found = compare(before, after, before_name="a", after_name="b")
    for kind in ("causes", "operators", "comms", "pairs", "links", "ranks"):
        rows = getattr(found, kind)
        assert sum(row.delta_ns for row in rows) == pytest.approx(after.iteration_ns - before.iteration_ns, abs=5), kind
    json.dumps(str(found))


times = st.floats(0, 50, allow_nan=False, width=32)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_blame_sums_to_the_iteration_whatever_the_records_say(data: st.DataObject) -> None:
    """Times at random: clocks that disagree, messages that arrive before they leave, operators out of order."""
    ranks = data.draw(st.integers(1, 4))
    ops = [[compute(planned_ms=data.draw(times)), call("c", 0), compute("d", lane=-1)] for _ in range(ranks)]
    window = data.draw(st.sampled_from([0, 1, 3]))
    job: Job = leaf_spine(ranks, leaves=1, spines=1, operators=ops, window_messages=window)
    for iteration in (0, 1):
        for rank in range(ranks):
            for op in range(3):
                job.op(rank, op, *sorted(data.draw(st.tuples(times, times, times))), iteration=iteration)
            for peer in range(ranks):
                for seq in range(data.draw(st.integers(0, 3)) if peer != rank else 0):
                    job.message(rank, peer, 0, data.draw(st.tuples(times, times, times, times)), 3000 * seq, seq=seq,
                                iteration=iteration)  # fmt: skip
    for rank in range(ranks):
        ends = sorted(data.draw(st.tuples(times, times)))
        job.iteration(rank, 0, ends[0] + 1)
        job.iteration(rank, ends[0] + 1, ends[1] + 2, 1)
    with TemporaryDirectory() as folder:
        run = job.write(Path(folder) / "run")
        why = explain(run)
    for blame in why.iterations:
        assert sum(blame.causes.values()) == pytest.approx(blame.duration_ns, rel=1e-9, abs=1e-6)
        assert all(ns > 0 for ns in blame.causes.values())
    for kind, shares in parts(why).items():
        assert sum(share.ns for share in shares) == pytest.approx(why.iteration_ns, rel=1e-9, abs=1e-6), kind


@pytest.mark.timeout(30)
def test_records_that_lead_in_a_circle_end_the_path(tmp_path: Path) -> None:
    """Each of two messages was allowed only when the other had been handed over."""
    job: Job = leaf_spine(3, leaves=1, spines=1, operators=[[call("c", 0)]] * 3)
    for rank in range(3):
        job.op(rank, 0, 0, 0, 40)
        job.iteration(rank, 0, 41)
    job.message(0, 1, 0, (19, 19, 15, 39), 3000)
    job.message(0, 2, 0, (16, 16, 18, 39), 3000)
    (blame,) = explain(job.write(tmp_path / "run")).iterations
    assert sum(blame.causes.values()) == pytest.approx(blame.duration_ns)
