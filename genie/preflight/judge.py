"""What is out of line in a preflight, named as narrowly as it can be: a host, one direction of it, a pair. Pure.

Three questions are asked of every value: is it worse than those of its like (pairs with a way of as many cables and the
same rate), less than its ports allow, worse than the last time? The first is robust: a host is held against the pairs
that it is not in, so even one of three stands out, and then single pairs against the median of all that are left, by
median absolute deviations. If most of a host's values are out of line the host is named, else the pairs are.
`genie.preflight.command` calls `judge`; docs/preflight.md explains it with examples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from genie.preflight.config import PreflightConfig
from genie.preflight.record import Finding, Matrices, Matrix, cells
from genie.preflight.schedule import Way
from genie.units import format_ns

Cell = tuple[int, int]
Values = Mapping[Cell, float]

MAD_TO_SIGMA = 1.4826
"""The median absolute deviation of a normal distribution times this is its standard deviation."""

LEAST_OTHERS = 2
"""A host is held against at least so many values of pairs that it is not in."""

LEAST_ALIKE = 4
"""A single pair is held against its like only where there are so many of them."""

MOST_RATIO = 0.8
"""A host is named where this part of its values is out of line; so is the whole fabric."""


@dataclass(frozen=True, slots=True)
class _Scale:
    """How far from a median is too far. ``sign`` is -1 where less is worse, 1 where more is."""

    sign: int
    threshold: float
    margin: float

    def is_off(self, value: float, others: Sequence[float]) -> bool:
        """Whether a value is out of line among others."""
        middle = float(np.median(others))
        spread = MAD_TO_SIGMA * float(np.median(np.abs(np.asarray(others) - middle)))
        worse = self.sign * (value - middle)
        return worse > self.threshold * spread and self.beyond(value, middle)

    def beyond(self, value: float, typical: float) -> bool:
        """Whether a value is worse than a typical one by more than the margin."""
        return self.sign * (value - typical) > self.margin * typical


@dataclass(slots=True)
class _Off:
    """What is out of line: for each cell the typical value that it was held against, by what that is."""

    against: dict[Cell, dict[str, float]]

    def add(self, cell: Cell, what: str, typical: float) -> None:
        self.against.setdefault(cell, {}).setdefault(what, typical)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``word`` "ok", "degraded" or "measured" (there was nothing to hold it against), and ``why`` in words."""

    word: str
    why: str
    findings: tuple[Finding, ...]


def judge(
    rails: Sequence[Matrices],
    hosts: Sequence[str],
    ways: Mapping[Cell, Way],
    settings: PreflightConfig,
    before: Sequence[Matrices] = (),
) -> Verdict:
    """Look through every rail. ``ways`` is by pair, the lower place first; ``before`` are the baseline's rails."""
    findings: list[Finding] = []
    asked = False
    earlier = {rail.name: rail for rail in before}
    for rail in rails:
        last = earlier.get(rail.name)
        for what, matrix, scale in (
            ("bandwidth", rail.bandwidth_bps, _Scale(-1, settings.threshold, settings.bandwidth_margin_ratio)),
            ("latency", rail.latency_ns, _Scale(1, settings.threshold, settings.latency_margin_ratio)),
        ):
            symmetric = what == "latency"
            values = _values(matrix, symmetric=symmetric)
            off = _Off({})
            asked |= _among_others(values, ways, scale, off, symmetric=symmetric)
            if what == "bandwidth" and settings.port_least_ratio:
                asked |= _below_ports(values, ways, settings.port_least_ratio, off)
            if last is not None:
                then = _values(last.bandwidth_bps if what == "bandwidth" else last.latency_ns, symmetric=symmetric)
                asked |= _than_before(values, then, scale, off)
            findings += _named(what, values, off, hosts, rail.name, symmetric=symmetric)
    measured = sum(rail.measured for rail in rails)
    return _verdict(findings, measured, asked)


def failures(failed: Sequence[tuple[str, Cell, str]], hosts: Sequence[str]) -> tuple[Finding, ...]:
    """A finding for each direction that could not be measured: (rail, from and to, why)."""
    return tuple(
        Finding("bandwidth", "pair", (hosts[a], hosts[b]), rail, 0.0, 0.0, (), f"{hosts[a]} to {hosts[b]}: {why}")
        for rail, (a, b), why in failed
    )


def _verdict(findings: Sequence[Finding], measured: int, asked: bool) -> Verdict:
    if findings:
        more = f" and {len(findings) - 2} more" if len(findings) > 2 else ""
        return Verdict("degraded", "; ".join(f.text for f in findings[:2]) + more, tuple(findings))
    if not measured:
        return Verdict("invalid", "nothing was measured to its end", ())
    if not asked:
        return Verdict("measured", "there are too few pairs to say which of them is out of line", ())
    return Verdict("ok", f"no host and none of {measured} directions is out of line", ())


def _values(matrix: Matrix, *, symmetric: bool) -> dict[Cell, float]:
    return {(a, b): value for a, b, value in cells(matrix) if not symmetric or a < b}


def _way(ways: Mapping[Cell, Way], cell: Cell) -> Way:
    return ways[min(cell), max(cell)]


# -- the three questions ------------------------------------------------------------------------------------------


def _among_others(values: Values, ways: Mapping[Cell, Way], scale: _Scale, off: _Off, *, symmetric: bool) -> bool:
    """Hosts first, the worst one by one, each against the pairs without it; then what is left, pair by pair."""
    left = dict(values)
    asked = False
    while True:
        worst: tuple[float, dict[Cell, float]] | None = None
        for own in _sides(left, symmetric=symmetric):
            host, mine = own
            others = _by_way({c: v for c, v in left.items() if host not in c}, ways)
            held = {c: others[_way(ways, c)] for c in mine if len(others.get(_way(ways, c), ())) >= LEAST_OTHERS}
            if len(held) < 2 or len(held) < MOST_RATIO * len(mine):
                continue
            asked = True
            bad = {c: float(np.median(o)) for c, o in held.items() if scale.is_off(left[c], o)}
            if len(bad) < max(2.0, MOST_RATIO * len(held)):
                continue
            how_bad = float(np.median([abs(math.log(left[c] / typical)) for c, typical in bad.items()]))
            if worst is None or (len(bad) * how_bad) > worst[0]:
                worst = len(bad) * how_bad, bad
        if worst is None:
            break
        for cell, typical in worst[1].items():
            off.add(cell, "others", typical)
            del left[cell]
    for alike in _cells_by_way(left, ways).values():
        if len(alike) < LEAST_ALIKE:
            continue
        asked = True
        found = [left[cell] for cell in alike]
        for cell in alike:
            if scale.is_off(left[cell], found):
                off.add(cell, "others", float(np.median(found)))
    return asked


def _below_ports(values: Values, ways: Mapping[Cell, Way], least_ratio: float, off: _Off) -> bool:
    known = {cell: _way(ways, cell).rate_bps for cell in values if _way(ways, cell).rate_bps}
    for cell, rate in known.items():
        if values[cell] < least_ratio * rate:
            off.add(cell, "ports", float(rate))
    return bool(known)


def _than_before(values: Values, then: Values, scale: _Scale, off: _Off) -> bool:
    """Changes are held against each other as values are; if their median is beyond the margin, the whole is slower."""
    changes = {cell: values[cell] / then[cell] for cell in values.keys() & then.keys() if then[cell] > 0}
    if not changes:
        return False
    every = list(changes.values())
    moved = scale.beyond(float(np.median(every)), 1.0)
    for cell, change in changes.items():
        if scale.beyond(change, 1.0) and (moved or len(every) < LEAST_ALIKE or scale.is_off(change, every)):
            off.add(cell, "before", then[cell])
    return True


def _sides(values: Values, *, symmetric: bool) -> Iterable[tuple[int, list[Cell]]]:
    """(host, its values) of each direction of each host: what it sends, what it receives."""
    for host in sorted({place for cell in values for place in cell}):
        if symmetric:
            yield host, [cell for cell in values if host in cell]
        else:
            yield host, [cell for cell in values if cell[0] == host]
            yield host, [cell for cell in values if cell[1] == host]


def _by_way(values: Values, ways: Mapping[Cell, Way]) -> dict[Way, list[float]]:
    return {way: [values[cell] for cell in alike] for way, alike in _cells_by_way(values, ways).items()}


def _cells_by_way(values: Values, ways: Mapping[Cell, Way]) -> dict[Way, list[Cell]]:
    found: dict[Way, list[Cell]] = {}
    for cell in values:
        found.setdefault(_way(ways, cell), []).append(cell)
    return found


# -- names for it -------------------------------------------------------------------------------------------------


def _named(what: str, values: Values, off: _Off, hosts: Sequence[str], rail: str, *, symmetric: bool) -> list[Finding]:
    """The fewest names that cover what is out of line: all, hosts, directions of hosts, pairs."""
    namer = _Namer(what, values, off.against, rail)
    left = set(off.against)
    if len(values) >= LEAST_ALIKE and len(left) >= MOST_RATIO * len(values):
        return [namer.finding("all", (), sorted(left), f"{what} of {len(left)} of {len(values)} measured is {{}}")]
    found: list[Finding] = []
    named: list[tuple[int, str, list[Cell]]] = []
    for host, mine in _sides(values, symmetric=symmetric):
        bad = [cell for cell in mine if cell in left]
        if len(bad) >= max(2.0, MOST_RATIO * len(mine)):
            named.append((host, "host" if symmetric else "sends" if bad[0][0] == bad[1][0] else "receives", bad))
    for host, where, bad in _joined(named):
        others = {place for cell in bad for place in cell} - {host}
        verb = _VERB["both" if where == "host" and not symmetric else where]
        lead = f"{hosts[host]} {verb} {len(others)} hosts"
        found.append(namer.finding(where, (hosts[host],), bad, lead))
        left -= set(bad)
    for a, b in sorted(left):
        lead = f"{hosts[a]} with {hosts[b]} {{}}" if symmetric else f"{hosts[a]} to {hosts[b]} {{}}"
        found.append(namer.finding("pair", (hosts[a], hosts[b]), [(a, b)], lead))
    return sorted(found, key=lambda one: (_WHERE.index(one.where), -abs(math.log(one.value / one.typical))))


def _joined(named: Sequence[tuple[int, str, list[Cell]]]) -> list[tuple[int, str, list[Cell]]]:
    """A host that is named for both of its directions is named once."""
    found: dict[int, tuple[str, list[Cell]]] = {}
    for host, where, bad in named:
        found[host] = ("host", [*found[host][1], *bad]) if host in found else (where, bad)
    return [(host, where, bad) for host, (where, bad) in found.items()]


@dataclass(frozen=True, slots=True)
class _Namer:
    """Makes the findings of one matrix of one rail."""

    what: str
    values: Values
    against: Mapping[Cell, Mapping[str, float]]
    rail: str

    def finding(self, where: str, hosts: tuple[str, ...], covered: Sequence[Cell], lead: str) -> Finding:
        """``lead`` is the sentence up to what it is held against, with {} for the value."""
        keys = sorted({key for cell in covered for key in self.against[cell]}, key=_ORDER.index)
        value = float(np.median([self.values[cell] for cell in covered]))
        typical = float(np.median([self.against[c][keys[0]] for c in covered if keys[0] in self.against[c]]))
        show = format_rate if self.what == "bandwidth" else format_ns
        text = f"{lead.format(show(value))}, {_AGAINST[keys[0]]} {show(typical)}"
        text += f", on rail {self.rail}" if self.rail else ""
        return Finding(self.what, where, hosts, self.rail, value, typical, tuple(keys), text)


_ORDER = ("others", "ports", "before")
_WHERE = ("all", "host", "sends", "receives", "pair")
_VERB = {
    "host": "takes {} with",
    "both": "sends and receives {} with",
    "sends": "sends {} to",
    "receives": "receives {} from",
}
_AGAINST = {"others": "others", "ports": "their ports allow", "before": "last time"}


def format_rate(bps: float) -> str:
    """Gb/s with three significant digits: one unit for the whole report."""
    return f"{bps / 1e9:.3g} Gb/s"
