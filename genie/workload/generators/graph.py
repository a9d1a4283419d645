"""The pen that generators draw a rank's graph with, and the arithmetic of transformer layers that they share.

`Pen` hands out ascending ids, so file order is a topological order and every rank issues its collectives in the
order in which the generator wrote them. `Layer` holds the documented formulas for bytes and FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from genie.errors import ConfigError, closest
from genie.units import parse_bytes
from genie.workload.config import DTYPE_BYTES
from genie.workload.roofline import Device, device
from genie.workload.trace import CollectiveKind, Operator, OpKind, RankTrace


@dataclass(frozen=True, slots=True)
class Clock:
    """Compute time: roofline of a device at ``efficiency`` of its peak, slowed ``scale_down`` times."""

    device: Device
    efficiency: float
    scale_down: float

    def ns(self, flops: int, memory_bytes: int) -> int:
        """``max(flops / (peak · efficiency), bytes / bandwidth) · scale_down``, rounded to whole ns."""
        seconds = self.device.seconds(flops, memory_bytes, efficiency=self.efficiency)
        return round(seconds * self.scale_down * 1e9)


class Pen:
    """Writes the operators of one rank. Each method returns the new operator's id, to be used as a dependency."""

    def __init__(self, rank: int, source: str, clock: Clock | None = None) -> None:
        self.trace = RankTrace(rank, [], source)
        self._clock = clock

    def _add(self, op: Operator) -> int:
        self.trace.operators.append(op)
        return op.id

    def _next(self) -> int:
        return len(self.trace.operators) + 1

    def compute(self, name: str, deps: Iterable[int], flops: int, memory_bytes: int) -> int:
        """A compute operator of ``flops`` that touches ``memory_bytes``."""
        assert self._clock is not None
        return self._add(
            Operator(
                self._next(),
                name,
                OpKind.COMPUTE,
                tuple(deps),
                duration_ns=self._clock.ns(flops, memory_bytes),
                flops=flops,
                memory_bytes=memory_bytes,
            )
        )

    def collective(
        self,
        name: str,
        deps: Iterable[int],
        kind: CollectiveKind,
        size: int,
        comm: str,
        *,
        root: int = 0,
        vector: tuple[int, ...] | None = None,
    ) -> int:
        """A collective of ``size`` bytes (the convention of `Operator.bytes`) on ``comm``."""
        return self._add(
            Operator(
                self._next(),
                name,
                OpKind.COLLECTIVE,
                tuple(deps),
                collective=kind,
                bytes=size,
                per_peer_bytes=vector,
                comm=comm,
                root=root,
            )
        )

    def send(self, name: str, deps: Iterable[int], size: int, peer: int, tag: int) -> int:
        """A message of ``size`` bytes to world rank ``peer``."""
        return self._add(Operator(self._next(), name, OpKind.SEND, tuple(deps), bytes=size, peer=peer, tag=tag))

    def recv(self, name: str, deps: Iterable[int], size: int, peer: int, tag: int) -> int:
        """A message of ``size`` bytes from world rank ``peer``."""
        return self._add(Operator(self._next(), name, OpKind.RECV, tuple(deps), bytes=size, peer=peer, tag=tag))


@dataclass(frozen=True, slots=True)
class Layer:
    """One transformer layer: hidden h, feed-forward f, ``tokens`` t a micro-batch, sequence s, split over ``tp`` ranks.

    Parameters: attention 4·h² (Q, K, V, output), feed-forward 2·h·f (two matrices); norms and biases are left out.
    FLOPs forward: 2 for each parameter and token, plus attention scores 4·t·s·h (QKᵀ and AV; Narayanan et al., SC'21).
    FLOPs backward: twice the forward. Memory: parameters once, and inputs and outputs of each matrix once.
    """

    hidden: int
    ffn: int
    tokens: int
    sequence: int
    dtype_bytes: int
    tp: int = 1

    @property
    def attention_parameters(self) -> int:
        """On this rank."""
        return 4 * self.hidden * self.hidden // self.tp

    @property
    def ffn_parameters(self) -> int:
        """On this rank."""
        return 2 * self.hidden * self.ffn // self.tp

    @property
    def parameters(self) -> int:
        """On this rank."""
        return self.attention_parameters + self.ffn_parameters

    @property
    def activation_bytes(self) -> int:
        """The layer's input or output for one micro-batch, whole (not split by tensor parallelism)."""
        return self.tokens * self.hidden * self.dtype_bytes

    def attention_flops(self) -> int:
        """Forward."""
        return 2 * self.tokens * self.attention_parameters + 4 * self.tokens * self.sequence * self.hidden // self.tp

    def ffn_flops(self) -> int:
        """Forward."""
        return 2 * self.tokens * self.ffn_parameters

    def attention_memory(self) -> int:
        """Bytes touched forward: parameters, and eight activations (Q, K, V, output; read and written)."""
        return self.attention_parameters * self.dtype_bytes + 8 * self.activation_bytes // self.tp

    def ffn_memory(self) -> int:
        """Bytes touched forward: parameters, input and output, and the wide activation twice."""
        wide = self.tokens * self.ffn * self.dtype_bytes // self.tp
        return self.ffn_parameters * self.dtype_bytes + 2 * self.activation_bytes + 2 * wide


OPTIMIZER_BYTES = 30
"""Bytes a parameter that Adam touches in mixed precision: 16-bit gradient read (2); fp32 weight and two moments read
(12) and written (12); 16-bit weight written (2); and the gradient cleared (2)."""


def buckets(sizes: list[int], limit: int) -> list[tuple[list[int], int]]:
    """Group consecutive gradients until a group has at least ``limit`` bytes, as DDP does: [(indexes, bytes)]."""
    groups: list[tuple[list[int], int]] = []
    indexes: list[int] = []
    held = 0
    for index, size in enumerate(sizes):
        indexes.append(index)
        held += size
        if held >= limit:
            groups.append((indexes, held))
            indexes, held = [], 0
    if indexes:
        groups.append((indexes, held))
    return groups


def clock(device_name: str, efficiency: float, scale_down: float) -> Clock:
    """The clock of a workload's config. Raises ConfigError for what makes no sense."""
    if not 0 < efficiency <= 1:
        raise ConfigError(f"expected a part of the peak in (0, 1], found {efficiency}", key="workload.efficiency")
    if not 0 < scale_down < float("inf"):
        raise ConfigError(f"expected a number above 0, found {scale_down}", key="workload.scale_down")
    return Clock(device(device_name), efficiency, scale_down)


def dtype_bytes(name: str) -> int:
    """Bytes of an element of data type ``name``."""
    if name not in DTYPE_BYTES:
        raise ConfigError(f"no data type {name!r}", key="workload.dtype", hint=closest(name, DTYPE_BYTES))
    return DTYPE_BYTES[name]


def at_least(value: int, least: int, key: str) -> int:
    """``value``, or ConfigError if it is below ``least``."""
    if value < least:
        raise ConfigError(f"expected at least {least}, found {value}", key=f"workload.{key}")
    return value


def positive(config: object, *names: str) -> None:
    """ConfigError unless every named integer field of ``config`` is at least 1."""
    for name in names:
        at_least(getattr(config, name), 1, name)


def bucket_bytes(value: int | str) -> int:
    """The bucket limit in bytes, at least 1."""
    return at_least(parse_bytes(value, key="workload.bucket"), 1, "bucket")
