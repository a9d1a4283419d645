"""The channel-program form that every collective algorithm becomes.

An algorithm, for one rank of one communicator, is a tuple of `Step`: send, receive, or local work, each on a
channel and each with the steps it needs. Sizes are expressions (`Size`), evaluated for each call, so one
template serves every call on a communicator whatever its bytes. Algorithms in this package emit it,
`genie.collectives.check` proves it, `genie.engine.encode` packs it for the native executor.

Order is part of the contract: on one channel, the sends of rank a to rank b, in step order, meet the receives
of b from a, in step order, one to one and with equal sizes. Nothing else orders steps but ``needs``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class StepKind(IntEnum):
    """SEND and RECV move one `Size` to or from ``peer``; LOCAL takes time (a reduction) and moves nothing."""

    SEND = 0
    RECV = 1
    LOCAL = 2


class SizeKind(IntEnum):
    """How many bytes a step moves.

    ZERO: a control message without payload.
    BLOCK: block ``index`` of ``of`` equal parts of this channel's share of the call's bytes.
    VECTOR: this channel's share of entry ``index`` of the call's vector. Over n ranks a vector has 2n entries: what
    this rank sends to each rank, then what it receives from each (its receives use ``n + peer``).
    The share of channel c of C of B bytes is ``B*(c+1)//C - B*c//C``; a block is cut from it in the same way.
    Both cuts are exact for every B: no byte is lost, none is sent twice.
    """

    ZERO = 0
    BLOCK = 1
    VECTOR = 2


@dataclass(frozen=True, slots=True)
class Size:
    """A size expression: see `SizeKind`."""

    kind: SizeKind
    index: int = 0
    of: int = 1

    def bytes(self, *, total: int, vector: tuple[int, ...], channel: int, channels: int) -> int:
        """Bytes of this expression for one call (``total`` bytes, ``vector`` per-peer bytes) on one channel."""
        if self.kind is SizeKind.ZERO:
            return 0
        whole = vector[self.index] if self.kind is SizeKind.VECTOR else total
        share = whole * (channel + 1) // channels - whole * channel // channels
        if self.kind is SizeKind.VECTOR:
            return share
        return share * (self.index + 1) // self.of - share * self.index // self.of


class NeedMode(IntEnum):
    """MESSAGE: message m waits for message m of the needed step (cut-through; both steps move equal sizes).
    WHOLE: waits until the needed step is done.
    """

    MESSAGE = 0
    WHOLE = 1


@dataclass(frozen=True, slots=True)
class Need:
    """This step waits for step number ``step`` of the same rank's template (any channel)."""

    step: int
    mode: NeedMode = NeedMode.MESSAGE


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank.

    ``peer`` is a communicator rank (-1 for LOCAL). ``payload`` says *which data* moves, for the checker only: a
    tuple of (owner, block) names (convention: `genie.collectives.draft`); ``reduce`` on a RECV combines what arrives
    with what is held instead of replacing it. ``local_ns`` is the duration of a LOCAL step.
    """

    kind: StepKind
    channel: int
    peer: int
    size: Size
    needs: tuple[Need, ...] = ()
    payload: tuple[tuple[int, int], ...] = ()
    reduce: bool = False
    local_ns: int = 0


@dataclass(frozen=True, slots=True)
class Template:
    """The steps of one algorithm for one rank of a communicator of ``ranks`` ranks, over ``channels`` channels."""

    algorithm: str
    rank: int
    ranks: int
    channels: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One use of a template: operator ``op`` (index in `RankProgram.ops`) on communicator ``comm``.

    ``call_id`` is the same on all ranks that take part and unique in the job. ``template`` indexes
    `RankProgram.templates`; ``chunk_bytes`` is the largest message. ``bytes`` is the buffer that is cut in blocks,
    made from the trace's convention by `genie.collectives.lower` (n shards for all-gather, gather and scatter).
    """

    call_id: int
    op: int
    template: int
    comm: str
    bytes: int
    vector: tuple[int, ...]
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class ProgramOp:
    """One operator as the engine walks it: dense index, ``duration_ns`` for compute, ``call`` for communication.

    ``lane`` (index in `RankProgram.lanes`, -1 = none) holds one operator at a time. ``needs`` are dense indexes.
    ``trace_id`` and ``name`` lead back to the trace.
    """

    trace_id: int
    name: str
    duration_ns: int
    call: int
    lane: int
    needs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """A stream. ``ordered`` lanes run their operators in index order (communicators, so that every rank issues
    the same order); others take the lowest ready index (compute).
    """

    name: str
    ordered: bool


@dataclass(frozen=True, slots=True)
class RankProgram:
    """All that one rank does in one iteration. ``comms`` maps a communicator to its world ranks."""

    rank: int
    world: int
    ops: tuple[ProgramOp, ...]
    lanes: tuple[Lane, ...]
    calls: tuple[Call, ...]
    templates: tuple[tuple[str, Template], ...]  # (communicator, template)
    comms: dict[str, tuple[int, ...]]
