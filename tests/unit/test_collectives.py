"""Every algorithm, proved for every kind it can do: 2 to 17 ranks, all roots, channels, odd sizes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genie.collectives import ALGORITHMS, ROOTED, Options, able, build, default_for, double_binary_tree
from genie.collectives.check import check, check_sizes
from genie.collectives.program import SizeKind, StepKind
from genie.errors import ConfigError
from genie.workload.trace import CollectiveKind as Kind

PAIRS = [(name, kind) for name, algorithm in ALGORITHMS.items() for kind in sorted(algorithm.kinds)]
IDS = [f"{name}-{kind.value}" for name, kind in PAIRS]
ODD = 1_000_003
every_pair = pytest.mark.parametrize(("name", "kind"), PAIRS, ids=IDS)


def job(name, kind, ranks, channels=0, root=0, **options):
    channels = max(channels, ALGORITHMS[name].min_channels)
    return [build(name, kind, rank, ranks, channels, root, Options(**options)) for rank in range(ranks)]


@every_pair
def test_proved_for_2_to_17_ranks(name, kind):
    for ranks in range(2, 18):
        templates = job(name, kind, ranks)
        check(templates, kind)
        check_sizes(templates, ODD, chunk_bytes=1009)


@every_pair
def test_proved_for_every_root(name, kind):
    for ranks in (2, 3, 5, 8, 11) if kind in ROOTED else ():
        for root in range(ranks):
            check(job(name, kind, ranks, root=root), kind, root)


@every_pair
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_proved_for_any_ranks_channels_roots_limits_and_sizes(name, kind, data):
    ranks = data.draw(st.integers(2, 17), "ranks")
    channels = data.draw(st.integers(1, 4), "channels")
    root = data.draw(st.integers(0, ranks - 1), "root") if kind in ROOTED else 0
    limit = data.draw(st.integers(0, ranks), "peers in flight")
    templates = job(name, kind, ranks, channels, root, peers_in_flight=limit)
    check(templates, kind, root)
    total = data.draw(st.integers(0, 2**63 - 1), "bytes")
    sent = check_sizes(templates, total, chunk_bytes=data.draw(st.integers(1, 2**31), "chunk"))
    assert min(sent) >= 0


@pytest.mark.parametrize("name", able(Kind.ALL_TO_ALL))
@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.data())
def test_uneven_all_to_all_moves_exactly_the_vectors(name, data):
    ranks = data.draw(st.integers(2, 9))
    channels = data.draw(st.integers(1, 4))
    entry = st.one_of(st.just(0), st.integers(0, 2**40))
    out = [[data.draw(entry) for _ in range(ranks)] for _ in range(ranks)]
    templates = job(name, Kind.ALL_TO_ALL, ranks, channels, uneven=True, peers_in_flight=data.draw(st.integers(0, 3)))
    check(templates, Kind.ALL_TO_ALL)
    vectors = [(*out[rank], *(theirs[rank] for theirs in out)) for rank in range(ranks)]
    sent = check_sizes(templates, 0, vectors, chunk_bytes=4096)
    assert sent == [sum(row) - row[rank] for rank, row in enumerate(out)]


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("ring", Kind.ALL_REDUCE, lambda n: 2 * (n - 1)),
        ("halving_doubling", Kind.ALL_REDUCE, lambda n: 2 * (n - 1) if n & (n - 1) == 0 else None),
        ("direct", Kind.ALL_REDUCE, lambda n: 2 * (n - 1)),
        ("tree", Kind.ALL_REDUCE, lambda n: 2 * (n - 1)),
        ("double_binary_tree", Kind.ALL_REDUCE, lambda n: 2 * (n - 1)),
        ("ring", Kind.ALL_GATHER, lambda n: n - 1),
        ("ring", Kind.REDUCE_SCATTER, lambda n: n - 1),
        ("halving_doubling", Kind.REDUCE_SCATTER, lambda n: n - 1 if n & (n - 1) == 0 else None),
        ("direct", Kind.ALL_TO_ALL, lambda n: n - 1),
        ("pairwise", Kind.ALL_TO_ALL, lambda n: n - 1),
        ("tree", Kind.BROADCAST, lambda n: n - 1),
        ("ring", Kind.BROADCAST, lambda n: n - 1),
        ("direct", Kind.GATHER, lambda n: (n - 1) / n),
        ("direct", Kind.SCATTER, lambda n: (n - 1) / n),
    ],
    ids=lambda value: getattr(value, "value", value) if not callable(value) else "",
)
def test_bytes_on_the_wire_are_the_textbook_ones(name, kind, expected):
    """Over all ranks, in multiples of the buffer."""
    for ranks in (2, 3, 4, 7, 8):
        factor = expected(ranks)
        if factor is not None:
            total = ranks * 16 * 1000
            assert sum(check_sizes(job(name, kind, ranks), total)) == round(factor * total)


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
def test_every_kind_has_defaults_that_can_do_it(kind):
    for small in (False, True):
        assert default_for(kind, small=small) in able(kind)
        assert ALGORITHMS[default_for(kind, small=small)].min_channels == 1


@every_pair
def test_one_rank_has_nothing_to_do(name, kind):
    assert job(name, kind, 1)[0].steps == ()


@pytest.mark.parametrize("ranks", range(2, 34))
def test_double_binary_trees_span_and_share_the_inner_work(ranks):
    inner = []
    for tree in (0, 1):
        parents = [double_binary_tree.parent(rank, ranks, tree) for rank in range(ranks)]
        assert parents.count(None) == 1
        assert all(parents.count(rank) <= 2 for rank in range(ranks))
        for rank in range(ranks):
            depth, at = 0, rank
            while parents[at] is not None:
                depth, at = depth + 1, parents[at]
            assert depth <= ranks.bit_length()
        inner.append({parent for parent in parents if parent is not None})
    if ranks > 2:
        assert len(inner[0] & inner[1]) <= 1


def test_nccl_trees_of_eight_and_five():
    def parents(ranks, tree):
        return [double_binary_tree.parent(rank, ranks, tree) for rank in range(ranks)]

    assert parents(8, 0) == [None, 2, 4, 2, 0, 6, 4, 6]
    assert parents(8, 1) == [1, 3, 1, 7, 5, 3, 5, None]
    assert parents(5, 0) == [None, 2, 4, 2, 0]
    assert parents(5, 1) == [1, None, 3, 0, 3]


def test_pairwise_has_no_incast_and_direct_sends_to_all_at_once():
    pairwise = job("pairwise", Kind.ALL_TO_ALL, 6)
    for place in range(5):
        assert len({[s for s in t.steps if s.kind is StepKind.SEND][place].peer for t in pairwise}) == 6
    direct = job("direct", Kind.ALL_TO_ALL, 6)
    assert not any(step.needs for template in direct for step in template.steps)


def test_direct_keeps_to_the_limit_of_peers():
    steps = job("direct", Kind.ALL_TO_ALL, 6, 2, peers_in_flight=2)[0].steps
    sends = [step for step in steps if step.kind is StepKind.SEND]
    assert [len(step.needs) for step in sends] == [0] * 4 + [2] * 6


def test_receives_never_wait():
    """A receive with needs would hold back what other calls sent on the same connection."""
    for name, kind in PAIRS:
        for template in job(name, kind, 7, peers_in_flight=2):
            assert not any(step.needs for step in template.steps if step.kind is StepKind.RECV)


def test_barriers_move_no_bytes():
    steps = [step for template in job("dissemination", Kind.BARRIER, 9) for step in template.steps]
    assert {step.size.kind for step in steps} == {SizeKind.ZERO}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("rung", Kind.ALL_REDUCE, 0, 4, 1), "unknown algorithm 'rung': did you mean 'ring'?"),
        (("ring", Kind.ALL_TO_ALL, 0, 4, 1), "ring cannot do all_to_all: choose one of: direct, pairwise"),
        (
            ("double_binary_tree", Kind.ALL_REDUCE, 0, 4, 1),
            "double_binary_tree needs between 2 and 64 channels, found 1",
        ),
        (("ring", Kind.ALL_REDUCE, 4, 4, 1), "rank 4 of 4 does not exist"),
        (("ring", Kind.BROADCAST, 0, 4, 1, 4), "root 4 is not one of 4 ranks"),
        (("ring", Kind.ALL_REDUCE, 0, 4, 1, 0, Options(uneven=True)), "only all_to_all can have a size for each peer"),
        (("direct", Kind.ALL_TO_ALL, 0, 4, 1, 0, Options(peers_in_flight=-1)), "peers_in_flight must be 0 or more"),
    ],
    ids=["name", "kind", "channels", "rank", "root", "uneven", "limit"],
)
def test_what_cannot_be_built_is_named(arguments, complaint):
    with pytest.raises(ConfigError) as error:
        build(*arguments)
    assert complaint in str(error.value)
