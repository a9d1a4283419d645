"""The tournament: every pair once, nobody twice in a round, no cable overloaded; and the job that is made of it."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.errors import ConfigError
from genie.workload import load
from genie.workload.check import check
from genie.workload.generators.pairs import round_text, tournament
from genie.workload.trace import OpKind


@given(st.integers(min_value=0, max_value=40))
def test_every_pair_meets_once_and_nobody_is_twice_in_a_round(count: int) -> None:
    rounds = tournament(count)
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(count), 2))
    for pairs in rounds:
        places = [place for pair in pairs for place in pair]
        assert len(places) == len(set(places))
    if count >= 2:
        assert len(rounds) == (count - 1 if count % 2 == 0 else count)


def names(trace, rank):
    return [op.name for op in trace.ranks[rank].operators]


def test_the_job_of_three_ranks_measures_latency_then_bandwidth_behind_barriers() -> None:
    trace = load({"name": "pairs", "ranks": 3, "pings": 2, "bytes": 1000})
    check(trace)
    own = names(trace, 0)
    assert [name for name in own if name.startswith("round")] == [f"round {n}" for n in range(6)]
    assert own.index("pong 0-2 #1") < own.index("load 0>1")
    assert {name for name in own if name.startswith("load")} == {"load 0>1", "load 1>0", "load 0>2", "load 2>0"}
    for op in trace.ranks[0].operators[1:]:
        assert op.data_deps == (op.id - 1,)  # one thing after the other: nothing of a rank overlaps


def test_a_pair_may_have_bytes_of_its_own() -> None:
    trace = load(
        {"name": "pairs", "ranks": 4, "pings": 0, "bandwidth_rounds": ["0-1:7 2-3", round_text([(1, 2)], [9])]}
    )
    check(trace)
    sizes = {op.name: op.bytes for rank in trace.ranks for op in rank.operators if op.kind is OpKind.SEND}
    assert sizes == {
        "load 0>1": 7, "load 1>0": 7, "load 2>3": 1_250_000, "load 3>2": 1_250_000, "load 1>2": 9, "load 2>1": 9,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"latency_rounds": ["0-1 1-2"]}, "has rank 1 twice"),
        ({"latency_rounds": ["1-0"]}, "the lower first"),
        ({"latency_rounds": ["0-8"]}, "expected two of 8 ranks"),
        ({"bandwidth_rounds": ["0-1:much"]}, "size"),
        ({"bandwidth_rounds": ["0+1"]}, "expected pairs such as"),
        ({"ranks": 1}, "at least 2"),
        ({"pings": 10_000_000}, "are more than"),
    ],
    ids=["rank-twice", "higher-first", "no-such-rank", "no-size", "no-pair", "one-rank", "too-many"],
)
def test_rounds_that_cannot_be_are_refused_by_key(keys, message) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load({"name": "pairs", **keys})
    assert caught.value.key.startswith("workload.")
