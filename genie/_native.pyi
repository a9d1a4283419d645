"""The native engine (native/src/bind.cpp): checks programs, runs them in this process, simulates them."""

from collections.abc import Sequence
from typing import Any, TypedDict

class ProgramSummary(TypedDict):
    rank: int
    world: int
    iterations: int
    ops: int
    calls: int
    templates: int
    steps: int
    connections: int
    event_capacity: int

class RankResult(TypedDict):
    """``status`` 0 ok, 1 failed, 2 aborted; ``code`` as in docs/formats.md §4, 0 = none."""

    rank: int
    status: int
    code: int
    op: int | None
    iteration: int
    peer: int | None
    call_id: int | None
    waited_ns: int
    text: str

class Simulation(TypedDict):
    """Of each rank: when every iteration ended (ns since the start), payload bytes sent, what failed or None."""

    iteration_end_ns: list[list[int]]
    bytes_sent: list[int]
    failures: list[dict[str, Any] | None]

protocol_version: int
program_version: int

def check_program(blob: bytes) -> ProgramSummary:
    """Validate a program blob (docs/formats.md §1) as an agent does.

    Raises:
        ValueError: what is wrong with it.
    """

def run_local(programs: Sequence[bytes], event_paths: Sequence[str], token: bytes) -> list[RankResult]:
    """Run all ranks of a job as threads of this process over loopback TCP; the first failure stops the others.

    An empty event path keeps no file. ``token`` is 32 bytes. Ports are found out, whatever the programs say.

    Raises:
        ValueError: a program is invalid, or lengths do not fit.
        OSError: no thread or descriptor could be had.
    """

def simulate(
    programs: Sequence[bytes],
    *,
    latency_ns: int,
    rank_rate_bps: Sequence[int],
    frame_overhead_ns: int = 0,
) -> Simulation:
    """Run all ranks of a job over a virtual clock: each sends and receives at its own rate (0 = infinite), frames
    take ``latency_ns`` from end to end and ``frame_overhead_ns`` more at each end.

    Raises:
        ValueError: a program is invalid, or the programs do not fit together.
    """
