"""One lab for all tests of this folder: making eight machines takes longer than most of them."""

import machines
import pytest


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """Eight machines; m3's and m7's CLOCK_MONOTONIC is ahead of ours, by 1000 s and by 5 s."""
    if reason := machines.unavailable():
        pytest.skip(reason)
    with machines.lab(tmp_path_factory.mktemp("lab"), 8, ahead={"m3": 1000, "m7": 5}, room_mb=160) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_left(request):
    """No test may leave anything of GENIE's on a machine."""
    yield
    if "lab" in request.fixturenames:
        found = request.getfixturevalue("lab")
        machines.wait_until(lambda: not found.leftovers(), f"the end of {found.leftovers()}", timeout_s=40)
