"""From a checked trace to what each rank does: `RankProgram`s.

`genie.experiment.plan` calls `lower` between `genie.workload.check.check` and `genie.engine.encode`. Every matched
call gets its algorithm, channel count and the bytes that are cut in blocks; templates are shared by all calls of the
same shape. Operators get their lanes. It decides nothing about the trace: order and dependencies are the check's.

Bytes of a call as templates see them (trace convention to buffer that is cut): all-reduce, reduce, broadcast the
vector; reduce-scatter the whole input; all-gather, gather and scatter n shards; all-to-all the whole buffer, or a
vector of 2n entries where it is uneven (to each rank, then from each).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from genie.collectives import Options, build, default_for, p2p, require
from genie.collectives.config import CollectivesConfig
from genie.collectives.program import Call, Lane, ProgramOp, RankProgram, Template
from genie.errors import ConfigError, PlanError
from genie.workload.check import Call as CheckedCall
from genie.workload.check import CheckedTrace
from genie.workload.trace import CollectiveKind, Operator, OpKind

MAX_TOTAL_BYTES = 2**63 - 1
_SHARDED = frozenset({CollectiveKind.ALL_GATHER, CollectiveKind.GATHER, CollectiveKind.SCATTER})

STREAMS = ("merged", "recorded")
"""``merged``: all compute of a rank in one lane; ``recorded``: a lane for each stream of the trace."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What decides a collective's templates, but for the rank."""

    comm: str
    kind: CollectiveKind
    algorithm: str
    channels: int
    root: int
    uneven: bool


@dataclass(slots=True)
class _Rank:
    """The program of one rank while it grows."""

    calls: list[Call] = field(default_factory=list)
    call_of_op: dict[int, int] = field(default_factory=dict)
    templates: list[tuple[str, Template]] = field(default_factory=list)
    template_of: dict[object, int] = field(default_factory=dict)
    lanes: list[Lane] = field(default_factory=list)
    lane_of: dict[str, int] = field(default_factory=dict)

    def lane(self, name: str, *, ordered: bool) -> int:
        """Index of the lane of that name, made on first use."""
        found = self.lane_of.get(name)
        if found is None:
            found = self.lane_of[name] = len(self.lanes)
            self.lanes.append(Lane(name, ordered))
        return found


def lower(checked: CheckedTrace, collectives: CollectivesConfig, *, streams: str = "merged") -> list[RankProgram]:
    """One program for each rank of ``checked``, in rank order.

    Raises:
        ConfigError: an algorithm is unknown or cannot do its kind.
        PlanError: a call's buffer is larger than 2^63-1 bytes.
    """
    if streams not in STREAMS:
        raise ConfigError(f"expected one of {', '.join(STREAMS)}, found {streams!r}", key="workload.streams")
    _refuse_bad_choices(collectives)
    ranks = [_Rank() for _ in checked.trace.ranks]
    for call in checked.calls:
        if call.kind is None:
            _lower_message(call, ranks, collectives)
        else:
            _lower_collective(call, call.kind, ranks, checked, collectives)
    return [_program(rank, state, checked, streams) for rank, state in enumerate(ranks)]


def channels_for(total_bytes: int, collectives: CollectivesConfig, *, least: int = 1) -> int:
    """Channels of a call: all that are configured, fewer while each would carry under ``channel_min_bytes``."""
    if collectives.channel_min_bytes == 0:
        return max(least, collectives.channels)
    return max(least, min(collectives.channels, total_bytes // collectives.channel_min_bytes))


def total_bytes(kind: CollectiveKind, trace_bytes: int, ranks: int) -> int:
    """Bytes of the buffer that is cut in blocks, from the trace's convention for ``kind``."""
    if kind is CollectiveKind.BARRIER:
        return 0
    return trace_bytes * ranks if kind in _SHARDED else trace_bytes


def _refuse_bad_choices(collectives: CollectivesConfig) -> None:
    for kind in CollectiveKind:
        name = collectives.algorithm(kind.value)
        if name == "auto":
            continue
        known = require(name, kind, key=f"collective.{kind.value}")
        if collectives.channels < known.min_channels:
            raise ConfigError(
                f"{name} needs collective.channels of {known.min_channels} or more, found {collectives.channels}",
                key=f"collective.{kind.value}",
            )


def _lower_message(call: CheckedCall, ranks: list[_Rank], collectives: CollectivesConfig) -> None:
    sender, receiver = call.ranks
    channels = channels_for(call.bytes, collectives)
    for rank, peer, make in ((sender, receiver, p2p.send_to), (receiver, sender, p2p.receive_from)):
        state, key = ranks[rank], (make, peer, channels)
        template = state.template_of.get(key)
        if template is None:
            template = state.template_of[key] = len(state.templates)
            state.templates.append(("", make(peer, rank=rank, ranks=len(ranks), channels=channels)))
        op = call.ops[0 if rank == sender else 1]
        _add(state, Call(call.call_id, op, template, "", call.bytes, (), collectives.chunk_bytes))


def _lower_collective(
    call: CheckedCall, kind: CollectiveKind, ranks: list[_Rank], checked: CheckedTrace, collectives: CollectivesConfig
) -> None:
    n = len(call.ranks)
    total = total_bytes(kind, call.bytes, n)
    if total > MAX_TOTAL_BYTES:
        rank = call.ranks[0]
        node = checked.trace.ranks[rank].operators[checked.order[rank][call.ops[0]]]
        raise PlanError(
            f"{kind.value} {node.name!r} (node {node.id} of rank {rank}): {n} shards of {call.bytes} bytes are more "
            f"than 2^63-1 bytes"
        )
    name = collectives.algorithm(kind.value)
    if name == "auto":
        name = default_for(kind, small=total <= collectives.small_bytes)
    least = require(name, kind).min_channels
    channels = 1 if kind is CollectiveKind.BARRIER else channels_for(total, collectives, least=least)
    shape = _Shape(call.comm, kind, name, channels, call.root, bool(call.vectors))
    options = Options(collectives.peers_in_flight, shape.uneven)
    for place, rank in enumerate(call.ranks):
        state = ranks[rank]
        template = state.template_of.get(shape)
        if template is None:
            template = state.template_of[shape] = len(state.templates)
            state.templates.append((call.comm, build(name, kind, place, n, channels, call.root, options)))
        vector: tuple[int, ...] = ()
        if call.vectors:
            vector = (*call.vectors[place], *(theirs[place] for theirs in call.vectors))
        _add(state, Call(call.call_id, call.ops[place], template, call.comm, total, vector, collectives.chunk_bytes))


def _add(state: _Rank, call: Call) -> None:
    state.call_of_op[call.op] = len(state.calls)
    state.calls.append(call)


def _program(rank: int, state: _Rank, checked: CheckedTrace, streams: str) -> RankProgram:
    recorded = streams == "recorded"
    ops = tuple(
        ProgramOp(
            trace_id=op.id,
            name=op.name,
            duration_ns=op.duration_ns or 0 if op.kind in (OpKind.COMPUTE, OpKind.MEMORY) else 0,
            call=state.call_of_op.get(index, -1),
            lane=_lane(op, state, recorded),
            needs=needs,
        )
        for index, op, needs in _walk(rank, checked)
    )
    comms = {comm: checked.trace.communicators[comm] for comm, _ in state.templates}
    return RankProgram(
        rank=rank,
        world=checked.trace.world,
        ops=ops,
        lanes=tuple(state.lanes),
        calls=tuple(state.calls),
        templates=tuple(state.templates),
        comms={"": checked.trace.communicators[""], **comms},
    )


def _walk(rank: int, checked: CheckedTrace) -> Iterator[tuple[int, Operator, tuple[int, ...]]]:
    operators = checked.trace.ranks[rank].operators
    for index, (place, needs) in enumerate(zip(checked.order[rank], checked.needs[rank], strict=True)):
        yield index, operators[place], needs


def _lane(op: Operator, state: _Rank, recorded: bool) -> int:
    """The lane of an operator. Messages and no-operations have none: they never hold anything up."""
    match op.kind:
        case OpKind.COLLECTIVE:
            return state.lane(f"comm {op.comm or 'world'}", ordered=True)
        case OpKind.COMPUTE if op.is_cpu:
            return state.lane("cpu", ordered=False)
        case OpKind.COMPUTE if recorded and op.stream is not None:
            return state.lane(f"compute {op.stream}", ordered=False)
        case OpKind.COMPUTE:
            return state.lane("compute", ordered=False)
        case OpKind.MEMORY:
            return state.lane("memory", ordered=False)
        case _:
            return -1
