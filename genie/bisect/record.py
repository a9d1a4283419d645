"""What a bisect found, as ``bisect.json`` in its folder. Only data and its file; `genie.bisect.report` shows it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genie import jsontext
from genie.errors import GenieError
from genie.results.records import from_plain, to_plain

FILE_NAME = "bisect.json"
FORMAT = "genie-bisect"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Culprit:
    """One of the guilty. ``kind`` is host, nic, link, switch or change; ``says`` what is wrong, in words.

    ``bad`` of ``asked`` measurements that touched it were bad. ``evidence`` are some of these, ``confirm`` commands.
    """

    name: str
    kind: str
    component: str
    says: str
    bad: int
    asked: int
    evidence: tuple[str, ...] = ()
    confirm: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another set of culprits that is not ruled out, with its chance."""

    culprits: tuple[str, ...]
    chance: float


@dataclass(frozen=True, slots=True)
class ProbeLine:
    """One probe, short: ``run`` is the name of its folder, ``bad`` names of what was bad, ``spoilt`` why it says
    nothing, ``busy`` whether the emulating machine was saturated.
    """

    number: int
    kind: str
    run: str
    asked: int
    bad: tuple[str, ...]
    spoilt: str
    busy: bool
    took_s: float


@dataclass(frozen=True, slots=True)
class BisectRecord:
    """``bisect.json``. ``word``: found, none or inconclusive (also where ``status`` is not "finished").

    ``duty`` below 1: intermittent. ``clear`` measurements that touched no culprit were well, of ``others`` in all.
    ``hidden`` are faults that were put on the fabric for this search, which it was not told. ``duration_s`` is what all
    probes took, also those before a kill.
    """

    name: str
    status: str
    word: str
    why: str
    mode: str
    created_ns: int
    seed: int
    reproduce: str
    topology: str
    fabric: str
    suspects: int
    culprits: tuple[Culprit, ...]
    confidence: float
    duty: float
    alternatives: tuple[Alternative, ...]
    probes: tuple[ProbeLine, ...]
    settings: Mapping[str, Any]
    clear: int = 0
    others: int = 0
    beyond_reach: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    path: str = ""
    duration_s: float = 0.0
    tracking: Mapping[str, str] = field(default_factory=dict)
    format: str = FORMAT
    version: int = VERSION


def read_record(path: Path) -> BisectRecord:
    """The record in a file. Raises GenieError that names what is wrong with it."""
    try:
        content = jsontext.parse(path.read_bytes())
    except (OSError, ValueError) as error:
        raise GenieError(f"{path} cannot be read: {error}") from error
    found = (content.get("format"), content.get("version")) if isinstance(content, dict) else (None, None)
    if found != (FORMAT, VERSION):
        raise GenieError(f"{path}: expected {FORMAT!r} version {VERSION}, found {found[0]!r} version {found[1]!r}")
    record = from_plain(BisectRecord, content, str(path))
    if not 0 <= record.confidence <= 1:
        raise GenieError(f"{path}.confidence: expected a chance between 0 and 1, found {record.confidence}")
    return record


def write_record(path: Path, record: BisectRecord) -> None:
    """Written beside and renamed: whoever reads finds the old one or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(json.dumps(to_plain(record), indent=1) + "\n")
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
