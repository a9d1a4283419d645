"""Every error that a user can meet, in one tree.

    GenieError                     exit code 4 unless said otherwise
    ├── ConfigError         (2)    a key, choice, type or value of the configuration
    ├── TraceError          (2)    a trace that cannot be replayed faithfully: file, node, reason
    ├── PlanError           (2)    pieces that are valid alone but not together
    │   ├── FaultRefused    (2)    a fault that the safety limits forbid
    │   └── AlgorithmError  (2)    a collective algorithm that does not do what its kind promises
    ├── EnvironmentUnfit    (3)    this machine or kernel cannot do what was asked
    ├── RunAborted          (4)    the run began and could not be finished
    │   └── RankFailed      (4)    one rank names the operator and the peer it failed on
    └── RunInvalid          (4)    the run finished, but its numbers are not what they say

A message says what was expected, what was found, where, and what to do. The command line prints it
without a traceback and ends with the class's ``exit_code``. Standard library only: imported by all.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

EXIT_OK = 0
EXIT_VERDICT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_UNFIT = 3
EXIT_INVALID = 4
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141
"""A run whose output nobody reads any more ends, as by SIGPIPE."""


class GenieError(Exception):
    """Base of all. ``hint`` is what to do about it, printed on a line of its own."""

    exit_code: ClassVar[int] = EXIT_INVALID

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class ConfigError(GenieError):
    """A key, choice, type or value of the configuration. ``key`` is the dotted path, if one is known."""

    exit_code = EXIT_BAD_INPUT

    def __init__(self, message: str, *, key: str = "", hint: str = "") -> None:
        super().__init__(f"{key}: {message}" if key else message, hint=hint)
        self.key = key


class TraceError(GenieError):
    """A trace that cannot be replayed faithfully.

    ``file`` and ``node`` say where; ``node`` is ``"id 'name'"`` or empty where the file as a whole is at fault.
    """

    exit_code = EXIT_BAD_INPUT

    def __init__(self, message: str, *, file: str = "", node: str = "", hint: str = "") -> None:
        where = ": ".join(part for part in (file, f"node {node}" if node else "") if part)
        super().__init__(f"{where}: {message}" if where else message, hint=hint)
        self.file = file
        self.node = node


class PlanError(GenieError):
    """Pieces that are each valid but do not fit together (more ranks than hosts, a fault without a target)."""

    exit_code = EXIT_BAD_INPUT


class FaultRefused(PlanError):
    """A fault that is understood and possible, and that the safety limits forbid (docs/safety.md)."""


class AlgorithmError(PlanError):
    """A collective algorithm that would deadlock or give a wrong result.

    ``rank`` (of the communicator) and ``step`` are the witness; -1 where none stands out.
    """

    def __init__(self, message: str, *, rank: int = -1, step: int = -1, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.rank = rank
        self.step = step


class EnvironmentUnfit(GenieError):
    """This machine or kernel cannot do what was asked; says what is missing and the way out."""

    exit_code = EXIT_UNFIT


class RunAborted(GenieError):
    """The run began and could not be finished; what was measured is in the run directory."""


class RankFailed(RunAborted):
    """One rank failed by name. ``rank`` is the world rank that reported it."""

    def __init__(self, message: str, *, rank: int, hint: str = "") -> None:
        super().__init__(f"rank {rank}: {message}", hint=hint)
        self.rank = rank


class RunInvalid(GenieError):
    """The run finished, but its numbers are not what they claim (fault not in effect, emulator saturated)."""


def closest(word: str, choices: Iterable[str]) -> str:
    """The sentence part ``", did you mean 'x'?"``, or the list of choices if none is near; "" without choices."""
    names = sorted(choices)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.55)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"choose one of: {', '.join(names)}" if names else ""
