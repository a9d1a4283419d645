"""`transport=ofi` with the verbs provider of libfabric on Soft-RoCE: RDMA by another road than `transport=verbs`."""

import pytest
import roce
from held import metrics

from genie.errors import GenieError

pytestmark = [pytest.mark.rdma, pytest.mark.timeout(600)]

VERBS = ("transport=ofi", "transport.provider=verbs", "transport.connect_timeout=30s")
SIZE_BYTES = 24_000
WORDS = ("workload=collective", "workload.ranks=4", f"workload.sizes=[{SIZE_BYTES}]", "workload.iterations=2")


@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all"])
def test_collectives_arrive_whole_over_its_queue_pairs(lab, over_wire, clean, say, kind):
    before = roce.counters_of_all(lab)
    found = metrics(over_wire.race(*VERBS, *WORDS, f"workload.kind={kind}", "verify=true"))
    assert found["iterations_done"] == 3
    sent = {name: counted.get("sent_pkts", 0) for name, counted in roce.counted(lab, before).items()}
    say(f"{kind} over libfabric's verbs: packets sent by {sent}")
    assert all(packets >= SIZE_BYTES // roce.PAYLOAD_BYTES for packets in sent.values())


def test_a_device_that_is_not_there_is_refused_with_what_is(over_wire, clean):
    with pytest.raises(GenieError) as refused:
        over_wire.race(*VERBS, *WORDS, "transport.domain=mlx5_7")
    assert "domain 'mlx5_7'" in str(refused.value)
    assert "verbs;ofi_rxm (" in str(refused.value)
