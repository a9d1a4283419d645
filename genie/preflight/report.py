"""The preflight that people see: verdict first, then the heat map of pairs, then what is out of line and where it is.

`genie.preflight.command` prints it after a preflight, ``genie report FOLDER`` again at any later time, from the record
alone. Fits 80 columns; colours only say again what the numbers and the marks say.
"""

from __future__ import annotations

import io
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from genie.preflight.judge import format_rate as show_rate
from genie.preflight.record import Finding, Matrices, Matrix, PreflightRecord, cells
from genie.preflight.schedule import Schedule
from genie.units import format_bytes, format_ns, format_rate

WIDTH_LEAST = 80
MOST_FINDINGS = 12
STYLES = {"ok": "bold green", "measured": "bold cyan", "degraded": "bold red", "invalid": "bold magenta"}
_NOT_MEASURED = "."
_BETTER, _NEAR, _WORSE, _WORST = "green", "yellow", "red", "bold red"
SHADES = ((0.95, "+"), (0.8, "-"), (0.5, "x"), (0.0, "#"))
"""Of a map that is too wide for numbers: the least part of the median, as a rate, that a mark stands for."""


def render(record: PreflightRecord, *, width: int | None = None, color: bool = False) -> str:
    """The report as text; ``width`` None is the terminal's, at least 80 columns."""
    columns = max(WIDTH_LEAST, width or min(shutil.get_terminal_size((WIDTH_LEAST, 24)).columns, 160))
    out = io.StringIO()
    console = Console(
        file=out, width=columns, force_terminal=color, color_system="standard" if color else None, highlight=False,
        legacy_windows=False, emoji=False, markup=False,
    )  # fmt: skip
    for line in _lines(record, columns):
        console.print(line, soft_wrap=True)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _lines(record: PreflightRecord, columns: int) -> Iterator[Text]:
    yield Text.assemble((record.verdict.upper(), STYLES.get(record.verdict, "bold")), f"  {record.why}")
    yield Text(_subtitle(record))
    slow = {(finding.rail, finding.what): set(_slow_cells(record, finding)) for finding in record.findings}
    for finding in record.findings:
        slow[finding.rail, finding.what] |= set(_slow_cells(record, finding))
    for rail in record.rails:
        named = f" of rail {rail.name}" if rail.name else ""
        bandwidth = {(a, b): value / 1e9 for a, b, value in cells(rail.bandwidth_bps)}
        yield Text("")
        yield from _map(
            f"bandwidth{named}, Gb/s of payload, row sends to column", record.hosts, bandwidth, columns,
            slow.get((rail.name, "bandwidth"), set()), better=max,
        )  # fmt: skip
        latency = {(a, b): value / 1e3 for a, b, value in cells(rail.latency_ns)}
        if latency:
            yield Text("")
            yield from _map(
                f"latency{named}, us, half a round trip of {format_bytes(record.settings.get('ping_bytes', 0))}",
                record.hosts, latency, columns, slow.get((rail.name, "latency"), set()), better=min,
            )  # fmt: skip
        yield Text("")
        yield from _medians(rail)
    yield from _findings(record)
    yield from _notes(record)
    yield Text("")
    yield from _places(record)


def _subtitle(record: PreflightRecord) -> str:
    counted = record.schedule
    faults = f", {'+'.join(record.faults)}" if record.faults else ""
    rounds = _counted(counted.get("rounds", 0), "round")
    if counted.get("rounds") != counted.get("all_rounds"):
        rounds += f" of {counted.get('all_rounds')}"
    repeats = counted.get("repeats", 0)
    tool = {"engine": "GENIE's engine", "perftest": "perftest"}.get(record.tool, record.tool)
    return (
        f"{len(record.hosts)} hosts of {record.topology}, {record.transport} over {record.fabric}{faults}: "
        f"{_counted(counted.get('pairs', 0), 'pair')} in {rounds}, {'once' if repeats == 1 else f'{repeats} times'}, "
        f"by {tool}, "
        f"seed {record.seed}, {record.duration_s:.0f} s"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _slow_cells(record: PreflightRecord, finding: Finding) -> Iterator[tuple[int, int]]:
    """The cells that a finding is about; both halves of a symmetric one."""
    place = {host: number for number, host in enumerate(record.hosts)}
    every = range(len(record.hosts))
    if finding.where == "all":
        yield from ((a, b) for a in every for b in every)
    elif finding.where == "pair":
        a, b = (place[host] for host in finding.hosts)
        yield a, b
        if finding.what == "latency":
            yield b, a
    else:
        host = place[finding.hosts[0]]
        if finding.where in ("sends", "host"):
            yield from ((host, other) for other in every)
        if finding.where in ("receives", "host"):
            yield from ((other, host) for other in every)


def _map(
    title: str,
    hosts: Sequence[str],
    values: Mapping[tuple[int, int], float],
    columns: int,
    slow: set[tuple[int, int]],
    *,
    better: object,
) -> Iterator[Text]:
    """Numbers where they fit, else a mark a pair; what is out of line stands with a ``*``."""
    yield Text(title, style="bold")
    if not values:
        yield Text("  nothing was measured to its end")
        return
    middle = statistics.median(values.values())
    label = max(map(len, hosts))
    width = max(9, label + 2)
    if label + 2 + width * len(hosts) <= columns:
        yield Text(" " * (label + 2) + "".join(f"{host:>{width}}" for host in hosts))
        for a, host in enumerate(hosts):
            line = Text(f"  {host:<{label}}")
            for b in range(len(hosts)):
                line.append(*_cell(values.get((a, b)), a == b, middle, (a, b) in slow, width, better))
            yield line
        return
    yield Text("  a column a host, in the order of the rows; of the median + is 95 % or better,")
    yield Text("  - 80 %, x 50 %, # less; * is out of line, . was not measured")
    for a, host in enumerate(hosts):
        line = Text(f"  {host:<{label}} ")
        for b in range(len(hosts)):
            line.append(*_mark(values.get((a, b)), a == b, middle, (a, b) in slow, better))
        yield line


def _cell(
    value: float | None, is_self: bool, middle: float, is_slow: bool, width: int, better: object
) -> tuple[str, str]:
    if is_self:
        return f"{'-':>{width}}", "dim"
    if value is None:
        return f"{_NOT_MEASURED:>{width}}", "dim"
    shown = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    return f"{shown + ('*' if is_slow else ''):>{width}}", _style(value, middle, is_slow, better)


def _mark(value: float | None, is_self: bool, middle: float, is_slow: bool, better: object) -> tuple[str, str]:
    if is_self or value is None:
        return (" " if is_self else _NOT_MEASURED), "dim"
    part = _part(value, middle, better)
    mark = "*" if is_slow else next(mark for least, mark in SHADES if part >= least)
    return mark, _style(value, middle, is_slow, better)


def _part(value: float, middle: float, better: object) -> float:
    """How good a value is, as a part of the median: a rate, or the inverse of a time."""
    if not value or not middle:
        return 0.0
    return value / middle if better is max else middle / value


def _style(value: float, middle: float, is_slow: bool, better: object) -> str:
    if is_slow:
        return _WORST
    part = _part(value, middle, better)
    return _BETTER if part >= 0.95 else _NEAR if part >= 0.8 else _WORSE


def _medians(rail: Matrices) -> Iterator[Text]:
    yield Text.assemble(("bandwidth  ", "bold"), _summary(rail.bandwidth_bps, show_rate))
    if any(value is not None for row in rail.latency_ns for value in row):
        yield Text.assemble(("latency    ", "bold"), _summary(rail.latency_ns, format_ns))


def _summary(matrix: Matrix, show: object) -> str:
    values = sorted(value for _, _, value in cells(matrix))
    assert callable(show)
    if not values:
        return "not measured"
    return f"median {show(statistics.median(values))}, from {show(values[0])} to {show(values[-1])}"


def _findings(record: PreflightRecord) -> Iterator[Text]:
    if not record.findings:
        return
    yield Text("")
    yield Text("out of line", style="bold")
    for finding in record.findings[:MOST_FINDINGS]:
        yield Text(f"  {finding.text}")
    if len(record.findings) > MOST_FINDINGS:
        yield Text(f"  and {len(record.findings) - MOST_FINDINGS} more in preflight.json")


def _notes(record: PreflightRecord) -> Iterator[Text]:
    notes = list(record.notes)
    if record.baseline:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(record.baseline_ns / 1e9))
        change = record.baseline_change_ratio
        moved = "" if change is None else f": bandwidth {change:+.1%} in the median of pairs"
        notes.insert(0, f"compared with the preflight of {when} UTC{moved}")
    if notes:
        yield Text("")
    yield from (Text(f"note: {note}", style="yellow") for note in notes)


def _places(record: PreflightRecord) -> Iterator[Text]:
    places = [("run", shown_path(Path(record.path)))] if record.path else []
    if record.kept:
        places.append(("baseline", f"{shown_path(Path(record.kept))} now is this preflight"))
    elif record.kept_why:
        places.append(("baseline", f"not kept as one: {record.kept_why}"))
    if record.tracking:
        places.append(("mlflow", record.tracking.get("look", "")))
    if record.reproduce:
        places.append(("again", record.reproduce))
    for name, text in places:
        yield Text.assemble((f"{name:<10}", "bold"), text)


def shown_path(path: Path) -> str:
    """Relative to the working directory where it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def render_schedule(found: Schedule, sizes: Mapping[int, int], *, repeats: int, pings: int, wire_ns: int) -> str:
    """The schedule for ``dry_run=true``: rounds of latency, waves of bandwidth. ``sizes``: rate of a way → bytes."""

    def pairs_of(pairs: Sequence[tuple[int, int]]) -> str:
        return "  ".join(f"{found.hosts[a]}-{found.hosts[b]}" for a, b in pairs)

    rounds = f"{found.rounds}" if found.rounds == found.all_rounds else f"{found.rounds} of {found.all_rounds}"
    lines = [
        "preflight (nothing was touched)",
        f"{len(found.hosts)} hosts, {_counted(len(found.pairs), 'pair')}, {rounds} rounds of the tournament, "
        f"{'once' if repeats == 1 else f'{repeats} times'}",
    ]
    if pings:
        lines.append(f"latency: {pings} round trips of each pair, all pairs of a round at once")
        lines += [f"  round {number:<3} {pairs_of(pairs)}" for number, pairs in enumerate(found.latency, 1)]
    each = ", ".join(
        f"{format_bytes(size)} each way" + (f" at {format_rate(rate)}" if rate else "")
        for rate, size in sorted(sizes.items())
    )
    lines.append(f"bandwidth: {each}; pairs of a wave at once, so that no cable is overloaded")
    lines += [f"  wave {number:<4} {pairs_of(pairs)}" for number, pairs in enumerate(found.bandwidth, 1)]
    lines.append(
        f"at least {format_ns(wire_ns)} on the wire" if wire_ns else "how long it takes is not known: no rates"
    )
    return "\n".join(lines)
