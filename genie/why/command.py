"""``genie why RUN [--against RUN] [--json]``: says why a run took as long as it did, or what made it slower.

Called by the command line. Reads run directories, writes ``why.json`` into the first one unless it cannot be written,
and prints; decides nothing.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from genie.errors import ConfigError

if TYPE_CHECKING:
    from genie.results.rundir import RunDir

USAGE = (
    "usage: genie why RUN_DIR [--against RUN_DIR] [--json]: what an iteration waited for, and which link or host is to "
    "blame;\n  --against: what part of the difference to another run each operator, pair of ranks and link carries"
)


def run(arguments: Sequence[str]) -> str:
    """The text to print. Raises ConfigError for what is no run directory, GenieError where nothing can be explained."""
    from genie.results.records import to_plain  # after the checks of words: --help and mistakes are answered fast
    from genie.why.difference import compare
    from genie.why.explain import explain
    from genie.why.store import FORMAT, VERSION, write_why
    from genie.why.text import render, render_difference

    paths, against, as_json = _parse(arguments)
    directory = _open(paths[0])
    why = explain(directory)
    with contextlib.suppress(OSError):  # an archive that is only read is explained as well
        write_why(directory, why)
    if against is None:
        if as_json:
            return json.dumps({"format": FORMAT, "version": VERSION, **to_plain(why)}, indent=1) + "\n"
        return render(why, directory.path.name)
    other = _open(against)
    difference = compare(explain(other), why, before_name=other.path.name, after_name=directory.path.name)
    if directory.manifest.hashes.get("workload") != other.manifest.hashes.get("workload"):
        note = "the runs had other workloads or seeds: parts of the same name need not be the same work"
        difference = replace(difference, notes=(*difference.notes, note))
    if as_json:
        return json.dumps({"format": "genie-why-difference", "version": 1, **to_plain(difference)}, indent=1) + "\n"
    return render_difference(difference)


def _parse(arguments: Sequence[str]) -> tuple[list[str], str | None, bool]:
    paths: list[str] = []
    against: str | None = None
    as_json = False
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--json":
            as_json = True
        elif word == "--against" or word.startswith("--against="):
            value = word.partition("=")[2] or (rest.pop(0) if rest else "")
            if not value or value.startswith("-"):
                raise ConfigError("--against needs a run directory", hint=USAGE)
            against = value
        elif word.startswith("-"):
            raise ConfigError(f"there is no option {word}", hint=USAGE)
        else:
            paths.append(word)
    if len(paths) != 1:
        raise ConfigError(f"expected one run directory, found {len(paths)}", hint=USAGE)
    return paths, against, as_json


def _open(path: str) -> RunDir:
    folder = Path(path)
    if (folder / "aba.json").is_file():
        raise ConfigError(f"'{path}' holds three runs", hint=f"genie why {path}/b --against {path}/a1")
    if not (folder / "manifest.json").is_file() and (inside := sorted(folder.glob("*/manifest.json"))):
        raise ConfigError(
            f"'{path}' holds {len(inside)} run{'s' * (len(inside) != 1)}",
            hint=f"genie why {shlex.quote(str(inside[0].parent))}",
        )
    if not (folder / "manifest.json").is_file():
        raise ConfigError(f"'{path}' is not a run directory: it has no manifest.json", hint=USAGE)
    from genie.results.rundir import RunDir

    return RunDir.open(folder)
