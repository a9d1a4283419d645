"""The two charts of studies: measured points beside the line of a closed form, drawn with the report's own code.

`lines` is for a key that was swept, `bars` for cases that have names. Each study's ``study.py`` calls one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from genie.report.html.figure import Canvas, Figure, Plot, Table, Window, figure, legend, path_of
from genie.report.html.scale import Linear, Log, Unit

RATIO = Unit(1.0, "")


@dataclass(frozen=True, slots=True)
class Series:
    """Points in the order of x. A ``closed`` form is a dashed line without dots; ``joined`` false: dots alone."""

    name: str
    points: tuple[tuple[float, float], ...]
    closed: bool = False
    joined: bool = True


@dataclass(frozen=True, slots=True)
class Axis:
    """What it says, its unit, and whether it is logarithmic (then all values are above 0)."""

    title: str
    unit: Unit = RATIO
    log: bool = False

    def scale(self, low: float, high: float, start: float, end: float) -> Linear | Log:
        """From values to pixels; a linear axis begins at 0."""
        if self.log:
            return Log(low / 1.08, high * 1.08, start, end)
        return Linear(0.0, high * 1.08 if high > 0 else 1.0, start, end)


def lines(
    key: str, title: str, reading: str, x: Axis, y: Axis, series: Sequence[Series], table: Table,
    windows: Sequence[Window] = (),
) -> Figure | None:  # fmt: skip
    """Lines over a swept key; None where there is no measured point. ``windows`` are stretches of x to be shaded."""
    if not any(one.points for one in series if not one.closed):
        return None
    xs = [point[0] for one in series for point in one.points]
    ys = [point[1] for one in series for point in one.points]

    def draw(width: int) -> str:
        narrow = width < 500
        canvas = Canvas(width, 0, title)
        styles = _styles(series)
        entries = [
            (style if one.closed or one.joined else style.replace("l", "f"), one.name)
            for style, one in zip(styles, series, strict=True)
            if one.points
        ]
        entries += [("window", "fault in effect")] if windows else []
        top = 16 + legend(canvas, entries, 52, 14, width - 8)
        plot = Plot(52, top + 14, width - 16, top + (220 if narrow else 300))
        canvas.height = plot.bottom + 42
        across = x.scale(min(xs), max(xs), plot.left, plot.right)
        up = y.scale(min(ys), max(ys), plot.bottom, plot.top)
        plot.y_axis(canvas, up.ticks(y.unit, 6), y.title)
        plot.x_axis(canvas, across, x.unit, x.title, 5 if narrow else 10)
        if isinstance(across, Linear):
            plot.windows(canvas, windows, across)
        for style, one in zip(styles, series, strict=True):
            points = [(across(a), up(b)) for a, b in one.points]
            if points and (one.closed or one.joined):
                canvas.path(path_of(points), style)
            if not one.closed:
                for a, b in points:
                    canvas.dot(a, b, 3.5, style.replace("l", "f"))
        return canvas.svg()

    return figure(key, title, reading, draw, table)


def _styles(series: Sequence[Series]) -> list[str]:
    """Measured series each have a colour; closed forms are all drawn as what is expected."""
    measured = iter(("l0", "l1", "l2", "l3", "l4"))
    return ["ref" if one.closed else next(measured) for one in series]


@dataclass(frozen=True, slots=True)
class Bar:
    """A case: what was measured (None: nothing to be believed) and what the closed form says (None: nothing)."""

    name: str
    measured: float | None
    closed: float | None


def bars(key: str, title: str, reading: str, axis: Axis, shown: Sequence[Bar], table: Table) -> Figure | None:
    """A bar a case with the closed form as a stroke across it; None where nothing was measured."""
    known = [value for bar in shown for value in (bar.measured, bar.closed) if value is not None]
    if all(bar.measured is None for bar in shown):
        return None

    def draw(width: int) -> str:
        narrow = width < 500
        canvas = Canvas(width, 0, title)
        entries = [("f0", "measured"), *([("ref", "closed form")] if any(bar.closed for bar in shown) else [])]
        top = 16 + legend(canvas, entries, 12, 14, width - 8)
        each = 40 if narrow else 26
        left = 12 if narrow else 230
        plot = Plot(left, top, width - 60, top + each * len(shown) + 4)
        canvas.height = plot.bottom + 42
        across = Linear(0.0, max(known) * 1.04, plot.left, plot.right)
        plot.x_axis(canvas, across, axis.unit, axis.title, 5 if narrow else 10)
        for number, bar in enumerate(shown):
            y = plot.top + each * number + (20 if narrow else 4)
            canvas.text(
                12 if narrow else left - 8, y - 4 if narrow else y + 14, bar.name, "", "start" if narrow else "end"
            )
            if bar.measured is None:
                canvas.text(left + 6, y + 13, "no run may be believed", "quiet")
            else:
                canvas.rect(left, y, across(bar.measured) - left, 17, "f0")
                canvas.text(across(bar.measured) + 6, y + 13, axis.unit.text(bar.measured), "quiet")
            if bar.closed is not None:
                canvas.line(across(bar.closed), y - 3, across(bar.closed), y + 20, "ref")
        return canvas.svg()

    return figure(key, title, reading, draw, table)
