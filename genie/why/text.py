"""A `Why` or a `Difference` as text: the verdict first, then tables of what carries the most. Pure.

Called by ``genie why``. Only what matters is shown; ``--json`` has all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from genie.units import format_ns
from genie.why.records import CAUSES, ELSEWHERE, Change, Difference, Share, Why

ROWS = 8
LEAST_RATIO = 0.005
_BAR = 30
_NOTHING_RATIO = 0.0005


def render(why: Why, name: str) -> str:
    """For people. Every table but those of scores sums to the iteration, with what is left out in a last row."""
    lines = [f"{name}: {why.verdict}", ""]
    lines += _table("an iteration", [(share, CAUSES[share.name]) for share in why.causes if share.ns])
    lines += _table("by operator", [(share, "") for share in why.operators])
    if len(why.comms) > 1:
        lines += _table("by communicator", [(share, _elsewhere(share, "computing")) for share in why.comms])
    lines += _table("by link (egress port)", [(share, _elsewhere(share, "not on a link")) for share in why.links])
    lines += _links(why)
    lines += _hosts(why)
    lines += _stragglers(why)
    lines.append(f"routes      {why.routes.text}")
    recovery = why.recovery
    if recovery.stalls:
        counted = "not counted" if recovery.timeouts is None else f"{recovery.timeouts} counted by the kernel"
        lines.append(
            f"time-outs   {recovery.stalls} messages stalled for {format_ns(recovery.stalled_ns)} in all "
            f"({recovery.sure}: {counted})"
        )
    lines += [f"note: {note}" for note in why.notes]
    return "\n".join(lines) + "\n"


def render_difference(difference: Difference) -> str:
    """For people."""
    lines = [difference.verdict, f"  before: {difference.before}", f"  after:  {difference.after}", ""]
    for title, rows in (
        ("by cause", difference.causes),
        ("by operator", difference.operators),
        ("by communicator", difference.comms),
        ("by pair of ranks", difference.pairs),
        ("by link (egress port)", difference.links),
        ("by rank", difference.ranks),
    ):
        lines += _changes(title, rows)
    lines += [f"note: {note}" for note in difference.notes]
    return "\n".join(lines) + "\n"


def _elsewhere(share: Share, words: str) -> str:
    return words if share.name == ELSEWHERE else ""


def _table(title: str, rows: Sequence[tuple[Share, str]]) -> list[str]:
    shown = [row for row in rows if row[0].ratio >= LEAST_RATIO][:ROWS]
    if not shown:
        return []
    rest = [share for share, _ in rows if share not in [own for own, _ in shown]]
    width = max(12, *(len(share.name) for share, _ in shown))
    lines = [title]
    for share, words in shown:
        bar = "#" * round(share.ratio * _BAR)
        lines.append(f"  {share.name:<{width}} {format_ns(share.ns):>10} {share.ratio:>6.1%}  {words or bar}".rstrip())
    ns, ratio = sum(share.ns for share in rest), sum(share.ratio for share in rest)
    if ratio >= _NOTHING_RATIO:
        label = f"{len(rest)} more"
        lines.append(f"  {label:<{width}} {format_ns(ns):>10} {ratio:>6.1%}")
    return [*lines, ""]


def _links(why: Why) -> list[str]:
    rows = [score for score in why.link_scores if score.score >= 0.02][:ROWS]
    if not rows:
        return []
    lines = ["suspect links                score  rate   waits/iteration  evidence"]
    for score in rows:
        rate = "?" if score.rate_ratio is None else f"{score.rate_ratio:.0%}"
        waits = format_ns(score.excess_ns)
        lines.append(f"  {score.port:<25} {score.score:>6.2f} {rate:>5} {waits:>17}  {score.text}".rstrip())
    return [*lines, ""]


def _hosts(why: Why) -> list[str]:
    rows = [score for score in why.host_scores if score.score >= 0.05][:ROWS]
    if not rows:
        return []
    lines = ["suspect hosts (compute)      score  beyond plan/iteration"]
    lines += [f"  {row.host:<25} {row.score:>6.2f} {format_ns(row.excess_ns):>22}  {row.text}" for row in rows]
    return [*lines, ""]


def _stragglers(why: Why) -> list[str]:
    rows = [row for row in why.stragglers if row.cost_ns >= LEAST_RATIO * why.iteration_ns][:ROWS]
    if not rows:
        return []
    lines = ["stragglers                    last of   late (mean)  cost/iteration  others waited"]
    for row in rows:
        who = f"{row.comm}: rank {row.rank} on {row.host}"
        times = f"{format_ns(row.lateness_ns):>12}  {format_ns(row.cost_ns):>14}  {format_ns(row.waited_ns):>13}"
        lines.append(f"  {who:<25} {row.last:>4} of {row.calls:<4} {times}")
    return [*lines, ""]


def _changes(title: str, rows: Sequence[Change]) -> list[str]:
    total = sum(abs(row.delta_ns) for row in rows)
    shown = [row for row in rows if abs(row.delta_ns) >= LEAST_RATIO * total][:ROWS]
    if not shown:
        return []
    width = max(12, *(len(row.name) for row in shown))
    lines = [f"{title:<{width + 2}} {'before':>10} {'after':>10} {'change':>11}  of it"]
    for row in shown:
        ratio = "" if row.ratio is None else f"{row.ratio:.0%}"
        lines.append(
            f"  {row.name:<{width}} {format_ns(row.before_ns):>10} {format_ns(row.after_ns):>10} "
            f"{_signed(row.delta_ns):>11} {ratio:>6}".rstrip()
        )
    left = [row for row in rows if row not in shown]
    delta = sum(row.delta_ns for row in left)
    if left and abs(delta) >= _NOTHING_RATIO * total:
        label = f"{len(left)} more"
        lines.append(f"  {label:<{width}} {'':>10} {'':>10} {_signed(delta):>11}")
    return [*lines, ""]


def _signed(ns: float) -> str:
    return f"{'-' if ns < 0 else '+'}{format_ns(abs(ns))}"
