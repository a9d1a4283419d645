"""The engine's own RDMA tests on a machine with a real device, built with sanitizers where that build is there."""

import os
import re
from pathlib import Path

import pytest
import roce

pytestmark = [pytest.mark.rdma, pytest.mark.timeout(900)]

BUILD = Path(__file__).resolve().parents[2] / "build"
CASES = 3
"""At least so many test cases: a build without verbs has none, and would pass."""


@pytest.fixture
def program():
    """The engine's tests: GENIE_NATIVE_TESTS, or what scripts/test has built."""
    built = [BUILD / f"native-{preset}/tests/genie_tests" for preset in ("asan", "release")]
    if told := os.environ.get("GENIE_NATIVE_TESTS"):
        built = [Path(told)]
    for path in built:
        if path.is_file():
            return path
    pytest.skip("the engine's tests are not built: cd native && cmake --preset asan && cmake --build --preset asan")


def test_the_engines_tests_pass_on_soft_roce(lab, clean, program, request, say):
    every = "4" if request.config.getoption("--sample") else "1"
    variables = ["env", f"GENIE_RDMA_DEVICE={roce.DEVICE}", f"GENIE_RDMA_EACH={every}"]
    argv = [*variables, lab.share(program), "-sf=*test_verbs_device*", "-d"]
    done = lab.command("vm1", *argv, timeout=800)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    passed = re.search(r"test cases: *(\d+) \| *(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[2]) >= CASES, done.stdout
    assert "skipped: " not in done.stdout
    seconds = sum(float(found) for found in re.findall(r"^([\d.]+) s: ", done.stdout, re.MULTILINE))
    say(f"the engine's RDMA tests ({program.parents[1].name}): {passed[2]} cases in {seconds:.0f} s")
