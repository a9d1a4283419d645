"""The wardens of one run's faults: told when windows open and close, asked what they saw.

`genie.faults.session` has one. What is said to a warden and what it answers is `genie.faults.warden`; here it is
brought to the nodes, to all at once. Arming and reverting is the play's; here only the time limit is seen to, which
a warden may not have lived to keep.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from genie.errors import RunAborted
from genie.fabric.base import Fabric
from genie.faults import warden
from genie.faults.plan import FaultPlan
from genie.faults.play import Place, places_of

_UNDO_TIME_NS = 1_000_000_000  # beyond the time limit: for wardens that live to undo it
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch in which a fault was in effect on all its nodes. ``ended_ns`` 0 means it never ended within the run."""

    fault: str
    started_ns: int
    ended_ns: int


class Wardens:
    """Call `armed` when all are, `start` when the ranks start, `progress` while they run, `look` before judging."""

    def __init__(self, plans: Sequence[FaultPlan], fabric: Fabric, ttl_ns: int) -> None:
        self._plans = plans
        self._fabric = fabric
        self._ttl_ns = ttl_ns
        self._statuses: dict[Place, warden.Status] = {}
        self._told: dict[str, str] = {}  # fault with a window in iterations → "open", "close": what was told last
        self._clock_offsets_ns: Mapping[str, int] = {}
        self._ends_ns = 0  # when every time limit has passed, CLOCK_MONOTONIC of ours; 0: nothing more to see to

    # -- what they are told ---------------------------------------------------------------------------------------

    def armed(self, by_mono_ns: int) -> None:
        """All were armed by this instant: their time limits run."""
        self._ends_ns = by_mono_ns + self._ttl_ns

    def start(self, at_mono_ns: int, clock_offsets_ns: Mapping[str, int] | None = None) -> None:
        """The ranks start at this instant: the origin of windows in time. ``clock_offsets_ns``: each node's
        CLOCK_MONOTONIC minus ours, where it has another.
        """
        self._clock_offsets_ns = clock_offsets_ns or {}
        timed = [plan for plan in self._plans if plan.config.window.kind in ("timed", "periodic")]
        offsets, tool = self._clock_offsets_ns, self._fabric.tool(warden.PROGRAM)
        self._tell_all(
            timed, lambda folder, node: warden.start_argv(folder, at_mono_ns + offsets.get(node, 0), program=tool)
        )

    def progress(self, iterations_done: int) -> None:
        """Every rank has ended so many iterations: opens and closes windows that are counted in them. Called often."""
        self._keep_time_limit()
        for plan in self._plans:
            window = plan.config.window
            if window.kind != "iterations" or window.at_iteration is None:
                continue
            last = None if window.for_iterations is None else window.at_iteration + window.for_iterations
            told = self._told.get(plan.name, "")
            if not told and iterations_done >= window.at_iteration:
                self._told[plan.name] = "open"
                self._request([plan], "open")
            elif told == "open" and last is not None and iterations_done >= last:
                self._told[plan.name] = "close"
                self._request([plan], "close")

    def _keep_time_limit(self) -> None:
        """Once the time limit has passed, see that it was kept, also where a warden was killed with its guardian."""
        if not self._ends_ns or time.monotonic_ns() < self._ends_ns + _UNDO_TIME_NS:
            return
        self._ends_ns = 0
        for plan in self._plans:
            if _has_wardens(plan):
                # Where one does not answer, the revert at the end says so.
                with contextlib.suppress(RunAborted):
                    self._request([plan], "revert")

    def _request(self, plans: Sequence[FaultPlan], request: warden.Request) -> None:
        tool = self._fabric.tool(warden.PROGRAM)
        self._tell_all(plans, lambda folder, _: warden.request_argv(folder, request, program=tool))

    def _tell_all(self, plans: Sequence[FaultPlan], argv: Callable[[str, str], list[str]]) -> None:
        """One command to the warden of each fault and node, all at once. Raises RunAborted for the first that fails,
        when all were told.
        """
        places = [place for plan in plans for place in places_of(plan)]
        if not places:
            return

        def tell(place: Place) -> str:
            try:
                done = self._fabric.run(place.node, argv(self._folder(place), place.node))
            except RunAborted as error:
                return error.message
            words = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
            return words if done.returncode != 0 else ""

        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(places))) as pool:
            failures = list(pool.map(tell, places))
        for place, said in zip(places, failures, strict=True):
            if said:
                raise RunAborted(f"fault {place.fault} on {place.node}: its window could not be told: {said}")

    def _folder(self, place: Place) -> str:
        return f"{self._fabric.state_dir(place.node)}/{place.fault}"

    # -- what they say --------------------------------------------------------------------------------------------

    def look(self, plan: FaultPlan) -> None:
        """Fetch what the wardens of a fault have logged so far."""
        if not _has_wardens(plan):
            return
        for place in places_of(plan):
            status = self._ask(place)
            if status is not None:
                self._statuses[place] = status

    def _ask(self, place: Place) -> warden.Status | None:
        argv = warden.request_argv(self._folder(place), "status", program=self._fabric.tool(warden.PROGRAM))
        done = self._fabric.run(place.node, argv)
        return warden.parse_status(done.stdout) if done.returncode == 0 else None

    def status(self, place: Place) -> warden.Status | None:
        """What was last fetched of one; None where it did not answer."""
        return self._statuses.get(place)

    def closed_since(self, place: Place) -> bool:
        """Whether the window that was open when the warden was last asked is not any more. Asks it again."""
        before = self._statuses[place].openings[-1]
        now = self._ask(place)
        return now is None or any(o.index == before.index and o.undo_began_ns for o in now.openings)

    def fired(self, plan: FaultPlan) -> tuple[str, ...]:
        """Nodes whose dead-man's switch undid the fault at its time limit."""
        return tuple(place.node for place in places_of(plan) if (s := self._statuses.get(place)) and s.fired)

    def dead(self, plan: FaultPlan) -> tuple[str, ...]:
        """Sentences about wardens that did not live to keep the windows of a fault; of one for the whole run what is
        read back at the end says all.
        """
        if plan.config.window.kind == "whole" or any(plan.platform(c).deadman != "warden" for c in plan.changes):
            return ()
        said = []
        for place in places_of(plan):
            status = self._statuses.get(place)
            if status is None:
                said.append(f"the warden of {place.node} does not answer")
            elif not status.alive:
                said.append(f"the warden of {place.node} is dead" + "".join(f"; {why}" for why in status.failures))
        return tuple(said)

    def windows(self, fault: str, nodes: Sequence[str], reverted_ns: int) -> list[Window]:
        """The wardens' own edges, in our clock: from the last node that was in to the first that went out."""
        own = []
        for node in nodes:
            status, offset = self._statuses.get(Place(fault, node)), self._clock_offsets_ns.get(node, 0)
            if status is None:
                return []
            own.append(
                [(o.in_effect_ns - offset, o.undo_began_ns and o.undo_began_ns - offset) for o in status.openings]
            )
        found = []
        for edges in zip(*own, strict=False):
            ends = [end or reverted_ns for _, end in edges]
            found.append(Window(fault, max(start for start, _ in edges), 0 if 0 in ends else min(ends)))
        return found


def _has_wardens(plan: FaultPlan) -> bool:
    """Whether any of its changes has a dead-man's switch of ours."""
    return any(plan.platform(change).deadman == "warden" for change in plan.changes)
