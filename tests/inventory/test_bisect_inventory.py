"""The bisect over hosts that are reached by ssh: a queue that somebody left on one host's card is found."""

import subprocess

import pytest
from machines import genie

from genie.bisect.record import read_record

pytestmark = pytest.mark.inventory

FOUR = ("m0", "m1", "m2", "m3")
SLOW = "m2"


@pytest.fixture
def slowed(lab):
    """One host sends at a fifth of its rate; GENIE is told nothing, and does not put it right."""
    lab[SLOW].run("tc qdisc replace dev data0 root tbf rate 20mbit burst 8kb limit 256kb")
    yield
    lab[SLOW].run("tc qdisc del dev data0 root")


def test_a_slow_card_is_found_and_left_alone(lab, slowed, tmp_path):
    words = (
        "bisect", "fabric=inventory", f"fabric.inventory={lab.inventory(hosts=FOUR)}", "seed=3", "bisect.time=300ms",
        "bisect.compute=false", "tracking.mlflow.enabled=false", f"run_dir={tmp_path / 'search'}",
    )  # fmt: skip
    done = subprocess.run(genie(*words), cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_record(tmp_path / "search" / "bisect.json")
    (culprit,) = record.culprits
    assert SLOW in culprit.name, done.stdout
    assert f"FOUND  {culprit.name}" in done.stdout
    assert "20mbit" in lab[SLOW].run("tc qdisc show dev data0").lower()
    assert (tmp_path / "search" / "report.html").is_file()
