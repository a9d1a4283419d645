"""The report as one HTML file that needs nothing but itself: for mail, for a phone, for print (docs/report.md).

    run, aba, sweep, bisect   what is in the report of each
    material    what it is made of: the run directory, read once
    series, messages, ports, critical, belief, netmap   the charts
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

from genie.bisect.replay import is_search
from genie.errors import GenieError
from genie.report.html.aba import aba_page
from genie.report.html.bisect import bisect_page
from genie.report.html.figure import alone
from genie.report.html.page import Page, figures, render
from genie.report.html.run import run_page
from genie.report.html.sweep import sweep_page
from genie.results.aba import AbaDir
from genie.results.rundir import RunDir

FILE_NAME = "report.html"


def render_report(run: RunDir) -> str:
    """The report of a run as HTML. Raises GenieError for a run that still goes on, or ended before it had a plan."""
    return render(run_page(run))


def render_aba_report(folder: AbaDir) -> str:
    """The report of a baseline/fault/baseline as HTML. Raises as `render_report`."""
    return render(aba_page(folder))


def render_sweep_report(folder: Path) -> str:
    """The report of a sweep's directory as HTML. Raises GenieError where nothing of it finished."""
    return render(sweep_page(folder))


def render_bisect_report(folder: Path, start: Path | None = None) -> str:
    """The report of a bisect's folder as HTML, ended or not. ``start`` is where the page is going to be, for its links
    to the probes; None: in the folder. Raises GenieError where there is nothing to say yet.
    """
    return render(bisect_page(folder, start))


def charts(of: RunDir | AbaDir | Path) -> dict[str, str]:
    """Every chart of the page as an SVG file of its own, by the name that it has in the page. Raises GenieError."""
    return {figure.key: alone(figure) for figure in figures(_page(of))}


def _page(of: RunDir | AbaDir | Path) -> Page:
    if isinstance(of, RunDir):
        return run_page(of)
    if isinstance(of, AbaDir):
        return aba_page(of)
    return bisect_page(of) if is_search(of) else sweep_page(of)


def write_report(of: RunDir | AbaDir | Path) -> Path:
    """``report.html`` in the directory of a run, of three arms, of a sweep or a bisect (its path). Raises as those
    above; OSError where it cannot be written.
    """
    folder, text = of if isinstance(of, Path) else of.path, render(_page(of))
    target = folder / FILE_NAME
    beside = target.with_name(f".{FILE_NAME}.{os.getpid()}.tmp")
    beside.write_text(text, encoding="utf-8")
    beside.replace(target)
    return target


def write_or_say(of: RunDir | AbaDir | Path) -> str:
    """`write_report` at the end of a run; "" or a sentence why there is none.

    The page is the last thing of a run and made from what is on the disk already: nothing that goes wrong with it, a
    defect of its own included, may hide the result or end the run as failed.
    """
    try:
        write_report(of)
    except Exception as error:
        what = str(error) if isinstance(error, (GenieError, OSError)) else f"{type(error).__name__}: {error}"
        path = of if isinstance(of, Path) else of.path
        return f"no {FILE_NAME}: {what}; once that is mended: genie report {path} --html {FILE_NAME}"
    return ""
