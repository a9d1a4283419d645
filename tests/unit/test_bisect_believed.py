"""What a search over changes says of runs that may not be believed."""

from __future__ import annotations

import pytest

from genie.bisect.record import BisectRecord, ProbeLine
from genie.bisect.report import render

DOUBT = "may not be believed (genie report RUN says why): the changes may not be what was slow"


@pytest.mark.parametrize(
    ("mode", "busy", "said"),
    [
        ("changes", 2, f"; 2 of them {DOUBT}"),
        ("changes", 0, ""),
        ("components", 2, "; during 2 the emulating machine was saturated, so what was slow then counts less"),
    ],
    ids=["changes, saturated", "changes, idle", "components, saturated"],
)
def test_runs_on_a_saturated_machine_are_told(mode: str, busy: int, said: str) -> None:
    probes = tuple(ProbeLine(n, "state", f"run-{n}", 1, (), "", n < busy, 1.0) for n in range(3))
    record = BisectRecord(
        name="x", status="finished", word="found", why="", mode=mode, created_ns=0, seed=1, reproduce="", topology="",
        fabric="", suspects=2, culprits=(), confidence=0.9, duty=1.0, alternatives=(), probes=probes, settings={},
        duration_s=3.0,
    )  # fmt: skip
    (line,) = (line for line in render(record).splitlines() if line.startswith("probes"))
    assert line.split(" for 2 suspects, 3 s")[1] == said
