"""The operator graph of a job: one `RankTrace` a rank, in GENIE's own terms.

Readers (Chakra and others) and generators make it, `genie.workload.check` proves it can be replayed, and
`genie.collectives.lower` turns it into programs. It knows nothing of files, sockets or algorithms.
Ids are sparse and in any order, as in the files they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class OpKind(StrEnum):
    """What an operator does. ``NOOP`` ends at once (metadata, invalid roots): it only carries dependencies."""

    COMPUTE = "compute"
    MEMORY = "memory"
    COLLECTIVE = "collective"
    SEND = "send"
    RECV = "recv"
    NOOP = "noop"


class CollectiveKind(StrEnum):
    """The kinds that Chakra names (et_def.proto, CollectiveCommType), without its block variant."""

    ALL_REDUCE = "all_reduce"
    REDUCE = "reduce"
    ALL_GATHER = "all_gather"
    GATHER = "gather"
    SCATTER = "scatter"
    BROADCAST = "broadcast"
    ALL_TO_ALL = "all_to_all"
    REDUCE_SCATTER = "reduce_scatter"
    BARRIER = "barrier"


@dataclass(slots=True)
class Operator:
    """One node of a rank's graph.

    ``bytes`` follows Chakra's and ASTRA-sim's convention (chakra.md §1.7): ALL_REDUCE the full vector of a rank;
    REDUCE_SCATTER the full *input* of a rank; ALL_GATHER the *shard* a rank contributes; ALL_TO_ALL the whole
    buffer of a rank (``bytes / n`` to each peer) unless ``per_peer_bytes`` says it peer by peer; BROADCAST, REDUCE
    the vector; GATHER the shard each rank gives; SCATTER the shard each rank gets; SEND/RECV the message.
    ``duration_ns`` is None where the trace has none (the roofline fills it in before the check).
    ``peer`` is a *world* rank; ``root`` and the order of ``per_peer_bytes`` are *communicator* ranks.
    """

    id: int
    name: str
    kind: OpKind
    data_deps: tuple[int, ...] = ()
    ctrl_deps: tuple[int, ...] = ()
    duration_ns: int | None = None
    flops: int = 0
    memory_bytes: int = 0
    is_cpu: bool = False
    stream: int | None = None
    collective: CollectiveKind | None = None
    bytes: int = 0
    per_peer_bytes: tuple[int, ...] | None = None
    comm: str = ""
    root: int = 0
    peer: int = -1
    tag: int = 0


@dataclass(slots=True)
class RankTrace:
    """The graph of one world rank. ``source`` is the file it was read from, or the generator's name."""

    rank: int
    operators: list[Operator]
    source: str = ""


@dataclass(slots=True)
class Trace:
    """A whole job.

    ``communicators`` maps a name to its world ranks in communicator order (= ring order); "" is the world and is
    always present. ``notes`` are sentences for the user about how the input was read (control dependencies
    dropped, durations from the roofline …): nothing is decided silently.
    """

    ranks: list[RankTrace]
    communicators: dict[str, tuple[int, ...]]
    notes: list[str] = field(default_factory=list)
    parameters: Mapping[str, object] = field(default_factory=dict)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.ranks)
