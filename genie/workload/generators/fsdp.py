"""``workload=fsdp``: one step of fully sharded data parallel (FSDP FULL_SHARD, ZeRO-3).

*Bytes:* a layer's P = (4·h² + 2·h·f)·d bytes are padded to S = ceil(P / ranks) a rank, as FSDP does. Forward and
backward of a layer each need an all_gather with shard S; after its backward a reduce_scatter with input S·ranks
follows. The last layer stays gathered between forward and backward; each micro-batch repeats it all. *Overlap:* the
gather of a layer is issued ``prefetch`` layers ahead, once the layer before that point is done (at most prefetch + 1
layers are gathered). Gathers and scatters share the world's communicator, as in FSDP. *Time:* as in
`genie.workload.generators.dp`.
"""

from __future__ import annotations

from genie.workload.config import FsdpConfig
from genie.workload.generators.graph import OPTIMIZER_BYTES, Layer, Pen, at_least, clock, dtype_bytes, positive
from genie.workload.trace import CollectiveKind, RankTrace, Trace


def generate(config: FsdpConfig) -> Trace:
    """One iteration, for all ranks."""
    positive(config, "ranks", "layers", "hidden", "ffn", "sequence", "micro_batch", "micro_batches")
    at_least(config.prefetch, 0, "prefetch")
    return Trace([_rank(config, rank) for rank in range(config.ranks)], {"": tuple(range(config.ranks))})


def _rank(config: FsdpConfig, rank: int) -> RankTrace:
    pen = Pen(rank, "fsdp", clock(config.device, config.efficiency, config.scale_down))
    width = dtype_bytes(config.dtype)
    layer = Layer(config.hidden, config.ffn, config.micro_batch * config.sequence, config.sequence, width)
    flops = layer.attention_flops() + layer.ffn_flops()
    memory = layer.attention_memory() + layer.ffn_memory()
    shard = -(-layer.parameters * width // config.ranks)
    head: list[int] = []
    scattered: list[int] = []
    for batch in range(config.micro_batches):
        # The visits of one micro-batch: forward up, backward down. The last layer is visited twice in a row.
        visits = [("fwd", number) for number in range(config.layers)]
        visits += [("bwd", number) for number in reversed(range(config.layers))]
        gathers = [place for place in range(len(visits)) if place != config.layers]
        gathered: dict[int, int] = {}
        done: list[int] = []
        entry = head
        issued = 0
        for place, (word, number) in enumerate(visits):
            while issued < len(gathers) and gathers[issued] <= place + config.prefetch:
                word_at, number_at = visits[gathers[issued]]
                name = f"{word_at} layer{number_at} mb{batch} all_gather"
                after = [done[-1]] if done else entry
                gathered[gathers[issued]] = pen.collective(name, after, CollectiveKind.ALL_GATHER, shard, "")
                issued += 1
            ready = gathered[place if place != config.layers else place - 1]
            times = 1 if word == "fwd" else 2
            needs = [*dict.fromkeys([*(done[-1:] or entry), ready])]
            name = f"{word} layer{number} mb{batch}"
            done.append(pen.compute(name, needs, times * flops, times * memory))
            if word == "bwd":
                name = f"grad layer{number} mb{batch} reduce_scatter"
                kind = CollectiveKind.REDUCE_SCATTER
                scattered.append(pen.collective(name, [done[-1]], kind, shard * config.ranks, ""))
        head = [done[-1]]
    parameters = config.layers * (shard // width)
    pen.compute("optimizer", [*scattered, *head], 10 * parameters, OPTIMIZER_BYTES * parameters)
    return pen.trace
