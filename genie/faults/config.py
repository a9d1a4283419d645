"""The ``fault`` section of an experiment: which recipes, on which targets, with which parameters.

`genie.schema` builds one `FaultConfig` for each entry of ``cfg.fault`` (Hydra composed them from
``conf/fault/*.yaml``); ``--help`` lists `available_faults`. Shape and parameter names are checked here, sense on
a topology by `genie.faults.plan`. Importing this costs nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from genie.errors import ConfigError, closest
from genie.paths import conf_dir
from genie.units import parse_ns

LEAST_WINDOW_NS = 10_000_000
"""Shorter than this, a window's edges would be mostly the time that the commands take."""
MOST_WINDOW_NS = 7 * 24 * 3600 * 10**9
"""What a warden takes, of every time."""
_ONE_KIND = "a recipe's own are emptied by window.at= window.for= window.period= window.duty=null"


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """When a fault is in effect, from the instant at which all ranks start. Nothing given is the whole run.

    ``at`` and ``for``: one stretch ("2s", "300ms"; no ``for`` is to the end of the run). ``at_iteration`` and
    ``for_iterations``: the same counted in iterations (0 is the first, warm-up included) as the slowest rank ends them.
    ``period`` with ``duty``: within that stretch, in effect for this share of each period. Real edges are recorded.
    """

    at: str = ""
    for_: str = field(default="", metadata={"key": "for"})
    at_iteration: int | None = None
    for_iterations: int | None = None
    period: str = ""
    duty: float | None = None

    def __post_init__(self) -> None:
        by_time, by_iteration = bool(self.at or self.for_), self.at_iteration is not None
        if by_time and (by_iteration or self.for_iterations is not None):
            raise ConfigError(
                "at/for and at_iteration/for_iterations are given: choose one of the two", key="at", hint=_ONE_KIND
            )
        if self.for_iterations is not None and not by_iteration:
            raise ConfigError("needs at_iteration", key="for_iterations")
        if by_iteration and (self.at_iteration or 0) < 0:
            raise ConfigError(f"expected a whole number from 0 up, found {self.at_iteration}", key="at_iteration")
        if self.for_iterations is not None and self.for_iterations < 1:
            raise ConfigError(f"expected a whole number from 1 up, found {self.for_iterations}", key="for_iterations")
        if bool(self.period) != (self.duty is not None):
            raise ConfigError("period and duty go together: in effect for duty of each period", key="period")
        if self.period and by_iteration:
            raise ConfigError("goes with at/for, not with at_iteration", key="period", hint=_ONE_KIND)
        if self.duty is not None and not 0 < self.duty < 1:
            raise ConfigError(f"expected a share above 0 and below 1, found {self.duty}", key="duty")
        for key, text in (("at", self.at), ("for", self.for_), ("period", self.period)):
            if text and parse_ns(text, key=key) < (0 if key == "at" else LEAST_WINDOW_NS):
                raise ConfigError(f"must be at least {LEAST_WINDOW_NS // 1_000_000} ms, found {text}", key=key)
            if text and parse_ns(text, key=key) > MOST_WINDOW_NS:
                raise ConfigError(f"must be at most 7 days, found {text}", key=key)
        if self.period and min(self.open_ns, self.period_ns - self.open_ns) < LEAST_WINDOW_NS:
            raise ConfigError(f"{self.duty} of {self.period} leaves less than 10 ms in or out of effect", key="duty")

    @property
    def kind(self) -> str:
        """One of: whole, timed, periodic, iterations."""
        if self.period:
            return "periodic"
        if self.at_iteration is not None:
            return "iterations"
        return "timed" if self.at or self.for_ else "whole"

    @property
    def at_ns(self) -> int:
        """Start after the ranks' start, ns."""
        return parse_ns(self.at, key="at") if self.at else 0

    @property
    def for_ns(self) -> int:
        """Length, ns; 0 is to the end."""
        return parse_ns(self.for_, key="for") if self.for_ else 0

    @property
    def period_ns(self) -> int:
        """Length of a period, ns; 0 without."""
        return parse_ns(self.period, key="period") if self.period else 0

    @property
    def open_ns(self) -> int:
        """How long of each period, ns."""
        return round(self.period_ns * (self.duty or 0))

    def describe(self) -> str:
        """Such as "from 2s for 3s", "a tenth of every 1s"; "the whole run"."""
        if self.kind == "whole":
            return "the whole run"
        if self.kind == "iterations":
            until = f" for {self.for_iterations} iterations" if self.for_iterations else " to the end"
            return f"from iteration {self.at_iteration}{until}"
        stretch = f"from {self.at or '0s'}" + (f" for {self.for_}" if self.for_ else " to the end")
        return f"{self.duty:.0%} of every {self.period}, {stretch}" if self.period else stretch


@dataclass(frozen=True, slots=True)
class FaultConfig:
    """One fault as the user asked for it. ``parameters`` keep the user's own text ("10%"); the plan converts.

    ``role`` is the mechanism (a folder of ``faults/``). ``targets`` are selectors (docs/faults.md), one or a list; of
    what they select, ``count`` or ``fraction`` picks some by the run's seed. ``ends``: both directions of a link,
    only ``up`` (away from the hosts) or only ``down``. ``window``: when it is in effect.
    """

    role: str
    targets: str | tuple[str, ...]
    count: int | None = None
    fraction: float | None = None
    ends: Literal["both", "up", "down"] = "both"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    window: WindowConfig = WindowConfig()

    def __post_init__(self) -> None:
        from genie.faults.recipe import load_mechanism, roles

        if self.role not in roles():
            raise ConfigError(f"there is no fault role {self.role!r}; {closest(self.role, roles())}", key="role")
        if not self.selectors or not all(self.selectors):
            raise ConfigError(
                f"expected a selector or a list of selectors, found {self.targets!r}",
                key="targets",
                hint="for instance all, h0-leaf0, 'leaf*', leaf0/spine1, tier=fabric, role=spine",
            )
        if self.count is not None and self.count < 1:
            raise ConfigError(f"expected a whole number from 1 up, found {self.count}", key="count")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise ConfigError(f"expected a number above 0 and up to 1, found {self.fraction}", key="fraction")
        if self.count is not None and self.fraction is not None:
            raise ConfigError(
                "count is given too: choose one of the two",
                key="fraction",
                hint="a recipe's own is emptied by count=null",
            )
        known = {parameter.name: parameter for parameter in load_mechanism(self.role).parameters}
        for given in self.parameters:
            if given not in known:
                asks = closest(given, known) or f"role {self.role} has no parameters"
                raise ConfigError(f"there is no such parameter; {asks}", key=f"parameters.{given}")
        for name, parameter in known.items():
            if self.parameters.get(name) is None and parameter.default is None:
                raise ConfigError(f"must be given: {parameter.help}", key=f"parameters.{name}")

    def parameter(self, name: str) -> Any:
        """What the user said of a parameter, else the mechanism's default."""
        from genie.faults.recipe import load_mechanism

        said = self.parameters.get(name)
        if said is not None:
            return said
        return next(parameter.default for parameter in load_mechanism(self.role).parameters if parameter.name == name)

    @property
    def selectors(self) -> tuple[str, ...]:
        """``targets`` as a tuple."""
        listed = (self.targets,) if isinstance(self.targets, str) else self.targets
        return tuple(text.strip() for text in listed)


def available_faults(folder: Path | None = None) -> dict[str, str]:
    """Recipe name → its description: the first comment line of its file. Sorted by name."""
    found = {}
    for path in sorted((folder or conf_dir() / "fault").glob("*.yaml")):
        with path.open(encoding="utf-8") as lines:
            comments = (line[1:].strip() for line in lines if line.startswith("#"))
            found[path.stem] = next((text for text in comments if not text.startswith("@")), "")
    return found
