"""Slowdown of four algorithms when the link of rank 0 or of rank 7 is slow, beside 1/f where there is a closed form."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.chart import Axis, Bar, bars
from experiments.closed import all_to_all_ns, binomial_all_reduce_ns, ring_all_reduce_ns
from experiments.study import Row, Study, Telling, cell
from genie.report.html.figure import Table
from genie.report.html.scale import Unit
from genie.units import parse_bytes, parse_rate_bps, parse_ratio

RANKS = 8
RATE, TARGET = "fault.link_rate.parameters.rate", "fault.link_rate.targets"
HEALTHY_NS = {"ring": ring_all_reduce_ns, "tree": binomial_all_reduce_ns, "all_to_all": all_to_all_ns}
WHERE = {"h0-switch0": "rank 0", "h7-switch0": "rank 7"}


def form(algorithm: str, ratio: float) -> float | None:
    """The closed form's slowdown: 1/f for a ring and an all-to-all, whichever link is slow. Trees have none (None):
    what waits for the slow link and what for others depends on who is a leaf, and on how messages share a card.
    """
    return 1 / ratio if algorithm in ("ring", "all_to_all") else None


def tell(study: Study, rows: Sequence[Row]) -> Telling:
    """A row for each algorithm, healthy, and for each slow link."""
    table_rows, shown, said = [], [], []
    for algorithm in ("ring", "tree", "double_binary_tree", "all_to_all"):
        (twin,) = (row for row in rows if row.line == f"{algorithm}_healthy")
        size = parse_bytes(study.word(algorithm, "workload.sizes").strip("[]"))
        rate_bps = parse_rate_bps(study.word(algorithm, "topology.host_rate"))
        expected = HEALTHY_NS[algorithm](size, RANKS, rate_bps) if algorithm in HEALTHY_NS else None
        off = _ratio(twin.median_ns, expected)
        table_rows.append(
            (algorithm, "none", "", _ms(twin.median_ns), _ms(expected), "", "", cell(off, "{:.0%}"))
        )  # fmt: skip
        for row in (row for row in rows if row.line == algorithm):
            target, ratio = study.value(row, TARGET), parse_ratio(study.value(row, RATE))
            slower, by_form = _ratio(row.median_ns, twin.median_ns), form(algorithm, ratio)
            table_rows.append(
                (
                    algorithm, WHERE[target], f"{ratio:g}", _ms(row.median_ns), "–",
                    cell(slower, "{:.2f}x"), cell(by_form, "{:.2f}x"), cell(_ratio(slower, by_form), "{:.0%}"),
                )
            )  # fmt: skip
            shown.append(Bar(f"{algorithm}, {WHERE[target]} at {ratio:g}", slower, by_form))
            if slower is not None and by_form is not None and not 0.9 <= slower / by_form <= 1.1:
                said.append(
                    f"{algorithm} with the link of {WHERE[target]} at {ratio:g}: {slower:.2f}x where the closed form "
                    f"says {by_form:.2f}x."
                )
    held = [bar for bar in shown if bar.measured and bar.closed and 0.9 <= bar.measured / bar.closed <= 1.1]
    compared = [bar for bar in shown if bar.measured and bar.closed]
    if compared:
        said.insert(0, f"{len(held)} of {len(compared)} slowdowns are within 10 % of the closed form.")
    table = Table(
        (
            "algorithm", "slow link", "f", "median (ms)", "healthy form (ms)", "slowdown", "closed form",
            "measured of form",
        ),
        tuple(table_rows), names=2,
    )  # fmt: skip
    figure = bars(
        "slow_link", "Slowdown by one slow link",
        "Median iteration over that of the healthy run. Where there is no stroke there is no closed form.",
        Axis("times the healthy run", Unit(1.0, "")), shown, table,
    )  # fmt: skip
    return Telling(table, figure, tuple(said))


def _ms(ns: float | None) -> str:
    return cell(None if ns is None else ns / 1e6, "{:.0f}")


def _ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or under is None or under <= 0 else over / under
