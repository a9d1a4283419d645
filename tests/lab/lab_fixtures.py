"""The one lab of a test session: booted when the first test of `tests/lab` or `tests/rdma` asks for it (docs/lab.md).

A plugin of `tests/conftest.py`, so that both folders have the same two machines: a boot is most of a minute where the
processor is emulated. They have all that can be had here: Soft-RoCE, and a switch of the embedded fabric.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import lab as lab_module
import parts
import pytest
import switch
import verbs_layer
from lab import Lab
from lab_runs import until

RATE_MBPS = 40
"""Of the wire. Emulated machines keep up with it, and its full queue is 26 ms; perftest sends again after 67 ms."""


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


@pytest.fixture(scope="session")
def no_rdma(booted_from: Path) -> str:
    """Why the machines can have no Soft-RoCE: its programs cannot be had. Empty if they can."""
    try:
        verbs_layer.options(booted_from)
    except parts.LabError as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def no_switch() -> str:
    """Why the machines cannot be plugged into a switch of the embedded fabric; empty if they are."""
    return switch.unfit()


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two machines that end with this process.

    GENIE_LAB names the folder of a lab that is up already (scripts/lab --run FOLDER up --switch --rate 40).
    """
    if folder := os.environ.get("GENIE_LAB"):
        found = lab_module.running(Path(folder))
        assert found is not None, f"GENIE_LAB={folder}: no lab is up there"
        yield found
        return
    cache, no_rdma, no_switch = map(request.getfixturevalue, ("booted_from", "no_rdma", "no_switch"))
    options = ["--rate", str(RATE_MBPS)]
    if not no_rdma:
        options += verbs_layer.options(cache)
    if not no_switch:
        options.append("--switch")
    # A socket's path is short: not below pytest's long folders.
    with lab_module.session(tmp_path_factory.mktemp("lab"), cache, options=tuple(options)) as running:
        for name in running.names:
            # Loading it makes two devices, which tests that look before and after a fault would see.
            running.output(name, "modprobe", "ifb")
        yield running


@pytest.fixture
def wire(lab: Lab) -> Iterator[Lab]:
    """The lab, whose wire is afterwards what it was at boot: plugged in, shaped and marking."""
    try:
        yield lab
    finally:
        lab.cable(plugged=True)
        for name in lab.names:
            until(lambda name=name: _wire_is_up(lab, name), f"the wire of {name} stays down", 30)
        shape = "tc qdisc replace dev wire0 root handle 7e1e: $shaper"
        mark = "tc qdisc replace dev wire0 parent 7e1e:1 handle 7e1f: $marker"
        for name in lab.names:
            lab.output(name, "sh", "-c", f". /run/lab/conf/settings; {shape} && {mark}")


def _wire_is_up(lab: Lab, name: str) -> bool:
    """Whether a machine has carrier on the wire, and its RDMA device, where it has one, is active."""
    device = " && rdma link show rxe0/1" if lab.state["rdma"] else ""
    said = lab.output(name, "sh", "-c", f"cat /sys/class/net/wire0/carrier{device}")
    return said.startswith("1") and (not device or "state ACTIVE" in said)
