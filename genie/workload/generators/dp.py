"""``workload=dp``: one step of data-parallel training with PyTorch DDP's bucketed, overlapped gradient all-reduce.

Every rank holds all layers. *Bytes:* a layer has 4·h² + 2·h·f parameters (`Layer`) of d bytes; gradients are grouped
from the last layer backwards until a bucket holds ``bucket`` bytes, and each bucket is all-reduced on the world as soon
as its last gradient is there. Only the last micro-batch reduces (gradient accumulation, DDP's ``no_sync``). *Time:*
`Clock.ns` of the layer's FLOPs, backward twice forward; the optimizer is bound by memory.
"""

from __future__ import annotations

from genie.workload.config import DpConfig
from genie.workload.generators.graph import (
    OPTIMIZER_BYTES,
    Layer,
    Pen,
    bucket_bytes,
    buckets,
    clock,
    dtype_bytes,
    positive,
)
from genie.workload.trace import CollectiveKind, RankTrace, Trace


def generate(config: DpConfig) -> Trace:
    """One iteration, for all ranks."""
    positive(config, "ranks", "layers", "hidden", "ffn", "sequence", "micro_batch", "micro_batches")
    return Trace([_rank(config, rank) for rank in range(config.ranks)], {"": tuple(range(config.ranks))})


def _rank(config: DpConfig, rank: int) -> RankTrace:
    pen = Pen(rank, "dp", clock(config.device, config.efficiency, config.scale_down))
    width = dtype_bytes(config.dtype)
    layer = Layer(config.hidden, config.ffn, config.micro_batch * config.sequence, config.sequence, width)
    flops = layer.attention_flops() + layer.ffn_flops()
    memory = layer.attention_memory() + layer.ffn_memory()
    groups = buckets([layer.parameters * width] * config.layers, bucket_bytes(config.bucket))
    head: list[int] = []
    reduced: list[int] = []
    for batch in range(config.micro_batches):
        for number in range(config.layers):
            head = [pen.compute(f"fwd layer{number} mb{batch}", head, flops, memory)]
        for place in range(config.layers):
            head = [pen.compute(f"bwd layer{config.layers - 1 - place} mb{batch}", head, 2 * flops, 2 * memory)]
            for indexes, size in groups:
                if batch == config.micro_batches - 1 and indexes[-1] == place and config.ranks > 1:
                    name = f"grad bucket{len(reduced)} all_reduce"
                    reduced.append(pen.collective(name, head, CollectiveKind.ALL_REDUCE, size, ""))
    parameters = config.layers * layer.parameters
    pen.compute("optimizer", reduced + head, 10 * parameters, OPTIMIZER_BYTES * parameters)
    return pen.trace
