"""What a read-back was expected to show and what it showed, in the words of evidence: "marking off", "rate 8 Mb/s".

`genie.faults.evidence` asks for each change. Fields and conditions are those of a role's platform files
(`genie.faults.change`); units are told by the ends of their names. Pure; compares nothing by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from genie.faults.change import State, expectations, plain
from genie.units import format_bytes, format_ns, format_rate

_UNITS: Mapping[str, Callable[[int], str]] = {
    "_bps": format_rate,
    "_bytes": format_bytes,
    "_ns": format_ns,
    "_ppb": lambda number: f"{number / 1e7:.7f}".rstrip("0").rstrip(".") + "%",
    "_milli": lambda number: f"{number / 1e3:.9g}",
}
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_SWITCHED = ("marking", "sending")  # and what ends in "_on": on or off, where others are true or not
_TOLD = {"true": "yes", "false": "no", "": "none"}


def expected_and_found(after: Mapping[str, Any], state: State, variables: Mapping[str, Any]) -> tuple[str, str]:
    """A state that is as its conditions want it, in words: what that is, and what was read."""
    wanted = {field: (said, plain(state.get(field))) for field, said in expectations(after, variables).items()}
    return _both(wanted) if wanted else ("read", "read")


def expected(after: Mapping[str, Any], variables: Mapping[str, Any]) -> str:
    """What the conditions want, in words."""
    return ", ".join(_phrase(field, said) for field, said in expectations(after, variables).items()) or "read"


def difference(after: Mapping[str, Any], wrong: Sequence[tuple[str, str, str]]) -> tuple[str, str]:
    """The first of `genie.faults.change.differences`, in words: what it had to be, and what was read."""
    field, wanted, found = wrong[0]
    words = _value(field, wanted), _value(field, found)
    if words[0] == words[1]:
        return f"{field} {wanted}", found  # alike but for what rounding takes away
    name = _name(field)
    return f"{name} {words[0]}", words[1] if len(after) == 1 else f"{name} {words[1]}"


def _both(fields: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    wanted = ", ".join(_phrase(field, said) for field, (said, _) in fields.items())
    if len(fields) == 1:
        ((field, (_, found)),) = fields.items()
        return wanted, _value(field, found)
    return wanted, ", ".join(_phrase(field, found) for field, (_, found) in fields.items())


def _phrase(field: str, said: str) -> str:
    return f"{_name(field)} {_value(field, said)}"


def _name(field: str) -> str:
    if field == "up":
        return "link"
    for unit in _UNITS:
        field = field.removesuffix(unit)
    return field.removesuffix("_on").removeprefix("is_").replace("_", " ")


def _value(field: str, said: str) -> str:
    if said in ("true", "false") and field == "up":
        return "up" if said == "true" else "down"
    if said in ("true", "false") and (field in _SWITCHED or field.endswith("_on")):
        return "on" if said == "true" else "off"
    unit = next((format_ for end, format_ in _UNITS.items() if field.endswith(end)), None)
    if unit is not None:
        return _NUMBER.sub(lambda found: unit(int(found.group())), said)
    return _TOLD.get(said, said)
