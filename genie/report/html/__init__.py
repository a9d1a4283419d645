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

from pathlib import Path

from genie.report.html.aba import aba_page
from genie.report.html.page import render
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


def write_report(run: RunDir) -> Path:
    """``report.html`` in the run directory. Raises as `render_report`; OSError where it cannot be written."""
    return run.write_bytes(FILE_NAME, render_report(run).encode())
