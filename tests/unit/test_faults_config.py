"""Windows of faults: what may be written, what it means, and that it survives the way to a run directory and back."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from genie.errors import ConfigError
from genie.faults.config import FaultConfig, WindowConfig
from genie.schema import DEFAULT_CHOICES, build, parse_config, to_mapping


def made(**keys: Any) -> WindowConfig:
    found: WindowConfig = build(WindowConfig, keys, "fault.f.window")
    return found


@pytest.mark.parametrize(
    ("keys", "kind", "numbers", "words"),
    [
        pytest.param({}, "whole", (0, 0, 0, 0), "the whole run", id="nothing"),
        pytest.param(
            {"at": "2s", "for": "3s"}, "timed", (2e9, 3e9, 0, 0), "from 2s for 3s", id="at and for"
        ),
        pytest.param({"at": "300ms"}, "timed", (3e8, 0, 0, 0), "from 300ms to the end", id="at alone"),
        pytest.param({"for": "3s"}, "timed", (0, 3e9, 0, 0), "from 0s for 3s", id="for alone"),
        pytest.param({"at": "0s", "for": "10ms"}, "timed", (0, 1e7, 0, 0), "from 0s for 10ms", id="the shortest"),
        pytest.param(
            {"at_iteration": 0}, "iterations", (0, 0, 0, 0), "from iteration 0 to the end", id="from the first"
        ),
        pytest.param(
            {"at_iteration": 5, "for_iterations": 2}, "iterations", (0, 0, 0, 0), "from iteration 5 for 2 iterations",
            id="some iterations",
        ),
        pytest.param(
            {"period": "1s", "duty": 0.1}, "periodic", (0, 0, 1e9, 1e8), "10% of every 1s, from 0s to the end",
            id="a duty of each period",
        ),
        pytest.param(
            {"at": "2s", "for": "3s", "period": "100ms", "duty": 0.5}, "periodic", (2e9, 3e9, 1e8, 5e7),
            "50% of every 100ms, from 2s for 3s", id="within a stretch",
        ),
    ],
)  # fmt: skip
def test_kinds(keys: dict[str, Any], kind: str, numbers: tuple[int, int, int, int], words: str) -> None:
    window = made(**keys)
    assert window.kind == kind
    assert (window.at_ns, window.for_ns, window.period_ns, window.open_ns) == numbers
    assert window.describe() == words


@pytest.mark.parametrize(
    ("keys", "at", "words"),
    [
        pytest.param({"at": "2s", "at_iteration": 1}, "at", "choose one of the two", id="both clocks"),
        pytest.param({"for": "2s", "for_iterations": 1}, "at", "choose one of the two", id="both lengths"),
        pytest.param({"for": "2s", "at_iteration": 1}, "at", "choose one of the two", id="a length of the other"),
        pytest.param({"for_iterations": 3}, "for_iterations", "needs at_iteration", id="a length without a start"),
        pytest.param({"at_iteration": -1}, "at_iteration", "from 0 up, found -1", id="before the first"),
        pytest.param({"at_iteration": 1, "for_iterations": 0}, "for_iterations", "from 1 up", id="no iterations"),
        pytest.param({"at_iteration": "soon"}, "at_iteration", "soon", id="not a number"),
        pytest.param({"at_iteration": 1.5}, "at_iteration", "1.5", id="not whole"),
        pytest.param({"at_iteration": True}, "at_iteration", "", id="a truth"),
        pytest.param({"period": "1s"}, "period", "period and duty go together", id="a period alone"),
        pytest.param({"duty": 0.5}, "period", "period and duty go together", id="a duty alone"),
        pytest.param(
            {"period": "1s", "duty": 0.5, "at_iteration": 1}, "period", "not with at_iteration", id="of iterations"
        ),
        pytest.param({"period": "1s", "duty": 0}, "duty", "above 0 and below 1", id="never"),
        pytest.param({"period": "1s", "duty": 1}, "duty", "above 0 and below 1", id="always"),
        pytest.param({"period": "1s", "duty": 1.5}, "duty", "above 0 and below 1", id="more than always"),
        pytest.param({"period": "15ms", "duty": 0.5}, "duty", "less than 10 ms", id="too short in effect"),
        pytest.param({"period": "1s", "duty": 0.999}, "duty", "less than 10 ms", id="too short out of effect"),
        pytest.param({"period": "1ms", "duty": 0.5}, "period", "at least 10 ms", id="too short a period"),
        pytest.param({"at": "2s", "for": "1ms"}, "for", "at least 10 ms", id="too short a window"),
        pytest.param({"for": "1000000h"}, "for", "at most 7 days", id="longer than any warden lives"),
        pytest.param({"at": "169h"}, "at", "at most 7 days", id="later than any warden lives"),
        pytest.param({"at": "2"}, "at", "expected a duration", id="no unit"),
        pytest.param({"at": "later"}, "at", "expected a duration", id="not a time"),
        pytest.param({"at": "-2s"}, "at", "expected a duration", id="before the start"),
        pytest.param({"for": "nan s"}, "for", "expected a duration", id="not a number of seconds"),
        pytest.param({"for_": "2s"}, "for_", "", id="Python's name of the field"),
        pytest.param({"until": "2s"}, "until", "", id="an unknown key"),
    ],
)
def test_refusals_name_the_key(keys: dict[str, Any], at: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**keys)
    assert caught.value.key == f"fault.f.window.{at}"
    assert words in str(caught.value)


def test_the_windows_of_a_recipe_can_be_emptied_for_another_kind() -> None:
    with pytest.raises(ConfigError) as caught:
        made(**{"at": "1s", "period": "3s", "duty": 0.1, "at_iteration": 2})
    assert "window.at= window.for= window.period= window.duty=null" in str(caught.value.hint)
    emptied = made(**{"at": "", "for": "", "period": "", "duty": None, "at_iteration": 2})
    assert emptied.kind == "iterations"


@pytest.mark.parametrize(
    "window",
    [
        pytest.param({}, id="none"),
        pytest.param({"at": "2s", "for": "3s"}, id="timed"),
        pytest.param({"at_iteration": 5, "for_iterations": 2}, id="iterations"),
        pytest.param({"at": "1s", "for": "3s", "period": "100ms", "duty": 0.25}, id="periodic"),
    ],
)
def test_a_window_survives_a_run_directory(window: dict[str, Any]) -> None:
    fault = {"role": "port_rate", "targets": ["all"], "parameters": {"rate": "10%"}, "window": window}
    groups = {group: {"name": kind} for group, kind in DEFAULT_CHOICES.items()}
    config = parse_config({**groups, "fault": {"f": fault}})
    written = yaml.safe_load(yaml.safe_dump(to_mapping(config)))
    told = written["fault"]["f"]["window"]
    assert "for_" not in told
    assert {key: told[key] for key in window} == window
    assert parse_config(written) == config
    assert build(FaultConfig, written["fault"]["f"], "fault.f") == config.fault["f"]
    assert config.fault["f"].window == made(**window)
