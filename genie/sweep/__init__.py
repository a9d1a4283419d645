"""A sweep: one command line, many runs, each with a place of its own. What the command line hands to the story.

`genie.cli` fills in a `SweepResult` a run, `genie.experiment.finish_sweep` makes the comparison. Runs nothing.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class SweepResult:
    """One run of a sweep: ``run`` is None if it did not get that far (or was dry), then ``error`` may say why."""

    number: int
    label: str
    overrides: tuple[str, ...]
    run: Any
    error: Exception | None
    exit_code: int


def sweep_directory(out: str) -> Path:
    """A new folder ``out``/sweeps/<time> that no other sweep has; only the name is made up, nothing is created."""
    base = Path(out) / "sweeps"
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    names = itertools.chain([stamp], (f"{stamp}-{n}" for n in itertools.count(2)))
    return next(base / name for name in names if not (base / name).exists())
