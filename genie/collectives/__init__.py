"""Collective algorithms: the registry `ALGORITHMS`, the default of each kind, and `build`.

An algorithm turns a kind of collective into one `Template` for each rank; `genie.collectives.lower` asks for them
by name, `genie.collectives.check` proves them. To add one, see docs/add-a-collective.md. Nothing here opens a
socket or knows a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from genie.collectives import barrier, direct, double_binary_tree, halving_doubling, pairwise, ring, tree
from genie.collectives.draft import Draft
from genie.collectives.program import Template
from genie.errors import ConfigError, closest
from genie.workload.trace import CollectiveKind

ROOTED = frozenset({CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.GATHER, CollectiveKind.SCATTER})
"""Kinds in which one rank has a part of its own."""


@dataclass(frozen=True, slots=True)
class Options:
    """What else an algorithm may want to know.

    ``peers_in_flight``: most peers (direct) or rounds (pairwise) a rank sends to at a time, 0 = the algorithm's own
    (all, one). ``uneven``: the all-to-all's sizes come from the call's vector of 2n entries: what goes to each rank,
    then what comes from each.
    """

    peers_in_flight: int = 0
    uneven: bool = False


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One entry of the registry: the kinds it can do, one line for ``--help``, and the function that adds the steps.

    ``min_channels`` is the fewest channels with which it is what its name says.
    """

    kinds: frozenset[CollectiveKind]
    describe: str
    build: Callable[[Draft, CollectiveKind, int, Options], None]
    min_channels: int = 1


def _plain(build_steps: Callable[[Draft, CollectiveKind, int], None]) -> Callable[..., None]:
    def adapted(draft: Draft, kind: CollectiveKind, root: int, options: Options) -> None:
        build_steps(draft, kind, root)

    return adapted


def _direct(draft: Draft, kind: CollectiveKind, root: int, options: Options) -> None:
    direct.build(draft, kind, root, peers_in_flight=options.peers_in_flight, uneven=options.uneven)


def _pairwise(draft: Draft, kind: CollectiveKind, root: int, options: Options) -> None:
    pairwise.build(draft, kind, root, peers_in_flight=options.peers_in_flight, uneven=options.uneven)


ALGORITHMS: Mapping[str, Algorithm] = {
    "ring": Algorithm(ring.KINDS, "neighbour to neighbour; bandwidth-optimal, n-1 hops deep", _plain(ring.build)),
    "direct": Algorithm(direct.KINDS, "straight to every peer at once; incast like a real all-to-all", _direct),
    "pairwise": Algorithm(pairwise.KINDS, "all-to-all in rounds without incast", _pairwise),
    "tree": Algorithm(tree.KINDS, "binomial tree, pipelined; log2 n hops deep", _plain(tree.build)),
    "double_binary_tree": Algorithm(
        double_binary_tree.KINDS,
        "NCCL's two complementary trees, half the data on each",
        _plain(double_binary_tree.build),
        double_binary_tree.MIN_CHANNELS,
    ),
    "halving_doubling": Algorithm(
        halving_doubling.KINDS, "recursive halving and doubling; log2 n rounds", _plain(halving_doubling.build)
    ),
    "dissemination": Algorithm(barrier.KINDS, "barrier in log2 n rounds", _plain(barrier.build)),
}

_DEFAULTS: Mapping[CollectiveKind, tuple[str, str]] = {  # large, small
    CollectiveKind.ALL_REDUCE: ("ring", "halving_doubling"),
    CollectiveKind.ALL_GATHER: ("ring", "halving_doubling"),
    CollectiveKind.REDUCE_SCATTER: ("ring", "halving_doubling"),
    CollectiveKind.BROADCAST: ("ring", "tree"),
    CollectiveKind.REDUCE: ("ring", "tree"),
    CollectiveKind.GATHER: ("direct", "tree"),
    CollectiveKind.SCATTER: ("direct", "tree"),
    CollectiveKind.ALL_TO_ALL: ("direct", "direct"),
    CollectiveKind.BARRIER: ("dissemination", "dissemination"),
}


def default_for(kind: CollectiveKind, *, small: bool = False) -> str:
    """The algorithm that "auto" stands for; ``small`` asks for the one with the fewest hops."""
    return _DEFAULTS[kind][small]


def able(kind: CollectiveKind) -> list[str]:
    """Names of the algorithms that can do ``kind``."""
    return sorted(name for name, algorithm in ALGORITHMS.items() if kind in algorithm.kinds)


def require(algorithm: str, kind: CollectiveKind, *, key: str = "") -> Algorithm:
    """The algorithm of that name, able to do ``kind``; ConfigError names the ones that are."""
    known = ALGORITHMS.get(algorithm)
    if known is None:
        raise ConfigError(f"unknown algorithm {algorithm!r}: {closest(algorithm, ALGORITHMS)}", key=key)
    if kind not in known.kinds:
        raise ConfigError(f"{algorithm} cannot do {kind.value}: choose one of: {', '.join(able(kind))}", key=key)
    return known


def build(
    algorithm: str,
    kind: CollectiveKind,
    rank: int,
    ranks: int,
    channels: int,
    root: int = 0,
    options: Options | None = None,
) -> Template:
    """The steps of ``rank`` (of ``ranks``, communicator numbering) for one collective.

    Raises:
        ConfigError: no such algorithm, it cannot do the kind, or a number is out of range.
    """
    known = require(algorithm, kind)
    options = options or Options()
    if ranks < 1 or not 0 <= rank < ranks:
        raise ConfigError(f"rank {rank} of {ranks} does not exist")
    if not 0 <= root < ranks:
        raise ConfigError(f"root {root} is not one of {ranks} ranks")
    if not known.min_channels <= channels <= 64:
        raise ConfigError(f"{algorithm} needs between {known.min_channels} and 64 channels, found {channels}")
    if options.uneven and kind is not CollectiveKind.ALL_TO_ALL:
        raise ConfigError(f"only all_to_all can have a size for each peer, not {kind.value}")
    if options.peers_in_flight < 0:
        raise ConfigError(f"peers_in_flight must be 0 or more, found {options.peers_in_flight}")
    draft = Draft(algorithm, rank, ranks, channels)
    known.build(draft, kind, root, options)
    return draft.template()
