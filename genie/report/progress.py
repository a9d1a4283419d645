"""What people see while a run works: the phase, then iterations done. Prints only to standard error.

On a terminal one line that is rewritten; elsewhere a line a phase and one every few seconds, so that logs stay
readable. `genie.experiment` drives it; it reads nothing of the run itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TextIO

from genie.launch.protocol import Progress
from genie.units import format_rate

_QUIET_INTERVAL_S = 5.0


class Narrator:
    """Says phases and progress. A context manager: leaving it ends the line."""

    def __init__(self, iterations: int, ranks: int, stream: TextIO | None = None) -> None:
        self._iterations = iterations
        self._ranks = ranks
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._began_s = time.monotonic()
        self._phase_s = self._began_s
        self._last_s = 0.0
        self._open_line = False

    def __enter__(self) -> Narrator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_line()

    def phase(self, text: str) -> None:
        """A new phase begins."""
        self._phase_s = time.monotonic()
        self._write(f"{self._clock()} {text}")
        if not self._live:
            self._end_line()

    def note(self, text: str) -> None:
        """A sentence that stays (a stranger was refused, say)."""
        self._end_line()
        self._write(f"{self._clock()} {text}")
        self._end_line()

    def progress(self, progress: Mapping[int, Progress]) -> None:
        """How far the ranks are; called often, prints seldom."""
        if progress:
            self.line(self.describe(progress, time.monotonic() - self._phase_s))

    def line(self, text: str) -> None:
        """A line about how far things are, which may replace the last one; said seldom, however often it is called."""
        now_s = time.monotonic()
        if now_s - self._last_s < (0.1 if self._live else _QUIET_INTERVAL_S):
            return
        first = not self._last_s
        self._last_s = now_s
        if first and not self._live:
            return
        self._write(f"{self._clock()} {text}")
        if not self._live:
            self._end_line()

    def describe(self, progress: Mapping[int, Progress], elapsed_s: float) -> str:
        """The line about ranks that run, ``elapsed_s`` after they began."""
        done = min(p.iteration for p in progress.values()) if len(progress) == self._ranks else 0
        sent = sum(p.bytes_sent for p in progress.values())
        rate = format_rate(8 * sent / max(elapsed_s, 1e-3))
        bar = "█" * (20 * done // max(self._iterations, 1))
        return f"running {bar:<20} iteration {done}/{self._iterations}, {rate} sent in all"

    def _clock(self) -> str:
        return f"[{time.monotonic() - self._began_s:5.1f} s]"

    def _write(self, text: str) -> None:
        if self._live:
            self._stream.write(f"\r\x1b[K{text}")
        else:
            self._stream.write(text)
        self._open_line = True
        self._stream.flush()

    def _end_line(self) -> None:
        if self._open_line:
            self._stream.write("\n")
            self._stream.flush()
            self._open_line = False
