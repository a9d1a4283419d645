"""What becomes of traces from public repositories: replayed with known counts, or refused for a true reason."""

from collections import Counter
from pathlib import Path

import pytest

from genie.errors import TraceError
from genie.workload import describe, load
from genie.workload.check import check

DATA = Path(__file__).parent.parent / "data" / "traces"


def counted(folder, **options):
    checked = check(load({"name": "chakra", "path": str(DATA / folder), **options}))
    return checked, Counter(str(call.kind) if call.kind else "message" for call in checked.calls)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all", "reduce_scatter"])
def test_micro_benchmarks(kind):
    checked, calls = counted(f"astrasim_micro/{kind}")
    assert calls == {kind: 1}
    assert checked.calls[0].bytes == 2**20
    assert checked.calls[0].ranks == (0, 1, 2, 3)


def test_sparse_id_of_the_prototype_example():
    checked, calls = counted("genie_allgather4")
    assert calls == {"all_gather": 1}
    assert checked.calls[0].nodes == (40, 41, 42, 43)


def test_first_schema_is_converted_and_not_misread():
    checked, calls = counted("chakra_v001_eg")
    assert not calls
    assert [str(op.kind) for op in checked.trace.ranks[0].operators] == ["compute", "compute"]
    assert all(op.duration_ns and op.duration_ns % 1000 == 0 for op in checked.trace.ranks[0].operators)


STG = {"all_gather": 24, "reduce_scatter": 16, "all_reduce": 2, "message": 8}


@pytest.mark.parametrize("form", ["stg_llama_tp2pp2", "stg_llama_tp2pp2_v001", "stg_llama_tp2pp2_json"])
def test_the_same_graph_in_three_forms(form):
    checked, calls = counted(form, device="a100")
    assert calls == STG
    reference, _ = counted("stg_llama_tp2pp2", device="a100")
    for rank, other in zip(checked.trace.ranks, reference.trace.ranks, strict=True):
        mine = {
            op.id: (op.kind, op.bytes, op.comm, op.peer, op.duration_ns, set(op.data_deps)) for op in rank.operators
        }
        assert mine == {
            op.id: (op.kind, op.bytes, op.comm, op.peer, op.duration_ns, set(op.data_deps)) for op in other.operators
        }


REFUSED = {
    "stg_llama_tp2pp2": "has no duration, but 1310720 FLOPs",
    "resnet50_two_ranks": "all_reduce without comm_size",
    "chakra_feeder_json": "is a collective without comm_type",
    "pytorch_host_et": "neither how long they took nor which kernels ran",
    "astrasim_micro": "no trace files, but folders: all_gather, all_reduce, all_to_all, reduce_scatter",
}


@pytest.mark.parametrize("folder", REFUSED)
def test_refused_for_a_true_reason(folder):
    with pytest.raises(TraceError) as caught:
        counted(folder)
    assert REFUSED[folder] in str(caught.value)


def test_info_tells_what_is_in_it_and_what_hinders_it():
    text = describe({"name": "chakra", "path": str(DATA / "stg_llama_tp2pp2")}, detail=True)
    assert "durations: 0 recorded, 280 absent" in text
    assert "can be replayed: no: " in text
    assert "name the device it ran on" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["0", "93", "68", "21", "2", "2", "unknown"] in lines
    assert ["5", "2", "all_gather", "12", "256", "KiB", "256", "KiB", "3", "MiB"] in lines


def test_check_is_one_line_and_notes():
    text = describe({"name": "chakra", "path": str(DATA / "stg_llama_tp2pp2"), "device": "h100"})
    first, *notes = text.splitlines()
    assert first == "ok: 4 ranks, 380 operators, 42 collectives, 8 messages"
    assert all(note.startswith("note: ") for note in notes)
    assert any("280 durations come from the roofline of h100" in note for note in notes)
