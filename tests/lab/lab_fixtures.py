"""What the folders that boot a lab share: what it boots from, and a wire that is made again what it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import parts
import pytest
from lab import Lab
from lab_runs import until


@pytest.fixture(scope="session")
def booted_from() -> Path:
    """The cache folder, filled; the tests are skipped where it cannot be."""
    if lacking := parts.missing_tools():
        pytest.skip(f"no lab: {lacking}")
    cache = parts.default_cache()
    try:
        parts.cached(cache) or parts.fetch(cache)
    except parts.LabError as error:
        pytest.skip(f"no lab, its kernel cannot be had: {error}")
    return cache


@contextmanager
def restored(lab: Lab) -> Iterator[Lab]:
    """The lab, whose wire is afterwards what it was at boot: plugged in, shaped and marking."""
    try:
        yield lab
    finally:
        lab.cable(plugged=True)
        carrier = ("cat", "/sys/class/net/wire0/carrier")
        for name in lab.names:
            until(lambda name=name: lab.output(name, *carrier).strip() == "1", f"no carrier on {name}", 30)
        shape = "tc qdisc replace dev wire0 root handle 7e1e: $shaper"
        mark = "tc qdisc replace dev wire0 parent 7e1e:1 handle 7e1f: $marker"
        for name in lab.names:
            lab.output(name, "sh", "-c", f". /run/lab/conf/settings; {shape} && {mark}")
