"""How busy the emulating machine was, and with what: sampled through a run, into ``host.json``.

Only cores that this run may use count (taskset, cpusets): with one of two to itself, half of the machine is all of it.
A fabric that shares its cores with the ranks is only as true as it has cycles left; `genie.results.compare` makes a
run invalid above a limit. Reads /proc/stat; the story calls `sample` while it waits.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from genie.results.rundir import HostRecord, RunDir

_INTERVAL_NS = 200_000_000
_LEAST_SLEEP_NS = 1_000_000  # the two clocks are not read at one instant
_STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class _Ticks:
    """Of the cores since boot (proc(5)): iowait counts as idle, ``work`` is user, nice and system."""

    busy: int
    total: int
    work: int
    stolen: int


def _ticks(cores: Collection[int]) -> _Ticks:
    names = {f"cpu{core}" for core in cores}
    busy = total = work = stolen = 0
    for line in _STAT.read_text().splitlines():
        name, *words = line.split()
        if name in names:
            fields = [int(word) for word in words[:8]]
            total += sum(fields)
            busy += sum(fields) - fields[3] - fields[4]
            work += sum(fields[:3])
            stolen += fields[7]
    return _Ticks(busy, total, work, stolen)


def _slept_ns() -> int:
    """How long this machine has been suspended since boot."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()


def _wall_ns() -> int:
    """The wall clock against the one that nobody sets; a step of it is a step of this."""
    return time.time_ns() - time.monotonic_ns()


class LoadWatch:
    """Samples while it is open; writes ``host.json`` when it is left."""

    def __init__(self, directory: RunDir) -> None:
        self._directory = directory
        self._cores = os.sched_getaffinity(0)
        self._samples: list[tuple[int, float]] = []
        self._at_ns = self._began_ns = self._slept_ns = self._wall_ns = self._own_ns = self._step_ns = 0
        self._before = self._first = _Ticks(0, 0, 0, 0)

    def __enter__(self) -> LoadWatch:
        self._at_ns = self._began_ns = time.monotonic_ns()
        self._before = self._first = _ticks(self._cores)
        self._slept_ns, self._wall_ns, self._own_ns = _slept_ns(), _wall_ns(), time.process_time_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take(time.monotonic_ns())
        last, tick_ns = _ticks(self._cores), 10**9 // os.sysconf("SC_CLK_TCK")
        slept_ns = _slept_ns() - self._slept_ns
        record = HostRecord(
            cores=len(self._cores),
            samples=tuple(self._samples),
            span_ns=time.monotonic_ns() - self._began_ns,
            work_ns=(last.work - self._first.work) * tick_ns,
            stolen_ns=(last.stolen - self._first.stolen) * tick_ns,
            own_ns=time.process_time_ns() - self._own_ns,
            suspended_ns=slept_ns if slept_ns > _LEAST_SLEEP_NS else 0,
            clock_step_ns=self._step_ns,
            kernel=platform.release(),
        )
        self._directory.write_host(record)

    def sample(self) -> None:
        """Take a sample if the last one is old enough."""
        now_ns = time.monotonic_ns()
        if now_ns - self._at_ns >= _INTERVAL_NS:
            self._take(now_ns)

    def _take(self, now_ns: int) -> None:
        found, wall_ns = _ticks(self._cores), _wall_ns()
        if abs(wall_ns - self._wall_ns) > abs(self._step_ns):
            self._step_ns = wall_ns - self._wall_ns
        self._wall_ns = wall_ns
        elapsed = found.total - self._before.total
        if elapsed > 0:
            self._samples.append((now_ns, (found.busy - self._before.busy) / elapsed))
            self._at_ns, self._before = now_ns, found
