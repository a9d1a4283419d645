"""``workload=tp_pp``: one step of tensor-, pipeline- and data-parallel training (Megatron-LM), non-interleaved 1F1B.

Rank = t + tp · (d + dp · p), as Megatron orders them: tensor-parallel peers are neighbours, pipeline peers far apart.
Communicators: ``tp<i>``, ``dp<i>``, ``pp<i>``, those of one rank left out; pipeline messages are send/receive.

*Bytes*, with a = micro_batch · sequence · h · d bytes of activation: each layer all-reduces a twice forward (after
attention and feed-forward) and twice backward in its tensor group (Shoeybi et al., 2019); neighbours in the pipeline
exchange a forward and a backward for each micro-batch, between equal tensor ranks; gradients of the stage's layers
((4·h² + 2·h·f)·d / tp each) are all-reduced in buckets in the data group during the last micro-batch's backward.
*Time:* `Clock.ns` of the layer's FLOPs / tp, backward twice forward.

*Schedule* (Narayanan et al., SC'21): stage p does min(pp - 1 - p, m) forwards, then one forward and one backward in
turn, then the remaining backwards. Compute follows that order strictly; a send does not hold it up.
"""

from __future__ import annotations

from genie.errors import ConfigError
from genie.workload.config import TpPpConfig
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


def generate(config: TpPpConfig) -> Trace:
    """One iteration, for all ranks."""
    positive(config, "ranks", "tp", "pp", "layers", "hidden", "ffn", "sequence", "micro_batch", "micro_batches")
    if config.ranks % (config.tp * config.pp):
        message = f"{config.ranks} ranks cannot be split into tp {config.tp} × pp {config.pp} × dp"
        raise ConfigError(message, key="workload.ranks", hint=f"take a multiple of {config.tp * config.pp}")
    if config.layers % config.pp:
        message = f"{config.layers} layers cannot be split evenly over {config.pp} pipeline stages"
        raise ConfigError(message, key="workload.layers", hint=f"take a multiple of {config.pp}")
    if config.hidden % config.tp or config.ffn % config.tp:
        raise ConfigError(f"hidden and ffn must be multiples of tp = {config.tp}", key="workload.tp")
    communicators = {"": tuple(range(config.ranks)), **groups(config)}
    return Trace([_Stage(config, rank, communicators).write() for rank in range(config.ranks)], communicators)


def groups(config: TpPpConfig) -> dict[str, tuple[int, ...]]:
    """Communicators with more than one rank, by name."""
    tp, pp = config.tp, config.pp
    dp = config.ranks // (tp * pp)
    found = {f"tp{i}": tuple(range(i * tp, (i + 1) * tp)) for i in range(dp * pp)}
    found |= {f"dp{t + tp * p}": tuple(t + tp * (d + dp * p) for d in range(dp)) for p in range(pp) for t in range(tp)}
    found |= {f"pp{t + tp * d}": tuple(t + tp * (d + dp * p) for p in range(pp)) for d in range(dp) for t in range(tp)}
    return {name: members for name, members in found.items() if len(members) > 1}


def schedule(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """The 1F1B order of stage ``stage``: [("fwd" | "bwd", micro-batch)]."""
    warm = min(stages - 1 - stage, micro_batches)
    steps = [("fwd", batch) for batch in range(warm)]
    for batch in range(micro_batches - warm):
        steps += [("fwd", warm + batch), ("bwd", batch)]
    return steps + [("bwd", batch) for batch in range(micro_batches - warm, micro_batches)]


class _Stage:
    """Writes one rank."""

    def __init__(self, config: TpPpConfig, rank: int, communicators: dict[str, tuple[int, ...]]) -> None:
        self.config = config
        self.pen = Pen(rank, "tp_pp", clock(config.device, config.efficiency, config.scale_down))
        self.width = dtype_bytes(config.dtype)
        tokens = config.micro_batch * config.sequence
        self.layer = Layer(config.hidden, config.ffn, tokens, config.sequence, self.width, config.tp)
        self.stride = config.ranks // config.pp
        self.stage = rank // self.stride
        self.rank = rank
        mine = {name[:2]: name for name, members in communicators.items() if name and rank in members}
        self.tp, self.dp = mine.get("tp", ""), mine.get("dp", "")
        self.layers = range(config.layers // config.pp)
        self.buckets = buckets([self.layer.parameters * self.width] * len(self.layers), bucket_bytes(config.bucket))
        self.reduced: list[int] = []

    def write(self) -> RankTrace:
        config, pen = self.config, self.pen
        head: list[int] = []
        forwarded: dict[int, int] = {}
        sent: list[int] = []
        for word, batch in schedule(self.stage, config.pp, config.micro_batches):
            back = word == "bwd"
            come_from = self.rank + self.stride if back else self.rank - self.stride
            go_to = self.rank - self.stride if back else self.rank + self.stride
            tag = 2 * batch + back
            needs = list(head)
            if 0 <= come_from < config.ranks:
                needs.append(pen.recv(f"{word} mb{batch} recv", (), self.layer.activation_bytes, come_from, tag))
            if back and forwarded[batch] not in needs:
                needs.append(forwarded[batch])
            head = self._backward(batch, needs) if back else self._forward(batch, needs)
            if not back:
                forwarded[batch] = head[0]
            if 0 <= go_to < config.ranks:
                sent.append(pen.send(f"{word} mb{batch} send", head, self.layer.activation_bytes, go_to, tag))
        parameters = len(self.layers) * self.layer.parameters
        pen.compute("optimizer", [*head, *self.reduced, *sent], 10 * parameters, OPTIMIZER_BYTES * parameters)
        return pen.trace

    def _forward(self, batch: int, head: list[int]) -> list[int]:
        for number in self.layers:
            name = f"fwd stage{self.stage} layer{number} mb{batch}"
            head = self._block(f"{name} attention", head, self.layer.attention_flops(), self.layer.attention_memory())
            head = self._block(f"{name} ffn", head, self.layer.ffn_flops(), self.layer.ffn_memory())
        return head

    def _backward(self, batch: int, head: list[int]) -> list[int]:
        for place, number in enumerate(reversed(self.layers)):
            name = f"bwd stage{self.stage} layer{number} mb{batch}"
            head = self._block(f"{name} ffn", head, 2 * self.layer.ffn_flops(), 2 * self.layer.ffn_memory())
            flops, memory = 2 * self.layer.attention_flops(), 2 * self.layer.attention_memory()
            head = self._block(f"{name} attention", head, flops, memory)
            for indexes, size in self.buckets:
                if self.dp and batch == self.config.micro_batches - 1 and indexes[-1] == place:
                    label = f"grad bucket{len(self.reduced)} all_reduce"
                    self.reduced.append(self.pen.collective(label, head, CollectiveKind.ALL_REDUCE, size, self.dp))
        return head

    def _block(self, name: str, head: list[int], flops: int, memory: int) -> list[int]:
        """Compute, then the tensor group's all-reduce of the activation."""
        done = self.pen.compute(name, head, flops, memory)
        if not self.tp:
            return [done]
        size = self.layer.activation_bytes
        return [self.pen.collective(f"{name} all_reduce", [done], CollectiveKind.ALL_REDUCE, size, self.tp)]
