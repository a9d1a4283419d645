"""Which of many changes, alone or only together, make a configuration bad: delta debugging. Pure.

`culprits` is Zeller and Hildebrandt's ddmin (2002), which finds a set of changes that is bad and of which no change can
be left out; where one change is guilty alone that is bisection. Found sets are taken out and the rest is tried again,
so several independent causes are found one after the other. Whether a set is bad, ``is_bad`` says; it is asked about
each set once, and `genie.bisect.changes` makes sure of each of its answers by a sequential test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil, log2

Subset = tuple[str, ...]


def culprits(changes: Sequence[str], is_bad: Callable[[Subset], bool]) -> tuple[Subset, ...]:
    """Every minimal bad set, the ones found first first; () where all changes together are well.

    Likelier changes ought to come first: halves are tried in that order. Sets overlap in no change.
    """
    asked: dict[Subset, bool] = {}

    def bad(subset: Subset) -> bool:
        if not subset:
            return False
        if subset not in asked:
            asked[subset] = is_bad(subset)
        return asked[subset]

    found: list[Subset] = []
    rest: Subset = tuple(changes)
    while rest and bad(rest):
        guilty = _ddmin(rest, bad)
        found.append(guilty)
        rest = tuple(change for change in rest if change not in guilty)
    return tuple(found)


def _ddmin(changes: Subset, bad: Callable[[Subset], bool]) -> Subset:
    parts = 2
    while len(changes) > 1:
        pieces = _split(changes, parts)
        smaller = next((piece for piece in pieces if bad(piece)), None)
        if smaller is not None:
            changes, parts = smaller, 2
            continue
        if parts > 2:  # with two pieces the complements are the pieces
            complements = [tuple(c for c in changes if c not in piece) for piece in pieces]
            smaller = next((rest for rest in complements if bad(rest)), None)
            if smaller is not None:
                changes, parts = smaller, max(parts - 1, 2)
                continue
        if parts >= len(changes):
            break
        parts = min(len(changes), 2 * parts)
    return changes


def _split(changes: Subset, parts: int) -> list[Subset]:
    edges = [round(n * len(changes) / parts) for n in range(parts + 1)]
    return [changes[a:b] for a, b in pairwise(edges) if a < b]


def expected_tests(count: int) -> int:
    """Sets asked about where one change is guilty: all of them once, two a halving at most, the rest once."""
    return 0 if count == 0 else 1 + 2 * ceil(log2(count)) + (count > 1)
