"""Files of a search whose lines are JSON, but say what no search would: each is refused with what and where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bisect_folders
import pytest

from genie.bisect import command, hunt
from genie.bisect.belief import Question
from genie.bisect.changes import run_of
from genie.bisect.config import BisectConfig
from genie.bisect.journal import FILE_NAME as JOURNAL
from genie.bisect.record import FILE_NAME, read_record
from genie.bisect.replay import read_search
from genie.errors import ConfigError, GenieError

WHOLE: dict[str, Any] = {
    "event": "probe", "number": 0, "kind": "network", "run": "probe-0", "pairs": [[0, 1]], "repeats": 1,
    "answers": [], "spoilt": "", "busy": False, "took_s": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"answers": [{"a": 1}]},
        {"answers": [["h9>h10", True, ""]]},
        {"pairs": [[0]]},
        {"pairs": None},
        {"took_s": "long"},
        {"number": float("inf")},
        {"repeats": None},
        {"answers": [["h0>h1", "no", ""]]},
        {"busy": "no"},
        {"took_s": float("nan")},
        {"number": 1},
    ],
    ids=[
        "no answer",
        "an unknown question",
        "half a pair",
        "no pairs",
        "no time",
        "no number",
        "no repeats",
        "a word for an answer",
        "a word for busy",
        "a time that is no number",
        "a line twice or left out",
    ],
)
def test_a_probe_that_is_none_of_this_search_is_named(change: dict[str, Any]) -> None:
    take = getattr(hunt, "replayed", None) or vars(hunt)["_replayed"]
    search: Any = SimpleNamespace(universe=(Question.of("h0>h1", frozenset()),), probes=0)
    with pytest.raises(ConfigError, match="the journal has a probe that is none of this search"):
        take({**WHOLE, **change}, search, BisectConfig())


RUN: dict[str, Any] = {
    "event": "run", "changes": ["seed=7"], "run": "run-2", "median_ns": 2e7, "bad": True, "said": "", "took_s": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"changes": 5}, "changes"),
        ({"changes": ["seed=8"]}, "changes"),
        ({"run": None}, "run"),
        ({"median_ns": "20ms"}, "median_ns"),
        ({"median_ns": 0}, "median_ns"),
        ({"median_ns": float("inf")}, "median_ns"),
        ({"bad": "no"}, "bad"),
        ({"took_s": float("nan")}, "took_s"),
    ],
    ids=["no list", "an unknown change", "no name", "text", "no time at all", "no end", "a word", "no number"],
)
def test_a_run_that_is_none_of_this_search_is_named(change: dict[str, Any], key: str) -> None:
    assert run_of(RUN, ("seed=7",)).bad
    with pytest.raises(ConfigError, match=f"a run that is none of this search: run.{key}: "):
        run_of({**RUN, **change}, ("seed=7",))


def _set(*place: str | int, to: object) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        for key in place[:-1]:
            value = value[key]
        value[place[-1]] = to

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_set("suspects", 0, "prior", to=-0.5), "expected a prior"),
        (_set("suspects", 0, "prior", to=1.0), "expected a prior"),
        (_set("ground", "flows", 0, 3, 0, 0, to=-0.5), "chances of ways that add up to 1"),
        (_set("ground", "flows", 0, 3, to=[]), "chances of ways that add up to 1"),
        (_set("ground", "flows", 0, 0, to=99), "from host 99"),
        (_set("ground", "flows", 0, 2, to=float("inf")), "OverflowError"),
        (_set("ground", "flows", 0, 3, 0, 1, to=[-1]), "KeyError"),
        (_set("roles", to={}), "has no role"),
        (_set("cables", 0, "nodes", to=["nowhere", "h0"]), "nowhere has no role"),
    ],
    ids=[
        "a negative prior", "a certain prior", "a negative chance", "no way", "a host too many", "a rate without end",
        "a port of the end of the list", "no roles", "a cable to nowhere",
    ],
)  # fmt: skip
def test_a_scene_that_cannot_be_is_named(tmp_path: Path, damage: Callable[[Any], None], said: str) -> None:
    folder = tmp_path / "search"
    bisect_folders.components(folder, ["link leaf1-spine0"], most=1)
    lines = [json.loads(line) for line in (folder / JOURNAL).read_bytes().splitlines()]
    damage(lines[1])
    (folder / JOURNAL).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(GenieError, match=f"its scene is damaged: .*{said}"):
        read_search(folder)


def test_a_damaged_search_goes_on_nowhere_and_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "search"
    bisect_folders.components(folder, ["link leaf1-spine0"], most=2)
    journal = folder / JOURNAL
    journal.write_bytes(journal.read_bytes().replace(b'"busy":false', b'"busy":"no"'))
    before = journal.read_bytes()
    monkeypatch.setattr(command.experiment, "Session", lambda *_: pytest.fail("a fabric was touched"))
    with pytest.raises(GenieError, match="the journal has a probe that is none of this search"):
        command.run(["--resume", str(folder)])
    assert journal.read_bytes() == before


def test_files_of_two_searches_are_not_shown_as_one(tmp_path: Path) -> None:
    bisect_folders.changes(tmp_path / "search", {("seed=7",): 1.5})
    bisect_folders.components(tmp_path / "other", ["link leaf1-spine0"], most=1)
    (tmp_path / "other" / JOURNAL).replace(tmp_path / "search" / JOURNAL)
    with pytest.raises(GenieError, match=r"files of two searches: mode is 'changes' in bisect.json, 'components' in"):
        read_search(tmp_path / "search")


@pytest.mark.parametrize("name", [JOURNAL, FILE_NAME])
def test_brackets_without_end_are_damage_and_no_defect(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("[" * 100_000 + "\n")
    with pytest.raises(GenieError, match=r"is damaged|cannot be read"):
        read_search(tmp_path)


def test_a_confidence_that_is_no_chance_is_refused(tmp_path: Path) -> None:
    bisect_folders.changes(tmp_path / "search", {("seed=7",): 1.5})
    path = tmp_path / "search" / FILE_NAME
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "confidence": float("nan")}))
    with pytest.raises(GenieError, match="confidence: expected a chance between 0 and 1, found nan"):
        read_record(path)
