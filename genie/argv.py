"""The command line before Hydra sees it: pure text in, checked options and overrides out.

Hydra lets some mistakes pass in silence (an unknown key with ``+``, a second choice of the same group) and
answers others with a traceback. They are found here, where they are still what the user typed. Every spelling of
an override is brought to one form, so that the schema is the only judge of keys and values. Standard library
only; reads no file. Called by `genie.cli`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from genie.errors import ConfigError, closest
from genie.schema import DEFAULT_CHOICES, DEFAULT_FILES, TOP_LEVEL_KEYS, key_owners

MULTI_GROUPS = ("fault",)
OPTIONAL_GROUPS = ("collective", "experiment")
CONTROLS: Mapping[str, tuple[str, ...]] = {"fault": ("none",)}
"""Choices that are words of GENIE's own, with no file: ``fault=none`` is a healthy run that says so, for A/A."""
GROUPS = (*DEFAULT_CHOICES, *MULTI_GROUPS, *OPTIONAL_GROUPS)
KNOWN_KEYS = (*TOP_LEVEL_KEYS, "experiment")

_WITH_VALUE = {"--cfg": "--cfg", "-c": "--cfg", "--package": "--package", "-p": "--package",
               "--config-dir": "--config-dir", "-cd": "--config-dir"}  # fmt: skip
_FLAGS = {"--multirun": "--multirun", "-m": "--multirun", "--run": "--run", "-r": "--run",
          "--resolve": "--resolve", "--shell-completion": "--shell-completion", "-sc": "--shell-completion",
          "--hydra-help": "--hydra-help", "--help": "--help", "-h": "--help", "--version": "--version"}  # fmt: skip
_INFO = {"--info", "-i"}
_INFO_CHOICES = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_REFUSED = {"--config-path", "-cp", "--config-name", "-cn", "--experimental-rerun"}
_CFG_CHOICES = ("job", "hydra", "all")
_OURS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.output_subdir", "hydra.job.chdir")
_CODE = re.compile(r"_(?:target|partial|args|recursive|convert)_")
_NAME = re.compile(r"(?!.*\.\.)\w[\w./-]*")
_FUNCTION = re.compile(r"(?:choice|range|interval|glob|sort|shuffle|tag)\(")
_OVERRIDE = re.compile(r"(?P<prefix>~|\+\+|\+|)(?P<key>[^=\s]+?)(?:=(?P<value>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Override:
    """One ``key=value`` as typed. ``value`` is None where there is no ``=``."""

    text: str
    prefix: str
    key: str
    value: str | None

    @property
    def is_group(self) -> bool:
        """Whether it chooses files of a group."""
        return self.key in GROUPS

    @property
    def is_hydra(self) -> bool:
        """Whether it is meant for Hydra itself (``hydra.sweep.dir=…``, ``hydra/launcher=…``)."""
        return self.key == "hydra" or self.key.startswith(("hydra.", "hydra/"))

    @property
    def alternatives(self) -> list[str]:
        """The values between top-level commas: more than one is a sweep."""
        return split_sweep(self.value or "")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A checked command line.

    ``options`` are Hydra's dash options in long form, ``overrides`` as typed, in order. ``show`` is "" to run, else
    the name of the option that shows something instead.
    """

    options: tuple[str, ...]
    overrides: tuple[Override, ...]
    config_dirs: tuple[str, ...] = ()
    multirun: bool = False
    help: bool = False
    show: str = ""

    def chosen(self, group: str) -> Override | None:
        """The override that chooses ``group``, if there is one."""
        return next((o for o in self.overrides if o.key == group), None)

    def for_hydra(self, defaults: Mapping[str, str]) -> list[str]:
        """Overrides in the one form that Hydra takes in all cases; ``defaults`` adds choices that were not made."""
        lines = [
            o.text if o.is_hydra else f"{o.key}={o.value}" if o.is_group else f"++{o.key}={o.value}"
            for o in self.overrides
        ]
        return lines + [f"{group}={name}" for group, name in defaults.items() if self.chosen(group) is None]


def parse(arguments: Sequence[str]) -> CommandLine:
    """Sort and check arguments (without the program's name). Raises ConfigError."""
    options: list[str] = []
    config_dirs: list[str] = []
    words: list[str] = []
    show = ""
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            words.append(word)
            continue
        option, has_value, value = word.partition("=")
        if option in _REFUSED:
            raise ConfigError(
                f"option {option} is not offered", hint="add a folder of your own files with --config-dir DIR"
            )
        if option in _INFO:
            if not has_value:
                value = rest.pop(0) if rest and rest[0] in _INFO_CHOICES else "all"
            _one_of("--info", value, _INFO_CHOICES)
            options.append(f"--info={value}")
            show = "--info"
        elif option in _WITH_VALUE:
            name = _WITH_VALUE[option]
            if not has_value:
                if not rest or rest[0].startswith("-"):
                    raise ConfigError(f"option {option} needs a value after it")
                value = rest.pop(0)
            if name == "--config-dir":
                config_dirs.append(value)
                continue
            if name == "--cfg":
                _one_of("--cfg", value, _CFG_CHOICES)
                show = "--cfg"
            options.append(f"{name}={value}")
        elif option in _FLAGS and not has_value:
            options.append(_FLAGS[option])
            if _FLAGS[option] in {"--shell-completion", "--hydra-help", "--version"}:
                show = _FLAGS[option]
        elif option in _FLAGS:
            raise ConfigError(f"option {option} takes no value, found '{word}'")
        else:
            names = [*_WITH_VALUE, *_FLAGS, *_INFO]
            raise ConfigError(
                f"there is no option {option}; {closest(option, [n for n in names if n.startswith('--')])}"
            )
    if show == "--shell-completion":
        return CommandLine(
            tuple(options), tuple(Override(w, "", w, None) for w in words), tuple(config_dirs), show=show
        )
    overrides = tuple(_override(word) for word in words)
    multirun = "--multirun" in options or any(o.key == "hydra.mode" and o.value == "MULTIRUN" for o in overrides)
    if multirun and show:
        raise ConfigError(f"-m and {show} cannot be used together")
    line = CommandLine(tuple(options), overrides, tuple(config_dirs), multirun, "--help" in options, show)
    if not line.help:
        _check(line)
    return line


def _one_of(option: str, value: str, choices: Iterable[str]) -> None:
    names = tuple(choices)
    if value not in names:
        raise ConfigError(f"{option} takes one of {', '.join(names)}, found '{value}'")


def _override(word: str) -> Override:
    match = _OVERRIDE.fullmatch(word)
    if match is None or not re.match(r"[A-Za-z_]", match["key"]):
        raise ConfigError(f"expected key=value, found '{word}'", hint="see genie --help")
    return Override(word, match["prefix"], match["key"], match["value"])


def split_sweep(value: str) -> list[str]:
    """Cut at commas that are outside brackets, braces, parentheses and quotes."""
    parts, depth, quote, current = [], 0, "", ""
    escaped = False
    for char in value:
        if quote:
            quote = "" if char == quote and not escaped else quote
        elif char in "'\"" and not escaped:
            quote = char
        elif char in "[{(":
            depth += 1
        elif char in ")}]":
            depth -= 1
        elif char == "," and depth == 0 and not escaped:
            parts.append(current.strip())
            current = ""
            continue
        escaped = char == "\\" and not escaped
        current += char
    return [*parts, current.strip()]


def quoted(text: str) -> str:
    """``text`` as a quoted string of Hydra's override grammar."""
    # In Hydra's grammar a backslash escapes a quote, and itself only right before one.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text)
    return f"'{escaped}'"


def _check(line: CommandLine) -> None:
    seen: dict[str, Override] = {}
    for override in line.overrides:
        _check_key(override)
        if override.is_hydra:
            _check_hydra(override)
        elif override.is_group:
            _check_group(override, line.multirun)
        else:
            _check_value(override, line.multirun)
        earlier = seen.get(override.key)
        if earlier is not None:
            raise ConfigError(_twice(earlier, override))
        seen[override.key] = override


def _check_key(override: Override) -> None:
    if _CODE.search(override.text):
        raise ConfigError("configuration never names code to run", key=override.key, hint="remove this override")
    if override.is_hydra or override.is_group:
        return
    top = re.split(r"[.@/\[]", override.key, maxsplit=1)[0]
    if top not in KNOWN_KEYS:
        if owners := key_owners(top):
            raise ConfigError(f"there is no such key; did you mean '{owners[0]}.{top}'?", key=top)
        raise ConfigError(f"there is no such key; {closest(top, KNOWN_KEYS)}", key=top)
    if "@" in override.key or "/" in override.key:
        raise ConfigError(f"write {top}=NAME to choose, {top}.key=value to change a value", key=override.key)


def _check_hydra(override: Override) -> None:
    if override.key in _OURS:
        raise ConfigError(
            "run directories are laid out by genie", key=override.key, hint="write out=DIR or run_dir=DIR"
        )
    if override.key == "hydra/launcher" and override.value != "basic":
        raise ConfigError(
            "runs of a sweep go one after another, or they would disturb each other's network", key=override.key
        )


def _check_group(override: Override, multirun: bool) -> None:
    group, many = override.key, override.key in MULTI_GROUPS
    if override.prefix == "~":
        raise ConfigError(f"'~{group}' would remove the whole group", hint=f"write {_nothing(group)}")
    values = override.alternatives
    if override.value is None or values == [""]:
        raise ConfigError(f"nothing follows '{group}'", hint=f"write {group}=NAME or {_nothing(group)}")
    if len(values) > 1 and not multirun:
        together = f"{group}=[{override.value}] for all of them in one run, " if many else ""
        raise ConfigError(
            f"'{override.text}' names {len(values)} choices",
            hint=f"write {together}genie -m {group}={override.value} for one run each",
        )
    for value in values:
        if value in CONTROLS.get(group, ()):
            continue
        if value.lower() in {"null", "none", "~", "false", "''", '""'}:
            raise ConfigError(f"'{value}' is no choice", key=group, hint=f"write {_nothing(group)}")
        if value.startswith("{"):
            inner = f"{group}.NAME.key" if many else f"{group}.key"
            raise ConfigError("expected the name of a choice", key=group, hint=f"change values with {inner}=value")
        names = split_sweep(value[1:-1]) if value.startswith("[") and value.endswith("]") else [value]
        if len(names) != len(set(names)):
            raise ConfigError(f"{value} names one choice twice", key=group)
        bad = [name for name in names if name and not _NAME.fullmatch(name) and not _FUNCTION.match(name)]
        if bad:
            raise ConfigError(f"'{bad[0]}' cannot be the name of a choice", key=group)
        if _FUNCTION.match(value) and not multirun:
            raise ConfigError(f"'{override.text}' is a sweep", key=group, hint="put -m before it")
        if value.startswith("[") and not many:
            raise ConfigError(
                f"expected one choice, found the list {value}",
                key=group,
                hint=f"write genie -m {group}=a,b for one run each",
            )


def _nothing(group: str) -> str:
    if group in MULTI_GROUPS:
        return f"{group}=[] for none"
    if group in DEFAULT_FILES:
        return f"{group}={DEFAULT_FILES[group]} for the default"
    return f"nothing: leave {group} out"


def _check_value(override: Override, multirun: bool) -> None:
    if override.prefix == "~":
        raise ConfigError(f"a key cannot be removed; give it another value: {override.key}=VALUE", key=override.key)
    if override.value is None:
        raise ConfigError(f"a value is missing: write {override.key}=VALUE", key=override.key)
    if _FUNCTION.match(override.value) and not multirun:
        raise ConfigError(f"'{override.text}' is a sweep", key=override.key, hint="put -m before it")
    if len(override.alternatives) > 1 and not multirun:
        raise ConfigError(
            f"'{override.text}' gives {len(override.alternatives)} values",
            hint=f"write genie -m {override.key}={override.value} for one run each"
            + (f", or {override.key}=[{override.value}] for a list" if "." in override.key else ""),
        )


def _twice(first: Override, second: Override) -> str:
    if second.key in MULTI_GROUPS:
        names = [v.strip("[]") for v in (first.value or "", second.value or "") if v.strip("[]")]
        return (
            f"'{first.text}' and '{second.text}' would leave only one of them; write {second.key}=[{','.join(names)}]"
        )
    return f"'{first.text}' and '{second.text}' set the same key twice; leave one out"
