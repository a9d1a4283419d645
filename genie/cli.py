"""The command ``genie``: argv to a sub-command, an answer to an exit code.

``run`` is the default and may be left out. This module decides nothing about experiments: it sorts arguments,
imports what a sub-command needs (``--help`` stays fast), prints, and turns every error into one sentence and the
exit code of its class; with GENIE_DEBUG=1 errors keep their traceback.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genie.errors import EXIT_INTERRUPTED, EXIT_INVALID, EXIT_OK, ConfigError, EnvironmentUnfit, GenieError, closest
from genie.sweep import SweepResult, sweep_directory

if TYPE_CHECKING:
    from genie.argv import CommandLine
    from genie.compose import Composed
    from genie.results.aba import AbaDir
    from genie.results.rundir import RunDir
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except GenieError as error:
        if os.environ.get("GENIE_DEBUG") == "1":
            raise
        print(f"genie: {error}", file=sys.stderr)
        return error.exit_code
    except Exception:
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
    return _sweep(line) if line.multirun else _run_one(line, arguments)


def _run_one(line: CommandLine, arguments: Sequence[str]) -> int:
    from genie.compose import compose
    from genie.schema import parse_config, reproduce_line

    (composed,) = compose(line)
    config = parse_config(composed.mapping, composed.choices)
    print(announce(config), flush=True)
    from genie import experiment  # after the checks: a mistake is answered before this is loaded

    plan = experiment.plan(config)
    if config.dry_run:
        print(plan.render())
        return EXIT_OK
    return int(experiment.run(plan, reproduce=reproduce_line(arguments)).exit_code)


def _sweep(line: CommandLine) -> int:
    from genie.compose import compose, sweep
    from genie.schema import parse_config

    jobs = [parse_config(job.mapping, job.choices) for job in compose(line)]
    from genie import experiment

    directory = sweep_directory(jobs[0].out)
    results: list[SweepResult] = []

    def task(number: int, composed: Composed) -> None:
        results.append(_one_of_sweep(number, len(jobs), composed, directory))

    try:
        sweep(line, task, directory)
    finally:
        if results:
            print(experiment.finish_sweep(results, directory).text)
    return max((r.exit_code for r in results), default=EXIT_INVALID)


def _one_of_sweep(number: int, total: int, composed: Composed, directory: Path) -> SweepResult:
    """One run of a sweep. Its failure is a row of the table, not the end of the sweep."""
    from genie import experiment
    from genie.schema import parse_config, reproduce_line

    shown = [o.removeprefix("++") for o in composed.overrides if not o.startswith("hydra.")]
    label, run = "", None
    try:
        config = parse_config(composed.mapping, composed.choices)
        label = config.label
        if not config.run_dir:
            config = dataclasses.replace(config, run_dir=str(directory / f"{number}-{config.label[:80]}"))
        print(f"\n[{number + 1}/{total}] {reproduce_line(shown)}", flush=True)
        plan = experiment.plan(config)
        if config.dry_run:
            print(plan.render())
        else:
            run = experiment.run(plan, reproduce=reproduce_line(shown), parent=str(directory))
        return SweepResult(number, label, tuple(shown), run, None, EXIT_OK if run is None else int(run.exit_code))
    except GenieError as error:
        print(f"genie: {error}", file=sys.stderr)
        return SweepResult(number, label, tuple(shown), run, error, error.exit_code)
    except Exception as error:
        traceback.print_exc()
        return SweepResult(number, label, tuple(shown), run, error, EXIT_INVALID)


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
    paths = [a for a in arguments if not a.startswith("-")]
    options = {a for a in arguments if a.startswith("-")}
    if odd := sorted(options - {"--log", "--nccl-table"}):
        raise ConfigError(f"there is no option {odd[0]}", hint=USAGE["report"])
    if len(paths) != 1:
        raise ConfigError(f"expected one run directory, found {len(paths)}", hint=USAGE["report"])
    if (Path(paths[0]) / "aba.json").is_file():
        return _report_aba(Path(paths[0]), options)
    if (Path(paths[0]) / "preflight.json").is_file():
        from genie.preflight import command

        return command.report(Path(paths[0]), options)
    from genie.report import terminal
    from genie.results.rundir import RunDir

    if not (Path(paths[0]) / "manifest.json").is_file():
        raise ConfigError(f"'{paths[0]}' is not a run directory: it has no manifest.json", hint=USAGE["report"])
    rundir = RunDir.open(Path(paths[0]))
    text = terminal.render(rundir, color=sys.stdout.isatty())
    print(_nccl_table(rundir) if "--nccl-table" in options else text, end="")
    return _log(rundir) if "--log" in options else EXIT_OK


def _report_aba(path: Path, options: set[str]) -> int:
    """The folder of a protocol=aba: what its three arms say together."""
    if "--nccl-table" in options:
        raise ConfigError(f"'{path}' holds three runs", hint=f"genie report {path}/b --nccl-table")
    from genie.report.aba import render_aba
    from genie.results.aba import AbaDir

    folder = AbaDir.open(path)
    print(render_aba(folder, color=sys.stdout.isatty()), end="")
    return _log_aba(folder) if "--log" in options else EXIT_OK


def _log_aba(folder: AbaDir) -> int:
    import yaml

    from genie import track
    from genie.schema import parse_config

    arms = list(folder.arms().values())
    if not arms:
        raise ConfigError(f"'{folder.path}' holds no run", hint=USAGE["report"])
    config = parse_config(yaml.safe_load(arms[0].config_yaml))
    logged = track.log_aba(folder, config.tracking.mlflow, out=_folder_of_runs(folder.path, config.out))
    if logged.problem:
        raise EnvironmentUnfit(logged.problem)
    print(logged.look)
    return EXIT_OK


def _nccl_table(rundir: RunDir) -> str:
    """The collectives in the columns of nccl-tests, for every parser that reads those."""
    from genie.report.nccl_table import nccl_table
    from genie.results.compare import load_judgement

    judgement = load_judgement(rundir)
    if judgement is None:
        raise ConfigError(f"'{rundir.path}' was never measured", hint="genie report RUN_DIR says why")
    return nccl_table(judgement.metrics, rundir.plan)


def _log(rundir: RunDir) -> int:
    import yaml

    from genie import track
    from genie.schema import parse_config

    config = parse_config(yaml.safe_load(rundir.config_yaml))
    logged = track.log_run(rundir, config.tracking.mlflow, out=_folder_of_runs(rundir.path, config.out))
    if logged.problem:
        raise EnvironmentUnfit(logged.problem)
    print(logged.look)
    return EXIT_OK


def _folder_of_runs(run: Path, out: str) -> Path:
    """The folder ``out`` that this run was written below, wherever the command is called from."""
    return next((parent for parent in run.parents if parent.name == Path(out).name), Path(out))


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


def _preflight(arguments: list[str]) -> int:
    if _wants_help(arguments, "preflight"):
        return EXIT_OK
    from genie.preflight import command

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
    "trace": "usage: genie trace info|check PATH [key=value ...]: what a Chakra trace holds, if it can be replayed",
    "report": "usage: genie report RUN_DIR [--log]: show a run again; --log sends it to MLflow",
    "revert": "usage: genie revert [DIR]: undo what killed runs below DIR (default runs) left behind",
    "version": "usage: genie version",
}

COMMANDS: Mapping[str, Callable[[list[str]], int]] = {
    "run": _run,
    "doctor": _doctor,
    "preflight": _preflight,
    "trace": _trace,
    "report": _report,
    "revert": _revert,
    "faults": _faults,
    "version": _version,
    "help": _help,
}
