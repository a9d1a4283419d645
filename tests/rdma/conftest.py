"""One lab with Soft-RoCE for all tests of this folder, booted when the first of them asks for it (docs/lab.md)."""

import lab as lab_module
import parts
import pytest
import verbs_layer
from lab_fixtures import booted_from, restored
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
def lab(booted_from, rdma_options, tmp_path_factory):
    """Two machines with a Soft-RoCE device each, that end with this process."""
    options = (*rdma_options, "--rate", str(RATE_MBPS))
    with lab_module.session(tmp_path_factory.mktemp("lab"), booted_from, options=options) as running:
        yield running


@pytest.fixture
def wire(lab):
    """The lab, whose wire is then made again what it was at boot."""
    with restored(lab):
        yield lab


@pytest.fixture
def say(request):
    """Prints a line whatever pytest captures: what was measured belongs in CI's log."""
    terminal = request.config.get_terminal_writer()
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def line(text=""):
        with capture.global_and_fixture_disabled():
            terminal.line(text)

    return line
