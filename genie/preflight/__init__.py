"""``genie preflight``: how fast is each pair of hosts, and which of them is not as the others are?

`genie.preflight.command` is the story: `schedule` decides who meets whom when, `measure` reads what happened (or
`perftest` asks the vendors' own tools), `judge` looks for what is out of line, `record` keeps it, also as the baseline
that later commands find with `load_baseline`, and `report` shows it. docs/preflight.md says what is measured how.
"""

from __future__ import annotations

from genie.preflight.record import PreflightRecord, fabric_hash, load_baseline

__all__ = ["PreflightRecord", "fabric_hash", "load_baseline"]
