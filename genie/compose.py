"""Hydra composition: a checked command line in, plain mappings (and sweeps over them) out.

The only module that imports Hydra and OmegaConf. It composes with ``conf/`` as the main folder and the user's
folders behind it, turns Hydra's exceptions into ConfigError, and hands the rest (``--cfg``, ``--info``, shell
completion, the sweeper) to ``hydra.main`` itself. It knows nothing of runs. Called by `genie.cli`.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from genie.argv import CONTROLS, GROUPS, CommandLine, Override, quoted
from genie.errors import ConfigError
from genie.paths import conf_dir, user_conf_dirs
from genie.schema import DEFAULT_CHOICES, DEFAULT_FILES, Choice, refuse_code, suggestion

_VERSION_BASE = "1.3"
# Hydra 1.4 wants this argument gone, 1.3 wants it given.
warnings.filterwarnings("ignore", message="The version_base parameter is deprecated")
_FOREIGN = (
    HydraException, OmegaConfBaseException, yaml.YAMLError, OSError, ValueError, TypeError, AttributeError,
    RecursionError,
)  # fmt: skip
MOST_CELLS = 10_000
"""Of a sweep: each takes seconds to run, and more are a number that was typed wrong."""
_OF_THE_SWEEP = ("yes", "dry_run", "out", "run_dir")
_HYDRA_CODE = re.compile(r"hydra\._internal\.core_plugins\.[\w.]+|hydra_plugins\.[\w.]+|logging\.[\w.]+")


@dataclass(frozen=True, slots=True)
class Composed:
    """One composed configuration: plain values without the ``hydra`` node, the choices made, the overrides used."""

    mapping: Mapping[str, Any]
    choices: Mapping[str, Choice]
    overrides: tuple[str, ...]


class _UserFolders(SearchPathPlugin):
    """Adds the user's folders behind GENIE's own."""

    folders: tuple[Path, ...] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in self.folders:
            search_path.append(provider="genie-user", path=f"file://{folder}")


def choices_of(group: str, config_dirs: Sequence[str] = ()) -> list[str]:
    """Names that ``group=`` takes, from GENIE's and the user's folders."""
    folders = (conf_dir(), *user_conf_dirs(tuple(config_dirs)))
    return sorted({p.stem for folder in folders for p in (folder / group).glob("*.yaml")})


def compose(line: CommandLine) -> list[Composed]:
    """The configuration of a command line that sweeps nothing, as the one of a list. Raises ConfigError."""
    with _session(line):
        return [_compose_one(line.for_hydra(_defaults(line)), line)]


def sweep_cells(
    line: CommandLine, counted: Callable[[int], None] = lambda count: None
) -> list[tuple[Composed, dict[str, str]]]:
    """Every combination of a sweep's values, with the value that each swept key has in it. ``counted`` is told how many
    there are before they are composed, which takes about 0.1 s each. Raises ConfigError.
    """
    with _session(line):
        axes = _axes(line.for_hydra(_defaults(line)))
        swept = [axis for axis in axes if axis.values]
        for axis in swept:
            _refuse_swept(axis.key)
        cells: list[tuple[Composed, dict[str, str]]] = []
        picks = _picks(swept, zipped=_is_zipped(axes, line))
        counted(len(picks))
        for pick in picks:
            chosen = dict(zip((axis.key for axis in swept), pick, strict=True))
            shown = {key: "none" if (key, value) == ("fault", "[]") else value for key, value in chosen.items()}
            if any(shown == earlier for _, earlier in cells):
                words = " ".join(f"{key}={value}" for key, value in shown.items())
                raise ConfigError(f"{words} is swept twice", hint="sweep.repeats=N runs every cell N times")
            cells.append((_compose_one(_words_of(axes, chosen), line), shown))
        return cells


def _words_of(axes: Sequence[_Axis], chosen: Mapping[str, str]) -> list[str]:
    """The overrides of one cell: of each swept key the value that was ``chosen``."""
    return [f"{axis.element}={chosen[axis.key]}" if axis.values else axis.text for axis in axes]


def _is_zipped(axes: Sequence[_Axis], line: CommandLine) -> bool:
    """Whether ``sweep.mode`` is zip, as the first values of all keys have it: a file may set it as well as a word."""
    first = {axis.key: axis.values[0] for axis in axes if axis.values}
    found = _compose_one(_words_of(axes, first), line).mapping.get("sweep")
    return isinstance(found, Mapping) and found.get("mode") == "zip"


def _picks(swept: Sequence[_Axis], *, zipped: bool) -> list[tuple[str, ...]]:
    if not zipped or not swept:
        cells = math.prod(len(axis.values) for axis in swept)
        if cells > MOST_CELLS:
            counts = " × ".join(f"{len(axis.values)} of {axis.key}" for axis in swept)
            raise ConfigError(f"{cells} cells are more than {MOST_CELLS}: {counts}", hint="sweep fewer values at once")
        return list(itertools.product(*(axis.values for axis in swept)))
    lengths = {axis.key: len(axis.values) for axis in swept}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        raise ConfigError(f"zip takes the same number of values of each key: {counts}", key="sweep.mode")
    return list(zip(*(axis.values for axis in swept), strict=True))


def _refuse_swept(key: str) -> None:
    """A key that is about the sweep as a whole: with a value for each cell, one of them would count for all."""
    if key in _OF_THE_SWEEP or key.startswith(("sweep.", "tracking.")):
        raise ConfigError("cannot be swept, it is about the sweep as a whole; give it one value", key=key)


def sweep(line: CommandLine, task: Callable[[int, Composed], float], directory: Path) -> None:
    """Let the sweeper that ``hydra/sweeper`` names call ``task`` with (number, configuration) for each job it makes up;
    what it returns is the sweeper's to use. ``directory`` is for what the sweeper keeps.
    """

    def job(config: DictConfig) -> float:
        node = HydraConfig.get()
        return task(int(node.job.num), _composed(config, node.runtime.choices, tuple(node.overrides.task), line))

    with _session(line):
        overrides = line.for_hydra(_defaults(line))
        for override in OverridesParser.create().parse_overrides(overrides):
            if override.is_sweep_override():
                _refuse_swept(override.key_or_group)
    _hydra_main(line, [*overrides, f"hydra.sweep.dir={quoted(str(directory))}"], job)


def show(line: CommandLine) -> None:
    """``--cfg``, ``--info``, ``--hydra-help`` and shell completion, all by Hydra. Raises ConfigError."""
    if line.show in {"--shell-completion", "--hydra-help"}:
        words = [o.text for o in line.overrides] if line.show == "--shell-completion" else []
        _hydra_main(line, words, lambda config: None)
        return
    with _session(line):
        overrides = line.for_hydra(_defaults(line))
        if line.show in {"--cfg", "--info"}:
            _compose_one(overrides, line)
    _hydra_main(line, overrides, lambda config: None)


@contextmanager
def _session(line: CommandLine) -> Iterator[None]:
    """Hydra's Compose API over the search path, with errors in GENIE's terms."""
    _use_folders(line)
    try:
        with hydra.initialize_config_dir(version_base=_VERSION_BASE, config_dir=str(conf_dir()), job_name="genie"):
            yield
    except _FOREIGN as error:
        raise _translated(error, line) from error


def _use_folders(line: CommandLine) -> None:
    folders = user_conf_dirs(line.config_dirs)
    main = conf_dir()
    for folder in folders:
        for path in sorted(folder.rglob("*.yaml")):
            if (main / path.relative_to(folder)).exists():
                name = path.relative_to(folder)
                raise ConfigError(f"{path} has the name of GENIE's own {name}", hint="rename your file")
    for group, words in CONTROLS.items():
        for word in words:
            ConfigStore.instance().store(group=group, name=word, node={"role": word}, package=f"{group}.{word}")
    _UserFolders.folders = folders
    Plugins.instance().register(_UserFolders)


def _defaults(line: CommandLine) -> dict[str, str]:
    """Choices to add. An experiment file may make them, so with one it is composed first to see which are left."""
    experiment = line.chosen("experiment")
    if experiment is None:
        fabric = line.chosen("fabric")
        # Real hosts are on the network that they are on.
        return dict(DEFAULT_FILES) | ({"topology": "inventory"} if fabric and fabric.value == "inventory" else {})
    wanted: list[dict[str, str]] = []
    for name in experiment.alternatives:
        found = hydra.compose("config", overrides=[f"experiment={name}"])
        wanted.append({g: d for g, d in DEFAULT_FILES.items() if not isinstance(found.get(g), DictConfig)})
    for group in DEFAULT_FILES:
        if len({group in w for w in wanted}) > 1 and line.chosen(group) is None:
            raise ConfigError(
                f"of the experiments {experiment.value} some choose a {group} and some do not",
                hint=f"write {group}=NAME",
            )
    return wanted[0]


@dataclass(frozen=True, slots=True)
class _Axis:
    """One override: ``text`` as it is, or ``values`` for ``element`` where it is swept."""

    key: str
    element: str
    text: str
    values: tuple[str, ...] = ()


def _axes(overrides: list[str]) -> list[_Axis]:
    axes = []
    loader = GlobalHydra.instance().config_loader()  # which files a glob means
    for override in OverridesParser.create(config_loader=loader).parse_overrides(overrides):
        key, element = override.key_or_group, override.get_key_element()
        if override.is_interval_sweep():
            raise ConfigError(
                f"'{_typed(override.input_line)}' has no values to go through, it is for an optimising sweeper",
                key=key,
                hint="write hydra/sweeper=optuna, or range(START,STOP,STEP)",
            )
        values: tuple[str, ...] = ()
        if override.is_sweep_override():
            values = _values(override)
        if len(values) > MOST_CELLS:
            raise ConfigError(f"'{_typed(override.input_line)}' are more than {MOST_CELLS} values", key=key)
        if override.is_sweep_override() and not values:
            raise ConfigError(f"'{_typed(override.input_line)}' matches nothing", key=key)
        axes.append(_Axis(key, element, override.input_line or "", values))
    return axes


def _values(swept: HydraOverride) -> tuple[str, ...]:
    """What a sweep goes through, one more than may be at most."""
    try:
        return tuple(itertools.islice(swept.sweep_string_iterator(), MOST_CELLS + 1))
    except _FOREIGN as error:
        raise ConfigError(
            f"'{_typed(swept.input_line)}' cannot be gone through",
            key=swept.key_or_group,
            hint="write a list, choice(), range() or glob() by itself: choice(1,2,3), not choice(1,2),3",
        ) from error


def _typed(line: str | None) -> str:
    return (line or "").lstrip("+")


def _compose_one(overrides: list[str], line: CommandLine) -> Composed:
    config = hydra.compose("config", overrides=overrides, return_hydra_config=True)
    _refuse_hydra_code(OmegaConf.to_container(config.hydra, resolve=False))
    HydraConfig.instance().set_config(config)
    node = config.hydra
    with_hydra_removed = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    with_hydra_removed._set_parent(config)
    return _composed(with_hydra_removed, node.runtime.choices, tuple(overrides), line)


def _composed(config: DictConfig, picked: Mapping[str, Any], overrides: tuple[str, ...], line: CommandLine) -> Composed:
    plain = OmegaConf.to_container(config, resolve=True)
    if not isinstance(plain, dict):
        raise ConfigError("the configuration is not a mapping")
    mapping = {str(key): value for key, value in plain.items() if key not in {"hydra", "experiment"}}
    refuse_code(mapping)
    _refuse_nameless(overrides, mapping.get("fault") or {})
    choices = {
        group: Choice("", str(picked[group]), line.chosen(group) is None and line.chosen("experiment") is None)
        for group in DEFAULT_CHOICES
        if isinstance(picked.get(group), str)
    }
    return Composed(mapping, choices, overrides)


def _refuse_nameless(overrides: tuple[str, ...], faults: Any) -> None:
    """A file that makes no fault of its own would leave the run without what was asked for, in silence."""
    names: list[str] = []
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.key_or_group == "fault":
            chosen = override.value()
            names = [str(name) for name in (chosen if isinstance(chosen, list) else [chosen or []]) if name]
    if len(faults) < len(names):
        left = next((name for name in names if name not in faults), names[0])
        raise ConfigError(
            f"the file fault/{left}.yaml makes no fault of its own",
            key="fault",
            hint=f"it must begin with the line '# @package fault.{left}' and set role and targets",
        )


def _refuse_hydra_code(value: Any, path: str = "hydra") -> None:
    """Hydra itself calls what its node names; let it call its own plugins only."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "_target_" and not _HYDRA_CODE.fullmatch(str(inner)):
                raise ConfigError(f"configuration never names code to run, found {inner!r}", key=f"{path}._target_")
            _refuse_hydra_code(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            _refuse_hydra_code(inner, path)


def _hydra_main(line: CommandLine, overrides: list[str], task: Callable[[DictConfig], float | None]) -> None:
    _use_folders(line)
    saved, environment = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["genie", *line.options, *overrides]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        hydra.main(version_base=_VERSION_BASE, config_path=str(conf_dir()), config_name="config")(task)()
    except _FOREIGN as error:
        raise _translated(error, line) from error
    finally:
        sys.argv = saved
        if environment is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = environment
        GlobalHydra.instance().clear()


def _translated(error: Exception, line: CommandLine) -> ConfigError:
    """Hydra's and OmegaConf's words in one sentence that names the key."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).strip("/").rpartition("/")
        if group in GROUPS:
            return ConfigError(
                f"there is no {group} '{name}'{suggestion(name, choices_of(group, line.config_dirs))}", key=group
            )
    if isinstance(error, OverrideParseException):
        typed = next((o.text for o in line.overrides if not _is_readable(o)), error.override)
        quoted = """text with special characters: 'key="value"', in a list 'key=["rank=3"]'"""
        return ConfigError(f"'{typed}' cannot be read", hint=quoted)
    if isinstance(error, RecursionError):
        return ConfigError("a file of the configuration contains itself: a YAML alias within its own anchor")
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return ConfigError(f"{mark.name}, line {mark.line + 1}: not valid YAML: {error.problem}")
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    return ConfigError(_sentence(cause), key=str(getattr(cause, "full_key", "") or ""))


def _is_readable(override: Override) -> bool:
    try:
        OverridesParser.create().parse_override(override.text)
    except HydraException:
        return False
    return True


def _sentence(error: BaseException) -> str:
    """The first line of a foreign error, in the form of ours."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0].replace("++", "")
    return first[0].lower() + first[1:] if first[:2].istitle() else first
