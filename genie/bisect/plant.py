"""A fault that is put on a fabric for a whole search, as if it were the fabric's own: for tests and for showing.

``genie bisect fault=NAME`` and the score bench use it. The search is handed the fabric only; which targets were drawn
stays in the fault's own files. The fault goes the usual way: journal, dead-man's switch, read back, revert.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from genie.errors import ConfigError, RunAborted
from genie.fabric.base import Fabric
from genie.faults.audit import AuditLog
from genie.faults.operation import remember_run
from genie.faults.plan import FaultPlan
from genie.faults.session import FaultSession
from genie.plan import Plan


@contextlib.contextmanager
def planted(plan: Plan, fabric: Fabric, folder: Path) -> Iterator[FaultSession | None]:
    """The faults of ``plan`` are in effect inside. Raises RunAborted where one cannot be made, or not taken back.

    ``folder`` takes their journal, so that ``genie revert`` finds it.
    """
    if not plan.faults:
        yield None
        return
    refuse_counted_windows(plan.faults)
    faults = FaultSession(plan.faults, fabric, folder / "faults.journal", folder, ttl_ns=plan.config.safety.ttl_ns)
    audit = AuditLog(Path(plan.config.out), run=str(folder))
    remember_run(plan.config, plan.topology, fabric, plan.faults, folder)
    _make_pace_files(plan.faults, fabric)
    for fault in plan.faults:
        audit.write("planned", fault.name, fault.targets, risk=fault.risk, window=fault.config.window.describe())
    try:
        for record in faults.apply():
            audit.write("applied", record.fault, record.ports, nodes=record.nodes)
        faults.start(time.monotonic_ns())
        yield faults
    finally:
        left = [record for record in faults.revert() if not record.ok]
        for record in faults.records:
            if record.action == "reverted":
                audit.write("reverted", record.fault, record.ports, result="ok" if record.ok else record.message)
    if left:
        raise RunAborted(f"{left[0].fault} could not be taken back: {left[0].message}", hint=f"genie revert {folder}")


def refuse_counted_windows(plans: Sequence[FaultPlan]) -> None:
    """Raises ConfigError for a window in iterations: a search has many runs, each with its own."""
    for plan in plans:
        if plan.config.window.kind == "iterations":
            raise ConfigError(
                "a window counted in iterations has no meaning over the probes of a search",
                key=f"fault.{plan.name}.window",
                hint="give it in time: at, for, period",
            )


def _make_pace_files(plans: Sequence[FaultPlan], fabric: Fabric) -> None:
    """An agent makes its host's file of pace when it starts (docs/formats.md §6); here the fault comes first."""
    for node in dict.fromkeys(node for plan in plans if plan.role == "host_pace" for node in plan.nodes):
        path = f"{fabric.state_dir(node)}/pace"
        done = fabric.run(node, [fabric.tool("genie-agent"), "pace", "set", "--file", path, "--milli", "1000"])
        if done.returncode:
            raise RunAborted(f"{node} has no file of pace: {' '.join(done.stderr.split())}")
