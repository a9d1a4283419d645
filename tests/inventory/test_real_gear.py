"""A SONiC switch in an inventory, by ssh: an operator's commands, the real warden, doubles of the switch's tools."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest
from machines import genie, wait_until

sys.path.insert(0, str(Path(__file__).parents[1] / "standins"))
import sonic
from standin import install

pytestmark = pytest.mark.inventory

TWO = ("m0", "m1")


class Switch:
    """m1 as a SONiC switch whose Ethernet0 leads to m0: its tools are in /usr/local/bin, as on a real one."""

    def __init__(self, lab, folder):
        self.lab = lab
        folder.mkdir()
        self.file = folder / "state.json"
        self.bin = install(folder, sonic.switch(orch_lag=1))
        lab["m1"].run("ip link add Ethernet0 type veth peer name asic0")
        lab["m1"].run(f"mount --bind {self.bin} /usr/local/bin")

    def close(self):
        self.lab["m1"].run("umount /usr/local/bin", check=False)
        self.lab["m1"].run("ip link del Ethernet0", check=False)

    def config(self):
        with self.file.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)  # its tools write in place, under the other lock
            return json.load(file)["config"]

    def inventory(self):
        return self.lab.inventory(
            hosts=TWO,
            m0={"genie_links": {"data0": "m1/Ethernet0"}},
            m1={"genie_role": "leaf", "genie_platforms": ["sonic", "linux"], "genie_address": None, "genie_rate": None},
        )


@pytest.fixture
def switch(lab, tmp_path):
    made = Switch(lab, tmp_path / "switch")
    yield made
    made.close()


def command(folder, *words):
    return subprocess.run(genie(*words), cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def apply(switch, folder, *words):
    done = command(
        folder, "faults", "apply", "ecn_off", f"--inventory={switch.inventory()}", "targets=m1/Ethernet0", *words
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_operator_takes_ecn_from_one_port_and_puts_it_back(switch, tmp_path):
    before = switch.config()
    shown = apply(switch, tmp_path, "dry_run=true")
    assert "apply: sonic-db-cli CONFIG_DB HDEL 'QUEUE|Ethernet0|3' wred_profile" in shown
    assert switch.config() == before
    apply(switch, tmp_path, "ttl=60s")
    assert {key for key in before if before[key] != switch.config().get(key)} == {"QUEUE|Ethernet0|3"}
    assert "ecn_off on m1 (Ethernet0): in effect" in command(tmp_path, "faults", "status").stdout
    done = command(tmp_path, "faults", "revert")
    assert (done.returncode, switch.config() == before) == (0, True), done.stdout + done.stderr


def test_the_switch_takes_it_back_by_itself_when_nobody_comes(switch, tmp_path):
    before = switch.config()
    apply(switch, tmp_path, "ttl=6s")
    assert switch.config() != before
    wait_until(lambda: switch.config() == before, "the end of the time limit", 60)
    done = command(tmp_path, "faults", "revert")
    assert done.returncode == 0, done.stdout + done.stderr
    assert switch.config() == before
    assert not json.loads(switch.file.read_text())["saved"]
