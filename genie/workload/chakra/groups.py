"""Communicators of a Chakra job: from a JSON file, and from METADATA nodes that hold PyTorch's process groups.

Two sources: ``{"1": [0, 1], …}`` (ASTRA-sim's ``--comm-group-configuration``; order = ring order), and nodes whose
``inputs.values`` is the text of a Python list with one JSON text ``[{"pg_name": "0", "ranks": [0, 1], …}]``. An empty
list of ranks there means all ranks. The nodes stand before the file, as in ASTRA-sim.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from genie import jsontext
from genie.errors import TraceError
from genie.workload.chakra import wire
from genie.workload.excerpt import excerpt

MAX_TEXT = 16 * 2**20


def read_group_file(path: Path) -> dict[str, tuple[int, ...]]:
    """The communicators of a JSON file.

    Raises:
        TraceError: no such file, not JSON, or not of the form ``{"name": [ranks]}``.
    """
    data = wire.read_bytes(path)
    try:
        document = jsontext.parse(data)
    except ValueError as error:
        raise TraceError(f"communicator file is not JSON: {error}", file=str(path)) from error
    if not isinstance(document, dict):
        raise TraceError('communicator file must be an object such as {"1": [0, 1]}', file=str(path))
    return {name: _ranks(ranks, f"communicator {excerpt(name)}", str(path)) for name, ranks in document.items()}


def _ranks(value: Any, what: str, file: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(rank, int) and not isinstance(rank, bool) for rank in value):
        raise TraceError(f"{what} must be a list of ranks, found {excerpt(value)}", file=file)
    return tuple(value)


def process_groups(text: str, file: str, node: str) -> dict[str, tuple[int, ...]]:
    """The process groups in the ``inputs.values`` text of one METADATA node; () means all ranks.

    Raises:
        TraceError: the text speaks of groups (``pg_name``) but cannot be understood.
    """
    if "pg_name" not in text:
        return {}
    if len(text) > MAX_TEXT:
        raise TraceError(f"process groups take more than {MAX_TEXT} characters", file=file, node=node)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the text's own odd escapes are no concern of the user
            values = ast.literal_eval(text)
        entries: list[Any] = []
        for value in values if isinstance(values, list) else [values]:
            entries += json.loads(value) if isinstance(value, str) else [value]
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise TraceError(f"process groups cannot be understood: {excerpt(text)}", file=file, node=node) from None
    return group_entries(entries, file, node)


def group_entries(entries: list[Any], file: str, node: str) -> dict[str, tuple[int, ...]]:
    """``[{"pg_name": name, "ranks": [...]}]`` as a mapping."""
    groups: dict[str, tuple[int, ...]] = {}
    for entry in entries:
        if not isinstance(entry, dict) or "pg_name" not in entry:
            raise TraceError(f"process group without pg_name: {excerpt(entry)}", file=file, node=node)
        ranks = entry.get("ranks")
        name = str(entry["pg_name"])
        groups[name] = () if not ranks else _ranks(ranks, f"process group {excerpt(name)}", file)
    return groups


def merge(into: dict[str, tuple[int, ...]], more: Mapping[str, tuple[int, ...]], file: str) -> None:
    """Add one rank's groups to the job's. Raises TraceError if a name has other ranks already."""
    for name, ranks in more.items():
        known = into.setdefault(name, ranks)
        if known != ranks:
            message = (
                f"process group {excerpt(name)} has ranks {excerpt(list(ranks) or 'all')}, but another rank's file says"
            )
            raise TraceError(f"{message} {excerpt(list(known) or 'all')}", file=file)
