"""The load of the machine: of the cores that count, and of no others."""

import pytest

from genie.results import load

STAT = """cpu  300 0 100 1500 100 0 0 0 0 0
cpu0 250 0 50 0 0 0 0 0 0 0
cpu1 50 0 50 1500 100 0 0 0 0 0
cpu10 7 0 0 0 0 0 0 0 0 0
intr 12345
"""


@pytest.mark.parametrize(
    ("cores", "busy", "total"),
    [({0}, 300, 300), ({1}, 100, 1700), ({0, 1}, 400, 2000)],
    ids=["pinned to the busy one", "pinned to the idle one", "both"],
)
def test_only_cores_that_the_run_may_use_count(cores, busy, total, monkeypatch, tmp_path):
    stat = tmp_path / "stat"
    stat.write_text(STAT)
    monkeypatch.setattr(load, "_STAT", stat)
    found = load._ticks(cores)
    assert (found.busy, found.total) == (busy, total)
