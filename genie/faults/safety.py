"""What faults may do, and when a run must stop: limits before anything is touched, a guard while ranks run.

`genie.plan` calls `check` once the faults are planned; `genie.experiment` asks a `Guard` to `look` while it waits. What
each key means, and what is *outside the blast radius*: docs/safety.md. Never changes or reverts anything itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from genie.errors import FaultRefused, RunAborted
from genie.launch.protocol import Progress
from genie.schema import SafetyConfig
from genie.topology.model import Port, Topology
from genie.units import format_ns, parse_ns

RISKS = ("low", "medium", "high")
EMULATED = ("netns", "loopback")
"""Fabrics that end with the run: what a fault breaks there is nobody's."""
EMULATED_LIMITS, REAL_LIMITS = (1024, 4096), (8, 16)
"""(hosts, links) where ``safety.max_hosts`` and ``safety.max_links`` are null."""
LOOK_INTERVAL_S = 0.5
_LOOK_SHARE = 20  # reading counters takes at most 1/20 of the time

Counters = Mapping[str, Mapping[str, int]]


class PlannedChange(Protocol):
    """A change of a planned fault, as far as its safety goes: where, and what it is made to."""

    @property
    def node(self) -> str:
        """The node that is changed."""
        ...

    @property
    def object(self) -> str:
        """The interface; for faults of nodes, what the mechanism changes."""
        ...


class PlannedFault(Protocol):
    """A planned fault, as far as its safety goes: `genie.faults.plan.FaultPlan`."""

    @property
    def name(self) -> str:
        """The recipe."""
        ...

    @property
    def risk(self) -> str:
        """One of `RISKS`."""
        ...

    @property
    def ports(self) -> tuple[Port, ...]:
        """The faulted ports; none for a fault of nodes."""
        ...

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that are changed."""
        ...

    @property
    def aimed_at(self) -> tuple[str, ...]:
        """Hosts that are not changed and feel it all the same."""
        ...

    @property
    def changes(self) -> Sequence[PlannedChange]:
        """Every single change."""
        ...


class GuardedFabric(Protocol):
    """What of a fabric must be left alone."""

    name: str

    def protected_interfaces(self, node: str) -> Collection[str]:
        """Interfaces that carry the management of a node."""
        ...


@dataclass(frozen=True, slots=True)
class BlastRadius:
    """What faults touch: the nodes at both ends of every faulted port, every node that is changed, every host that one
    is aimed at with its neighbours; all ports of these nodes; the links that have a faulted port.
    """

    nodes: frozenset[str]
    hosts: tuple[str, ...]
    links: tuple[str, ...]
    outside_ports: tuple[str, ...]
    outside_hosts: tuple[str, ...]


def blast_radius(plans: Sequence[PlannedFault], topology: Topology) -> BlastRadius:
    """The blast radius of all faults together, names in topology order."""
    faulted = {port.name for plan in plans for port in plan.ports}
    nodes = {end for plan in plans for port in plan.ports for end in (port.node, port.peer)}
    nodes |= {node for plan in plans for node in plan.nodes}
    aimed_at = {host for plan in plans for host in plan.aimed_at}
    nodes |= {end for port in topology.ports if port.node in aimed_at for end in (port.node, port.peer)}
    hosts = [node.name for node in topology.hosts]
    return BlastRadius(
        nodes=frozenset(nodes),
        hosts=tuple(host for host in hosts if host in nodes),
        links=tuple(link.name for link in topology.links if any(port.name in faulted for port in link.ports)),
        outside_ports=tuple(port.name for port in topology.ports if port.node not in nodes),
        outside_hosts=tuple(host for host in hosts if host not in nodes),
    )


def check(
    plans: Sequence[PlannedFault],
    topology: Topology,
    safety: SafetyConfig,
    allow_risk: str,
    fabric: GuardedFabric,
    *,
    predicted_ns: float = 0,
) -> None:
    """Refuse faults that may not be. ``predicted_ns`` is how long the run takes at least in real time; 0: not known.

    Raises FaultRefused that names what was asked, the limit, and the key that moves it.
    """
    if not plans:
        return
    for plan in plans:
        if RISKS.index(plan.risk) > RISKS.index(allow_risk):
            raise FaultRefused(
                f"fault.{plan.name} is of {plan.risk} risk, and allow_risk is {allow_risk}",
                hint=f"set allow_risk={plan.risk} if its targets may be put at that risk",
            )
    _check_reach(blast_radius(plans, topology), safety, fabric.name)
    if safety.ttl_ns > safety.max_ttl_ns:
        raise FaultRefused(
            f"safety.ttl is {safety.ttl}, and safety.max_ttl is {safety.max_ttl}",
            hint="lower safety.ttl, or raise safety.max_ttl",
        )
    if predicted_ns > safety.ttl_ns:
        raise FaultRefused(
            f"the run takes about {format_ns(predicted_ns)} when healthy, and safety.ttl undoes its faults after "
            f"{safety.ttl}, before its end",
            hint="raise safety.ttl (up to safety.max_ttl), or run fewer iterations",
        )
    for plan in plans:
        for change in plan.changes:
            if change.object in fabric.protected_interfaces(change.node):
                raise FaultRefused(
                    f"fault.{plan.name} would change {change.object} of {change.node}, which carries its management "
                    "(its default route, or the way that Ansible takes)",
                    hint=f"choose other targets: fault.{plan.name}.targets=[...]; no key allows this one",
                )


def _check_reach(radius: BlastRadius, safety: SafetyConfig, fabric: str) -> None:
    emulated = fabric in EMULATED
    most_hosts, most_links = EMULATED_LIMITS if emulated else REAL_LIMITS
    for what, found, given, default in (
        ("hosts", radius.hosts, safety.max_hosts, most_hosts),
        ("links", radius.links, safety.max_links, most_links),
    ):
        limit = default if given is None else given
        if len(found) > limit:
            whose = f"safety.max_{what} is {limit}"
            if given is None:
                whose += f", the default on {'an emulated fabric' if emulated else 'real hosts'}"
            shown = ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
            raise FaultRefused(
                f"the faults touch {len(found)} {what if len(found) != 1 else what[:-1]} ({shown}), and {whose}",
                hint=f"choose fewer targets (fault.NAME.count=N), or set safety.max_{what}={len(found)}",
            )


def kill_switch(safety: SafetyConfig) -> str:
    """Why nothing may run now, as a sentence part; "" where it may. Where it cannot be told, nothing may run."""
    if not safety.kill_switch:
        return ""
    try:
        Path(safety.kill_switch).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"the kill switch {safety.kill_switch} cannot be looked at: {error.strerror}"
    return f"the kill switch {safety.kill_switch} is there"


def refuse_killed(safety: SafetyConfig) -> None:
    """Raise FaultRefused while the kill switch is there."""
    why = kill_switch(safety)
    if why:
        raise FaultRefused(
            why, hint="remove the file once runs may go on, or name another with safety.kill_switch=PATH"
        )


class Guard:
    """Looks after one run: kill switch, stall, damage outside the blast radius. Costs nothing between looks.

    ``counters`` is `Fabric.counters`, called only where a stop condition needs it; ``on_fire`` is told the reason
    before it is raised; ``clock`` gives seconds.
    """

    def __init__(
        self,
        safety: SafetyConfig,
        radius: BlastRadius,
        counters: Callable[[], Counters],
        *,
        on_fire: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._safety = safety
        self._stop = safety.stop
        self._radius = radius
        self._counters = counters
        self._on_fire = on_fire
        self._clock = clock
        self._stall_s = parse_ns(self._stop.stall, key="safety.stop.stall") / 1e9 if self._stop.stall else None
        self._needs_counters = self._stop.drops_outside is not None or self._stop.retransmits_outside is not None
        self._before: Counters = {}
        self._looked_s = self._moved_s = clock()
        self._next_s = self._looked_s
        self._last: tuple[tuple[int, ...], ...] = ()

    def begin(self, before: Counters) -> None:
        """The ranks start now. ``before`` are the counters from which damage counts. Looks at the kill switch."""
        self._before = before
        self._looked_s = self._moved_s = self._next_s = self._clock()
        self._last = ()
        self.look_for_kill_switch()

    def look(self, progress: Mapping[int, Progress]) -> None:
        """Call as often as you like; looks twice a second. Raises RunAborted with the reason when the run must stop."""
        now_s = self._clock()
        if now_s < self._next_s:
            return
        self.look_for_kill_switch()
        self._look_for_stall(progress, now_s)
        if self._needs_counters:
            self._look_outside(self._counters())
        took_s = self._clock() - now_s
        self._looked_s, self._next_s = now_s, now_s + max(LOOK_INTERVAL_S, _LOOK_SHARE * took_s)

    def look_for_kill_switch(self) -> None:
        """Also before anything is changed. Raises RunAborted while it is there."""
        why = kill_switch(self._safety)
        if why:
            self._fire(why, "remove the file once runs may go on")

    def _look_for_stall(self, progress: Mapping[int, Progress], now_s: float) -> None:
        if self._stall_s is None:
            return
        state = tuple((p.rank, p.iteration, p.ops_done, p.bytes_sent, p.bytes_received) for p in progress.values())
        # Where this very process stood still (Ctrl-Z), what the ranks said meanwhile is unread.
        if state != self._last or now_s - self._looked_s > self._stall_s / 2:
            self._last, self._moved_s = state, now_s
        elif now_s - self._moved_s >= self._stall_s:
            self._fire(
                f"no rank got on for {self._stop.stall} (safety.stop.stall)",
                "raise safety.stop.stall if operators compute for longer than that",
            )

    def _look_outside(self, now: Counters) -> None:
        for key, limit, counter, names, what in (
            ("drops_outside", self._stop.drops_outside, "drops", self._radius.outside_ports, "packets were dropped at"),
            ("retransmits_outside", self._stop.retransmits_outside, "TcpRetransSegs", self._radius.outside_hosts,
             "segments were sent again by"),
        ):  # fmt: skip
            if limit is None:
                continue
            rises = {name: _rise(self._before, now, name, counter) for name in names}
            if sum(rises.values()) > limit:
                worst = max(rises, key=lambda name: rises[name])
                where = "ports" if counter == "drops" else "hosts"
                self._fire(
                    f"{sum(rises.values())} {what} {where} that no fault touches, most at {worst} "
                    f"({rises[worst]}); safety.stop.{key} is {limit}",
                    f"raise safety.stop.{key} if the workload does that by itself",
                )

    def _fire(self, why: str, hint: str) -> NoReturn:
        self._on_fire(why)
        raise RunAborted(f"stopped: {why}", hint=hint)


def _rise(before: Counters, now: Counters, name: str, counter: str) -> int:
    """How far a counter rose. One that went down was set anew by somebody and says nothing of before."""
    first, last = before.get(name, {}).get(counter), now.get(name, {}).get(counter)
    return 0 if first is None or last is None else max(0, last - first)
