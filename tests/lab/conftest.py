"""One lab for all tests of this folder, booted when the first of them asks for it."""

from pathlib import Path

import lab as lab_module
import parts
import pytest


@pytest.fixture(scope="session")
def booted_from():
    """The cache folder, filled; the tests are skipped where it cannot be."""
    if lacking := parts.missing_tools():
        pytest.skip(f"no lab: {lacking}")
    cache = parts.default_cache()
    try:
        parts.cached(cache) or parts.fetch(cache)
    except parts.LabError as error:
        pytest.skip(f"no lab, its kernel cannot be had: {error}")
    return cache


@pytest.fixture(scope="session")
def lab(booted_from, tmp_path_factory):
    """Two machines that end with this process."""
    # A socket's path is short: not below pytest's long folders.
    with lab_module.session(tmp_path_factory.mktemp("lab"), booted_from) as running:
        yield running


@pytest.fixture
def wire(lab):
    """The lab with its wire as it was at boot: no queueing discipline of ours, plugged in."""
    yield lab
    lab.cable(plugged=True)
    for name in lab.names:
        lab.command(name, "tc", "qdisc", "del", "dev", "wire0", "root")


@pytest.fixture
def repository():
    return Path(__file__).resolve().parents[2]
