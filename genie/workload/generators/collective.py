"""``workload=collective``: one kind of collective at many sizes, one after the other, without compute.

Sizes follow nccl-tests (PERFORMANCE.md), so that its algbw and busbw can be set beside ours: ``size`` is the larger
of what a rank puts in and gets out. In `Operator.bytes`: all_gather, gather and scatter get ``ceil(size / ranks)``, the
shard; all others ``size`` itself (all_to_all and reduce_scatter are rounded up to a multiple of the ranks). Rounding is
noted. ``send_recv``: every rank sends ``size`` to the next rank and receives as much from the one before it.
"""

from __future__ import annotations

from genie.errors import ConfigError, closest
from genie.units import format_bytes, parse_bytes
from genie.workload.config import CollectiveConfig
from genie.workload.generators.graph import Pen, at_least, positive
from genie.workload.trace import CollectiveKind, RankTrace, Trace

SEND_RECV = "send_recv"
_SHARDED = frozenset({CollectiveKind.ALL_GATHER, CollectiveKind.GATHER, CollectiveKind.SCATTER})
_DIVIDED = _SHARDED | {CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL}
MAX_CALLS = 100_000


def generate(config: CollectiveConfig) -> Trace:
    """Every size ``repeats`` times, each call after the one before it."""
    positive(config, "ranks", "repeats")
    kinds = {str(kind) for kind in CollectiveKind} | {SEND_RECV}
    if config.kind not in kinds:
        raise ConfigError(f"no collective {config.kind!r}", key="workload.kind", hint=closest(config.kind, kinds))
    if config.ranks < 2:
        raise ConfigError("a collective needs at least 2 ranks", key="workload.ranks")
    if not 0 <= config.root < config.ranks:
        raise ConfigError(f"expected a rank from 0 to {config.ranks - 1}, found {config.root}", key="workload.root")
    sizes = sizes_of(config)
    if len(sizes) * config.repeats > MAX_CALLS:
        message = f"{len(sizes)} sizes × {config.repeats} repeats are more than {MAX_CALLS} calls"
        raise ConfigError(message, key="workload.repeats", hint="raise workload.iterations instead")
    trace = Trace([_rank(config, rank, sizes) for rank in range(config.ranks)], {"": tuple(range(config.ranks))})
    if config.kind in {str(kind) for kind in _DIVIDED}:
        odd = [size for size in sizes if size % config.ranks]
        if odd:
            trace.notes.append(
                f"{len(odd)} sizes are not divisible by {config.ranks} ranks and are rounded up "
                f"(the first: {odd[0]} B to {_rounded(odd[0], config.ranks)} B)"
            )
    return trace


def sizes_of(config: CollectiveConfig) -> list[int]:
    """The sizes in bytes, in order. Raises ConfigError for an empty or endless range."""
    if config.kind == CollectiveKind.BARRIER:
        return [0]
    if config.sizes:
        return [parse_bytes(size, key="workload.sizes") for size in config.sizes]
    least = at_least(parse_bytes(config.min_bytes, key="workload.min_bytes"), 1, "min_bytes")
    most = parse_bytes(config.max_bytes, key="workload.max_bytes")
    at_least(config.factor, 2, "factor")
    if most < least:
        message = f"{format_bytes(most)} is below workload.min_bytes ({format_bytes(least)})"
        raise ConfigError(message, key="workload.max_bytes")
    sizes = []
    while least <= most:
        sizes.append(least)
        least *= config.factor
    return sizes


def _rounded(size: int, ranks: int) -> int:
    return -(-size // ranks) * ranks


def _rank(config: CollectiveConfig, rank: int, sizes: list[int]) -> RankTrace:
    pen = Pen(rank, "collective")
    after: list[int] = []
    for number, size in enumerate(sizes):
        for repeat in range(config.repeats):
            name = f"{config.kind} {size} B #{repeat}"
            if config.kind == SEND_RECV:
                tag = number * config.repeats + repeat
                sent = pen.send(f"send {size} B #{repeat}", after, size, (rank + 1) % config.ranks, tag)
                got = pen.recv(f"recv {size} B #{repeat}", after, size, (rank - 1) % config.ranks, tag)
                after = [sent, got]
                continue
            kind = CollectiveKind(config.kind)
            whole = _rounded(size, config.ranks) if kind in _DIVIDED else size
            own = whole // config.ranks if kind in _SHARDED else whole
            after = [pen.collective(name, after, kind, own, "", root=config.root)]
    return pen.trace
