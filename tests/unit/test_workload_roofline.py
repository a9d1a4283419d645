"""Compute time from work, and the texts about a workload."""

import pytest

from genie.errors import ConfigError, TraceError
from genie.workload import describe, load
from genie.workload.excerpt import excerpt, label
from genie.workload.generators.graph import Layer, clock
from genie.workload.roofline import DEVICES, device, fill_durations, scale_durations
from genie.workload.trace import Operator, OpKind, RankTrace, Trace


def trace(*operators):
    return Trace([RankTrace(0, list(operators), "hand")], {"": (0,)})


def work(flops=0, memory_bytes=0, duration_ns=None, kind=OpKind.COMPUTE):
    return Operator(1, "x", kind, duration_ns=duration_ns, flops=flops, memory_bytes=memory_bytes)


@pytest.mark.parametrize(
    ("flops", "memory_bytes", "ns"),
    [(312_000_000, 0, 1000), (0, 2_039_000, 1000), (312_000_000, 4_078_000, 2000), (1, 1, 1)],
    ids=["bound by compute", "bound by memory", "the larger of both", "never nothing"],
)
def test_roofline_of_an_a100(flops, memory_bytes, ns):
    assert device("a100").duration_ns(flops, memory_bytes) == ns


def test_devices_have_names_and_positive_peaks():
    for name, found in DEVICES.items():
        assert found.name == name
        assert found.peak_flops > 1e14
        assert found.memory_bytes_per_s > 5e11


def test_recorded_durations_are_never_replaced():
    job = trace(work(flops=10**15, duration_ns=7))
    fill_durations(job, "h100")
    assert job.ranks[0].operators[0].duration_ns == 7
    assert not job.notes


def test_memory_operators_take_the_bandwidth():
    job = trace(work(memory_bytes=3_350_000, kind=OpKind.MEMORY))
    fill_durations(job, "h100")
    assert job.ranks[0].operators[0].duration_ns == 1000
    assert job.notes == ["1 durations come from the roofline of h100: the trace has none for them"]


def test_unknown_time_and_unknown_device_are_named():
    with pytest.raises(TraceError, match="neither a duration nor FLOPs"):
        fill_durations(trace(work()), "h100")
    with pytest.raises(TraceError, match=r"name the device it ran on: workload\.device=a100"):
        fill_durations(trace(work(flops=5)), "")
    with pytest.raises(ConfigError, match="did you mean 'h100'"):
        fill_durations(trace(work(flops=5)), "h10")


def test_scale_of_zero_leaves_no_computation():
    job = trace(work(duration_ns=7))
    scale_durations(job, 0.0)
    assert job.ranks[0].operators[0].duration_ns == 0


def test_layer_formulas():
    layer = Layer(hidden=8, ffn=32, tokens=10, sequence=5, dtype_bytes=2)
    assert layer.parameters == 4 * 64 + 2 * 8 * 32
    assert layer.activation_bytes == 160
    assert layer.attention_flops() == 2 * 10 * 256 + 4 * 10 * 5 * 8
    assert layer.ffn_flops() == 2 * 10 * 512
    half = Layer(hidden=8, ffn=32, tokens=10, sequence=5, dtype_bytes=2, tp=2)
    assert half.parameters * 2 == layer.parameters
    assert half.attention_flops() * 2 == layer.attention_flops()


def test_clock_slows_the_device():
    fast, slow = clock("h100", 0.5, 1.0), clock("h100", 0.5, 4000.0)
    assert fast.ns(989_500_000, 0) == 2000
    assert slow.ns(989_500_000, 0) == 8_000_000


def test_many_ranks_are_told_in_short():
    text = describe({"name": "dp", "ranks": 40}, detail=True)
    assert "… and 24 more ranks" in text
    assert text.endswith("can be replayed: yes")


def test_describe_needs_a_trace_that_can_be_replayed_unless_details_are_asked():
    assert describe({"name": "collective"}).startswith("ok: 8 ranks, 48 operators, 6 collectives, 0 messages")
    assert load({"name": "moe"}).parameters["seed"] == 1


def test_excerpts_are_short_and_escaped():
    assert excerpt("a\x1b[31m") == "'a\\x1b[31m'"
    assert len(excerpt("x" * 10**6)) <= 125
    assert len(excerpt(list(range(10**5)))) <= 125
    assert excerpt([1, 2]) == "[1, 2]"
    assert label(3, "y") == "3 'y'"
