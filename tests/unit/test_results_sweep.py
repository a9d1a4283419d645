"""What a sweep's directories say together, where some of them are damaged or were compared late."""

from __future__ import annotations

import pytest
from rundir_maker import IN_EFFECT, make_run

from genie.errors import GenieError
from genie.results.compare import judge, judge_and_store
from genie.results.metrics import measure
from genie.results.sweep import split_damaged, verdict_of

FLAT = (30, *[20] * 20)


def judged(root, **changes):
    run = make_run(root, **{"iteration_ms": FLAT, **changes})
    judge_and_store(run, runs_root=root)
    return run


def expecting(run, word):
    (run.path / "config.yaml").write_text(f"{run.config_yaml}\nexpect: {word}\n")
    return run


def test_the_verdict_is_the_one_that_the_run_has_now(tmp_path):
    first = expecting(judged(tmp_path), "ok")
    assert verdict_of(first.path) == ("measured", "ok")
    judged(tmp_path)
    judge_and_store(first, runs_root=tmp_path)
    assert verdict_of(first.path) == ("ok", "ok")


@pytest.mark.parametrize("name", ["manifest.json", "plan.json", "config.yaml", "results.json"])
def test_a_damaged_run_is_named_and_hides_no_other(tmp_path, name):
    sound, damaged = judged(tmp_path), judged(tmp_path)
    (damaged.path / name).write_text('{"cut": "sho')
    kept, problems = split_damaged({0: damaged.path, 1: sound.path})
    assert kept == {1: sound.path}
    (problem,) = problems
    assert problem.startswith(f"{damaged.path.name}: ")
    assert name in problem


def test_a_damaged_run_is_no_baseline_unless_it_was_named(tmp_path):
    sound, damaged = judged(tmp_path), judged(tmp_path)
    (damaged.path / "results.json").write_text('{"cut": "sho')
    run = make_run(tmp_path, faults=(IN_EFFECT,), iteration_ms=FLAT)
    found = judge(run, measure(run), runs_root=tmp_path)
    assert found.comparison is not None
    assert found.comparison.baseline == sound.path.name
    with pytest.raises(GenieError, match=r"results\.json cannot be read"):
        judge(run, measure(run), runs_root=tmp_path, baseline=str(damaged.path))
