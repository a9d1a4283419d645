"""The command ``genie report``: a run, three arms, a sweep or a preflight again, for people or for parsers.

`genie.cli` calls `run`. One of the ways to show it can be asked for; ``--log`` goes with each. Measures nothing,
except for a run that died before it was measured. What each option prints: docs/report.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from genie.errors import EXIT_OK, ConfigError, EnvironmentUnfit, closest

if TYPE_CHECKING:
    from genie.results.aba import AbaDir
    from genie.results.compare import Judgement
    from genie.results.rundir import RunDir
    from genie.track import Logged

USAGE = """\
usage: genie report RUN_DIR [--log] [one of these]: show a run again; --log sends it to MLflow
  --html FILE    one page with all charts, that needs nothing but itself; - is standard output
  --markdown     for a ticket
  --json         all numbers
  --nccl-table   collectives in the columns of nccl-tests
  --nccl-json    collectives as nccl-tests' JSON, a line for each kind and communicator
  --superbench   a results-summary line of SuperBench for each host"""
HINT = (
    "usage: genie report RUN_DIR [--log] [--html FILE, --markdown, --json, --nccl-table, --nccl-json or --superbench]"
)
SHOWN = ("--html", "--markdown", "--json", "--nccl-table", "--nccl-json", "--superbench")
OF_THREE = ("--html", "--markdown", "--json")
"""What a baseline/fault/baseline and a bisect can be shown as; the others are of one run."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for: the folder, one of `SHOWN` or "" for the terminal's report, the file of ``--html``."""

    path: Path
    show: str = ""
    file: str = ""
    log: bool = False


def run(arguments: Sequence[str]) -> int:
    """Show it; the exit code. Raises GenieError."""
    asked = parse(arguments)
    if (asked.path / "aba.json").is_file():
        return _aba(asked)
    if (asked.path / "preflight.json").is_file():
        return _preflight(asked)
    if (asked.path / "sweep.json").is_file():
        return _sweep(asked)
    if any((asked.path / name).is_file() for name in ("bisect.json", "bisect.jsonl")):
        return _bisect(asked)
    from genie.results.rundir import RunDir

    if not (asked.path / "manifest.json").is_file():
        if hint := _left_of_a_preflight(asked.path):
            raise ConfigError(
                f"'{asked.path}' has no preflight.json: its preflight was killed, or has not ended yet", hint=hint
            )
        raise ConfigError(f"'{asked.path}' is not a run directory: it has no manifest.json", hint=HINT)
    return _run(RunDir.open(asked.path), asked)


def _left_of_a_preflight(folder: Path) -> str:
    """Where to look in a folder whose preflight wrote no record; "" where it is none's."""
    run = folder / "run"  # `genie.preflight.record.RUN_FOLDER`
    if (run / "manifest.json").is_file():
        return f"genie report {run} shows what its run measured until then"
    if (folder / "config.yaml").is_file() and not (folder / "events").is_dir():
        return f"{folder / 'log'} has what its tools said, if they had begun"
    return ""


def parse(arguments: Sequence[str]) -> Request:
    """The words after ``genie report``. Raises ConfigError for what is none, missing, or too much."""
    paths: list[str] = []
    shows: list[str] = []
    file, log = "", False
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--log":
            log = True
        elif name == "--html":
            file = value if equals else next(words, "")
            if not file or (file.startswith("-") and file != "-"):
                raise ConfigError("--html needs the name of a file", hint="genie report RUN_DIR --html report.html")
            shows.append(name)
        elif word in SHOWN:
            shows.append(word)
        elif word.startswith("-"):
            raise ConfigError(f"there is no option {word}; {closest(word, ('--log', *SHOWN))}", hint=HINT)
        else:
            paths.append(word)
    if len(paths) != 1:
        raise ConfigError(f"expected one run directory, found {len(paths)}", hint=HINT)
    if len(set(shows)) > 1:
        raise ConfigError(f"expected one way to show it, found {' and '.join(sorted(set(shows)))}", hint=HINT)
    return Request(Path(paths[0]), shows[0] if shows else "", file, log)


def _run(rundir: RunDir, asked: Request) -> int:
    if asked.show == "--html":
        from genie.report.html import render_report

        _write(asked.file, render_report(rundir))
    elif asked.show:
        print(_exported(rundir, asked.show), end="")
    else:
        from genie.report import terminal

        print(terminal.render(rundir, color=sys.stdout.isatty()), end="")
    return _log_run(rundir) if asked.log else EXIT_OK


def _exported(rundir: RunDir, show: str) -> str:
    from genie.report import export, export_nccl, export_superbench
    from genie.report.nccl_table import nccl_table

    judgement = _judgement(rundir)
    if show == "--nccl-table":
        return nccl_table(judgement.metrics, rundir.plan)
    if show == "--nccl-json":
        return export_nccl.nccl_json(rundir, judgement)
    if show == "--superbench":
        return export_superbench.summary_lines(rundir, judgement)
    return export.run_markdown(rundir, judgement) if show == "--markdown" else export.run_json(rundir, judgement)


def _judgement(rundir: RunDir) -> Judgement:
    from genie.results.compare import load_judgement

    judgement = load_judgement(rundir)
    if judgement is None:
        raise ConfigError(f"'{rundir.path}' was never measured", hint="genie report RUN_DIR says why")
    return judgement


def _aba(asked: Request) -> int:
    """The folder of a protocol=aba: what its three arms say together."""
    if asked.show and asked.show not in OF_THREE:
        raise ConfigError(f"'{asked.path}' holds three runs", hint=f"genie report {asked.path}/b {asked.show}")
    from genie.report import aba, export
    from genie.results.aba import AbaDir

    folder = AbaDir.open(asked.path)
    if asked.show == "--html":
        from genie.report.html import render_aba_report

        _write(asked.file, render_aba_report(folder))
    elif asked.show == "--markdown":
        print(export.aba_markdown(folder), end="")
    elif asked.show == "--json":
        print(export.aba_json(folder), end="")
    else:
        print(aba.render_aba(folder, color=sys.stdout.isatty()), end="")
    return _log_aba(folder) if asked.log else EXIT_OK


def _preflight(asked: Request) -> int:
    if asked.show not in ("", "--nccl-table"):
        raise ConfigError(f"a preflight cannot be shown as {asked.show}", hint=f"genie report {asked.path}")
    from genie.preflight import command

    options = ({"--log"} if asked.log else set()) | ({asked.show} if asked.show else set())
    return command.report(asked.path, options)


def _bisect(asked: Request) -> int:
    if asked.show and asked.show not in OF_THREE:
        raise ConfigError(f"a bisect cannot be shown as {asked.show}", hint=f"genie report {asked.path}")
    from genie.bisect import command

    if asked.show == "--html":
        from genie.report.html import render_bisect_report

        start = Path.cwd() if asked.file == "-" else Path(asked.file).absolute().parent
        _write(asked.file, render_bisect_report(asked.path, start))
        if asked.log:
            print(command.log_again(asked.path).tracking["look"])
        return EXIT_OK
    return command.show(asked.path, how=asked.show, log_it=asked.log)


def _sweep(asked: Request) -> int:
    """The directory of a sweep: its page, or the table that it ended with."""
    if asked.show not in ("", "--html") or asked.log:
        what = asked.show or "--log"
        raise ConfigError(f"a sweep has no {what}", hint=f"genie report RUN_DIR {what}, of one of its runs")
    if asked.show == "--html":
        from genie.report.html import render_sweep_report

        _write(asked.file, render_sweep_report(asked.path))
        return EXIT_OK
    text = asked.path / "sweep.txt"
    if not text.is_file():
        raise ConfigError(f"'{asked.path}' has not ended yet", hint=f"genie resume {asked.path}")
    print(text.read_text(), end="")
    return EXIT_OK


def _write(file: str, text: str) -> None:
    if file == "-":
        print(text, end="")
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}", key="--html") from error
    print(f"wrote {file} ({len(text.encode()) / 1024:.0f} KiB)")


# -- MLflow -------------------------------------------------------------------------------------------------------


def _log_run(rundir: RunDir) -> int:
    from genie import track
    from genie.schema import parse_config

    config = parse_config(rundir.config)
    return _said(track.log_run(rundir, config.tracking.mlflow, out=_folder_of_runs(rundir.path, config.out)))


def _log_aba(folder: AbaDir) -> int:
    from genie import track
    from genie.schema import parse_config

    arms = list(folder.arms().values())
    if not arms:
        raise ConfigError(f"'{folder.path}' holds no run", hint=HINT)
    config = parse_config(arms[0].config)
    return _said(track.log_aba(folder, config.tracking.mlflow, out=_folder_of_runs(folder.path, config.out)))


def _said(logged: Logged) -> int:
    if logged.problem:
        raise EnvironmentUnfit(logged.problem)
    print(logged.look)
    return EXIT_OK


def _folder_of_runs(run: Path, out: str) -> Path:
    """The folder ``out`` that this run was written below, wherever the command is called from."""
    return next((parent for parent in run.parents if parent.name == Path(out).name), Path(out))
