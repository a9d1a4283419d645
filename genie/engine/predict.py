"""How long a healthy iteration should take: list scheduling of the operators over the model of each call.

`genie.experiment.plan` shows it beside the plan, and later beside what was measured. Calls take what
`genie.engine.call_model` says; calls that overlap share the time of a host's network card. Switches, queues,
congestion control, headers and CPU time are not in the model, so it is a lower bound in practice: what a run needs
beyond it is the fabric's or the host's doing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from genie.collectives.program import Call, RankProgram, StepKind
from genie.engine.call_model import Hosts, Part, work_through
from genie.errors import PlanError

MOST_STEPS = 20_000
"""A call of more steps than this, over all ranks, is not worked through: it takes the time of the busiest card and
one latency."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One iteration, in ns of model time.

    ``compute_ns[rank]`` is the rank's iteration if communication took no time; ``busiest_host_ns`` what the busiest
    card (``busiest_host``) needs for its bytes in its busier direction. ``sent_bytes[rank]`` counts all that a rank
    sends, ``host_tx_bytes`` and ``host_rx_bytes`` what crosses a host's card. ``exact`` is False where some call was
    too large to be worked through.
    """

    iteration_ns: int
    compute_ns: tuple[int, ...]
    busiest_host: str
    busiest_host_ns: int
    sent_bytes: tuple[int, ...]
    host_tx_bytes: Mapping[str, int]
    host_rx_bytes: Mapping[str, int]
    exact: bool


def predict(
    programs: Sequence[RankProgram], host_of_rank: Sequence[str], rates: Mapping[str, int], latency_ns: int
) -> Prediction:
    """Predict one iteration of ``programs`` (all ranks, in order).

    ``rates`` are payload bit/s of each host's card in one direction (a host that is not named has no limit);
    ``latency_ns`` is one way between two hosts, 0 within one.

    Raises:
        PlanError: ranks without a host, a rate of 0, or operators that wait for each other.
    """
    if len(programs) != len(host_of_rank):
        raise PlanError(f"{len(programs)} programs, but hosts for {len(host_of_rank)} ranks")
    for host, rate in rates.items():
        if rate <= 0:
            raise PlanError(f"the rate of host {host} is {rate} bit/s: nothing would ever arrive")
    hosts = Hosts(host_of_rank, {host: 8e9 / rate for host, rate in rates.items()}, latency_ns)
    network = _Network(programs, hosts)
    ends = _Schedule(programs, network).run()
    compute = _Schedule(programs, None).run()
    busy = {host: max(network.tx[host], network.rx[host]) * hosts.cost(host) for host in network.tx}
    busiest = max(busy, key=lambda host: busy[host], default="")
    return Prediction(
        iteration_ns=round(max(ends, default=0)),
        compute_ns=tuple(round(end) for end in compute),
        busiest_host=busiest,
        busiest_host_ns=round(busy.get(busiest, 0)),
        sent_bytes=tuple(network.sent),
        host_tx_bytes=network.tx,
        host_rx_bytes=network.rx,
        exact=network.exact,
    )


@dataclass(slots=True)
class _Profile:
    """A call on an idle network.

    ``done_ns`` is when a rank is done after all began; ``own_ns`` what its card needs to send its part; ``hears`` the
    ranks (as bits) whose data it waits for; ``groups`` the ranks that can end once the same ranks have begun.
    """

    done_ns: dict[int, float]
    own_ns: dict[int, float]
    hears: dict[int, int]
    groups: dict[int, list[int]]
    sent: dict[int, int]
    tx: dict[str, int]
    rx: dict[str, int]
    busy_ns: dict[str, float]


class _Network:
    """The profile of every call, and totals over all calls."""

    def __init__(self, programs: Sequence[RankProgram], hosts: Hosts) -> None:
        self._hosts = hosts
        parts: dict[int, list[Part]] = {}
        for program in programs:
            for call in program.calls:
                comm, template = program.templates[call.template]
                parts.setdefault(call.call_id, []).append(Part(program.rank, call, template, program.comms[comm]))
        self.sent = [0] * len(programs)
        self.tx = dict.fromkeys(hosts.of_rank, 0)
        self.rx = dict.fromkeys(hosts.of_rank, 0)
        self.exact = True
        self.profiles: dict[int, _Profile] = {}
        known: dict[object, _Profile] = {}
        for call_id, members in parts.items():
            key = tuple([(p.rank, p.call.template, p.call.bytes, p.call.vector, p.call.chunk_bytes) for p in members])
            profile = known.get(key)
            if profile is None:
                profile = known[key] = self._profile(members)
            self.profiles[call_id] = profile
            for rank, size in profile.sent.items():
                self.sent[rank] += size
            for totals, of_call in ((self.tx, profile.tx), (self.rx, profile.rx)):
                for host, size in of_call.items():
                    totals[host] += size

    def _profile(self, parts: Sequence[Part]) -> _Profile:
        host_of = self._hosts.of_rank
        sent = {part.rank: 0 for part in parts}
        tx: dict[str, int] = {}
        rx: dict[str, int] = {}
        for part in parts:
            here = host_of[part.rank]
            for step in part.template.steps:
                if step.kind is StepKind.SEND:
                    size, there = part.bytes(step), host_of[part.members[step.peer]]
                    sent[part.rank] += size
                    if here != there:
                        tx[here] = tx.get(here, 0) + size
                        rx[there] = rx.get(there, 0) + size
        busy = {host: max(tx.get(host, 0), rx.get(host, 0)) * self._hosts.cost(host) for host in {**tx, **rx}}
        if sum(len(part.template.steps) for part in parts) > MOST_STEPS:
            self.exact = False
            end = max(busy.values(), default=0.0) + self._hosts.latency_ns
            done = {part.rank: end for part in parts}
            hears = {part.rank: sum(1 << other.rank for other in parts) for part in parts}
        else:
            done, hears = work_through(parts, self._hosts)
        groups: dict[int, list[int]] = {}
        for rank, others in hears.items():
            groups.setdefault(others | 1 << rank, []).append(rank)
        own = {
            rank: size * self._hosts.cost(host_of[rank]) if host_of[rank] in tx else 0.0 for rank, size in sent.items()
        }
        return _Profile(done, own, hears, groups, sent, tx, rx, busy)


class _Schedule:
    """Runs the operators of all ranks as the engine would: lanes hold one at a time, a rank's part in a call ends when
    the data it waits for are there.

    Without a network every call ends at once and waits for nobody.
    """

    def __init__(self, programs: Sequence[RankProgram], network: _Network | None) -> None:
        self._programs = programs
        self._network = network
        self._open = [[len(op.needs) for op in program.ops] for program in programs]
        self._followers: list[list[list[int]]] = []
        for program in programs:
            followers: list[list[int]] = [[] for _ in program.ops]
            for index, op in enumerate(program.ops):
                for need in op.needs:
                    followers[need].append(index)
            self._followers.append(followers)
        self._lanes = [[_LaneState() for _ in program.lanes] for program in programs]
        for program, lanes in zip(programs, self._lanes, strict=True):
            for index, op in enumerate(program.ops):
                if op.lane >= 0 and program.lanes[op.lane].ordered:
                    lanes[op.lane].sequence.append(index)
        self._meetings: dict[int, _Meeting] = {}
        self._card_free: dict[str, float] = {}
        self._events: list[tuple[float, int, int, int]] = []
        self._tie = count()
        self._ends = [0.0] * len(programs)

    def run(self) -> list[float]:
        """When each rank's last operator ends."""
        left = sum(len(program.ops) for program in self._programs)
        for rank, counts in enumerate(self._open):
            self._ready(0.0, rank, [index for index, waiting in enumerate(counts) if not waiting], set())
        while self._events:
            now, _, rank, index = heappop(self._events)
            left -= 1
            self._ends[rank] = max(self._ends[rank], now)
            lane = self._programs[rank].ops[index].lane
            lanes: set[int] = set()
            if lane >= 0:
                self._lanes[rank][lane].busy = False
                lanes.add(lane)
            open_needs = self._open[rank]
            ready = []
            for follower in self._followers[rank][index]:
                open_needs[follower] -= 1
                if not open_needs[follower]:
                    ready.append(follower)
            self._ready(now, rank, ready, lanes)
        if left:
            raise PlanError(f"{left} operators would never start: their calls wait for each other")
        return self._ends

    def _ready(self, now: float, rank: int, indexes: Sequence[int], lanes: set[int]) -> None:
        """Operators have become ready, ``lanes`` have become free."""
        for index in indexes:
            lane = self._programs[rank].ops[index].lane
            if lane < 0:
                self._start(now, rank, index)
            else:
                heappush(self._lanes[rank][lane].waiting, index)
                lanes.add(lane)
        for lane in sorted(lanes):
            self._dispatch(now, rank, lane)

    def _dispatch(self, now: float, rank: int, lane: int) -> None:
        state = self._lanes[rank][lane]
        if state.busy or not state.waiting:
            return
        if state.sequence:
            if state.sequence[state.issued] != state.waiting[0]:
                return
            state.issued += 1
        state.busy = True
        self._start(now, rank, heappop(state.waiting))

    def _start(self, now: float, rank: int, index: int) -> None:
        op = self._programs[rank].ops[index]
        if op.call < 0:
            self._end(now + op.duration_ns, rank, index)
        elif self._network is None:
            self._end(now, rank, index)
        else:
            self._join(now, rank, index, self._programs[rank].calls[op.call], self._network)

    def _join(self, now: float, rank: int, index: int, call: Call, network: _Network) -> None:
        """A rank begins its part: those end whose data are all on their way now."""
        profile = network.profiles[call.call_id]
        meeting = self._meetings.get(call.call_id)
        if meeting is None:
            meeting = self._meetings[call.call_id] = _Meeting(dict(profile.groups))
        meeting.begun[rank] = (now, index)
        meeting.mask |= 1 << rank
        for needed in [mask for mask in meeting.groups if mask & meeting.mask == mask]:
            if meeting.delay_ns is None:
                meeting.delay_ns = self._charge(now, profile)
            members = meeting.groups.pop(needed)
            times = sorted(((meeting.begun[r][0], r) for r in meeting.begun if needed >> r & 1), reverse=True)
            for member in members:
                begun, at = meeting.begun[member]
                end = begun + profile.own_ns[member]
                # The latest rank it hears from: itself only where its own data come back around.
                for when, other in times[:2]:
                    if profile.hears[member] >> other & 1:
                        end = max(end, when + profile.done_ns[member])
                        break
                self._end(max(end + meeting.delay_ns, now), member, at)

    def _charge(self, now: float, profile: _Profile) -> float:
        """Book a call on its cards; returns how long they still have to work for earlier calls."""
        delay = 0.0
        for host, busy in profile.busy_ns.items():
            begin = max(self._card_free.get(host, 0.0), now)
            self._card_free[host] = begin + busy
            delay = max(delay, begin - now)
        return delay

    def _end(self, when: float, rank: int, index: int) -> None:
        heappush(self._events, (when, next(self._tie), rank, index))


@dataclass(slots=True)
class _Meeting:
    """A call while running: when each rank began (and with which operator), and the groups that cannot end yet."""

    groups: dict[int, list[int]]
    begun: dict[int, tuple[float, int]] = field(default_factory=dict)
    mask: int = 0
    delay_ns: float | None = None


class _LaneState:
    """A lane while running: operators that could start, and for ordered lanes the sequence they must start in."""

    __slots__ = ("busy", "issued", "sequence", "waiting")

    def __init__(self) -> None:
        self.busy = False
        self.issued = 0
        self.sequence: list[int] = []
        self.waiting: list[int] = []
