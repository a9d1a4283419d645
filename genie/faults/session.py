"""The faults of one run on one fabric: apply, prove, revert. The story of a fault, told once; decides nothing.

`genie.experiment` makes one after the fabric is up. Every change has its undo in the journal, and a dead-man's switch
armed on its node, before it is made (`genie.faults.life`, which the play calls); whatever fails after that is reverted
before the error is raised. A fault with a window is armed here too and made by its warden when the time has come. All
times are CLOCK_MONOTONIC ns of the controller, for the shaded windows of the timeline.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from genie.errors import RunAborted
from genie.fabric.base import Fabric
from genie.faults import warden
from genie.faults.evidence import EvidenceRecord, judge
from genie.faults.journal import Entry, Journal, Owner, read_journal
from genie.faults.observer import Observer
from genie.faults.plan import FaultPlan
from genie.faults.play import APPLY_PHASES, REVERT_PHASES, Answer, Place, Play, places_of
from genie.faults.wardens import Wardens, Window

DEFAULT_TTL_NS = 600_000_000_000
_REVERT_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """What one phase group did for one fault. ``began_ns`` before the first change, ``done_ns`` after the read-back.

    ``message``: why it is not ``ok``; of one that is, who had done it before we came, "" for nobody.
    """

    fault: str
    action: str  # "applied" or "reverted"
    nodes: tuple[str, ...]
    ports: tuple[str, ...]
    began_ns: int
    done_ns: int
    ok: bool
    message: str = ""


class FaultSession:
    """Faults of one run. Call `apply`, `start` when the ranks start, `progress` while they run, `evidence`, `revert`;
    revert also after any failure.
    """

    def __init__(
        self,
        plans: Sequence[FaultPlan],
        fabric: Fabric,
        journal: Path,
        run_dir: Path,
        *,
        ttl_ns: int = DEFAULT_TTL_NS,
    ) -> None:
        """``ttl_ns``: how long after arming a node puts itself back if nobody did."""
        self.plans = tuple(plans)
        self.fabric = fabric
        self.journal_path = journal.absolute()
        self.records: list[FaultRecord] = []
        self.play = Play(self.plans, fabric, self.journal_path, warden.run_name(run_dir), ttl_ns)
        self.wardens = Wardens(self.plans, fabric, ttl_ns)
        self._ended: dict[str, list[str]] = {}  # fault → sentences about wardens that had ended before we came

    # -- apply ----------------------------------------------------------------------------------------------------

    def apply(self) -> tuple[FaultRecord, ...]:
        """Read, refuse, journal, arm, apply, read back: all faults in one Ansible run. Faults with a window are armed.

        Raises RunAborted with fault, node, phase and the target's own words; by then whatever was changed is
        reverted, and the message says if even that failed.
        """
        if not self.plans:
            return ()
        began_ns = time.monotonic_ns()
        self._take_charge()
        whole = {plan.name for plan in self.plans if plan.config.window.kind == "whole"}
        try:
            answer = self.play.run(APPLY_PHASES, stop_at_first_error=True)
            _raise_if_failed(answer)
            entries = self._own_entries()
            self._raise_if_unjournaled(entries)
            with Journal(self.journal_path) as journal:
                journal.mark_applied(entry for entry in entries if entry.intent.fault in whole)
        except BaseException as error:
            undone = self.revert()
            left = "; ".join(record.message for record in undone if not record.ok)
            if isinstance(error, RunAborted) and left:
                raise RunAborted(f"{error.message}; and reverting failed: {left}", hint=error.hint) from error
            raise
        everywhere = [place for plan in self.plans for place in places_of(plan)]
        self.wardens.armed(answer.last_ns("prepare", everywhere) or time.monotonic_ns())
        made = tuple(
            FaultRecord(
                fault=plan.name,
                action="applied" if plan.name in whole else "armed",
                nodes=plan.nodes,
                ports=plan.targets,
                began_ns=answer.last_ns("prepare", places_of(plan)) or began_ns,
                done_ns=answer.last_ns("act", places_of(plan)) or time.monotonic_ns(),
                ok=True,
            )
            for plan in self.plans
        )
        self.records += made
        return made

    def _take_charge(self) -> None:
        try:
            with Journal(self.journal_path) as journal:
                journal.take_charge(Owner.this_process(self.fabric.name))
        except OSError as error:
            raise RunAborted(f"the faults' journal cannot be written, so nothing is changed: {error}") from error

    def _own_entries(self) -> tuple[Entry, ...]:
        names = {plan.name for plan in self.plans}
        return tuple(e for e in read_journal(self.journal_path).entries if e.intent.fault in names)

    def _raise_if_unjournaled(self, entries: Sequence[Entry]) -> None:
        written = {(entry.intent.fault, entry.intent.node, entry.intent.object) for entry in entries}
        for plan in self.plans:
            for change in plan.changes:
                if (plan.name, change.node, change.object) not in written:
                    raise RunAborted(
                        f"fault {plan.name}: role {plan.role} changed {change.object} on {change.node} without an "
                        "undo in the journal",
                        hint="its tasks/main.yml must hand every phase to genie_change (docs/add-a-fault.md)",
                    )

    # -- while the ranks run --------------------------------------------------------------------------------------

    def start(self, at_mono_ns: int, clock_offsets_ns: Mapping[str, int] | None = None) -> None:
        """The ranks start at this instant: the origin of windows in time. ``clock_offsets_ns``: each node's
        CLOCK_MONOTONIC minus ours, where it has another.
        """
        self.wardens.start(at_mono_ns, clock_offsets_ns)

    def progress(self, iterations_done: int) -> None:
        """Every rank has ended so many iterations: opens and closes windows that are counted in them. Called often."""
        self.wardens.progress(iterations_done)

    def evidence(
        self,
        before: Mapping[str, Mapping[str, int]],
        after: Mapping[str, Mapping[str, int]],
        samples: npt.NDArray[Any] | None,
    ) -> tuple[EvidenceRecord, ...]:
        """Read every change back (not through Ansible) and judge. Call before `revert`, which zeroes counters.

        ``before`` and ``after`` are `Fabric.counters` around the run, ``samples`` the port samples within it.
        """
        observer = Observer(self.fabric, self.play, self.wardens)
        records = []
        for plan in self.plans:
            self.wardens.look(plan)
            windows = [(w.started_ns, w.ended_ns) for w in self.windows() if w.fault == plan.name]
            seen = observer.observe(plan, self._own_entries(), windows, before, after, samples)
            records.append(judge(plan, seen))
        return tuple(records)

    def windows(self) -> tuple[Window, ...]:
        """When each fault was in effect, for the timeline and the report."""
        ends = {record.fault: record.began_ns for record in self.records if record.action == "reverted"}
        found = []
        for record in self.records:
            if record.action == "applied":
                found.append(Window(record.fault, record.done_ns, ends.get(record.fault, 0)))
            elif record.action == "armed":
                found += self.wardens.windows(record.fault, record.nodes, ends.get(record.fault, 0))
        return tuple(found)

    # -- revert ---------------------------------------------------------------------------------------------------

    def revert(self) -> tuple[FaultRecord, ...]:
        """Put back what the journal has open for these faults, and read it back. Idempotent; nothing open is success.

        Never raises for a target that cannot be reverted: its record has ``ok`` False and its entry stays open.
        """
        state = read_journal(self.journal_path)
        entries = [entry for entry in self._own_entries() if entry.state != "closed"]
        if not entries:
            if state.owner is not None and not state.entries and not state.ended:
                with Journal(self.journal_path) as journal:
                    journal.end("nothing was changed")
            return ()
        began_ns = time.monotonic_ns()
        closed: list[Entry] = []
        answer = Answer("", (), "")
        for _ in range(_REVERT_ATTEMPTS):
            waiting = [entry for entry in entries if entry not in closed]
            answer = self._revert_once(waiting)
            done = [entry for entry in waiting if answer.was_reverted(_place(entry))]
            self._close(done, answer)
            closed += done
            # Where Ansible itself was killed it says nothing of its places; where a place failed, it said why.
            if all(entry in closed or answer.failure(_place(entry)) for entry in entries):
                break
        made = []
        for plan in self.plans:
            mine = [entry for entry in entries if entry.intent.fault == plan.name]
            if not mine:
                continue
            left = [entry for entry in mine if entry not in closed]
            made.append(
                FaultRecord(
                    fault=plan.name,
                    action="reverted",
                    nodes=tuple(dict.fromkeys(entry.intent.node for entry in mine)),
                    ports=plan.targets,
                    began_ns=began_ns,
                    done_ns=answer.last_ns("revert", places_of(plan)) or time.monotonic_ns(),
                    ok=not left,
                    message="; ".join(
                        [_why_left(answer, entry) for entry in left] or list(self._ended.get(plan.name, ()))
                    ),
                )
            )
        self.records += made
        return tuple(made)

    def _revert_once(self, entries: Sequence[Entry]) -> Answer:
        try:
            return self.play.run(REVERT_PHASES, {_place(entry) for entry in entries}, stop_at_first_error=False)
        except RunAborted as error:
            return Answer("failed", (), error.message)

    def _close(self, entries: Sequence[Entry], answer: Answer) -> None:
        """Close what was put back, and remember who had done it before we came."""
        hows: dict[str, list[Entry]] = {}
        for place in dict.fromkeys(map(_place, entries)):
            words = warden.end_in_words(answer.warden(place), place.node)
            if words:
                self._ended.setdefault(place.fault, []).append(words)
            own = [entry for entry in entries if _place(entry) == place]
            hows.setdefault(f"reverted: {words}" if words else "reverted", []).extend(own)
        with Journal(self.journal_path) as journal:
            for how, own in hows.items():
                journal.close_entries(own, how)


def _place(entry: Entry) -> Place:
    return Place(entry.intent.fault, entry.intent.node)


def _raise_if_failed(answer: Answer) -> None:
    if answer.status == "successful":
        return
    failed = answer.failure()
    if failed is None:
        raise RunAborted(f"applying faults: Ansible ended as {answer.status!r}: {answer.said.strip()[-2000:]}")
    raise RunAborted(
        f"fault {failed.place.fault} on {failed.place.node}, phase {failed.phase}: {failed.message}",
        hint="nothing of it is left in place; the fault's README says what the role expects",
    )


def _why_left(answer: Answer, entry: Entry) -> str:
    failed = answer.failure(_place(entry))
    words = failed.message if failed else answer.said.strip()[-500:] or "no answer"
    undo = " && ".join(" ".join(argv) for argv in entry.intent.undo)
    return f"{entry.intent.object} on {entry.intent.node} is not as it was found: {words} (undo: {undo})"
