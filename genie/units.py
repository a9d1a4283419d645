"""Quantities with units at the edge, integers inside.

``"400Gbps"`` ↔ 400_000_000_000 bit/s, ``"512KiB"`` ↔ 524_288 bytes, ``"1.5ms"`` ↔ 1_500_000 ns. The one module
that parses or prints a unit. Rates are decimal (1 kbps = 1000 bit/s), as network people mean them; sizes take
both decimal (kB, MB) and binary (KiB, MiB) forms. Standard library only.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from genie.errors import ConfigError

_NUMBER = re.compile(r"^\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/%]*)\s*$")

_RATE = {"": 1, "bps": 1, "kbps": 10**3, "mbps": 10**6, "gbps": 10**9, "tbps": 10**12,
         "bit/s": 1, "kbit/s": 10**3, "mbit/s": 10**6, "gbit/s": 10**9, "tbit/s": 10**12,
         "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}  # fmt: skip
_SIZE = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
         "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip
_TIME = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}

MAX_BYTES = 2**63 - 1


def _parse(text: str | int | float, table: dict[str, int], what: str, example: str, key: str) -> int:
    if isinstance(text, bool):
        raise ConfigError(f"expected a {what} such as {example!r}, found {text}", key=key)
    match = _NUMBER.match(str(text))
    scale = table.get(match.group(2).lower()) if match else None
    if match is None or scale is None:
        raise ConfigError(f"expected a {what} such as {example!r}, found {str(text)!r}", key=key)
    try:
        value = int(Decimal(match.group(1).replace("_", "")) * scale)
    except (InvalidOperation, OverflowError) as error:
        raise ConfigError(f"expected a {what} such as {example!r}, found {str(text)!r}", key=key) from error
    if value > MAX_BYTES:
        raise ConfigError(f"{what} {str(text)!r} is above 2^63-1", key=key)
    return value


def parse_rate_bps(text: str | int | float, *, key: str = "") -> int:
    """Bits a second from ``"400Gbps"``, ``"100mbit"`` or a plain number of bit/s."""
    return _parse(text, _RATE, "rate", "100Mbps", key)


def parse_bytes(text: str | int | float, *, key: str = "") -> int:
    """Bytes from ``"512KiB"``, ``"1MB"`` or a plain number of bytes."""
    return _parse(text, _SIZE, "size", "512KiB", key)


def parse_ns(text: str | int | float, *, key: str = "") -> int:
    """Nanoseconds from ``"20us"`` or ``"1.5ms"``. Plain numbers other than 0 are refused: no unit is implied."""
    if str(text).strip() in {"0", "0.0"}:
        return 0
    return _parse(text, _TIME, "duration", "20ms", key)


def parse_ratio(text: str | int | float, *, key: str = "") -> float:
    """A ratio in [0, 1] from ``0.1`` or ``"10%"``."""
    match = _NUMBER.match(str(text))
    if isinstance(text, bool) or match is None or match.group(2) not in {"", "%"}:
        raise ConfigError(f"expected a ratio such as 0.1 or '10%', found {str(text)!r}", key=key)
    value = float(match.group(1).replace("_", "")) / (100 if match.group(2) else 1)
    if not 0 <= value <= 1:
        raise ConfigError(f"a ratio lies between 0 and 1, found {str(text)!r}", key=key)
    return value


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    for size, unit in steps:
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}"
    size, unit = steps[-1]
    return f"{value / size:.4g} {unit}"


def format_rate(bps: float) -> str:
    """``100 Mb/s``: decimal, four significant digits."""
    return _scaled(bps, [(1e12, "Tb/s"), (1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s"), (1, "b/s")])


def format_bytes(size: float) -> str:
    """``512 KiB``: binary, four significant digits."""
    return _scaled(size, [(2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")])


def format_ns(ns: float) -> str:
    """``1.5 ms``: four significant digits."""
    return _scaled(ns, [(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")])
