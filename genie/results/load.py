"""How busy the emulating machine was: the share of all cores, sampled through a run, into ``host.json``.

A fabric that shares its cores with the ranks is only as true as it has cycles left; `genie.results.compare` makes a
run invalid above a limit. Reads /proc/stat; the story calls `sample` while it waits.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from types import TracebackType

from genie.results.rundir import HostRecord, RunDir

_INTERVAL_NS = 200_000_000
_STAT = Path("/proc/stat")


def _ticks() -> tuple[int, int]:
    """(busy, all) ticks of all cores since boot; iowait counts as idle (proc(5))."""
    fields = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


class LoadWatch:
    """Samples while it is open; writes ``host.json`` when it is left."""

    def __init__(self, directory: RunDir) -> None:
        self._directory = directory
        self._samples: list[tuple[int, float]] = []
        self._at_ns = 0
        self._before = (0, 0)

    def __enter__(self) -> LoadWatch:
        self._at_ns = time.monotonic_ns()
        self._before = _ticks()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take(time.monotonic_ns())
        record = HostRecord(cores=os.cpu_count() or 1, samples=tuple(self._samples), kernel=platform.release())
        self._directory.write_host(record)

    def sample(self) -> None:
        """Take a sample if the last one is old enough."""
        now_ns = time.monotonic_ns()
        if now_ns - self._at_ns >= _INTERVAL_NS:
            self._take(now_ns)

    def _take(self, now_ns: int) -> None:
        busy, total = _ticks()
        elapsed = total - self._before[1]
        if elapsed > 0:
            self._samples.append((now_ns, (busy - self._before[0]) / elapsed))
            self._at_ns, self._before = now_ns, (busy, total)
