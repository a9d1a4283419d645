"""What people see while a preflight measures: how much of it is done, and how long it will still take.

`genie.preflight.command` hands it to the run in place of the narrator of experiments.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TextIO

from genie.launch.protocol import Progress
from genie.report.progress import Narrator

_LEAST_SHARE = 0.03
"""Before so much is done, nothing can be said of the time left."""


class PreflightNarrator(Narrator):
    """Progress by bytes of ``total_bytes``: loads take nearly all of the time."""

    def __init__(self, total_bytes: int, ranks: int, stream: TextIO | None = None) -> None:
        super().__init__(1, ranks, stream)
        self._total_bytes = total_bytes
        self._steps = self._done = 0
        self._steps_s = 0.0

    def describe(self, progress: Mapping[int, Progress], elapsed_s: float) -> str:
        """``measuring ████ 40 %, 12 s left``."""
        return self.share(sum(rank.bytes_sent for rank in progress.values()) / max(self._total_bytes, 1), elapsed_s)

    def begin(self, steps: int) -> None:
        """What follows is so many steps, each told with `step`."""
        self._steps, self._done, self._steps_s = steps, 0, time.monotonic()

    def step(self) -> None:
        """One more of them is done."""
        self._done += 1
        self.line(self.share(self._done / max(self._steps, 1), time.monotonic() - self._steps_s))

    @staticmethod
    def share(done: float, elapsed_s: float) -> str:
        """The line for a part that is done after so many seconds."""
        part = min(done, 1.0)
        left = f", {elapsed_s * (1 - part) / part:.0f} s left" if part >= _LEAST_SHARE else ""
        return f"measuring {'█' * int(20 * part):<20} {part:.0%}{left}"
