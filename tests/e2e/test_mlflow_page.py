"""A real MLflow server on loopback, and its pages as a person sees them in Debian's chromium."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from rundir_maker import IN_EFFECT, make_run

from genie import track
from genie.report.terminal import render
from genie.results.compare import judge_and_store
from genie.results.timeline import write_timeline
from genie.schema import MlflowConfig

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("flask") is None, reason="needs the full mlflow: pip install '.[ui]'"),
    pytest.mark.timeout(240),
]


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A tracking server with its own SQLite file; gone with the test."""
    folder = tmp_path_factory.mktemp("server")
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    argv = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "artifacts"),
        "--serve-artifacts",
    ]  # fmt: skip
    quiet = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env=quiet, start_new_session=True)
    try:
        until = time.monotonic() + 90
        while not answers(f"{uri}/health"):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.1)
        yield uri
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.fixture(scope="module")
def logged(server, tmp_path_factory):
    """A sweep of three runs, logged to the server."""
    root = tmp_path_factory.mktemp("runs")
    runs = [
        make_run(root),
        make_run(root, name="link_rate_10pct-moe", iteration_ms=(60, *[40, 41, 44] * 5), faults=(IN_EFFECT,)),
        make_run(root, name="saturated-moe", busy=0.95),
    ]
    for run in runs:
        judge_and_store(run, runs_root=root)
        write_timeline(run)
    parent = track.log_sweep(runs, MlflowConfig(uri=server), out=root, name="sweep-moe")
    assert parent.problem == ""
    return root, runs, parent


def test_a_server_takes_everything(server, logged):
    _, runs, parent = logged
    client = track._client(server)
    found = client.search_runs([parent.experiment_id], filter_string="tags.`genie.verdict` != 'none'")
    assert {run.data.tags["genie.verdict"] for run in found} == {"measured", "degraded", "invalid"}
    slow = client.get_run(runs[1].manifest.tracking["run_id"])
    assert slow.data.metrics["iteration_time_median_ms"] == 41
    assert {a.path for a in client.list_artifacts(slow.info.run_id)} >= {"timeline.json.gz", "report.txt"}


def test_the_report_says_where_to_look(server, logged):
    _, runs, _ = logged
    assert f"mlflow    open '{server}/#/experiments/" in render(runs[1], width=80)


def test_a_run_whose_server_was_down_is_logged_when_it_is_back(server, tmp_path):
    run = make_run(tmp_path)
    judge_and_store(run, runs_root=tmp_path)
    assert (
        "nobody answers"
        in track.log_run(run, MlflowConfig(uri=f"http://127.0.0.1:{free_port()}"), out=tmp_path).problem
    )
    later = track.log_run(run, MlflowConfig(uri=server, experiment="later"), out=tmp_path)
    assert later.problem == ""
    assert track._client(server).get_run(later.run_id).info.status == "FINISHED"


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_the_pages_show_the_run_to_a_person(server, logged, tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    _, runs, parent = logged
    run_id = runs[1].manifest.tracking["run_id"]
    pictures = Path(os.environ.get("GENIE_PICTURES", str(tmp_path)))
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": 1500, "height": 1000})
            page.goto(f"{server}/#/experiments/{parent.experiment_id}/runs/{run_id}")
            page.get_by_text("slower than the healthy run").first.wait_for(timeout=60_000)
            assert page.get_by_text("iteration_time_median_ms").first.is_visible()
            page.screenshot(path=str(pictures / "run.png"))
            # a page of its own: going from hash to hash keeps the old page's hidden elements
            page = browser.new_page(viewport={"width": 1500, "height": 1000})
            page.goto(re.search("'(.*)'", parent.look)[1])
            # plotly draws its charts as svg; a title alone would also be there beside a spinner
            page.locator("svg.main-svg").first.wait_for(timeout=45_000)
            page.get_by_text("at_a_glance").and_(page.locator(":visible")).first.wait_for(timeout=20_000)
            page.screenshot(path=str(pictures / "charts.png"))
            names = page.locator("body").inner_text()
            assert "link_rate_10pct-moe" in names
        finally:
            browser.close()
