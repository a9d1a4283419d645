"""What a dead run left open in its journal, settled: the core of ``genie revert``.

The command line calls it for a folder, and `settle_first` is how runs and ``genie faults apply`` begin. The embedded
fabric ends with its runner, by the kernel's hand; so settling means to see that the runner and the holder are gone,
and to close the journal with that statement. Real hosts are reached by what the run wrote down, and put back. Never
touches a run that is still going, and never a journal of another machine.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from genie.errors import EnvironmentUnfit, GenieError
from genie.fabric.base import Fabric
from genie.faults.audit import AuditLog
from genie.faults.journal import FILE_NAME, Journal, JournalState, Owner, read_journal, start_ticks

GONE_BY_ITSELF = "fabric gone by itself"
HOLDER_PROGRAM = "holder.py"
OPERATION_FILE = "operation.json"
_DEPTHS = ("*", "*/*", "*/*/*")  # a run, a run of a sweep, an arm of an A/B/A in a sweep
_EMULATED = ("netns",)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one journal. ``state``: "clean" (nothing was open), "closed", "running", or "open" (left)."""

    journal: Path
    state: str
    changes: int
    message: str

    @property
    def ok(self) -> bool:
        """False only where changes may still be in place and nobody is going to undo them."""
        return self.state != "open"


def revert_runs(folder: Path) -> tuple[Outcome, ...]:
    """Settle every journal below ``folder`` (a folder of run directories, or one of them), sorted by path.

    Idempotent: what is already clean is left alone and is a success.
    """
    return tuple(settle(path) for path in sorted(folder.rglob(FILE_NAME)))


def settle(path: Path) -> Outcome:
    """Settle one journal. Raises GenieError for one that cannot be read."""
    try:
        state = read_journal(path)
    except (OSError, ValueError) as error:
        raise GenieError(f"{path}: cannot be read as a journal of faults: {error}") from error
    if state.owner is None and state.torn_lines > 1:  # one may be what a crash left of the first record
        raise GenieError(
            f"{path}: cannot be read as a journal of faults: none of its {state.torn_lines} lines is a record",
            hint="what it said is lost; if its run may have changed real hosts, look at them",
        )
    open_count = len(state.opened)
    if _died_early(state):
        with Journal(path) as journal:
            journal.end("settled")
        return Outcome(path, "closed", 0, "its runner died before it changed anything")
    if not open_count:
        damaged = f" ({state.torn_lines} damaged lines were passed over)" if state.torn_lines else ""
        return Outcome(path, "clean", 0, f"nothing was left open{damaged}")
    owner = state.owner
    if owner is None:
        return Outcome(path, "open", open_count, f"does not say whose fabric it changed; undo by hand:\n{_undo(state)}")
    if owner.host != socket.gethostname():
        return Outcome(path, "open", open_count, f"was written on host {owner.host!r}: run genie revert there")
    if is_alive(owner):
        return Outcome(path, "running", open_count, f"its run is still going (process {owner.pid}) and will revert it")
    if owner.fabric != "netns":
        return _put_back(path, state)
    holder = holder_of(owner)
    if holder:
        return Outcome(
            path,
            "open",
            open_count,
            f"its runner {owner.pid} is gone, but the fabric's holder {holder} is still ending",
        )
    with Journal(path) as journal:
        journal.close_entries(state.opened, GONE_BY_ITSELF)
    names = ", ".join(dict.fromkeys(entry.intent.fault for entry in state.opened))
    return Outcome(
        path,
        "closed",
        open_count,
        f"runner {owner.pid} died with {open_count} changes of {names} in place; its fabric ended with it",
    )


# -- before a run -------------------------------------------------------------------------------------------------


def left_open(out: Path, fabric: Fabric, nodes: Iterable[str]) -> tuple[str, ...]:
    """What `settle_first` would find on real hosts, in sentences for a plan. Changes nothing, asks nobody."""
    if fabric.name in _EMULATED:
        return ()
    return tuple(
        f"{path.parent} ended with {_what(state)} open; it is put back before this run begins"
        for path, state in _dead_on(out, fabric, nodes)
        if state.opened
    )


def settle_first(out: Path, fabric: Fabric, nodes: Iterable[str], say: Say) -> None:
    """Put back what dead runs below ``out`` left on these ``nodes``, and ``say`` what happened; before anything is
    changed.

    Raises EnvironmentUnfit that names what is open and where, if it cannot be put back or is meant to be there.
    """
    for path, state in _dead_on(out, fabric, nodes):
        ends_ns = _meant_until(path)
        if ends_ns > time.time_ns():
            until = f"{datetime.fromtimestamp(ends_ns / 1e9, UTC):%H:%M:%S} UTC"
            raise EnvironmentUnfit(
                f"{_what(state)} was put there by genie faults apply and stays until {until} ({path.parent})",
                hint=f"wait, or take it back: genie faults revert {path.parent}",
            )
        outcome = settle(path)
        if outcome.state == "open" and fabric.name not in _EMULATED:
            raise EnvironmentUnfit(
                f"{_what(read_journal(path))} may still be in place, from {path.parent}: {outcome.message}",
                hint=f"put it back first: genie revert {path.parent}",
            )
        if outcome.state == "closed" and fabric.name in _EMULATED:
            audit = AuditLog(out, run=str(path.parent))
            for fault in dict.fromkeys(entry.intent.fault for entry in state.opened):
                targets = [entry.intent.id for entry in state.opened if entry.intent.fault == fault]
                audit.write("reverted", fault, targets, how=GONE_BY_ITSELF)
        say(f"{path.parent}: {outcome.message}")


def _dead_on(out: Path, fabric: Fabric, nodes: Iterable[str]) -> Iterator[tuple[Path, JournalState]]:
    """Journals below ``out`` that have something open on the same hosts and whose process does not live, by path."""
    if fabric.name not in (*_EMULATED, "inventory") or not out.is_dir():
        return
    ours: frozenset[str] | None = None
    for path in sorted(path for depth in _DEPTHS for path in out.glob(f"{depth}/{FILE_NAME}")):
        try:
            state = read_journal(path)
        except (OSError, ValueError):
            continue  # `genie revert` names it; a run has no reason to fail at the files of another
        owner = state.owner
        if owner is None or owner.fabric != fabric.name or not (state.opened or _died_early(state)):
            continue
        if owner.host == socket.gethostname() and is_alive(owner):
            continue
        if fabric.name == "inventory":
            ours = _places(fabric, nodes) if ours is None else ours
            if not ours & _places_of(path, state):
                continue
        yield path, state


def _places(fabric: Fabric, nodes: Iterable[str]) -> frozenset[str]:
    """Where our nodes are: by address and port, since two inventories may give one name to two hosts."""
    return frozenset(_place(node, fabric.ansible_host(node)) for node in nodes if fabric.platforms(node))


def _places_of(path: Path, state: JournalState) -> frozenset[str]:
    opened = {entry.intent.node for entry in state.opened}  # none where it died before its first intent
    if not (path.parent / OPERATION_FILE).is_file():
        return frozenset(_place(node, {}) for node in opened)
    from genie.faults.operation import read_operation

    nodes = read_operation(path.parent).nodes
    return frozenset(_place(node.name, node.ansible) for node in nodes if node.name in opened or not opened)


def _place(node: str, variables: Mapping[str, str]) -> str:
    return f"{variables.get('ansible_host') or node}:{variables.get('ansible_port') or 22}"


def _meant_until(path: Path) -> int:
    """Until when, in Unix ns, an operator wants what is open to stay; 0 where it is what a process left that died."""
    if not (path.parent / OPERATION_FILE).is_file():
        return 0
    from genie.faults.operation import read_operation

    return read_operation(path.parent).ends_real_ns


def _what(state: JournalState) -> str:
    faults = dict.fromkeys(entry.intent.fault for entry in state.opened)
    nodes = list(dict.fromkeys(entry.intent.node for entry in state.opened))
    more = f" and {len(nodes) - 4} more" if len(nodes) > 4 else ""
    return f"{', '.join(faults)} on {', '.join(nodes[:4])}{more}"


# -- one journal --------------------------------------------------------------------------------------------------


def _died_early(state: JournalState) -> bool:
    """Whether its process was killed when it had changed nothing yet, and nobody has said so."""
    if state.owner is None or state.entries or state.ended or state.owner.host != socket.gethostname():
        return False
    return not is_alive(state.owner)


def _put_back(path: Path, state: JournalState) -> Outcome:
    """Changes of a fabric that outlives its run: by the record of how to reach its nodes, where there is one."""
    count, fabric = len(state.opened), state.owner.fabric if state.owner else ""
    if not (path.parent / OPERATION_FILE).is_file():
        return Outcome(path, "open", count, f"fabric {fabric!r} does not end by itself; undo by hand:\n{_undo(state)}")
    from genie.faults.operate import put_back

    said: list[str] = []
    try:
        done = put_back(path.parent, said.append)
    except GenieError as error:
        said.append(error.message)
        done = False
    words = "; ".join(said)
    if done:
        began = ""
        if state.owner is not None and not _meant_until(path):
            began = f"runner {state.owner.pid} died with {_what(state)} open; "
        return Outcome(path, "closed", count, f"{began}{words}")
    return Outcome(path, "open", count, f"{words}; undo by hand what is left:\n{_undo(read_journal(path))}")


def is_alive(owner: Owner) -> bool:
    """Whether the very process that took charge still lives: same boot, same pid, same start time."""
    now = Owner.this_process(owner.fabric)
    return owner.boot_id == now.boot_id and owner.start_ticks != 0 and start_ticks(owner.pid) == owner.start_ticks


def holder_of(owner: Owner) -> int:
    """The process id of a holder that was started for ``owner``; 0 if none is left."""
    if Owner.this_process(owner.fabric).boot_id != owner.boot_id:
        return 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            argv = (folder / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if any(Path(word).name == HOLDER_PROGRAM for word in argv[:-1]) and argv[-1] == str(owner.pid):
            return int(folder.name)
    return 0


def _undo(state: JournalState) -> str:
    return "\n".join(
        f"  on {entry.intent.node}: {' '.join(argv)}" for entry in state.opened for argv in entry.intent.undo
    )
