"""One study in its smallest form: real runs, and what it leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.netns
ROOT = Path(__file__).parents[2]


def test_a_study_leaves_its_table_and_figure_with_its_runs(tmp_path):
    before = {path: path.read_bytes() for path in (ROOT / "experiments").rglob("*") if path.suffix in (".md", ".csv")}
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "ecmp", "--smallest", "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = tmp_path.iterdir()
    assert "| 4 | 1.53 (2.00) |" in (folder / "results.md").read_text()
    assert (folder / "table.csv").read_text().startswith("flows per uplink,")
    assert (folder / "figure.svg").read_text().startswith("<svg")
    assert len(list(folder.glob("ring/sweeps/*/*/manifest.json"))) == 2
    assert {path: path.read_bytes() for path in before} == before, "the smallest form changes nothing that is kept"
