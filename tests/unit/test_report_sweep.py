"""The comparison table of a sweep."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from rundir_maker import IN_EFFECT, make_run

from genie.report.sweep import render_sweep, sweep_markdown
from genie.results.compare import judge_and_store

GOLDEN = Path(__file__).parent.parent / "golden" / "report" / "sweep.txt"


def sweep(root):
    lost = replace(IN_EFFECT, name="ecn_off", state="not_in_effect", checks=())
    runs = [
        make_run(root),
        make_run(root, name="link_rate_10pct-moe", iteration_ms=(60, *[40] * 11), faults=(IN_EFFECT,)),
        make_run(root, name="ecn_off-moe", faults=(lost,)),
    ]
    for run in runs:
        judge_and_store(run, runs_root=root)
    return [*runs, make_run(root, name="link_loss-moe", status="aborted", faults=(IN_EFFECT,))]


def test_golden_sweep_table(tmp_path):
    text = render_sweep(sweep(tmp_path))
    if os.environ.get("GENIE_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    assert max(map(len, text.splitlines())) <= 80


def test_the_markdown_table_has_a_row_a_run(tmp_path):
    lines = sweep_markdown(sweep(tmp_path)).splitlines()
    assert len(lines) == 6
    assert lines[3].startswith("| degraded | link_rate_10pct | moe | 40 ms |")
