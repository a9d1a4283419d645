"""A chart as the page holds it: two drawings (a wide one, one for phones), the table behind it, and how to read it.

`Canvas` writes SVG; it is the only place where text becomes markup, and escapes all of it. Charts are drawn by the
modules that know their data (`series`, `messages`, `ports` …). Nothing here reads a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape

from genie.report.html.palette import variables
from genie.report.html.scale import Linear, Log, Tail, Unit

WIDE, NARROW = 960, 360
"""Widths of the two drawings in pixels; the page shows one of them."""
CHARACTER = 6.6
"""A character of 12 px text is about so wide: enough to lay out legends without measuring."""

CHART_CSS = (
    "svg.chart{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}"
    ".chart text{fill:var(--text)}.chart .quiet{fill:var(--muted);font-size:12px}.chart .strong{font-weight:600}"
    ".chart .head{font-size:15px;font-weight:600}"
    ".chart .grid{stroke:var(--rule);stroke-width:1;fill:none}"
    ".chart .axis{stroke:var(--muted);stroke-width:1;fill:none}"
    ".chart .ref{stroke:var(--muted);stroke-width:1.5;stroke-dasharray:6 4;fill:none}"
    ".chart .window{fill:var(--window);fill-opacity:.13}"
    ".chart .edge{stroke:var(--window);stroke-width:1.5;stroke-dasharray:2 3;fill:none}"
    ".chart .band{fill:var(--muted);fill-opacity:.16}.chart .idle{fill:var(--idle)}.chart .back{fill:var(--page)}"
    ".chart .empty{fill:var(--panel)}.chart .node{fill:var(--panel);stroke:var(--muted);stroke-width:1}"
    + "".join(
        f".chart .l{i}{{stroke:var(--s{i});stroke-width:2;fill:none;stroke-linejoin:round{dash}}}"
        f".chart .f{i}{{fill:var(--s{i})}}"
        for i, dash in enumerate(
            (
                "",
                ";stroke-dasharray:7 3",
                ";stroke-dasharray:2 3",
                ";stroke-dasharray:10 3 2 3",
                ";stroke-dasharray:4 4",
            )
        )
    )
    + "".join(
        f".chart .h{i}{{fill:var(--h{i})}}.chart .k{i}{{stroke:var(--h{i});stroke-width:5;fill:none}}" for i in range(8)
    )
)


@dataclass(frozen=True, slots=True)
class Table:
    """The numbers behind a chart. The first ``names`` columns are text, the others right-aligned (9: all are text)."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    names: int = 1
    links: tuple[str, ...] = ()
    """Where the first cell of each row leads, "" for nowhere; paths from where the page is."""


@dataclass(frozen=True, slots=True)
class Figure:
    """``key`` names it in the page and as a file, ``reading`` says how to read it, ``said`` what it shows. Two that are
    ``half`` stand beside each other where there is room.
    """

    key: str
    title: str
    reading: str
    wide: str
    narrow: str
    table: Table
    said: tuple[str, ...] = ()
    half: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch in which a fault was in effect, in the chart's time; an end of None: not ended within the run."""

    fault: str
    start_ns: float
    end_ns: float | None


Draw = Callable[[int], str]


def figure(key: str, title: str, reading: str, draw: Draw, table: Table, said: Sequence[str] = ()) -> Figure:
    """Draw both widths."""
    return Figure(key, title, reading, draw(WIDE), draw(NARROW), table, tuple(said))


def half(shown: Figure) -> Figure:
    """The same, half as wide."""
    return replace(shown, half=True)


def alone(shown: Figure) -> str:
    """The wide drawing as an SVG file of its own, with its title and colours of both schemes."""
    head, _, rest = shown.wide.partition(">")
    width, height = (float(part) for part in head.split('viewBox="0 0 ')[1].split('"')[0].split())
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" '
        f'viewBox="0 -34 {_n(width)} {_n(height + 34)}" width="{_n(width)}" height="{_n(height + 34)}">'
    )
    style = f"<style>{variables()}{CHART_CSS}</style>"
    back = f'<rect class="back" x="0" y="-34" width="{_n(width)}" height="{_n(height + 34)}"/>'
    return f'{opening}{style}{back}<text class="head" x="8" y="-12">{escape(shown.title)}</text>{rest}\n'


def _n(value: float) -> str:
    """A coordinate: a tenth of a pixel is enough."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def path_of(points: Iterable[tuple[float, float]]) -> str:
    """The ``d`` of a line through pixel points."""
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


class Canvas:
    """One drawing under way. All text is escaped; coordinates are pixels from the top left."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self.width, self.height, self.label = width, height, label
        self._parts: list[str] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        """A straight line."""
        self._parts.append(f'<path class="{style}" d="M{_n(x1)} {_n(y1)}L{_n(x2)} {_n(y2)}"/>')

    def path(self, d: str, style: str) -> None:
        """Any outline; nothing where ``d`` is empty."""
        if d:
            self._parts.append(f'<path class="{style}" d="{d}"/>')

    def rect(self, x: float, y: float, width: float, height: float, style: str, title: str = "") -> None:
        """A box, with a native tooltip where there is a ``title``."""
        inner = f"<title>{escape(title)}</title></rect>" if title else ""
        close = ">" if title else "/>"
        self._parts.append(
            f'<rect class="{style}" x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, 0))}" height="{_n(max(height, 0))}"'
            f"{close}{inner}"
        )

    def dot(self, x: float, y: float, radius: float, style: str) -> None:
        """A disc."""
        self._parts.append(f'<circle class="{style}" cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"/>')

    def text(self, x: float, y: float, words: str, style: str = "", anchor: str = "start", turn: bool = False) -> None:
        """Words at a baseline; ``turn`` by 90 degrees for the title of an upright axis."""
        attributes = f' class="{style}"' if style else ""
        attributes += f' text-anchor="{anchor}"' if anchor != "start" else ""
        attributes += f' transform="rotate(-90 {_n(x)} {_n(y)})"' if turn else ""
        self._parts.append(f'<text x="{_n(x)}" y="{_n(y)}"{attributes}>{escape(words)}</text>')

    def svg(self, rows_x: Sequence[float] = (), rows_y: Sequence[float] = (), grid: Sequence[float] = ()) -> str:
        """The drawing. Where the row of the table that a pointer is at can be told by its place, ``rows_x``, ``rows_y``
        or ``grid`` (left, top, cell width, cell height) say so, for the tooltip.
        """
        hints = "".join(
            f' data-{name}="{" ".join(_n(v) for v in values)}"'
            for name, values in (("x", rows_x), ("y", rows_y), ("grid", grid))
            if len(values)
        )
        opening = f'<svg class="chart" role="img" viewBox="0 0 {_n(self.width)} {_n(self.height)}"'
        return f'{opening} aria-label="{escape(self.label)}"{hints}>{"".join(self._parts)}</svg>'


@dataclass(frozen=True, slots=True)
class Plot:
    """The area between the axes."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        """Pixels."""
        return self.right - self.left

    def x_axis(
        self, canvas: Canvas, scale: Linear | Log, unit: Unit, title: str, most: int, labels: bool = True
    ) -> None:
        """Ticks below, lines up through the plot, the title with its unit."""
        for at, label in scale.ticks(unit, most):
            canvas.line(at, self.top, at, self.bottom, "grid")
            if labels:
                canvas.text(at, self.bottom + 16, label, "quiet", "middle")
        canvas.line(self.left, self.bottom, self.right, self.bottom, "axis")
        if labels:
            canvas.text((self.left + self.right) / 2, self.bottom + 33, title, "quiet", "middle")

    def y_axis(self, canvas: Canvas, ticks: Sequence[tuple[float, str]], title: str) -> None:
        """Ticks at the left, lines across the plot; the title above the axis, where a phone has room for it."""
        for at, label in ticks:
            canvas.line(self.left, at, self.right, at, "grid")
            canvas.text(self.left - 6, at + 4, label, "quiet", "end")
        canvas.text(4, self.top - 10, title, "quiet")

    def windows(self, canvas: Canvas, windows: Sequence[Window], scale: Linear, named: bool = True) -> None:
        """Shade the stretches of each fault, cut to the plot, with its name where there is room."""
        told: set[str] = set()
        for window in windows:
            left = min(max(scale(window.start_ns), self.left), self.right)
            right = self.right if window.end_ns is None else min(max(scale(window.end_ns), self.left), self.right)
            if right <= left:
                continue
            canvas.rect(left, self.top, right - left, self.bottom - self.top, "window", window.fault)
            for at in (left, right):
                if self.left < at < self.right:
                    canvas.line(at, self.top, at, self.bottom, "edge")
            if named and window.fault not in told:
                told.add(window.fault)
                room = int((self.right - left) / CHARACTER)
                words = shortened(window.fault, max(room, 6))
                end = len(words) * CHARACTER > self.right - left
                x = self.right - 4 if end else left + 5
                canvas.text(x, self.top + 14 + 15 * (len(told) - 1), words, "strong", "end" if end else "start")


def legend(canvas: Canvas, entries: Sequence[tuple[str, str]], left: float, top: float, right: float) -> float:
    """A sample and a name for each (style, name), wrapped; returns the height. Styles that begin with "l" or "ref" are
    drawn as lines, others as boxes.
    """
    x, y = left, top
    for style, name in entries:
        words = shortened(name, max(8, int((right - left - 34) / CHARACTER)))
        width = 30 + len(words) * CHARACTER + 14
        if x > left and x + width > right:
            x, y = left, y + 18
        if style.startswith(("l", "ref")):
            canvas.line(x, y - 4, x + 24, y - 4, style)
        else:
            canvas.rect(x + 6, y - 10, 12, 12, style)
        canvas.text(x + 30, y, words)
        x += width
    return y - top + 18


def shortened(words: str, most: int) -> str:
    """At most ``most`` characters; the table behind the chart has them all."""
    return words if len(words) <= most else words[: max(1, most - 2)] + ".."


def tail_axis(canvas: Canvas, plot: Plot, scale: Tail, title: str) -> None:
    """The upright axis of a distribution."""
    plot.y_axis(canvas, scale.ticks(), title)
