"""One change at one object of a node: its commands from a platform's templates, and the comparison of states. Pure.

A platform file (``faults/ROLE/platforms/NAME.yml``) is rendered twice: for the plan with ``<as found>`` where only the
target knows, and on the way to the target with what was read there. Words of a command are rendered one by one and
stay one word each; a word that renders to nothing is left out. `genie.faults.life` runs what is rendered here.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from genie.errors import ConfigError, RunAborted, closest
from genie.faults.reading import PARSERS
from genie.faults.recipe import CONDITIONS, Platform, Read, Step

Argv = tuple[str, ...]
_UNREADABLE = (LookupError, ValueError, TypeError, AttributeError, SyntaxError, ArithmeticError, StopIteration)
State = Mapping[str, Any]
SEPARATOR = "\036"  # between the outputs of several commands in one; no tool prints ASCII's record separator


class _AsFound(jinja2.ChainableUndefined):
    """A value that only the target knows, whatever is done with it."""

    __slots__ = ()

    def __str__(self) -> str:
        return "<as found>"

    def _same(self, *_: Any) -> Any:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = _same
    __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __lt__ = __le__ = __gt__ = __ge__ = _same
    __eq__ = __ne__ = _same
    __hash__ = jinja2.ChainableUndefined.__hash__


def _number(value: Any) -> Any:
    return value if isinstance(value, _AsFound) else int(value)


def _formatted(value: str, *arguments: Any) -> Any:
    unknown = [found for found in arguments if isinstance(found, _AsFound)]
    return unknown[0] if unknown else value % arguments


def _lines(value: Any) -> Any:
    """Lists of words as lines of text."""
    return value if isinstance(value, _AsFound) else "\n".join(" ".join(map(str, words)) for words in value)


@cache
def _environment(is_dry: bool) -> SandboxedEnvironment:
    environment = SandboxedEnvironment(undefined=_AsFound if is_dry else jinja2.StrictUndefined, autoescape=False)
    environment.filters["int"] = _number
    environment.filters["format"] = _formatted
    environment.filters["lines"] = _lines
    return environment


@cache
def _template(text: str, is_dry: bool) -> jinja2.Template:
    """Compiled once: the same few words are filled in for every port, and compiling costs a hundred times as much."""
    return _environment(is_dry).from_string(text)


@cache
def _expression(text: str, is_dry: bool) -> Callable[..., Any]:
    return _environment(is_dry).compile_expression(text, undefined_to_none=False)


def render_word(text: str, variables: Mapping[str, Any], *, dry: bool = False) -> str:
    """One word. Raises ConfigError for a template that names what there is not."""
    if "{" not in text:
        return text
    try:
        return _template(text, dry).render(variables)
    except (jinja2.TemplateError, ValueError, TypeError, ArithmeticError) as error:
        raise ConfigError(f"the words {text!r} of a role cannot be filled in: {error}") from error


def _evaluate(expression: str, variables: Mapping[str, Any], *, dry: bool) -> Any:
    try:
        found = _expression(expression, dry)(**variables)
    except (jinja2.TemplateError, ValueError, TypeError, ArithmeticError) as error:
        raise ConfigError(f"the expression {expression!r} of a role cannot be evaluated: {error}") from error
    if isinstance(found, jinja2.Undefined) and not dry:
        raise ConfigError(f"the expression {expression!r} of a role names what there is not")
    return found


def render_argv(words: Sequence[str], variables: Mapping[str, Any], *, dry: bool = False) -> Argv:
    """The command; words that render to nothing are left out, and ``*item`` is all words of a list ``item``."""
    rendered: list[str] = []
    for word in words:
        if word == "*item":
            item = variables["item"]
            rendered += [str(item)] if isinstance(item, str | jinja2.Undefined) else [str(part) for part in item]
        else:
            rendered.append(render_word(word, variables, dry=dry))
    return tuple(word for word in rendered if word != "")


def render_steps(steps: Sequence[Step], variables: Mapping[str, Any], *, dry: bool = False) -> tuple[Argv, ...]:
    """All commands of ``do`` or ``undo``, in order."""
    made: list[Argv] = []
    for step in steps:
        if step.when:
            holds = _evaluate(step.when, variables, dry=dry)
            if not holds and not isinstance(holds, jinja2.Undefined):
                continue
        if not step.each:
            made.append(render_argv(step.argv, variables, dry=dry))
            continue
        items = _evaluate(step.each, variables, dry=dry)
        if isinstance(items, jinja2.Undefined):
            items = [items]
        made += [
            render_argv(step.argv, {**variables, "item": item, "loop_index": index}, dry=dry)
            for index, item in enumerate(items)
        ]
    return tuple(made)


def render_reads(platform: Platform, variables: Mapping[str, Any]) -> tuple[Argv, ...]:
    """The reading commands of one object."""
    return tuple(render_argv(read.argv, variables) for read in platform.read)


def parse_state(reads: Sequence[Read], outputs: Sequence[tuple[int, str]], variables: Mapping[str, Any]) -> State:
    """Fields of one object from (exit code, standard output) of each of its reads.

    Raises RunAborted in the tool's own words when an output says nothing of the object.
    """
    state: dict[str, Any] = {}
    for read, (code, text) in zip(reads, outputs, strict=True):
        parser = PARSERS.get(read.parse)
        if parser is None:
            raise ConfigError(f"a role asks for the parser {read.parse!r}, which genie.faults.reading does not have")
        try:
            state |= parser(text, code, variables)
        except (
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
            SyntaxError,
            ArithmeticError,
            StopIteration,
        ) as error:
            said = " ".join(text.split())[:400] or "nothing"
            raise RunAborted(
                f"{shlex.join(render_argv(read.argv, variables))} (exit code {code}) cannot be read: it printed "
                f"{said} ({type(error).__name__}: {error})"
            ) from error
    return state


def plain(value: Any) -> str:
    """A value of a field or condition as text, the same wherever it has been."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, sort_keys=True)  # the same before and after the journal, which sorts keys
    return str(value)


def _is_within(word: str, bound: str, actual: Any) -> bool:
    if word == "not":
        return plain(actual) != bound
    if word not in CONDITIONS:
        raise ConfigError(f"a role has the condition {word!r}", hint=closest(word, CONDITIONS))
    try:
        return float(actual) >= float(bound) if word == "at_least" else float(actual) <= float(bound)
    except (TypeError, ValueError):
        return False  # what is no number is not within bounds


def expectations(conditions: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, str]:
    """What each field has to be, filled in: "tbf", "v1 or v2", "at least 2"."""
    said = {}
    for field, condition in conditions.items():
        if isinstance(condition, Mapping):
            bounds = {word: render_word(plain(bound), variables) for word, bound in condition.items()}
            said[field] = " and ".join(f"{word.replace('_', ' ')} {bound}" for word, bound in bounds.items())
        else:
            choices = condition if isinstance(condition, list) else [condition]
            said[field] = " or ".join(render_word(plain(choice), variables) for choice in choices)
    return said


def differences(expected: Mapping[str, Any], found: State, variables: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(field, expected, found) of every condition that does not hold.

    A condition is a value; a list (one of them); ``{not: value}``, ``{at_least: n}`` or ``{at_most: n}``. Raises
    ConfigError for another word.
    """
    wrong = []
    said = expectations(expected, variables)
    for field, condition in expected.items():
        actual = found.get(field)
        if isinstance(condition, Mapping):
            holds = all(
                _is_within(word, render_word(plain(bound), variables), actual) for word, bound in condition.items()
            )
        else:
            choices = condition if isinstance(condition, list) else [condition]
            holds = plain(actual) in [render_word(plain(choice), variables) for choice in choices]
        if not holds:
            wrong.append((field, said[field], "nothing" if actual is None else plain(actual)))
    return wrong


def unrestored(old: State, found: State, volatile: Sequence[str] = ()) -> list[tuple[str, str, str]]:
    """(field, old, found) of every field that is not as it was found."""
    fields = (field for field in {**old, **found} if field not in volatile)
    return [
        (field, plain(old.get(field)), plain(found.get(field)))
        for field in fields
        if plain(old.get(field)) != plain(found.get(field))
    ]


def shell_line(commands: Sequence[Argv]) -> str:
    """All commands as one line of shell that stops at the first failure."""
    return " && ".join(shlex.join(argv) for argv in commands) or "true"


def reading_line(commands: Sequence[Argv]) -> str:
    """All commands as one line of shell; after the output of each its exit code behind a separator."""
    return " ".join(f"{shlex.join(argv)}; printf '\\036%d\\036' \"$?\";" for argv in commands) or "true"


def split_reading(text: str, count: int) -> list[tuple[int, str]]:
    """(exit code, output) of each command of a `reading_line`. Raises ValueError where one is missing."""
    parts = text.split(SEPARATOR)
    if len(parts) != 2 * count + 1:
        raise ValueError(f"{len(parts) // 2} of {count} answers")
    return [(int(parts[2 * index + 1]), parts[2 * index]) for index in range(count)]
