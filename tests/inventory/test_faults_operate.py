"""Faults on machines, by operators and by runs that die: applied and left, asked, put back; and back by themselves."""

from __future__ import annotations

import json
import re
import signal
import subprocess

import pytest
from machines import genie, wait_until

pytestmark = pytest.mark.inventory

TWO = ("m0", "m1")


@pytest.fixture
def shaped(lab):
    """The lab, with a shaper of the machine's own on m0's data interface."""
    lab["m0"].run("tc qdisc add dev data0 root handle 7e1e: tbf rate 80mbit burst 32k limit 512k")
    yield lab
    lab["m0"].run("tc qdisc del dev data0 root", check=False)


def queue(lab):
    return lab["m0"].run("tc -j qdisc show dev data0")


def rate(lab):
    """Of the machine's own shaper, in bit/s."""
    (own,) = json.loads(lab["m0"].run("tc -j qdisc show dev data0 root"))
    return int(own["options"]["rate"]) * 8


def command(folder, *words):
    return subprocess.run(genie(*words), cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def applied(lab, folder, *words):
    done = command(
        folder, "faults", "apply", "link_rate", f"--inventory={lab.inventory(hosts=TWO)}", "targets=m0/data0",
        "parameters.rate=10%", *words,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def put_back(folder, *words):
    """Put back, and once more: the second time there is nothing to do."""
    for said in ("as it was found", "nothing "):
        done = command(folder, *words)
        assert (done.returncode, said in done.stdout) == (0, True), done.stdout + done.stderr


def test_applied_and_left_then_asked_then_put_back(shaped, tmp_path):
    before = queue(shaped)
    assert "dry_run: nothing was touched" in applied(shaped, tmp_path, "dry_run=true")
    assert queue(shaped) == before
    assert "applied link_rate on m0: m0/data0" in applied(shaped, tmp_path, "ttl=60s")
    assert rate(shaped) == 10_000_000
    asked = command(tmp_path, "faults", "status")
    assert re.search(r"link_rate on m0 \(data0\): in effect, undone in [\d.]+ s at the latest", asked.stdout), asked
    assert asked.returncode == 0
    put_back(tmp_path, "faults", "revert")
    assert queue(shaped) == before


def test_it_ends_by_itself_when_nobody_comes_back(shaped, tmp_path):
    before = queue(shaped)
    applied(shaped, tmp_path, "ttl=8s", "window.period=1s", "window.duty=0.5")
    wait_until(
        lambda: "its time limit passed, and the warden put it back" in command(tmp_path, "faults", "status").stdout,
        "the end of the time limit",
        60,
    )
    assert queue(shaped) == before
    put_back(tmp_path, "faults", "revert")


def test_what_a_killed_run_left_is_put_back(shaped, tmp_path):
    before = queue(shaped)
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(
            genie(
                "workload=dp", "workload.iterations=50", "transport.spin=0", "timeout=20s", "fabric=inventory",
                "tracking.mlflow.enabled=false", f"fabric.inventory={shaped.inventory(hosts=TWO)}", "+fault=link_rate",
                "fault.link_rate.targets=[m0/data0]", "safety.ttl=120s",
            ),
            cwd=tmp_path, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_until(lambda: queue(shaped) != before or run.poll() is not None, "the fault", 60)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert queue(shaped) != before, (tmp_path / "log").read_text()
    put_back(tmp_path, "revert")
    assert queue(shaped) == before
