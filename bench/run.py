"""Runs the benchmarks and writes bench/RESULTS.md: ratios from one run, absolute figures beside them.

    python bench/run.py                 all of them, as root, on an otherwise idle machine
    python bench/run.py walk timers     some of them, printed only

Peers: iperf3 (Debian's), Gloo through torch (GENIE_BENCH_TORCH = a Python that has torch).
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
from pathlib import Path

import engine
import network
import transports
from harness import Row

BENCHMARKS = {
    "point_to_point": network.point_to_point,
    "shaped": network.shaped,
    "against_gloo": network.against_gloo,
    "transports": transports.against_our_tcp,
    "timers": engine.timers,
    "walk": engine.walk,
    "read_trace": engine.read_trace,
    "scale": engine.scale,
    "memory": engine.memory,
    "start_up": engine.start_up,
}
HEADINGS = ("what", "GENIE", "peer", "ratio", "hoped for")


def table(rows: list[Row]) -> str:
    """Markdown."""
    cells = [HEADINGS, ("---",) * len(HEADINGS), *((r.what, r.ours, r.peer, r.ratio, r.target) for r in rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells) + "\n"


def main() -> int:
    """Run what the command line names, or all and write the results."""
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    rows = []
    for name in names:
        made = BENCHMARKS[name]()
        print(table(made) if len(names) == 1 else "\n".join(f"{r.what}: {r.ours} | {r.peer} | {r.ratio}" for r in made))
        rows += made
    if not sys.argv[1:]:
        where = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        text = f"# Results\n\n`python bench/run.py` on {where}, {day}. Ratios are of one run on one machine; an\n"
        text += "emulated network of two cores says nothing about another machine's absolute figures.\n\n"
        (Path(__file__).parent / "RESULTS.md").write_text(text + table(rows))
    return 0


sys.exit(main())
