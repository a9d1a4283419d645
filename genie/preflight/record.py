"""What a preflight found, as ``preflight.json`` in its folder, and the baseline that later commands look for.

`genie.preflight.command` writes both; ``genie report`` and bisecting read them. A baseline is the same record again as
``OUT/preflight/<fabric hash>.json``: the last preflight of this network with nothing out of line, however it was made.
Rates are model bit/s of payload, times model ns. Measures and prints nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from genie import jsontext, schema
from genie.errors import ConfigError, GenieError
from genie.results.records import digest, from_plain, to_plain
from genie.schema import ExperimentConfig

FILE_NAME = "preflight.json"
RUN_FOLDER = "run"
BASELINES = "preflight"
FORMAT = "genie-preflight"
VERSION = 1

Matrix = tuple[tuple[float | None, ...], ...]
"""[from][to], in the order of the hosts; None where nothing was measured."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """What one rail gave: ``name`` is "" where hosts have one way only.

    ``bandwidth_bps`` is the median of the repeats, ``*_low_bps`` and ``*_high_bps`` their extremes. ``latency_ns`` is
    half a round trip of a small message, the same in both directions.
    """

    name: str
    bandwidth_bps: Matrix
    bandwidth_low_bps: Matrix
    bandwidth_high_bps: Matrix
    latency_ns: Matrix

    @property
    def measured(self) -> int:
        """How many directions have a bandwidth."""
        return sum(value is not None for row in self.bandwidth_bps for value in row)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something out of line. ``what`` is "bandwidth" or "latency"; ``where`` "all", "host", "sends", "receives" or
    "pair" (``hosts`` then are its two, from and to); ``value`` the median of what is slow, ``typical`` what it was held
    against; ``against`` what that is: "others", "ports" or "before". ``text`` says it in a sentence part.
    """

    what: str
    where: str
    hosts: tuple[str, ...]
    rail: str
    value: float
    typical: float
    against: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class PreflightRecord:
    """``preflight.json``. ``settings`` are those of `PreflightConfig`, with what "auto" came to; ``schedule`` counts
    hosts, pairs, rounds and waves; ``baseline`` is the run that this one was compared with, ``kept`` the file that
    holds it as a baseline, and ``kept_why`` why there is none.
    """

    name: str
    status: str
    verdict: str
    why: str
    created_ns: int
    seed: int
    reproduce: str
    fabric_hash: str
    hosts: tuple[str, ...]
    topology: str
    fabric: str
    transport: str
    tool: str
    settings: Mapping[str, Any]
    schedule: Mapping[str, int]
    rails: tuple[Matrices, ...]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    path: str = ""
    baseline: str = ""
    baseline_ns: int = 0
    baseline_change_ratio: float | None = None
    kept: str = ""
    kept_why: str = ""
    duration_s: float = 0.0
    tracking: Mapping[str, str] = field(default_factory=dict)
    format: str = FORMAT
    version: int = VERSION


def fabric_hash(config: ExperimentConfig, topology_hash: str) -> str:
    """16 hex digits that two preflights of one network, over one transport, share.

    ``topology_hash`` is ``hashes["topology"]`` of a plan: the network as built, or the inventory's hosts and cables.
    """
    return digest({"network": topology_hash, "transport": schema.to_mapping(config)["transport"]})


def baseline_path(hash_of_fabric: str, out: Path) -> Path:
    """Where the baseline of a network is, below the folder of runs."""
    return out / BASELINES / f"{hash_of_fabric}.json"


def load_baseline(hash_of_fabric: str, out: Path = Path("runs")) -> PreflightRecord | None:
    """The last preflight kept for this network (`fabric_hash`); None if there is none.

    Raises GenieError for a file that is no preflight, or of a version this GENIE does not know.
    """
    path = baseline_path(hash_of_fabric, out)
    if not path.is_file():
        return None
    try:
        return read_record(path)
    except GenieError as error:
        error.hint = error.hint or "delete it: the next good preflight of this network takes its place"
        raise


def read_record(path: Path) -> PreflightRecord:
    """The record in a file. Raises GenieError that names what is wrong with it."""
    try:
        content = jsontext.parse(path.read_bytes())
    except (OSError, ValueError) as error:
        raise GenieError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
        found = (
            f"{content.get('format')!r} version {content.get('version')!r}" if isinstance(content, dict) else "other"
        )
        raise GenieError(f"{path}: expected {FORMAT!r} version {VERSION}, found {found}")
    record = from_plain(PreflightRecord, content, str(path))
    _check(record, str(path))
    return record


def _check(record: PreflightRecord, where: str) -> None:
    """What the types do not say: maps are square and of finite values, hosts are known, text can be shown."""
    count = len(record.hosts)
    if count < 2:
        raise GenieError(f"{where}.hosts: expected two or more, found {count}")
    for number, rail in enumerate(record.rails):
        for name in ("bandwidth_bps", "bandwidth_low_bps", "bandwidth_high_bps", "latency_ns"):
            matrix, here = getattr(rail, name), f"{where}.rails[{number}].{name}"
            if [len(row) for row in matrix] != [count] * count:
                raise GenieError(f"{here}: expected {count} rows of {count} values, one for each host")
            for a, b, value in cells(matrix):
                if not 0 < value < math.inf:
                    raise GenieError(f"{here}[{a}][{b}]: expected a finite number above 0, found {value}")
    for finding in record.findings:
        wanted = {"all": len(finding.hosts), "pair": 2}.get(finding.where, 1)
        if len(finding.hosts) != wanted or not set(finding.hosts) <= set(record.hosts):
            raise GenieError(f"{where}.findings: expected {wanted} of its hosts, found {list(finding.hosts)}")
    for name in ("message_bytes", "ping_bytes", "channels"):
        if not isinstance(record.settings.get(name, 1), int):
            raise GenieError(f"{where}.settings.{name}: expected int, found {record.settings[name]!r}")
    words = [to_plain(replace(record, rails=())), [rail.name for rail in record.rails]]
    try:
        json.dumps(words, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise GenieError(f"{where} has text that cannot be shown: {error}") from error


def write_record(path: Path, record: PreflightRecord) -> None:
    """Written beside and renamed: whoever reads finds the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(json.dumps(to_plain(record), indent=1) + "\n")
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def create_folder(config: ExperimentConfig, name: str) -> Path:
    """A new folder ``OUT/<UTC time>-<name, cut to 80>-<4 hex>``, or exactly ``run_dir``; ConfigError if it is taken."""
    if config.run_dir:
        path = Path(config.run_dir)
    else:
        stamp = datetime.fromtimestamp(time.time(), UTC).strftime("%Y%m%d-%H%M%S")
        path = Path(config.out) / f"{stamp}-{name[:80]}-{secrets.token_hex(2)}"
    path = path.absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} exists and is not an empty directory", key="run_dir")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot create the folder {path}: {error.strerror}", hint="choose another with out=DIR"
        ) from error
    return path


def cells(matrix: Matrix) -> Iterator[tuple[int, int, float]]:
    """(from, to, value) of all that was measured."""
    for a, row in enumerate(matrix):
        for b, value in enumerate(row):
            if value is not None:
                yield a, b, value


def matrix_of(count: int, values: Mapping[tuple[int, int], float]) -> Matrix:
    """The matrix that has these values at [from, to]."""
    return tuple(tuple(values.get((a, b)) for b in range(count)) for a in range(count))


def comparable(record: PreflightRecord, before: PreflightRecord) -> str:
    """Why two preflights of one network cannot be held against each other; "" if they can."""
    if record.hosts != before.hosts:
        return "it had other hosts"
    if record.tool != before.tool:
        return f"it was measured with {before.tool}, this one with {record.tool}"
    names: Sequence[str] = ("message_bytes", "ping_bytes", "channels")
    other = [name for name in names if record.settings.get(name) != before.settings.get(name)]
    if other:
        return f"it had another {other[0]}: {before.settings.get(other[0])}"
    if [rail.name for rail in record.rails] != [rail.name for rail in before.rails]:
        return "it had other rails"
    return ""
