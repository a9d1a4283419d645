"""Both ends of a talk with ``genie-warden``: the spec it is armed with, the argv of its commands, what it answers.

The warden is the dead-man's switch and the timer of one fault on one node (docs/warden.md). `genie.faults.session` and
the play run these argv on a node, over whatever carries commands there. Pure: nothing here runs a command, opens a file
or reads a clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from genie.errors import PlanError, RunAborted

PROGRAM = "genie-warden"

Argv = tuple[str, ...]
Event = Mapping[str, Any]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
_LONGEST_NS = 7 * 24 * 3600 * 1_000_000_000
_LEAST_TTL_NS = 10_000_000
_LEAST_PERIOD_NS = 10_000_000
_MOST_SPEC_BYTES = 1 << 20
_MOST_WORDS = 512
_MOST_COMMANDS = 4096


@dataclass(frozen=True, slots=True)
class Window:
    """When the warden runs do and undo. Times are from the origin that ``start`` names.

    ``whole``: never, the controller changes things itself and the warden only stands by. ``told``: at ``open`` and
    ``close``. ``timed``: once, at ``at_ns`` for ``for_ns`` (0: until it is told to revert). ``periodic``: for
    ``open_ns`` of each ``period_ns``, from ``at_ns`` for ``for_ns`` (0 likewise).
    """

    kind: Literal["whole", "timed", "periodic", "told"] = "whole"
    at_ns: int = 0
    for_ns: int = 0
    period_ns: int = 0
    open_ns: int = 0


@dataclass(frozen=True, slots=True)
class Spec:
    """What a warden is armed with. ``undo`` has to succeed when it is run twice, or run without ``do``.

    ``check`` is run in each window: after ``do``, and again shortly before the end of one of 200 ms or more; its
    output is in the log. ``later`` is run ``later_after_ns`` after ``do``, in a window that is still open then.
    ``ttl_ns`` counts from the arming.
    """

    run: str
    fault: str
    ttl_ns: int
    undo: tuple[Argv, ...]
    do: tuple[Argv, ...] = ()
    check: tuple[Argv, ...] = ()
    later: tuple[Argv, ...] = ()
    later_after_ns: int = 0
    window: Window = field(default_factory=Window)


def run_name(run_dir: Path) -> str:
    """A run's name for its wardens: that of its directory, with what `encode_spec` would refuse replaced."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", run_dir.name).lstrip(".-")[:96] or "run"


def encode_spec(spec: Spec) -> str:
    """The text that ``genie-warden arm`` reads. Raises PlanError for what it would refuse."""
    for key, name in (("run", spec.run), ("fault", spec.fault)):
        if not _NAME.fullmatch(name):
            raise PlanError(
                f"warden: {key} {name!r} is no name of at most 96 letters, digits, '.', '_', '-'",
                hint="it must not start with '.' or '-': it becomes part of a systemd unit's name",
            )
    _expect_ns("ttl_ns", spec.ttl_ns, _LEAST_TTL_NS)
    if not spec.undo:
        raise PlanError(f"warden: fault {spec.fault} has no undo")
    if spec.window.kind != "whole" and not spec.do:
        raise PlanError(f"warden: fault {spec.fault} has a {spec.window.kind} window but nothing to do in it")
    records: list[Iterable[str]] = [("run", spec.run), ("fault", spec.fault), ("ttl_ns", str(spec.ttl_ns))]
    for key, commands in (("do", spec.do), ("later", spec.later), ("undo", spec.undo), ("check", spec.check)):
        if len(commands) > _MOST_COMMANDS:
            raise PlanError(f"warden: {len(commands)} commands in {key}, at most {_MOST_COMMANDS} are taken")
        records += [(key, *_checked(key, argv)) for argv in commands]
    if spec.later:
        records.append(("later_after_ns", str(max(1, spec.later_after_ns))))
    records.append(("window", *_window_words(spec.window)))  # last: it says that nothing was cut off
    text = "".join("\t".join(map(_escape, record)) + "\n" for record in records)
    if len(text.encode()) > _MOST_SPEC_BYTES:
        raise PlanError(f"warden: the spec of fault {spec.fault} has more than {_MOST_SPEC_BYTES} bytes")
    return text


def _expect_ns(name: str, value: int, least: int) -> None:
    if not least <= value <= _LONGEST_NS:
        raise PlanError(f"warden: {name} must lie between {least} and {_LONGEST_NS} ns, found {value}")


def _checked(key: str, argv: Argv) -> Argv:
    if not argv or not argv[0]:
        raise PlanError(f"warden: a command of {key} has no program: {list(argv)}")
    if len(argv) > _MOST_WORDS:
        raise PlanError(f"warden: a command of {key} has {len(argv)} words, at most {_MOST_WORDS} are taken")
    for word in argv:
        if "\0" in word or any("\ud800" <= character <= "\udfff" for character in word):
            raise PlanError(f"warden: a word of {key} holds a NUL or half a character: {word!r}")
    return argv


def _window_words(window: Window) -> tuple[str, ...]:
    if window.kind in ("whole", "told"):
        return (window.kind,)
    _expect_ns("at_ns", window.at_ns, 0)
    _expect_ns("for_ns", window.for_ns, 0)
    if window.kind == "timed":
        return "timed", str(window.at_ns), str(window.for_ns)
    _expect_ns("period_ns", window.period_ns, _LEAST_PERIOD_NS)
    _expect_ns("open_ns", window.open_ns, 1)
    if window.open_ns >= window.period_ns:
        raise PlanError(f"warden: open for {window.open_ns} ns of a period of {window.period_ns} ns: must be less")
    return "periodic", str(window.at_ns), str(window.period_ns), str(window.open_ns), str(window.for_ns)


def _escape(word: str) -> str:
    return word.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


def arm_argv(folder: str, lock: str = "", *, program: str = PROGRAM) -> list[str]:
    """Arm a warden in ``folder`` (made if missing); the spec is its standard input. `parse_armed` reads its answer.

    ``lock`` is the host's lock file, "" for none.
    """
    return [program, "arm", "--dir", folder, *(["--lock", lock] if lock else [])]


def start_argv(folder: str, at_mono_ns: int, *, program: str = PROGRAM) -> list[str]:
    """Name the origin of timed and periodic windows, CLOCK_MONOTONIC of that host; it may lie in the past."""
    return [program, "start", "--dir", folder, "--at-mono-ns", str(at_mono_ns)]


Request = Literal["open", "close", "mark-applied", "disarm", "revert", "status"]


def request_argv(folder: str, request: Request, *, program: str = PROGRAM) -> list[str]:
    """Any other request. ``disarm``, ``revert`` and ``status`` answer with the log, after the warden's end too."""
    return [program, request, "--dir", folder]


@dataclass(frozen=True, slots=True)
class Armed:
    """The answer of ``arm``. ``backup`` is the systemd unit that stands by as well, "" where there is none.

    ``backup_error`` says why a host that runs systemd has none.
    """

    pid: int
    guardian_pid: int
    mono_ns: int
    real_ns: int
    ttl_end_mono_ns: int
    backup: str = ""
    backup_error: str = ""


def parse_armed(text: str) -> Armed:
    """Read the answer of ``arm``. Raises RunAborted if it is none."""
    answer = _json_object(text)
    try:
        return Armed(
            pid=int(answer["pid"]),
            guardian_pid=int(answer["guardian_pid"]),
            mono_ns=int(answer["mono_ns"]),
            real_ns=int(answer["real_ns"]),
            ttl_end_mono_ns=int(answer["ttl_end_mono_ns"]),
            backup=str(answer["backup"]),
            backup_error=str(answer["backup_error"]),
        )
    except (KeyError, TypeError, ValueError):
        raise _no_answer(text) from None


@dataclass(frozen=True, slots=True)
class Opening:
    """One window as it truly was, CLOCK_MONOTONIC ns. 0 stands for "not planned" or "not yet"."""

    index: int
    planned_start_ns: int
    began_ns: int
    """The first command of do was started."""
    in_effect_ns: int
    """The last command of do had ended."""
    planned_end_ns: int = 0
    undo_began_ns: int = 0
    ended_ns: int = 0
    """The last command of undo had ended."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a warden says of itself, or what its log says after its end.

    ``state``: armed, changing, opening, open, undoing, closed, failed; ended: disarmed, reverted, fired, abandoned.
    ``windows`` are (start, end) in CLOCK_MONOTONIC ns, from the start of do to the end of undo: outside of them the
    warden had changed nothing; end 0 is a window still open. ``failures`` are sentences about all that went wrong.
    ``has_log`` is false for answers that come without one (``open``, ``close``, ``start``, ``mark-applied``).
    """

    state: str
    events: tuple[Event, ...] = ()
    openings: tuple[Opening, ...] = ()
    windows: tuple[tuple[int, int], ...] = ()
    checks: tuple[str, ...] = ()
    checked: tuple[int, ...] = ()
    """The number of the window in which each of ``checks`` was made."""
    fired: bool = False
    failures: tuple[str, ...] = ()
    ok: bool = True
    error: str = ""
    alive: bool = False
    may_be_applied: bool = False
    mono_ns: int = 0
    real_ns: int = 0
    ttl_end_mono_ns: int = 0
    has_log: bool = True


def parse_status(text: str) -> Status:
    """Read the answer to any request but ``arm``. Raises RunAborted if it is none."""
    answer = _json_object(text)
    try:
        events = tuple(dict(event) for event in answer.get("log", ()))
        failures = _failures(events)
        if answer["log_error"]:
            failures += (f"the warden's log lacks events: {answer['log_error']}",)
        openings = _openings(events)
        return Status(
            state=str(answer["state"]),
            events=events,
            openings=openings,
            windows=tuple((opening.began_ns, opening.ended_ns) for opening in openings),
            checks=tuple(str(event["stdout"]) for event in events if event["event"] == "checked"),
            checked=tuple(int(event["i"]) for event in events if event["event"] == "checked"),
            fired=any(event["event"] == "fired" for event in events),
            failures=failures,
            ok=bool(answer["ok"]),
            error=str(answer["error"]),
            alive=bool(answer["alive"]),
            may_be_applied=bool(answer["may_be_applied"]),
            mono_ns=int(answer["mono_ns"]),
            real_ns=int(answer["real_ns"]),
            ttl_end_mono_ns=int(answer["ttl_end_mono_ns"]),
            has_log="log" in answer,
        )
    except (KeyError, TypeError, ValueError):
        raise _no_answer(text) from None


_ENDED_BY = {
    "ttl": "when its time limit had passed",
    "guardian": "when its worker had been killed",
    "SIGTERM": "when it was told to end by SIGTERM",
    "SIGINT": "when it was told to end by SIGINT",
}


def end_in_words(found: Status, node: str) -> str:
    """Who put a node back before anybody asked for it, and when; "" where nobody did. Pure."""
    ends = [event for event in found.events if event["event"] == "reverted"]
    if not ends:
        return ""
    last, by = ends[-1], str(ends[-1].get("by", ""))
    at = f"{datetime.fromtimestamp(int(last['real_ns']) / 1e9, UTC):%H:%M:%S} UTC"
    if by == "revert without a warden":
        return f"the warden of {node} was dead; its undo was run in its stead at {at}" if last.get("ran") else ""
    if by not in _ENDED_BY:
        return ""
    did = "reverted it" if last.get("ran") else "ended with nothing in place"
    return f"the warden of {node} {did} at {at}, {_ENDED_BY[by]}"


def _json_object(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        raise _no_answer(text) from None
    if not isinstance(answer, dict):
        raise _no_answer(text)
    return answer


def _no_answer(text: str) -> RunAborted:
    return RunAborted(
        f"expected one JSON line from {PROGRAM}, found {text[:200]!r}",
        hint="the warden may be of another version, or the connection broke; its time limit reverts the change",
    )


def _openings(events: Iterable[Event]) -> tuple[Opening, ...]:
    opened: dict[int, Event] = {}
    closed: dict[int, Event] = {}
    for event in events:
        if event["event"] == "opened":
            opened[event["i"]] = event
        elif event["event"] == "closed":
            closed[event["i"]] = event
    return tuple(
        Opening(
            index=index,
            planned_start_ns=event["planned_mono_ns"],
            began_ns=event["began_mono_ns"],
            in_effect_ns=event["done_mono_ns"],
            planned_end_ns=closed[index]["planned_mono_ns"] if index in closed else 0,
            undo_began_ns=closed[index]["began_mono_ns"] if index in closed else 0,
            ended_ns=closed[index]["done_mono_ns"] if index in closed else 0,
        )
        for index, event in opened.items()
    )


def _failures(events: Iterable[Event]) -> tuple[str, ...]:
    told = []
    for event in events:
        match event["event"]:
            case "failed":
                told.append(f"{event['phase']} {' '.join(event['argv'])}: {event['reason']}")
            case "missed":
                first, count = event["i"], event["windows"]
                told.append(f"{count} windows from number {first} on were over before they could be opened")
            case "fired":
                done = "reverted the change" if event["may_be_applied"] else "found nothing changed"
                told.append(f"the time limit passed, the warden {done}")
            case "guardian":
                told.append(f"the warden's worker {event['killed_pid']} was killed (signal {event['signal']})")
            case "abandoned":
                told.append(f"the undo failed until the warden gave up: {event['error']}")
            case "backup_left":
                told.append(f"the warden's systemd timer was left behind: {event['error']}")
    return tuple(told)
