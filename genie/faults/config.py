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


@dataclass(frozen=True, slots=True)
class FaultConfig:
    """One fault as the user asked for it. ``parameters`` keep the user's own text ("10%"); the plan converts.

    ``role`` is the mechanism (a folder of ``faults/``). ``targets`` are selectors (docs/faults.md), one or a list; of
    what they select, ``count`` or ``fraction`` picks some by the run's seed. ``ends``: both directions of a link,
    only ``up`` (away from the hosts) or only ``down``.
    """

    role: str
    targets: str | tuple[str, ...]
    count: int | None = None
    fraction: float | None = None
    ends: Literal["both", "up", "down"] = "both"
    parameters: Mapping[str, Any] = field(default_factory=dict)

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
            raise ConfigError("count is given too: choose one of the two", key="fraction")
        known = {parameter.name: parameter for parameter in load_mechanism(self.role).parameters}
        for given in self.parameters:
            if given not in known:
                asks = closest(given, known) or f"role {self.role} has no parameters"
                raise ConfigError(f"there is no such parameter; {asks}", key=f"parameters.{given}")
        for name, parameter in known.items():
            if self.parameters.get(name) is None:
                raise ConfigError(f"must be given: {parameter.help}", key=f"parameters.{name}")

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
