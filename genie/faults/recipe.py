"""Mechanisms: what a role in ``faults/`` can change, said in data beside its Ansible task.

``mechanism.yml`` says what the fault is on any gear, ``platforms/NAME.yml`` how it is read, made and undone on one
kind of node. A recipe (``conf/fault/*.yaml``) is a mechanism with parameters, targets and a window. Planning, dry runs,
conflict checks and evidence read the declarations here, so a new fault needs no Python unless its evidence or what
its tool prints is of a new kind. Reads files of the installation only; changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from genie.errors import ConfigError, closest
from genie.paths import roles_dir

PARAMETER_KINDS = ("rate", "ratio", "bytes", "time", "number", "choice", "host")
ACTS_ON = ("link", "port", "node", "host")
PLACED = ("egress", "far_ingress")
SPREADS = ("", "upstream")
RISKS = ("low", "medium", "high")
PLATFORMS = ("netns", "linux", "mlx5", "mlx5_inbox", "mlx5_vf", "infiniband", "sonic", "cumulus", "eos")
SWITCH_SYSTEMS = ("sonic", "cumulus", "eos")
CONDITIONS = ("not", "at_least", "at_most")
SUPPORTS = ("embedded", "lab", "stand-in")
"""Where a platform file is tested: on the embedded fabric, in virtual machines, against doubles of the gear's tools."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One knob. ``kind`` decides unit and conversion (docs/add-a-fault.md); ``default`` None means it must be given.

    ``of``: the port's own number that a percentage is of. ``choices`` for kind "choice". ``least``/``most`` bound a
    number, or a ratio (whose ``most`` is 1 only where losing everything makes sense). ``only``: the platforms that know
    it; all where empty.
    """

    name: str
    kind: str
    help: str
    default: Any = None
    of: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A role's declaration.

    ``acts_on``: whether a node's name and a count mean links, single ports, nodes or hosts. ``changes``: the thing that
    two faults cannot both change; ``puts_back``: what it changes and restores besides, at the node and, for a fault of
    nodes, at the nodes it is cabled to, so that no other fault may change that there. ``placed``: where the change for
    a port is made: at its own egress, or where its packets arrive. ``spread``: "upstream" where the ports that feed
    the switch of a faulted port are faulted with it.
    ``requires``: capabilities of the fabric. ``needs_port``: "ecn" where the port must mark.
    ``needs_run``: settings of the run without which the fault shows nothing. ``evidence``: rules of
    `genie.faults.evidence`. ``twin_counter``: total over all ports that a healthy twin must show above 0.
    """

    role: str
    summary: str
    hypothesis: str
    risk: str
    acts_on: str
    changes: str
    puts_back: tuple[str, ...]
    placed: str
    spread: str
    requires: tuple[str, ...]
    needs_port: tuple[str, ...]
    needs_run: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    evidence: tuple[str, ...]
    twin_counter: str
    folder: Path

    @property
    def platforms(self) -> tuple[str, ...]:
        """Kinds of node on which this role knows what to do."""
        return tuple(sorted({path.stem.partition(".")[0] for path in (self.folder / "platforms").glob("*.yml")}))


@dataclass(frozen=True, slots=True)
class Read:
    """A command and the parser (of `genie.faults.reading`) that makes fields of what it prints."""

    argv: tuple[str, ...]
    parse: str


@dataclass(frozen=True, slots=True)
class Step:
    """One command of ``do`` or ``undo``: words are Jinja. ``when``: expression that must hold; ``each``: expression
    giving a list, for one command an ``item``.
    """

    argv: tuple[str, ...]
    when: str = ""
    each: str = ""


@dataclass(frozen=True, slots=True)
class Platform:
    """How a role works on one kind of node (``platforms/NAME.yml``).

    ``later``: commands that follow ``do`` by ``later_after`` ns, if it is still in effect then. ``before``/``after``:
    what the fields read must be, before the change and while it is in effect. ``volatile``: fields that change by
    themselves, which an undo need not restore. ``deadman``: "warden", or "own" where the commands themselves carry a
    time limit on the target. ``risk`` overrides the mechanism's on this gear.
    """

    name: str
    support: str
    read: tuple[Read, ...]
    before: Mapping[str, Any]
    do: tuple[Step, ...]
    after: Mapping[str, Any]
    later_after: str
    later: tuple[Step, ...]
    undo: tuple[Step, ...]
    volatile: tuple[str, ...]
    deadman: str
    risk: str
    note: str


_KEYS = {
    "summary", "hypothesis", "risk", "acts_on", "changes", "placed", "requires", "needs_port", "needs_run",
    "parameters", "evidence", "twin_counter", "spread", "puts_back",
}  # fmt: skip
_PLATFORM_KEYS = {
    "support", "read", "before", "do", "later", "after", "undo", "volatile", "deadman", "risk", "note",
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
    raw = _mapping_file(path, _KEYS, ("summary", "hypothesis", "risk", "acts_on", "changes", "evidence"))
    raw.setdefault("placed", "egress")
    raw.setdefault("spread", "")
    for key, allowed in (("risk", RISKS), ("acts_on", ACTS_ON), ("placed", PLACED), ("spread", SPREADS)):
        _one_of(path, key, raw[key], allowed)
    return Mechanism(
        role=role,
        summary=str(raw["summary"]),
        hypothesis=" ".join(str(raw["hypothesis"]).split()),
        risk=str(raw["risk"]),
        acts_on=str(raw["acts_on"]),
        changes=str(raw["changes"]),
        puts_back=_texts(raw.get("puts_back")),
        placed=str(raw["placed"]),
        spread=str(raw["spread"]),
        requires=_texts(raw.get("requires")),
        needs_port=_texts(raw.get("needs_port")),
        needs_run=_texts(raw.get("needs_run")),
        parameters=tuple(_parameter(path, name, said) for name, said in (raw.get("parameters") or {}).items()),
        evidence=_texts(raw["evidence"]),
        twin_counter=str(raw.get("twin_counter", "")),
        folder=root / role,
    )


def find_platform(mechanism: Mechanism, offered: Sequence[str], marker: str) -> str:
    """The first of a node's platforms that the role knows, as a file's stem ("linux", "linux.bpf"); "" if none.

    A switch that also says "linux" says that our programs run there. What it forwards never meets its kernel, so
    Linux's own way of a role is not one there: tc and nft would find the packets of its CPU alone.
    """
    is_switch = any(platform in SWITCH_SYSTEMS for platform in offered)
    for platform in offered:
        if is_switch and platform not in SWITCH_SYSTEMS:
            continue
        for stem in (f"{platform}.{marker}", platform):
            if (mechanism.folder / "platforms" / f"{stem}.yml").is_file():
                return stem
    return ""


@cache
def load_platform(role: str, stem: str, folder: Path | None = None) -> Platform:
    """``platforms/STEM.yml`` of a role. Raises ConfigError for one that makes no sense."""
    path = (folder or roles_dir()) / role / "platforms" / f"{stem}.yml"
    raw = _mapping_file(path, _PLATFORM_KEYS, ("support", "read"))
    _one_of(path, "support", raw["support"], SUPPORTS)
    deadman = str(raw.get("deadman", "warden"))
    _one_of(path, "deadman", deadman, ("warden", "own"))
    if raw.get("risk"):
        _one_of(path, "risk", raw["risk"], RISKS)
    reads = raw["read"] if isinstance(raw["read"], list) else [raw["read"]]
    return Platform(
        name=stem,
        support=str(raw["support"]),
        read=tuple(Read(_words(path, read["argv"]), str(read["parse"])) for read in reads),
        before=_conditions(path, raw.get("before")),
        do=tuple(_step(path, step) for step in raw.get("do") or []),
        after=_conditions(path, raw.get("after")),
        later_after=str((raw.get("later") or {}).get("after", "")),
        later=tuple(_step(path, step) for step in (raw.get("later") or {}).get("do") or []),
        undo=tuple(_step(path, step) for step in raw.get("undo") or []),
        volatile=_texts(raw.get("volatile")),
        deadman=deadman,
        risk=str(raw.get("risk") or ""),
        note=" ".join(str(raw.get("note", "")).split()),
    )


def _mapping_file(path: Path, known: set[str], needed: Sequence[str]) -> dict[str, Any]:
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected a mapping")
    for key in raw:
        if key not in known:
            raise ConfigError(f"{path}: unknown key {key!r}", hint=closest(str(key), known))
    for key in needed:
        if not raw.get(key):
            raise ConfigError(f"{path}: key {key!r} is missing")
    return raw


def _one_of(path: Path, key: str, said: object, allowed: Sequence[str]) -> None:
    if said not in allowed:
        raise ConfigError(f"{path}: {key} is {said!r}", hint=closest(str(said), allowed))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def _words(path: Path, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{path}: expected the words of a command as a list, found {value!r}")
    return tuple(str(word) for word in value)


def _conditions(path: Path, said: object) -> dict[str, Any]:
    """``before`` or ``after``: a word that is misspelt must not become another condition."""
    given = said or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path}: expected conditions by field, found {said!r}")
    conditions: dict[str, Any] = dict(given)
    for field, condition in conditions.items():
        for word in condition if isinstance(condition, Mapping) else ():
            _one_of(path, f"the condition of {field}", word, CONDITIONS)
    return conditions


def _step(path: Path, said: object) -> Step:
    if isinstance(said, list):
        return Step(_words(path, said))
    if not isinstance(said, Mapping) or set(said) - {"argv", "when", "each"}:
        raise ConfigError(f"{path}: expected a list of words, or argv with when or each, found {said!r}")
    return Step(_words(path, said["argv"]), str(said.get("when", "")), str(said.get("each", "")))


def _parameter(path: Path, name: str, said: Mapping[str, Any]) -> Parameter:
    unknown = set(said) - {"kind", "help", "default", "of", "choices", "least", "most", "only"}
    if unknown:
        raise ConfigError(f"{path}: parameter {name} has unknown keys {', '.join(sorted(unknown))}")
    kind = str(said.get("kind", ""))
    _one_of(path, f"kind of parameter {name}", kind, PARAMETER_KINDS)
    return Parameter(
        name, kind, str(said.get("help", "")), said.get("default"), str(said.get("of", "")),
        _texts(said.get("choices")), said.get("least"), said.get("most"), _texts(said.get("only")),
    )  # fmt: skip
