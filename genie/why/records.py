"""What `genie why` says, typed: the content of ``why.json`` and of the difference of two runs.

`genie.why.explain` fills these in, reports draw them, the bisect orders its suspects by them. All times are model ns
(real time / dilation); an instant is ns since T. ``path`` shares are means over the measured iterations and, for each
kind of part (causes, operators, communicators, pairs, links, ranks), sum to the mean iteration time. What is not known
is None, never 0. Only data: nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

COMPUTE = "compute"
STRETCH = "stretch"
PEER = "peer"
SERIALIZATION = "serialization"
LATENCY = "latency"
QUEUEING = "queueing"
RECOVERY = "recovery"
CREDITS = "credits"
HOST = "host"
CAUSES: Mapping[str, str] = {
    COMPUTE: "compute, as planned",
    STRETCH: "compute beyond its plan",
    PEER: "waiting for a late rank",
    SERIALIZATION: "bytes over the slowest link of their route",
    LATENCY: "latency of an empty network",
    QUEUEING: "behind other traffic, or a link below its rate",
    RECOVERY: "retransmission time-outs",
    CREDITS: "window of the receiver",
    HOST: "the rank itself: thread, stream",
}
"""Every cause of a `Segment`, in the order in which reports show them, with its meaning in words."""

ELSEWHERE = "-"
"""The name of the part of a path that belongs to none: no communicator, no link, no pair of ranks."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of a critical path. ``rank`` is where time passed; for bytes on their way the receiver, ``peer`` the
    sender (-1: none). ``comm`` is None where nothing is communicated ("" is the world). ``route`` are the ports that
    the bytes left by, in order; () where there are none, or where the path of the flow is not known.
    """

    start_ns: float
    end_ns: float
    cause: str
    rank: int
    peer: int
    operator: str
    comm: str | None
    route: tuple[str, ...] = ()

    @property
    def ns(self) -> float:
        """How long it is."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class IterationBlame:
    """One measured iteration: ``causes`` (cause → ns) sum to ``duration_ns``; ``last_rank`` ended it."""

    iteration: int
    start_ns: float
    duration_ns: float
    last_rank: int
    causes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Share:
    """What one part carries of the mean iteration: ``ns`` of it, ``ratio`` 0 to 1."""

    name: str
    ns: float
    ratio: float


@dataclass(frozen=True, slots=True)
class PairRow:
    """One direction between two ranks: ``path_ns`` is its part of the mean critical path. ``mean_ns`` and ``worst_ns``
    are of a message's time on its way (handed over to complete, without its wait behind the one before on the same
    connection); ``slowdown`` is that time over the time of its bytes on the slowest link of the route and the latency
    of an empty network, summed over messages; None where rates are not known.
    """

    sender: int
    receiver: int
    messages: int
    bytes: int
    path_ns: float
    mean_ns: float
    worst_ns: float
    slowdown: float | None


@dataclass(frozen=True, slots=True)
class Straggler:
    """One rank in one communicator, over the measured calls. ``last`` of ``calls`` it was the last to start;
    ``lateness_ns`` is the mean start after the first. ``cost_ns`` an iteration: what its being last added beyond the
    last but one; ``waited_ns`` an iteration: the sum of what the others waited for it.
    """

    comm: str
    rank: int
    host: str
    calls: int
    last: int
    lateness_ns: float
    cost_ns: float
    waited_ns: float

    @property
    def last_ratio(self) -> float:
        """Share of the calls that it was the last to start."""
        return self.last / self.calls if self.calls else 0.0


@dataclass(frozen=True, slots=True)
class LinkScore:
    """How suspect one port is: the queue of ``node`` towards the other end of ``link``.

    ``score`` orders suspects, 0 = nothing against it: the share of its rate that it seems to lack, 0 to 1, by all
    evidence together. ``rate_ratio`` is the best estimate of the rate it has over the rate it should have (None: no
    evidence). Evidence: ``messages`` over it; ``load_ratio``, the load of the busiest link of their routes while they
    were on their way, for the middle of their time (a low one: they were slow and no load explains it);
    ``drain_ratio``, of ``drain_samples`` samples of its queue: bytes that left while there was a queue over what its
    rate lets leave; ``lost`` packets that it dropped or lost by its own counters; ``loss_ratio`` the share of its
    packets that it seems to lose without counting them, by what hosts had to repeat (None: nothing speaks for it).
    ``slow_ratio`` is the share of its queue's time in which it emptied at less than 80 % of its rate: a port that is
    slow at times has a good ``drain_ratio`` and a large one here. ``lack`` is what of its rate it surely lacks by its
    queue. ``excess_ns`` is the time an iteration that the critical path waited for it. ``known`` is the share of its
    messages whose route is known rather than spread over candidates.
    """

    port: str
    link: str
    score: float
    rate_ratio: float | None
    excess_ns: float
    messages: int
    load_ratio: float | None
    drain_ratio: float | None
    drain_samples: int
    lost: int | None
    known: float
    text: str = ""
    loss_ratio: float | None = None
    slow_ratio: float | None = None
    lack: float = 0.0


@dataclass(frozen=True, slots=True)
class HostScore:
    """How suspect a host's compute is: ``stretch`` is the time of its compute operators over their plan (or, where the
    plan is not recorded, over the median of the ranks that do the same), the median by planned time; ``score`` is
    1 - 1/stretch (0: as planned), ``excess_ns`` the sum of what went beyond plans, an iteration.
    """

    host: str
    score: float
    stretch: float | None
    excess_ns: float
    operators: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class RouteFacts:
    """What is known of the paths that bytes took. ``basis``: "single" (there is one path), "computed" (the kernel's
    hash, confirmed by the ports' counters), "unconfirmed" (computed, no counters to confirm it), "unknown". ``flows``
    connections, ``known`` of them with a known route. ``text`` says it in words.
    """

    basis: str
    flows: int
    known: int
    text: str


@dataclass(frozen=True, slots=True)
class RecoveryFacts:
    """Retransmission time-outs: ``stalls`` silences of a connection as long as one, ``stalled_ns`` in all; the kernel
    counted ``timeouts`` and ``retransmits`` at the senders (None: not read). ``sure``: "counted" (as many time-outs
    were counted), "likely" (there were retransmits), "possible" (no counters), "none".
    """

    stalls: int
    stalled_ns: float
    timeouts: int | None
    retransmits: int | None
    sure: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """What to look at first. ``kind``: "link", "host" (its compute, not the network) or "none"; ``names`` the best
    first; several where the evidence does not tell them apart.
    """

    kind: str
    names: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Why:
    """All of it for one run. ``path`` are the segments of ``path_iteration``, the measured iteration of median length.
    Shares are sorted, largest first, and sum to ``iteration_ns``, the mean measured iteration.
    """

    verdict: str
    suspect: Suspect
    iteration_ns: float
    iterations: tuple[IterationBlame, ...]
    causes: tuple[Share, ...]
    operators: tuple[Share, ...]
    comms: tuple[Share, ...]
    links: tuple[Share, ...]
    ranks: tuple[Share, ...]
    pairs: tuple[PairRow, ...]
    path_iteration: int | None
    path: tuple[Segment, ...]
    stragglers: tuple[Straggler, ...]
    link_scores: tuple[LinkScore, ...]
    host_scores: tuple[HostScore, ...]
    routes: RouteFacts
    recovery: RecoveryFacts
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One part in two runs: ns an iteration in the other and in this one; ``delta_ns`` of all parts of a kind sum to
    the difference of the mean iterations. ``ratio`` is its share of that difference (None where there is none).
    """

    name: str
    before_ns: float
    after_ns: float
    delta_ns: float
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """What part of the slowdown of this run against another each part carries."""

    verdict: str
    before: str
    after: str
    before_ns: float
    after_ns: float
    causes: tuple[Change, ...]
    operators: tuple[Change, ...]
    comms: tuple[Change, ...]
    pairs: tuple[Change, ...]
    links: tuple[Change, ...]
    ranks: tuple[Change, ...]
    notes: tuple[str, ...] = field(default=())
