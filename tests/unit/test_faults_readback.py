"""Evidence of a read-back in words: what was expected and what was found."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from genie.faults.change import differences
from genie.faults.readback import difference, expected, expected_and_found
from genie.faults.recipe import load_mechanism, load_platform, roles
from genie.paths import roles_dir

TOLD = {"port": {"rate_bps": 8_000_000, "paths": 2}}


@pytest.mark.parametrize(
    ("after", "state", "words"),
    [
        pytest.param({"marking": False}, {"marking": False}, ("marking off", "off"), id="a switch"),
        pytest.param({"sending": True}, {"sending": True}, ("sending on", "on"), id="another"),
        pytest.param({"pfc_on": False}, {"pfc_on": False}, ("pfc off", "off"), id="a switch by its name"),
        pytest.param({"up": False}, {"up": False}, ("link down", "down"), id="a link"),
        pytest.param({"asic_marks": False}, {"asic_marks": False}, ("asic marks no", "no"), id="true or not"),
        pytest.param({"is_own": True}, {"is_own": True}, ("own yes", "yes"), id="true or not by its name"),
        pytest.param({"ecn_line": ""}, {"ecn_line": ""}, ("ecn line none", "none"), id="no text"),
        pytest.param(
            {"kind": "tbf", "rate_bps": "{{ port.rate_bps }}"},
            {"kind": "tbf", "rate_bps": 8_000_000, "handle": "1:"},
            ("kind tbf, rate 8 Mb/s", "kind tbf, rate 8 Mb/s"),
            id="several fields, each with its name",
        ),
        pytest.param({"delay_ns": 1_500_000}, {"delay_ns": 1_500_000}, ("delay 1.5 ms", "1.5 ms"), id="a time"),
        pytest.param({"limit_bytes": 2048}, {"limit_bytes": 2048}, ("limit 2 KiB", "2 KiB"), id="a size"),
        pytest.param({"ratio_ppb": 1_000_000}, {"ratio_ppb": 1_000_000}, ("ratio 0.1%", "0.1%"), id="a ratio"),
        pytest.param({"stretch_milli": 1250}, {"stretch_milli": 1250}, ("stretch 1.25", "1.25"), id="thousandths"),
        pytest.param(
            {"buffer_bytes": {"at_most": 4096, "at_least": 0}},
            {"buffer_bytes": 1024},
            ("buffer at most 4 KiB and at least 0 B", "1 KiB"),
            id="bounds",
        ),
        pytest.param({"state": ["a", "b"]}, {"state": "b"}, ("state a or b", "b"), id="one of several"),
        pytest.param({}, {"there": True}, ("read", "read"), id="no condition"),
    ],
)
def test_what_holds(after: dict[str, Any], state: dict[str, Any], words: tuple[str, str]) -> None:
    assert differences(after, state, TOLD) == []
    assert expected_and_found(after, state, TOLD) == words
    assert expected(after, TOLD) == words[0]


@pytest.mark.parametrize(
    ("after", "state", "words"),
    [
        pytest.param({"marking": False}, {"marking": True}, ("marking off", "on"), id="the one field"),
        pytest.param({"marking": False}, {}, ("marking off", "nothing"), id="not told"),
        pytest.param(
            {"kind": "tbf", "rate_bps": "{{ port.rate_bps }}"},
            {"kind": "tbf", "rate_bps": 40_000_000},
            ("rate 8 Mb/s", "rate 40 Mb/s"),
            id="one of several, by its name",
        ),
        pytest.param(
            {"rate_bps": "{{ port.rate_bps }}"},
            {"rate_bps": 8_000_008},
            ("rate_bps 8000000", "8000008"),
            id="what rounding would hide is told in full",
        ),
        pytest.param({"paths": {"at_most": "{{ port.paths }}"}}, {"paths": 4}, ("paths at most 2", "4"), id="a bound"),
    ],
)
def test_what_does_not_hold(after: dict[str, Any], state: dict[str, Any], words: tuple[str, str]) -> None:
    assert difference(after, differences(after, state, TOLD)) == words


@pytest.mark.parametrize("role", roles())
def test_no_role_has_a_field_whose_words_are_those_of_a_program(role: str) -> None:
    for path in sorted((roles_dir() / role / "platforms").glob("*.yml")):
        after = load_platform(role, path.stem).after
        plain = {field: said for field, said in after.items() if "{" not in yaml.safe_dump(said)}
        words = expected(plain, {})
        assert not {"True", "False", "true", "false", "None"} & set(words.replace(",", " ").split()), words
    assert load_mechanism(role).role == role
