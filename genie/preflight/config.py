"""What a user may say about a preflight: ``preflight.*`` of ``genie preflight``. Standard library only.

`genie.preflight.command` makes it with `genie.schema.build`, which refuses what is not here by the closest name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from genie.errors import ConfigError
from genie.units import parse_ns

MOST_MESSAGE_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PreflightConfig:
    """How each pair is measured, and from where on it is out of line.

    ``tool`` "auto" is perftest where transport=verbs and every host has it, else GENIE's own engine. Each direction
    is loaded for ``time`` at the rate of its ports, or with ``load_bytes``; in messages of ``message_bytes``.
    ``pings`` messages of ``ping_bytes`` go back and forth for the latency. All of it is done ``repeats`` times, the
    median counts. ``rounds`` is how many rounds of the tournament are played, drawn by the seed; 0 is all of them.

    A value is out of line if it is ``threshold`` median absolute deviations (times 1.4826) worse than its like, and
    worse than their median by the margin. ``port_least_ratio`` is the part of its ports' rate that a pair must reach,
    0 asks nothing. ``keep`` says whether this becomes the baseline: "auto" if nothing is out of line.
    """

    tool: Literal["auto", "engine", "perftest"] = "auto"
    time: str = "300ms"
    load_bytes: int = 0
    message_bytes: int = 256 * 1024
    pings: int = 40
    ping_bytes: int = 64
    repeats: int = 3
    rounds: int = 0
    threshold: float = 6.0
    bandwidth_margin_ratio: float = 0.1
    latency_margin_ratio: float = 0.5
    port_least_ratio: float = 0.8
    keep: Literal["auto", "always", "never"] = "auto"

    def __post_init__(self) -> None:
        if parse_ns(self.time, key="time") < 1_000_000:
            raise ConfigError(f"must be at least 1ms, found {self.time!r}", key="time")
        for key, least, most in (
            ("load_bytes", 0, 2**50),
            ("message_bytes", 1, MOST_MESSAGE_BYTES),
            ("ping_bytes", 1, MOST_MESSAGE_BYTES),
            ("pings", 0, 100_000),
            ("repeats", 1, 1000),
            ("rounds", 0, 100_000),
        ):
            if not least <= getattr(self, key) <= most:
                raise ConfigError(f"must lie between {least} and {most}, found {getattr(self, key)}", key=key)
        for key in ("bandwidth_margin_ratio", "latency_margin_ratio", "port_least_ratio"):
            # not only by parse_ratio: a plain number in YAML comes past it
            if not 0 <= getattr(self, key) <= 1:
                raise ConfigError(f"a ratio lies between 0 and 1, found {getattr(self, key)}", key=key)
        if not self.threshold > 0:
            raise ConfigError(f"must be above 0, found {self.threshold}", key="threshold")

    @property
    def time_ns(self) -> int:
        """``time`` in ns."""
        return parse_ns(self.time, key="preflight.time")
