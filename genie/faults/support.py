"""On which gear each recipe is known, and how that was tested: the table of docs/real-gear.md. Pure: reads files only.

``genie faults list --support`` prints the same files a row each; `tests/unit/test_faults_support.py` holds the document
to this table, so that neither can claim what the other doesn't.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from genie.faults.catalogue import SUPPORT_WORDS, recipes, stems
from genie.faults.recipe import load_platform

GEAR = ("linux", "mlx5", "infiniband", "sonic", "cumulus", "eos")
"""Columns; "linux" is the embedded fabric's namespaces, the lab's machines and any host without a column of its own."""
BEGIN, END = "<!-- the table of genie.faults.support begins -->", "<!-- ends -->"


@dataclass(frozen=True, slots=True)
class SupportRow:
    """One recipe on one kind of node. ``tested`` is a key of `SUPPORT_WORDS`; ``risk`` there; ``note`` what to know.

    ``needs_whole``: the recipe has a window, and this gear holds a change's time limit itself, so the fault must be
    told to last the whole run there.
    """

    recipe: str
    role: str
    platform: str
    tested: str
    risk: str
    note: str
    needs_whole: bool

    @property
    def words(self) -> str:
        """How it was tested, for people: "tested against a stand-in, not on hardware"."""
        return SUPPORT_WORDS[self.tested]


def support_table() -> list[SupportRow]:
    """A row for each recipe and platform that its role knows, by recipe; a marker's variants (linux.red) are rows."""
    rows = []
    for recipe in recipes():
        own = recipe.mechanism
        for stem in stems(own):
            how = load_platform(own.role, stem)
            whole = how.deadman == "own" and bool(recipe.content.get("window"))
            rows.append(SupportRow(recipe.name, own.role, stem, how.support, how.risk or own.risk, how.note, whole))
    return rows


def support_markdown() -> str:
    """The same as a table of recipes by gear, for the document; an empty cell is "not known there"."""
    cells: dict[tuple[str, str], str] = {}
    names: dict[str, str] = {}
    for row in support_table():
        gear = row.platform.partition(".")[0].partition("_")[0]  # "linux.red" is Linux, "mlx5_inbox" is mlx5
        if gear in GEAR and (row.recipe, gear) not in cells:
            limits = ["high risk"] * (row.risk == "high") + ["whole run only"] * row.needs_whole
            cells[row.recipe, gear] = row.tested + (f" ({', '.join(limits)})" if limits else "")
        elif gear not in GEAR:
            cells[row.recipe, "linux"] = row.tested  # what only namespaces have is the embedded fabric's too
        names[row.recipe] = row.role
    lines = ["| recipe | role | " + " | ".join(GEAR) + " |", "|---" * (len(GEAR) + 2) + "|"]
    for recipe, role in names.items():
        lines.append(f"| `{recipe}` | {role} | " + " | ".join(cells.get((recipe, gear), "") for gear in GEAR) + " |")
    return "\n".join(lines)


def notes_markdown() -> str:
    """What to know of each role on each kind of real gear, a line each."""
    seen: dict[tuple[str, str], str] = {}
    for row in support_table():
        if row.tested == "stand-in" and not row.platform.startswith("linux") and row.note:
            seen[row.role, row.platform] = row.note
    lines = ["| role | gear | to know |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {role} | {gear} | {note} |" for (role, gear), note in sorted(seen.items()))])


def write_into(document: Path) -> None:
    """Put both tables between the marks of a document, as they are now."""
    text = document.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    document.write_text(f"{head}{BEGIN}\n\n{support_markdown()}\n\n{notes_markdown()}\n\n{END}{tail}", encoding="utf-8")
