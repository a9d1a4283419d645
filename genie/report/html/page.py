"""The page: sections of figures, tables and sentences, put into one HTML file that needs nothing but itself.

`genie.report.html.run` and `.aba` say what is in it. The template escapes all that comes from traces, configurations
and hosts; style and script are named in the page's content security policy by their digests, so that nothing else can
run or be loaded even if something got in.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

from genie.report.html.figure import CHART_CSS, Figure, Table
from genie.report.html.palette import variables

if TYPE_CHECKING:
    from jinja2 import Template

MARKS = {
    "ok": "✓", "improved": "✓", "measured": "•", "degraded": "▲", "inconclusive": "?", "invalid": "✕",
    "found": "▲", "none": "✓",
}  # fmt: skip
"""A verdict has a word and a mark besides its colour."""


@dataclass(frozen=True, slots=True)
class Card:
    """A headline figure: ``value`` large, ``name`` above, ``more`` (interval, ratio) below."""

    name: str
    value: str
    more: tuple[str, ...] = ()
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of a section: exactly one of the kinds is set."""

    figure: Figure | None = None
    table: Table | None = None
    folded: str = ""
    """Of a table or code: the words under which it is folded away; "" where it is open."""
    sentences: tuple[str, ...] = ()
    code: str = ""
    heading: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with an anchor, and what is below it."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """All of a report. ``facts`` are (name, value) pairs of what was run; ``reproduce`` runs it again."""

    title: str
    kind: str
    verdict: str
    why: str
    facts: tuple[tuple[str, str], ...]
    reproduce: str
    cards: tuple[Card, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()
    written: str = ""
    also: tuple[tuple[str, str, str], ...] = ()
    """Further verdicts: (tone, word, sentence)."""


def render(page: Page) -> str:
    """The whole file as text."""
    style, script = variables() + _file("page.css") + CHART_CSS, _file("comfort.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src 'sha256-{_digest(style)}'; "
        f"script-src 'sha256-{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    return _template().render(page=page, style=style, script=script, policy=policy, marks=MARKS)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@lru_cache(maxsize=1)
def _template() -> Template:
    """Compiled once a process: a run, its arms and a sweep use the same."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("genie.report.html", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return made.get_template("page.html.j2")


def _file(name: str) -> str:
    return resources.files("genie.report.html").joinpath("templates", name).read_text(encoding="utf-8")


def figures(page: Page) -> Sequence[Figure]:
    """Every chart of the page, in order."""
    return [block.figure for section in page.sections for block in section.blocks if block.figure is not None]
