"""``workload=pairs``: each pair of ranks by itself: latency from small messages, bandwidth from large ones.

First come the rounds of ``latency_rounds``: each pair bounces ``pings`` messages, one at a time. Then those of
``bandwidth_rounds``: first the lower rank of a pair sends, then the higher. A barrier stands before every round, and
no rank is in two pairs of one. Rounds are text, ``"0-3 1-2"``, a pair's bytes each way after a colon (``"0-3:4MiB"``)
where they are not ``bytes``; without any, they are a round-robin tournament. `genie.preflight` plans its own. Names
of operators say what they are: ``ping 0-3 #5`` and ``pong 0-3 #5`` of a pair, ``load 0>3`` of a direction.
"""

from __future__ import annotations

from collections.abc import Sequence

from genie.errors import ConfigError
from genie.units import parse_bytes
from genie.workload.config import PairsConfig
from genie.workload.generators.graph import Pen, at_least
from genie.workload.trace import CollectiveKind, Trace

Pair = tuple[int, int]
"""Two different places of a tournament, the lower first."""

MAX_OPERATORS = 1_000_000


def tournament(count: int) -> tuple[tuple[Pair, ...], ...]:
    """Every pair of 0 … ``count`` - 1 once, in rounds in which nobody is twice (the circle method).

    ``count`` - 1 rounds, or ``count`` where that is odd: then one sits out in each.
    """
    if count < 2:
        return ()
    circle: list[int] = list(range(count + count % 2))  # an odd one out plays against the last place, nobody
    rounds = []
    for _ in range(len(circle) - 1):
        met = zip(circle[: len(circle) // 2], reversed(circle[len(circle) // 2 :]), strict=True)
        rounds.append(tuple(sorted((min(pair), max(pair)) for pair in met if max(pair) < count)))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return tuple(rounds)


def round_text(pairs: Sequence[Pair], sizes: Sequence[int] = ()) -> str:
    """The text of a round; ``sizes`` are the bytes each way of each pair."""
    ends = [f":{size}" for size in sizes] or [""] * len(pairs)
    return " ".join(f"{a}-{b}{end}" for (a, b), end in zip(pairs, ends, strict=True))


def generate(config: PairsConfig) -> Trace:
    """All rounds, one after the other. Raises ConfigError for rounds that cannot be."""
    at_least(config.ranks, 2, "ranks")
    at_least(config.pings, 0, "pings")
    size = at_least(parse_bytes(config.bytes, key="workload.bytes"), 0, "bytes")
    ping_bytes = parse_bytes(config.ping_bytes, key="workload.ping_bytes")
    plain = [round_text(pairs) for pairs in tournament(config.ranks)]
    latency = [_parsed(text, size, config.ranks, "latency_rounds") for text in config.latency_rounds or plain]
    bandwidth = [_parsed(text, size, config.ranks, "bandwidth_rounds") for text in config.bandwidth_rounds or plain]
    if not config.pings:
        latency = []
    _refuse_too_many(config, latency, bandwidth)

    pens = [Pen(rank, "pairs") for rank in range(config.ranks)]
    after: list[list[int]] = [[] for _ in pens]
    for number, pairs in enumerate([*latency, *bandwidth]):
        for rank, pen in enumerate(pens):
            after[rank] = [pen.collective(f"round {number}", after[rank], CollectiveKind.BARRIER, 0, "")]
        for a, b, pair_bytes in pairs:
            if number < len(latency):
                for turn in range(config.pings):
                    _message(pens, after, (a, b), f"ping {a}-{b} #{turn}", ping_bytes, number)
                    _message(pens, after, (b, a), f"pong {a}-{b} #{turn}", ping_bytes, number)
            else:
                for source, target in ((a, b), (b, a)):
                    _message(pens, after, (source, target), f"load {source}>{target}", pair_bytes, number)
    return Trace([pen.trace for pen in pens], {"": tuple(range(config.ranks))})


def _message(pens: list[Pen], after: list[list[int]], way: Pair, name: str, size: int, tag: int) -> None:
    """One message, after all that either rank did before."""
    source, target = way
    after[source] = [pens[source].send(name, after[source], size, target, tag)]
    after[target] = [pens[target].recv(name, after[target], size, source, tag)]


def _parsed(text: str | int, size: int, ranks: int, key: str) -> tuple[tuple[int, int, int], ...]:
    """(lower rank, higher rank, bytes) of each pair of a round."""
    where = f"workload.{key}"
    pairs: list[tuple[int, int, int]] = []
    seen: set[int] = set()
    for word in str(text).split():
        ends, colon, own = word.partition(":")
        low, dash, high = ends.partition("-")
        if not (dash and low.isdecimal() and high.isdecimal()):
            raise ConfigError(f"expected pairs such as '0-3 1-2:4MiB', found {word!r}", key=where)
        a, b = int(low), int(high)
        if not a < b < ranks:
            raise ConfigError(f"expected two of {ranks} ranks, the lower first, found {ends!r}", key=where)
        if a in seen or b in seen:
            raise ConfigError(f"round {str(text)!r} has rank {a if a in seen else b} twice", key=where)
        seen |= {a, b}
        pairs.append((a, b, parse_bytes(own, key=where) if colon else size))
    return tuple(pairs)


def _refuse_too_many(
    config: PairsConfig, latency: Sequence[Sequence[object]], bandwidth: Sequence[Sequence[object]]
) -> None:
    count = 4 * config.pings * sum(map(len, latency)) + 4 * sum(map(len, bandwidth))
    if count > MAX_OPERATORS:
        raise ConfigError(
            f"{count} messages' ends of {config.ranks} ranks are more than {MAX_OPERATORS}",
            key="workload.pings",
            hint="fewer pings, or fewer rounds",
        )
