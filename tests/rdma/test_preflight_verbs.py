"""``genie preflight`` over Soft-RoCE: what the engine measures, and what a lossy wire leaves behind."""

import contextlib
import io
import json

import pytest
import roce
from lab_fixtures import RATE_MBPS

from genie.cli import main

pytestmark = [pytest.mark.rdma, pytest.mark.timeout(600)]

SHORT = ("preflight.repeats=1", "preflight.message_bytes=64KiB", "preflight.load_bytes=1MiB", "preflight.pings=10",
         "timeout=60s", "tracking.mlflow.enabled=false")  # fmt: skip


def preflight(lab, folder, *words: str) -> tuple[dict | None, str]:
    """The record of a preflight of the two machines over verbs, None where no pair gave a number; and all it said."""
    where = (f"fabric.inventory={lab.inventory}", f"fabric.control_address={lab.state['control_address']}")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(["preflight", "fabric=inventory", "transport=verbs", *where, *SHORT, f"run_dir={folder}",
                     f"out={folder.parent}", *words])  # fmt: skip
    assert code in (0, 4), out.getvalue()  # 4: emulated processors were too busy for a verdict
    path = folder / "preflight.json"
    return json.loads(path.read_text()) if path.exists() else None, " ".join(out.getvalue().split())


def test_the_engine_measures_the_wire(lab, clean, tmp_path, say):
    """Perftest cannot be held to a number here: on a busy emulated processor it cannot tell the clock. What it prints
    is read in tests/unit/test_preflight_perftest.py.
    """
    record, said = preflight(lab, tmp_path / "engine", "preflight.tool=engine")
    assert record is not None, said
    (rail,) = record["rails"]
    found = [rail["bandwidth_bps"][0][1], rail["bandwidth_bps"][1][0], rail["latency_ns"][0][1]]
    assert all(found)
    say(f"preflight over verbs: {found[0] / 1e6:.1f} and {found[1] / 1e6:.1f} Mb/s, {found[2] / 1e6:.2f} ms")
    assert all(bps < 2e6 * RATE_MBPS for bps in found[:2])


def test_a_lossy_wire_is_noted_by_what_its_ports_counted(wire, clean, tmp_path):
    rate = ("rate", f"{RATE_MBPS}mbit")
    for name in wire.names:
        wire.output(name, "tc", "qdisc", "replace", "dev", "wire0", "root", "netem", *rate, "loss", "2%")
    record, said = preflight(wire, tmp_path / "lossy", "preflight.tool=engine")
    assert record is not None, said
    assert any(f"{roce.DEVICE} counted" in note and "seq" in note for note in record["notes"]), record["notes"]
