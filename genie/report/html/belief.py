"""Charts of a bisect: what was believed after each probe, who is suspected at the end, how long each state took.

`genie.report.html.bisect` puts them into its page. They draw what `genie.bisect.replay` recomputed from the journal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from genie.bisect.replay import Believed, TriedSet, TriedSets
from genie.report.html.figure import CHARACTER, Canvas, Figure, Plot, Table, figure, legend, path_of, shortened
from genie.report.html.palette import SERIES
from genie.report.html.scale import Linear, Log, Unit
from genie.units import format_ns

LISTED_MOST = 12
LEAST_CHANCE = 0.005
"""Suspects that never had more are left out of tables and bars."""
RATIO = Unit(1.0, "")
NOBODY = "nobody"


def chance(value: float) -> str:
    """A chance in words that never round to certainty."""
    if 0.9995 <= value < 1:
        return "> 99.9 %"
    return f"{value:.1%}".replace("%", " %") if value >= 0.0005 or value == 0 else "< 0.1 %"


def _ranked(believed: Believed) -> list[int]:
    """Suspects that were ever worth a word, by what is believed at the end, then by the most that ever was."""
    last = believed.standings[-1].chances
    most = [max(standing.chances[place] for standing in believed.standings[1:] or believed.standings)
            for place in range(len(last))]  # fmt: skip
    order = sorted(range(len(last)), key=lambda place: (-round(last[place], 4), -most[place], place))
    return [place for place in order if most[place] >= LEAST_CHANCE]


def over_probes(believed: Believed, asked: float) -> Figure | None:
    """The chance of the most suspected after each probe. None where no probe was made."""
    count = len(believed.probes)
    if not count:
        return None
    ranked = _ranked(believed)
    lines = [(NOBODY, [standing.nobody for standing in believed.standings])]
    for place in ranked[: SERIES - 1]:
        lines.append((believed.suspects[place].name, [standing.chances[place] for standing in believed.standings]))

    def draw(width: int) -> str:
        narrow = width < 500
        canvas = Canvas(width, 0, f"chance of the most suspected after each of {count} probes")
        entries = [(f"l{number}", name) for number, (name, _) in enumerate(lines)]
        top = 16 + legend(canvas, [*entries, ("ref", f"enough to stop, {asked:.0%}")], 44, 14, width - 8)
        plot = Plot(48, top + 12, width - 14, top + (190 if narrow else 240))
        canvas.height = plot.bottom + 42
        x, y = Linear(0, count, plot.left, plot.right), Linear(0, 1, plot.bottom, plot.top)
        plot.y_axis(canvas, [(y(v), f"{v:.0%}") for v in (0, 0.25, 0.5, 0.75, 1)], "chance to be guilty")
        step = math.ceil(count / (8 if narrow else 24))
        for number in range(0, count + 1, step):
            canvas.text(x(number), plot.bottom + 16, str(number), "quiet", "middle")
        canvas.line(plot.left, plot.bottom, plot.right, plot.bottom, "axis")
        canvas.text((plot.left + plot.right) / 2, plot.bottom + 33, "probes made", "quiet", "middle")
        canvas.line(plot.left, y(asked), plot.right, y(asked), "ref")
        for number, (_, values) in reversed(list(enumerate(lines))):
            points = [(x(at), y(value)) for at, value in enumerate(values)]
            canvas.path(path_of(points), f"l{number}")
            for at, value in points:
                canvas.dot(at, value, 3, f"f{number}")
        return canvas.svg(rows_x=[x(number) for number in range(count + 1)])

    named = ranked[:LISTED_MOST]
    head = ("probes made", "likeliest answer", "its chance", "not known yet (bits)", NOBODY,
            *(believed.suspects[place].name for place in named))  # fmt: skip
    rows = tuple(
        (
            "none" if number == 0 else str(number), " and ".join(standing.leader) or NOBODY,
            chance(standing.confidence), f"{standing.unknown_bits:.2f}", chance(standing.nobody),
            *(chance(standing.chances[place]) for place in named),
        )
        for number, standing in enumerate(believed.standings)
    )  # fmt: skip
    return figure(
        "belief", "Belief after each probe",
        "Chance that each is among the guilty, given all measurements until then; several may be guilty together.",
        draw, Table(head, rows, "recomputed from bisect.jsonl", names=2),
    )  # fmt: skip


def ranking(believed: Believed) -> Figure | None:
    """Who is suspected at the end, most first. None where nobody is worth a bar."""
    last = believed.standings[-1]
    ranked = [place for place in _ranked(believed) if last.chances[place] >= LEAST_CHANCE][:LISTED_MOST]
    rows = [(believed.suspects[place].name, last.chances[place], believed.suspects[place].says) for place in ranked]
    rows.append((NOBODY, last.nobody, "no suspect is guilty of anything that the probes could see"))

    def draw(width: int) -> str:
        narrow = width < 500
        each, left = (40, 12) if narrow else (26, 330)
        canvas = Canvas(width, 6 + each * len(rows) + 48, "chance of each suspect at the end")
        plot = Plot(left, 6, width - 66, 6 + each * len(rows))
        x = Linear(0, 1, plot.left, plot.right)
        for value in (0, 0.25, 0.5, 0.75, 1):
            canvas.line(x(value), plot.top, x(value), plot.bottom, "grid")
            canvas.text(x(value), plot.bottom + 16, f"{value:.0%}", "quiet", "middle")
        canvas.line(plot.left, plot.bottom, plot.right, plot.bottom, "axis")
        canvas.text((plot.left + plot.right) / 2, plot.bottom + 33, "chance to be guilty", "quiet", "middle")
        centres = []
        for number, (name, value, _) in enumerate(rows):
            y = plot.top + each * number + (20 if narrow else 4)
            centres.append(y + 8)
            canvas.rect(plot.left, y, max(x(value) - plot.left, 1), 16, "idle" if name == NOBODY else "f0")
            canvas.text(x(value) + 6, y + 13, chance(value), "quiet")
            if narrow:
                canvas.text(left, y - 5, shortened(name, 52))
            else:
                canvas.text(left - 10, y + 13, shortened(name, 47), "", "end")
        return canvas.svg(rows_y=centres)

    table = Table(("suspect", "chance", "if it is guilty"), tuple((n, chance(v), s) for n, v, s in rows), names=9)
    reading = "Most suspected first; a suspect's chance counts every answer that it is part of."
    return figure("suspects", "Suspects at the end", reading, draw, table)


# -- changes ------------------------------------------------------------------------------------------------------


def numbers_of(changes: Sequence[str], own: Sequence[str]) -> str:
    """Which of all changes: "1, 3", or "all"."""
    if len(own) == len(changes):
        return "all" if len(own) > 1 else "1"
    return ", ".join(str(changes.index(change) + 1) for change in own if change in changes)


def states(tried: TriedSets, changes: Sequence[str], worse_ratio: float) -> Figure | None:
    """Every run of every set of changes against the good state. None where the good state was not measured."""
    reference_ns = tried.reference_ns
    if not reference_ns:
        return None
    good = TriedSet((), tried.good, (), False)
    rows = [("none", good), *((numbers_of(changes, found.changes), found) for found in tried.sets)]
    limit = 1 + worse_ratio
    ratios = [run.median_ns / reference_ns for _, found in rows for run in found.runs if run.median_ns is not None]
    low, high = min(*ratios, 1.0, 1 / limit), max(*ratios, limit)

    def draw(width: int) -> str:
        narrow = width < 500
        each = 26
        longest = max(len(label) for label, _ in rows)
        left = min(0.3 * width, 96 + CHARACTER * longest)
        canvas = Canvas(width, 0, "iteration time of each run against the good state")
        entries = [("f0", "a run that was well"), ("f1", "a run that was bad"), ("ref", f"bad from here, {limit:.2f}x")]
        top = 16 + legend(canvas, entries, 12, 14, width - 8)
        plot = Plot(left, top, width - (70 if narrow else 110), top + each * len(rows) + 4)
        canvas.height = plot.bottom + 42
        x = Log(low * 0.97, high * 1.03, plot.left, plot.right)
        plot.x_axis(canvas, x, RATIO, "median iteration, times the good state's", 3 if narrow else 9)
        canvas.line(x(limit), plot.top, x(limit), plot.bottom, "ref")
        centres = []
        for number, (label, found) in enumerate(rows):
            y = plot.top + each * number + 15
            centres.append(y)
            words = f"changes {label}" if not narrow and label != "none" else label
            canvas.text(left - 10, y + 4, shortened(words, int(left / CHARACTER) - 1), "", "end")
            for run in found.runs:
                if run.median_ns is not None:
                    canvas.dot(x(run.median_ns / reference_ns), y, 4.5, "f1" if run.bad else "f0")
            canvas.text(plot.right + 8, y + 4, _verdict(found), "quiet")
        return canvas.svg(rows_y=centres)

    head = ("changes", "which", "runs", "median iterations", "chance to be bad, after each run", "verdict")
    table = Table(
        head,
        tuple(
            (
                label, " and ".join(found.changes) or "none: the good state", str(len(found.runs)),
                ", ".join("failed" if run.median_ns is None else format_ns(run.median_ns) for run in found.runs),
                ", ".join(chance(value) for value in found.chances), _verdict(found),
            )
            for label, found in rows
        ),
        names=9,
    )  # fmt: skip
    return figure(
        "states", "Iteration time of each state",
        "A dot is a run. A set of changes is run until a sequential test has decided whether it is bad.", draw, table,
    )  # fmt: skip


def _verdict(found: TriedSet) -> str:
    if not found.changes:
        return "reference"
    return "open" if found.bad is None else "bad" if found.bad else "well"
