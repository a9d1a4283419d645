"""The alpha-beta model of one call: its steps worked through on network cards that are idle otherwise.

`genie.engine.predict` asks for each shape of call once. A message occupies the sender's and the receiver's card for
bytes/rate each, at the same time but for the latency between them; what needs a step by message may follow after its
first message (cut-through). Ranks of one host exchange data in no time. It never looks at operators or lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from genie.collectives.program import Call, NeedMode, Step, StepKind, Template


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's part in a call. ``members`` are the world ranks of the template's communicator."""

    rank: int
    call: Call
    template: Template
    members: tuple[int, ...]

    def bytes(self, step: Step) -> int:
        """Bytes of one step."""
        if step.kind is StepKind.LOCAL:
            return 0
        return step.size.bytes(
            total=self.call.bytes,
            vector=self.call.vector,
            channel=step.channel,
            channels=self.template.channels,
        )


@dataclass(frozen=True, slots=True)
class Hosts:
    """Where ranks are, and what their cards can do: ns a byte in each direction (absent: no limit), one-way ns."""

    of_rank: Sequence[str]
    ns_a_byte: Mapping[str, float]
    latency_ns: int

    def cost(self, host: str) -> float:
        """Nanoseconds a byte takes on the card of ``host``."""
        return self.ns_a_byte.get(host, 0.0)


@dataclass(slots=True)
class _Moving:
    """A step: when its first and last message may go (send) or arrive (receive), and who waits for it.

    ``first_message_ns`` is when the sender has handed over the first message, plus latency; ``heard`` are the ranks,
    as bits, from which something came before.
    """

    part: Part
    kind: StepKind
    bytes: int
    chunk: int
    local_ns: int
    peer: int
    open: int
    receiver: int = -1
    first_ns: float = 0.0
    last_ns: float = 0.0
    first_message_ns: float = 0.0
    heard: int = 0
    followers: list[tuple[int, bool]] = field(default_factory=list)


def work_through(parts: Sequence[Part], hosts: Hosts) -> tuple[dict[int, float], dict[int, int]]:
    """For each rank, when it is done, in ns after all ranks began, and the ranks (as bits) it has to hear from."""
    steps = _linked(parts)
    tx: dict[str, float] = {}
    rx: dict[str, float] = {}
    done = {part.rank: 0.0 for part in parts}
    heard = {part.rank: 0 for part in parts}
    ready = [(0.0, number) for number, step in enumerate(steps) if not step.open]
    heapify(ready)

    def met(number: int) -> None:
        steps[number].open -= 1
        if not steps[number].open:
            heappush(ready, (steps[number].first_ns, number))

    while ready:
        step = steps[heappop(ready)[1]]
        if step.kind is StepKind.LOCAL:
            first = last = step.last_ns + step.local_ns
        else:
            here, there = hosts.of_rank[step.part.rank], hosts.of_rank[step.peer]
            card = tx if step.kind is StepKind.SEND else rx
            cost = 0.0 if here == there else hosts.cost(here)
            begin = step.first_ns
            if here != there:
                begin = max(begin, card.get(here, 0.0))
                card[here] = begin + step.bytes * cost
            if step.kind is StepKind.SEND:
                first = begin + step.chunk * cost
                last = max(begin + step.bytes * cost, step.last_ns + step.chunk * cost)
                latency = 0 if here == there else hosts.latency_ns
                receiver = steps[step.receiver]
                receiver.first_ns, receiver.last_ns = begin + latency, last + latency
                receiver.first_message_ns = first + latency
                receiver.heard |= step.heard | 1 << step.part.rank
                met(step.receiver)
            else:
                first = max(begin + step.chunk * cost, step.first_message_ns)
                last = max(begin + step.bytes * cost, step.last_ns)
        done[step.part.rank] = max(done[step.part.rank], last)
        heard[step.part.rank] |= step.heard
        for number, by_message in step.followers:
            follower = steps[number]
            follower.first_ns = max(follower.first_ns, first if by_message else last)
            follower.last_ns = max(follower.last_ns, last)
            follower.heard |= step.heard
            met(number)
    return done, heard


def _linked(parts: Sequence[Part]) -> list[_Moving]:
    """All steps, with their followers, and each send with the receive it meets."""
    steps: list[_Moving] = []
    queues: dict[tuple[int, int, int], tuple[list[int], list[int]]] = {}
    for part in parts:
        base = len(steps)
        for place, step in enumerate(part.template.steps):
            size = part.bytes(step)
            peer = part.members[step.peer] if step.peer >= 0 else -1
            is_receive = step.kind is StepKind.RECV
            steps.append(
                _Moving(part, step.kind, size, min(size, part.call.chunk_bytes), step.local_ns, peer,
                        open=len(step.needs) + is_receive)
            )  # fmt: skip
            if is_receive:
                queues.setdefault((peer, part.rank, step.channel), ([], []))[1].append(base + place)
            elif step.kind is StepKind.SEND:
                queues.setdefault((part.rank, peer, step.channel), ([], []))[0].append(base + place)
        for place, step in enumerate(part.template.steps):
            for need in step.needs:
                steps[base + need.step].followers.append((base + place, need.mode is NeedMode.MESSAGE))
    for sends, receives in queues.values():
        for send, receive in zip(sends, receives, strict=True):
            steps[send].receiver = receive
    return steps
