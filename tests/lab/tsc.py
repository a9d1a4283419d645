"""How fast this host's time stamp counter runs: an emulated machine has the same one, and cannot measure it.

Its kernel would measure it against timers that a busy host delivers late, and find rates that are several times too
small. Told the rate, it has a clock that costs some instructions, as on real hardware; the other choice, HPET, costs
a system call and a device, 1.4 us a look.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import time
from pathlib import Path

CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_READ = bytes.fromhex("0f31 48c1e220 4809d0 c3")
"""rdtsc; shl $32, %rdx; or %rdx, %rax; ret (Intel SDM volume 2B, RDTSC)."""
_SPAN_S = 0.05


def khz() -> int | None:
    """Ticks a millisecond of the clock that QEMU counts by; None where this host does not trust the counter itself, or
    does not let a process run code of its own making.
    """
    if platform.machine() != "x86_64" or not CLOCK_SOURCE.exists() or CLOCK_SOURCE.read_text().strip() != "tsc":
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except PermissionError:
        return None
    page.write(_READ)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(page)))

    def instant() -> tuple[int, int]:
        """A counter's value and the nanosecond it was read at: of some, the one that was read most quickly."""

        def once() -> tuple[int, int, int]:
            before, ticks, after = time.monotonic_ns(), read(), time.monotonic_ns()
            return after - before, ticks, (before + after) // 2

        return min(once() for _ in range(100))[1:]

    first = instant()
    time.sleep(_SPAN_S)
    last = instant()
    return round((last[0] - first[0]) * 1e6 / (last[1] - first[1]))
