"""Faults on machines under a workload that is not ours: applied and left, asked, put back; and back by themselves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from machines import Lab, Machine, genie, lab, unavailable, wait_until

pytestmark = [pytest.mark.netns, pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "machines can be had")]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("lab"), 2) as made:
        for machine in made.machines:
            machine.run("tc qdisc add dev data0 root handle 7e1e: tbf rate 80mbit burst 32k limit 512k")
        yield made


def rate(machine: Machine) -> int:
    """Of the machine's own shaper, in bit/s."""
    (queue,) = json.loads(machine.run("tc -j qdisc show dev data0 root"))
    return int(queue["options"]["rate"]) * 8


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(genie("faults", *words), cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def applied(machines: Lab, folder: Path, *words: str) -> str:
    done = command(
        folder, "apply", "link_rate", f"--inventory={machines.inventory()}", "targets=m0/data0", "parameters.rate=10%",
        "allow_risk=high", *words,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_applied_and_left_then_asked_then_put_back(machines: Lab, tmp_path: Path) -> None:
    before = machines["m0"].run("tc -j qdisc show dev data0")
    assert "dry_run: nothing was touched" in applied(machines, tmp_path, "dry_run=true")
    assert machines["m0"].run("tc -j qdisc show dev data0") == before
    said = applied(machines, tmp_path, "ttl=60s")
    assert "applied link_rate on m0: m0/data0" in said
    assert rate(machines["m0"]) == 10_000_000
    asked = command(tmp_path, "status")
    assert re.search(r"link_rate on m0 \(data0\): in effect, undone in [\d.]+ s at the latest", asked.stdout), asked
    assert asked.returncode == 0
    for said in ("as it was found", "nothing is open"):  # the second time there is nothing to do
        done = command(tmp_path, "revert")
        assert (done.returncode, said in done.stdout) == (0, True), done.stdout + done.stderr
    assert machines["m0"].run("tc -j qdisc show dev data0") == before
    assert machines.leftovers() == []


def test_it_ends_by_itself_when_nobody_comes_back(machines: Lab, tmp_path: Path) -> None:
    before = machines["m0"].run("tc -j qdisc show dev data0")
    applied(machines, tmp_path, "ttl=3s")
    wait_until(lambda: machines["m0"].run("tc -j qdisc show dev data0") == before, "the end of the time limit")
    asked = command(tmp_path, "status")
    assert "its time limit passed, and the warden put it back" in asked.stdout, asked
    done = command(tmp_path, "revert")
    assert (done.returncode, "as it was found" in done.stdout) == (0, True), done.stdout + done.stderr
    assert machines.leftovers() == []
