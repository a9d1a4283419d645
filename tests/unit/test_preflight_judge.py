"""What is out of line is named: a host, a direction of it, a pair, all of it; and nothing where nothing is."""

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.preflight.config import PreflightConfig
from genie.preflight.judge import judge
from genie.preflight.record import Matrices, matrix_of
from genie.preflight.schedule import Way

GBPS = 1e9
RATE = 100_000_000_000
NEAR, FAR = Way(2, RATE), Way(4, RATE)


def hosts(count: int) -> tuple[str, ...]:
    return tuple(f"h{n}" for n in range(count))


def one_switch(count: int) -> dict[tuple[int, int], Way]:
    return dict.fromkeys(combinations(range(count), 2), NEAR)


def two_leaves(count: int) -> dict[tuple[int, int], Way]:
    return {(a, b): NEAR if (a < count // 2) == (b < count // 2) else FAR for a, b in combinations(range(count), 2)}


def healthy(count: int, seed: int = 1, far: float = 1.0, bandwidth_gbps: float = 95.0) -> Matrices:
    """A network with the noise of a real one; ``far`` multiplies the latency between the halves."""
    rng = random.Random(seed)
    cells = [(a, b) for a in range(count) for b in range(count) if a != b]
    bandwidth = {cell: bandwidth_gbps * GBPS * rng.gauss(1, 0.004) for cell in cells}
    latency = {(a, b): 2000 * rng.gauss(1, 0.03) * (far if (a < count // 2) != (b < count // 2) else 1)
               for a, b in combinations(range(count), 2)}  # fmt: skip
    latency |= {(b, a): value for (a, b), value in latency.items()}
    matrix = matrix_of(count, bandwidth)
    return Matrices("", matrix, matrix, matrix, matrix_of(count, latency))


def changed(found: Matrices, factor, *, what="bandwidth_bps") -> Matrices:
    """The same with every value multiplied by ``factor(from, to)``."""
    count = len(found.bandwidth_bps)
    values = {(a, b): value * factor(a, b) for a in range(count) for b in range(count)
              if (value := getattr(found, what)[a][b]) is not None}  # fmt: skip
    parts = {name: getattr(found, name) for name in Matrices.__slots__}
    return Matrices(**{**parts, what: matrix_of(count, values)})


def named(verdict):
    return [(finding.what, finding.where, finding.hosts) for finding in verdict.findings]


@pytest.mark.parametrize("count", [4, 5, 8, 16])
@pytest.mark.parametrize("ways", [one_switch, two_leaves])
def test_a_healthy_network_is_ok(count, ways) -> None:
    for seed in range(5):
        verdict = judge([healthy(count, seed, far=3.0 if ways is two_leaves else 1)], hosts(count), ways(count),
                        PreflightConfig())  # fmt: skip
        assert (verdict.word, verdict.findings) == ("ok", ())


PLANTED = {
    "a host both ways": (lambda a, b: 0.5 if 3 in (a, b) else 1, [("bandwidth", "host", ("h3",))]),
    "what a host sends": (lambda a, b: 0.7 if a == 3 else 1, [("bandwidth", "sends", ("h3",))]),
    "what a host receives": (lambda a, b: 0.7 if b == 3 else 1, [("bandwidth", "receives", ("h3",))]),
    "one direction of a pair": (lambda a, b: 0.6 if (a, b) == (1, 2) else 1, [("bandwidth", "pair", ("h1", "h2"))]),
    "both directions of a pair": (
        lambda a, b: 0.6 if {a, b} == {1, 2} else 1,
        [("bandwidth", "pair", ("h1", "h2")), ("bandwidth", "pair", ("h2", "h1"))],
    ),
    "a host and a pair": (
        lambda a, b: 0.5 if 3 in (a, b) else 0.7 if (a, b) == (0, 1) else 1,
        [("bandwidth", "host", ("h3",)), ("bandwidth", "pair", ("h0", "h1"))],
    ),
    "the whole of it": (lambda a, b: 0.3, [("bandwidth", "all", ())]),
    "less than the margin": (lambda a, b: 0.95 if a == 3 else 1, []),
}


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("ways", [one_switch, two_leaves])
def test_what_was_planted_is_named(planted, count, ways) -> None:
    factor, expected = PLANTED[planted]
    verdict = judge([changed(healthy(count), factor)], hosts(count), ways(count), PreflightConfig())
    assert sorted(named(verdict)) == sorted(expected)
    assert verdict.word == ("degraded" if expected else "ok")


def test_two_slow_hosts_of_eight_are_both_named() -> None:
    found = changed(healthy(8), lambda a, b: 0.5 if {a, b} & {2, 6} else 1)
    verdict = judge([found], hosts(8), one_switch(8), PreflightConfig(port_least_ratio=0))
    assert sorted(named(verdict)) == [("bandwidth", "host", ("h2",)), ("bandwidth", "host", ("h6",))]


def test_a_host_is_named_by_what_three_hosts_alone_can_tell() -> None:
    found = changed(healthy(3), lambda a, b: 0.5 if 0 in (a, b) else 1)
    verdict = judge([found], hosts(3), one_switch(3), PreflightConfig(port_least_ratio=0))
    assert named(verdict) == [("bandwidth", "host", ("h0",))]


def test_latency_names_a_host_and_a_pair() -> None:
    def factor(a, b):
        return 3 if 5 in (a, b) else 4 if {a, b} == {0, 1} else 1

    found = changed(healthy(8, far=2.0), factor, what="latency_ns")
    verdict = judge([found], hosts(8), two_leaves(8), PreflightConfig())
    assert named(verdict) == [("latency", "host", ("h5",)), ("latency", "pair", ("h0", "h1"))]
    assert "h5 takes" in verdict.why


def test_longer_ways_are_not_slow_ones() -> None:
    """Two of eight hosts are far away: their latency is not held against that of the others."""
    ways = {pair: FAR if 7 in pair or 6 in pair else NEAR for pair in combinations(range(8), 2)}
    found = changed(healthy(8), lambda a, b: 3 if {6, 7} & {a, b} else 1, what="latency_ns")
    assert judge([found], hosts(8), ways, PreflightConfig()).word == "ok"


def test_ports_say_what_two_hosts_cannot() -> None:
    half = healthy(2, bandwidth_gbps=40)
    verdict = judge([half], hosts(2), one_switch(2), PreflightConfig())
    assert verdict.word == "degraded"
    assert "their ports allow 100 Gb/s" in verdict.why
    assert judge([half], hosts(2), one_switch(2), PreflightConfig(port_least_ratio=0)).word == "measured"
    unknown = {(0, 1): Way(2, 0)}
    assert judge([half], hosts(2), unknown, PreflightConfig()).word == "measured"


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (lambda a, b: 0.8, [("bandwidth", "all", ())]),
        (lambda a, b: 0.85 if a == 2 else 1, [("bandwidth", "sends", ("h2",))]),
        (lambda a, b: 1.2, []),
    ],
    ids=["all-of-it", "one-host", "faster"],
)
def test_the_last_time_is_held_against_it(factor, expected) -> None:
    then = healthy(6, seed=1)
    now = changed(healthy(6, seed=2), factor)
    verdict = judge([now], hosts(6), one_switch(6), PreflightConfig(port_least_ratio=0), [then])
    assert named(verdict) == expected
    for finding in verdict.findings:
        assert "before" in finding.against


def test_noise_of_latency_between_two_times_is_none() -> None:
    rng = random.Random(5)
    then = healthy(8)
    now = changed(then, lambda a, b: rng.uniform(0.6, 1.9), what="latency_ns")
    assert judge([now], hosts(8), one_switch(8), PreflightConfig(), [then]).findings == ()


def test_what_was_not_measured_is_not_judged() -> None:
    nothing = matrix_of(4, {})
    verdict = judge([Matrices("", nothing, nothing, nothing, nothing)], hosts(4), one_switch(4), PreflightConfig())
    assert (verdict.word, verdict.why) == ("invalid", "nothing was measured to its end")
    few = matrix_of(4, {(0, 1): 95 * GBPS, (2, 3): 40 * GBPS})
    part = Matrices("", few, few, few, nothing)
    assert named(judge([part], hosts(4), one_switch(4), PreflightConfig())) == [("bandwidth", "pair", ("h2", "h3"))]


def test_rails_are_judged_apart_and_named() -> None:
    good, bad = healthy(4), changed(healthy(4), lambda a, b: 0.4 if a == 1 else 1)
    rails = [Matrices("mlx5_0", *[getattr(good, n) for n in Matrices.__slots__[1:]]),
             Matrices("mlx5_1", *[getattr(bad, n) for n in Matrices.__slots__[1:]])]  # fmt: skip
    verdict = judge(rails, hosts(4), one_switch(4), PreflightConfig())
    assert [(f.where, f.hosts, f.rail) for f in verdict.findings] == [("sends", ("h1",), "mlx5_1")]
    assert verdict.findings[0].text.endswith("on rail mlx5_1")


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(4, 10),
    seed=st.integers(0, 2**16),
    slow=st.integers(0, 9),
    factor=st.floats(0.05, 0.75),
    where=st.sampled_from(["host", "sends", "receives"]),
)
def test_one_slow_host_is_the_one_finding_whoever_and_however_slow(count, seed, slow, factor, where) -> None:
    slow %= count

    def planted(a, b):
        hit = {"host": slow in (a, b), "sends": a == slow, "receives": b == slow}[where]
        return factor if hit else 1

    verdict = judge([changed(healthy(count, seed), planted)], hosts(count), one_switch(count), PreflightConfig())
    assert named(verdict) == [("bandwidth", where, (f"h{slow}",))]
