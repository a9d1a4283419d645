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
import numpy.typing as npt

from genie.preflight.config import PreflightConfig
from genie.preflight.record import Finding, Matrices, Matrix, cells
from genie.preflight.schedule import Way
from genie.units import format_ns

Cell = tuple[int, int]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
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

    def off(self, values: Floats, middle: Floats | float, spread: Floats | float) -> Bools:
        """Which values are out of line among others of this median and spread."""
        worse = self.sign * (values - middle)
        return (worse > self.threshold * spread) & (worse > self.margin * middle)

    def beyond(self, value: float, typical: float) -> bool:
        """Whether a value is worse than a typical one by more than the margin."""
        return self.sign * (value - typical) > self.margin * typical


def _spread(values: Floats) -> tuple[float, float]:
    """Median, and the median absolute deviation as a standard deviation."""
    middle = float(np.median(values))
    return middle, MAD_TO_SIGMA * float(np.median(np.abs(values - middle)))


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
    if not values:
        return False
    table = _Table.of(values, ways)
    asked = False
    while True:
        worst: tuple[float, int, Bools] | None = None
        for host in table.hosts():
            could, found = table.worse_side(host, scale, symmetric=symmetric)
            asked |= could
            if found is not None and (worst is None or found[0] > worst[0]):
                worst = found[0], host, found[1]
        if worst is None:
            break
        _, host, bad = worst
        middle, _ = table.others(table.touching(host))
        for place in np.flatnonzero(bad).tolist():
            off.add(table.cell(place), "others", float(middle[table.way[place]]))
        table.left &= ~bad
    for way in range(table.ways):
        alike = table.left & (table.way == way)
        if alike.sum() < LEAST_ALIKE:
            continue
        asked = True
        middle_of_all, spread = _spread(table.value[alike])
        for place in np.flatnonzero(alike & scale.off(table.value, middle_of_all, spread)).tolist():
            off.add(table.cell(place), "others", middle_of_all)
    return asked


@dataclass(slots=True)
class _Table:
    """The values as columns: from, to, the number of their way; ``left`` says which are not out of line yet."""

    source: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]
    value: Floats
    way: npt.NDArray[np.int64]
    ways: int
    left: Bools

    @staticmethod
    def of(values: Values, ways: Mapping[Cell, Way]) -> _Table:
        numbers: dict[Way, int] = {}
        cells_in_order = sorted(values)
        way = [numbers.setdefault(_way(ways, cell), len(numbers)) for cell in cells_in_order]
        pairs = np.asarray(cells_in_order, dtype=np.int64)
        column = np.asarray([values[cell] for cell in cells_in_order], dtype=np.float64)
        everything = np.ones(len(column), dtype=bool)
        return _Table(pairs[:, 0], pairs[:, 1], column, np.asarray(way, dtype=np.int64), len(numbers), everything)

    def cell(self, place: int) -> Cell:
        return int(self.source[place]), int(self.target[place])

    def hosts(self) -> list[int]:
        """Hosts of the values that are left, in order."""
        ends: list[int] = np.unique(np.concatenate([self.source[self.left], self.target[self.left]])).tolist()
        return ends

    def touching(self, host: int) -> Bools:
        """Which values are a host's, in either direction."""
        found: Bools = (self.source == host) | (self.target == host)
        return found

    def others(self, apart: Bools) -> tuple[Floats, Floats]:
        """Median and spread of each way, without the values ``apart``; NaN where too few are left."""
        middle, spread = np.full(self.ways, np.nan), np.full(self.ways, np.nan)
        rest = self.left & ~apart
        for way in range(self.ways):
            found = self.value[rest & (self.way == way)]
            if len(found) >= LEAST_OTHERS:
                middle[way], spread[way] = _spread(found)
        return middle, spread

    def worse_side(self, host: int, scale: _Scale, *, symmetric: bool) -> tuple[bool, tuple[float, Bools] | None]:
        """Whether a host can be held against the pairs without it; and its worse direction, if most of that is out of
        line: how bad it is, and which values.
        """
        own = self.touching(host)
        middle, spread = (column[self.way] for column in self.others(own))
        with np.errstate(invalid="ignore"):
            is_off = scale.off(self.value, middle, spread)
        could, worst = False, None
        for side in [own] if symmetric else [self.source == host, self.target == host]:
            mine = self.left & side
            held = mine & ~np.isnan(middle)
            if held.sum() < 2 or held.sum() < MOST_RATIO * mine.sum():
                continue
            could = True
            bad = held & is_off
            if bad.sum() < max(2.0, MOST_RATIO * held.sum()):
                continue
            how_bad = float(bad.sum() * np.median(np.abs(np.log(self.value[bad] / middle[bad]))))
            if worst is None or how_bad > worst[0]:
                worst = how_bad, bad
        return could, worst


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
    every = np.asarray(list(changes.values()))
    middle, spread = _spread(every)
    moved = scale.beyond(middle, 1.0) or len(every) < LEAST_ALIKE
    for cell, change in changes.items():
        if scale.beyond(change, 1.0) and (moved or bool(scale.off(np.asarray([change]), middle, spread)[0])):
            off.add(cell, "before", then[cell])
    return True


def _sides(values: Values, *, symmetric: bool) -> Iterable[tuple[int, list[Cell]]]:
    """(host, its values) of each direction of each host: what it sends, what it receives."""
    sides: dict[tuple[int, int], list[Cell]] = {}
    for cell in values:
        for end, host in enumerate(cell):
            sides.setdefault((host, 0 if symmetric else end), []).append(cell)
    for (host, _), mine in sorted(sides.items()):
        yield host, mine


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
