"""``why.json`` of a run directory: made by `explain_and_store`, read back typed by `load_why`.

The end of a run makes it; reports that draw why a run took so long take it from here, without reading events again.
Format in docs/run-directory.md: the fields of `genie.why.records.Why`.
"""

from __future__ import annotations

import json

from genie import jsontext
from genie.errors import GenieError
from genie.results.records import from_plain, to_plain
from genie.results.rundir import RunDir
from genie.why.explain import explain
from genie.why.records import Why

FILE_NAME = "why.json"
FORMAT = "genie-why"
VERSION = 1


MOST_EVENT_BYTES = 64 * 1024 * 1024
"""A run that recorded more is explained when somebody asks, not at its end: this is about a second's work."""


def explain_and_store(run: RunDir) -> Why | None:
    """Explain a run and write it down. None where nothing can be explained (no measured iteration, say), and for a run
    of very many events: its diary has the reason.
    """
    recorded = sum(path.stat().st_size for path in run.path.glob("events/*.evt"))
    if recorded > MOST_EVENT_BYTES:
        run.append_journal("not explained", reason=f"{recorded} bytes of events: genie why {run.path} takes a while")
        return None
    try:
        why = explain(run)
    except GenieError as error:
        run.append_journal("not explained", reason=error.message)
        return None
    write_why(run, why)
    return why


def explain_or_say(run: RunDir) -> str:
    """`explain_and_store` at the end of a run; "" or a sentence why it went wrong. What was measured is on the disk by
    then: nothing that goes wrong with its explanation, a defect included, may hide the result.
    """
    try:
        explain_and_store(run)
    except Exception as error:
        what = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        return f"no {FILE_NAME}: {what}; genie why {run.path} shows more"
    return ""


def write_why(run: RunDir, why: Why) -> None:
    """Write it, replacing what was there."""
    content = {"format": FORMAT, "version": VERSION, **to_plain(why)}
    run.write_bytes(FILE_NAME, (json.dumps(content, separators=(",", ":")) + "\n").encode())


def load_why(run: RunDir) -> Why | None:
    """What was written; None where nothing was. Raises GenieError for a file that is damaged or of another version."""
    path = run.path / FILE_NAME
    if not path.is_file():
        return None
    try:
        content = jsontext.parse(path.read_bytes())
    except (OSError, ValueError) as error:
        raise GenieError(f"{path} cannot be read: {error}", hint=f"delete it, then: genie why {run.path}") from error
    if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        raise GenieError(f"{path}: expected format {FORMAT} version {VERSION}", hint=f"genie why {run.path} makes it")
    return from_plain(Why, content, str(path))
