"""The typed form of an experiment, and the one place where configuration is checked.

`parse_config` turns the plain mapping that Hydra composed (or a run directory's ``config.yaml``) into a frozen
`ExperimentConfig`; whatever it lets through is known by name, of the right type, and complete. The dataclass of
a workload, topology, fabric, transport or fault lives with its part and is found through that part's registry.

A field whose name ends in ``_bytes``, ``_bps``, ``_ns`` or ``_ratio`` also takes text with a unit ("512KiB",
"100Mbps", "20us", "10%") and holds the plain number. Standard library only; never reads a file.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import math
import shlex
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from genie.errors import ConfigError, closest
from genie.results.thresholds import Thresholds
from genie.sweep.config import SweepConfig
from genie.units import parse_bytes, parse_ns, parse_rate_bps, parse_ratio

Registry = Mapping[str, tuple[type[Any], str]]


DEFAULT_CHOICES: Mapping[str, str] = {
    "workload": "moe",
    "topology": "leaf_spine",
    "transport": "tcp",
    "fabric": "netns",
}
"""Groups of which exactly one choice is made, with the choice that is made when the user makes none."""

DEFAULT_FILES: Mapping[str, str] = {**DEFAULT_CHOICES, "collective": "auto"}
"""The files that are chosen when the user chooses none."""

_REGISTRIES: Mapping[str, tuple[str, str]] = {
    "workload": ("genie.workload.config", "WORKLOADS"),
    "topology": ("genie.topology.config", "TOPOLOGIES"),
    "transport": ("genie.transport", "TRANSPORTS"),
    "fabric": ("genie.fabric.config", "FABRICS"),
}
_CODE_KEYS = frozenset({"_target_", "_partial_", "_args_", "_recursive_", "_convert_"})


@dataclass(frozen=True, slots=True)
class Choice:
    """Which choice of a group was made: file name ``name``, dataclass ``kind``; ``is_default`` if not by the user."""

    kind: str
    name: str
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class RecordConfig:
    """What the event files hold: ``messages`` keeps a record of every message beside those of operators."""

    messages: bool = True


@dataclass(frozen=True, slots=True)
class MlflowConfig:
    """Where results go after the run. ``uri`` "" means MLFLOW_TRACKING_URI, else a SQLite file in ``out``."""

    enabled: bool = True
    uri: str = ""
    experiment: str = "genie"


@dataclass(frozen=True, slots=True)
class TrackingConfig:
    """Experiment tracking: MLflow only."""

    mlflow: MlflowConfig = MlflowConfig()


@dataclass(frozen=True, slots=True)
class ReportConfig:
    """What is written beside the numbers: ``timeline`` is the Perfetto/Chrome trace, ``html`` the report as a page."""

    timeline: bool = True
    html: bool = True


@dataclass(frozen=True, slots=True)
class NoFault:
    """``fault=none``: a healthy run that is asked for as such, the control of an A/A comparison."""

    role: Literal["none"] = "none"

    @property
    def selectors(self) -> tuple[str, ...]:
        """It touches nothing."""
        return ()


@dataclass(frozen=True, slots=True)
class StopConfig:
    """What ends a run that is going wrong (docs/safety.md); None: not watched.

    ``stall``: no rank gets on for so long, less than ``timeout``. ``drops_outside``, ``retransmits_outside``: so many
    packets may be dropped, so many segments sent again, at ports and hosts outside the faults' blast radius.
    """

    stall: str | None = None
    drops_outside: int | None = None
    retransmits_outside: int | None = None

    def __post_init__(self) -> None:
        if self.stall is not None and parse_ns(self.stall, key="stall") < 1_000_000_000:
            raise ConfigError(f"must be at least 1s, found {self.stall!r}", key="stall")
        for key in ("drops_outside", "retransmits_outside"):
            limit = getattr(self, key)
            if limit is not None and limit < 0:
                raise ConfigError(f"expected a count from 0 up, found {limit}", key=key)


@dataclass(frozen=True, slots=True)
class SafetyConfig:
    """Limits of what faults may do (docs/safety.md).

    ``ttl``: when the dead-man's switch on a target undoes a fault by itself; never above ``max_ttl``. ``max_hosts``,
    ``max_links``: how many faults may touch; None is 1024 and 4096 on an emulated fabric, 8 and 16 on real hosts.
    ``kill_switch``: while this file exists nothing runs, and what runs is stopped; "" for none.
    """

    ttl: str = "10min"
    max_ttl: str = "1h"
    max_hosts: int | None = None
    max_links: int | None = None
    kill_switch: str = "/run/genie/KILL"
    stop: StopConfig = StopConfig()

    def __post_init__(self) -> None:
        for key in ("ttl", "max_ttl"):
            if parse_ns(getattr(self, key), key=key) < 1_000_000_000:
                raise ConfigError(f"must be at least 1s, found {getattr(self, key)!r}", key=key)
        for key in ("max_hosts", "max_links"):
            limit = getattr(self, key)
            if limit is not None and limit < 0:
                raise ConfigError(f"expected a count from 0 up, found {limit}", key=key)
        if self.kill_switch and (not self.kill_switch.startswith("/") or any(ord(c) < 32 for c in self.kill_switch)):
            raise ConfigError(f"expected an absolute path, or nothing, found {self.kill_switch!r}", key="kill_switch")

    @property
    def ttl_ns(self) -> int:
        """``ttl`` in ns."""
        return parse_ns(self.ttl, key="safety.ttl")

    @property
    def max_ttl_ns(self) -> int:
        """``max_ttl`` in ns."""
        return parse_ns(self.max_ttl, key="safety.max_ttl")


@dataclass(frozen=True, slots=True)
class ExperimentConfig:
    """One experiment, complete.

    ``workload``, ``topology``, ``transport``, ``fabric`` are instances of the chosen kind's dataclass, ``choices``
    says which; ``fault`` maps names to faults, empty for a healthy run; ``collective`` is the CollectivesConfig.
    ``out`` is the folder of run directories; ``run_dir`` "" means ``out``/<time>-<name>. ``baseline`` is "auto",
    "none", a run directory or the ``name`` of earlier runs. ``warmup`` iterations are run first and not measured.
    ``expect`` makes another verdict exit with 1. ``timeout`` ends a run that makes no progress. ``protocol`` "aba"
    runs baseline, fault and baseline on one fabric. ``allow_risk`` is the highest risk a fault may have. ``yes``
    answers what would be asked. ``choices`` is the one field that is no key.
    """

    workload: Any
    topology: Any
    transport: Any
    fabric: Any
    fault: Mapping[str, Any]
    collective: Any
    name: str = ""
    seed: int = 1
    warmup: int = 1
    out: str = "runs"
    run_dir: str = ""
    baseline: str = "auto"
    dry_run: bool = False
    verify: bool = False
    expect: Literal["ok", "degraded"] | None = None
    timeout: str = "30s"
    protocol: Literal["single", "aba"] = "single"
    allow_risk: Literal["low", "medium", "high"] = "medium"
    safety: SafetyConfig = SafetyConfig()
    record: RecordConfig = RecordConfig()
    tracking: TrackingConfig = TrackingConfig()
    report: ReportConfig = ReportConfig()
    judge: Thresholds = field(default_factory=Thresholds)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    yes: bool = False
    choices: Mapping[str, Choice] = field(default_factory=dict)

    @property
    def timeout_ns(self) -> int:
        """``timeout`` in ns."""
        return parse_ns(self.timeout, key="timeout")

    @property
    def label(self) -> str:
        """``name``, or what sets the run apart: faults first, then the workload."""
        return self.name or f"{'+'.join(self.fault) or 'healthy'}-{self.choices['workload'].name}"


TOP_LEVEL_KEYS: tuple[str, ...] = tuple(f.name for f in dataclasses.fields(ExperimentConfig) if f.name != "choices")


def registry(group: str) -> Registry:
    """Kinds of a group: name → (dataclass, one line about it)."""
    module, attribute = _REGISTRIES[group]
    return cast(Registry, getattr(importlib.import_module(module), attribute))


def parse_config(mapping: Mapping[str, Any], choices: Mapping[str, Choice] | None = None) -> ExperimentConfig:
    """Check a composed configuration and give it types.

    ``choices`` tells the file names that were chosen; a group's own ``name`` key tells its kind. Raises ConfigError
    with the dotted key and the closest name that exists.
    """
    refuse_code(mapping)
    refuse_unknown(mapping, TOP_LEVEL_KEYS, "")
    groups = (*DEFAULT_CHOICES, "fault", "collective")
    hints = typing.get_type_hints(ExperimentConfig)
    values = {key: convert(value, hints[key], key) for key, value in mapping.items() if key not in groups}
    _check_seed(values.get("seed", 1), "seed")
    made: dict[str, Choice] = {}
    for group in DEFAULT_CHOICES:
        made[group], values[group] = _parse_group(
            group, mapping.get(group), (choices or {}).get(group), values.get("seed")
        )
    values["fault"] = _parse_faults(mapping.get("fault"))
    values["collective"] = build(
        _collectives_config(), _as_mapping(mapping.get("collective"), "collective"), "collective"
    )
    config = ExperimentConfig(**values, choices=made)
    if config.timeout_ns <= 0:
        raise ConfigError(f"must be above 0, found {config.timeout!r}", key="timeout")
    stall = config.safety.stop.stall
    if stall is not None and parse_ns(stall, key="safety.stop.stall") >= config.timeout_ns:
        raise ConfigError(
            f"must be below timeout ({config.timeout}), found {stall!r}: ranks would end before it",
            key="safety.stop.stall",
        )
    if config.protocol == "aba" and not config.fault:
        raise ConfigError(
            "aba compares a fault with the runs before and after it, and there is none",
            key="protocol",
            hint="add fault=NAME; fault=none compares a healthy network with itself",
        )
    if config.protocol == "aba" and config.baseline != "auto":
        raise ConfigError(f"protocol=aba brings its own baselines, found {config.baseline!r}", key="baseline")
    if not 0 <= config.warmup < 2**20:
        raise ConfigError(f"must lie between 0 and 2^20, found {config.warmup}", key="warmup")
    for key in ("name", "out", "run_dir"):
        text = getattr(config, key)
        if (
            any(ord(c) < 32 for c in text)
            or (key == "name" and "/" in text)
            or (key == "name" and text.startswith("."))
        ):
            raise ConfigError(f"{text!r} cannot be part of a path", key=key)
    if not config.out:
        raise ConfigError("names the folder of run directories and may not be empty", key="out")
    return config


def to_mapping(config: ExperimentConfig) -> dict[str, Any]:
    """Plain values that `parse_config` reads back to an equal configuration: the run directory's ``config.yaml``."""
    plain: dict[str, Any] = {}
    for key in TOP_LEVEL_KEYS:
        value = getattr(config, key)
        plain[key] = _plain(value)
        if key in DEFAULT_CHOICES:
            plain[key] = {"name": config.choices[key].kind, **plain[key]}
    return plain


def reproduce_line(overrides: Iterable[str], *, command: Sequence[str] = ("genie",)) -> str:
    """The shell line that runs the same again."""
    return shlex.join([*command, *overrides])


def refuse_code(value: Any, path: str = "") -> None:
    """Raise ConfigError where a key would name code to call (``_target_`` and its kin), at any depth."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            where = f"{path}.{key}" if path else str(key)
            if str(key) in _CODE_KEYS:
                raise ConfigError("configuration never names code to run", key=where, hint="remove this key")
            refuse_code(inner, where)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            refuse_code(inner, f"{path}[{index}]")


def refuse_unknown(mapping: Mapping[str, Any], known: Iterable[str], path: str) -> None:
    """Raise ConfigError for the first key that is not in ``known``, with the closest that is."""
    names = list(known)
    for key in mapping:
        if key not in names:
            where = f"{path}.{key}" if path else str(key)
            raise ConfigError(f"there is no such key{suggestion(str(key), names)}", key=where)


def key_owners(key: str) -> list[str]:
    """Groups that have a key of this name in one of their kinds: where somebody who left the group out meant it."""
    owners = [
        group
        for group in DEFAULT_CHOICES
        if any(key in {f.name for f in dataclasses.fields(cls)} for cls, _ in registry(group).values())
    ]
    return owners + ["collective"] * (key in {f.name for f in dataclasses.fields(_collectives_config())})


def _collectives_config() -> type[Any]:
    return cast(type[Any], importlib.import_module("genie.collectives.config").CollectivesConfig)


def _as_mapping(value: Any, path: str) -> Mapping[str, Any]:
    if value is None or value == []:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"expected keys and values, found {_shown(value)}", key=path)
    return value


def _parse_group(group: str, value: Any, choice: Choice | None, seed: Any) -> tuple[Choice, Any]:
    """``name`` inside the group says which kind it is; without it the name of the chosen file does.

    A kind with a ``seed`` of its own takes the experiment's where it gives none.
    """
    kinds = registry(group)
    content = dict(_as_mapping(value, group))
    kind = content.pop("name", choice.name if choice else None)
    if kind is None:
        raise ConfigError(f"nothing is chosen; {_listed(kinds)}", key=group)
    if kind not in kinds:
        if choice is not None and choice.name == kind:
            raise ConfigError(
                f"file {group}/{kind}.yaml must say which kind it is; {_listed(kinds)}", key=f"{group}.name"
            )
        raise ConfigError(f"there is no {group} {_shown(kind)}{suggestion(str(kind), kinds)}", key=f"{group}.name")
    if choice is not None and choice.name in kinds and choice.name != kind:
        raise ConfigError(f"must stay {choice.name!r}, found {kind!r}; choose with {group}={kind}", key=f"{group}.name")
    cls = kinds[kind][0]
    own = {f.name for f in dataclasses.fields(cls)}
    if "name" in own:
        content["name"] = kind
    if "seed" in own and seed is not None:
        content.setdefault("seed", seed)
    name, is_default = (choice.name, choice.is_default) if choice else (kind, False)
    made = build(cls, content, group)
    if "seed" in own:
        _check_seed(made.seed, f"{group}.seed")
    return Choice(kind, name, is_default), made


def _check_seed(seed: int, key: str) -> None:
    """Python's generator takes the absolute value: -1 would be a second name of 1."""
    if not 0 <= seed < 2**63:
        raise ConfigError(f"must lie between 0 and 2^63-1, found {seed}", key=key)


def _parse_faults(value: Any) -> dict[str, Any]:
    faults = _as_mapping(value, "fault")
    if not faults:
        return {}
    cls = cast(type[Any], importlib.import_module("genie.faults.config").FaultConfig)
    for name, content in faults.items():
        if not isinstance(content, Mapping):
            raise ConfigError(
                f"expected the settings of a fault, found {_shown(content)}",
                key=f"fault.{name}",
                hint="a file in conf/fault begins with the line '# @package fault.NAME'",
            )
        if "role" not in content:
            raise ConfigError(
                f"sets values of fault '{name}', which was not chosen", key=f"fault.{name}", hint=f"add fault={name}"
            )
    if "none" in faults and len(faults) > 1:
        raise ConfigError("goes alone: it says that there is no fault", key="fault.none")
    return {
        name: build(NoFault if name == "none" else cls, content, f"fault.{name}") for name, content in faults.items()
    }


def build(cls: type[Any], mapping: Mapping[str, Any], path: str) -> Any:
    """An instance of dataclass ``cls`` from plain values; ``path`` is its dotted key. Raises ConfigError."""
    fields = {_key(f): f for f in dataclasses.fields(cls) if f.init}
    refuse_unknown(mapping, fields, path)
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, spec in fields.items():
        where = f"{path}.{name}" if path else name
        if name in mapping:
            values[spec.name] = convert(mapping[name], hints[spec.name], where)
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise ConfigError(f"must be given: write {where}=VALUE", key=where)
    try:
        return cls(**values)
    except ConfigError as error:
        if not path or error.key == path or error.key.startswith(f"{path}."):
            raise
        text = error.message.removeprefix(f"{error.key}: ") if error.key else error.message
        raise ConfigError(text, key=f"{path}.{error.key}" if error.key else path, hint=error.hint) from error


def _key(spec: dataclasses.Field[Any]) -> str:
    """The key of a field: its name, or what its metadata says where Python has that word for itself (``for``)."""
    return str(spec.metadata.get("key", spec.name))


_UNITS: Mapping[str, Callable[..., Any]] = {
    "_bytes": parse_bytes,
    "_bps": parse_rate_bps,
    "_ns": parse_ns,
    "_ratio": parse_ratio,
}


def convert(value: Any, hint: Any, path: str) -> Any:
    """``value`` as type ``hint``, without loss or guess. Raises ConfigError that names what was expected."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, arguments, path)
    if origin is Literal:
        if value in arguments and type(value) in {type(a) for a in arguments}:
            return value
        raise ConfigError(f"found {_shown(value)}{suggestion(str(value), map(str, arguments))}", key=path)
    if dataclasses.is_dataclass(hint):
        return build(cast(type[Any], hint), _as_mapping(value, path), path)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        names = {str(member.value): member for member in hint}
        if str(value) not in names:
            raise ConfigError(f"found {_shown(value)}{suggestion(str(value), names)}", key=path)
        return names[str(value)]
    if origin in (list, tuple, Sequence) or hint in (list, tuple):
        return _convert_list(value, origin or hint, arguments, path)
    if origin in (dict, Mapping) or hint in (dict, Mapping):
        inner = arguments[1] if arguments else Any
        return {str(k): convert(v, inner, f"{path}.{k}") for k, v in _as_mapping(value, path).items()}
    return _convert_scalar(value, hint, path)


def _convert_union(value: Any, arguments: tuple[Any, ...], path: str) -> Any:
    if value is None and types.NoneType in arguments:
        return None
    rest = [a for a in arguments if a is not types.NoneType]
    if len(rest) == 1:
        return convert(value, rest[0], path)
    for exact in rest:
        if isinstance(exact, type) and type(value) is exact:
            return convert(value, exact, path)
    errors: list[ConfigError] = []
    for candidate in rest:
        try:
            return convert(value, candidate, path)
        except ConfigError as error:
            errors.append(error)
    raise errors[-1]


def _convert_list(value: Any, origin: Any, arguments: tuple[Any, ...], path: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"expected a list such as [a,b], found {_shown(value)}", key=path)
    make = list if origin is list else tuple
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            raise ConfigError(f"expected a list of {len(arguments)}, found {len(value)} entries", key=path)
        return make(convert(v, a, f"{path}[{i}]") for i, (v, a) in enumerate(zip(value, arguments, strict=True)))
    inner = arguments[0] if arguments else Any
    return make(convert(v, inner, f"{path}[{i}]") for i, v in enumerate(value))


def _convert_scalar(value: Any, hint: Any, path: str) -> Any:
    if hint in (int, float) and not isinstance(value, bool):
        if isinstance(value, str):
            for suffix, parse in _UNITS.items():
                if path.split("[")[0].endswith(suffix):
                    return parse(value, key=path)
        elif hint is float and isinstance(value, (int, float)) and math.isfinite(value):
            return float(value)
        elif hint is int and isinstance(value, int):
            return value
        elif hint is int and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
    elif hint is bool and isinstance(value, bool):
        return value
    elif hint is str and (isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))):
        return str(value)
    elif hint is types.NoneType and value is None:
        return None
    raise ConfigError(f"expected {_WANTED.get(hint, str(hint))}, found {_shown(value)}", key=path)


_WANTED: Mapping[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    types.NoneType: "null",
}


def suggestion(word: str, names: Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, ``"; choose one of: …"``, or "" where there is nothing to choose."""
    near = closest(word, names)
    return f"; {near}" if near else ""


def _listed(names: Iterable[str]) -> str:
    return f"choose one of: {', '.join(sorted(names))}"


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "keys and values"
    if isinstance(value, (list, tuple)):
        return "a list"
    return repr(value)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {_key(f): _plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
