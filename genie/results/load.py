"""How busy the emulating machine was: the share of its cores, sampled through a run, into ``host.json``.

Only cores that this run may use count (taskset, cpusets): with one of two to itself, half of the machine is all of it.
A fabric that shares its cores with the ranks is only as true as it has cycles left; `genie.results.compare` makes a
run invalid above a limit. Reads /proc/stat; the story calls `sample` while it waits.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Collection
from pathlib import Path
from types import TracebackType

from genie.results.rundir import HostRecord, RunDir

_INTERVAL_NS = 200_000_000
_STAT = Path("/proc/stat")


def _ticks(cores: Collection[int]) -> tuple[int, int]:
    """(busy, all) ticks of ``cores`` since boot; iowait counts as idle (proc(5))."""
    names = {f"cpu{core}" for core in cores}
    busy = total = 0
    for line in _STAT.read_text().splitlines():
        name, *words = line.split()
        if name in names:
            fields = [int(word) for word in words[:8]]
            total += sum(fields)
            busy += sum(fields) - fields[3] - fields[4]
    return busy, total


class LoadWatch:
    """Samples while it is open; writes ``host.json`` when it is left."""

    def __init__(self, directory: RunDir) -> None:
        self._directory = directory
        self._cores = os.sched_getaffinity(0)
        self._samples: list[tuple[int, float]] = []
        self._at_ns = 0
        self._before = (0, 0)

    def __enter__(self) -> LoadWatch:
        self._at_ns = time.monotonic_ns()
        self._before = _ticks(self._cores)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take(time.monotonic_ns())
        record = HostRecord(cores=len(self._cores), samples=tuple(self._samples), kernel=platform.release())
        self._directory.write_host(record)

    def sample(self) -> None:
        """Take a sample if the last one is old enough."""
        now_ns = time.monotonic_ns()
        if now_ns - self._at_ns >= _INTERVAL_NS:
            self._take(now_ns)

    def _take(self, now_ns: int) -> None:
        busy, total = _ticks(self._cores)
        elapsed = total - self._before[1]
        if elapsed > 0:
            self._samples.append((now_ns, (busy - self._before[0]) / elapsed))
            self._at_ns, self._before = now_ns, (busy, total)
