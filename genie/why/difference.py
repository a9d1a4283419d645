"""What part of the slowdown of one run against another each operator, communicator, pair of ranks and link carries.

Both runs' critical paths are sums over the same kinds of parts, each of which adds up to its mean iteration; so their
differences add up to the difference of the iterations, whatever kind one looks at. `compare` is pure; called by
``genie why --against`` and by reports. Parts are matched by name: runs of other workloads share few.
"""

from __future__ import annotations

from collections.abc import Iterable

from genie.units import format_ns
from genie.why.records import CAUSES, ELSEWHERE, Change, Difference, Share, Why


def compare(before: Why, after: Why, *, before_name: str, after_name: str) -> Difference:
    """The parts of ``after.iteration_ns - before.iteration_ns``, the largest first."""
    whole = after.iteration_ns - before.iteration_ns

    def changes(old: Iterable[Share], new: Iterable[Share]) -> tuple[Change, ...]:
        olds, news = ({share.name: share.ns for share in shares} for shares in (old, new))
        rows = []
        for name in sorted(olds.keys() | news.keys()):
            a, b = olds.get(name, 0.0), news.get(name, 0.0)
            rows.append(Change(name, a, b, b - a, (b - a) / whole if whole else None))
        return tuple(sorted(rows, key=lambda row: (-abs(row.delta_ns), row.name)))

    causes = changes(before.causes, after.causes)
    links = changes(before.links, after.links)
    notes = []
    if before.path_iteration is None or after.path_iteration is None:
        notes.append("one of the runs has no path")
    return Difference(
        verdict=_say(before, after, whole, causes, links),
        before=before_name,
        after=after_name,
        before_ns=before.iteration_ns,
        after_ns=after.iteration_ns,
        causes=causes,
        operators=changes(before.operators, after.operators),
        comms=changes(before.comms, after.comms),
        pairs=changes(_pairs(before), _pairs(after)),
        links=links,
        ranks=changes(before.ranks, after.ranks),
        notes=tuple(notes),
    )


def _pairs(why: Why) -> list[Share]:
    rows = [Share(f"{row.sender}>{row.receiver}", row.path_ns, 0.0) for row in why.pairs if row.path_ns]
    rest = why.iteration_ns - sum(row.ns for row in rows)
    return [*rows, Share(ELSEWHERE, rest, 0.0)]


def _say(before: Why, after: Why, whole: float, causes: tuple[Change, ...], links: tuple[Change, ...]) -> str:
    ratio = after.iteration_ns / before.iteration_ns if before.iteration_ns else 0.0
    words = (
        f"an iteration takes {format_ns(after.iteration_ns)} instead of {format_ns(before.iteration_ns)} ({ratio:.2f}x)"
    )
    grown = [row for row in causes if row.delta_ns * whole > 0 and row.ratio]
    if abs(ratio - 1) < 0.01 or not grown:
        return f"{words}: no difference to speak of"
    parts = [f"{row.ratio:.0%} of the difference is {CAUSES[row.name]}" for row in grown[:2] if row.ratio]
    link = next((row for row in links if row.name != ELSEWHERE), None)
    if link is not None and link.ratio and link.ratio >= 0.1:
        parts.append(f"{link.ratio:.0%} of it is at {link.name}")
    return f"{words}: {', '.join(parts)}"
