"""A/A: runs of the same healthy job, as the embedded fabric gave them, are called ok or inconclusive.

`tests/data/same_runs.json` has the iteration times of real runs, one after the other on an idle machine of two cores,
of each workload as often as is said there.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rundir_maker import make_run

from genie.results.compare import judge, judge_and_store
from genie.results.metrics import measure
from genie.results.rundir import RunDir

DATA = json.loads((Path(__file__).parents[1] / "data" / "same_runs.json").read_text())
FINE = ("ok", "inconclusive")
LEAST_RATIO = 0.95
PAIRS = 100


def written(root: Path, times: dict[str, Any]) -> RunDir:
    """A run directory whose iterations took these times."""
    return make_run(root, iteration_ms=tuple(ns / 1e6 for ns in (*times["warmup_ns"], *times["each_ns"])))


@pytest.mark.parametrize("workload", sorted(DATA["runs"]))
def test_of_two_runs_of_the_same_neither_is_slower(workload: str, tmp_path: Path) -> None:
    runs = DATA["runs"][workload]
    rng = np.random.default_rng(11)
    said: Counter[str] = Counter()
    for number in range(PAIRS):
        first, second = (runs[int(place)] for place in rng.choice(len(runs), size=2, replace=False))
        root = tmp_path / str(number)
        judge_and_store(written(root, first), runs_root=root)
        run = written(root, second)
        said[judge(run, measure(run), runs_root=root).verdict] += 1
    assert sum(said[word] for word in FINE) >= LEAST_RATIO * PAIRS, said
    assert said["ok"] > PAIRS / 2, said  # never to commit itself would pass too


@pytest.mark.parametrize("workload", sorted(DATA["runs"]))
def test_of_a_series_of_the_same_no_run_is_slower_than_those_before(workload: str, tmp_path: Path) -> None:
    said: Counter[str] = Counter()
    rng = np.random.default_rng(13)
    runs = DATA["runs"][workload]
    for number in range(5):
        root = tmp_path / str(number)
        order = range(len(runs)) if number == 0 else rng.permutation(len(runs))
        judge_and_store(written(root, runs[order[0]]), runs_root=root)
        said.update(judge_and_store(written(root, runs[place]), runs_root=root).verdict for place in order[1:])
    assert sum(said[word] for word in FINE) >= LEAST_RATIO * said.total(), said


@pytest.mark.parametrize("workload", sorted(DATA["runs"]))
def test_the_same_but_a_quarter_slower_is_told(workload: str, tmp_path: Path) -> None:
    first, second = DATA["runs"][workload][:2]
    judge_and_store(written(tmp_path, first), runs_root=tmp_path)
    slow = {key: [1.25 * ns for ns in second[key]] for key in ("warmup_ns", "each_ns")}
    run = written(tmp_path, slow)
    assert judge(run, measure(run), runs_root=tmp_path).verdict == "degraded"
