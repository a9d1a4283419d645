"""What a reader of one rank's file hands to `genie.workload.chakra.read`."""

from __future__ import annotations

from dataclasses import dataclass, field

from genie.workload.trace import Operator


@dataclass(slots=True)
class RankFile:
    """Operators with the dependencies as the file has them, process groups (() = all ranks), labels and remarks."""

    operators: list[Operator]
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
