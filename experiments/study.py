"""What all studies have in common: their file, their runs through ``genie -m``, and the results they leave behind.

``experiments/run`` calls `load`, `measure` and `write`; each study's own ``study.py`` turns rows into a `Telling`. Runs
whose verdict is invalid are rows without numbers: nothing is computed from them. Never measures by itself.
"""

from __future__ import annotations

import csv
import importlib
import io
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from genie.errors import ConfigError, GenieError, RunInvalid
from genie.report.html.figure import Figure, Table, alone
from genie.results.compare import Judgement, load_judgement
from genie.results.metrics import Metrics
from genie.results.rundir import RunDir
from genie.sweep.cells import finished, read_plan

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent
KEYS = {"title", "question", "common", "lines", "smallest"}
ALWAYS = ("transport.spin=0", "report.html=false", "report.timeline=false", "tracking.mlflow.enabled=false", "yes=true")
_MEASURED = re.compile(r"UTC: [1-9]\d* of \d+ runs may be believed")
BEGIN, END = "<!-- results: written by experiments/run -->", "<!-- end of results -->"


@dataclass(frozen=True, slots=True)
class Study:
    """``study.yaml``: ``lines`` has the words of each ``genie -m`` line by name, those of ``common`` included."""

    name: str
    title: str
    question: str
    lines: Mapping[str, tuple[str, ...]]
    smallest: bool = False

    def word(self, line: str, key: str) -> str:
        """The value that a line gives a key; "" where it gives none."""
        found = [word.partition("=")[2] for word in self.lines[line] if word.partition("=")[0] == key]
        return found[-1] if found else ""

    def value(self, row: Row, key: str) -> str:
        """The value of a key in a run: of a swept key its own, else what its line gives."""
        return row.factors.get(key) or self.word(row.line, key)


@dataclass(frozen=True, slots=True)
class Row:
    """One run: which line and which values of the swept keys, and its numbers; None where they may not be believed."""

    line: str
    factors: Mapping[str, str]
    repeat: int
    verdict: str
    why: str
    judgement: Judgement | None
    cpu_busy_ratio: float | None
    run: RunDir | None = None

    @property
    def metrics(self) -> Metrics | None:
        """Those of a run that is valid and measured an iteration."""
        usable = self.judgement is not None and self.verdict != "invalid"
        return self.judgement.metrics if self.judgement and usable and self.judgement.metrics.iteration else None

    @property
    def median_ns(self) -> float | None:
        """The median iteration, model time; None where the run may not be believed."""
        return self.metrics.iteration.median.value if self.metrics and self.metrics.iteration else None


@dataclass(frozen=True, slots=True)
class Telling:
    """What a study found: the table, a figure where a run could be believed, and sentences that say what it shows."""

    table: Table
    figure: Figure | None
    said: tuple[str, ...]


Tell = Callable[[Study, Sequence[Row]], Telling]


def names() -> list[str]:
    """Every study there is."""
    return sorted(path.parent.name for path in HERE.glob("*/study.yaml"))


def load(name: str, *, smallest: bool = False) -> Study:
    """The study of a folder. Raises ConfigError where there is none, or its file has what no study has."""
    path = HERE / name / "study.yaml"
    if name not in names():
        raise ConfigError(f"no study {name!r}", hint=f"studies: {', '.join(names())}")
    found = yaml.safe_load(path.read_text())
    if set(found) != KEYS:
        raise ConfigError(f"{path} has the keys {sorted(found)}, expected {sorted(KEYS)}")
    own = tuple(map(str, found["smallest"])) if smallest else ()
    lines = {
        line: _replaced((*ALWAYS, *map(str, found["common"]), *_flat(words)), own)
        for line, words in found["lines"].items()
    }
    return Study(name, found["title"], " ".join(found["question"].split()), lines, smallest)


def _flat(words: Sequence[object]) -> tuple[str, ...]:
    """The words of a line; a list among them, which lines share by an alias of YAML, is its words."""
    return tuple(str(part) for word in words for part in (word if isinstance(word, list) else [word]))


def _replaced(words: Sequence[str], by: Sequence[str]) -> tuple[str, ...]:
    """``words`` with the value of ``by`` where they give the same key; keys that a line has not are not added."""
    values = {word.partition("=")[0]: word for word in by}
    last = {word.partition("=")[0]: word for word in words}
    return tuple(values.get(key, word) for key, word in last.items())


def teller(name: str) -> Tell:
    """The function ``tell`` of the study's own module."""
    found: Tell = importlib.import_module(f"experiments.{name}.study").tell
    return found


def measure(study: Study, out: Path, said: Callable[[str], None] = print) -> list[Row]:
    """Run every line of the study, each a sweep with a folder below ``out``; what genie says goes to a file there.

    Raises GenieError where a line was refused: its runs are not there. A run that failed is a row that says so.
    """
    rows: list[Row] = []
    for line, words in study.lines.items():
        folder = out / line
        folder.mkdir(parents=True)
        began_s = time.monotonic()
        argv = [sys.executable, "-m", "genie", "-m", *words, f"out={folder}"]
        with (folder / "genie.log").open("wb") as log:
            code = subprocess.run(argv, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        sweeps = sorted((folder / "sweeps").glob("*/sweep.json"))
        if not sweeps or code == 130:
            last = " ".join((folder / "genie.log").read_text(errors="replace").splitlines()[-3:])
            raise GenieError(f"line {line!r} of study {study.name} ended with code {code}: {last}")
        found = read(line, sweeps[0].parent)
        rows += found
        invalid = sum(row.verdict == "invalid" for row in found)
        said(f"{line}: {len(found)} runs in {time.monotonic() - began_s:.0f} s, {invalid} of them invalid")
    return rows


def read(line: str, directory: Path) -> list[Row]:
    """A row for each run of a sweep, in the order of the cells as they were written, then of repeats."""
    plan = read_plan(directory)
    done = finished(directory, plan.slots)
    rows = []
    for slot in sorted(plan.slots, key=lambda slot: (slot.cell, slot.repeat)):
        cell = plan.cell_of(slot)
        tried = sorted(path.parent for path in directory.glob(f"{slot.number}-*/manifest.json"))
        path = done.get(slot.number) or next(reversed(tried), None)
        rows.append(_row(line, dict(cell.factors), slot.repeat, RunDir.open(path) if path else None))
    return rows


def _row(line: str, factors: Mapping[str, str], repeat: int, run: RunDir | None) -> Row:
    if run is None:
        return Row(line, factors, repeat, "invalid", "it never began", None, None)
    judgement = load_judgement(run)
    if judgement is None:
        status, why = run.status
        return Row(line, factors, repeat, "invalid", why or status, None, None, run)
    busy = judgement.metrics.cpu_busy_ratio
    return Row(line, factors, repeat, judgement.verdict, judgement.why, judgement, busy, run)


def machine(rows: Sequence[Row], now: datetime | None = None) -> str:
    """The state of the machine that measured, in a sentence: what a reader must know before the numbers."""
    usable = [row for row in rows if row.metrics is not None]
    day = (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    words = f"{day}: {len(usable)} of {len(rows)} runs may be believed"
    busy = [row.cpu_busy_ratio for row in usable if row.cpu_busy_ratio is not None]
    if busy:
        words += f"; in those the CPU was busy for {min(busy):.0%} to {max(busy):.0%} of the time"
    hosts = [host for row in rows if row.run and (host := row.run.host())]
    if hosts:
        words += f", {hosts[0].cores} cores, kernel {hosts[0].kernel}"
    taken = [row.metrics.interference.ratio for row in usable if row.metrics]
    if taken:
        words += f"; other work took up to {max(taken):.0%} of them"
    return words + "."


def refusals(rows: Sequence[Row]) -> tuple[str, ...]:
    """A sentence for each reason why runs are not used, with how many there are of it."""
    counted: dict[str, int] = {}
    for row in rows:
        if row.metrics is None:
            reason = row.why.partition(":")[0] if row.why.startswith("emulator saturated") else row.why
            counted[reason] = counted.get(reason, 0) + 1
    return tuple(f"Not used: {count} run{'s' if count > 1 else ''}, {reason}." for reason, count in counted.items())


def cell(value: float | None, text: str = "{:.3g}") -> str:
    """A number for the table; a dash where there is none."""
    return "–" if value is None else text.format(value)


def write(telling: Telling, rows: Sequence[Row], folder: Path, *, new: bool) -> list[Path]:
    """``table.csv``, ``figure.svg`` and the results in ``README.md`` (between its two marks) of a study's folder; in a
    ``new`` folder ``results.md``. Raises RunInvalid, and writes nothing, where no number may
    be believed, or none was measured now and one was before.
    """
    target = folder / ("results.md" if new else "README.md")
    kept = not new and _MEASURED.search(target.read_text()) is not None
    if telling.figure is None or (kept and all(row.metrics is None for row in rows)):
        raise RunInvalid(
            "no run of this study may be believed, so nothing was written: " + " ".join(refusals(rows)),
            hint="repeat it on a machine that has nothing else to do",
        )
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join((BEGIN, "", machine(rows), "", markdown(telling.table), "", "![figure](figure.svg)", "",
                      *(f"* {sentence}" for sentence in (*telling.said, *refusals(rows))), "", END))  # fmt: skip
    if not new:
        before, _, rest = target.read_text().partition(BEGIN)
        _, mark, after = rest.partition(END)
        if not mark:
            raise ConfigError(f"{target} has no place for results: expected the lines '{BEGIN}' and '{END}'")
        text = before + text + after
    target.write_text(text if text.endswith("\n") else text + "\n")
    (folder / "table.csv").write_text(comma_separated(telling.table))
    (folder / "figure.svg").write_text(alone(telling.figure))
    return [target, folder / "table.csv", folder / "figure.svg"]


def markdown(table: Table) -> str:
    """The table as Markdown, numbers to the right."""
    rule = "|".join("---" if number < table.names else "--:" for number in range(len(table.head)))
    lines = ["| " + " | ".join(table.head) + " |", f"|{rule}|"]
    lines += ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in table.rows]
    return "\n".join(lines)


def comma_separated(table: Table) -> str:
    """The table as CSV, a dash being an empty field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.head)
    writer.writerows([["" if text == "–" else text for text in row] for row in table.rows])
    return out.getvalue()
