"""The cells of a sweep, the order they are run in, and the file that remembers both: ``sweep.json``.

It is written before the first run, so that ``genie resume`` finds what is missing however the sweep ended. A place
(`Slot`) is done when a directory of its number holds a run, or a folder of arms, that finished. Runs nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from genie import jsontext
from genie.errors import ConfigError

FILE_NAME = "sweep.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination: ``factors`` are the swept keys with the value each has here, ``overrides`` the whole line.

    ``configuration`` is the digest of what these made with the files of the configuration as they were; "" in sweeps
    from before it was kept.
    """

    number: int
    label: str
    factors: Mapping[str, str]
    overrides: tuple[str, ...]
    configuration: str = ""

    @property
    def words(self) -> str:
        """What sets it apart, for people."""
        return " ".join(f"{key}={value}" for key, value in self.factors.items()) or self.label


@dataclass(frozen=True, slots=True)
class Slot:
    """One run of a sweep: ``number`` in the order of running, the cell, and which repeat of it (from 0)."""

    number: int
    cell: int
    repeat: int


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A sweep, decided. ``arguments`` are the words of the command line, ``started_in`` the folder it was called in."""

    arguments: tuple[str, ...]
    started_in: str
    seed: int
    cells: tuple[Cell, ...]
    slots: tuple[Slot, ...]

    def cell_of(self, slot: Slot) -> Cell:
        """What runs there."""
        return self.cells[slot.cell]

    @property
    def factors(self) -> dict[str, list[str]]:
        """Each swept key with its values, in the order they were given; keys with one value are none."""
        found: dict[str, list[str]] = {}
        for cell in self.cells:
            for key, value in cell.factors.items():
                values = found.setdefault(key, [])
                if value not in values:
                    values.append(value)
        return {key: values for key, values in found.items() if len(values) > 1}

    def is_like(self, other: SweepPlan) -> bool:
        """Whether the cells of both are the same, so that one can go on where the other ended."""
        if len(self.cells) != len(other.cells):
            return False
        return all(
            (dict(a.factors), a.overrides) == (dict(b.factors), b.overrides)
            and (a.configuration == b.configuration or not (a.configuration and b.configuration))
            for a, b in zip(self.cells, other.cells, strict=True)
        )

    def write(self, directory: Path) -> bool:
        """Into ``directory``, which is made; whole, whatever moment it is killed at. False where it exists already.

        Raises ConfigError where it cannot be written.
        """
        text = json.dumps({"version": VERSION, **asdict(self)}, indent=1)
        beside = directory / f".{FILE_NAME}.{os.getpid()}.tmp"
        try:
            directory.mkdir(parents=True)
            beside.write_text(text + "\n")
            beside.replace(directory / FILE_NAME)
        except FileExistsError:
            if directory.is_dir():
                return False
            raise ConfigError(f"{directory} is in the way of a folder", hint="choose another with out=DIR") from None
        except OSError as error:
            raise ConfigError(
                f"cannot write the sweep's folder {directory}: {error.strerror}", hint="choose another with out=DIR"
            ) from error
        return True


def order(cells: int, repeats: int, *, shuffled: bool, seed: int) -> tuple[Slot, ...]:
    """Every cell once a block, a block a repeat, each block shuffled by itself (a randomised complete block design)."""
    chance = random.Random(seed)  # noqa: S311  whoever can guess the order gains nothing by it
    slots: list[Slot] = []
    for repeat in range(repeats):
        block = list(range(cells))
        if shuffled:
            chance.shuffle(block)
        slots += [Slot(len(slots) + place, cell, repeat) for place, cell in enumerate(block)]
    return tuple(slots)


def configuration_digest(mapping: Mapping[str, Any]) -> str:
    """16 hex digits of a cell's configuration; how the sweep as a whole goes is no part of it."""
    own = {key: value for key, value in mapping.items() if key not in ("sweep", "yes", "run_dir")}
    return hashlib.sha256(json.dumps(own, sort_keys=True, default=str).encode()).hexdigest()[:16]


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """While it is open no other process runs this sweep. Raises ConfigError where one does."""
    with (directory / FILE_NAME).open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another process is at this sweep: it holds {held.name}", hint="wait for its end, or end it"
            ) from error
        yield


def read_plan(directory: Path) -> SweepPlan:
    """The sweep of a directory. Raises ConfigError where it is none or cannot be read."""
    path = directory / FILE_NAME
    if not path.is_file():
        raise ConfigError(f"'{directory}' is not a sweep: it has no {FILE_NAME}", hint="genie resume SWEEP_DIR")
    try:
        found = jsontext.parse(path.read_text(encoding="utf-8"))
        if found["version"] != VERSION:
            raise ConfigError(f"{path} has version {found['version']}, this is version {VERSION}")
        cells = tuple(
            Cell(
                int(c["number"]),
                str(c["label"]),
                dict(c["factors"]),
                tuple(map(str, c["overrides"])),
                str(c.get("configuration", "")),
            )
            for c in found["cells"]
        )
        slots = tuple(Slot(int(s["number"]), int(s["cell"]), int(s["repeat"])) for s in found["slots"])
        if any(not 0 <= slot.cell < len(cells) for slot in slots):
            raise ValueError("a run of no cell")
        arguments = tuple(map(str, found["arguments"]))
        return SweepPlan(arguments, str(found["started_in"]), int(found["seed"]), cells, slots)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigError(f"{path} cannot be read as a sweep: {error!r}") from error


def folder_of(directory: Path, slot: Slot, label: str) -> Path:
    """A place for the slot's next try that no other has: ``3-ecn_off-moe``, then ``3-ecn_off-moe.2``."""
    base = directory / f"{slot.number}-{label[:80]}"
    tries = 1
    path = base
    while path.exists():
        tries += 1
        path = base.with_name(f"{base.name}.{tries}")
    return path


def finished(directory: Path, slots: Sequence[Slot]) -> dict[int, Path]:
    """Numbers of the slots that are done, with their directories."""
    done: dict[int, Path] = {}
    for slot in slots:
        for path in sorted(directory.glob(f"{slot.number}-*")):
            if _status(path) == "finished":
                done[slot.number] = path
    return done


def _status(path: Path) -> str:
    for name in ("aba.json", "manifest.json"):
        try:
            record: Any = jsontext.parse((path / name).read_text())
        except (OSError, ValueError):
            continue
        return str(record.get("status", "")) if isinstance(record, dict) else ""
    return ""
