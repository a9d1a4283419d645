"""Several ranks on the one Soft-RoCE device of a machine that is alone: RDMA with nothing between."""

from pathlib import Path

import pytest
import roce
import yaml
from held import metrics

pytestmark = [pytest.mark.rdma, pytest.mark.timeout(600)]

TRACE = Path(__file__).resolve().parents[1] / "data/traces/genie_allgather4"
SHARD_BYTES, RANKS = 64 << 10, 4


def test_ranks_of_one_machine_share_its_device(lab, machines, clean, tmp_path):
    inventory = yaml.safe_load(lab.inventory.read_text())
    del inventory["all"]["hosts"]["vm2"]
    del inventory["all"]["hosts"]["vm1"]["genie_links"]
    (tmp_path / "alone.yml").write_text(yaml.safe_dump(inventory))
    words = ("transport=verbs", "workload=chakra", f"workload.path={TRACE}", "workload.iterations=1", "warmup=0")
    before = roce.counters(lab, "vm1")
    found = metrics(machines.over(tmp_path / "alone.yml").race(*words, "verify=true"))
    assert [(entry["kind"], entry["ranks"]) for entry in found["collectives"]] == [("all_gather", RANKS)]
    # Each rank gets the shards of three others, every one in packets of the device to itself.
    packets = RANKS * (RANKS - 1) * SHARD_BYTES // roce.PAYLOAD_BYTES
    assert roce.counted(lab, {"vm1": before})["vm1"]["sent_pkts"] >= packets
