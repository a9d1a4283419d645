"""The faults of one run on one fabric: apply, prove, revert. Drives Ansible inside the fabric; decides nothing.

`genie.experiment` makes one after the fabric is up. Every change has its undo in the journal, and a dead-man's switch
armed on its node, before it is made (`genie.faults.life`); whatever fails after that is reverted before the error is
raised. A fault with a window is armed here too and made by its warden when the time has come. All times are
CLOCK_MONOTONIC ns of the controller, for the shaded windows of the timeline.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from genie import paths
from genie.errors import RunAborted
from genie.fabric.base import Fabric
from genie.faults import warden
from genie.faults.ansible_job import python_path
from genie.faults.change import State, parse_state, reading_line, render_argv, render_reads, split_reading
from genie.faults.evidence import EvidenceRecord, Observed, find_rule, judge
from genie.faults.journal import Entry, Journal, Owner, read_journal
from genie.faults.life import limit_hms
from genie.faults.plan import Change, FaultPlan, words

APPLY_PHASES = ("prepare", "act")
REVERT_PHASES = ("revert",)
JOB_TIMEOUT_S = 90.0
_REVERT_ATTEMPTS = 2
_WARDENS_TIME_NS = 2_000_000_000  # beyond the time limit: for wardens to undo, and to have answered to arming
TOOLS = ("genie-port", "genie-agent", "genie-load")
DEFAULT_TTL_NS = 600_000_000_000
PACKAGE_ROOT = Path(paths.__file__).resolve().parent.parent


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


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch in which a fault was in effect on all its nodes. ``ended_ns`` 0 means it never ended within the run."""

    fault: str
    started_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class _Answer:
    """What `genie.faults.ansible_job` said."""

    status: str
    results: tuple[Mapping[str, Any], ...]
    said: str

    def failure(self, host: str = "") -> Mapping[str, Any] | None:
        """The first failed task (of ``host``), or None."""
        return next((r for r in self.results if not r["ok"] and host in ("", r["host"])), None)

    def warden(self, host: str) -> warden.Status:
        """What the warden of ``host`` logged until it was told to revert, as far as it answered."""
        logs = [r["told"].get("log", "") for r in self.results if r["host"] == host and r["phase"] == "revert"]
        try:
            return warden.parse_status(logs[-1]) if logs and logs[-1] else warden.Status("")
        except RunAborted:
            return warden.Status("")  # of another version; what was read back is what counts

    def seen_ns(self, hosts: Sequence[str], phase: str) -> tuple[int, int]:
        """When the first and the last result of a phase were seen on any of ``hosts``; 0 if never."""
        seen = [int(r["seen_mono_ns"]) for r in self.results if r["host"] in hosts and r["phase"] == phase]
        return min(seen, default=0), max(seen, default=0)


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
        self.run = warden.run_name(run_dir)
        self.records: list[FaultRecord] = []
        self.ttl_ns = ttl_ns
        self._statuses: dict[tuple[str, str], warden.Status] = {}
        self._ended: dict[str, list[str]] = {}  # fault → sentences about wardens that had ended before we came
        self._told: dict[str, str] = {}  # fault with a window in iterations → "open", "close": what was told last
        self._clock_offsets_ns: Mapping[str, int] = {}
        self._ends_ns = 0  # when every time limit has passed, CLOCK_MONOTONIC of ours; 0: nothing more to see to

    def apply(self) -> tuple[FaultRecord, ...]:
        """Read, refuse, journal, arm, apply, read back: all faults in one Ansible run. Faults with a window are armed.

        Raises RunAborted with fault, node, phase and the target's own words; by then whatever was changed is
        reverted, and the message says if even that failed.
        """
        if not self.plans:
            return ()
        began_ns = time.monotonic_ns()
        self._take_charge()
        try:
            answer = self._ansible(self._hosts(), APPLY_PHASES, stop_at_first_error=True)
            self._raise_if_failed(answer)
            entries = self._own_entries()
            self._raise_if_unjournaled(entries)
            whole = {plan.name for plan in self.plans if plan.config.window.kind == "whole"}
            with Journal(self.journal_path) as journal:
                journal.mark_applied(entry for entry in entries if entry.intent.fault in whole)
        except BaseException as error:
            undone = self.revert()
            left = "; ".join(record.message for record in undone if not record.ok)
            if isinstance(error, RunAborted) and left:
                raise RunAborted(f"{error.message}; and reverting failed: {left}", hint=error.hint) from error
            raise
        self._ends_ns = time.monotonic_ns() + self.ttl_ns
        made = tuple(
            FaultRecord(
                fault=plan.name,
                action="applied" if plan.name in whole else "armed",
                nodes=plan.nodes,
                ports=plan.targets,
                began_ns=answer.seen_ns(_host_names(plan), "prepare")[1] or began_ns,
                done_ns=answer.seen_ns(_host_names(plan), "act")[1] or time.monotonic_ns(),
                ok=True,
            )
            for plan in self.plans
        )
        self.records += made
        return made

    def start(self, at_mono_ns: int, clock_offsets_ns: Mapping[str, int] | None = None) -> None:
        """The ranks start at this instant: the origin of windows in time. ``clock_offsets_ns``: each node's
        CLOCK_MONOTONIC minus ours, where it has another.
        """
        self._clock_offsets_ns = clock_offsets_ns or {}
        timed = [plan for plan in self.plans if plan.config.window.kind in ("timed", "periodic")]
        offsets, tool = self._clock_offsets_ns, self.fabric.tool(warden.PROGRAM)
        self._tell_all(
            timed, lambda folder, node: warden.start_argv(folder, at_mono_ns + offsets.get(node, 0), program=tool)
        )

    def progress(self, iterations_done: int) -> None:
        """Every rank has ended so many iterations: opens and closes windows that are counted in them. Called often."""
        self._keep_time_limit()
        for plan in self.plans:
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
        if not self._ends_ns or time.monotonic_ns() < self._ends_ns + _WARDENS_TIME_NS:
            return
        self._ends_ns = 0
        for plan in self.plans:
            if any(plan.platform(change).deadman == "warden" for change in plan.changes):
                # Where one does not answer, the revert at the end says so.
                with contextlib.suppress(RunAborted):
                    self._request([plan], "revert")

    def evidence(
        self,
        before: Mapping[str, Mapping[str, int]],
        after: Mapping[str, Mapping[str, int]],
        samples: npt.NDArray[Any] | None,
    ) -> tuple[EvidenceRecord, ...]:
        """Read every change back (not through Ansible) and judge. Call before `revert`, which zeroes counters.

        ``before`` and ``after`` are `Fabric.counters` around the run, ``samples`` the port samples within it.
        """
        records = []
        for plan in self.plans:
            self._look_at_wardens(plan)
            states: dict[str, tuple[State, ...]] = {}
            rounds: dict[str, tuple[int, ...]] = {}
            failures: dict[str, str] = {}
            for node in plan.nodes:
                changes = [change for change in plan.changes if change.node == node]
                try:
                    found, numbers = self._states(plan, node, changes)
                    states |= found
                    rounds |= dict.fromkeys(found, numbers)
                except RunAborted as error:
                    failures |= dict.fromkeys((change.target for change in changes), error.message)
            texts = {
                (name, change.target): done.stdout
                for name in plan.mechanism.evidence
                for change in plan.changes
                if (argv := find_rule(name).read(plan, change))
                and (done := self.fabric.run(change.node, render_argv(argv, self._variables(plan, change)))).returncode
                == 0
            }
            windows = tuple((w.started_ns, w.ended_ns) for w in self.windows() if w.fault == plan.name)
            fired = [node for node in plan.nodes if (s := self._statuses.get((plan.name, node))) and s.fired]
            seen = Observed(
                before, after, samples, texts, states, failures, windows, tuple(fired), self._dead(plan), rounds,
                {node: self._words(plan, node) for node in plan.nodes}, self._found(plan),
            )  # fmt: skip
            records.append(judge(plan, seen))
        return tuple(records)

    def _found(self, plan: FaultPlan) -> dict[str, State]:
        """The state of each target before the fault, as the journal has it."""
        places = {(entry.intent.node, entry.intent.object): entry.intent.old for entry in self._own_entries()
                  if entry.intent.fault == plan.name}  # fmt: skip
        return {c.target: places[c.node, c.object] for c in plan.changes if (c.node, c.object) in places}

    def _dead(self, plan: FaultPlan) -> tuple[str, ...]:
        """Sentences about wardens that did not live to keep the windows of a fault; of one for the whole run what is
        read back at the end says all.
        """
        if plan.config.window.kind == "whole" or any(plan.platform(c).deadman != "warden" for c in plan.changes):
            return ()
        said = []
        for node in plan.nodes:
            status = self._statuses.get((plan.name, node))
            if status is None:
                said.append(f"the warden of {node} does not answer")
            elif not status.alive:
                said.append(f"the warden of {node} is dead" + "".join(f"; {why}" for why in status.failures))
        return tuple(said)

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
        answer = _Answer("", (), "")
        for _ in range(_REVERT_ATTEMPTS):
            waiting = [entry for entry in entries if entry not in closed]
            answer = self._revert_once(waiting)
            done = [e for e in waiting if self._was_reverted(answer, _host_name(e.intent.fault, e.intent.node))]
            self._close(done, answer)
            closed += done
            # Where Ansible itself was killed it says nothing of its hosts; where a host failed, it said why.
            if all(e in closed or answer.failure(_host_name(e.intent.fault, e.intent.node)) for e in entries):
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
                    done_ns=answer.seen_ns(_host_names(plan), "revert")[1] or time.monotonic_ns(),
                    ok=not left,
                    message="; ".join(
                        [_why_left(answer, entry) for entry in left] or list(self._ended.get(plan.name, ()))
                    ),
                )
            )
        self.records += made
        return tuple(made)

    def _revert_once(self, entries: Sequence[Entry]) -> _Answer:
        hosts = self._hosts({(e.intent.fault, e.intent.node) for e in entries})
        try:
            return self._ansible(hosts, REVERT_PHASES, stop_at_first_error=False)
        except RunAborted as error:
            return _Answer("failed", (), error.message)

    def _close(self, entries: Sequence[Entry], answer: _Answer) -> None:
        """Close what was put back, and remember who had done it before we came."""
        hows: dict[str, list[Entry]] = {}
        for fault, node in dict.fromkeys((e.intent.fault, e.intent.node) for e in entries):
            words = warden.end_in_words(answer.warden(_host_name(fault, node)), node)
            if words:
                self._ended.setdefault(fault, []).append(words)
            own = [entry for entry in entries if (entry.intent.fault, entry.intent.node) == (fault, node)]
            hows.setdefault(f"reverted: {words}" if words else "reverted", []).extend(own)
        with Journal(self.journal_path) as journal:
            for how, own in hows.items():
                journal.close_entries(own, how)

    def windows(self) -> tuple[Window, ...]:
        """When each fault was in effect, for the timeline and the report."""
        ends = {record.fault: record.began_ns for record in self.records if record.action == "reverted"}
        found = []
        for record in self.records:
            if record.action == "applied":
                found.append(Window(record.fault, record.done_ns, ends.get(record.fault, 0)))
            elif record.action == "armed":
                found += self._warden_windows(record.fault, record.nodes, ends.get(record.fault, 0))
        return tuple(found)

    def _warden_windows(self, fault: str, nodes: Sequence[str], reverted_ns: int) -> list[Window]:
        """The wardens' own edges, in our clock: from the last node that was in to the first that went out."""
        own = []
        for node in nodes:
            status, offset = self._statuses.get((fault, node)), self._clock_offsets_ns.get(node, 0)
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

    def _request(self, plans: Sequence[FaultPlan], request: warden.Request) -> None:
        tool = self.fabric.tool(warden.PROGRAM)
        self._tell_all(plans, lambda folder, _: warden.request_argv(folder, request, program=tool))

    def _tell_all(self, plans: Sequence[FaultPlan], argv: Callable[[str, str], list[str]]) -> None:
        """One command to the warden of each fault and node, all at once. Raises RunAborted for the first that fails,
        when all were told.
        """
        places = [(plan, node) for plan in plans for node in plan.nodes]
        if not places:
            return

        def tell(place: tuple[FaultPlan, str]) -> str:
            plan, node = place
            try:
                done = self.fabric.run(node, argv(self._folder(plan, node), node))
            except RunAborted as error:
                return error.message
            words = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
            return words if done.returncode != 0 else ""

        with ThreadPoolExecutor(max_workers=min(16, len(places))) as pool:
            failures = list(pool.map(tell, places))
        for (plan, node), said in zip(places, failures, strict=True):
            if said:
                raise RunAborted(f"fault {plan.name} on {node}: its window could not be told: {said}")

    def _folder(self, plan: FaultPlan, node: str) -> str:
        return f"{self.fabric.state_dir(node)}/{plan.name}"

    def _look_at_wardens(self, plan: FaultPlan) -> None:
        """Fetch what the wardens of a fault have logged so far."""
        if all(plan.platform(change).deadman != "warden" for change in plan.changes):
            return
        for node in plan.nodes:
            status = self._status(plan, node)
            if status is not None:
                self._statuses[plan.name, node] = status

    def _status(self, plan: FaultPlan, node: str) -> warden.Status | None:
        argv = warden.request_argv(self._folder(plan, node), "status", program=self.fabric.tool(warden.PROGRAM))
        done = self.fabric.run(node, argv)
        return warden.parse_status(done.stdout) if done.returncode == 0 else None

    def _states(
        self, plan: FaultPlan, node: str, changes: Sequence[Change]
    ) -> tuple[dict[str, tuple[State, ...]], tuple[int, ...]]:
        """State of each target while the fault was in effect, now or as the warden read it, and in which of its windows
        each reading was made.
        """
        how = plan.platform(changes[0])
        variables = [self._variables(plan, change) for change in changes]
        commands = [argv for own in variables for argv in render_reads(how, own)]
        status = self._statuses.get((plan.name, node))
        is_whole = plan.config.window.kind == "whole"
        rounds: list[list[tuple[int, str]]] = []
        numbers: list[int] = []
        if not is_whole:
            if status is None or not status.openings:
                why = "; ".join(status.failures) if status else "its warden does not answer"
                raise RunAborted(f"no window of it opened on {node}{f': {why}' if why else ''}")
            rounds = [split_reading(text, len(commands)) for text in status.checks]
            numbers = list(status.checked)
        if is_whole or (status and not status.openings[-1].undo_began_ns):
            done = self.fabric.run(node, ["sh", "-c", reading_line(commands)])
            try:
                rounds.append(split_reading(done.stdout, len(commands)))
            except ValueError as error:
                raise RunAborted(f"the read-back at the end said {error}: {done.stderr.strip()}") from error
            numbers.append(status.openings[-1].index if status and status.openings else 0)
        if not is_whole and len(numbers) > len(status.checked if status else ()) and self._closed_since(plan, node):
            # The window ended while we looked, so what we saw may be either; the warden's own readings stand.
            rounds, numbers = rounds[:-1], numbers[:-1]
        count = len(how.read)
        states = {
            change.target: tuple(
                parse_state(how.read, answers[index * count : (index + 1) * count], own) for answers in rounds
            )
            for index, (change, own) in enumerate(zip(changes, variables, strict=True))
        }
        return states, tuple(numbers)

    def _closed_since(self, plan: FaultPlan, node: str) -> bool:
        """Whether the window that was open when the warden was last asked is not any more."""
        before = self._statuses[plan.name, node].openings[-1]
        now = self._status(plan, node)
        return now is None or any(o.index == before.index and o.undo_began_ns for o in now.openings)

    def _variables(self, plan: FaultPlan, change: Change) -> dict[str, Any]:
        port = plan.port_variables(change)
        return {"port": {**port, **port["set"]}, **self._words(plan, change.node)}

    def _words(self, plan: FaultPlan, node: str) -> dict[str, str]:
        """What commands on a node may name beside their port."""
        tools = {name.replace("-", "_"): self.fabric.tool(name) for name in TOOLS}
        own = {"state": self.fabric.state_dir(node), "ttl_hms": limit_hms(self.ttl_ns)}
        return {**words(plan.name, node, plan.marker), **tools, **own}

    def _take_charge(self) -> None:
        try:
            with Journal(self.journal_path) as journal:
                journal.take_charge(Owner.this_process(self.fabric.name))
        except OSError as error:
            raise RunAborted(f"the faults' journal cannot be written, so nothing is changed: {error}") from error

    def _own_entries(self) -> tuple[Entry, ...]:
        names = {plan.name for plan in self.plans}
        return tuple(e for e in read_journal(self.journal_path).entries if e.intent.fault in names)

    def _hosts(self, only: set[tuple[str, str]] | None = None) -> dict[str, dict[str, Any]]:
        """Inventory: one host a fault and node. ``only`` None means all."""
        hosts: dict[str, dict[str, Any]] = {}
        for plan in self.plans:
            for node in plan.nodes:
                if only is not None and (plan.name, node) not in only:
                    continue
                changes = [change for change in plan.changes if change.node == node]
                hosts[_host_name(plan.name, node)] = {
                    **self.fabric.ansible_host(node),
                    "genie_run": self.run,
                    "genie_fault": plan.name,
                    "genie_role": plan.role,
                    "genie_node": node,
                    "genie_platform": changes[0].platform,
                    "genie_parameters": {p.name: str(plan.config.parameter(p.name)) for p in plan.mechanism.parameters},
                    "genie_ports_json": json.dumps([plan.port_variables(change) for change in changes]),
                    "genie_words_json": json.dumps(self._words(plan, node)),
                    "genie_journal_path": str(self.journal_path),
                    "genie_window_json": json.dumps(asdict(window_of(plan))),
                    "genie_is_whole": plan.config.window.kind == "whole",
                    "genie_ttl_ns": self.ttl_ns,
                    "genie_warden": self.fabric.tool(warden.PROGRAM),
                    "genie_state": self.fabric.state_dir(node),
                    "genie_lock": self.fabric.lock_file(node),
                }
        return hosts

    def _ansible(
        self, hosts: Mapping[str, Mapping[str, Any]], phases: Sequence[str], *, stop_at_first_error: bool
    ) -> _Answer:
        job = {
            "playbook": "fault.yml",
            "playbooks": str(paths.playbooks_dir()),
            "roles": str(paths.roles_dir()),
            "package_root": str(PACKAGE_ROOT),
            "hosts": hosts,
            "tags": list(phases),
            "extra": {"genie_stop_at_first_error": stop_at_first_error},
            "timeout_s": int(JOB_TIMEOUT_S) - 10,
        }
        argv = ["env", f"PYTHONPATH={python_path(PACKAGE_ROOT)}", sys.executable, "-m", "genie.faults.ansible_job"]
        done = self.fabric.run("", argv, stdin=json.dumps(job).encode(), timeout_s=JOB_TIMEOUT_S)
        if done.returncode != 0:
            raise RunAborted(
                f"the Ansible job of the faults ended with exit code {done.returncode}: {done.stderr.strip()[-2000:]}"
            )
        said = json.loads(done.stdout)
        return _Answer(said["status"], tuple(said["results"]), said["stdout"])

    def _raise_if_failed(self, answer: _Answer) -> None:
        if answer.status == "successful":
            return
        failed = answer.failure()
        if failed is None:
            raise RunAborted(f"applying faults: Ansible ended as {answer.status!r}: {answer.said.strip()[-2000:]}")
        fault, node = failed["host"].split(".", 1)
        raise RunAborted(
            f"fault {fault} on {node}, phase {failed['phase']}: {_words(failed)}",
            hint="nothing of it is left in place; the fault's README says what the role expects",
        )

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

    @staticmethod
    def _was_reverted(answer: _Answer, host: str) -> bool:
        own = [result for result in answer.results if result["host"] == host]
        return all(result["ok"] for result in own) and any(result["phase"] == "revert" for result in own)


def window_of(plan: FaultPlan) -> warden.Window:
    """A plan's window as its warden has it. One for the whole run is told to open as soon as it is armed."""
    said = plan.config.window
    match said.kind:
        case "timed":
            return warden.Window("timed", said.at_ns, said.for_ns)
        case "periodic":
            return warden.Window("periodic", said.at_ns, said.for_ns, said.period_ns, said.open_ns)
    return warden.Window("told")


def _host_name(fault: str, node: str) -> str:
    """Inventory name: a fault's name has no dot, so the first one separates."""
    return f"{fault}.{node}"


def _host_names(plan: FaultPlan) -> tuple[str, ...]:
    return tuple(_host_name(plan.name, node) for node in plan.nodes)


def _words(failed: Mapping[str, Any]) -> str:
    """What a failed task has to say."""
    return " ".join(str(failed["message"] or failed["stderr"] or failed["stdout"]).split())[:2000] or "nothing"


def _why_left(answer: _Answer, entry: Entry) -> str:
    failed = answer.failure(_host_name(entry.intent.fault, entry.intent.node))
    words = _words(failed) if failed else answer.said.strip()[-500:] or "no answer"
    undo = " && ".join(" ".join(argv) for argv in entry.intent.undo)
    return f"{entry.intent.object} on {entry.intent.node} is not as it was found: {words} (undo: {undo})"
