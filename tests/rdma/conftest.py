"""What tests of RDMA on the lab's machines share (`lab_fixtures.py` boots them), and the order they run in."""

import pytest
import roce
from held import Machines
from lab_runs import until


@pytest.fixture(scope="session")
def lab(lab, request):
    """The lab, whose machines have Soft-RoCE; skipped where its programs cannot be had."""
    if not lab.state["rdma"]:
        pytest.skip(f"no lab with RDMA, its programs cannot be had: {request.getfixturevalue('no_rdma')}")
    return lab


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
    before = roce.of_each(lab.names, lambda name: roce.resources(lab, name))
    yield
    until(lambda: _is_free(lab, before), "RDMA resources stay on a machine", 30)


def _is_free(lab, before):
    """Whether every machine holds no more than before."""
    now = roce.of_each(lab.names, lambda name: roce.resources(lab, name))
    return all(entry in before[name] for name, found in now.items() for entry in found)
