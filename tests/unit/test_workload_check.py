"""The whole-job check on traces made by hand: what is matched, in which order, and what is refused."""

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.errors import TraceError
from genie.workload import load
from genie.workload.check import check
from genie.workload.trace import CollectiveKind, Operator, OpKind, RankTrace, Trace


def comp(number, deps=(), duration=5):
    return Operator(number, f"comp{number}", OpKind.COMPUTE, tuple(deps), duration_ns=duration)


def coll(number, deps=(), size=8, comm="", kind=CollectiveKind.ALL_REDUCE, **rest):
    return Operator(
        number, f"coll{number}", OpKind.COLLECTIVE, tuple(deps), collective=kind, bytes=size, comm=comm, **rest
    )


def send(number, peer, deps=(), size=8, tag=0):
    return Operator(number, f"send{number}", OpKind.SEND, tuple(deps), bytes=size, peer=peer, tag=tag)


def recv(number, peer, deps=(), size=8, tag=0):
    return Operator(number, f"recv{number}", OpKind.RECV, tuple(deps), bytes=size, peer=peer, tag=tag)


def trace(*ranks, **communicators):
    world = tuple(range(len(ranks)))
    return Trace([RankTrace(r, list(ops), "hand") for r, ops in enumerate(ranks)], {"": world, **communicators})


def test_calls_are_numbered_alike_on_all_ranks_and_lead_back_to_the_nodes():
    checked = check(trace([coll(5), send(6, 1, [5])], [coll(50), recv(60, 0)]))
    collective, message = checked.calls
    assert (collective.call_id, collective.nodes, collective.ranks) == (0, (5, 50), (0, 1))
    assert (message.kind, message.nodes, message.ranks, message.tag) == (None, (6, 60), (0, 1), 0)
    for call in checked.calls:
        for rank, node, op in zip(call.ranks, call.nodes, call.ops, strict=True):
            assert checked.call_of[rank][op] == call.call_id
            assert checked.trace.ranks[rank].operators[checked.order[rank][op]].id == node


def test_collectives_of_a_rank_without_dependencies_go_by_id_not_by_place_in_the_file():
    checked = check(trace([coll(2, size=20), coll(1, size=10)], [coll(1, size=10), coll(2, size=20)]))
    assert [call.bytes for call in checked.calls] == [10, 20]


def test_uneven_all_to_all_keeps_every_vector():
    kind = CollectiveKind.ALL_TO_ALL
    checked = check(
        trace(
            [coll(1, kind=kind, size=7, per_peer_bytes=(3, 4))],
            [coll(1, kind=kind, size=9, per_peer_bytes=(9, 0))],
        )
    )
    assert checked.calls[0].vectors == ((3, 4), (9, 0))
    assert checked.calls[0].bytes == 9


@pytest.mark.parametrize(
    ("op", "part"),
    [
        (coll(1, kind=CollectiveKind.ALL_TO_ALL, size=7, per_peer_bytes=(3, 4, 0)), "3 per-peer byte counts, but"),
        (coll(1, kind=CollectiveKind.ALL_TO_ALL, size=8, per_peer_bytes=(3, 4)), "add up to 7, but its size is 8"),
        (coll(1, kind=CollectiveKind.ALL_TO_ALL, size=2, per_peer_bytes=(-1, 3)), "per-peer byte count -1 is negative"),
        (coll(1, size=7, per_peer_bytes=(3, 4)), "all_reduce cannot have a byte count for each peer"),
        (coll(1, kind=CollectiveKind.BROADCAST, root=2), "root 2 is not a rank of communicator '' of 2 ranks"),
        (replace(coll(1), collective=None), "is a collective without a kind"),
        (comp(1, duration=-1), "duration of -1 ns"),
        (comp(1, duration=None), "has no duration"),
        (coll(1, size=2**63), "is not between 0 and 2^63-1"),
        (send(1, -1), "peer is rank -1, but the job has ranks 0 to 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_odd_operators_are_named(op, part):
    with pytest.raises(TraceError) as caught:
        check(trace([op], [coll(1)]))
    assert part in str(caught.value)
    assert f"node 1 '{op.name}'" in str(caught.value)


def test_roots_must_agree_where_there_is_one():
    kind = CollectiveKind.REDUCE
    with pytest.raises(
        TraceError, match="reduce of 8 bytes root 0, but rank 1 node 1 'coll1' has reduce of 8 bytes root 1"
    ):
        check(trace([coll(1, kind=kind)], [coll(1, kind=kind, root=1)]))
    check(trace([coll(1)], [coll(1, root=1)]))


def test_even_and_uneven_do_not_match():
    even = coll(1, kind=CollectiveKind.ALL_TO_ALL)
    with pytest.raises(TraceError, match="all_to_all uneven of 8 bytes"):
        check(trace([even], [replace(even, per_peer_bytes=(4, 4))]))


def test_the_input_is_left_alone_but_for_notes():
    given_trace = trace([coll(1, comm="one")], [comp(1)], one=(0,))
    checked = check(given_trace)
    assert given_trace.ranks[0].operators[0].kind is OpKind.COLLECTIVE
    assert checked.trace.ranks[0].operators[0].kind is OpKind.NOOP


def test_order_is_free_of_deadlock_where_the_ids_alone_would_not_be():
    # Rank 0's send 1 waits for rank 1, whose send needs rank 0's send 9: run by id, one after the other, it would hang.
    checked = check(
        trace(
            [recv(0, 1), send(1, 1, [0], tag=1), send(9, 1, tag=9)],
            [recv(0, 0, tag=9), send(1, 0, [0]), recv(2, 0, tag=1)],
        )
    )
    names = [checked.trace.ranks[0].operators[place].name for place in checked.order[0]]
    assert names.index("send9") < names.index("send1")
    assert runs_serially(checked)


def runs_serially(checked):
    """Whether every rank can run its operators strictly in order: messages buffered, collectives as barriers."""
    at = [0] * checked.trace.world
    arrived = set()
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(checked.order):
            while at[rank] < len(order):
                call_id = checked.call_of[rank].get(at[rank])
                call = None if call_id is None else checked.calls[call_id]
                if call is not None and call.kind is None and rank == call.ranks[1] and call_id not in arrived:
                    break
                if call is not None and call.kind is not None:
                    here = [at[r] == op for r, op in zip(call.ranks, call.ops, strict=True)]
                    if not all(here):
                        break
                    for r in call.ranks:
                        at[r] += r != rank
                if call is not None:
                    arrived.add(call_id)
                at[rank] += 1
                moved = True
    return all(place == len(order) for place, order in zip(at, checked.order, strict=True))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 5), st.integers(1, 40))
def test_random_jobs_that_can_run_are_accepted_and_run_serially(seed, ranks, steps):
    """A job recorded from a serial run has an order; ids are then shuffled, deps keep each communicator's order."""
    draw = random.Random(seed)
    comms = {"": tuple(range(ranks)), "a": tuple(range(0, ranks, 2)), "b": tuple(range(ranks - 1, -1, -1))}
    ops = [[] for _ in range(ranks)]
    last = [{} for _ in range(ranks)]

    def deps(rank, lane):
        chosen = {op.id for op in ops[rank] if draw.random() < 0.15}
        if lane is not None:
            chosen |= {last[rank][lane]} if lane in last[rank] else set()
            last[rank][lane] = fresh(rank)
        return tuple(chosen)

    def fresh(rank):
        return len(ops[rank]) + 1

    for _ in range(steps):
        what = draw.choice(["comp", "coll", "send"])
        if what == "comp":
            rank = draw.randrange(ranks)
            ops[rank].append(comp(fresh(rank), deps(rank, None)))
        elif what == "coll":
            comm = draw.choice(list(comms))
            for rank in comms[comm]:
                number = fresh(rank)
                ops[rank].append(coll(number, deps(rank, comm), comm=comm))
        else:
            source, target = draw.sample(range(ranks), 2)
            number = fresh(source)
            ops[source].append(send(number, target, deps(source, (source, target))))
            number = fresh(target)
            ops[target].append(recv(number, source, deps(target, (source, target))))
    if not any(ops):
        return
    renamed = [rename(rank_ops, draw) for rank_ops in ops]
    checked = check(Trace([RankTrace(r, o, "hand") for r, o in enumerate(renamed)], comms))
    assert runs_serially(checked)
    for rank, order in enumerate(checked.order):
        assert sorted(order) == list(range(len(renamed[rank])))


def rename(operators, draw):
    ids = draw.sample(range(10**6), len(operators))
    new = {op.id: ids[place] for place, op in enumerate(operators)}
    shuffled = [replace(op, id=new[op.id], data_deps=tuple(new[d] for d in op.data_deps)) for op in operators]
    draw.shuffle(shuffled)
    return shuffled


@pytest.mark.parametrize("name", ["moe", "dp", "fsdp", "tp_pp"])
def test_generated_jobs_run_serially(name):
    assert runs_serially(check(load({"name": name})))


def test_a_chain_of_a_hundred_thousand_nodes_needs_no_recursion():
    chain = [comp(number, [number - 1] if number else []) for number in range(100_000)]
    start = time.perf_counter()
    checked = check(trace(chain))
    assert len(checked.order[0]) == 100_000
    assert time.perf_counter() - start < 10
    chain[0] = comp(0, [99_999])
    with pytest.raises(TraceError, match="a cycle of 100000 nodes") as caught:
        check(trace(chain))
    assert len(str(caught.value)) < 2000


def test_rank_numbers_and_world_are_what_they_say():
    with pytest.raises(TraceError, match="rank 1 stands at place 0"):
        check(Trace([RankTrace(1, [comp(1)])], {"": (0,)}))
    with pytest.raises(TraceError, match="the world communicator must be ranks 0 to 0 in order"):
        check(Trace([RankTrace(0, [comp(1)])], {}))
    with pytest.raises(TraceError, match="the trace has no ranks"):
        check(Trace([], {"": ()}))


def test_names_are_escaped_and_cut():
    long = replace(comp(1, [1]), name="\x1b[31m" + "x" * 100_000)
    with pytest.raises(TraceError) as caught:
        check(trace([long]))
    assert len(str(caught.value)) < 600
    assert "\x1b" not in str(caught.value)
