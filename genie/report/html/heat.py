"""Heat maps: values in rows and columns as cells of eight shades, with a scale below.

Cells of one shade are one path, neighbours in a row one piece of it, so that a map of thousands of cells is a few
tens of kilobytes. Cells without a value are left out. Draws; the callers know what the values are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genie.report.html.figure import CHARACTER, Canvas, Plot, Window, shortened
from genie.report.html.palette import HEAT_LEVELS
from genie.report.html.scale import Linear

Floats = npt.NDArray[np.float64]
Say = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Shades:
    """From a value to one of the eight shades, evenly between ``low`` and ``high`` or between their logarithms."""

    low: float
    high: float
    logarithmic: bool = False

    def levels(self, values: Floats) -> npt.NDArray[np.int64]:
        """The shade of each value; -1 where there is none."""
        known = np.isfinite(values)
        clean = np.where(known, values, self.low)
        if self.high <= self.low:
            place = np.zeros_like(clean)
        elif self.logarithmic:
            floor = np.maximum(clean, self.low)
            place = np.log(floor / self.low) / np.log(self.high / self.low)
        else:
            place = (clean - self.low) / (self.high - self.low)
        shade = np.clip((place * HEAT_LEVELS).astype(np.int64), 0, HEAT_LEVELS - 1)
        return np.where(known, shade, -1)

    def edge(self, level: int) -> float:
        """The lower end of a shade; of `HEAT_LEVELS` the upper end of the last."""
        part = level / HEAT_LEVELS
        if self.logarithmic:
            return float(self.low * (self.high / self.low) ** part)
        return self.low + part * (self.high - self.low)


def shades_of(values: Floats, *, least: float | None = None) -> Shades:
    """Shades for what is there: logarithmic where the largest is more than twenty times the smallest above 0."""
    known = values[np.isfinite(values)]
    if not len(known):
        return Shades(0.0, 0.0)
    low, high = float(known.min()), float(known.max())
    positive = known[known > 0]
    if least is not None:
        return Shades(min(least, low), max(high, least))
    if len(positive) and high > 20 * float(positive.min()):
        return Shades(float(positive.min()), high, logarithmic=True)
    return Shades(low if low > high / 2 else 0.0, high)


def cells(canvas: Canvas, levels: npt.NDArray[np.int64], plot: Plot, width: float, height: float) -> None:
    """All cells of one map, ``levels`` rows by columns."""
    gap = 0.6 if min(width, height) >= 5 else 0.0
    for level in range(HEAT_LEVELS):
        pieces = []
        for row in range(levels.shape[0]):
            here = np.flatnonzero(levels[row] == level)
            if not len(here):
                continue
            breaks = np.flatnonzero(np.diff(here) > 1)
            firsts = here[np.concatenate([[0], breaks + 1])]
            lasts = here[np.concatenate([breaks, [len(here) - 1]])]
            top = plot.top + row * height
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
                left, right = plot.left + first * width, plot.left + (last + 1) * width - gap
                pieces.append(f"M{left:.1f} {top:.1f}H{right:.1f}v{height - gap:.1f}H{left:.1f}z")
        canvas.path("".join(pieces), f"h{level}")


def scale_below(
    canvas: Canvas, shades: Shades, say: Callable[[float], str], left: float, top: float, name: str
) -> None:
    """The eight shades side by side, with what the first, the middle and the last begin or end at."""
    width = 30
    canvas.text(left, top, name, "quiet")
    if shades.high <= shades.low:
        canvas.rect(left, top + 7, width, 12, "h0")
        canvas.text(left + width + 8, top + 18, f"{say(shades.low)} everywhere", "quiet")
        return
    for level in range(HEAT_LEVELS):
        canvas.rect(left + level * width, top + 7, width, 12, f"h{level}")
    for level, anchor in ((0, "start"), (HEAT_LEVELS // 2, "middle"), (HEAT_LEVELS, "end")):
        canvas.text(left + level * width, top + 33, say(shades.edge(level)), "quiet", anchor)


def square(
    width: int,
    label: str,
    values: Floats,
    names: Sequence[str],
    shades: Shades,
    say: Callable[[float], str],
    unit: str,
) -> str:
    """Rank by rank: rows send, columns receive."""
    count = len(names)
    left, top = 58, 34
    each = min(34.0, (width - left - 8) / count)
    side = each * count
    canvas = Canvas(width, top + side + 62, label)
    plot = Plot(left, top, left + side, top + side)
    canvas.rect(plot.left, plot.top, side, side, "empty")
    cells(canvas, shades.levels(values), plot, each, each)
    longest = max(len(name) for name in names)
    step = max(1, int(np.ceil(longest * CHARACTER / each)), int(np.ceil(13 / each)))
    for number in range(0, count, step):
        centre = (number + 0.5) * each
        canvas.text(plot.left + centre, plot.top - 5, names[number], "quiet", "middle")
        canvas.text(plot.left - 6, plot.top + centre + 4, names[number], "quiet", "end")
    canvas.text(plot.left, 13, "to rank →", "quiet")
    canvas.text(13, plot.top + min(side, 84), "from rank →", "quiet", turn=True)
    scale_below(canvas, shades, say, plot.left, plot.bottom + 20, unit)
    return canvas.svg(grid=(plot.left, plot.top, each, each))


def over_time(
    width: int,
    label: str,
    values: Floats,
    names: Sequence[str],
    strong: Sequence[bool],
    shades: Shades,
    say: Callable[[float], str],
    unit: str,
    end_ns: float,
    windows: Sequence[Window],
    axis: Callable[[Canvas, Plot, Linear], None],
) -> str:
    """A row a port, time to the right; windows of faults are marked by their edges, above the cells."""
    narrow = width < 500
    left = 104 if narrow else 150
    each = 13.0
    top = 26 if windows else 6
    canvas = Canvas(width, top + each * len(names) + 96, label)
    plot = Plot(left, top, width - 12, top + each * len(names))
    x = Linear(0, end_ns, plot.left, plot.right)
    canvas.rect(plot.left, plot.top, plot.width, plot.bottom - plot.top, "empty")
    axis(canvas, plot, x)
    cells(canvas, shades.levels(values), plot, plot.width / values.shape[1], each)
    for number, name in enumerate(names):
        style = "strong" if strong[number] else "quiet"
        canvas.text(left - 6, plot.top + (number + 1) * each - 3, shortened(name, 14 if narrow else 20), style, "end")
    for window in windows:
        stop = end_ns if window.end_ns is None else window.end_ns
        first, last = (min(max(x(at), plot.left), plot.right) for at in (window.start_ns, stop))
        if last > first:
            canvas.rect(first, plot.top - 8, last - first, 5, "f1", window.fault)
    if windows:
        canvas.text(left, 12, "■ fault in effect", "strong")
    scale_below(canvas, shades, say, plot.left, plot.bottom + 56, unit)
    rows_y = [plot.top + (number + 0.5) * each for number in range(len(names))]
    return canvas.svg(rows_y=rows_y)
