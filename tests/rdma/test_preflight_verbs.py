"""``genie preflight`` over Soft-RoCE: perftest and the engine side by side, and what a lossy wire leaves behind."""

import contextlib
import io
import json

import pytest
import roce

from genie.cli import main

pytestmark = [pytest.mark.rdma, pytest.mark.timeout(600)]

SHORT = ("preflight.repeats=1", "preflight.message_bytes=64KiB", "preflight.load_bytes=1MiB", "preflight.pings=10",
         "timeout=60s", "tracking.mlflow.enabled=false")  # fmt: skip


def preflight(lab, folder, *words: str) -> dict:
    """The record of a preflight of the two machines over verbs."""
    where = (f"fabric.inventory={lab.inventory}", f"fabric.control_address={lab.state['control_address']}")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["preflight", "fabric=inventory", "transport=verbs", *where, *SHORT, f"run_dir={folder}",
                     f"out={folder.parent}", *words])  # fmt: skip
    assert code in (0, 4), out.getvalue()  # 4: emulated processors were too busy for a verdict
    return json.loads((folder / "preflight.json").read_text())


def test_perftest_and_the_engine_measure_the_same_wire(lab, clean, tmp_path, say):
    found = {}
    for tool in ("perftest", "engine"):
        record = preflight(lab, tmp_path / tool, *([] if tool == "perftest" else ["preflight.tool=engine"]))
        assert record["tool"] == tool  # perftest by itself, since both machines have it
        (rail,) = record["rails"]
        found[tool] = [rail["bandwidth_bps"][0][1], rail["bandwidth_bps"][1][0], rail["latency_ns"][0][1]]
        assert all(found[tool])
    for name, by_engine, by_perftest in zip(("vm1 to vm2", "vm2 to vm1", "latency"), *found.values(), strict=True):
        ratio = by_perftest / by_engine
        say(f"preflight over verbs, {name}: GENIE's engine over perftest {ratio:.2f}")
        assert 0.2 < ratio < 5  # emulated machines; what they are held to is measured where speed is


def test_a_lossy_wire_is_noted_by_what_its_ports_counted(wire, clean, tmp_path):
    rate = ("rate", f"{roce.RATE_MBPS}mbit")
    for name in wire.names:
        wire.output(name, "tc", "qdisc", "replace", "dev", "wire0", "root", "netem", *rate, "loss", "2%")
    record = preflight(wire, tmp_path / "lossy", "preflight.tool=engine")
    assert any(f"{roce.DEVICE} counted" in note and "seq" in note for note in record["notes"]), record["notes"]
