"""What a user may say of a bisect: ``bisect.*`` on the command line of ``genie bisect``.

Standard library only. `genie.bisect.command` makes one from the words of the command line.
"""

from __future__ import annotations

from dataclasses import dataclass

from genie.errors import ConfigError
from genie.units import parse_ns

USAGE = """\
usage: genie bisect [key=value ...]: which host, NIC, link or switch makes jobs slow?
       genie bisect bisect.changes=[CHANGE,...] ...: which change of the configuration does?
       genie bisect --resume DIR: go on with a search that was killed
  keys: fabric, topology, transport and what else a run takes, and bisect.KEY (docs/bisect.md)"""


_OF_THE_SEARCH = ("baseline", "bisect", "dry_run", "expect", "name", "out", "protocol", "report", "run_dir", "sweep",
                  "tracking", "yes")  # fmt: skip
"""Keys that are the same for all states of a search: as a change they would be passed over."""


def _refuse_no_change(change: str) -> None:
    if not change.strip():
        raise ConfigError("one of the changes is empty", key="changes")
    for word in change.split():
        top = word.lstrip("+").partition("=")[0].partition(".")[0]
        if top in _OF_THE_SEARCH:
            raise ConfigError(f"{word!r} is no change: {top} is the same for all states of a search", key="changes")


@dataclass(frozen=True, slots=True)
class BisectConfig:
    """How to search (docs/bisect.md).

    It stops at ``confidence`` in one answer or after ``probes``. ``false_alarm`` and ``miss`` are the error rates of
    one measurement; ``culprits`` the most that are looked for together. ``duty`` is the share of time in which an
    intermittent culprit would show, ``intermittent_ratio`` the chance that a culprit is one.

    A flow of a probe lasts ``time`` in messages of ``message_bytes``; it is bad if its rate lies more than
    ``margin_ratio`` below what its path allows, or if ``losses`` of its segments or more were sent again. A host's
    compute is bad if it takes more than ``compute_margin_ratio`` longer than the others'. A probe may be disturbed as a
    whole, with a chance of ``disturbed_ratio``, or of ``busy_ratio`` where the machine that emulates was saturated: its
    false alarms are ``disturbed_false_alarm`` then.

    With ``changes``, a list of overrides between a good and a bad state (entries of several go together in one text),
    it looks for the guilty ones of these instead. A run is bad if its median iteration is more than ``worse_ratio``
    longer than the good state's. ``run`` is the directory of a slow run: suspects are ordered by what it says of links
    and hosts.
    """

    confidence: float = 0.98
    probes: int = 24
    false_alarm: float = 0.02
    disturbed_false_alarm: float = 0.3
    disturbed_ratio: float = 0.1
    busy_ratio: float = 0.5
    miss: float = 0.1
    culprits: int = 3
    duty: float = 0.2
    intermittent_ratio: float = 0.3
    compute: bool = True
    time: str = "300ms"
    message_bytes: int = 64 * 1024
    margin_ratio: float = 0.06
    losses: int = 1
    compute_margin_ratio: float = 0.15
    changes: tuple[str, ...] = ()
    worse_ratio: float = 0.05
    run: str = ""

    def __post_init__(self) -> None:
        for change in self.changes:
            _refuse_no_change(change)
        if parse_ns(self.time, key="time") < 1_000_000:
            raise ConfigError(f"must be at least 1ms, found {self.time!r}", key="time")
        for key, least, most in (
            ("probes", 1, 1000), ("culprits", 1, 5), ("message_bytes", 1024, 2**31 - 1), ("losses", 1, 2**31),
        ):  # fmt: skip
            if not least <= getattr(self, key) <= most:
                raise ConfigError(f"must lie between {least} and {most}, found {getattr(self, key)}", key=key)
        for key, low, high in (
            ("confidence", 0.5, 1.0), ("false_alarm", 0.0, 0.5), ("disturbed_false_alarm", 0.0, 0.6),
            ("disturbed_ratio", 0.0, 1.0), ("busy_ratio", 0.0, 1.0), ("miss", 0.0, 0.5),
            ("duty", 0.0, 1.0), ("intermittent_ratio", 0.0, 1.0), ("margin_ratio", 0.0, 1.0),
            ("compute_margin_ratio", 0.0, 10.0), ("worse_ratio", 0.0, 10.0),
        ):  # fmt: skip
            if not low < getattr(self, key) < high:
                raise ConfigError(f"must lie between {low} and {high}, found {getattr(self, key)}", key=key)

    @property
    def time_ns(self) -> int:
        """``time`` in ns."""
        return parse_ns(self.time, key="bisect.time")
