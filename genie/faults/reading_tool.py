"""What parsers of vendors' tools share: the class of traffic, a share of the rate, a tool that failed.

`genie.faults.reading_nic`, `reading_sonic` and `reading_switch` are made of it. Their parsers keep every field that a
tool shows, so that a revert is compared with all of it. Where what is asked for must be fitted to what the gear can
(speeds, PCIe generations, buffer shares), the fit is a field too, of what was asked (``port``) and what never changes;
``fits`` and ``is_wanted`` are for ``before`` and ``after``. The formats are those of the sources that `tests/standins`
names: no line here has met hardware.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Parser = Callable[[str, int, Mapping[str, Any]], dict[str, Any]]

DEFAULT_PRIORITY = 3
"""The class of RoCE in every vendor's defaults, where a role has no parameter for it."""
GBPS = 1_000_000_000


def priority_of(variables: Mapping[str, Any]) -> int:
    """The class of traffic that is read."""
    return int(variables["port"].get("priority", DEFAULT_PRIORITY))


def share_of(variables: Mapping[str, Any]) -> float:
    """The rate asked for as a share of the port's own."""
    return float(variables["port"]["rate_bps"]) / float(variables["port"]["own_bps"])


def must_succeed(text: str, code: int) -> None:
    """Raises ValueError in the tool's own words where it failed."""
    if code != 0:
        raise ValueError(" ".join(text.split())[-200:] or f"exit code {code}")


def one_group(pattern: str, text: str) -> str:
    """The one group of the first match. Raises ValueError where there is none."""
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise ValueError(f"nothing of the form {pattern}")
    return found[1]
