"""The command ``genie``: argv to a sub-command, an answer to an exit code.

``run`` is the default and may be left out. This module decides nothing about experiments: it sorts arguments,
imports what a sub-command needs (``--help`` stays fast), prints, and turns every error into one sentence and the
exit code of its class; with GENIE_DEBUG=1 errors keep their traceback.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genie.bisect.config import USAGE as BISECT_USAGE
from genie.errors import (
    EXIT_INTERRUPTED,
    EXIT_INVALID,
    EXIT_OK,
    EXIT_UNFIT,
    EXIT_UNREAD,
    ConfigError,
    GenieError,
    closest,
)
from genie.report.command import USAGE as REPORT_USAGE
from genie.why.command import USAGE as WHY_USAGE

if TYPE_CHECKING:
    from genie.argv import CommandLine
    from genie.schema import ExperimentConfig


def entry() -> None:
    """The console script."""
    _end_like_ctrl_c(signal.SIGTERM, signal.SIGHUP)
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except KeyboardInterrupt:
        print("genie: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _nobody_reads(arguments)
    except SystemExit as ended:
        # How rich's Console ends a program that nobody reads; its 1 would say that a verdict failed.
        if isinstance(ended.__context__, BrokenPipeError):
            return _nobody_reads(arguments)
        raise
    except GenieError as error:
        if os.environ.get("GENIE_DEBUG") == "1":
            raise
        print(f"genie: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if error.errno not in _OF_THE_DISK or os.environ.get("GENIE_DEBUG") == "1":
            return _defect()
        where = error.filename or "a file could not be written"
        print(
            f"genie: {where}: {error.strerror}\n  make room or give permission there, or choose another place",
            file=sys.stderr,
        )
        return EXIT_UNFIT
    except Exception:
        return _defect()


_OF_THE_DISK = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG,
)  # fmt: skip
"""What a place can refuse without anything being wrong with GENIE. Nobody nearer to it could say more."""


def _nobody_reads(arguments: Sequence[str]) -> int:
    """What showed something has done what it could; a run was cut short, as by SIGPIPE."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    shows = any(word in _SHOWING for word in arguments[:1]) or any(word.startswith("--") for word in arguments)
    return EXIT_OK if shows else EXIT_UNREAD


_SHOWING = ("report", "why", "doctor", "trace", "help", "version")


def _defect() -> int:
    """Say that GENIE is wrong, with where. Called while the exception is handled."""
    # Python would exit with 1, which says that a verdict was not as expected.
    traceback.print_exc()
    print(
        "genie: this is a defect of genie, not of your input; please report it with the lines above",
        file=sys.stderr,
    )
    return EXIT_INVALID


def _end_like_ctrl_c(*signals: signal.Signals) -> None:
    """So that faults are taken back and the run directory says what happened, whoever ends the run."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        for number in signals:
            # nohup and the like ignore a signal on purpose.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, interrupt)


def _dispatch(arguments: list[str]) -> int:
    word = arguments[0] if arguments else ""
    if word in COMMANDS:
        return COMMANDS[word](arguments[1:])
    if word and word[0].isalpha() and "=" not in word and "." not in word and "/" not in word:
        from genie.argv import KNOWN_KEYS

        if word in KNOWN_KEYS:
            raise ConfigError(f"'{word}' needs a value: write {word}=VALUE", hint="see genie --help")
        raise ConfigError(f"there is no command '{word}'; {closest(word, COMMANDS)}", hint="see genie --help")
    return _run(arguments)


def _run(arguments: list[str]) -> int:
    if any(a in {"-h", "--help"} for a in arguments):
        return _help()
    if "--version" in arguments:
        return _version([])
    from genie.argv import parse

    line = parse(arguments)
    if line.show:
        from genie.compose import show

        show(line)
        return EXIT_OK
    if line.multirun:
        from genie.sweep import story

        return story.run(line, arguments)
    return _run_one(line, arguments)


def _run_one(line: CommandLine, arguments: Sequence[str]) -> int:
    from genie.compose import compose
    from genie.schema import parse_config, reproduce_line

    if own := next((o for o in line.overrides if o.key.split(".")[0] == "sweep"), None):
        raise ConfigError("is about a sweep, and this is a single run", key=own.key, hint="put -m before it")
    (composed,) = compose(line)
    config = parse_config(composed.mapping, composed.choices)
    print(announce(config), flush=True)
    from genie import experiment  # after the checks: a mistake is answered before this is loaded

    plan = experiment.plan(config)
    if config.dry_run:
        print(plan.render())
        return EXIT_OK
    return int(experiment.run(plan, reproduce=reproduce_line(arguments)).exit_code)


def announce(config: ExperimentConfig) -> str:
    """The line that says what is run, and what of it is a default."""
    parts = [f"{g}={c.name}{' (default)' if c.is_default else ''}" for g, c in config.choices.items()]
    return f"genie: {'  '.join(parts)}  fault=[{','.join(config.fault)}]"


def _help(arguments: Sequence[str] = ()) -> int:
    from genie.help import help_text

    print(help_text())
    return EXIT_OK


def _version(arguments: Sequence[str]) -> int:
    import genie

    _no_more(arguments, "version")
    print(f"genie {genie.__version__}")
    return EXIT_OK


def _doctor(arguments: list[str]) -> int:
    if _wants_help(arguments, "doctor"):
        return EXIT_OK
    _no_more(arguments, "doctor")
    from genie import doctor

    print(doctor.render(doctor.examine()))
    return EXIT_OK


def _trace(arguments: list[str]) -> int:
    if _wants_help(arguments, "trace"):
        return EXIT_OK
    if len(arguments) < 2 or arguments[0] not in {"info", "check"}:
        word = arguments[0] if arguments else ""
        problem = (
            f"there is no 'trace {word}'; {closest(word, ['info', 'check'])}"
            if word not in {"", "info", "check"}
            else "a path is missing"
        )
        raise ConfigError(problem, hint=USAGE["trace"])
    from genie.argv import parse, quoted
    from genie.compose import compose
    from genie.schema import parse_config
    from genie.workload import describe

    verb, path, *rest = arguments
    line = parse(["workload=chakra", f"workload.path={quoted(path)}", *rest])
    (composed,) = compose(line)
    print(describe(parse_config(composed.mapping, composed.choices).workload, detail=verb == "info"))
    return EXIT_OK


def _report(arguments: list[str]) -> int:
    if _wants_help(arguments, "report"):
        return EXIT_OK
    from genie.report import command

    return command.run(arguments)


def _why(arguments: list[str]) -> int:
    if _wants_help(arguments, "why"):
        return EXIT_OK
    from genie.why import command

    print(command.run(arguments), end="")
    return EXIT_OK


def _revert(arguments: list[str]) -> int:
    if _wants_help(arguments, "revert"):
        return EXIT_OK
    if len(arguments) > 1 or any(a.startswith("-") for a in arguments):
        raise ConfigError(f"expected at most one folder, found '{' '.join(arguments)}'", hint=USAGE["revert"])
    from genie.faults.revert import revert_runs

    folder = Path(arguments[0] if arguments else "runs")
    if not folder.is_dir():
        raise ConfigError(f"there is no folder '{folder}'", hint=USAGE["revert"])
    outcomes = revert_runs(folder)
    for outcome in outcomes:
        print(f"{outcome.journal.parent}: {outcome.message}")
    if not outcomes:
        print(f"no run below {folder} injected a fault")
    return EXIT_OK if all(outcome.ok for outcome in outcomes) else EXIT_INVALID


def _resume(arguments: list[str]) -> int:
    if _wants_help(arguments, "resume"):
        return EXIT_OK
    if not arguments:
        raise ConfigError("the directory of a sweep is missing", hint=USAGE["resume"])
    from genie.sweep import story

    return story.resume(Path(arguments[0]), arguments[1:])


def _preflight(arguments: list[str]) -> int:
    if _wants_help(arguments, "preflight"):
        return EXIT_OK
    from genie.preflight import command

    return command.run(arguments)


def _bisect(arguments: list[str]) -> int:
    if _wants_help(arguments, "bisect"):
        return EXIT_OK
    from genie.bisect import command

    return command.run(arguments)


def _faults(arguments: list[str]) -> int:
    from genie.faults import command

    return command.run(arguments, lambda text: print(text, flush=True))


def _no_more(arguments: Sequence[str], command: str) -> None:
    if arguments:
        raise ConfigError(f"'genie {command}' takes no arguments, found '{arguments[0]}'", hint=USAGE[command])


def _wants_help(arguments: Sequence[str], command: str) -> bool:
    if any(a in {"-h", "--help"} for a in arguments):
        print(USAGE[command])
        return True
    return False


USAGE: Mapping[str, str] = {
    "run": "usage: genie [run] [-m] [key=value ...]",
    "doctor": "usage: genie doctor: what this machine can do, and what to do about each no",
    "preflight": (
        "usage: genie preflight [key=value ...]: how fast is each pair of hosts, and which is out of line?\n"
        "  keys: fabric, topology, transport and what else a run takes, and preflight.KEY (docs/preflight.md)"
    ),
    "bisect": BISECT_USAGE,
    "trace": "usage: genie trace info|check PATH [key=value ...]: what a Chakra trace holds, if it can be replayed",
    "report": REPORT_USAGE,
    "why": WHY_USAGE,
    "resume": "usage: genie resume SWEEP_DIR [yes=true]: run what a sweep that was cut short still lacks",
    "revert": "usage: genie revert [DIR]: undo what killed runs below DIR (default runs) left behind",
    "version": "usage: genie version",
}

COMMANDS: Mapping[str, Callable[[list[str]], int]] = {
    "run": _run,
    "doctor": _doctor,
    "preflight": _preflight,
    "bisect": _bisect,
    "trace": _trace,
    "report": _report,
    "why": _why,
    "resume": _resume,
    "revert": _revert,
    "faults": _faults,
    "version": _version,
    "help": _help,
}
