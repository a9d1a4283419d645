"""One lab with Soft-RoCE for all tests of this folder, booted when the first of them asks for it (docs/lab.md)."""

import os
from pathlib import Path

import lab as lab_module
import parts
import pytest
import roce
import switch
import verbs_layer
from held import Machines
from lab_fixtures import booted_from, restored
from lab_runs import until
from roce import RATE_MBPS

__all__ = ["booted_from"]


@pytest.fixture(scope="session")
def rdma_options(booted_from):
    """The keeper's options for Soft-RoCE; the tests are skipped where its programs cannot be had."""
    try:
        return verbs_layer.options(booted_from)
    except parts.LabError as error:
        pytest.skip(f"no lab with RDMA, its programs cannot be had: {error}")


@pytest.fixture(scope="session")
def no_switch():
    """Why the machines cannot be plugged into a switch of the embedded fabric; empty if they are."""
    return switch.unfit()


@pytest.fixture(scope="session")
def lab(request, no_switch, tmp_path_factory):
    """Two machines with Soft-RoCE on their wire, and at a switch where there can be one; they end with this process.

    GENIE_LAB names the folder of one that is up already (scripts/lab --run FOLDER up --switch --rate 40).
    """
    if folder := os.environ.get("GENIE_LAB"):
        found = lab_module.running(Path(folder))
        assert found is not None, f"GENIE_LAB={folder}: no lab is up there"
        yield found
        return
    booted_from, rdma_options = (request.getfixturevalue(name) for name in ("booted_from", "rdma_options"))
    options = (*rdma_options, "--rate", str(RATE_MBPS), *([] if no_switch else ["--switch"]))
    with lab_module.session(tmp_path_factory.mktemp("lab"), booted_from, options=options) as running:
        yield running


@pytest.fixture
def wire(lab):
    """The lab, whose wire is then made again what it was at boot."""
    with restored(lab):
        yield lab
    port = ("rdma", "link", "show", f"{roce.DEVICE}/1")
    for name in lab.names:
        until(lambda name=name: "state ACTIVE" in lab.output(name, *port), f"{roce.DEVICE} of {name} stays down", 30)


@pytest.fixture
def switched(lab, no_switch):
    """The lab, whose machines are at a switch; skipped where they cannot be."""
    if no_switch:
        pytest.skip(f"no lab behind a switch: {no_switch}")
    return lab


@pytest.fixture
def say(request):
    """Prints a line whatever pytest captures: what was measured belongs in CI's log."""
    terminal = request.config.get_terminal_writer()
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def line(text=""):
        with capture.global_and_fixture_disabled():
            terminal.line(text)

    return line


@pytest.fixture(scope="session")
def machines(lab, tmp_path_factory):
    """The lab's machines, for runs that follow each other."""
    ready = Machines(lab, tmp_path_factory.mktemp("held"))
    yield ready
    ready.close()


@pytest.fixture
def over_wire(lab, machines):
    """Runs between the machines, over the wire."""
    return machines.over(lab.inventory)


@pytest.fixture
def dying(lab, machines):
    """The lab for a test that ends a machine: the last one (see `pytest_collection_modifyitems`)."""
    machines.close()
    return lab


def pytest_collection_modifyitems(items):
    """First who has the machines to itself, then who holds them for several runs, in the end who kills one."""
    order = ("machines", "over_wire", "dying")
    items.sort(key=lambda item: [name in getattr(item, "fixturenames", ()) for name in order[::-1]])


@pytest.fixture
def clean(lab):
    """No queue pair and no memory region is there afterwards that was not before."""
    before = {name: roce.resources(lab, name) for name in lab.names}
    yield
    for name, had in before.items():
        until(
            lambda name=name, had=had: all(entry in had for entry in roce.resources(lab, name)),
            f"RDMA resources stay on {name}",
            30,
        )
