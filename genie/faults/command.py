"""``genie faults VERB …``: words of the command line to what they mean. `genie.cli` calls `run`.

Overrides are those of ``genie run``, and short where one fault is meant: ``targets=``, ``parameters.rate=`` and
``window.at=`` are keys of the fault, ``ttl=`` is ``safety.ttl``, ``--inventory=FILE`` is ``fabric.inventory``. Decides
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genie.errors import EXIT_INVALID, EXIT_OK, ConfigError, closest

if TYPE_CHECKING:
    from genie.schema import ExperimentConfig

USAGE = """\
usage: genie faults list [--support]        every recipe; with --support where each platform of it is tested
       genie faults show NAME               hypothesis, parameters, evidence, sources, and the exact commands
       genie faults apply NAME ... --inventory=FILE [targets=... parameters.KEY=... window.at=... ttl=5min]
                                            put faults on hosts of an inventory and leave; dry_run=true shows it
       genie faults status [DIR]            what is open below DIR (default runs), and for how long
       genie faults revert [DIR]            put back what is open below DIR (default runs)"""
VERBS = ("list", "show", "apply", "status", "revert")
OF_A_FAULT = ("targets", "count", "fraction", "ends", "parameters", "window")
ELSEWHERE = {"ttl": "safety.ttl", "inventory": "fabric.inventory"}
TAKEN = ("fault", "fabric", "topology", "safety", "allow_risk", "seed", "out", "dry_run")
KEYS = (*OF_A_FAULT, *ELSEWHERE, *TAKEN)
Say = Callable[[str], None]


def run(arguments: Sequence[str], say: Say) -> int:
    """Do what ``arguments`` (without "faults") say, and give the exit code. Raises GenieError."""
    verb, *rest = arguments or [""]
    if not verb or verb in {"-h", "--help", "help"} or any(word in {"-h", "--help"} for word in rest):
        say(USAGE)
        return EXIT_OK
    if verb not in VERBS:
        raise ConfigError(f"there is no 'faults {verb}'; {closest(verb, VERBS)}", hint=USAGE)
    if verb in ("list", "show"):
        say(_catalogue(verb, rest))
        return EXIT_OK
    if verb == "apply":
        config = configure(rest)
        from genie.faults import operate

        operate.apply(config, say)
        return EXIT_OK
    folder = _folder(verb, rest)
    if folder is None:
        say("no faults were applied from runs")
        return EXIT_OK
    from genie.faults import operate

    done = operate.status(folder, say) if verb == "status" else operate.revert(folder, say)
    return EXIT_OK if done else EXIT_INVALID


def _catalogue(verb: str, rest: Sequence[str]) -> str:
    from genie.faults import catalogue

    if verb == "list":
        if odd := [word for word in rest if word != "--support"]:
            raise ConfigError(f"'genie faults list' takes --support only, found '{odd[0]}'", hint=USAGE)
        return catalogue.list_text(support=bool(rest))
    if len(rest) != 1 or rest[0].startswith("-"):
        raise ConfigError(
            f"expected the name of one fault, found '{' '.join(rest)}'", hint="genie faults list shows them"
        )
    return catalogue.show_text(rest[0])


def _folder(verb: str, rest: Sequence[str]) -> Path | None:
    """The folder to look below; None where nothing was ever applied from here."""
    if len(rest) > 1 or any(word.startswith("-") or "=" in word for word in rest):
        raise ConfigError(f"'genie faults {verb}' takes at most one folder, found '{' '.join(rest)}'", hint=USAGE)
    if rest:
        return Path(rest[0])
    return Path("runs") if Path("runs").is_dir() else None


def configure(words: Sequence[str]) -> ExperimentConfig:
    """The configuration that ``genie faults apply WORDS`` means. Raises ConfigError."""
    from genie.argv import parse
    from genie.compose import compose
    from genie.schema import parse_config

    (composed,) = compose(parse(overrides(words)))
    return parse_config(composed.mapping, composed.choices)


def overrides(words: Sequence[str]) -> list[str]:
    """Words of ``genie faults apply`` as overrides of ``genie run``. Pure. Raises ConfigError."""
    from genie.argv import quoted

    names: list[str] = []
    given: list[tuple[str, str]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--inventory":
            if not rest:
                raise ConfigError("option --inventory needs a file after it")
            word = f"--inventory={rest.pop(0)}"
        if word.startswith("--inventory="):
            given.append(("fabric.inventory", quoted(word.partition("=")[2])))
        elif word.startswith("-"):
            raise ConfigError(f"there is no option {word}; expected --inventory=FILE or key=value", hint=USAGE)
        elif "=" in word:
            given.append((word.partition("=")[0], word.partition("=")[2]))
        else:
            names.append(word)
    if not names:
        raise ConfigError(
            "which fault?", hint="genie faults apply NAME --inventory=FILE; genie faults list shows the names"
        )
    made = [f"fault=[{','.join(names)}]"]
    chosen = {key for key, _ in given}
    made += [f"{group}=inventory" for group in ("fabric", "topology") if group not in chosen]
    for key, value in given:
        top = key.partition(".")[0]
        if top not in KEYS or key == "fault":
            raise ConfigError(f"genie faults apply takes no such key; {closest(top, KEYS)}", key=key)
        if top in OF_A_FAULT:
            if len(names) > 1:
                raise ConfigError(
                    f"of which of {', '.join(names)}?", key=key, hint=f"write fault.{names[0]}.{key}={value}"
                )
            key = f"fault.{names[0]}.{key}"
        elif key == "inventory":
            key, value = ELSEWHERE[key], quoted(value)
        made.append(f"{ELSEWHERE.get(key, key)}={value}")
    return made
