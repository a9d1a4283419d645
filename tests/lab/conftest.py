"""One lab for all tests of this folder, booted when the first of them asks for it."""

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
    """The lab, whose wire is then made again what it was at boot: plugged in, shaped and marking."""
    yield lab
    lab.cable(plugged=True)
    shape = "tc qdisc replace dev wire0 root handle 7e1e: $shaper"
    mark = "tc qdisc replace dev wire0 parent 7e1e:1 handle 7e1f: $marker"
    for name in lab.names:
        lab.output(name, "sh", "-c", f". /run/lab/conf/settings; {shape} && {mark}")
