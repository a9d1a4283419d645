"""The page and its charts in MLflow, beside the run's other artifacts; nothing of them where pages are switched off."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from html_runs import compared, swept, three_arms

from genie import track
from genie.report.html import charts, write_report
from genie.schema import MlflowConfig


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
    assert artifacts(config, logged) == {"report.html", "sweep.md"}


def test_without_a_page_there_are_no_charts(tmp_path, config, store):
    logged = track.log_run(compared(tmp_path), config, out=store)
    assert not {"report.html", "charts"} & artifacts(config, logged)


def test_a_page_that_cannot_be_drawn_any_more_does_not_keep_the_run_out(tmp_path, config, store):
    run = compared(tmp_path)
    write_report(run)
    run.write_bytes("why.json", b"{")
    assert "charts" not in artifacts(config, track.log_run(run, config, out=store))
