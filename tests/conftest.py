"""Fixtures for tests of more than one folder."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

NOBODY = 65534


@pytest.fixture
def nobodys_folder():
    """A folder of the user nobody's own, for tests that root runs as somebody else. Root's folders stay closed."""
    if os.geteuid() != 0:
        pytest.skip("not root: every test here runs as a user already")
    folder = Path(tempfile.mkdtemp(prefix="genie-nobody-"))
    os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)
