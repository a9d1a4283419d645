"""Runs of GENIE one after the other on machines that keep its programs in between: half a minute less for each.

What a sweep or `protocol=aba` does with its runs (`genie.experiment.Session`), with a command line for each run.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lab import Lab
from lab_runs import SMALL

from genie import argv, experiment
from genie.compose import compose
from genie.plan import Plan
from genie.report.progress import Narrator
from genie.results.rundir import RunDir
from genie.schema import parse_config


def metrics(run: RunDir) -> dict[str, Any]:
    """What a run was measured to be."""
    return dict(json.loads((run.path / "results.json").read_text())["metrics"])


class Held:
    """Machines of one inventory that are ready for runs, where there is a session; it is not this object's own."""

    def __init__(self, lab: Lab, folder: Path, inventory: Path, session: experiment.Session | None = None) -> None:
        self._lab = lab
        self._folder = folder
        self.inventory = inventory
        self._session = session
        self.said = io.StringIO()

    def plan(self, *words: str) -> Plan:
        """What such a command line would run."""
        common = [*SMALL, "fabric=inventory", f"fabric.inventory={self.inventory}", f"out={self._folder / 'runs'}"]
        common.append(f"fabric.control_address={self._lab.state['control_address']}")
        chosen = {word.split("=")[0] for word in words}
        line = argv.parse([*(word for word in common if word.split("=")[0] not in chosen), *words])
        (composed,) = compose(line)
        return experiment.plan(parse_config(composed.mapping, composed.choices))

    def race(self, *words: str) -> RunDir:
        """A run to its end. Raises the GenieError that ended it, as a user would read it."""
        assert self._session is not None
        plan = self.plan(*words)
        with Narrator(plan.iterations, len(plan.programs), self.said) as say:
            return experiment.run_on(self._session, plan, say, reproduce="", parent="", baseline="none")

    @property
    def latest(self) -> RunDir:
        """The directory of the last run, also of one that failed."""
        return RunDir.open(max((self._folder / "runs").glob("2*/"), key=lambda path: path.stat().st_mtime_ns))


class Machines:
    """The lab's machines, which one `Held` at a time has. Closing ends it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab = lab
        self._folder = folder
        self._open = ExitStack()
        self._held: Held | None = None
        self._count = 0

    def over(self, inventory: Path) -> Held:
        """Runs over this inventory: those that are held already, else after the others are let go."""
        if self._held is None or self._held.inventory != inventory:
            self.close()
            self._count += 1
            folder = self._folder / f"{inventory.stem}-{self._count}"
            self._held = self._open.enter_context(_held(self._lab, folder, inventory))
        return self._held

    def close(self) -> None:
        """Take away from the machines what runs need there."""
        self._held = None
        self._open.close()


@contextmanager
def _held(lab: Lab, folder: Path, inventory: Path) -> Iterator[Held]:
    first = Held(lab, folder, inventory)
    folder.mkdir(parents=True)
    plan = first.plan("transport=verbs", "workload=collective", "workload.ranks=2")
    with Narrator(1, 1, first.said) as say, experiment.Session(plan, folder, say) as session:
        yield Held(lab, folder, inventory, session)


@contextmanager
def running(ready: Held, *words: str) -> Iterator[Future[RunDir]]:
    """A run in the background. It is waited for at the end of the block, whatever became of it."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(ready.race, *words)
        yield future
