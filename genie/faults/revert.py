"""What a dead run left open in its journal, settled: the core of ``genie revert``.

The command line calls it, and a run calls it at its start. The embedded fabric ends with its runner, by the kernel's
hand; so settling means to see that the runner and the holder are gone, and to close the journal with that
statement. Real hosts are reached by what the run wrote down, and put back. Never touches a run that is still going,
and never a journal of another machine.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from genie.errors import GenieError
from genie.faults.journal import FILE_NAME, Journal, JournalState, Owner, read_journal, start_ticks

GONE_BY_ITSELF = "fabric gone by itself"
HOLDER_PROGRAM = "holder.py"
OPERATION_FILE = "operation.json"


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
    open_count = len(state.opened)
    if not open_count:
        return Outcome(path, "clean", 0, "nothing was left open")
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
        return Outcome(path, "closed", count, words)
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
