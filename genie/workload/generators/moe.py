"""``workload=moe``: one training step of a mixture-of-experts transformer, experts spread over all ranks.

Every rank holds ``experts / ranks`` experts of each layer and a copy of the dense part. With T = micro_batch ·
sequence tokens a micro-batch, h hidden, f ffn, k top_k and d bytes an element, each layer and micro-batch does

    attention  →  router  →  all_to_all dispatch  →  experts  →  all_to_all combine

and its mirror backward. *Bytes:* rank i sends ``n[i][j] · h · d`` to rank j, n[i][j] being how many (token, expert)
choices of i fall on j's experts; combine carries the transpose; backward repeats both. The dense gradients (attention
4·h² and router h·experts parameters a layer, d bytes each) are all-reduced in buckets on communicator ``dp`` while the
backward pass goes on; experts live once, so theirs are not reduced. *Time:* `Clock.ns` of the FLOPs in `Layer`; an
expert's FLOPs are 2 · tokens · 2·h·f, so an overloaded rank also computes longer. Backward is twice forward.

*Router:* experts have lognormal popularity of parameter ``imbalance``, drawn anew for each layer and micro-batch from
``seed``; a rank's T·k choices are shared out by it (largest remainder, no expert more than T times, since the top-k
of a token differ). ``capacity_factor`` c > 0 drops choices above ceil(c · T · k / experts) a rank and expert, as GShard
does. Micro-batches are interleaved layer by layer, so one's exchange overlaps another's compute.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from genie.errors import ConfigError
from genie.workload.config import MoeConfig
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


@dataclass(frozen=True, slots=True)
class Routing:
    """Where one layer sends one micro-batch: ``tokens[i][j]`` choices of rank i that fall on rank j's experts."""

    tokens: tuple[tuple[int, ...], ...]

    def sent(self, rank: int, token_bytes: int) -> tuple[int, ...]:
        """Bytes that ``rank`` sends to each rank in dispatch."""
        return tuple(count * token_bytes for count in self.tokens[rank])

    def returned(self, rank: int, token_bytes: int) -> tuple[int, ...]:
        """Bytes that ``rank`` sends back to each rank in combine: the transpose."""
        return tuple(row[rank] * token_bytes for row in self.tokens)

    def load(self, rank: int) -> int:
        """Choices that ``rank``'s experts work on."""
        return sum(row[rank] for row in self.tokens)


def route(config: MoeConfig) -> list[list[Routing]]:
    """The routing of every layer and micro-batch; the same on all ranks, a function of the config alone."""
    draw = random.Random(config.seed)  # noqa: S311  (a workload's shape, not a secret)
    choices = config.micro_batch * config.sequence * config.top_k
    most = config.micro_batch * config.sequence
    if config.capacity_factor > 0:
        most = min(most, math.ceil(config.capacity_factor * choices / config.experts))
    keeps_all = config.capacity_factor <= 0
    held = config.experts // config.ranks
    layers = []
    for _ in range(config.layers):
        batches = []
        for _ in range(config.micro_batches):
            popularity = [math.exp(config.imbalance * draw.gauss(0.0, 1.0)) for _ in range(config.experts)]
            rows = []
            for _ in range(config.ranks):
                # Ranks see different tokens: jitter, so that not every rank sends the same vector.
                own = [weight * math.exp(0.25 * config.imbalance * draw.gauss(0.0, 1.0)) for weight in popularity]
                counts = share(choices, own, most, keeps_all)
                rows.append(tuple(sum(counts[j * held : (j + 1) * held]) for j in range(config.ranks)))
            batches.append(Routing(tuple(rows)))
        layers.append(batches)
    return layers


def share(total: int, weights: list[float], most: int, keeps_all: bool) -> list[int]:
    """Share ``total`` out by ``weights`` in whole numbers (largest remainder), at most ``most`` each.

    What exceeds ``most`` goes to the others if ``keeps_all``, else it is dropped. The first needs ``total`` ≤
    ``most`` · len(weights), which top_k ≤ experts guarantees.
    """
    counts = _largest_remainder(total, weights)
    if not keeps_all:
        return [min(count, most) for count in counts]
    while (excess := sum(max(0, count - most) for count in counts)) > 0:
        free = [0.0 if count >= most else weight for count, weight in zip(counts, weights, strict=True)]
        counts = [min(count, most) for count in counts]
        counts = [count + more for count, more in zip(counts, _largest_remainder(excess, free), strict=True)]
    return counts


def _largest_remainder(total: int, weights: list[float]) -> list[int]:
    whole = math.fsum(weights)
    exact = [total * weight / whole for weight in weights]
    counts = [math.floor(value) for value in exact]
    rest = total - sum(counts)
    # Zero weights never get a rest: they are full.
    by_rest = sorted((i for i, w in enumerate(weights) if w > 0), key=lambda i: (counts[i] - exact[i], i))
    for index in range(rest):
        counts[by_rest[index % len(by_rest)]] += 1
    return counts


def generate(config: MoeConfig) -> Trace:
    """One iteration of the workload above, for all ranks."""
    _validate(config)
    routing = route(config)
    ranks = [_rank(config, rank, routing) for rank in range(config.ranks)]
    world = tuple(range(config.ranks))
    trace = Trace(ranks, {"": world, "ep": world, "dp": world})
    dropped = _dropped(config, routing)
    if dropped:
        total = (
            config.ranks * config.layers * config.micro_batches * config.micro_batch * config.sequence * config.top_k
        )
        trace.notes.append(f"capacity_factor {config.capacity_factor:g} drops {dropped} of {total} routed choices")
    return trace


def _validate(config: MoeConfig) -> None:
    names = ("layers", "hidden", "ffn", "experts", "top_k", "sequence", "micro_batch", "micro_batches")
    positive(config, "ranks", *names)
    if config.experts % config.ranks:
        message = f"{config.experts} experts cannot be spread evenly over {config.ranks} ranks"
        raise ConfigError(message, key="workload.experts", hint=f"take a multiple of {config.ranks}")
    if config.top_k > config.experts:
        raise ConfigError(f"a token cannot choose {config.top_k} of {config.experts} experts", key="workload.top_k")
    for key, value, most in (("imbalance", config.imbalance, 5.0), ("capacity_factor", config.capacity_factor, 1e6)):
        if not 0 <= value <= most:
            raise ConfigError(f"expected a number from 0 to {most:g}, found {value}", key=f"workload.{key}")


def _dropped(config: MoeConfig, routing: list[list[Routing]]) -> int:
    choices = config.ranks * config.micro_batch * config.sequence * config.top_k
    return sum(choices - sum(map(sum, batch.tokens)) for layer in routing for batch in layer)


def _rank(config: MoeConfig, rank: int, routing: list[list[Routing]]) -> RankTrace:
    pen = Pen(rank, "moe", clock(config.device, config.efficiency, config.scale_down))
    width = dtype_bytes(config.dtype)
    tokens = config.micro_batch * config.sequence
    layer = Layer(config.hidden, config.ffn, tokens, config.sequence, width)
    token_bytes = config.hidden * width
    router_parameters = config.hidden * config.experts
    dense = layer.attention_parameters + router_parameters
    experts_here = config.experts // config.ranks
    batches = range(config.micro_batches)

    def attention(name: str, deps: list[int], times: int) -> int:
        flops = layer.attention_flops() + 2 * tokens * router_parameters
        return pen.compute(name, deps, times * flops, times * layer.attention_memory())

    def exchange(name: str, deps: list[int], vector: tuple[int, ...]) -> int:
        return pen.collective(name, deps, CollectiveKind.ALL_TO_ALL, sum(vector), "ep", vector=vector)

    def experts(name: str, deps: list[int], load: int, times: int) -> int:
        flops = 2 * load * layer.ffn_parameters
        memory = experts_here * layer.ffn_parameters * width + 2 * load * (config.hidden + config.ffn) * width
        return pen.compute(name, deps, times * flops, times * memory)

    def pass_through(number: int, heads: list[list[int]], back: bool) -> list[list[int]]:
        """One layer for all micro-batches. Forward: attention, dispatch, experts, combine. Backward: the mirror."""
        word, times = ("bwd", 2) if back else ("fwd", 1)
        names = [f"{word} layer{number} mb{batch}" for batch in batches]
        if not back:
            heads = [[attention(f"{names[b]} attention", heads[b], 1)] for b in batches]
        first, second = ("grad combine", "grad dispatch") if back else ("dispatch", "combine")
        heads = [
            [exchange(f"{names[b]} {first}", heads[b], routing[number][b].sent(rank, token_bytes))] for b in batches
        ]
        for batch in batches:
            done = experts(f"{names[batch]} experts", heads[batch], routing[number][batch].load(rank), times)
            back_vector = routing[number][batch].returned(rank, token_bytes)
            heads[batch] = [exchange(f"{names[batch]} {second}", [done], back_vector)]
        if back:
            heads = [[attention(f"{names[b]} attention", heads[b], 2)] for b in batches]
        return heads

    heads: list[list[int]] = [[] for _ in batches]
    for number in range(config.layers):
        heads = pass_through(number, heads, back=False)
    order = list(range(config.layers))[::-1]
    groups = buckets([dense * width] * config.layers, bucket_bytes(config.bucket))
    reduced: list[int] = []
    for place, number in enumerate(order):
        heads = pass_through(number, heads, back=True)
        for indexes, size in groups:
            if indexes[-1] == place and config.ranks > 1:
                after = [head for batch in heads for head in batch]
                name = f"grad bucket{len(reduced)} all_reduce"
                reduced.append(pen.collective(name, after, CollectiveKind.ALL_REDUCE, size, "dp"))
    own = config.layers * (dense + experts_here * layer.ffn_parameters)
    finish = reduced + [head for batch in heads for head in batch]
    pen.compute("optimizer", finish, 10 * own, OPTIMIZER_BYTES * own)
    return pen.trace
