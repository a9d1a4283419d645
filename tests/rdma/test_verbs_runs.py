"""Runs of GENIE with `transport=verbs` on the lab's Soft-RoCE: what arrives, over how many queue pairs and rails."""

from pathlib import Path

import chakra_maker
import pytest
import roce
from held import metrics, running
from lab_runs import until

pytestmark = [pytest.mark.rdma, pytest.mark.timeout(600)]

TRACES = Path(__file__).resolve().parents[1] / "data/traces"
RANKS = 4
SIZE_BYTES = 24_000  # no multiple of a packet, and divisible by the ranks
ROOTED = ("broadcast", "reduce", "gather", "scatter")
ONCE = ("workload.iterations=1", "warmup=0")
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", *ROOTED, "barrier")


@pytest.fixture
def all_kinds(tmp_path):
    """A Chakra trace of four ranks that has each kind of collective, and sends around the ring."""
    folder = tmp_path / "kinds"
    folder.mkdir()
    for rank in range(RANKS):
        nodes, after = [], []
        for number, kind in enumerate(KINDS, start=1):
            size = 0 if kind == "barrier" else SIZE_BYTES
            nodes.append(chakra_maker.coll(number, kind, size, ctrl=after))
            after = [number]
        send, receive = len(KINDS) + 1, len(KINDS) + 2
        nodes.append(chakra_maker.send(send, (rank + 1) % RANKS, SIZE_BYTES, ctrl=after))
        nodes.append(chakra_maker.recv(receive, (rank - 1) % RANKS, SIZE_BYTES, ctrl=after))
        (folder / f"kinds.{rank}.et").write_bytes(chakra_maker.et(*nodes))
    return folder


def of_kind(found, kind):
    return next(entry for entry in found["collectives"] if entry["kind"] == kind)


@pytest.mark.sample(1)
@pytest.mark.parametrize("collective", ["auto", "tree", "halving_doubling"])
def test_every_collective_arrives_whole(over_wire, clean, all_kinds, collective):
    words = ("workload=chakra", f"workload.path={all_kinds}", "workload.iterations=2", f"collective={collective}")
    found = metrics(over_wire.race("transport=verbs", *words, "verify=true"))
    assert {entry["kind"] for entry in found["collectives"]} == {*KINDS, "send_recv"}
    assert (found["world"], found["iterations_done"]) == (RANKS, 3)


def test_a_trace_of_a_model_is_replayed(over_wire, clean, say):
    path = f"workload.path={TRACES / 'stg_llama_tp2pp2/w'}"
    found = metrics(over_wire.race("transport=verbs", "workload=chakra", path, "workload.device=h100", *ONCE))
    seconds = found["iteration"]["median"]["value"] / 1e9
    say(f"Llama over verbs, TP 2 within a machine, PP 2 over the wire: {seconds:.2f} s an iteration")
    assert (found["world"], found["iterations_done"]) == (RANKS, 1)


@pytest.mark.sample(1)
@pytest.mark.parametrize("split", ["false", "true"], ids=["in turns", "split"])
def test_two_ranks_have_four_queue_pairs_in_each_direction(lab, over_wire, clean, split):
    words = ("workload=collective", "workload.ranks=2", "workload.sizes=[256KiB]", "workload.iterations=30")
    pairs = ("transport.qps_per_connection=4", f"transport.split={split}")
    with running(over_wire, "transport=verbs", *words, *pairs, "verify=true") as run:
        until(lambda: run.done() or len(roce.resources(lab, "vm1", "qp")) == 2 * 4, "no eight queue pairs", 60)
        assert not run.done(), "it was over before its queue pairs were seen"
        found = metrics(run.result())
    assert found["iterations_done"] == 31


def test_each_rank_of_a_machine_has_a_rail_of_its_own_one_through_a_switch(switched, over_wire, clean, tmp_path):
    """Ranks 0 and 2 are on the wire, 1 and 3 at the switch, which no rank of the other rail can reach."""
    rails = [roce.DEVICE, roce.SWITCH_DEVICE]
    for rank in range(RANKS):
        peer = (rank + 2) % RANKS
        nodes = [chakra_maker.send(1, peer, SIZE_BYTES), chakra_maker.recv(2, peer, SIZE_BYTES)]
        (tmp_path / f"pairs.{rank}.et").write_bytes(chakra_maker.et(*nodes))
    before = {device: roce.counters_of_all(switched, device) for device in rails}
    words = ("workload=chakra", f"workload.path={tmp_path / 'pairs'}", *ONCE, "verify=true")
    found = metrics(over_wire.race("transport=verbs", f"transport.devices=[{','.join(rails)}]", *words))
    assert of_kind(found, "send_recv")["calls"] == RANKS
    for device in rails:
        for counted in roce.counted(switched, before[device], device).values():
            assert counted["sent_pkts"] >= SIZE_BYTES // roce.PAYLOAD_BYTES
