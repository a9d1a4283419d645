"""Faults of hosts in whole runs: what they do to compute, to messages, to ports and to iterations."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from genie.engine.events import read_events
from genie.fabric.probe import probe
from genie.results.ports import read_ports

Ints = npt.NDArray[np.int64]
OPERATOR, RECEIVED, ITERATION = 1, 3, 4
SMALL = (
    "workload=dp", "workload.ranks=3", "workload.layers=2", "topology=single_switch", "topology.host_rate=40Mbps",
    "tracking.mlflow.enabled=false",
)  # fmt: skip
pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(probe().unfit), reason=f"no namespaces here: {probe().unfit}"),
]


@dataclass(frozen=True)
class Run:
    """A run directory as these tests look at it."""

    path: Path

    def json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text())

    @cached_property
    def fault(self) -> dict[str, Any]:
        return self.json("faults.json")["faults"][0]

    @cached_property
    def windows(self) -> list[tuple[int, int]]:
        return [tuple(window) for window in self.fault["windows"]]

    def events(self, rank: int, kind: int) -> npt.NDArray[Any]:
        records = read_events(self.path / "events" / f"rank-{rank}.evt").records
        return records[records["type"] == kind]

    def within(self, times: Ints) -> npt.NDArray[np.bool_]:
        return np.any([(times >= start) & (times < end) for start, end in self.windows], axis=0)

    @cached_property
    def iterations(self) -> tuple[Ints, Ints]:
        """Start and end of each, over all ranks; the first, to warm up, left out."""
        ends = np.max([self.events(rank, ITERATION)["t2_ns"] for rank in range(3)], axis=0)
        return ends[:-1], ends[1:]


def genie(tmp_path: Path, *words: str) -> Run:
    argv = [sys.executable, "-m", "genie", *SMALL, *words, f"out={tmp_path}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert "fault" in done.stdout, done.stdout + done.stderr
    found = [path.parent for path in tmp_path.rglob("faults.json")]
    assert len(found) == 1, done.stdout + done.stderr
    return Run(found[0])


def checks(run: Run) -> str:
    return "\n".join(f"{check['what']}: {check['found']}" for check in run.fault["checks"] if not check["ok"])


def test_cpu_throttle_slows_the_compute_of_its_host_and_not_the_network(tmp_path: Path) -> None:
    run = genie(
        tmp_path, "topology.hosts=3", "workload.iterations=11", "+fault=cpu_throttle",
        "fault.cpu_throttle.targets=[h1]",
        "fault.cpu_throttle.parameters.speed=40%", "fault.cpu_throttle.window={at_iteration: 4, for_iterations: 4}",
    )  # fmt: skip
    assert run.fault["state"] == "in_effect", checks(run)
    assert run.fault["reverted"]
    for rank, factor in ((0, 1.0), (1, 2.5), (2, 1.0)):
        ops = run.events(rank, OPERATOR)
        ops = ops[(ops["call_id"] == 0xFFFFFFFF) & (ops["t2_ns"] - ops["t1_ns"] > 200_000)]
        took, inside = ops["t2_ns"] - ops["t1_ns"], run.within(ops["t1_ns"])
        ratios = [
            np.median(took[inside & (ops["op"] == op)]) / np.median(took[~inside & (ops["op"] == op)])
            for op in np.unique(ops["op"])
        ]
        assert len(ratios) >= 3
        assert np.median(ratios) == pytest.approx(factor, rel=0.05)
    for rank in range(3):
        messages = run.events(rank, RECEIVED)
        took, inside = messages["t2_ns"] - messages["t0_ns"], run.within(messages["t0_ns"])
        assert np.median(took[inside]) == pytest.approx(np.median(took[~inside]), rel=0.25)


def test_incast_cross_traffic_is_on_the_victims_port_and_slows_what_meets_it(tmp_path: Path) -> None:
    run = genie(
        tmp_path, "topology.hosts=5", "workload.iterations=11", "+fault=incast_cross_traffic",
        "fault.incast_cross_traffic.targets=[h3,h4]", "fault.incast_cross_traffic.count=2",
        "fault.incast_cross_traffic.parameters.rate=30%",
        "fault.incast_cross_traffic.window={at: '', period: '', duty: null, at_iteration: 4, for_iterations: 4}",
    )  # fmt: skip
    assert run.fault["state"] == "in_effect", checks(run)
    assert run.fault["reverted"]
    starts, ends = run.iterations
    (opened, closed) = run.windows[0]
    inside, outside = (starts >= opened) & (ends <= closed), (ends < opened) | (starts > closed)
    assert inside.sum() >= 2
    assert outside.sum() >= 4
    took = ends - starts
    assert np.median(took[inside]) > 1.5 * np.median(took[outside])
    # What the victim's port sent a second, less what the job gave it: the job's bytes an iteration are the same.
    port = run.json("plan.json")["ports"].index("switch0/h0")
    samples = read_ports(run.path / "ports.smp").of(port)
    sent = np.interp(np.stack([starts, ends]), samples["mono_ns"], samples["tx_bytes"])
    grown = sent[1] - sent[0]
    own = np.median(grown[outside])
    above = (grown[inside] - own) * 8e9 / took[inside]
    assert np.median(above) == pytest.approx(2 * 0.3 * 40e6, rel=0.15)
    facts = run.fault["facts"]
    assert 0 < facts["h0.arrived"] <= facts["h3.sent"] + facts["h4.sent"]
