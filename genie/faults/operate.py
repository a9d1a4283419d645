"""Faults under a workload that is not ours: ``genie faults apply``, ``status`` and ``revert``.

An operator applies faults to hosts of an inventory and leaves: each host's warden takes them back when the time limit
has passed, whatever becomes of this machine. What a later process needs to ask and to revert is in the folder
``OUT/faults-TIME/``: ``operation.json`` and the journal. `genie.faults.command` calls this; planning, applying and
reverting are those of a run (`genie.faults.plan`, `genie.faults.session`).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from genie.errors import ConfigError, GenieError, PlanError, RunAborted
from genie.fabric import open_fabric
from genie.fabric.base import Fabric
from genie.fabric.config import InventoryConfig
from genie.fabric.lease import end_argv
from genie.faults import warden
from genie.faults.audit import FILE_NAME as AUDIT_LOG
from genie.faults.audit import AuditLog
from genie.faults.journal import FILE_NAME as JOURNAL
from genie.faults.journal import Entry, read_journal
from genie.faults.operation import FILE_NAME, Operation, describe, reach, read_operation, remember
from genie.faults.plan import FaultPlan, RunFacts
from genie.faults.reached import ReachedHosts
from genie.faults.revert import settle_first
from genie.faults.safety import check, refuse_killed
from genie.faults.session import FaultSession
from genie.schema import ExperimentConfig
from genie.topology.inventory import inventory
from genie.topology.model import Topology
from genie.units import format_ns

Say = Callable[[str], None]
_TIDY_TIMEOUT_S = 60.0
_OWN_FOLDER = re.compile(r"/.+/[0-9a-f]{32}")


# -- apply --------------------------------------------------------------------------------------------------------


def apply(config: ExperimentConfig, say: Say) -> None:
    """Plan, show, apply and leave; with ``dry_run`` plan and show only. Nothing is left where it raises."""
    _refuse_what_ends_with_us(config)
    network = inventory(config.fabric)
    fabric = open_fabric(config.fabric, network, Path(config.out))
    operation = describe(config, network, fabric, _facts(config, network, fabric))
    plans = operation.plans()
    refuse_killed(config.safety)
    check(plans, network, config.safety, config.allow_risk, fabric)
    for note in fabric.notes:
        say(f"note: {note}")
    say("\n".join(plan.describe() for plan in plans))
    say(f"ends by itself {config.safety.ttl} after it was armed (ttl), whatever becomes of this machine")
    if config.dry_run:
        say("dry_run: nothing was touched")
        return
    settle_first(Path(config.out), fabric, [node.name for node in network.nodes], say)
    folder = _new_folder(Path(config.out))
    audit = AuditLog(Path(config.out), run=str(folder))
    for plan in plans:
        audit.write("planned", plan.name, plan.targets)
    fabric = open_fabric(config.fabric, network, folder)
    session = FaultSession(plans, fabric, folder / JOURNAL, folder, ttl_ns=operation.ttl_ns)
    try:
        fabric.build()
        operation = remember(operation, plans, fabric, config.fabric)
        operation.write(folder)
        _apply(session, fabric, say)
        ends_ns = time.time_ns() + operation.ttl_ns
        replace(operation, ends_real_ns=ends_ns).write(folder)
        for plan in plans:
            audit.write("applied", plan.name, plan.targets, ttl_ns=operation.ttl_ns)
    except BaseException as error:
        for record in session.revert():
            if not record.ok:
                say(f"{record.fault} could not be taken back: {record.message}; genie faults revert {folder}")
        _clear(plans, fabric, folder, say)
        for plan in plans:
            audit.write("refused", plan.name, plan.targets, result=str(error) or type(error).__name__)
        raise
    finally:
        fabric.destroy()
    for record in session.records:
        say(f"{record.action} {record.fault} on {', '.join(record.nodes)}: {', '.join(record.ports)}")
    say(f"ends by itself by {_clock(ends_ns)} (in {config.safety.ttl})")
    say(f"look:   genie faults status {folder}\nrevert: genie faults revert {folder}")


def _refuse_what_ends_with_us(config: ExperimentConfig) -> None:
    if not isinstance(config.fabric, InventoryConfig):
        kind = config.choices["fabric"].kind
        names = ",".join(config.fault)
        raise PlanError(
            f"fabric={kind} lives and ends with its run, so a fault applied to it would be gone with this command",
            hint=f"run a workload under it: genie fault=[{names}]; or name real hosts with --inventory=hosts.yml",
        )
    if not config.fabric.inventory:
        raise ConfigError("which hosts?", key="inventory", hint="add --inventory=hosts.yml (docs/inventory.md)")
    for name, fault in config.fault.items():
        if fault.window.kind == "iterations":
            raise PlanError(
                f"fault.{name}.window counts iterations of GENIE's ranks, and there are none",
                hint="give the window in time: window.at=2s window.for=3s, or window.period=1s window.duty=0.1",
            )


def _clear(plans: Sequence[FaultPlan], fabric: Fabric, folder: Path, say: Say) -> None:
    """After an `apply` that failed: remove what its wardens left to be read where nothing is open any more, so that
    the fabric can take away all that it brought.
    """
    entries = read_journal(folder / JOURNAL).entries
    opened = {entry.intent.node for entry in entries if entry.state != "closed"}
    for plan in plans:
        for node in dict.fromkeys(e.intent.node for e in entries if e.intent.fault == plan.name):
            if node not in opened:
                try:
                    fabric.run(node, ["rm", "-rf", "--", f"{fabric.state_dir(node)}/{plan.name}"])
                except GenieError as error:
                    say(f"{node} keeps {fabric.state_dir(node)}/{plan.name}: {error.message}")


def _facts(config: ExperimentConfig, network: Topology, fabric: Fabric) -> RunFacts:
    return RunFacts(
        packets=getattr(config.fabric, "packets", "bulk"),
        congestion_control=getattr(config.transport, "congestion_control", ""),
        seed=config.seed,
        mtu=int(str(network.parameters.get("mtu", 1500))),
        addresses={node.name: fabric.address(node.name) for node in network.hosts},
        platforms={node.name: fabric.platforms(node.name) for node in network.nodes},
    )


def _apply(session: FaultSession, fabric: Fabric, say: Say) -> None:
    """Apply; windows in time begin now."""
    session.apply()
    timed = [plan for plan in session.plans if plan.config.window.kind != "whole"]
    if not timed:
        return
    offsets_ns, error_ns = _clock_offsets(fabric, timed)
    session.start(time.monotonic_ns(), offsets_ns)
    say(f"windows count from now; between hosts their edges are apart by up to {format_ns(2 * error_ns)}")


def _clock_offsets(fabric: Fabric, plans: Sequence[FaultPlan]) -> tuple[dict[str, int], int]:
    """CLOCK_MONOTONIC of each node minus ours, and how far off that may be: half of the longest question."""
    offsets: dict[str, int] = {}
    error_ns = 0
    for plan in plans:
        for node in plan.nodes:
            folder = f"{fabric.state_dir(node)}/{plan.name}"
            before_ns = time.monotonic_ns()
            done = fabric.run(node, warden.request_argv(folder, "status", program=fabric.tool("genie-warden")))
            after_ns = time.monotonic_ns()
            if done.returncode != 0:
                raise RunAborted(f"the warden of {plan.name} on {node} does not answer: {_line(done.stderr)}")
            offsets[node] = warden.parse_status(done.stdout).mono_ns - (before_ns + after_ns) // 2
            error_ns = max(error_ns, (after_ns - before_ns) // 2)
    return offsets, error_ns


def _new_folder(out: Path) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    name = f"faults-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    for number in range(100):
        folder = out / (f"{name}-{number}" if number else name)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise ConfigError(f"{out} holds a hundred folders named {name}", key="out")


# -- status and revert --------------------------------------------------------------------------------------------


def operations(root: Path) -> list[Path]:
    """Folders of `apply` at or below ``root``, oldest first. Raises ConfigError where ``root`` is no folder."""
    if not root.is_dir():
        raise ConfigError(f"there is no folder '{root}'", hint="give the one that genie faults apply printed")
    return sorted({path.parent for path in root.rglob(FILE_NAME)})


def status(root: Path, say: Say) -> bool:
    """Ask every node that has a fault open. False where one needs somebody: it failed, or nobody there will undo it."""
    folders = operations(root)
    if not folders:
        say(f"no faults were applied from {root}")
    fine = True
    for folder in folders:
        entries = read_journal(folder / JOURNAL).entries
        opened = [entry for entry in entries if entry.state != "closed"]
        if not opened:
            hows = ", ".join(dict.fromkeys(entry.how for entry in entries if entry.how))
            say(f"{folder}: nothing is open{f' ({hows})' if hows else ''}")
            continue
        operation = read_operation(folder)
        say(f"{folder}: {', '.join(dict.fromkeys(e.intent.fault for e in opened))}, applied {_since(operation)}")
        with reach(operation) as hosts:
            for fault, node in dict.fromkeys((e.intent.fault, e.intent.node) for e in opened):
                objects = [e.intent.object for e in opened if (e.intent.fault, e.intent.node) == (fault, node)]
                own, words = _state(operation, hosts, fault, node)
                fine = fine and own
                say(f"  {fault} on {node} ({', '.join(objects)}): {words}")
    return fine


def _state(operation: Operation, hosts: ReachedHosts, fault: str, node: str) -> tuple[bool, str]:
    """Whether a fault on a node is in order, and how it is, in words."""
    until = (
        f"its time limit passes by {_clock(operation.ends_real_ns)}" if operation.ends_real_ns else "not all applied"
    )
    if not hosts.has_shell(node):
        return True, f"not asked: only Ansible reaches it, and its commands carry their own time limit; {until}"
    argv = warden.request_argv(f"{hosts.state_dir(node)}/{fault}", "status", program=hosts.tool("genie-warden"))
    try:
        done = hosts.run(node, argv)
        if done.returncode != 0:
            raise RunAborted(f"no warden answers: {_line(done.stderr or done.stdout)}")
        found = warden.parse_status(done.stdout)
    except RunAborted as error:
        return False, f"{error.message}; {until}"
    return words_of(found)


def words_of(found: warden.Status) -> tuple[bool, str]:
    """A warden's answer in words, and whether nobody needs to do anything about it. Pure."""
    said = []
    if found.fired:
        done = "could not put it back" if found.may_be_applied else "put it back"
        said.append(f"its time limit passed, and the warden {done}; genie faults revert reads it back")
    elif found.alive:
        words = {"open": "in effect", "armed": "armed, not in effect", "closed": "armed, not in effect"}
        left_ns = max(0, found.ttl_end_mono_ns - found.mono_ns)
        said.append(f"{words.get(found.state, found.state)}, undone in {format_ns(left_ns)} at the latest")
    elif found.may_be_applied:
        said.append("its warden is gone and the change may be in place: genie faults revert")
    else:
        said.append(f"not in effect ({found.state})")
    ended = sum(1 for _, end in found.windows if end)
    if ended:
        said.append(f"{ended} windows ended")
    said += [text for text in found.failures if not (found.fired and text.startswith("the time limit passed"))]
    fine = not (found.may_be_applied and (found.fired or not found.alive)) and found.state != "failed"
    return fine, "; ".join(said)


def revert(root: Path, say: Say) -> bool:
    """Put back all that is open at or below ``root`` and read it back. Idempotent. False where something is left."""
    folders = operations(root)
    if not folders:
        say(f"no faults were applied from {root}")
    results = []
    for folder in folders:
        try:
            results.append(put_back(folder, _about(folder, say)))
        except GenieError as error:
            say(f"{folder}: not reverted: {error.message}")
            results.append(False)
    return all(results)


def _about(folder: Path, say: Say) -> Say:
    return lambda text: say(f"{folder}: {text}")


def put_back(folder: Path, say: Say) -> bool:
    """Put back what the journal in ``folder`` has open and read it back. False where something is left."""
    opened = read_journal(folder / JOURNAL).opened
    if not opened:
        say("nothing is open")
        return True
    operation = read_operation(folder)
    # A run of a sweep lies deeper below the folder of all runs, where the log is.
    runs = next((parent for parent in folder.parents if (parent / AUDIT_LOG).is_file()), folder.parent)
    audit = AuditLog(runs, run=str(folder))
    with reach(operation) as hosts:
        # Of a fabric a session that only reverts needs what these hosts have.
        session = FaultSession(
            operation.plans(), cast(Fabric, hosts), folder / JOURNAL, folder, ttl_ns=operation.ttl_ns
        )
        records = session.revert()
        for record in records:
            where = f"{record.fault} on {', '.join(record.nodes)}"
            before = f" ({record.message})" if record.message else ""
            say(f"{where}: {f'as it was found{before}' if record.ok else record.message}")
            how = {"how": record.message} if record.ok and record.message else {}
            result = "ok" if record.ok else record.message
            audit.write("reverted", record.fault, record.ports, result=result, **how)
        left = {entry.intent.node for entry in read_journal(folder / JOURNAL).opened}
        for problem in _tidy(hosts, opened, left):
            say(problem)
    return not left


def tidy(folder: Path, say: Say) -> None:
    """After a run that lost hosts: remove what it keeps on those where nothing is open any more, over a connection of
    its own. Where something is open, `put_back` does it.
    """
    state = read_journal(folder / JOURNAL)
    left = {entry.intent.node for entry in state.opened}
    if any(entry.intent.node not in left for entry in state.entries):
        with reach(read_operation(folder)) as hosts:
            for problem in _tidy(hosts, state.entries, left):
                say(problem)


def _tidy(hosts: ReachedHosts, opened: Sequence[Entry], left: set[str]) -> list[str]:
    """Remove our own folder from nodes on which nothing is open any more, once what died there has ended; what could
    not be removed, in words.
    """
    problems = []
    for node in dict.fromkeys(entry.intent.node for entry in opened):
        state = hosts.state_dir(node)
        if node in left or not hosts.has_shell(node) or not _OWN_FOLDER.fullmatch(state):
            continue
        try:
            done = hosts.run(node, end_argv(state), timeout_s=_TIDY_TIMEOUT_S)
            words = _line(done.stderr) if done.returncode != 0 else ""
        except RunAborted as error:
            words = error.message
        if words:
            problems.append(f"{node} keeps {state}: {words}")
    return problems


def _clock(real_ns: int) -> str:
    return f"{datetime.fromtimestamp(real_ns / 1e9, UTC):%H:%M:%S} UTC"


def _since(operation: Operation) -> str:
    ago_ns = max(0, time.time_ns() - operation.began_real_ns) // 10**9 * 10**9
    return f"{format_ns(ago_ns)} ago to hosts of {operation.inventory}"


def _line(text: str) -> str:
    return " ".join(text.split())[:500] or "it said nothing"
