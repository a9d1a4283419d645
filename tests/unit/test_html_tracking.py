"""The page and its charts in MLflow, beside the run's other artifacts; nothing of them where pages are switched off."""

from __future__ import annotations

from xml.etree import ElementTree

import bisect_folders
import pytest
from html_runs import compared, swept, three_arms

from genie import track
from genie.report.html import charts, write_report
from genie.results.sweep import responses, runs_below
from genie.schema import MlflowConfig
from genie.sweep.cells import finished, read_plan
from genie.sweep.effects import effects


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One folder of MLflow for all: a database takes a second to make."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture
def config(store):
    return MlflowConfig(uri=f"sqlite:///{store / 'genie.db'}")


def artifacts(config, logged, path=None):
    assert logged.problem == ""
    found = track._client(config.uri).list_artifacts(logged.run_id, path)
    return {artifact.path for artifact in found}


def test_a_run_has_its_page_and_each_chart(tmp_path, config, store):
    run = compared(tmp_path)
    write_report(run)
    logged = track.log_run(run, config, out=store)
    assert {"report.html", "report.txt", "charts"} <= artifacts(config, logged)
    shown = artifacts(config, logged, "charts")
    assert shown == {f"charts/{name}.svg" for name in charts(run)}
    assert {"charts/iterations.svg", "charts/slowdowns.svg", "charts/messages.svg", "charts/links.svg"} <= shown
    for name in shown:
        ElementTree.parse(store / "mlflow-artifacts" / logged.run_id / "artifacts" / name)


def test_three_arms_have_theirs_on_the_run_above_them(tmp_path, config, store):
    folder = three_arms(tmp_path)
    write_report(folder)
    logged = track.log_aba(folder, config, out=store)
    assert {"report.html", "aba.json", "charts"} <= artifacts(config, logged)
    assert "charts/arms-iterations.svg" in artifacts(config, logged, "charts")


def test_a_sweep_has_its_page_on_the_run_above_its_runs(tmp_path, config, store):
    folder = swept(tmp_path)
    page = write_report(folder)
    logged = track.log_sweep((), config, out=store, name=folder.name, page=page)
    assert artifacts(config, logged) == {"report.html", "sweep.md", "charts"}
    assert artifacts(config, logged, "charts") == {"charts/slowdowns.svg", "charts/two-keys.svg"}


def test_what_was_swept_is_on_every_run_and_what_it_does_on_the_run_above(tmp_path, config, store):
    folder = swept(tmp_path)
    plan = read_plan(folder)
    done = finished(folder, plan.slots)
    runs = [run for path in done.values() for run in runs_below(path)]
    cells = {slot.number: plan.cell_of(slot) for slot in plan.slots}
    factors = {path.absolute(): {**cells[number].factors, "topology.hosts": "8"} for number, path in done.items()}
    found = effects(plan, responses(done))
    logged = [track.log_sweep(runs, config, out=store, name="twice", factors=factors, effects=found) for _ in range(2)]
    assert logged[0] == logged[1]
    assert logged[0].problem == ""
    client = track._client(config.uri)
    above = client.get_run(logged[0].run_id).data
    assert above.metrics["runs_count"] == 7
    assert above.metrics["verdict/measured_count"] == 7
    name = "effect/fault/link_rate/iteration_time_median_ratio"
    ratio = next(effect.ratio for effect in found if effect.key == "fault")
    assert above.metrics[name] == pytest.approx(ratio.value)
    assert above.metrics[f"uncertainty/{name}_low"] == pytest.approx(ratio.low)
    assert above.tags["genie.swept.fault"] == "none, link_rate"
    below = client.search_runs([logged[0].experiment_id], f"tags.`mlflow.parentRunId` = '{logged[0].run_id}'")
    assert len(below) == 7
    for run in below:
        swept_here = (run.data.params["swept.fault"], run.data.params["swept.workload"])
        assert run.info.run_name == f"{'-'.join(swept_here)} topology.hosts=8"
        assert run.data.metrics["at_a_glance/iteration_time_median_ms"] == run.data.metrics["iteration_time_median_ms"]


@pytest.mark.parametrize(
    ("typed", "part"),
    [("moe", "moe"), ("10 ms", "10 ms"), ("[a,b]", "_a_b_"), ("../x", "_x"), (".", "_"), ("", "_")],
)
def test_what_users_typed_becomes_a_part_of_a_name_that_mlflow_takes(typed, part, config, store):
    from mlflow.entities import Metric

    made = track._part(typed)
    assert made.split(".")[0] == part
    client = track._client(config.uri)
    experiment = client.get_experiment_by_name("parts")
    run = client.create_run(experiment.experiment_id if experiment else client.create_experiment("parts"))
    client.log_batch(run.info.run_id, metrics=[Metric(f"effect/key/{made}/ratio", 1.0, 0, 0)])


@pytest.mark.parametrize(
    ("make", "chart"),
    [
        (lambda folder: bisect_folders.components(folder, ["link leaf1-spine0"]), {"belief", "suspects", "map"}),
        (lambda folder: bisect_folders.changes(folder, {("topology.mtu=1500",): 1.3}), {"states"}),
    ],
    ids=["components", "changes"],
)
def test_a_bisect_has_its_page_and_charts(tmp_path, config, store, make, chart):
    folder = tmp_path / f"search-{min(chart)}"
    make(folder)
    page = write_report(folder)
    logged = track.log_alone(
        "bisect", folder.name, "who", config, out=store, later="", tags={}, metrics={"probes_count": 1.0},
        artifacts=[folder / "bisect.json"], ok=True, page=page,
    )  # fmt: skip
    assert artifacts(config, logged) == {"report.html", "bisect.json", "bisect.md", "charts"}
    assert artifacts(config, logged, "charts") == {f"charts/{name}.svg" for name in chart}


def test_without_a_page_there_are_no_charts(tmp_path, config, store):
    logged = track.log_run(compared(tmp_path), config, out=store)
    assert not {"report.html", "charts"} & artifacts(config, logged)


def test_a_page_that_cannot_be_drawn_any_more_does_not_keep_the_run_out(tmp_path, config, store):
    run = compared(tmp_path)
    write_report(run)
    run.write_bytes("why.json", b"{")
    assert "charts" not in artifacts(config, track.log_run(run, config, out=store))
