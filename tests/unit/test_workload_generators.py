"""Generators: every byte and ns as documented, consistent over ranks, the same for the same seed."""

from dataclasses import fields, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.errors import ConfigError
from genie.workload import load
from genie.workload.check import check
from genie.workload.config import (
    WORKLOADS,
    ChakraConfig,
    CollectiveConfig,
    DpConfig,
    FsdpConfig,
    MoeConfig,
    TpPpConfig,
    from_mapping,
)
from genie.workload.generators.collective import sizes_of
from genie.workload.generators.graph import buckets
from genie.workload.generators.moe import route, share
from genie.workload.generators.tp_pp import groups, schedule
from genie.workload.trace import CollectiveKind, OpKind

GENERATED = [name for name in WORKLOADS if name != "chakra"]
BYTES_PER_S = 12.5e6  # 100 Mb/s, each way


def wire_bytes(checked):
    """Bytes each rank sends and receives with bandwidth-optimal algorithms."""
    sent, received = [0.0] * checked.trace.world, [0.0] * checked.trace.world
    factor = {
        "all_reduce": lambda n: 2 * (n - 1) / n,
        "reduce_scatter": lambda n: (n - 1) / n,
        "all_gather": lambda n: n - 1,
        "barrier": lambda n: 0,
    }
    for call in checked.calls:
        if call.kind is None:
            sent[call.ranks[0]] += call.bytes
            received[call.ranks[1]] += call.bytes
        elif call.vectors:
            for i, vector in enumerate(call.vectors):
                for j, size in enumerate(vector):
                    if i != j:
                        sent[call.ranks[i]] += size
                        received[call.ranks[j]] += size
        else:
            for rank in call.ranks:
                sent[rank] += factor[call.kind](len(call.ranks)) * call.bytes
                received[rank] += factor[call.kind](len(call.ranks)) * call.bytes
    return sent, received


@pytest.mark.parametrize("name", GENERATED)
def test_default_is_consistent_and_takes_about_a_second_of_network(name):
    trace = load({"name": name})
    checked = check(trace)
    sent, received = wire_bytes(checked)
    assert sum(sent) == pytest.approx(sum(received))
    network_s = max(sent + received) / BYTES_PER_S
    compute_s = max(sum(op.duration_ns or 0 for op in rank.operators) for rank in trace.ranks) / 1e9
    assert 0.6 <= network_s <= 1.1
    assert compute_s <= 0.4 * network_s, "defaults are dominated by communication"
    assert trace.parameters["name"] == name
    assert trace.parameters["iterations"] == 8


@pytest.mark.parametrize("name", GENERATED)
def test_ids_are_in_topological_order_and_durations_are_filled(name):
    for rank in load({"name": name}).ranks:
        assert [op.id for op in rank.operators] == list(range(1, len(rank.operators) + 1))
        for op in rank.operators:
            assert all(dep < op.id for dep in op.data_deps)
            assert op.kind is not OpKind.COMPUTE or op.duration_ns is not None


@pytest.mark.parametrize("name", GENERATED)
def test_ranks_can_be_other_than_eight(name):
    for ranks in (4, 16):
        check(load({"name": name, "ranks": ranks}))


def test_moe_is_a_function_of_its_seed():
    one, same, other = load({"name": "moe"}), load({"name": "moe"}), load({"name": "moe", "seed": 2})
    assert one.ranks == same.ranks
    assert one.ranks != other.ranks


def test_moe_dispatch_follows_the_formula_and_combine_is_its_transpose():
    config = MoeConfig()
    trace = load(config)
    token_bytes = config.hidden * 2
    for rank in trace.ranks:
        exchanges = [op for op in rank.operators if op.collective is CollectiveKind.ALL_TO_ALL]
        assert len(exchanges) == 4 * config.layers * config.micro_batches
        for op in exchanges:
            if op.name.endswith(" dispatch") and op.name.startswith("fwd"):
                assert op.bytes == config.micro_batch * config.sequence * config.top_k * token_bytes
    by_name = [{op.name: op for op in rank.operators} for rank in trace.ranks]
    for name in by_name[0]:
        if name.endswith(" dispatch") and name.startswith("fwd"):
            back = name.replace("dispatch", "combine")
            for i in range(config.ranks):
                for j in range(config.ranks):
                    assert by_name[i][name].per_peer_bytes[j] == by_name[j][back].per_peer_bytes[i]


def test_moe_without_imbalance_is_even():
    for layer in route(MoeConfig(imbalance=0.0)):
        for batch in layer:
            assert {count for row in batch.tokens for count in row} == {192 * 2 // 8}


def test_moe_imbalance_shows():
    loads = [batch.load(rank) for layer in route(MoeConfig()) for batch in layer for rank in range(8)]
    assert max(loads) > 1.15 * sum(loads) / len(loads)


def test_moe_capacity_drops_and_says_so():
    trace = load({"name": "moe", "capacity_factor": 1.0})
    assert any("capacity_factor 1 drops" in note for note in trace.notes)
    check(trace)


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.integers(1, 6),
    held=st.integers(1, 3),
    layers=st.integers(1, 3),
    batches=st.integers(1, 3),
    tokens=st.integers(1, 70),
    top_k=st.integers(1, 6),
    imbalance=st.floats(0, 4),
    seed=st.integers(0, 2**32),
)
def test_moe_routes_every_choice_once(ranks, held, layers, batches, tokens, top_k, imbalance, seed):
    experts = ranks * held
    config = MoeConfig(
        ranks=ranks, experts=experts, layers=layers, micro_batches=batches, sequence=tokens,
        top_k=min(top_k, experts), imbalance=imbalance, seed=seed, hidden=8, ffn=8,
    )  # fmt: skip
    for layer in route(config):
        for batch in layer:
            assert all(sum(row) == tokens * config.top_k for row in batch.tokens)
            assert all(max(row) <= tokens * held for row in batch.tokens)
            assert sum(batch.load(rank) for rank in range(ranks)) == ranks * tokens * config.top_k
    checked = check(load(config))
    sent, received = wire_bytes(checked)
    assert sum(sent) == pytest.approx(sum(received))


@given(st.integers(0, 500), st.lists(st.floats(0.01, 100), min_size=1, max_size=9))
def test_share_loses_nothing(total, weights):
    most = -(-total // len(weights))
    kept = share(total, weights, most, keeps_all=True)
    assert sum(kept) == total
    assert max(kept) <= most
    assert sum(share(total, weights, most, keeps_all=False)) <= total


def test_dp_reduces_every_gradient_once():
    config = DpConfig(layers=5, micro_batches=3)
    layer_bytes = (4 * config.hidden**2 + 2 * config.hidden * config.ffn) * 2
    for rank in load(config).ranks:
        reduced = [op.bytes for op in rank.operators if op.kind is OpKind.COLLECTIVE]
        assert sum(reduced) == 5 * layer_bytes


def test_fsdp_gathers_shards_and_scatters_padded_gradients():
    config = FsdpConfig(ranks=7, layers=3, micro_batches=2)
    layer_bytes = (4 * config.hidden**2 + 2 * config.hidden * config.ffn) * 2
    shard = -(-layer_bytes // 7)
    for rank in load(config).ranks:
        gathers = [op.bytes for op in rank.operators if op.collective is CollectiveKind.ALL_GATHER]
        scatters = [op.bytes for op in rank.operators if op.collective is CollectiveKind.REDUCE_SCATTER]
        assert gathers == [shard] * (2 * (2 * 3 - 1))
        assert scatters == [7 * shard] * (2 * 3)


def test_fsdp_prefetch_overlaps():
    def waits(prefetch):
        rank = load(FsdpConfig(prefetch=prefetch)).ranks[0]
        names = {op.id: op.name for op in rank.operators}
        gather = next(op for op in rank.operators if op.name == "fwd layer1 mb0 all_gather")
        return [names[dep] for dep in gather.data_deps]

    assert waits(0) == ["fwd layer0 mb0"]
    assert waits(1) == []


@pytest.mark.parametrize("prefetch", [0, 1, 2, 9])
def test_fsdp_is_checked_for_any_prefetch(prefetch):
    check(load(FsdpConfig(prefetch=prefetch, layers=4, micro_batches=2)))


def test_tp_pp_groups_follow_megatron():
    found = groups(TpPpConfig())
    assert found["tp0"] == (0, 1)
    assert found["dp0"] == (0, 2)
    assert found["dp2"] == (4, 6)
    assert found["pp3"] == (3, 7)
    assert "tp0" not in groups(TpPpConfig(tp=1, pp=8))


def test_one_f_one_b_schedule():
    assert schedule(0, 2, 3) == [("fwd", 0), ("fwd", 1), ("bwd", 0), ("fwd", 2), ("bwd", 1), ("bwd", 2)]
    assert schedule(1, 2, 2) == [("fwd", 0), ("bwd", 0), ("fwd", 1), ("bwd", 1)]


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([1, 2, 3]),
    st.integers(1, 7),
    st.integers(1, 3),
)
def test_tp_pp_never_deadlocks(tp, pp, dp, batches, per_stage):
    config = TpPpConfig(
        ranks=tp * pp * dp, tp=tp, pp=pp, layers=pp * per_stage, micro_batches=batches, hidden=12, ffn=12, sequence=4
    )
    checked = check(load(config))
    messages = [call for call in checked.calls if call.kind is None]
    assert len(messages) == 2 * (pp - 1) * batches * tp * dp
    # Serial execution in the given order must not deadlock: the order is one order of the whole job.
    for rank, needs in enumerate(checked.needs):
        assert all(need < index for index, wants in enumerate(needs) for need in wants), rank


def test_collective_sizes_follow_nccl_tests():
    assert sizes_of(CollectiveConfig(min_bytes="1KiB", max_bytes="16KiB", factor=4)) == [1024, 4096, 16384]
    assert sizes_of(CollectiveConfig(sizes=("1KiB", 7))) == [1024, 7]
    ops = load(CollectiveConfig(kind="all_gather", sizes=(1000,), ranks=3)).ranks[0].operators
    assert [op.bytes for op in ops] == [334]
    trace = load(CollectiveConfig(kind="reduce_scatter", sizes=(1000,), ranks=3))
    assert trace.ranks[0].operators[0].bytes == 1002
    assert "rounded up" in trace.notes[0]


@pytest.mark.parametrize("kind", [*map(str, CollectiveKind), "send_recv"])
def test_collective_of_every_kind(kind):
    checked = check(load(CollectiveConfig(kind=kind, ranks=5, repeats=2)))
    assert checked.calls
    for before, after in pairwise(checked.trace.ranks[0].operators):
        assert before.id < after.id


def test_buckets_close_when_full():
    assert buckets([4, 4, 4], 8) == [([0, 1], 8), ([2], 4)]
    assert buckets([9], 1) == [([0], 9)]


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"name": "mo"}, "did you mean 'moe'?"),
        ({"name": "moe", "expert": 8}, "workload.expert: workload 'moe' has no such key\n  did you mean 'experts'?"),
        ({"name": "moe", "experts": 7}, "workload.experts: 7 experts cannot be spread evenly over 8 ranks"),
        ({"name": "moe", "experts": "8"}, "workload.experts: expected an integer, found '8'"),
        ({"name": "moe", "ranks": True}, "workload.ranks: expected an integer, found True"),
        ({"name": "moe", "ranks": 0}, "workload.ranks: expected at least 1, found 0"),
        ({"name": "collective", "ranks": 20000}, "workload.ranks: expected at most 2048 ranks, found 20000"),
        ({"name": "moe", "layers": 10**8}, "workload.layers: 8 ranks × 100000000 layers × 2 micro-batches are more"),
        ({"name": "chakra", "replicate_ranks": 10**5}, "workload.replicate_ranks: expected at most 2048 ranks"),
        ({"name": "moe", "top_k": 99}, "workload.top_k: a token cannot choose 99 of 16 experts"),
        ({"name": "moe", "imbalance": -1}, "workload.imbalance: expected a number from 0 to 5"),
        ({"name": "moe", "imbalance": float("nan")}, "workload.imbalance: expected a number from 0 to 5"),
        ({"name": "moe", "device": "h1000"}, "workload.device: no device 'h1000'\n  did you mean 'h100'?"),
        ({"name": "moe", "dtype": "bf32"}, "workload.dtype: no data type 'bf32'"),
        ({"name": "moe", "efficiency": 0}, "workload.efficiency: expected a part of the peak in (0, 1], found 0"),
        ({"name": "moe", "scale_down": 0}, "workload.scale_down: expected a number above 0"),
        ({"name": "moe", "bucket": "5 parsecs"}, "workload.bucket: expected a size such as '512KiB'"),
        ({"name": "moe", "iterations": 0}, "workload.iterations: expected at least 1, found 0"),
        ({"name": "moe", "control_deps": "maybe"}, "workload.control_deps: no such choice 'maybe'"),
        ({"name": "moe", "compute_scale": -1}, "workload.compute_scale: expected a finite number of at least 0"),
        ({"name": "tp_pp", "ranks": 6}, "workload.ranks: 6 ranks cannot be split into tp 2 × pp 2 × dp"),
        ({"name": "tp_pp", "layers": 3}, "workload.layers: 3 layers cannot be split evenly over 2 pipeline stages"),
        ({"name": "tp_pp", "tp": 8, "pp": 1, "hidden": 12}, "workload.tp: hidden and ffn must be multiples of tp = 8"),
        ({"name": "collective", "kind": "allreduce"}, "did you mean 'all_reduce'?"),
        ({"name": "collective", "ranks": 1}, "workload.ranks: a collective needs at least 2 ranks"),
        ({"name": "collective", "root": 8}, "workload.root: expected a rank from 0 to 7, found 8"),
        ({"name": "collective", "factor": 1}, "workload.factor: expected at least 2, found 1"),
        ({"name": "collective", "max_bytes": 1}, "workload.max_bytes: 1 B is below workload.min_bytes (4 KiB)"),
        ({"name": "collective", "sizes": {"a": 1}}, "workload.sizes: expected a list of sizes"),
        ({"name": "fsdp", "prefetch": -1}, "workload.prefetch: expected at least 0, found -1"),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_mistakes_are_named(values, part):
    with pytest.raises(ConfigError) as caught:
        load(values)
    assert part in str(caught.value)


def test_control_deps_may_be_a_yaml_truth_value():
    assert from_mapping({"name": "chakra", "control_deps": False}).control_deps == "off"
    assert from_mapping({"name": "chakra", "control_deps": True}).control_deps == "on"


def test_compute_scale_stretches_durations_and_is_noted():
    plain, slow = load({"name": "dp"}), load({"name": "dp", "compute_scale": 2.0})
    for a, b in zip(plain.ranks[0].operators, slow.ranks[0].operators, strict=True):
        assert b.duration_ns == (a.duration_ns * 2 if a.duration_ns is not None else None)
    assert "multiplied by 2" in slow.notes[-1]


def test_yaml_files_hold_the_defaults():
    from pathlib import Path

    import yaml

    for name, (kind, description) in WORKLOADS.items():
        path = Path(__file__).parents[2] / "conf" / "workload" / f"{name}.yaml"
        text = path.read_text()
        assert text.splitlines()[0] == f"# {description}"
        values = yaml.safe_load(text)
        values = {key: value for key, value in values.items() if value != "${seed}"}  # the experiment's own seed
        assert from_mapping(values) == kind()


def test_every_workload_has_the_common_keys():
    for name, (kind, _) in WORKLOADS.items():
        assert {"name", "iterations", "device", "compute_scale", "control_deps"} <= {
            field.name for field in fields(kind)
        }
        assert kind().name == name
    assert replace(ChakraConfig(), path="x").path == "x"
