"""The report as one HTML file that needs nothing but itself: for mail, for a phone, for print (docs/report.md).

    run, aba    what is in the report of a run, of a baseline/fault/baseline
    material    what it is made of: the run directory, read once
    series, messages, ports, critical   the charts
    figure      a chart: two widths, the table behind it; the SVG writer, which escapes
    scale       values to pixels, round ticks
    palette     colours of both schemes
    page        sections into the template

`genie.experiment` calls `write_report` at the end of a run, ``genie report RUN --html FILE`` at any later time. Made
from run directories alone; measures nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from genie.errors import GenieError
from genie.report.html.aba import aba_page
from genie.report.html.figure import alone
from genie.report.html.page import figures, render
from genie.report.html.run import run_page
from genie.results.aba import AbaDir
from genie.results.rundir import RunDir

FILE_NAME = "report.html"


def render_report(run: RunDir) -> str:
    """The report of a run as HTML. Raises GenieError for a run that still goes on, or ended before it had a plan."""
    return render(run_page(run))


def render_aba_report(folder: AbaDir) -> str:
    """The report of a baseline/fault/baseline as HTML. Raises as `render_report`."""
    return render(aba_page(folder))


def charts(run: RunDir | AbaDir) -> dict[str, str]:
    """Every chart of the page as an SVG file of its own, by the name that it has in the page. Raises GenieError."""
    page = run_page(run) if isinstance(run, RunDir) else aba_page(run)
    return {figure.key: alone(figure) for figure in figures(page)}


def write_report(run: RunDir | AbaDir) -> Path:
    """``report.html`` in the directory. Raises as `render_report`; OSError where it cannot be written."""
    text = render_report(run) if isinstance(run, RunDir) else render_aba_report(run)
    target = run.path / FILE_NAME
    beside = target.with_name(f".{FILE_NAME}.{os.getpid()}.tmp")
    beside.write_text(text, encoding="utf-8")
    beside.replace(target)
    return target


def write_or_say(run: RunDir | AbaDir) -> str:
    """`write_report` at the end of a run; "" or a sentence why there is none.

    The page is the last thing of a run and made from what is on the disk already: nothing that goes wrong with it, a
    defect of its own included, may hide the result or end the run as failed.
    """
    try:
        write_report(run)
    except Exception as error:
        what = str(error) if isinstance(error, (GenieError, OSError)) else f"{type(error).__name__}: {error}"
        return f"no {FILE_NAME}: {what}; once that is mended: genie report {run.path} --html {FILE_NAME}"
    return ""
