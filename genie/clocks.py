"""Other machines' clocks against the controller's, and instants of theirs on ours. Pure; standard library and numpy.

`genie.launch` measures them (two looks, one before the start and one after the end), run directories keep them
(``clocks.json``), results and fabrics move what hosts recorded onto one clock with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class ClockLook:
    """One look: at ``at_ns`` of our CLOCK_MONOTONIC a host's was ``offset_ns`` ahead of it, give or take ``error_ns``
    (half the round trip: a true bound, since the host's clock was read somewhere within it).
    """

    at_ns: int
    offset_ns: int
    error_ns: int

    @property
    def correction_ns(self) -> int:
        """What to add to an instant of ours. 0 where both clocks may well be the same one, as on one machine:
        correcting by an offset within its own error would only make instants differ that are alike.
        """
        return self.offset_ns if abs(self.offset_ns) > self.error_ns else 0

    @property
    def bound_ns(self) -> int:
        """How far from the truth ``correction_ns`` can be."""
        return self.error_ns + abs(self.offset_ns - self.correction_ns)


@dataclass(frozen=True, slots=True)
class HostClock:
    """A host's clock over a run: a look before it and, where the host still answered, one after it."""

    before: ClockLook
    after: ClockLook | None = None

    @property
    def drift_ns(self) -> int:
        """By how much the offset changed over the run, beyond what the looks' errors explain; 0 where unknown."""
        if self.after is None:
            return 0
        change = self.after.offset_ns - self.before.offset_ns
        return change if abs(change) > self.after.error_ns + self.before.error_ns else 0

    @property
    def error_ns(self) -> int:
        """How far from the truth a corrected instant of the run can be. With one look only, of its own moment."""
        if self.after is None:
            return self.before.bound_ns
        at_end_ns = self.before.correction_ns + self.drift_ns
        return max(self.before.bound_ns, self.after.error_ns + abs(self.after.offset_ns - at_end_ns))

    def to_ours(self, host_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Instants of the host's clock on ours; drift is taken as even over the run."""
        ours = host_ns - self.before.correction_ns
        if not self.drift_ns or self.after is None or self.after.at_ns <= self.before.at_ns:
            return ours
        share = (ours - self.before.at_ns) / (self.after.at_ns - self.before.at_ns)
        moved: npt.NDArray[np.int64] = ours - np.rint(share * self.drift_ns).astype(np.int64)
        return moved


@dataclass(frozen=True, slots=True)
class Clocks:
    """``clocks.json``: the agreed start T on our clock, and each host's clock."""

    start_mono_ns: int
    hosts: Mapping[str, HostClock]

    @property
    def error_ns(self) -> int:
        """The largest error of any host: two hosts' instants may be wrong against each other by twice that."""
        return max((clock.error_ns for clock in self.hosts.values()), default=0)
