# ruff: noqa: E501 - the header of nccl-tests is as wide as it is
"""The terminal report and the nccl-tests table, against golden texts at 80 columns without colour."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rundir_maker import FLAPPING, IN_EFFECT, MS, SPIKES, T, make_run

from genie.errors import GenieError
from genie.report.nccl_table import nccl_table
from genie.report.terminal import render
from genie.results.compare import judge_and_store
from genie.results.records import Check

GOLDEN = Path(__file__).parent.parent / "golden" / "report"
SLOW = (60, *[40, 41] * 6)
NOT_THERE = replace(
    IN_EFFECT,
    state="not_exercised",
    checks=(Check("a faulted port was limiting", "overlimits rose", "on none", False, "exercised"),),
)


def healthy(root):
    run = make_run(root)
    judge_and_store(run, runs_root=root)
    return run


def degraded(root):
    judge_and_store(make_run(root), runs_root=root)
    run = make_run(root, name="link_rate_10pct-moe", iteration_ms=SLOW, faults=(IN_EFFECT,))
    judge_and_store(run, runs_root=root)
    run.write_bytes("timeline.json.gz", b"")
    run.set_tracking(
        {"uri": "sqlite:////runs/genie.db", "look": "mlflow ui --backend-store-uri sqlite:////runs/genie.db"}
    )
    return run


def invalid(root):
    run = make_run(root, name="link_rate_10pct-moe", faults=(NOT_THERE,), busy=0.5)
    judge_and_store(run, runs_root=root)
    return run


def windowed(root):
    judge_and_store(make_run(root), runs_root=root)
    run = make_run(root, name="link_flap_short-moe", iteration_ms=SPIKES, faults=(FLAPPING,))
    judge_and_store(run, runs_root=root)
    return run


def aborted(root):
    run = make_run(root, iteration_ms=(30, 20, 20))
    run.write_plan(replace(run.plan, iterations=12))
    run.mark_ended("aborted", "rank 1: stall: operator 11 'grads' waited 30 s for rank 0")
    judge_and_store(run, runs_root=root)
    return run


def plain(text):
    """Without what differs from run to run: folder names carry the time."""
    return re.sub(r"\d{8}-\d{6}-([\w.+-]+)-[0-9a-f]{4}", r"DATE-\1-HEX", text)


def check_golden(name, text):
    path = GOLDEN / name
    if os.environ.get("GENIE_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("make", [healthy, degraded, invalid, aborted, windowed], ids=lambda make: make.__name__)
def test_golden_reports(tmp_path, make, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = plain(render(make(tmp_path / "runs"), width=80))
    report, _, places = text.partition("\nrun  ")
    assert max(map(len, report.splitlines())) <= 80
    assert places
    check_golden(f"{make.__name__}.txt", text)


def test_the_verdict_comes_first(tmp_path):
    assert render(degraded(tmp_path), width=80).startswith("DEGRADED  slower than the healthy run")


def test_a_verdict_of_a_newer_version_is_shown(tmp_path):
    run = degraded(tmp_path)
    render(run)
    stored = run.path / "results.json"
    stored.write_text(stored.read_text().replace('"verdict": "degraded"', '"verdict": "puzzling"', 1))
    assert render(run).startswith("PUZZLING")


@pytest.mark.parametrize(
    ("windows", "dilation", "said"),
    [
        ([(10, 20), (30, 40.5)], 1, "in effect 2 times, 10.5 ms each, first at 10 ms, on leaf0/spine0"),
        ([(10, 20), (30, 60)], 1, "in effect 2 times, 10 ms to 30 ms each, first at 10 ms, on leaf0/spine0"),
        ([(10, 20), (30, None)], 1, "in effect 2 times, 10 ms each, first at 10 ms, the last one to the end, on"),
        ([(10, 20)], 1, "in effect on leaf0/spine0, from 10 ms after the start to 20 ms"),
        ([(10, 20)], 10, "in effect on leaf0/spine0, from 1 ms after the start to 2 ms"),
        ([(10, 20), (30, 40)], 10, "in effect 2 times, 1 ms each, first at 1 ms, on leaf0/spine0"),
        ([(10, None)], 1, "in effect on leaf0/spine0, from 10 ms after the start to past the end"),
    ],
    ids=["alike", "unlike", "open", "one", "one, dilated", "several, dilated", "one, open"],
)
def test_windows_are_said_in_a_line(tmp_path, windows, dilation, said):
    own = tuple((T + round(a * MS), None if b is None else T + round(b * MS)) for a, b in windows)
    run = make_run(tmp_path, faults=(replace(IN_EFFECT, windows=own),))
    run.write_plan(replace(run.plan, dilation=float(dilation)))
    assert said in " ".join(render(run, width=80).split())


def test_rows_of_several_windowed_faults_name_theirs(tmp_path):
    other = replace(FLAPPING, name="congestion_of_everything")
    text = render(make_run(tmp_path, iteration_ms=SPIKES, faults=(FLAPPING, other)), width=80)
    assert "in link_flap..'s windows, 2" in text
    assert "in congestio..'s windows, 2" in text


def test_one_sample_has_no_confidence_interval(tmp_path):
    text = render(make_run(tmp_path, iteration_ms=(30, 90)), width=80)
    assert text.count("one sample") == 4


def test_colour_changes_nothing_but_colour(tmp_path):
    run = degraded(tmp_path)
    coloured = render(run, width=100, color=True)
    assert "\x1b[1;31mDEGRADED" in coloured
    stripped = "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines()) + "\n"
    assert stripped == render(run, width=100)


def test_a_run_that_died_before_it_was_measured_is_measured_now(tmp_path):
    run = make_run(tmp_path)
    manifest = json.loads((run.path / "manifest.json").read_text())
    (run.path / "manifest.json").write_text(json.dumps({**manifest, "status": "running", "pid_start": 1}))
    assert render(run).startswith("INVALID  the run was aborted: the process that ran it is gone")
    assert run.manifest.verdict == "invalid"


def test_a_run_that_goes_on_has_no_report_yet(tmp_path):
    run = make_run(tmp_path)
    run.mark_running()
    with pytest.raises(GenieError, match="is running: there is no report before it ends"):
        render(run)


def test_a_run_that_ended_before_its_plan_says_so(tmp_path):
    run = make_run(tmp_path, status="aborted")
    (run.path / "plan.json").unlink()
    with pytest.raises(GenieError, match="the run ended before it was written"):
        render(run)


def test_golden_nccl_table(tmp_path):
    run = make_run(tmp_path)
    judgement = judge_and_store(run, runs_root=tmp_path)
    check_golden("nccl.txt", nccl_table(judgement.metrics, run.plan))


def test_every_row_of_the_nccl_table_has_the_thirteen_columns_that_parsers_want(tmp_path):
    run = make_run(tmp_path)
    text = nccl_table(judge_and_store(run, runs_root=tmp_path).metrics, run.plan)
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert [len(row) for row in rows] == [13, 13]
    for row in rows:
        size, time_us, algbw = int(row[0]), float(row[5]), float(row[6])
        assert algbw == pytest.approx(size / time_us / 1000, abs=0.006)


def test_the_nccl_header_is_that_of_nccl_tests(tmp_path):
    run = make_run(tmp_path)
    text = nccl_table(judge_and_store(run, runs_root=tmp_path).metrics, run.plan)
    header = "\n".join(
        [
            "#                                                              out-of-place                       in-place          ",
            "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       ",
        ]
    )  # fmt: skip
    assert header in text
