"""A failure in the words of the job: which operator on which rank waited for whom. Pure; names come from the plan."""

from __future__ import annotations

from collections.abc import Sequence

from genie.collectives.program import RankProgram
from genie.launch.protocol import Failure, FailureCode
from genie.units import format_ns

_NONE = 0xFFFFFFFF

_WHAT = {
    FailureCode.PEER_CLOSED: "lost its peer",
    FailureCode.STALL: "made no progress",
    FailureCode.SIZE_MISMATCH: "got a message of another size than both sides had planned",
    FailureCode.PROTOCOL: "got what no peer of this version sends",
    FailureCode.OUT_OF_MEMORY: "ran out of memory",
    FailureCode.CONNECT: "could not connect",
    FailureCode.BAD_PAYLOAD: "got a corrupted payload",
    FailureCode.INTERNAL: "failed",
    FailureCode.ABORTED: "was stopped",
    FailureCode.TRANSPORT: "got an error from its transport",
}


def explain(programs: Sequence[RankProgram], host_of_rank: Sequence[str], failure: Failure) -> str:
    """One sentence: where, what, for whom, for how long, and the engine's own words."""
    program = programs[failure.rank]
    parts = [f"on {host_of_rank[failure.rank]} {_WHAT[failure.code]}"]
    known = failure.peer != _NONE and failure.peer < len(host_of_rank)
    peer = f"rank {failure.peer} on {host_of_rank[failure.peer]}" if known else ""
    lost = failure.code is FailureCode.PEER_CLOSED
    if peer and lost:
        parts[0] += f", {peer},"
    if failure.op != _NONE and failure.op < len(program.ops):
        op = program.ops[failure.op]
        call = program.calls[op.call] if op.call >= 0 else None
        communicator = f" on communicator '{call.comm}'" if call and call.comm else ""
        iteration = "" if failure.iteration == _NONE else f", iteration {failure.iteration}"
        parts.append(f"in operator {op.trace_id} '{op.name}'{communicator}{iteration}")
    if peer and not lost:
        parts.append(f"waiting for {peer}")
    if failure.waited_ns and not lost:
        parts.append(f"for {format_ns(failure.waited_ns)}")
    sentence = " ".join(parts)
    return f"{sentence} ({failure.text})" if failure.text else sentence
