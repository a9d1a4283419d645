"""One lab for all tests of this folder, booted when the first of them asks for it."""

import lab as lab_module
import pytest
from lab_fixtures import booted_from, restored

__all__ = ["booted_from"]


@pytest.fixture(scope="session")
def lab(booted_from, tmp_path_factory):
    """Two machines that end with this process."""
    # A socket's path is short: not below pytest's long folders.
    with lab_module.session(tmp_path_factory.mktemp("lab"), booted_from) as running:
        yield running


@pytest.fixture
def wire(lab):
    """The lab, whose wire is then made again what it was at boot."""
    with restored(lab):
        yield lab
