"""Baseline, fault, baseline: what three arms say together, and the report of it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rundir_maker import IN_EFFECT, MS, T, make_run

from genie import track
from genie.aba import arm_plans
from genie.argv import parse
from genie.cli import main
from genie.compose import compose
from genie.errors import ConfigError, FaultRefused, GenieError
from genie.plan import make_plan
from genie.report.aba import aba_markdown, render_aba
from genie.results import statistics
from genie.results.aba import AbaDir
from genie.results.compare import judge_and_store
from genie.schema import MlflowConfig, parse_config, to_mapping

GOLDEN = Path(__file__).parent.parent / "golden" / "report"
FLAT = (30, *[20, 20.2, 19.9] * 4)
SLOW = (60, *[40, 41, 40.5] * 4)
HEALTHY, FAULTY = {"iteration_ms": FLAT}, {"iteration_ms": SLOW, "faults": (IN_EFFECT,)}


def scaled(factor):
    return {"iteration_ms": tuple(each * factor for each in FLAT)}


def make_aba(root, *, a1=HEALTHY, b=FAULTY, a2=HEALTHY, faults=("link_rate_10pct",)) -> AbaDir:
    """The folder of three arms, each measured; None for one that was never begun."""
    folder = AbaDir.create(
        root, "link_rate_10pct-moe", argv=("genie",), reproduce="genie fault=link_rate_10pct protocol=aba", seed=1,
        faults=faults, path=root / "aba",
    )  # fmt: skip
    baseline = "none"
    for name, options in (("a1", a1), ("b", b), ("a2", a2)):
        if options is None:
            continue
        made = make_run(folder.path, name=f"{name}-moe", parent="aba", **options)
        run = replace_path(made, folder.path / name)
        judge_and_store(run, runs_root=root, baseline=baseline)
        if name == "a1" and run.manifest.verdict == "measured":
            baseline = str(run.path)
    return folder


def replace_path(run, path):
    run.path.rename(path)
    return type(run)(path)


def test_a_job_that_waits_for_no_network_has_no_such_ratio(tmp_path):
    """0 over 0 is no number, and NaN is no JSON."""
    folder = make_aba(tmp_path)
    for run in folder.arms().values():
        content = json.loads((run.path / "results.json").read_text())
        content["metrics"]["exposed_ns"] = [0.0] * len(content["metrics"]["exposed_ns"])
        (run.path / "results.json").write_text(json.dumps(content))
    assert folder.finish("finished").exposed is None
    json.loads((folder.path / "aba.json").read_text(), parse_constant=pytest.fail)


# -- what the arms say together ------------------------------------------------------------------------------

NO_EFFECT = replace(IN_EFFECT, state="not_in_effect", checks=())


@pytest.mark.parametrize(
    ("arms", "verdict", "recovered", "said"),
    [
        ({}, "degraded", "yes", "slower with link_rate_10pct: median 2.02x"),
        ({"b": HEALTHY | {"faults": (IN_EFFECT,)}}, "ok", "yes", "as fast with link_rate_10pct as without"),
        ({"b": scaled(0.5) | {"faults": (IN_EFFECT,)}}, "improved", "yes", "faster with link_rate_10pct"),
        ({"a2": scaled(2)}, "inconclusive", "no", "the baselines differ, so they do not tell what link_rate"),
        ({"a1": scaled(1.3)}, "degraded", "yes", "slower with link_rate_10pct, whichever baseline is taken"),
        ({"b": FAULTY | {"busy": 0.97}}, "invalid", "yes", "arm b (with the fault): emulator saturated"),
        ({"a2": HEALTHY | {"busy": 0.97}}, "invalid", "yes", "arm a2 (baseline after): emulator saturated"),
        ({"b": {"iteration_ms": SLOW, "faults": (NO_EFFECT,)}}, "invalid", "yes", "arm b (with the fault): fault link"),
        ({"b": FAULTY | {"status": "aborted"}, "a2": None}, "invalid", "", "arm b (with the fault): the run was ab"),
        ({"a2": None}, "invalid", "", "arm a2 (baseline after): it was never run"),
        (dict.fromkeys(("a1", "b", "a2")), "invalid", "", "arm a1 (baseline before): it was never run"),
        (
            {"a1": {"iteration_ms": (30, 20)}, "b": {"iteration_ms": (60, 40), "faults": (IN_EFFECT,)},
             "a2": {"iteration_ms": (30, 20)}},
            "inconclusive", "inconclusive", "one iteration tells nothing",
        ),
    ],
    ids=["slower", "no effect", "faster", "not recovered", "faster baseline after", "b saturated", "a2 saturated",
         "fault not in effect", "b aborted", "no a2", "nothing", "one iteration"],
)  # fmt: skip
def test_verdict_and_recovery(tmp_path, arms, verdict, recovered, said):
    result = make_aba(tmp_path, **arms).finish("finished")
    assert (result.verdict, result.recovered) == (verdict, recovered), result.why
    assert said in result.why


def test_the_slowdown_is_against_both_baselines(tmp_path):
    result = make_aba(tmp_path, a2=scaled(1.04)).finish("finished")
    assert result.over_a1.ratio.value == pytest.approx(40.5 / 20)
    assert result.over_a2.ratio.value == pytest.approx(40.5 / 20.8)
    assert result.over_a2.ratio.value < result.median.ratio.value < result.over_a1.ratio.value
    assert result.median.ratio.low > 1.5
    assert result.exposed.value == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(
    ("factor", "said"),
    [(1.0, ""), (1.04, ""), (1.2, "a2 took 20% longer than a1"), (0.8, "a2 took 20% less than a1")],
    ids=["none", "within tolerance", "slower", "faster"],
)
def test_baselines_that_differ_are_warned_about(tmp_path, factor, said):
    drift = make_aba(tmp_path, a2=scaled(factor)).finish("finished").drift
    assert said in drift
    assert bool(drift) == bool(said)


def test_one_missing_baseline_leaves_the_other_to_compare_with(tmp_path):
    result = make_aba(tmp_path, a2=None).finish("aborted", "the disk was full")
    assert result.median.ratio.value == pytest.approx(40.5 / 20)
    assert (result.recovery, result.over_a2) == (None, None)


def test_a_fault_with_a_window_is_compared_in_and_outside_it(tmp_path):
    slow_in_the_middle = (30, *[20, 20.2, 19.9, 20], *[60] * 4, *[20, 20.2, 19.9, 20])
    window = (T + 111 * MS, T + 349 * MS)  # within the first and the last of the slow iterations
    fault = replace(IN_EFFECT, start_mono_ns=window[0], end_mono_ns=window[1], windows=(window,))
    folder = make_aba(tmp_path, b={"iteration_ms": slow_in_the_middle, "faults": (fault,)})
    result = folder.finish("finished")
    (windowed,) = result.windowed
    assert (windowed.inside.value, windowed.outside.value) == (pytest.approx(3), pytest.approx(1))
    text = render_aba(folder, width=80)
    assert "median in the fault's windows, b / (a1 + a2)" in text
    assert max(len(line) for line in text.splitlines() if "b / (" in line) <= 80


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(1, 1e9), min_size=1, max_size=20),
    st.lists(st.floats(1, 1e9), min_size=1, max_size=20),
    st.lists(st.floats(1, 1e9), min_size=1, max_size=20),
)
def test_a_pooled_ratio_is_that_of_all_values_together(over, one, two):
    found = statistics.pooled_ratio(over, (one, two), statistics.rows_median, seed=1)
    assert found.value == pytest.approx(np.median(over) / np.median([*one, *two]))
    assert found.low <= found.high


def test_a_pool_of_one_is_a_plain_ratio():
    over, under = [4.0, 5.0, 6.0], [2.0, 2.5, 3.0]
    pooled = statistics.pooled_ratio(over, (under, []), statistics.rows_median, seed=7)
    assert pooled == statistics.ratio(over, under, statistics.rows_median, seed=7)
    with pytest.raises(ValueError, match="no values"):
        statistics.pooled_ratio(over, ([], []), statistics.rows_median, seed=7)


# -- the folder ----------------------------------------------------------------------------------------------


def test_the_folder_is_named_after_the_experiment_and_never_reused(tmp_path):
    def make(path=None):
        return AbaDir.create(tmp_path, "a b", argv=(), reproduce="", seed=1, faults=("x",), path=path)

    first = make()
    assert first.path.name.split("-", 2)[2].startswith("aba-a_b-")
    with pytest.raises(ConfigError, match=r"run_dir: .* is not an empty directory"):
        make(first.path)


def test_the_file_tells_its_format_first(tmp_path):
    folder = make_aba(tmp_path)
    folder.finish("finished")
    content = json.loads((folder.path / "aba.json").read_text())
    assert list(content)[:2] == ["format", "version"]
    assert content["result"]["verdict"] == "degraded"
    assert AbaDir.open(folder.path).record.result == folder.record.result


def test_another_version_is_refused(tmp_path):
    folder = make_aba(tmp_path)
    folder.write(replace(folder.record, version=2))
    with pytest.raises(GenieError, match="version 2; this GENIE reads"):
        AbaDir.open(folder.path)


# -- report --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["aba_degraded", "aba_not_recovered", "aba_aborted"])
def test_golden(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    if name == "aba_aborted":
        folder = make_aba(tmp_path, b=FAULTY | {"status": "aborted"}, a2=None)
        folder.finish("aborted", "rank 1: stall: operator 11 'grads' waited 30 s for rank 0")
    else:
        folder = make_aba(tmp_path, **({"a2": scaled(1.9)} if name == "aba_not_recovered" else {}))
        folder.finish("finished")
    folder.set_tracking({"look": "mlflow ui --backend-store-uri sqlite:////runs/genie.db"})
    text = render_aba(folder, width=80)
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("GENIE_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
    assert max(len(line) for line in text.splitlines() if not line.startswith(("mlflow", "again"))) <= 80


def test_the_report_of_a_killed_one_is_made_from_its_arms(tmp_path, capsys):
    folder = make_aba(tmp_path, a2=None)
    (folder.path / "b" / "results.json").unlink()
    assert main(["report", str(folder.path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("INVALID  arm a2 (baseline after): it was never run")
    assert "median, b / a1" in shown
    assert folder.record.status == "running"


def test_there_is_no_report_of_one_that_still_runs(tmp_path, capsys):
    folder = make_aba(tmp_path, a2=HEALTHY)
    manifest = folder.path / "a2" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"finished"', '"running"'))
    assert main(["report", str(folder.path)]) == 4
    assert "is running: there is no report before it ends" in capsys.readouterr().err


def test_a_table_for_parsers_is_of_one_arm(tmp_path, capsys):
    folder = make_aba(tmp_path)
    assert main(["report", str(folder.path), "--nccl-table"]) == 2
    assert "aba/b --nccl-table" in capsys.readouterr().err


# -- MLflow --------------------------------------------------------------------------------------------------


def test_the_arms_are_nested_below_one_run_with_the_verdict(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = make_aba(tmp_path)
    result = folder.finish("finished")
    logged = track.log_aba(folder, MlflowConfig(), out=tmp_path)
    assert logged.problem == ""
    client = track._client(track.tracking_uri(MlflowConfig(), tmp_path))
    parent = client.get_run(logged.run_id)
    assert parent.data.tags["genie.verdict"] == "degraded"
    assert parent.data.tags["genie.recovered"] == "yes"
    assert parent.data.tags["mlflow.note.content"] == aba_markdown(result)
    assert parent.data.metrics["slowdown_median_ratio"] == pytest.approx(2.025)
    assert parent.data.metrics["recovery_median_ratio"] == 1
    assert {f.path for f in client.list_artifacts(logged.run_id)} == {"aba.json", "aba.md"}
    below = client.search_runs([logged.experiment_id], f"tags.`mlflow.parentRunId` = '{logged.run_id}'")
    assert {run.info.run_name for run in below} == {"a1-moe", "b-moe", "a2-moe"}
    assert track.log_aba(folder, MlflowConfig(), out=tmp_path).run_id == logged.run_id
    assert folder.record.tracking["run_id"] == logged.run_id


# -- what may be asked for -----------------------------------------------------------------------------------


def config_of(*overrides):
    (composed,) = compose(parse(["experiment=quick", "fabric=loopback", *overrides]))
    return parse_config(composed.mapping, composed.choices)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["protocol=aba"], "protocol: aba compares a fault with the runs before and after it, and there is none"),
        (["protocol=aba", "fault=none", "baseline=none"], "baseline: protocol=aba brings its own baselines"),
        (["fault=[none,link_rate]"], "fault.none: goes alone"),
        (["fault=none", "fault.none.targets=all"], "fault.none.targets: there is no such key"),
        (["safety.stop.stall=30s"], "safety.stop.stall: must be below timeout"),
    ],
    ids=["without a fault", "with a baseline", "none and a fault", "a target of none", "a stall after the timeout"],
)
def test_what_is_refused(overrides, said):
    with pytest.raises(ConfigError) as caught:
        config_of(*overrides)
    assert said in caught.value.message


def test_no_fault_can_be_asked_for_by_name():
    config = config_of("fault=none", "protocol=aba")
    assert list(config.fault) == ["none"]
    assert parse_config(to_mapping(config)).fault == config.fault
    plan = make_plan(config)
    assert plan.faults == ()
    assert "protocol aba: baseline, the faults below, baseline" in plan.render()


def test_arms_differ_in_nothing_but_the_faults(tmp_path):
    plan = replace(make_plan(config_of("fault=none", "protocol=aba", "expect=ok")), faults=("a fault",))
    arms = dict(arm_plans(plan, tmp_path))
    assert [arms[name].faults for name in ("a1", "b", "a2")] == [(), ("a fault",), ()]
    assert [list(arms[name].config.fault) for name in ("a1", "b", "a2")] == [[], ["none"], []]
    for name, arm in arms.items():
        assert arm.config.run_dir == str(tmp_path / name)
        assert (arm.config.protocol, arm.config.expect) == ("single", None)
        assert (arm.programs, arm.host_of_rank, arm.settings) == (plan.programs, plan.host_of_rank, plan.settings)


def test_the_kill_switch_refuses_a_run_but_not_its_plan(tmp_path):
    keys = [f"safety.kill_switch={tmp_path}/KILL"]
    (tmp_path / "KILL").touch()
    with pytest.raises(FaultRefused, match="the kill switch"):
        make_plan(config_of(*keys))
    make_plan(config_of(*keys, "dry_run=true"))
