"""A journal whose lines are JSON, but not of this search."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from genie.bisect import hunt
from genie.bisect.config import BisectConfig
from genie.errors import ConfigError

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
    ],
    ids=["no answer", "an unknown question", "half a pair", "no pairs", "no time", "no number", "no repeats"],
)
def test_a_probe_that_is_none_of_this_search_is_named(change: dict[str, Any]) -> None:
    take = getattr(hunt, "replayed", None) or vars(hunt)["_replayed"]
    search: Any = SimpleNamespace(universe=())
    with pytest.raises(ConfigError, match="the journal has a probe that is none of this search"):
        take({**WHOLE, **change}, search, BisectConfig())
