"""What faults there are: the texts of ``genie faults list`` and ``genie faults show NAME``.

A recipe is a file of ``conf/fault/`` (or of the user's own folder) and says which role with which numbers; everything
else comes from the role's folder. Reads files only; contacts nobody. `genie.faults.command` prints what it gives.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from genie.errors import ConfigError, GenieError, closest
from genie.faults.config import FaultConfig, WindowConfig
from genie.faults.recipe import Mechanism, Parameter, load_mechanism, load_platform
from genie.help import summary_line
from genie.paths import conf_dir, user_conf_dirs

SUPPORT_WORDS = {
    "embedded": "on the embedded fabric",
    "lab": "in virtual machines, over their real kernel",
    "stand-in": "tested against a stand-in, not on hardware",
}
WIDTH = 100
_WHAT_WIDTH = 56


@dataclass(frozen=True, slots=True)
class Recipe:
    """One file of ``conf/fault/``. ``content`` is what it says of its fault; ``what`` its first comment line."""

    name: str
    what: str
    content: Mapping[str, Any]

    @property
    def mechanism(self) -> Mechanism:
        """The role that does it."""
        return load_mechanism(str(self.content["role"]))


def recipes() -> tuple[Recipe, ...]:
    """All of them by name, the user's own too. Raises ConfigError for a file that makes no sense."""
    files = {
        path.stem: path for folder in (conf_dir(), *user_conf_dirs()) for path in (folder / "fault").glob("*.yaml")
    }
    return tuple(_recipe(name, path) for name, path in sorted(files.items()))


def _recipe(name: str, path: Path) -> Recipe:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or "role" not in content:
        content = _composed(name)
    return Recipe(name, summary_line(path), content)


def _composed(name: str) -> Mapping[str, Any]:
    """What Hydra makes of a recipe that builds on another one."""
    from genie.argv import parse
    from genie.compose import compose

    (job,) = compose(parse([f"fault={name}"]))
    found = dict(job.mapping["fault"]).get(name)
    if not isinstance(found, Mapping) or "role" not in found:
        raise ConfigError(
            f"conf/fault/{name}.yaml names no role", hint=f"its first line must be '# @package fault.{name}'"
        )
    return found


def list_text(*, support: bool = False) -> str:
    """The table of all recipes; with ``support`` a row for each platform, and how it is tested there."""
    rows: list[tuple[str, ...]] = []
    if not support:
        for recipe in recipes():
            own = recipe.mechanism
            rows.append((recipe.name, own.role, _risk(own), recipe.what or own.summary, ", ".join(own.platforms)))
        return table(("recipe", "role", "risk", "what", "platforms"), rows)
    for recipe in recipes():
        for stem in stems(recipe.mechanism):
            how = load_platform(recipe.mechanism.role, stem)
            rows.append((recipe.name, stem, how.support, SUPPORT_WORDS[how.support]))
    return table(("recipe", "platform", "tested", "how"), rows)


def stems(mechanism: Mechanism) -> tuple[str, ...]:
    """Every platform file of a role: "linux", "linux.red", "mlx5"."""
    return tuple(sorted(path.stem for path in (mechanism.folder / "platforms").glob("*.yml")))


def _risk(mechanism: Mechanism) -> str:
    """The mechanism's risk, and where a platform has another."""
    other = {stem: load_platform(mechanism.role, stem).risk for stem in stems(mechanism)}
    return ", ".join([mechanism.risk, *(f"{risk} on {stem}" for stem, risk in other.items() if risk)])


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their longest word, long texts folded."""
    folded = [[textwrap.wrap(cell, _WHAT_WIDTH) or [""] for cell in row] for row in (titles, *rows)]
    widths = [max(len(line) for row in folded for line in row[column]) for column in range(len(titles))]
    lines = []
    for row in folded:
        for index in range(max(map(len, row))):
            cells = [lines_of[index] if index < len(lines_of) else "" for lines_of in row]
            lines.append("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip())
    return "\n".join(lines)


def show_text(name: str) -> str:
    """Everything about one recipe. Raises ConfigError for a name that is none."""
    found = {recipe.name: recipe for recipe in recipes()}
    if name not in found:
        raise ConfigError(f"there is no fault '{name}'; {closest(name, found)}", hint="genie faults list shows them")
    from genie.schema import build

    recipe, own = found[name], found[name].mechanism
    config: FaultConfig = build(FaultConfig, recipe.content, f"fault.{name}")
    parts = [
        f"{name}: {recipe.what or own.summary}",
        _facts(
            [
                ("role", f"{own.role}: {own.summary}"),
                ("risk", _risk(own)),
                ("platforms", ", ".join(own.platforms)),
                ("expected", own.hypothesis),
                ("targets", _targets(config)),
                ("window", config.window.describe()),
                ("needs", ", ".join((*own.requires, *own.needs_port, *own.needs_run)) or "nothing of the fabric"),
                ("evidence", ", ".join(own.evidence)),
            ]
        ),
    ]
    if own.parameters:
        parts.append("Parameters:\n" + _facts([_parameter(p, config) for p in own.parameters]))
    parts += [_commands(name, config, own, stem) for stem in stems(own)]
    readme = own.folder / "README.md"
    if readme.is_file():
        parts.append(plain_text(readme.read_text(encoding="utf-8")))
    return "\n\n".join(parts)


def _targets(config: FaultConfig) -> str:
    drawn = f", {config.count} of them" if config.count is not None else ""
    drawn = f", {config.fraction:g} of them" if config.fraction is not None else drawn
    ends = "" if config.ends == "both" else f", {config.ends} only"
    return ", ".join(config.selectors) + drawn + ends


def _parameter(parameter: Parameter, config: FaultConfig) -> tuple[str, str]:
    default = "must be given" if parameter.default is None else f"default {parameter.default}"
    choices = f"one of {', '.join(parameter.choices)}; " if parameter.choices else ""
    return f"{parameter.name}={config.parameter(parameter.name)}", f"{choices}{parameter.help} (role: {default})"


def _facts(rows: Sequence[tuple[str, str]]) -> str:
    width = max(len(key) for key, _ in rows)
    lines = []
    for key, text in rows:
        first, *more = textwrap.wrap(text, WIDTH - width - 4) or [""]
        lines.append(f"  {key:<{width}}  {first}".rstrip())
        lines += [f"  {'':<{width}}  {line}" for line in more]
    return "\n".join(lines)


def _commands(name: str, config: FaultConfig, mechanism: Mechanism, stem: str) -> str:
    """What is run at the first target, were the default topology made of nodes of this platform."""
    how = load_platform(mechanism.role, stem)
    lines = [f"Commands on {stem} ({how.support}: {SUPPORT_WORDS[how.support]}){f'; {how.note}' if how.note else ''}:"]
    if how.deadman == "own" and config.window.kind != "whole":
        lines.append(
            "  the whole run only: the switch itself holds the time limit of a change (empty the recipe's window)"
        )
        config = replace(config, window=WindowConfig())
    try:
        lines += _sample(name, config, stem)
    except GenieError as error:
        lines.append(f"  cannot be shown for a sample: {error.message}")
    return "\n".join(lines)


def _sample(name: str, config: FaultConfig, stem: str) -> list[str]:
    from genie import topology
    from genie.fabric.base import Capabilities
    from genie.faults.plan import RunFacts, plan_faults
    from genie.topology.config import LeafSpineConfig

    network = topology.build(LeafSpineConfig())
    platform, _, marker = stem.partition(".")
    hosts = [node.name for node in network.hosts]
    facts = RunFacts(
        packets="exact",
        placement=tuple(hosts),
        addresses={host: f"192.0.2.{number}" for number, host in enumerate(hosts, 1)},
        platforms={node.name: (platform,) for node in network.nodes},
    )
    able = Capabilities(shaping=True, ecn=True, loss=True, delay=True, faults=True, marker=marker or "none", reasons={})
    (plan,) = plan_faults({name: config}, network, able, facts)
    change = plan.changes[0]
    lines = [f"  for example at {change.target}, in {change.node}:"]
    lines += [f"    apply: {command}" for command in change.commands]
    return lines + [f"    undo:  {command}" for command in change.undo]


def plain_text(markdown: str) -> str:
    """A README for a terminal: emphasis and code marks gone, paragraphs folded; tables and code stay as they are."""
    blocks: list[str] = []
    in_code = False
    for block in re.split(r"\n{2,}", markdown.strip("\n")):
        fences = block.count("```")
        if in_code or fences or block.startswith(("    ", "|")):
            in_code ^= fences % 2 == 1
            blocks.append("\n".join(line for line in block.splitlines() if not line.startswith("```")))
            continue
        blocks.append(_folded(block))
    return "\n\n".join(block for block in blocks if block)


def _folded(block: str) -> str:
    """A heading, a list or a paragraph."""
    text = re.sub(r"\*\*(.+?)\*\*", r"\1", block, flags=re.DOTALL).replace("`", "")
    text = re.sub(r"(?<![\w*])\*(\S[^*]*?)\*(?![\w*])", r"\1", text)
    text = re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r"\1 (\2)", text)
    items = re.split(r"\n(?=[-*] |\d+\. )", text)
    lines = []
    for item in items:
        bullet = re.match(r"[-*] |\d+\. ", item)
        indent = " " * len(bullet[0]) if bullet else ""
        words = " ".join(item.lstrip("# ").split() if item.startswith("#") else item.split())
        lines += textwrap.wrap(words, WIDTH, subsequent_indent=indent) or [""]
    return "\n".join(lines)
