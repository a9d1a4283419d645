"""The checker finds whatever is wrong: every mutant of every algorithm, and hand-made traps."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from genie.collectives import ALGORITHMS, ROOTED, build
from genie.collectives.check import check, check_sizes
from genie.collectives.draft import REDUCED, WHOLE_SIZE, Draft
from genie.collectives.program import Need, NeedMode, Size, SizeKind, Step, StepKind, Template
from genie.errors import AlgorithmError
from genie.workload.trace import CollectiveKind as Kind

PAIRS = [(name, kind) for name, algorithm in ALGORITHMS.items() for kind in sorted(algorithm.kinds)]


def job(name, kind, ranks, root=0):
    return [build(name, kind, rank, ranks, ALGORITHMS[name].min_channels, root) for rank in range(ranks)]


def with_step(templates, rank, place, step):
    steps = list(templates[rank].steps)
    steps[place] = step
    return with_steps(templates, rank, steps)


def with_steps(templates, rank, steps):
    mutant = list(templates)
    mutant[rank] = replace(templates[rank], steps=tuple(steps))
    return mutant


def dropped(templates, rank, place):
    """Without one step; what needed it now needs what it needed."""
    steps = []
    gone = templates[rank].steps[place].needs
    for number, step in enumerate(templates[rank].steps):
        if number == place:
            continue
        needs = [n for need in step.needs for n in (gone if need.step == place else (need,))]
        steps.append(replace(step, needs=tuple(Need(n.step - (n.step > place), n.mode) for n in needs)))
    return with_steps(templates, rank, steps)


def counterpart(templates, rank, place):
    """The step that a send meets: (rank, place)."""
    step = templates[rank].steps[place]
    same = [
        i
        for i, s in enumerate(templates[rank].steps)
        if (s.kind, s.peer, s.channel) == (step.kind, step.peer, step.channel)
    ]
    other = StepKind.RECV if step.kind is StepKind.SEND else StepKind.SEND
    theirs = [
        i
        for i, s in enumerate(templates[step.peer].steps)
        if (s.kind, s.peer, s.channel) == (other, rank, step.channel)
    ]
    return step.peer, theirs[same.index(place)]


def mutants(templates, kind):
    ranks = len(templates)
    for rank, template in enumerate(templates):
        for place, step in enumerate(template.steps):
            yield f"drop rank {rank} step {place}", dropped(templates, rank, place)
            peer = (step.peer + 1) % ranks
            if peer == rank:
                peer = (peer + 1) % ranks
            if ranks > 2:
                yield (
                    f"other peer in rank {rank} step {place}",
                    with_step(templates, rank, place, replace(step, peer=peer)),
                )
            if step.needs and template.algorithm != "pairwise":  # there they only keep rounds apart
                yield (
                    f"no needs in rank {rank} step {place}",
                    with_step(templates, rank, place, replace(step, needs=())),
                )
            # Some needs of halving-doubling's second half are also implied by what the partner waited for.
            single = template.algorithm != "pairwise" and (template.algorithm, kind) != (
                "halving_doubling",
                Kind.ALL_REDUCE,
            )
            for number in range(len(step.needs) if single else 0):
                fewer = step.needs[:number] + step.needs[number + 1 :]
                yield (
                    f"need dropped in rank {rank} step {place}",
                    with_step(templates, rank, place, replace(step, needs=fewer)),
                )
            if step.kind is StepKind.RECV and step.payload:
                yield (
                    f"reduce flipped in rank {rank} step {place}",
                    with_step(templates, rank, place, replace(step, reduce=not step.reduce)),
                )
            if step.kind is StepKind.SEND:
                other, where = counterpart(templates, rank, place)
                yield (
                    f"message of rank {rank} step {place} dropped",
                    dropped(dropped(templates, rank, place), other, where),
                )
                if step.size.kind is SizeKind.BLOCK and step.size.of > 1:
                    index = (step.size.index + 1) % step.size.of
                    size = replace(step.size, index=index)
                    yield (
                        f"wrong size in rank {rank} step {place}",
                        with_step(templates, rank, place, replace(step, size=size)),
                    )
                    shift = index - step.size.index
                    width = len(step.payload)
                    names = tuple(
                        (owner if owner == REDUCED or owner != block else block + shift * width, block + shift * width)
                        for owner, block in step.payload
                    )
                    wrong = with_step(templates, rank, place, replace(step, size=size, payload=names))
                    theirs = templates[other].steps[where]
                    yield (
                        f"wrong block in message of rank {rank} step {place}",
                        with_step(wrong, other, where, replace(theirs, size=size, payload=names)),
                    )


# The last barrier round of five ranks tells some of them what they know already: dropping one need there is no fault.
MUTATED = [(*pair, ranks) for pair in PAIRS for ranks in ((2, 4, 8) if pair[1] is Kind.BARRIER else (2, 4, 5))]


@pytest.mark.parametrize(
    ("name", "kind", "ranks"), MUTATED, ids=[f"{name}-{kind.value}-{ranks}" for name, kind, ranks in MUTATED]
)
def test_every_mutant_is_found(name, kind, ranks):
    templates = job(name, kind, ranks, root=1 if kind in ROOTED else 0)
    root = 1 if kind in ROOTED else 0
    check(templates, kind, root)
    survivors = []
    for what, mutant in mutants(templates, kind):
        try:
            check(mutant, kind, root)
        except AlgorithmError:
            continue
        survivors.append(what)
    assert not survivors


def template(rank, ranks, *steps, algorithm="made up", channels=1):
    return Template(algorithm, rank, ranks, channels, tuple(steps))


def send(peer, *needs, channel=0, size=WHOLE_SIZE, payload=((0, 0),)):
    return Step(StepKind.SEND, channel, peer, size, tuple(needs), payload)


def receive(peer, *needs, channel=0, size=WHOLE_SIZE, payload=((0, 0),), reduce=False):
    return Step(StepKind.RECV, channel, peer, size, tuple(needs), payload, reduce)


HALF = Size(SizeKind.BLOCK, 0, 2)
SUM = ((REDUCED, 0),)
TRAPS = {
    "deadlock of two sends that need the other's message": (
        Kind.ALL_GATHER,
        [
            template(
                r,
                2,
                send(1 - r, Need(1), size=Size(SizeKind.BLOCK, r, 2), payload=((r, r),)),
                receive(1 - r, size=Size(SizeKind.BLOCK, 1 - r, 2), payload=((1 - r, 1 - r),)),
            )
            for r in (0, 1)
        ],
        "step 0 (send to 1 on channel 0) cuts through step 1, but",
    ),
    "cycle over two ranks": (
        Kind.ALL_REDUCE,
        [template(r, 2, send(1 - r, Need(1), payload=SUM), receive(1 - r, payload=SUM, reduce=True)) for r in (0, 1)],
        "waits for itself: rank 0 step",
    ),
    "deadlock without buffers": (
        Kind.ALL_REDUCE,
        [
            template(r, 2, send(1 - r, payload=SUM), receive(1 - r, Need(0, NeedMode.WHOLE), payload=SUM, reduce=True))
            for r in (0, 1)
        ],
        "deadlocks: in order and without buffering it waits for itself",
    ),
    "all-reduce by exchange that may send the sum": (
        Kind.ALL_REDUCE,
        [template(r, 2, receive(1 - r, payload=SUM, reduce=True), send(1 - r, payload=SUM)) for r in (0, 1)],
        "touches (-1, 0) while step 0 may be at it",
    ),
    "sends what it does not hold": (
        Kind.BROADCAST,
        [template(0, 2, receive(1)), template(1, 2, send(0))],
        "which the rank does not hold",
    ),
    "size of half a block": (
        Kind.BROADCAST,
        [template(0, 2, send(1, size=HALF)), template(1, 2, receive(0, size=HALF))],
        "cuts a block in two",
    ),
    "sizes disagree": (
        Kind.BROADCAST,
        [template(0, 2, send(1)), template(1, 2, receive(0, size=HALF))],
        "peer expects",
    ),
    "send without receive": (Kind.BROADCAST, [template(0, 2, send(1)), template(1, 2)], "has no counterpart"),
    "extra receive": (
        Kind.BROADCAST,
        [template(0, 2, send(1)), template(1, 2, receive(0), receive(0))],
        "has no counterpart",
    ),
    "twice the same": (
        Kind.BROADCAST,
        [template(0, 2, send(1), send(1)), template(1, 2, receive(0), receive(0, Need(0)))],
        "which the rank already holds",
    ),
    "nothing on the second channel": (
        Kind.BROADCAST,
        [template(0, 2, send(1), channels=2), template(1, 2, receive(0), channels=2)],
        "on channel 1",
    ),
    "somebody left out": (
        Kind.BROADCAST,
        [template(0, 3, send(1)), template(1, 3, receive(0)), template(2, 3)],
        "rank 2 should end with",
    ),
    "barrier that one does not wait in": (
        Kind.BARRIER,
        [
            template(0, 2, send(1, size=Size(SizeKind.ZERO), payload=())),
            template(1, 2, receive(0, size=Size(SizeKind.ZERO), payload=())),
        ],
        "rank 0 may leave the barrier before rank 1 came to it",
    ),
    "no such channel": (Kind.BROADCAST, [template(0, 2, send(1, channel=1)), template(1, 2)], "none of the 1 channels"),
    "no such peer": (Kind.BROADCAST, [template(0, 2, send(2)), template(1, 2)], "has no such peer"),
    "needs itself": (
        Kind.BROADCAST,
        [template(0, 2, send(1, Need(0))), template(1, 2, receive(0))],
        "needs step 0 of 1",
    ),
    "templates in the wrong order": (
        Kind.BROADCAST,
        [template(1, 2), template(0, 2)],
        "expected a template of rank 0 of 2",
    ),
}


@pytest.mark.parametrize(("kind", "templates", "complaint"), TRAPS.values(), ids=TRAPS)
def test_traps_are_found_by_name(kind, templates, complaint):
    with pytest.raises(AlgorithmError) as error:
        check(templates, kind)
    assert complaint in str(error.value)


def test_the_witness_is_in_the_error():
    templates = job("ring", Kind.ALL_REDUCE, 4)
    step = templates[2].steps[4]
    with pytest.raises(AlgorithmError) as error:
        check(with_step(templates, 2, 4, replace(step, size=Size(SizeKind.ZERO))), Kind.ALL_REDUCE)
    assert (error.value.rank, error.value.step) == (2, 4)
    assert str(error.value).startswith("ring: rank 2 step 4 (send to 3 on channel 0) ")


def test_double_reduction_is_told_in_words():
    """Rank 0 adds rank 1's contribution a second time, properly ordered."""
    templates = [
        template(0, 2, receive(1, payload=SUM, reduce=True), receive(1, payload=SUM, reduce=True)),
        template(1, 2, send(0, payload=SUM), send(0, payload=SUM)),
    ]
    with pytest.raises(AlgorithmError, match="found block 0 from rank 0, rank 1 ×2 on channel 0"):
        check(templates, Kind.REDUCE)


def test_concrete_sizes_that_disagree_are_found():
    uneven = [Size(SizeKind.VECTOR, 1), Size(SizeKind.VECTOR, 2)]
    templates = [template(0, 2, send(1, size=uneven[0])), template(1, 2, receive(0, size=uneven[1]))]
    assert check_sizes(templates, 0, [(0, 5, 0, 0), (0, 0, 5, 0)]) == [5, 0]
    with pytest.raises(AlgorithmError, match="sends 5 bytes, peer expects 6"):
        check_sizes(templates, 0, [(0, 5, 0, 0), (0, 0, 6, 0)])


def test_the_example_of_the_documentation_is_right_and_its_trap_springs():
    text = (Path(__file__).parents[2] / "docs" / "add-a-collective.md").read_text()
    source, proof = re.findall(r"```python\n(.*?)```", text, re.S)

    def made(code):
        names = {}
        exec(code, names)

        def template_of(rank, ranks):
            draft = Draft("example", rank, ranks, 1)
            names["build"](draft, Kind.ALL_REDUCE, 0)
            return draft.template()

        return template_of

    exec(proof, {"made": made(source), "CollectiveKind": Kind})
    with pytest.raises(AlgorithmError) as error:
        check([made(source.replace(", message=got", ""))(rank, 5) for rank in range(5)], Kind.ALL_REDUCE)
    told = re.search(r"it says: \*(.*?)\*\.", text, re.S).group(1).replace("\n", " ")
    assert str(error.value) == f"example: {told}"
