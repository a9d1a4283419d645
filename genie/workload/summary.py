"""What a workload holds, as text: behind ``genie trace info`` and ``genie trace check``.

`describe` in the package's face calls one of the two functions here. They load, check and print; they decide nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from genie.errors import TraceError
from genie.units import format_bytes, format_ns
from genie.workload.check import CheckedTrace, check
from genie.workload.config import WorkloadConfig
from genie.workload.excerpt import excerpt
from genie.workload.roofline import fill_durations, scale_durations
from genie.workload.trace import Operator, OpKind, Trace

MAX_ROWS = 16
_KINDS = tuple(OpKind)


def verdict(config: WorkloadConfig) -> str:
    """One line if the workload can be replayed, with its notes. Raises TraceError or ConfigError if it cannot."""
    from genie.workload import load

    checked = check(load(config))
    operators = sum(len(rank.operators) for rank in checked.trace.ranks)
    messages = sum(call.kind is None for call in checked.calls)
    line = (
        f"ok: {_count(checked.trace.world, 'rank')}, {_count(operators, 'operator')}, "
        f"{_count(len(checked.calls) - messages, 'collective')}, {_count(messages, 'message')}"
    )
    return "\n".join([line, *(f"note: {note}" for note in checked.trace.notes)])


def details(config: WorkloadConfig) -> str:
    """Tables of ranks and communication, and whether the workload can be replayed.

    Raises:
        TraceError, ConfigError: it cannot even be read. What only hinders the replay is said in the text.
    """
    from genie.workload import read

    trace = read(config)
    problem = ""
    untimed = sum(op.duration_ns is None for rank in trace.ranks for op in rank.operators if _timed(op))
    recorded = sum(op.duration_ns is not None for rank in trace.ranks for op in rank.operators if _timed(op))
    checked: CheckedTrace | None = None
    try:
        fill_durations(trace, config.device)
        scale_durations(trace, config.compute_scale)
        checked = check(trace)
    except TraceError as error:
        problem = str(error)
    blocks = [_ranks(trace), _communication(trace)]
    lines = [f"durations: {recorded} recorded, {untimed} absent"]
    lines += [f"note: {note}" for note in trace.notes]
    lines.append(f"can be replayed: {'yes' if checked else 'no: ' + problem}")
    return "\n\n".join([*(block for block in blocks if block), "\n".join(lines)])


def _timed(op: Operator) -> bool:
    return op.kind in (OpKind.COMPUTE, OpKind.MEMORY)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _ranks(trace: Trace) -> str:
    used = [kind for kind in _KINDS if any(op.kind is kind for rank in trace.ranks for op in rank.operators)]
    rows = [["rank", "operators", *map(str, used), "compute time"]]
    for rank in trace.ranks[:MAX_ROWS]:
        kinds = Counter(op.kind for op in rank.operators)
        unknown = any(op.duration_ns is None for op in rank.operators if _timed(op))
        time = "unknown" if unknown else format_ns(sum(op.duration_ns or 0 for op in rank.operators))
        rows.append([str(rank.rank), str(len(rank.operators)), *(str(kinds[kind]) for kind in used), time])
    text = _table(rows)
    more = trace.world - MAX_ROWS
    return f"{text}\n… and {_count(more, 'more rank')}" if more > 0 else text


def _communication(trace: Trace) -> str:
    """Bytes by communicator and kind, as rank traces state them: of one rank, the busiest."""
    sizes: dict[tuple[str, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in trace.ranks:
        for op in rank.operators:
            if op.kind is OpKind.COLLECTIVE:
                sizes[op.comm, str(op.collective)][rank.rank].append(op.bytes)
            elif op.kind in (OpKind.SEND, OpKind.RECV):
                sizes["", str(op.kind)][rank.rank].append(op.bytes)
    if not sizes:
        return ""
    rows = [["communicator", "ranks", "kind", "calls a rank", "smallest", "largest", "bytes a rank"]]
    keys = sorted(sizes, key=lambda key: (key[0] != "", len(key[0]), key))
    for comm, kind in keys[: 2 * MAX_ROWS]:
        by_rank = sizes[comm, kind]
        flat = [size for found in by_rank.values() for size in found]
        members = trace.communicators.get(comm, ())
        rows.append(
            [
                (comm if comm.isprintable() and len(comm) < 40 else excerpt(comm, 40)) or "world",
                str(len(members)) if members else "unknown",
                kind,
                str(max(map(len, by_rank.values()))),
                format_bytes(min(flat)),
                format_bytes(max(flat)),
                format_bytes(max(map(sum, by_rank.values()))),
            ]
        )
    text = _table(rows)
    more = len(keys) - 2 * MAX_ROWS
    return f"{text}\n… and {_count(more, 'more line')}" if more > 0 else text


def _table(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
