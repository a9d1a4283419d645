"""The faults of one run on one fabric: apply, prove, revert. Drives Ansible inside the fabric; decides nothing.

`genie.experiment` makes one after the fabric is up. Every change has its undo in the journal before it is made (the
role's snapshot phase writes it, docs/faults.md); whatever fails after that is reverted before the error is raised.
All times are CLOCK_MONOTONIC ns, for the shaded window of the timeline.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from genie import paths
from genie.errors import RunAborted
from genie.fabric.base import Fabric
from genie.faults.ansible_job import python_path
from genie.faults.evidence import RULES, EvidenceRecord, Observed, judge
from genie.faults.journal import Entry, Journal, Owner, read_journal
from genie.faults.plan import FaultPlan, fabric_variables, port_variables

APPLY_PHASES = ("precondition", "snapshot", "apply", "verify")
REVERT_PHASES = ("revert", "verify_reverted")
JOB_TIMEOUT_S = 90.0
PACKAGE_ROOT = Path(paths.__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """What one phase group did for one fault. ``began_ns`` before the first change, ``done_ns`` after the read-back."""

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
    """When a fault was in effect. ``ended_ns`` 0 means it was never reverted within the run."""

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

    def first_ns(self, hosts: Sequence[str], phase: str) -> int:
        """When the first task result of a phase was seen on any of ``hosts``; 0 if never."""
        return min(
            (int(r["seen_mono_ns"]) for r in self.results if r["host"] in hosts and r["phase"] == phase), default=0
        )

    def last_ns(self, hosts: Sequence[str], phase: str) -> int:
        """When the last task result of a phase was seen on any of ``hosts``; 0 if never."""
        return max(
            (int(r["seen_mono_ns"]) for r in self.results if r["host"] in hosts and r["phase"] == phase), default=0
        )


class FaultSession:
    """Faults of one run. Call `apply`, run the job, call `evidence`, call `revert`; revert also after any failure."""

    def __init__(self, plans: Sequence[FaultPlan], fabric: Fabric, journal: Path, run_dir: Path) -> None:
        self.plans = tuple(plans)
        self.fabric = fabric
        self.journal_path = journal.absolute()
        self.run = run_dir.name or "run"
        self.records: list[FaultRecord] = []

    def apply(self) -> tuple[FaultRecord, ...]:
        """Precondition, snapshot, journal, apply, read back: all faults in one Ansible run.

        Raises RunAborted with fault, node, phase and the target's own words; by then whatever was changed is
        reverted, and the message says if even that failed.
        """
        if not self.plans:
            return ()
        began_ns = time.monotonic_ns()
        self._take_charge()
        try:
            answer = self._ansible(self._hosts({}), APPLY_PHASES, stop_at_first_error=True)
            self._raise_if_failed(answer)
            entries = self._own_entries()
            self._raise_if_unjournaled(entries)
            with Journal(self.journal_path) as journal:
                journal.mark_applied(entries)
        except BaseException as error:
            undone = self.revert()
            left = "; ".join(record.message for record in undone if not record.ok)
            if isinstance(error, RunAborted) and left:
                raise RunAborted(f"{error.message}; and reverting failed: {left}", hint=error.hint) from error
            raise
        made = tuple(
            FaultRecord(
                fault=plan.name,
                action="applied",
                nodes=plan.nodes,
                ports=tuple(port.name for port in plan.ports),
                began_ns=answer.last_ns(_host_names(plan), "snapshot") or began_ns,
                done_ns=answer.first_ns(_host_names(plan), "verify") or time.monotonic_ns(),
                ok=True,
            )
            for plan in self.plans
        )
        self.records += made
        return made

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
            texts: dict[tuple[str, str], str] = {}
            failures: dict[tuple[str, str], str] = {}
            for change in plan.changes:
                for name in plan.mechanism.evidence:
                    argv = RULES[name].read(plan, change)
                    if not argv:
                        continue
                    done = self.fabric.run(change.node, argv)
                    if done.returncode == 0:
                        texts[name, change.port.name] = done.stdout
                    else:
                        failures[name, change.port.name] = done.stderr.strip() or f"{argv[0]} exited {done.returncode}"
            records.append(judge(plan, Observed(before, after, samples, texts, failures)))
        return tuple(records)

    def revert(self) -> tuple[FaultRecord, ...]:
        """Put back what the journal has open for these faults, and read it back. Idempotent; nothing open is success.

        Never raises for a target that cannot be reverted: its record has ``ok`` False and its entry stays open.
        """
        entries = [entry for entry in self._own_entries() if entry.state != "closed"]
        if not entries:
            return ()
        began_ns = time.monotonic_ns()
        hosts = self._hosts({(e.intent.fault, e.intent.node) for e in entries}, entries)
        try:
            answer = self._ansible(hosts, REVERT_PHASES, stop_at_first_error=False)
        except RunAborted as error:
            answer = _Answer("failed", (), error.message)
        closed = [e for e in entries if self._was_reverted(answer, _host_name(e.intent.fault, e.intent.node))]
        with Journal(self.journal_path) as journal:
            journal.close_entries(closed, "reverted")
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
                    ports=tuple(port.name for port in plan.ports),
                    began_ns=began_ns,
                    done_ns=answer.last_ns(_host_names(plan), "verify_reverted") or time.monotonic_ns(),
                    ok=not left,
                    message="; ".join(_why_left(answer, entry) for entry in left),
                )
            )
        self.records += made
        return tuple(made)

    def windows(self) -> tuple[Window, ...]:
        """When each fault was in effect, for the timeline and the report."""
        ends = {record.fault: record.began_ns for record in self.records if record.action == "reverted"}
        return tuple(
            Window(record.fault, record.done_ns, ends.get(record.fault, 0))
            for record in self.records
            if record.action == "applied"
        )

    def _take_charge(self) -> None:
        try:
            with Journal(self.journal_path) as journal:
                journal.take_charge(Owner.this_process(self.fabric.name))
        except OSError as error:
            raise RunAborted(f"the faults' journal cannot be written, so nothing is changed: {error}") from error

    def _own_entries(self) -> tuple[Entry, ...]:
        names = {plan.name for plan in self.plans}
        return tuple(e for e in read_journal(self.journal_path).entries if e.intent.fault in names)

    def _hosts(
        self, only: set[tuple[str, str]] | Mapping[str, str], entries: Sequence[Entry] = ()
    ) -> dict[str, dict[str, Any]]:
        """Inventory: one host a fault and node. ``only`` empty means all."""
        hosts: dict[str, dict[str, Any]] = {}
        for plan in self.plans:
            for node in plan.nodes:
                if only and (plan.name, node) not in only:
                    continue
                hosts[_host_name(plan.name, node)] = {
                    "ansible_host": node,
                    "ansible_connection": "genie_netns",
                    "genie_run": self.run,
                    "genie_fault": plan.name,
                    "genie_role": plan.role,
                    "genie_node": node,
                    **fabric_variables(plan.marker),
                    "genie_journal_path": str(self.journal_path),
                    "genie_ports": [
                        port_variables(change.port, change.interface, change.values, plan.facts)
                        for change in plan.changes
                        if change.node == node
                    ],
                    "genie_changes": [
                        {
                            "object": entry.intent.object,
                            "old": dict(entry.intent.old),
                            "undo": [list(argv) for argv in entry.intent.undo],
                        }
                        for entry in entries
                        if (entry.intent.fault, entry.intent.node) == (plan.name, node)
                    ],
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
            "extra": {"genie_phases": list(phases), "genie_stop_at_first_error": stop_at_first_error},
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
                if (plan.name, change.node, change.interface) not in written:
                    raise RunAborted(
                        f"fault {plan.name}: role {plan.role} changed {change.interface} on {change.node} without an "
                        "undo in the journal",
                        hint="its snapshot.yml must end with genie_journal (docs/add-a-fault.md)",
                    )

    @staticmethod
    def _was_reverted(answer: _Answer, host: str) -> bool:
        own = [result for result in answer.results if result["host"] == host]
        return all(result["ok"] for result in own) and any(result["phase"] == "verify_reverted" for result in own)


def _host_name(fault: str, node: str) -> str:
    """Inventory name: a fault's name has no dot, so the first one separates."""
    return f"{fault}.{node}"


def _host_names(plan: FaultPlan) -> tuple[str, ...]:
    return tuple(_host_name(plan.name, node) for node in plan.nodes)


def _words(failed: Mapping[str, Any]) -> str:
    """What a failed task has to say. A task of the roles is named after what it expects."""
    if failed["rc"] == 0:
        return f"{failed['task']}: found {failed['stdout'].strip()[:2000] or 'nothing'}"
    return f"{failed['task']}: {' '.join((failed['stderr'] or failed['message']).split())[:2000]}"


def _why_left(answer: _Answer, entry: Entry) -> str:
    failed = answer.failure(_host_name(entry.intent.fault, entry.intent.node))
    words = _words(failed) if failed else answer.said.strip()[-500:] or "no answer"
    undo = " && ".join(" ".join(argv) for argv in entry.intent.undo)
    return f"{entry.intent.object} on {entry.intent.node} is not as it was found: {words} (undo: {undo})"
