"""Compute time from work: the roofline of a named device.

Used by the generators for every operator and by `genie.workload.load` for trace nodes that carry FLOPs or bytes but
no duration. Never replaces a recorded duration.

Peaks are the makers' dense (no sparsity) bf16 figures, fp16 for V100, which has no bf16; memory is the makers' figure:

* v100: NVIDIA V100 SXM2 datasheet, 125 TFLOP/s, 900 GB/s
* a100: NVIDIA A100 80GB SXM datasheet, 312 TFLOP/s, 2039 GB/s
* h100: NVIDIA H100 SXM datasheet, 1979 TFLOP/s with sparsity = 989.5 dense, 3350 GB/s
* h200: NVIDIA H200 SXM datasheet, the same 989.5 TFLOP/s, 4800 GB/s
* b200: NVIDIA HGX B200 datasheet, 4.5 PFLOP/s with sparsity = 2250 dense, 8000 GB/s
* mi250x: AMD MI250X datasheet, 383 TFLOP/s, 3277 GB/s (both dies)
* mi300x: AMD MI300X datasheet, 1307.4 TFLOP/s, 5300 GB/s
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from genie.errors import ConfigError, TraceError, closest
from genie.workload.excerpt import label
from genie.workload.trace import Operator, OpKind, Trace


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator: peak dense FLOP/s and memory bytes a second."""

    name: str
    peak_flops: float
    memory_bytes_per_s: float

    def seconds(self, flops: float, memory_bytes: float, *, efficiency: float = 1.0) -> float:
        """``max(flops / (peak · efficiency), bytes / bandwidth)`` (Williams et al., CACM 2009)."""
        return max(flops / (self.peak_flops * efficiency), memory_bytes / self.memory_bytes_per_s)

    def duration_ns(self, flops: float, memory_bytes: float) -> int:
        """`seconds` in ns, rounded up: work never takes no time."""
        return math.ceil(self.seconds(flops, memory_bytes) * 1e9)


DEVICES = {
    device.name: device
    for device in (
        Device("v100", 125e12, 900e9),
        Device("a100", 312e12, 2039e9),
        Device("h100", 989.5e12, 3350e9),
        Device("h200", 989.5e12, 4800e9),
        Device("b200", 2250e12, 8000e9),
        Device("mi250x", 383e12, 3277e9),
        Device("mi300x", 1307.4e12, 5300e9),
    )
}


def device(name: str, *, key: str = "workload.device") -> Device:
    """The device called ``name``. Raises ConfigError with the nearest name."""
    try:
        return DEVICES[name]
    except KeyError:
        raise ConfigError(f"no device {name!r}", key=key, hint=closest(name, DEVICES)) from None


def fill_durations(trace: Trace, device_name: str) -> None:
    """Give a duration to every compute and memory operator of ``trace`` that has none, and note how many.

    Raises:
        TraceError: an operator has neither a duration nor FLOPs nor bytes, or has work but no device was named.
    """
    chosen = device(device_name) if device_name else None
    filled = 0
    for rank in trace.ranks:
        for place, op in enumerate(rank.operators):
            if op.duration_ns is not None or op.kind not in (OpKind.COMPUTE, OpKind.MEMORY):
                continue
            if not op.flops and not op.memory_bytes:
                raise _no_time(rank.source, op)
            if chosen is None:
                raise _no_device(rank.source, op)
            rank.operators[place] = replace(op, duration_ns=chosen.duration_ns(op.flops, op.memory_bytes))
            filled += 1
    if filled and chosen is not None:
        trace.notes.append(f"{filled} durations come from the roofline of {chosen.name}: the trace has none for them")


def scale_durations(trace: Trace, factor: float) -> None:
    """Multiply every duration by ``factor`` (`workload.compute_scale`). Raises ConfigError if it is negative."""
    if not (math.isfinite(factor) and factor >= 0):
        raise ConfigError(f"expected a finite number of at least 0, found {factor!r}", key="workload.compute_scale")
    if factor == 1:
        return
    for rank in trace.ranks:
        for place, op in enumerate(rank.operators):
            if op.duration_ns:
                rank.operators[place] = replace(op, duration_ns=round(op.duration_ns * factor))
    trace.notes.append(f"compute durations are multiplied by {factor:g} (workload.compute_scale)")


def _no_time(source: str, op: Operator) -> TraceError:
    return TraceError(
        f"{op.kind} node has neither a duration nor FLOPs (num_ops) nor bytes (tensor_size): its time is unknown",
        file=source,
        node=label(op.id, op.name),
        hint="record the trace with durations, or convert it with a tool that keeps num_ops and tensor_size",
    )


def _no_device(source: str, op: Operator) -> TraceError:
    return TraceError(
        f"{op.kind} node has no duration, but {op.flops} FLOPs and {op.memory_bytes} bytes",
        file=source,
        node=label(op.id, op.name),
        hint=f"name the device it ran on: workload.device={'|'.join(sorted(DEVICES))}",
    )
