"""The critical path: what an iteration's time went to, from ``why.json`` (docs/why.md); drawn, never computed here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from genie.report.html.figure import CHARACTER, Canvas, Figure, Plot, Table, figure, legend, shortened
from genie.report.html.material import Material
from genie.report.html.page import Block
from genie.report.html.scale import Linear, time_unit
from genie.units import format_bytes, format_ns
from genie.why.records import CAUSES, LinkScore, Segment, Share, Why
from genie.why.store import load_why

GROUPS = {
    "compute": ("f0", "compute"), "stretch": ("f4", "compute beyond its plan"),
    "peer": ("f3", "waiting for a late rank"),
    "serialization": ("f2", "bytes and latency"), "latency": ("f2", "bytes and latency"),
    "queueing": ("f1", "queueing, recovery, credits"), "recovery": ("f1", "queueing, recovery, credits"),
    "credits": ("f1", "queueing, recovery, credits"), "host": ("idle", "the rank itself"),
}  # fmt: skip
"""Cause → style and name in the drawing of a path; the table has each cause by itself."""
ROWS_MOST = 10
SCORE_LEAST = 0.02
"""Links and hosts with less than this against them are not listed; why.json has all."""
SEGMENTS_MOST = 600


def why_blocks(material: Material) -> Iterator[Block]:
    """Suspect and blame first, then the path itself, then who is to blame in numbers."""
    why = load_why(material.run)
    if why is None:
        said = "The critical path was not worked out at the end of this run. This does it, and makes the report again:"
        again = f"genie why {material.run.path}\ngenie report {material.run.path} --html report.html"
        yield Block(sentences=(said,), code=again)
        return
    names = f" ({', '.join(why.suspect.names)})" if why.suspect.names else ""
    yield Block(heading=f"Look first at: {why.suspect.kind}{names}", sentences=(why.suspect.text,))
    for shown in (blame(why), path(why)):
        if shown is not None:
            yield Block(figure=shown)
    yield from _tables(why)
    notes = (why.routes.text, *why.notes)
    yield Block(sentences=tuple(sentence for sentence in notes if sentence))


def blame(why: Why) -> Figure | None:
    """One bar a cause, of the mean iteration."""
    by_name = {share.name: share for share in why.causes}
    shown = [by_name[cause] for cause in CAUSES if cause in by_name and by_name[cause].ns > 0]
    if not shown:
        return None
    largest = max(share.ns for share in shown)

    def draw(width: int) -> str:
        narrow = width < 500
        each = 38 if narrow else 26
        left = 12 if narrow else 290
        canvas = Canvas(width, 0, "what the mean iteration went to, by cause")
        plot = Plot(left, 14, width - (14 if narrow else 130), 14 + each * len(shown))
        canvas.height = plot.bottom + 42
        unit = time_unit(largest)
        x = Linear(0, largest * 1.02, plot.left, plot.right)
        plot.x_axis(canvas, x, unit, f"of the mean iteration ({unit.name})", 4 if narrow else 8)
        centres = []
        for number, share in enumerate(shown):
            y = plot.top + each * number + (18 if narrow else 4)
            centres.append(y + 8)
            style = GROUPS.get(share.name, ("idle", ""))[0]
            canvas.rect(plot.left, y, x(share.ns) - plot.left, 16, style)
            words, value = CAUSES.get(share.name, share.name), f"{format_ns(share.ns)}, {share.ratio:.0%}"
            if narrow:
                canvas.text(plot.left, y - 4, f"{shortened(words, 34)}: {value}")
            else:
                canvas.text(plot.left - 10, y + 12, words, "", "end")
                canvas.text(x(share.ns) + 8, y + 12, value, "quiet")
        return canvas.svg(rows_y=centres)

    rows = tuple((share.name, CAUSES.get(share.name, ""), format_ns(share.ns), f"{share.ratio:.1%}") for share in shown)
    return figure(
        "blame", "What an iteration's time went to",
        "Along the critical path: the one chain of waits that set the length of the iteration. All causes sum to it.",
        draw, Table(("cause", "meaning", "time", "share"), rows, names=2),
    )  # fmt: skip


def path(why: Why) -> Figure | None:
    """The path of the iteration of median length, over the ranks that it goes through."""
    segments = why.path[:SEGMENTS_MOST]
    if not segments:
        return None
    begin, end = why.path[0].start_ns, why.path[-1].end_ns
    ranks = sorted({segment.rank for segment in segments})
    styles = list(dict.fromkeys(GROUPS.get(segment.cause, ("idle", segment.cause)) for segment in segments))

    def draw(width: int) -> str:
        narrow = width < 500
        canvas = Canvas(width, 0, "the critical path of one iteration over ranks and time")
        top = 16 + legend(canvas, styles, 12, 14, width - 8)
        each = 20 if len(ranks) <= 24 else 12
        plot = Plot(62, top, width - 12, top + each * len(ranks))
        canvas.height = plot.bottom + 42
        unit = time_unit(end - begin)
        x = Linear(0, end - begin, plot.left, plot.right)
        plot.x_axis(canvas, x, unit, f"since the iteration began ({unit.name})", 4 if narrow else 10)
        tops = {rank: plot.top + each * number for number, rank in enumerate(ranks)}
        for rank, y in tops.items():
            canvas.text(plot.left - 6, y + each / 2 + 4, shortened(f"rank {rank}", int(54 / CHARACTER)), "quiet", "end")
        before: Segment | None = None
        for segment in segments:
            left, right, y = x(segment.start_ns - begin), x(segment.end_ns - begin), tops[segment.rank]
            if before is not None and before.rank != segment.rank:
                canvas.line(left, tops[before.rank] + each / 2, left, y + each / 2, "axis")
            style = GROUPS.get(segment.cause, ("idle", ""))[0]
            canvas.rect(left, y + 2, max(right - left, 0.7), each - 4, style, _segment_words(segment))
            before = segment
        return canvas.svg()

    rows = tuple(
        (
            format_ns(segment.start_ns - begin), format_ns(segment.ns), segment.cause, str(segment.rank),
            "" if segment.peer < 0 else str(segment.peer), segment.operator, " → ".join(segment.route),
        )
        for segment in segments
    )  # fmt: skip
    said = [] if len(segments) == len(why.path) else [f"The first {len(segments)} of {len(why.path)} stretches."]
    return figure(
        "critical-path", f"The critical path of iteration {why.path_iteration}",
        "Left to right through time, up and down between ranks: whatever lies on it, had it been shorter, would have "
        "shortened the iteration.", draw,
        Table(("at", "took", "cause", "rank", "from", "operator", "route"), rows), said,
    )  # fmt: skip


def _segment_words(segment: Segment) -> str:
    beside = f" from rank {segment.peer}" if segment.peer >= 0 else ""
    return f"{format_ns(segment.ns)} {CAUSES.get(segment.cause, segment.cause)}: {segment.operator}{beside}"


def _tables(why: Why) -> Iterator[Block]:
    suspects = [score for score in why.link_scores if score.score >= SCORE_LEAST][:ROWS_MOST]
    if suspects:
        yield Block(
            heading="Links under suspicion",
            table=Table(
                ("port", "score", "rate it seems to have", "costs an iteration", "messages", "lost", "why"),
                tuple(_link_row(score) for score in suspects),
                "score: share of its rate that a port seems to lack, by all evidence together; why.json has every port",
                names=9,
            ),
        )
    hosts = [score for score in why.host_scores if score.score >= SCORE_LEAST][:ROWS_MOST]
    if hosts:
        rows = tuple(
            (score.host, f"{score.score:.2f}", "" if score.stretch is None else f"{score.stretch:.2f}x",
             format_ns(score.excess_ns), score.text)
            for score in hosts
        )  # fmt: skip
        yield Block(
            heading="Hosts whose compute is slow",
            table=Table(("host", "score", "compute over its plan", "costs an iteration", "why"), rows, names=9),
        )
    if why.stragglers:
        late = tuple(
            (s.comm or "world", str(s.rank), s.host, f"{s.last} of {s.calls}", format_ns(s.lateness_ns),
             format_ns(s.cost_ns))
            for s in why.stragglers[:5]
        )  # fmt: skip
        head = ("communicator", "rank", "host", "last to start", "late by", "costs an iteration")
        yield Block(heading="Who is waited for", table=Table(head, late, names=3))
    for heading, shares in (("By operator", why.operators), ("By link", why.links), ("By rank", why.ranks)):
        if shares:
            yield Block(table=_shares(heading, shares), folded=f"{heading} of the critical path")
    pairs = tuple(
        (f"{p.sender} → {p.receiver}", format_ns(p.path_ns), str(p.messages), format_bytes(p.bytes),
         format_ns(p.mean_ns), format_ns(p.worst_ns), "" if p.slowdown is None else f"{p.slowdown:.2f}x")
        for p in sorted(why.pairs, key=lambda p: -p.path_ns)[:40]
    )  # fmt: skip
    if pairs:
        columns = ("ranks", "on the path", "messages", "bytes", "mean on the way", "worst", "over an empty network")
        yield Block(table=Table(columns, pairs), folded="By pair of ranks of the critical path")


def _link_row(score: LinkScore) -> tuple[str, ...]:
    return (
        score.port, f"{score.score:.2f}", "not known" if score.rate_ratio is None else f"{score.rate_ratio:.0%}",
        format_ns(score.excess_ns), str(score.messages), "not counted" if score.lost is None else str(score.lost),
        score.text,
    )  # fmt: skip


def _shares(heading: str, shares: Sequence[Share]) -> Table:
    rows = tuple((share.name, format_ns(share.ns), f"{share.ratio:.1%}") for share in shares[:40])
    return Table((heading.removeprefix("By "), "of the mean iteration", "share"), rows)
