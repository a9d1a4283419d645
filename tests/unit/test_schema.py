"""Typing and checking of configuration values."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.errors import ConfigError
from genie.schema import build, refuse_code, reproduce_line


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    depth: int = 1

    def __post_init__(self) -> None:
        if self.depth < 0:
            raise ConfigError(f"must not be negative, found {self.depth}", key="depth")


@dataclass(frozen=True)
class Part:
    must: int
    count: int = 1
    share: float = 0.5
    name: str = ""
    flag: bool = False
    maybe: int | None = None
    size_bytes: int = 0
    gap_ns: int = 0
    rate_bps: int = 0
    part_ratio: float = 0.0
    mode: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    many: tuple[int, ...] = ()
    either: int | str = 0
    texts: str | tuple[str, ...] = ()
    inner: Inner = Inner()
    free: Mapping[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("key", "given", "held"),
    [
        ("count", 3, 3),
        ("count", 1e9, 10**9),
        ("share", 2, 2.0),
        ("name", "x", "x"),
        ("name", 7, "7"),
        ("flag", True, True),
        ("maybe", None, None),
        ("maybe", 4, 4),
        ("size_bytes", "512KiB", 524288),
        ("size_bytes", 9, 9),
        ("gap_ns", "1.5ms", 1_500_000),
        ("rate_bps", "100Mbps", 10**8),
        ("part_ratio", "10%", 0.1),
        ("mode", "b", "b"),
        ("colour", "blue", Colour.BLUE),
        ("many", [1, 2], (1, 2)),
        ("either", "512KiB", "512KiB"),
        ("either", 5, 5),
        ("texts", "one", "one"),
        ("texts", ["one", "two"], ("one", "two")),
        ("inner", {"depth": 4}, Inner(4)),
        ("free", {"a": [1]}, {"a": [1]}),
    ],
)
def test_values_take_their_type(key: str, given: Any, held: Any) -> None:
    assert getattr(build(Part, {"must": 1, key: given}, "part"), key) == held


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("coumt", 3, "part.coumt: there is no such key; did you mean 'count'?"),
        ("count", "three", "part.count: expected an integer, found 'three'"),
        ("count", True, "part.count: expected an integer, found true"),
        ("count", 2.5, "part.count: expected an integer, found 2.5"),
        ("count", None, "part.count: expected an integer, found null"),
        ("share", "much", "part.share: expected a number, found 'much'"),
        ("share", float("nan"), "part.share: expected a number, found nan"),
        ("name", True, "part.name: expected text, found true"),
        ("flag", "yes", "part.flag: expected true or false, found 'yes'"),
        ("flag", 1, "part.flag: expected true or false, found 1"),
        ("maybe", "x", "part.maybe: expected an integer, found 'x'"),
        ("size_bytes", "much", "part.size_bytes: expected a size such as '512KiB', found 'much'"),
        ("mode", "c", "part.mode: found 'c'; choose one of: a, b"),
        ("colour", "blu", "part.colour: found 'blu'; did you mean 'blue'?"),
        ("many", 3, "part.many: expected a list such as [a,b], found 3"),
        ("many", [1, "x"], "part.many[1]: expected an integer, found 'x'"),
        ("inner", 3, "part.inner: expected keys and values, found 3"),
        ("inner", {"dept": 3}, "part.inner.dept: there is no such key; did you mean 'depth'?"),
        ("inner", {"depth": -3}, "part.inner.depth: must not be negative, found -3"),
    ],
)
def test_wrong_values_are_named(key: str, given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Part, {"must": 1, key: given}, "part")
    assert str(caught.value) == message


def test_missing_value_says_how_to_give_it() -> None:
    with pytest.raises(ConfigError, match=r"part\.must: must be given: write part\.must=VALUE"):
        build(Part, {}, "part")


@pytest.mark.parametrize(
    "value",
    [{"a": {"_target_": "x"}}, {"a": [{"b": {"_partial_": True}}]}, {"_target_": "os.system"}],
    ids=["nested", "in a list", "at the top"],
)
def test_code_is_refused_at_any_depth(value: Any) -> None:
    with pytest.raises(ConfigError, match="never names code"):
        refuse_code(value)


def test_reproduce_line_quotes_for_the_shell() -> None:
    assert reproduce_line(["fault=[a,b]", "name=it's"]) == "genie 'fault=[a,b]' 'name=it'\"'\"'s'"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_any_value_is_typed_or_refused(value: Any) -> None:
    for key in ("count", "share", "name", "flag", "maybe", "size_bytes", "mode", "many", "either", "inner"):
        try:
            made = build(Part, {"must": 1, key: value}, "part")
        except ConfigError as error:
            assert error.key.startswith(f"part.{key}")  # noqa: PT017 (either outcome is right)
        else:
            held = getattr(made, key)
            assert isinstance(held, (int, float, str, bool, tuple, Inner, type(None)))
