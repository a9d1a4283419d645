"""What the end-to-end tests share: the command as a user runs it, and a workload small enough for many runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SMALL = (
    "workload.iterations=3",
    "workload.layers=2",
    "workload.micro_batches=1",
    "topology.host_rate=50Mbps",
    "timeout=20s",
)
"""A mixture of experts that takes under a second an iteration and leaves a loaded machine some air."""


def command(*arguments: str) -> list[str]:
    """The argv of one genie command with this interpreter."""
    return [sys.executable, "-m", "genie", *arguments]


def run(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run genie to its end in ``cwd``."""
    return subprocess.run(
        command(*arguments), cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=240
    )


def run_directories(out: Path) -> list[Path]:
    """Run directories below ``out``, oldest first."""
    found = (path.parent for path in out.rglob("manifest.json"))
    return sorted((path for path in found if (path / "events").is_dir()), key=lambda path: path.name)


def read(directory: Path, name: str) -> dict[str, Any]:
    """A JSON file of a run directory, without GENIE's code."""
    loaded: dict[str, Any] = json.loads((directory / name).read_text())
    return loaded
