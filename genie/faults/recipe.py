"""Mechanisms: what a role in ``faults/`` can change, said in its ``mechanism.yml`` beside the Ansible tasks.

A recipe (``conf/fault/*.yaml``) is a mechanism with parameters and targets. Planning, dry runs, conflict checks and
evidence read the declaration here, so a new fault needs no Python unless its evidence is of a new kind. Reads files
of the installation only; changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from genie.errors import ConfigError, closest
from genie.paths import roles_dir

PARAMETER_KINDS = ("rate", "ratio", "bytes")
ACTS_ON = ("link", "port")
PLACED = ("egress", "far_ingress")
RISKS = ("low", "medium", "high")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One knob. ``kind`` decides unit and conversion: a "rate" may be "10%" of the port's own or absolute."""

    name: str
    kind: str
    help: str


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A role's declaration.

    ``acts_on``: whether a node's name and a count mean links or single ports. ``changes``: the thing on a port that
    two faults cannot both change. ``placed``: where the change for a port is made: at its own egress, or where its
    packets arrive. ``requires``: capabilities of the fabric. ``needs_port``: "ecn" where the port must mark.
    ``needs_run``: settings of the run without which the fault shows nothing. ``undo``: text of the undo for dry runs.
    ``twin_counter``: total over all ports that a healthy twin must show above 0, else the fault took nothing away.
    """

    role: str
    summary: str
    hypothesis: str
    risk: str
    acts_on: str
    changes: str
    placed: str
    requires: tuple[str, ...]
    needs_port: tuple[str, ...]
    needs_run: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    evidence: tuple[str, ...]
    undo: tuple[str, ...]
    twin_counter: str
    folder: Path


_KEYS = {
    "summary", "hypothesis", "risk", "acts_on", "changes", "placed", "requires", "needs_port", "needs_run",
    "parameters", "evidence", "undo", "twin_counter",
}  # fmt: skip


def roles(folder: Path | None = None) -> tuple[str, ...]:
    """Names of all mechanisms."""
    root = folder or roles_dir()
    return tuple(sorted(path.parent.name for path in root.glob("*/mechanism.yml")))


@cache
def load_mechanism(role: str, folder: Path | None = None) -> Mechanism:
    """The declaration of ``role``. Raises ConfigError for an unknown role or a declaration that makes no sense."""
    root = folder or roles_dir()
    if role not in roles(root):
        raise ConfigError(f"there is no fault role {role!r}", key="fault", hint=closest(role, roles(root)))
    path = root / role / "mechanism.yml"
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{path}: expected a mapping")
    for key in raw:
        if key not in _KEYS:
            raise ConfigError(f"{path}: unknown key {key!r}", hint=closest(str(key), _KEYS))
    for key in ("summary", "hypothesis", "risk", "acts_on", "changes", "placed", "evidence", "undo"):
        if not raw.get(key):
            raise ConfigError(f"{path}: key {key!r} is missing")
    for key, allowed in (("risk", RISKS), ("acts_on", ACTS_ON), ("placed", PLACED)):
        if raw[key] not in allowed:
            raise ConfigError(f"{path}: {key} is {raw[key]!r}", hint=closest(str(raw[key]), allowed))
    return Mechanism(
        role=role,
        summary=str(raw["summary"]),
        hypothesis=" ".join(str(raw["hypothesis"]).split()),
        risk=str(raw["risk"]),
        acts_on=str(raw["acts_on"]),
        changes=str(raw["changes"]),
        placed=str(raw["placed"]),
        requires=_texts(raw.get("requires")),
        needs_port=_texts(raw.get("needs_port")),
        needs_run=_texts(raw.get("needs_run")),
        parameters=tuple(_parameter(path, name, said) for name, said in (raw.get("parameters") or {}).items()),
        evidence=_texts(raw["evidence"]),
        undo=_texts(raw["undo"]),
        twin_counter=str(raw.get("twin_counter", "")),
        folder=root / role,
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def _parameter(path: Path, name: str, said: Mapping[str, object]) -> Parameter:
    kind = str(said.get("kind", ""))
    if kind not in PARAMETER_KINDS:
        raise ConfigError(f"{path}: parameter {name} is of kind {kind!r}", hint=closest(kind, PARAMETER_KINDS))
    return Parameter(name, kind, str(said.get("help", "")))
