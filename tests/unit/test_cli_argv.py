"""The command line before Hydra: spellings that mean the same, and mistakes that are named."""

import pytest

from genie.argv import parse, quoted, split_sweep
from genie.errors import ConfigError
from genie.schema import DEFAULT_CHOICES


def forms(*arguments: str) -> list[str]:
    return parse(list(arguments)).for_hydra(DEFAULT_CHOICES)


SPELLINGS = [
    pytest.param("fault=ecn_off", "+fault=ecn_off", id="a fault with and without plus"),
    pytest.param("fault=[a,b]", "+fault=[a,b]", id="several faults with and without plus"),
    pytest.param("workload=dp", "+workload=dp", id="a workload with and without plus"),
    pytest.param("workload.layers=3", "+workload.layers=3", id="a value with and without plus"),
    pytest.param("workload.layers=3", "++workload.layers=3", id="a value with two pluses"),
    pytest.param("seed=3", "+seed=3", id="a top-level value"),
]


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_spellings_are_one_form(one: str, other: str) -> None:
    assert forms(one) == forms(other)


def test_defaults_fill_only_what_is_not_chosen() -> None:
    assert forms("workload=dp") == ["workload=dp", "topology=leaf_spine", "transport=tcp", "fabric=netns"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "seed=1,2", "+fault=x"],
        ["+fault=x", "-m", "seed=1,2"],
        ["+fault=x", "seed=1,2", "--multirun"],
        ["hydra.mode=MULTIRUN", "+fault=x", "seed=1,2"],
    ],
    ids=["first", "between", "last", "as a key"],
)
def test_multirun_wherever_the_option_stands(arguments: list[str]) -> None:
    line = parse(arguments)
    assert line.multirun
    assert [o.text for o in line.overrides if not o.is_hydra] in (["seed=1,2", "+fault=x"], ["+fault=x", "seed=1,2"])


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["--cfg", "job", "seed=1"], ("--cfg=job",)),
        (["seed=1", "-c", "job", "-p", "workload"], ("--cfg=job", "--package=workload")),
        (["--info", "workload=moe"], ("--info=all",)),
        (["-i", "defaults", "workload=moe"], ("--info=defaults",)),
        (["-sc", "install=bash"], ("--shell-completion",)),
    ],
    ids=["cfg", "short, last", "info without a word", "info with one", "completion"],
)
def test_options_in_long_form(arguments: list[str], options: tuple[str, ...]) -> None:
    assert parse(arguments).options == options


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ("a,b", ["a", "b"]),
        ("[a,b],c", ["[a,b]", "c"]),
        ("[],x", ["[]", "x"]),
        ("'a,b'", ["'a,b'"]),
        ("choice(a,b)", ["choice(a,b)"]),
        ("{a:1,b:2}", ["{a:1,b:2}"]),
        ("a\\,b", ["a\\,b"]),
    ],
)
def test_sweeps_are_cut_at_top_level_commas(value: str, parts: list[str]) -> None:
    assert split_sweep(value) == parts


@pytest.mark.parametrize("text", ["plain", "it's", "back\\slash", "end\\", "\\'", "a,b=[c]{d}", "ünï ${x}"])
def test_quoted_text_survives_hydras_grammar(text: str) -> None:
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    (override,) = parser.parse_overrides([f"key={quoted(text)}"])
    assert override.value() == text


@pytest.mark.parametrize("word", ["~fault", "fault=null", "fault", "workload=[a,b]", "workload=a,b", "seed=1,2", "x=1"])
def test_mistakes_are_config_errors(word: str) -> None:
    with pytest.raises(ConfigError):
        parse([word])
