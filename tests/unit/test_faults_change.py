"""A platform's templates and conditions: what is rendered, what is refused, and no value is more than a word."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.errors import ConfigError, RunAborted
from genie.faults.change import (
    SEPARATOR,
    differences,
    parse_state,
    reading_line,
    render_argv,
    render_steps,
    render_word,
    shell_line,
    split_reading,
    unrestored,
)
from genie.faults.recipe import Read, Step

PORT = {"port": {"interface": "e0", "rate_bps": 8_000, "mtu": 1500, "label": ""}, "found": {"handle": "7e1e:"}}
# No shell argument can hold a NUL byte.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=40)
HOSTILE = st.one_of(
    TEXT,
    st.sampled_from(
        ["; rm -rf /", "$(reboot)", "`id`", "a b", "'", '"', "\\", "\n", "&& true", "{{ 7 * 7 }}", "{% raw %}", "{# x",
         "-rf", "*", "~", "$HOME", "!!", "a\tb", "\r\n", "\036", "é", "#", "|", ">f"]
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["tc", "dev", "{{ port.interface }}"], ("tc", "dev", "e0"), id="a field of the port"),
        pytest.param(["rate", "{{ port.rate_bps }}bit"], ("rate", "8000bit"), id="a unit behind it"),
        pytest.param(["handle", "{{ found.handle }}"], ("handle", "7e1e:"), id="what was found"),
        pytest.param(["a", "{{ port.label }}", "b"], ("a", "b"), id="a word of nothing is left out"),
        pytest.param(["{{ 'ecn' if port.mtu == 9000 }}", "x"], ("x",), id="a condition that does not hold"),
        pytest.param(["{{ 'ecn' if port.mtu == 1500 }}", "x"], ("ecn", "x"), id="a condition that holds"),
        pytest.param(["{{ (port.mtu * 2) | int }}"], ("3000",), id="arithmetic"),
        pytest.param(["{ type filter; }"], ("{ type filter; }",), id="braces of nft are no template"),
        pytest.param(["a b", "c"], ("a b", "c"), id="a space does not split"),
    ],
)
def test_words(words: list[str], expected: tuple[str, ...]) -> None:
    assert render_argv(words, PORT) == expected


@pytest.mark.parametrize(
    "word",
    [
        pytest.param("{{ port.nothing }}", id="a field that is not there"),
        pytest.param("{{ nobody.x }}", id="a name that is not there"),
        pytest.param("{{ port.interface", id="a template cut short"),
        pytest.param("{{ port.interface | int }}", id="a number that is none"),
        pytest.param("{{ 1 // 0 }}", id="a division by 0"),
        pytest.param("{{ port.__class__.__mro__ }}", id="a way out of the sandbox"),
        pytest.param("{{ ''.__class__ }}", id="another"),
    ],
)
def test_a_word_that_cannot_be_filled_in_is_an_error(word: str) -> None:
    with pytest.raises(ConfigError, match="cannot be filled in"):
        render_word(word, PORT)


def test_a_dry_run_shows_what_only_the_target_knows() -> None:
    dry = {"port": PORT["port"]}
    words = ["{{ found.handle }}", "{{ found.a.b[0] }}", "{{ found.x * 8 // 3 + 1 }}bit", "{{ found.m | int }}", "x"]
    assert render_argv(words, dry, dry=True) == ("<as found>", "<as found>", "<as found>bit", "<as found>", "x")


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(Step(("a",), when="port.mtu == 1500"), (("a",),), id="when it holds"),
        pytest.param(Step(("a",), when="port.mtu > 1500"), (), id="when it does not"),
        pytest.param(Step(("a",), when="found.on"), (("a",),), id="when the target says yes"),
        pytest.param(Step(("a",), when="not found.on"), (), id="when the target says no"),
        pytest.param(Step(("r", "{{ item }}"), each="found.routes"), (("r", "one"), ("r", "two")), id="each"),
        pytest.param(Step(("r", "{{ item }}"), each="found.none"), (), id="each of none"),
        pytest.param(Step(("r", "{{ item }}"), when="found.on", each="found.none"), (), id="both"),
    ],
)
def test_steps(step: Step, expected: tuple[tuple[str, ...], ...]) -> None:
    found = {"on": True, "routes": ["one", "two"], "none": []}
    assert render_steps([step], {**PORT, "found": found}) == expected


@pytest.mark.parametrize("said", ["found.on", "found.speed > 3", "found.speed == 3", "found.speed != 3"])
def test_a_dry_run_shows_a_step_whose_condition_only_the_target_knows(said: str) -> None:
    assert render_steps([Step(("a",), when=said)], {"port": PORT["port"]}, dry=True) == (("a",),)


def test_a_dry_run_shows_one_step_for_each_that_the_target_will_find() -> None:
    steps = [Step(("r", "{{ item.name }}"), each="found.routes")]
    assert render_steps(steps, {"port": PORT["port"]}, dry=True) == (("r", "<as found>"),)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(Step(("a",), when="found.nothing"), id="when"),
        pytest.param(Step(("a",), each="found.nothing"), id="each"),
        pytest.param(Step(("a",), when="found.nothing > 1"), id="a comparison"),
        pytest.param(Step(("a",), when="found."), id="no expression"),
        pytest.param(Step(("a",), when="port.interface > 3"), id="a text above a number"),
    ],
)
def test_a_step_about_what_there_is_not_is_an_error(step: Step) -> None:
    with pytest.raises(ConfigError):
        render_steps([step], PORT)


@settings(max_examples=200, deadline=None)
@given(HOSTILE, HOSTILE)
def test_a_hostile_value_stays_one_word(value: str, other: str) -> None:
    words = ["tool", "{{ port.a }}", "x{{ port.a }}y", "{{ port.a }}{{ found.b }}", "{{ found.b }}"]
    argv = render_argv(words, {"port": {"a": value}, "found": {"b": other}})
    assert argv == ("tool", value, f"x{value}y", f"{value}{other}", other)
    assert shlex.split(shell_line([argv])) == list(argv)


@settings(max_examples=15, deadline=None)
@given(st.lists(HOSTILE.filter(lambda text: SEPARATOR not in text), min_size=1, max_size=4))
def test_the_shell_itself_gives_each_hostile_word_back(values: list[str]) -> None:
    commands = [render_argv(["printf", "%s", "{{ port.a }}"], {"port": {"a": value}}) for value in values]
    done = subprocess.run(["sh", "-c", reading_line(commands)], capture_output=True, check=True)
    assert split_reading(done.stdout.decode(), len(values)) == [(0, value) for value in values]
    done = subprocess.run(["sh", "-c", shell_line(commands)], capture_output=True, check=True)
    assert done.stdout.decode() == "".join(values)


def test_a_line_stops_at_the_first_failure_and_a_reading_does_not() -> None:
    commands = [("printf", "a"), ("sh", "-c", "exit 7"), ("printf", "b")]
    changing = subprocess.run(["sh", "-c", shell_line(commands)], capture_output=True, text=True, check=False)
    assert (changing.returncode, changing.stdout) == (7, "a")
    reading = subprocess.run(["sh", "-c", reading_line(commands)], capture_output=True, text=True, check=False)
    assert split_reading(reading.stdout, 3) == [(0, "a"), (7, ""), (0, "b")]


@pytest.mark.parametrize("line", [shell_line, reading_line])
def test_no_command_is_a_line_that_succeeds(line: Any) -> None:
    assert subprocess.run(["sh", "-c", line([])], check=False).returncode == 0
    assert split_reading("", 0) == []


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 255), TEXT.filter(lambda text: SEPARATOR not in text)), min_size=1), st.data())
def test_an_answer_that_was_cut_short_is_no_answer(answers: list[tuple[int, str]], data: st.DataObject) -> None:
    text = "".join(f"{out}{SEPARATOR}{code}{SEPARATOR}" for code, out in answers)
    assert split_reading(text, len(answers)) == answers
    with pytest.raises(ValueError):
        split_reading(text[: data.draw(st.integers(0, len(text) - 1))], len(answers))
    with pytest.raises(ValueError):
        split_reading(text, len(answers) + 1)


@pytest.mark.parametrize(
    ("expected", "found", "wrong"),
    [
        pytest.param({"kind": "tbf"}, {"kind": "tbf"}, [], id="a text"),
        pytest.param({"kind": "tbf"}, {"kind": "mq"}, [("kind", "tbf", "mq")], id="another text"),
        pytest.param({"kind": "tbf"}, {}, [("kind", "tbf", "nothing")], id="a field that was not read"),
        pytest.param({"rate_bps": "{{ port.rate_bps }}"}, {"rate_bps": 8_000}, [], id="a number of the port's"),
        pytest.param({"rate_bps": 1}, {"rate_bps": 8_000}, [("rate_bps", "1", "8000")], id="another number"),
        pytest.param({"on": False}, {"on": False}, [], id="a truth"),
        pytest.param({"on": False}, {"on": True}, [("on", "false", "true")], id="another truth"),
        pytest.param({"kind": ["tbf", "mq"]}, {"kind": "mq"}, [], id="one of two"),
        pytest.param({"kind": ["tbf", "mq"]}, {"kind": "x"}, [("kind", "tbf or mq", "x")], id="none of two"),
        pytest.param({"kind": {"not": "mq"}}, {"kind": "x"}, [], id="not"),
        pytest.param({"kind": {"not": "mq"}}, {"kind": "mq"}, [("kind", "not mq", "mq")], id="but it is"),
        pytest.param({"on": {"not": True}}, {"on": True}, [("on", "not true", "true")], id="not a truth"),
        pytest.param({"n": {"at_least": 3}}, {"n": 3}, [], id="at least"),
        pytest.param({"n": {"at_least": 3}}, {"n": 2}, [("n", "at least 3", "2")], id="less"),
        pytest.param({"n": {"at_most": "{{ port.mtu }}"}}, {"n": 1500}, [], id="at most"),
        pytest.param({"n": {"at_most": 3}}, {"n": 3.5}, [("n", "at most 3", "3.5")], id="more"),
        pytest.param({"n": {"at_most": 3}}, {}, [("n", "at most 3", "nothing")], id="no number to compare"),
        pytest.param({"n": {"at_least": 3}}, {"n": "x"}, [("n", "at least 3", "x")], id="no number at all"),
        pytest.param({"n": {"at_least": 1, "at_most": 3}}, {"n": 9}, [("n", "at least 1 and at most 3", "9")], id="2"),
    ],
)  # fmt: skip
def test_conditions(expected: Mapping[str, Any], found: Mapping[str, Any], wrong: list[tuple[str, str, str]]) -> None:
    assert differences(expected, found, PORT) == wrong


def test_a_condition_with_a_typo_is_an_error() -> None:
    with pytest.raises(ConfigError, match="at_lest"):
        differences({"n": {"at_lest": 3}}, {"n": 9}, PORT)


@pytest.mark.parametrize(
    ("old", "found", "volatile", "fields"),
    [
        pytest.param({"a": 1, "b": "x"}, {"a": 1, "b": "x"}, (), [], id="as it was"),
        pytest.param({"a": 1}, {"a": 2}, (), [("a", "1", "2")], id="another value"),
        pytest.param({"a": 1}, {}, (), [("a", "1", "None")], id="a field that is gone"),
        pytest.param({}, {"a": 1}, (), [("a", "None", "1")], id="a field that is new"),
        pytest.param({"a": 1, "n": 3}, {"a": 1, "n": 9}, ("n",), [], id="what changes by itself"),
        pytest.param({"on": True}, {"on": False}, (), [("on", "true", "false")], id="a truth"),
        pytest.param({"l": ("a", "b")}, {"l": ["a", "b"]}, (), [], id="a list that was a tuple"),
        pytest.param({"l": ["a", "b"]}, {"l": ["b", "a"]}, (), [("l", '["a", "b"]', '["b", "a"]')], id="an order"),
    ],
)
def test_unrestored(old: Any, found: Any, volatile: tuple[str, ...], fields: list[tuple[str, str, str]]) -> None:
    assert unrestored(old, found, volatile) == fields


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1, max_size=6), VALUES, max_size=5))
def test_what_went_through_the_journal_is_as_it_was(state: dict[str, Any]) -> None:
    assert unrestored(json.loads(json.dumps(state, sort_keys=True)), state) == []


READ = Read(("tc", "show", "{{ port.interface }}"), "ip_link")


@pytest.mark.parametrize(
    ("code", "text", "words"),
    [
        pytest.param(1, "", "exit code 1) cannot be read: it printed nothing", id="it failed"),
        pytest.param(0, "[]", "it printed []", id="nothing of the object"),
        pytest.param(0, 'Device "e0" does not exist.\n', 'Device "e0" does not exist. (JSON', id="its own words"),
        pytest.param(0, "x" * 5000, "x" * 400, id="a flood"),
    ],
)
def test_what_cannot_be_read_is_said_in_the_tools_own_words(code: int, text: str, words: str) -> None:
    with pytest.raises(RunAborted) as caught:
        parse_state([READ], [(code, text)], PORT)
    assert str(caught.value).startswith("tc show e0 (exit code")
    assert words in str(caught.value)
    assert len(str(caught.value)) < 700


def test_several_reads_make_one_state() -> None:
    link = json.dumps([{"mtu": 1500, "flags": ["UP"]}])
    reads = [READ, Read(("cat", "x"), "value")]
    expected = {"mtu": 1500, "up": True, "group": "default", "value": "7"}
    assert parse_state(reads, [(0, link), (0, "7\n")], PORT) == expected


def test_a_parser_that_there_is_not_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'tea_leaves'"):
        parse_state([Read(("x",), "tea_leaves")], [(0, "")], PORT)
