"""The life of one fault on one node: prepare, act, revert. Talks to the node through one function; keeps the journal.

The Ansible action ``genie_change`` (playbooks/action_plugins) calls these on the controller, a worker a host. Whatever
is run on a node is an argument list of the role, quoted into one line of shell; whatever is decided here is decided
by `genie.faults.change`. Nothing is changed on a node before its undo is on the controller's disk and its dead-man's
switch is armed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from genie.errors import RunAborted
from genie.faults import warden
from genie.faults.change import (
    Argv,
    State,
    differences,
    parse_state,
    reading_line,
    render_argv,
    render_reads,
    render_steps,
    render_word,
    shell_line,
    split_reading,
    unrestored,
)
from genie.faults.journal import Entry, Intent, Journal, read_journal
from genie.faults.recipe import Platform, load_platform

Shell = Callable[[str], tuple[int, str, str]]
"""Runs a line of shell on the node: exit code, standard output, standard error."""


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_OBJECT = re.compile(_NAME.pattern + r"(/[0-9]{1,3}){0,2}")  # Ethernet1/1 on modular switches
"""Fault, node and object: words of commands, and of nft's own language in them. The plan has the same grammar."""


@dataclass(frozen=True, slots=True)
class Task:
    """One fault on one node, as the inventory of the play tells it.

    ``ports`` are what `FaultPlan.port_variables` says, one a change. ``words``: what commands may name beside their
    port. ``window``: `genie.faults.warden.Window`, "told" for the whole run. ``warden``: its path on the node, "" where
    there is none; ``state``: this run's folder there; ``lock``: the node's lock file, "" for none.
    """

    run: str
    fault: str
    role: str
    node: str
    platform: str
    ports: tuple[Mapping[str, Any], ...]
    words: Mapping[str, str]
    journal: Path
    window: warden.Window
    is_whole: bool
    ttl_ns: int
    warden: str
    state: str
    lock: str

    @classmethod
    def from_variables(cls, told: Mapping[str, Any]) -> Task:
        """From the variables of an inventory host (all ``genie_…``)."""
        return cls(
            run=str(told["genie_run"]),
            fault=str(told["genie_fault"]),
            role=str(told["genie_role"]),
            node=str(told["genie_node"]),
            platform=str(told["genie_platform"]),
            ports=tuple(json.loads(told["genie_ports_json"])),
            words={str(key): str(value) for key, value in json.loads(told["genie_words_json"]).items()},
            journal=Path(str(told["genie_journal_path"])),
            window=warden.Window(**json.loads(told["genie_window_json"])),
            is_whole=bool(told["genie_is_whole"]),
            ttl_ns=int(told["genie_ttl_ns"]),
            warden=str(told["genie_warden"] or ""),
            state=str(told["genie_state"]),
            lock=str(told["genie_lock"] or ""),  # Ansible makes None of an empty text
        )

    @property
    def how(self) -> Platform:
        """The role's platform file."""
        return load_platform(self.role, self.platform)

    @property
    def has_warden(self) -> bool:
        """Whether a dead-man's switch of ours does and undoes it."""
        return bool(self.warden) and self.how.deadman == "warden"

    @property
    def folder(self) -> str:
        """Where the warden of this fault lives on the node."""
        return f"{self.state}/{self.fault}"

    def variables(self, port: Mapping[str, Any]) -> dict[str, Any]:
        """What the templates of a change may name: parameters are the port's own keys."""
        return {"port": {**port, **port["set"]}, **self.words, "ttl_hms": limit_hms(self.ttl_ns)}


def limit_hms(ttl_ns: int) -> str:
    """A time limit as gear that keeps it itself takes it: hours, minutes, seconds, rounded up."""
    seconds = -(-ttl_ns // 1_000_000_000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def prepare(task: Task, shell: Shell) -> dict[str, Any]:
    """Read, refuse what the role does not understand, journal the undo, arm the dead-man's switch. Changes nothing.

    Raises RunAborted with the field, what was expected and what was found; OSError when the journal cannot be written.
    """
    objects = [str(port["object"]) for port in task.ports]
    for name, grammar in ((task.fault, _NAME), (task.node, _NAME), *((name, _OBJECT) for name in objects)):
        if not grammar.fullmatch(name):
            raise RunAborted(f"{name!r} cannot be a name that commands are run on")
    states = read(task, task.ports, shell)
    wrong = [
        f"{port['object']}: {field} expected {expected}, found {found}"
        for port, state in zip(task.ports, states, strict=True)
        for field, expected, found in differences(task.how.before, state, task.variables(port))
    ]
    if wrong:
        raise RunAborted(f"cannot be applied: {'; '.join(wrong)}")
    intents = []
    for port, state in zip(task.ports, states, strict=True):
        variables = {**task.variables(port), "found": state}
        intents.append(
            Intent(
                run=task.run,
                fault=task.fault,
                role=task.role,
                node=task.node,
                object=str(port["object"]),
                old=state,
                undo=render_steps(task.how.undo, variables),
                do=render_steps(task.how.do, variables),
                port=port,
                platform=task.platform,
            )
        )
    with Journal(task.journal) as journal:
        journal.intend(intents)
    if task.has_warden:
        code, _, error = shell(arming_line(task, intents))
        if code != 0:
            with Journal(task.journal) as journal:
                journal.close_entries([Entry(intent, "intended") for intent in intents], "never armed, nothing changed")
            raise RunAborted(f"the dead-man's switch could not be armed: {_words(error)}")
    return {"found": {intent.object: dict(intent.old) for intent in intents}}


def arming_line(task: Task, intents: Sequence[Intent]) -> str:
    """The shell line that arms the warden with everything it must know."""
    reads = [argv for port in task.ports for argv in render_reads(task.how, task.variables(port))]
    how, first = task.how, task.variables(task.ports[0])
    spec = warden.Spec(
        run=task.run,
        fault=task.fault,
        ttl_ns=task.ttl_ns,
        window=task.window,
        do=tuple(argv for intent in intents for argv in intent.do),
        undo=tuple(argv for intent in reversed(intents) for argv in intent.undo),
        check=(("sh", "-c", reading_line(reads)),),
        later=tuple(argv for port in task.ports for argv in render_steps(how.later, task.variables(port))),
        later_after_ns=int(render_word(how.later_after, first)) if how.later else 0,
    )
    arm = shlex.join(warden.arm_argv(task.folder, task.lock, program=task.warden))
    return f"printf %s {shlex.quote(warden.encode_spec(spec))} | {arm}"


def act(task: Task, shell: Shell) -> dict[str, Any]:
    """Make the changes of a fault that lasts the whole run, and read them back. A windowed one is the warden's.

    Raises RunAborted with the command that failed, or the field that does not show the change.
    """
    if not task.is_whole:
        return {"armed": True}
    if task.has_warden:
        opening = tuple(warden.request_argv(task.folder, "open", program=task.warden))
        states = read(task, task.ports, shell, after=opening)
    else:
        commands = [argv for entry in own_entries(task) for argv in entry.intent.do]
        code, out, error = shell(shell_line(commands))
        if code != 0:
            raise RunAborted(f"{shell_line(commands)}: {_words(error or out)}")
        states = read(task, task.ports, shell)
    wrong = in_effect(task, states)
    if wrong:
        raise RunAborted(f"was applied, but the read-back does not show it: {'; '.join(wrong)}")
    return {"state": {str(p["object"]): dict(s) for p, s in zip(task.ports, states, strict=True)}}


def in_effect(task: Task, states: Sequence[State]) -> list[str]:
    """A sentence for each field that does not show the change."""
    return [
        f"{port['object']}: {field} expected {expected}, found {found}"
        for port, state in zip(task.ports, states, strict=True)
        for field, expected, found in differences(task.how.after, state, task.variables(port))
    ]


def revert(task: Task, shell: Shell) -> dict[str, Any]:
    """Put back what the journal has open for this fault and node, and compare with what was found. Idempotent.

    Raises RunAborted naming each field that is not as it was found.
    """
    entries = own_entries(task)
    log = ""
    undo = shell_line([argv for entry in reversed(entries) for argv in entry.intent.undo])
    by_warden = False
    if task.has_warden:
        code, log, _ = shell(shlex.join(warden.request_argv(task.folder, "revert", program=task.warden)))
        by_warden = code == 0
    ports = [entry.intent.port for entry in entries]
    wrong: list[str] = []
    error = ""
    for attempt in range(2):
        if attempt or not by_warden:
            code, out, said = shell(undo)
            error = _words(said or out) if code != 0 else ""
        states = read(task, ports, shell)
        wrong = [
            f"{entry.intent.object}: {field} was {old}, is {found}"
            for entry, state in zip(entries, states, strict=True)
            for field, old, found in unrestored(entry.intent.old, state, task.how.volatile)
        ]
        if not wrong and not error:
            return {"log": log}
    raise RunAborted("; ".join([*wrong, *([f"{undo}: {error}"] if error else [])]))


def read(task: Task, ports: Sequence[Mapping[str, Any]], shell: Shell, *, after: Argv = ()) -> list[State]:
    """The state of each port's object, all with one line on the node: on many hosts the number of lines is the time.

    ``after`` is a change that the same line makes first. Raises RunAborted in its own words where it failed.
    """
    reads = task.how.read
    commands: list[Argv] = [render_argv(r.argv, task.variables(port)) for port in ports for r in reads]
    if after:
        commands.insert(0, after)
    code, out, error = shell(reading_line(commands))
    try:
        answers = split_reading(out, len(commands))
    except ValueError as problem:
        raise RunAborted(f"reading the state ended with exit code {code} and {problem}: {_words(error)}") from problem
    if after:
        changed, said = answers.pop(0)
        if changed != 0:
            raise RunAborted(f"the change could not be made: {_words(error or said)}")
    states = []
    for index, port in enumerate(ports):
        own = answers[index * len(reads) : (index + 1) * len(reads)]
        try:
            states.append(parse_state(reads, own, task.variables(port)))
        except RunAborted as problem:
            problem.message += f"; {_words(error)}" if error.strip() else ""
            raise
    return states


def own_entries(task: Task) -> list[Entry]:
    """What the journal has open for this fault and node, in the order in which it was intended."""
    try:
        now = task.journal.stat()
    except FileNotFoundError:
        return []
    opened = _opened(task.journal, now.st_ino, now.st_size, now.st_mtime_ns)
    return [entry for entry in opened if (entry.intent.fault, entry.intent.node) == (task.fault, task.node)]


@lru_cache(maxsize=1)
def _opened(journal: Path, *_: int) -> tuple[Entry, ...]:
    """Read once for the many nodes of a batch: a journal that has not grown says what it said."""
    return read_journal(journal).opened


def _words(text: str) -> str:
    return " ".join(text.split())[:2000] or "it said nothing"
