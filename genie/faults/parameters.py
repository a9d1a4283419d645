"""A fault's parameters as a user writes them ("10%", "25Mbps", "5ms") → numbers for one port or node. Pure.

`genie.faults.plan` calls `convert` for each target, since a share is of the target's own number. Every refusal names
the key, what was expected and what was found.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from genie.errors import ConfigError, PlanError, closest
from genie.faults.recipe import Parameter
from genie.topology.model import Port
from genie.units import format_ns, format_rate, parse_bytes, parse_ns, parse_rate_bps, parse_ratio

if TYPE_CHECKING:
    from genie.faults.plan import RunFacts

PPB = 1_000_000_000
LEAST_RATE_BPS = 8000
_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")


def convert(
    fault: str, parameter: Parameter, said: object, target: str, port: Port | None, facts: RunFacts
) -> dict[str, int | str]:
    """The names and values under which a role is given a parameter, for one target.

    ``rate`` → ``NAME_bps`` on the wire (dilated, whole bytes a second); ``ratio`` → ``NAME_ppb``; ``bytes`` →
    ``NAME_bytes``; ``time`` → ``NAME_ns`` on the wire (dilated); ``number`` and ``choice`` → ``NAME``; ``host`` →
    ``NAME`` and ``NAME_address``. Raises ConfigError or PlanError.
    """
    key = f"fault.{fault}.parameters.{parameter.name}"
    if isinstance(said, bool) or not isinstance(said, str | int | float):
        raise ConfigError(f"expected {parameter.help}, found {said!r}", key=key)
    match parameter.kind:
        case "rate":
            return {f"{parameter.name}_bps": _rate(key, said, target, port, facts)}
        case "ratio":
            return {f"{parameter.name}_ppb": _ratio(key, parameter, said)}
        case "bytes":
            return {f"{parameter.name}_bytes": _bytes(key, parameter, said, target, port)}
        case "time":
            return {f"{parameter.name}_ns": _time(key, parameter, said, facts)}
        case "number":
            return {parameter.name: _number(key, parameter, said)}
        case "choice":
            if str(said) not in parameter.choices:
                raise ConfigError(f"found {said!r}; {closest(str(said), parameter.choices)}", key=key)
            return {parameter.name: str(said)}
    if str(said) not in facts.addresses:
        raise PlanError(f"{key}: there is no host {said!r}", hint=closest(str(said), facts.addresses))
    if str(said) == target.partition("/")[0]:
        raise PlanError(f"{key}: {said} is a target itself", hint=f"leave it out of fault.{fault}.targets")
    return {parameter.name: str(said), f"{parameter.name}_address": facts.addresses[str(said)]}


def _rate(key: str, said: str | float, target: str, port: Port | None, facts: RunFacts) -> int:
    if port is None:
        model_bps: float = parse_rate_bps(said, key=key)
    else:
        own_bps = port.model.rate_bps
        percent = isinstance(said, str) and said.strip().endswith("%")
        model_bps = parse_ratio(said, key=key) * own_bps if percent else parse_rate_bps(said, key=key)
        if not 0 < model_bps < own_bps:
            raise PlanError(
                f"{key}: expected a rate above 0 and below the port's own, found {said} at {target}, "
                f"which has {format_rate(own_bps)}"
            )
    wire_bps = int(model_bps / facts.time_dilation) // 8 * 8  # tbf counts whole bytes a second
    if wire_bps < LEAST_RATE_BPS:
        raise PlanError(f"{key}: {said} is {wire_bps} bit/s on the wire of {target}; the shaper needs 8 kbit/s")
    return wire_bps


def _ratio(key: str, parameter: Parameter, said: str | float) -> int:
    ppb = round(parse_ratio(said, key=key) * PPB)
    if ppb == 0:
        raise PlanError(f"{key}: {said} is below one in a billion, which would change nothing")
    if parameter.least is not None and ppb < round(parameter.least * PPB):
        raise PlanError(f"{key}: expected {parameter.help}, found {said}")
    if parameter.most is not None and ppb > round(parameter.most * PPB):
        raise PlanError(f"{key}: expected {parameter.help}, at most {parameter.most:g}, found {said}")
    if ppb >= PPB and (parameter.most or 0) < 1:
        raise PlanError(f"{key}: {said} would lose every packet, so that no rank could finish; expected less")
    return ppb


def _bytes(key: str, parameter: Parameter, said: str | float, target: str, port: Port | None) -> int:
    if isinstance(said, str) and said.strip().endswith("%"):
        if port is None or not parameter.of:
            raise ConfigError(f"expected {parameter.help}, found {said!r}", key=key)
        percent = _PERCENT.fullmatch(said)
        if percent is None:
            raise ConfigError(f"expected {parameter.help}, found {said!r}", key=key)
        own = _own(port, parameter.of)
        if own is None:
            raise PlanError(f"{key}: {said} of {parameter.of}, which {target} does not have; give it in bytes")
        found = round(float(percent[1]) / 100 * own)
    else:
        found = parse_bytes(said, key=key)
    if found < max(1.0, parameter.least or 1.0):
        raise PlanError(f"{key}: expected {parameter.help}, found {said} ({found} bytes at {target})")
    return found


def _own(port: Port, of: str) -> int | None:
    if of == "limit_bytes":
        return port.model.limit_bytes
    if port.model.ecn is None:
        return None
    return {"kmin_bytes": port.model.ecn.kmin_bytes, "kmax_bytes": port.model.ecn.kmax_bytes}[of]


def _time(key: str, parameter: Parameter, said: str | float, facts: RunFacts) -> int:
    wire_ns = round(parse_ns(str(said), key=key) * facts.time_dilation)
    if not (parameter.least or 0) <= wire_ns <= (parameter.most or math.inf):
        dilated = f", which is {format_ns(wire_ns)} on the wire" if facts.time_dilation != 1 else ""
        raise PlanError(f"{key}: expected {parameter.help}, found {said}{dilated}")
    return wire_ns


def _number(key: str, parameter: Parameter, said: str | float) -> int:
    try:
        number = float(said)
    except ValueError:
        raise ConfigError(f"expected {parameter.help}, found {said!r}", key=key) from None
    if not number.is_integer() or not (parameter.least or 0) <= number <= (parameter.most or 2**31):
        raise ConfigError(
            f"expected a whole number from {parameter.least or 0:g} to {parameter.most or 2**31:g}, found {said}",
            key=key,
        )
    return int(number)
