"""JSON that somebody else may have written or cut: files of a run, journals, traces."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str | bytes) -> Any:
    """What ``text`` says, as `json.loads`. Raises ValueError for all that is no JSON, also for brackets nested deeper
    than Python reads, of which ``json`` says RecursionError: readers of a file have one kind of damage to name.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None
