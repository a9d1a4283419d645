"""What a user may say about a sweep: ``sweep.*``. Standard library only, since ``genie --help`` reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from genie.errors import ConfigError
from genie.units import parse_ns

MOST_REPEATS = 10_000


@dataclass(frozen=True, slots=True)
class SweepConfig:
    """How ``genie -m`` goes through its cells, the combinations of swept values.

    ``repeats`` is how often each cell is run. ``order`` "random" shuffles the cells of each repeat (a block) by
    ``sweep.seed``, so that drift of the machine does not look like an effect; "given" takes them as written. ``mode``
    "product" combines every value with every other, "zip" takes the first of all, then the second, and so on. A sweep
    that will take longer than ``ask_above`` asks first, unless ``yes=true``. ``objective`` is what an optimising
    sweeper makes small: the "median", the "p99" or the "exposed" communication of an iteration.
    """

    repeats: int = 1
    order: Literal["random", "given"] = "random"
    seed: int = 1
    mode: Literal["product", "zip"] = "product"
    ask_above: str = "10min"
    objective: Literal["median", "p99", "exposed"] = "median"

    def __post_init__(self) -> None:
        if not 1 <= self.repeats <= MOST_REPEATS:
            raise ConfigError(f"must lie between 1 and {MOST_REPEATS}, found {self.repeats}", key="repeats")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"must lie between 0 and 2^32-1, found {self.seed}", key="seed")
        parse_ns(self.ask_above, key="ask_above")

    @property
    def ask_above_s(self) -> float:
        """``ask_above`` in seconds."""
        return parse_ns(self.ask_above, key="sweep.ask_above") / 1e9
