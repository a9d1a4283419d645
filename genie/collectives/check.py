"""Proof that the templates of all ranks together do what their kind promises, for one communicator.

`check` executes an algorithm symbolically: data are names, values are counts of contributions, so a block that is
missing, reduced twice or overwritten too early shows. Tests run it over ranks, roots and channels; anything that
brings templates from outside runs it before use. It looks at structure only; `check_sizes` looks at bytes.

What is proved: sends meet receives one to one with equal sizes and data; needs have no cycle; nothing deadlocks even
if no byte is buffered and every connection is strictly in order; no step reads or writes data that another one
may be writing at the time; the kind's postcondition holds on every channel; no rank receives what it already has.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from fractions import Fraction

from genie.collectives.draft import REDUCED
from genie.collectives.program import NeedMode, SizeKind, Step, StepKind, Template
from genie.errors import AlgorithmError
from genie.workload.trace import CollectiveKind

Name = tuple[int, int]
_Slot = tuple[int, int, Name]  # rank, channel, name

_WHOLE_BUFFER = frozenset({CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.BROADCAST})
_REDUCES = frozenset({CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER})
_COUNT_BITS = 64  # of the number of times one rank's contribution is in a value


def check(templates: Sequence[Template], kind: CollectiveKind, root: int = 0) -> None:
    """Prove ``templates`` (one a rank, in rank order) right for ``kind``.

    Raises:
        AlgorithmError: the first thing that is wrong, with the rank and the step that show it.
    """
    job = _Job(templates)
    job.check_needs()
    order = job.order()
    job.check_rendezvous()
    before = job.causes(order)
    if kind is CollectiveKind.BARRIER:
        _check_barrier(job, before)
        return
    blocks = _blocks(job, kind)
    job.check_payloads(blocks)
    job.check_races(before)
    held = _execute(job, order, _initial(kind, len(templates), root, blocks, job.channels))
    _check_result(job, held, kind, root, blocks)


def check_sizes(
    templates: Sequence[Template], total: int, vectors: Sequence[tuple[int, ...]] = (), chunk_bytes: int = 1
) -> list[int]:
    """Check that both ends of every message, and all that is cut through, agree on bytes and number of messages.

    ``vectors`` holds each rank's vector of an uneven call. Returns the bytes that each rank sends.

    Raises:
        AlgorithmError: two steps that should agree do not.
    """
    job = _Job(templates)

    def sized(number: int) -> tuple[int, int]:
        rank, step = job.owner[number], job.steps[number]
        vector = vectors[rank] if vectors else ()
        size = step.size.bytes(total=total, vector=vector, channel=step.channel, channels=job.channels)
        return size, max(1, -(-size // chunk_bytes))

    sent = [0] * len(templates)
    for number, step in enumerate(job.steps):
        if step.kind is StepKind.SEND:
            sent[job.owner[number]] += sized(number)[0]
            if sized(number) != sized(job.partner[number]):
                raise job.error(number, f"sends {sized(number)[0]} bytes, peer expects {sized(job.partner[number])[0]}")
        for need in step.needs:
            other = job.base[job.owner[number]] + need.step
            if need.mode is NeedMode.MESSAGE and sized(number) != sized(other):
                raise job.error(number, f"of {sized(number)[0]} bytes cuts through one of {sized(other)[0]} bytes")
    return sent


class _Job:
    """All steps of all ranks under one numbering, matched.

    ``owner`` is a step's rank, ``base`` a rank's first step, ``partner`` the other end of a send or receive.
    """

    def __init__(self, templates: Sequence[Template]) -> None:
        self.templates = templates
        self.ranks = len(templates)
        self.channels = templates[0].channels if templates else 1
        self.steps: list[Step] = []
        self.owner: list[int] = []
        self.base: list[int] = []
        for rank, template in enumerate(templates):
            self.base.append(len(self.steps))
            self.steps.extend(template.steps)
            self.owner.extend([rank] * len(template.steps))
            if (template.rank, template.ranks, template.channels) != (rank, self.ranks, self.channels):
                raise AlgorithmError(
                    f"expected a template of rank {rank} of {self.ranks} over {self.channels} channels, found rank "
                    f"{template.rank} of {template.ranks} over {template.channels}",
                    rank=rank,
                )
        for number, step in enumerate(self.steps):
            self._check_form(number, step)
        self.queues = self._queues()
        self.partner = self._match()

    def error(self, number: int, message: str) -> AlgorithmError:
        """An error about one step."""
        rank = self.owner[number]
        step = self.steps[number]
        place = number - self.base[rank]
        what = {StepKind.SEND: f"send to {step.peer}", StepKind.RECV: f"receive from {step.peer}"}
        label = f"{what.get(step.kind, 'local work')} on channel {step.channel}"
        name = self.templates[rank].algorithm
        return AlgorithmError(f"{name}: rank {rank} step {place} ({label}) {message}", rank=rank, step=place)

    def _check_form(self, number: int, step: Step) -> None:
        count = len(self.templates[self.owner[number]].steps)
        if not 0 <= step.channel < self.channels:
            raise self.error(number, f"is on none of the {self.channels} channels")
        if step.kind is not StepKind.LOCAL and (not 0 <= step.peer < self.ranks or step.peer == self.owner[number]):
            raise self.error(number, "has no such peer")
        if step.kind is not StepKind.RECV and step.reduce:
            raise self.error(number, "reduces, which only a receive can")
        limit = 2 * self.ranks if step.size.kind is SizeKind.VECTOR else step.size.of
        if step.size.of < 1 or not 0 <= step.size.index < limit:
            raise self.error(number, f"has the impossible size {step.size}")
        for need in step.needs:
            if not 0 <= need.step < count or need.step == number - self.base[self.owner[number]]:
                raise self.error(number, f"needs step {need.step} of {count}")

    def _queues(self) -> dict[tuple[int, int, int], tuple[list[int], list[int]]]:
        """Sends and receives of each (from, to, channel), in step order."""
        queues: dict[tuple[int, int, int], tuple[list[int], list[int]]] = {}
        for number, step in enumerate(self.steps):
            rank = self.owner[number]
            if step.kind is StepKind.SEND:
                queues.setdefault((rank, step.peer, step.channel), ([], []))[0].append(number)
            elif step.kind is StepKind.RECV:
                queues.setdefault((step.peer, rank, step.channel), ([], []))[1].append(number)
        return queues

    def _match(self) -> list[int]:
        partner = [-1] * len(self.steps)
        for sends, receives in self.queues.values():
            for send, receive in zip(sends, receives, strict=False):
                partner[send], partner[receive] = receive, send
                if self.size_of(send) != self.size_of(receive):
                    raise self.error(send, f"moves {self.steps[send].size}, peer expects {self.steps[receive].size}")
                if self.steps[send].payload != self.steps[receive].payload:
                    raise self.error(
                        send, f"moves {self.steps[send].payload}, peer expects {self.steps[receive].payload}"
                    )
            matched = min(len(sends), len(receives))
            for unmatched in (sends + receives) if matched == 0 else (sends[matched:] + receives[matched:]):
                raise self.error(unmatched, "has no counterpart")
        return partner

    def size_of(self, number: int) -> tuple[object, ...]:
        """The size in a form that is equal for equal sizes, whoever looks and however it is written."""
        step, rank = self.steps[number], self.owner[number]
        match step.size.kind:
            case SizeKind.ZERO:
                return ("zero",)
            case SizeKind.BLOCK:
                low = Fraction(step.size.index, step.size.of)
                return ("block", step.channel, low, low + Fraction(1, step.size.of))
            case SizeKind.VECTOR:
                pair = (rank, step.size.index) if step.size.index < self.ranks else (step.size.index - self.ranks, rank)
                return ("vector", step.channel, *pair)

    def needs(self, number: int) -> list[int]:
        """The steps that a step needs."""
        base = self.base[self.owner[number]]
        return [base + need.step for need in self.steps[number].needs]

    def check_needs(self) -> None:
        """Cut-through only between equal sizes."""
        for number, step in enumerate(self.steps):
            for need, other in zip(step.needs, self.needs(number), strict=True):
                if need.mode is NeedMode.MESSAGE and self.size_of(number) != self.size_of(other):
                    raise self.error(
                        number, f"cuts through step {need.step}, but {step.size} is not {self.steps[other].size}"
                    )

    def order(self) -> list[int]:
        """A topological order of needs and messages; a cycle is an error."""
        waits = [self.needs(number) for number in range(len(self.steps))]
        for number, step in enumerate(self.steps):
            if step.kind is StepKind.RECV:
                waits[number].append(self.partner[number])
        return self._sorted(waits, "waits for itself")

    def check_rendezvous(self) -> None:
        """No deadlock if a send and its receive happen at once, and those of a connection one after the other."""
        node = [
            self.partner[number] if step.kind is StepKind.RECV else number for number, step in enumerate(self.steps)
        ]
        waits: list[list[int]] = [[] for _ in self.steps]
        for number in range(len(self.steps)):
            waits[node[number]].extend(node[other] for other in self.needs(number))
        for sends, _ in self.queues.values():
            for former, later in itertools.pairwise(sends):
                waits[later].append(former)
        self._sorted(waits, "deadlocks: in order and without buffering it waits for itself")

    def _sorted(self, waits: Sequence[Sequence[int]], complaint: str) -> list[int]:
        followers: list[list[int]] = [[] for _ in waits]
        open_waits = [len(wait) for wait in waits]
        for number, wait in enumerate(waits):
            for other in wait:
                followers[other].append(number)
        order = [number for number, count in enumerate(open_waits) if not count]
        for number in order:
            for other in followers[number]:
                open_waits[other] -= 1
                if not open_waits[other]:
                    order.append(other)
        if len(order) == len(waits):
            return order
        seen: dict[int, int] = {}
        number = next(number for number, count in enumerate(open_waits) if count)
        while number not in seen:
            seen[number] = len(seen)
            number = next(other for other in waits[number] if open_waits[other])
        loop = list(seen)[seen[number] :]
        path = ", ".join(f"rank {self.owner[item]} step {item - self.base[self.owner[item]]}" for item in loop)
        raise self.error(loop[0], f"{complaint}: {path}")

    def causes(self, order: Sequence[int]) -> list[int]:
        """For each step the set, as bits, of all steps that surely came before it."""
        before = [0] * len(self.steps)
        for number in order:
            bits = 0
            causes = self.needs(number)
            if self.steps[number].kind is StepKind.RECV:
                causes.append(self.partner[number])
            for other in causes:
                bits |= before[other] | 1 << other
            before[number] = bits
        return before

    def check_payloads(self, blocks: int) -> None:
        """The data that a step names are what its size covers."""
        for number, step in enumerate(self.steps):
            if step.kind is StepKind.LOCAL or step.size.kind is SizeKind.ZERO:
                covered: list[int] = []
            elif step.size.kind is SizeKind.VECTOR:
                _, _, *pair = self.size_of(number)
                if step.payload != (tuple(pair),):
                    raise self.error(number, f"names {step.payload}, but its size is that of {tuple(pair)}")
                continue
            else:
                low = Fraction(step.size.index * blocks, step.size.of)
                high = Fraction((step.size.index + 1) * blocks, step.size.of)
                if low.denominator != 1 or high.denominator != 1:
                    raise self.error(number, f"cuts a block in two: {step.size} of {blocks} blocks")
                covered = list(range(int(low), int(high)))
            if [index for _, index in step.payload] != covered:
                raise self.error(number, f"names {step.payload}, but its size covers blocks {covered}")

    def check_races(self, before: Sequence[int]) -> None:
        """Whatever writes data is ordered with all else that touches it (reductions among themselves commute)."""
        touched: dict[_Slot, list[int]] = {}
        for number, step in enumerate(self.steps):
            for name in step.payload:
                touched.setdefault((self.owner[number], step.channel, name), []).append(number)
        for (_, _, name), numbers in touched.items():
            for place, first in enumerate(numbers):
                for second in numbers[place + 1 :]:
                    one, two = self.steps[first], self.steps[second]
                    harmless = (one.kind is two.kind is StepKind.SEND) or (one.reduce and two.reduce)
                    if not harmless and not (before[second] >> first & 1 or before[first] >> second & 1):
                        place_of_first = first - self.base[self.owner[first]]
                        raise self.error(second, f"touches {name} while step {place_of_first} may be at it")


def _blocks(job: _Job, kind: CollectiveKind) -> int:
    """Into how many blocks the buffer is cut: one a rank, or as fine as the algorithm names them."""
    if kind not in _WHOLE_BUFFER:
        return job.ranks
    return 1 + max((index for step in job.steps for _, index in step.payload), default=0)


def _contribution(rank: int) -> int:
    return 1 << (_COUNT_BITS * rank)


def _initial(kind: CollectiveKind, ranks: int, root: int, blocks: int, channels: int) -> dict[_Slot, int]:
    """What each rank holds before: values are sums of contributions."""

    def names(rank: int) -> Iterable[Name]:
        if kind in _REDUCES:
            return [(REDUCED, index) for index in range(blocks)]
        if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER):
            return [(rank, rank)]
        if kind is CollectiveKind.ALL_TO_ALL or rank == root:
            return [(rank, index) for index in range(blocks)]
        return []

    return {
        (rank, channel, name): _contribution(rank)
        for rank in range(ranks)
        for channel in range(channels)
        for name in names(rank)
    }


def _execute(job: _Job, order: Sequence[int], held: dict[_Slot, int]) -> dict[_Slot, int]:
    """What each rank holds after all steps. Any order gives the same, since there are no races."""
    moving: dict[int, list[int]] = {}
    for number in order:
        step, rank = job.steps[number], job.owner[number]
        if step.kind is StepKind.SEND:
            values = []
            for name in step.payload:
                value = held.get((rank, step.channel, name))
                if value is None:
                    raise job.error(number, f"sends {name}, which the rank does not hold")
                values.append(value)
            moving[number] = values
        elif step.kind is StepKind.RECV:
            for name, value in zip(step.payload, moving[job.partner[number]], strict=True):
                slot = (rank, step.channel, name)
                if step.reduce:
                    if slot not in held:
                        raise job.error(number, f"reduces into {name}, which the rank does not hold")
                    held[slot] += value
                elif held.get(slot) == value:
                    raise job.error(number, f"receives {name}, which the rank already holds")
                else:
                    held[slot] = value
    return held


def _check_result(job: _Job, held: dict[_Slot, int], kind: CollectiveKind, root: int, blocks: int) -> None:
    everybody = sum(_contribution(rank) for rank in range(job.ranks))
    for rank in range(job.ranks):
        for name in _wanted(kind, rank, job.ranks, root, blocks):
            expected = everybody if name[0] == REDUCED else _contribution(name[0])
            for channel in range(job.channels):
                found = held.get((rank, channel, name), 0)
                if found != expected:
                    raise AlgorithmError(
                        f"{job.templates[rank].algorithm}: rank {rank} should end with {_told(name, expected, job)}, "
                        f"found {_told(name, found, job)} on channel {channel}",
                        rank=rank,
                    )


def _wanted(kind: CollectiveKind, rank: int, ranks: int, root: int, blocks: int) -> list[Name]:
    """The names that the kind promises ``rank`` in the end."""
    match kind:
        case CollectiveKind.ALL_REDUCE:
            return [(REDUCED, index) for index in range(blocks)]
        case CollectiveKind.REDUCE:
            return [(REDUCED, index) for index in range(blocks)] if rank == root else []
        case CollectiveKind.REDUCE_SCATTER:
            return [(REDUCED, rank)]
        case CollectiveKind.ALL_GATHER:
            return [(owner, owner) for owner in range(ranks)]
        case CollectiveKind.GATHER:
            return [(owner, owner) for owner in range(ranks)] if rank == root else []
        case CollectiveKind.BROADCAST:
            return [(root, index) for index in range(blocks)]
        case CollectiveKind.SCATTER:
            return [(root, rank)]
        case CollectiveKind.ALL_TO_ALL:
            return [(owner, rank) for owner in range(ranks)]
        case _:
            return []


def _told(name: Name, value: int, job: _Job) -> str:
    """A value in words: how often each rank's contribution is in it."""
    mask = (1 << _COUNT_BITS) - 1
    counts = {rank: value >> (_COUNT_BITS * rank) & mask for rank in range(job.ranks)}
    parts = [f"rank {rank}" + (f" ×{count}" if count > 1 else "") for rank, count in counts.items() if count]
    return f"block {name[1]} from {', '.join(parts)}" if parts else f"no block {name[1]}"


def _check_barrier(job: _Job, before: Sequence[int]) -> None:
    """Every rank's end comes after every other rank's begin."""
    ends = [0] * job.ranks
    for number, causes in enumerate(before):
        ends[job.owner[number]] |= causes | 1 << number
    for number, step in enumerate(job.steps):
        if step.payload:
            raise job.error(number, "of a barrier moves data")
    for other, template in enumerate(job.templates):
        steps = ((1 << len(template.steps)) - 1) << job.base[other]
        for rank in range(job.ranks):
            if rank != other and not ends[rank] & steps:
                raise AlgorithmError(
                    f"{template.algorithm}: rank {rank} may leave the barrier before rank {other} came to it", rank=rank
                )
