"""Workloads that are made instead of read: one module each, and the table that names them.

`genie.workload.load` calls `GENERATORS[name](config)`; each gives a `Trace` of one iteration with every duration
filled in. To add one: docs/workloads.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genie.workload.generators import collective, dp, fsdp, moe, pairs, tp_pp
from genie.workload.trace import Trace

GENERATORS: dict[str, Callable[[Any], Trace]] = {
    "moe": moe.generate,
    "dp": dp.generate,
    "fsdp": fsdp.generate,
    "tp_pp": tp_pp.generate,
    "collective": collective.generate,
    "pairs": pairs.generate,
}
