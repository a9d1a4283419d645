"""How full the fullest uplink is by a uniform hash, by the computed paths of many seeds, and by port counters."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.chart import Axis, Series, lines
from experiments.closed import max_over_mean, ring_all_reduce_ns
from experiments.ecmp.paths import fullest_over_mean, over_seeds
from experiments.study import Row, Study, Telling, cell
from genie.report.html.figure import Table
from genie.results.statistics import median
from genie.units import parse_bytes, parse_rate_bps

CHANNELS = "collective.channels"
SEEDS = range(1, 201)
HOSTS_A_LEAF = 4


def counted(row: Row, uplinks: int) -> list[float]:
    """Bytes of the fullest uplink over the average one, of each leaf, by the ports' own counters."""
    if row.metrics is None:
        return []
    by_port = {port.port: port.tx_bytes for port in row.metrics.ports}
    found = []
    for leaf in ("leaf0", "leaf1"):
        sent = [by_port.get(f"{leaf}/spine{k}") for k in range(uplinks)]
        known = [value for value in sent if value is not None]
        if len(known) == uplinks and max(known) > 0:
            found.append(max(known) * uplinks / sum(known))
    return found


def tell(study: Study, rows: Sequence[Row]) -> Telling:
    """A row for each number of connections a pair; four pairs cross each leaf, so it is that of flows per uplink."""
    uplinks = int(study.word("ring", "topology.spines"))
    size, rate = study.word("ring", "workload.sizes").strip("[]"), study.word("ring", "topology.host_rate")
    form = ring_all_reduce_ns(parse_bytes(size), 2 * HOSTS_A_LEAF, parse_rate_bps(rate))
    table_rows, said = [], []
    expected, computed, measured = [], [], []
    for channels in sorted({int(study.value(row, CHANNELS)) for row in rows}):
        flows = channels * HOSTS_A_LEAF // uplinks
        mean, p95 = max_over_mean(flows, uplinks)
        own_mean, own_p95 = over_seeds(SEEDS, channels, uplinks)
        own = [row for row in rows if int(study.value(row, CHANNELS)) == channels]
        ratios = [ratio for row in own for ratio in counted(row, uplinks)]
        usable = [row for row in own if row.median_ns is not None]
        same = [r for row in usable for r in fullest_over_mean(int(study.value(row, "seed")), channels, uplinks)]
        times = [row.median_ns for row in usable if row.median_ns is not None]
        table_rows.append(
            (
                str(flows), f"{mean:.2f} ({p95:.2f})", f"{own_mean:.2f} ({own_p95:.2f})",
                cell(sum(same) / len(same) if same else None, "{:.2f}"),
                cell(sum(ratios) / len(ratios) if ratios else None, "{:.2f}"),
                f"{len(usable)} of {len(own)}",
                cell(median(times) / 1e6 if times else None, "{:.0f}"),
                cell(median(times) / form if times else None, "{:.2f}x"),
            )
        )  # fmt: skip
        expected.append((float(flows), mean))
        computed.append((float(flows), own_mean))
        measured += [(float(flows), ratio) for ratio in ratios]
    off = max(abs(own / uniform - 1) for (_, uniform), (_, own) in zip(expected, computed, strict=True))
    said.append(
        f"Over {len(SEEDS)} seeds the paths that Linux would choose for a run's own ports fill the fullest uplink "
        f"{off:.1%} differently, at most, from a uniform hash; about what chance does with {2 * len(SEEDS)} draws."
    )
    table = Table(
        (
            "flows per uplink", "uniform hash, max/mean (p95)", f"paths of {len(SEEDS)} seeds (p95)",
            "paths of these runs", "their counters", "runs", "median (ms)", "of the ring's form",
        ),
        tuple(table_rows),
    )  # fmt: skip
    figure = lines(
        "ecmp", "The fullest of four uplinks over the average one",
        "1 is even. Dashed: a uniform hash. Dots alone: bytes by port counters, a dot a leaf and run.",
        Axis("flows per uplink", log=True), Axis("fullest over average"),
        (
            Series("uniform hash", tuple(expected), closed=True),
            Series(f"computed paths, mean of {len(SEEDS)} seeds", tuple(computed)),
            Series("port counters", tuple(measured), joined=False),
        ),
        table,
    )  # fmt: skip
    return Telling(table, figure, tuple(said))
