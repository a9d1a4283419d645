"""What else had the machine while a run was on it: other work, the hypervisor, a clock that was set, a standstill.

`genie.results.load` samples (`HostRecord`), this says what it means: `genie.results.metrics` has the numbers and the
sentences, `genie.results.compare` widens what chance may do, or makes the run invalid.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from genie.results.rundir import HostRecord
from genie.units import format_ns

CLOCK_STEP_NS = 10_000_000
"""A wall clock that runs off by more than this between two looks was set; NTP slews by at most 500 us a second."""

TICK_NS = 10_000_000
"""As fine as the kernel tells a core's time (proc(5): USER_HZ is 100). Of a short run a tick is a large share."""


@dataclass(frozen=True, slots=True)
class Interference:
    """``others_ratio``: share of the processors' time that neither the ranks nor this process had, in user and system
    mode, beyond the one tick a core that may be miscounted; the kernel's work for the network (interrupts) is left out,
    for it is the run's own. ``stolen_ratio``: what the hypervisor gave to others. ``suspended_ns``: how long the
    machine slept. ``clock_step_ns``: by how much the wall clock was set. None: not recorded.
    """

    others_ratio: float | None = None
    stolen_ratio: float | None = None
    suspended_ns: int = 0
    clock_step_ns: int = 0

    @property
    def ratio(self) -> float:
        """All that was taken away, 0 where nothing is known; at most 0.95."""
        return min(0.95, (self.others_ratio or 0.0) + (self.stolen_ratio or 0.0))

    @property
    def notes(self) -> list[str]:
        """What the reader of the numbers should know."""
        if not self.clock_step_ns:
            return []
        step = format_ns(abs(self.clock_step_ns))
        return [f"the wall clock was set by {step} during the run: times are right, dates before it are not"]


def interference(host: HostRecord | None, rank_cpu_ns: Iterable[int]) -> Interference:
    """Of one machine that runs everything. ``rank_cpu_ns`` is the processor time of each rank's thread."""
    if host is None:
        return Interference()
    others = stolen = None
    if host.span_ns > 0 and host.cores > 0:
        whole_ns = host.span_ns * host.cores
        left_ns = host.work_ns - host.own_ns - sum(rank_cpu_ns) - host.cores * TICK_NS
        others, stolen = max(0.0, left_ns / whole_ns), host.stolen_ns / whole_ns
    step = host.clock_step_ns if abs(host.clock_step_ns) > CLOCK_STEP_NS else 0
    return Interference(others, stolen, host.suspended_ns, step)


def widened(margin_ratio: float, taken: float, limit: float) -> float:
    """The margin between two runs of which one lost ``taken`` of its processors: what is bound by them may have taken
    1 / (1 - taken) as long. Unchanged up to ``limit``.
    """
    return margin_ratio if taken <= limit else (1 + margin_ratio) / (1 - min(taken, 0.95)) - 1
