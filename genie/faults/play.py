"""The play that drives faults (playbooks/fault.yml): its inventory, a run of Ansible over it, what came of it where.

A *place* is one fault on one node. On machines reached by ssh each is an inventory host ("link_rate.gpu7"). Nodes of
the embedded fabric are namespaces of this machine, and one inventory host stands for all of them: a host costs Ansible
80 ms of processor time, a node costs GENIE 20. `genie.faults.session` runs it; what is done at a place is
`genie.faults.life`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from genie import paths
from genie.errors import RunAborted
from genie.fabric.base import Fabric
from genie.faults import warden
from genie.faults.ansible_job import python_path
from genie.faults.life import limit_hms
from genie.faults.plan import Change, FaultPlan, words

APPLY_PHASES = ("prepare", "act")
REVERT_PHASES = ("revert",)
JOB_TIMEOUT_S = 90.0
TOOLS = ("genie-port", "genie-agent", "genie-load")
PACKAGE_ROOT = Path(paths.__file__).resolve().parent.parent
ENTERED = "genie_netns"
"""The connection of nodes that this machine enters itself (playbooks/connection_plugins)."""
BATCH = "nodes"
"""The inventory host that stands for them; that of a place has a dot in its name."""


class Place(NamedTuple):
    """One fault on one node."""

    fault: str
    node: str

    @property
    def host(self) -> str:
        """Its name where it is an inventory host of its own: a fault's name has no dot, so the first one separates."""
        return f"{self.fault}.{self.node}"


def places_of(plan: FaultPlan) -> tuple[Place, ...]:
    """Where a fault changes something."""
    return tuple(Place(plan.name, node) for node in plan.nodes)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one phase came to at one place. ``message``: why it is not ``ok``. ``done_ns``: CLOCK_MONOTONIC of this
    machine. ``log``: the warden's answer to ``revert``.
    """

    place: Place
    phase: str
    ok: bool
    message: str
    done_ns: int
    log: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run of the play came to: ``status`` is ansible-runner's, ``said`` what Ansible printed if it failed."""

    status: str
    outcomes: tuple[Outcome, ...]
    said: str

    def failure(self, place: Place | None = None) -> Outcome | None:
        """The first that failed (at ``place``), or None."""
        return next((o for o in self.outcomes if not o.ok and place in (None, o.place)), None)

    def was_reverted(self, place: Place) -> bool:
        """Whether the place was put back and read back."""
        own = [outcome for outcome in self.outcomes if outcome.place == place]
        return all(outcome.ok for outcome in own) and any(outcome.phase == "revert" for outcome in own)

    def warden(self, place: Place) -> warden.Status:
        """What the warden of a place logged until it was told to revert, as far as it answered."""
        logs = [outcome.log for outcome in self.outcomes if outcome.place == place and outcome.phase == "revert"]
        try:
            return warden.parse_status(logs[-1]) if logs and logs[-1] else warden.Status("")
        except RunAborted:
            return warden.Status("")  # of another version; what was read back is what counts

    def last_ns(self, phase: str, places: Collection[Place]) -> int:
        """When the last of ``places`` had gone through a phase; 0 if none did."""
        return max((o.done_ns for o in self.outcomes if o.phase == phase and o.place in places), default=0)


class Play:
    """The play for the faults of one session."""

    def __init__(self, plans: Sequence[FaultPlan], fabric: Fabric, journal: Path, run: str, ttl_ns: int) -> None:
        self._plans = plans
        self._fabric = fabric
        self._journal = journal
        self._run = run
        self._ttl_ns = ttl_ns

    def run(self, phases: Sequence[str], only: Collection[Place] | None = None, *, stop_at_first_error: bool) -> Answer:
        """Go through ``phases`` at all places, or ``only`` some. No place enters one before all have left the one
        before it. Raises RunAborted where Ansible itself could not be run to its end.
        """
        hosts = self.hosts(only)
        job = {
            "playbook": "fault.yml",
            "playbooks": str(paths.playbooks_dir()),
            "roles": str(paths.roles_dir()),
            "package_root": str(PACKAGE_ROOT),
            "hosts": hosts,
            "tags": list(phases),
            "extra": {"genie_stop_at_first_error": stop_at_first_error},
            "timeout_s": int(JOB_TIMEOUT_S) - 10,
        }
        argv = ["env", f"PYTHONPATH={python_path(PACKAGE_ROOT)}", sys.executable, "-m", "genie.faults.ansible_job"]
        done = self._fabric.run("", argv, stdin=json.dumps(job).encode(), timeout_s=JOB_TIMEOUT_S)
        if done.returncode != 0:
            raise RunAborted(
                f"the Ansible job of the faults ended with exit code {done.returncode}: {done.stderr.strip()[-2000:]}"
            )
        said = json.loads(done.stdout)
        return Answer(said["status"], tuple(_outcomes(said["results"], hosts)), said["stdout"])

    def hosts(self, only: Collection[Place] | None = None) -> dict[str, dict[str, Any]]:
        """The inventory for all places, or ``only`` some: variables by host."""
        hosts: dict[str, dict[str, Any]] = {}
        batch: list[dict[str, Any]] = []
        for plan in self._plans:
            for place in places_of(plan):
                if only is not None and place not in only:
                    continue
                reached = self._fabric.ansible_host(place.node)
                told = self._told(plan, place)
                if reached.get("ansible_connection") == ENTERED:
                    batch.append(told)
                else:
                    hosts[place.host] = {**reached, **told}
        if batch:
            hosts[BATCH] = {"ansible_connection": ENTERED, "genie_batch_json": json.dumps(batch)}
        return hosts

    def _told(self, plan: FaultPlan, place: Place) -> dict[str, Any]:
        """What `genie.faults.life.Task.from_variables` reads."""
        changes = [change for change in plan.changes if change.node == place.node]
        return {
            "genie_run": self._run,
            "genie_fault": plan.name,
            "genie_role": plan.role,
            "genie_node": place.node,
            "genie_platform": changes[0].platform,
            "genie_parameters": {p.name: str(plan.config.parameter(p.name)) for p in plan.mechanism.parameters},
            "genie_ports_json": json.dumps([plan.port_variables(change) for change in changes]),
            "genie_words_json": json.dumps(self.words(plan, place.node)),
            "genie_journal_path": str(self._journal),
            "genie_window_json": json.dumps(asdict(window_of(plan))),
            "genie_is_whole": plan.config.window.kind == "whole",
            "genie_ttl_ns": self._ttl_ns,
            "genie_warden": self._fabric.tool(warden.PROGRAM),
            "genie_state": self._fabric.state_dir(place.node),
            "genie_lock": self._fabric.lock_file(place.node),
        }

    def words(self, plan: FaultPlan, node: str) -> dict[str, str]:
        """What commands on a node may name beside their port."""
        tools = {name.replace("-", "_"): self._fabric.tool(name) for name in TOOLS}
        own = {"state": self._fabric.state_dir(node), "ttl_hms": limit_hms(self._ttl_ns)}
        return {**words(plan.name, node, plan.marker), **tools, **own}

    def variables(self, plan: FaultPlan, change: Change) -> dict[str, Any]:
        """All that templates of a change may name, but for what was found there."""
        port = plan.port_variables(change)
        return {"port": {**port, **port["set"]}, **self.words(plan, change.node)}


def window_of(plan: FaultPlan) -> warden.Window:
    """A plan's window as its warden has it. One for the whole run is told to open as soon as it is armed."""
    said = plan.config.window
    match said.kind:
        case "timed":
            return warden.Window("timed", said.at_ns, said.for_ns)
        case "periodic":
            return warden.Window("periodic", said.at_ns, said.for_ns, said.period_ns, said.open_ns)
    return warden.Window("told")


def _outcomes(results: Iterable[Mapping[str, Any]], hosts: Mapping[str, Mapping[str, Any]]) -> Iterator[Outcome]:
    """What the job's results say of each place. A host that failed as such (out of reach, an error of Ansible's own)
    failed at all its places.
    """
    for result in results:
        told = result["told"]
        if "places" in told:
            for own in told["places"]:
                place = Place(own["fault"], own["node"])
                yield Outcome(
                    place, told["phase"], own["ok"], _one_line(own["message"]), own["done_mono_ns"], own.get("log", "")
                )
        elif not result["ok"]:
            words = _one_line(result["message"] or result["stderr"] or result["stdout"]) or "nothing"
            for place in _places_at(hosts[result["host"]]):
                yield Outcome(place, result["phase"], False, words, result["seen_mono_ns"])


def _places_at(host: Mapping[str, Any]) -> list[Place]:
    told = json.loads(host["genie_batch_json"]) if "genie_batch_json" in host else [host]
    return [Place(own["genie_fault"], own["genie_node"]) for own in told]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:2000]
