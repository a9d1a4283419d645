"""``operation.json``: what was put on real hosts and how to reach them, for a process that comes after ours.

Written before anything is changed, beside the journal: by `genie.faults.operate` for an operator, by
`genie.experiment` for a run. With both, ``genie faults status`` and ``genie revert`` need neither the inventory, which
may say something else by then, nor the process that applied. Reads and writes this file; reaches nobody.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from genie import jsontext
from genie.errors import GenieError
from genie.fabric.base import Capabilities, Fabric
from genie.fabric.config import InventoryConfig
from genie.fabric.survey import linux_targets, survey
from genie.faults.config import FaultConfig
from genie.faults.plan import FaultPlan, RunFacts, plan_faults
from genie.faults.reached import NodeRecord, ReachedHosts
from genie.results.records import from_plain, to_plain
from genie.schema import ExperimentConfig, build, to_mapping
from genie.topology.model import Topology

FILE_NAME = "operation.json"
TOOLS = ("genie-warden", "genie-port", "genie-agent", "genie-load")


@dataclass(frozen=True, slots=True)
class Operation:
    """``operation.json``: what was applied where, so that another process can plan the very same again and find it.

    ``faults`` are recipes as configured; ``tools`` are paths on the nodes. ``ends_real_ns`` is when the last time limit
    has passed, 0 until everything is applied.
    """

    faults: Mapping[str, Any]
    topology: Topology
    capabilities: Capabilities
    facts: RunFacts
    nodes: tuple[NodeRecord, ...]
    tools: Mapping[str, str]
    inventory: str
    ttl_ns: int
    began_real_ns: int
    ends_real_ns: int = 0

    def plans(self) -> tuple[FaultPlan, ...]:
        """The plans, as they were applied."""
        faults = {name: build(FaultConfig, content, f"fault.{name}") for name, content in self.faults.items()}
        return plan_faults(faults, self.topology, self.capabilities, self.facts)

    def write(self, folder: Path) -> None:
        """Whole or not at all; on disk before the call returns."""
        content = {"format": "genie-faults-operation", "version": 1, **to_plain(self)}
        temporary = folder / f".{FILE_NAME}"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / FILE_NAME)


def read_operation(folder: Path) -> Operation:
    """What ``folder`` says. Raises GenieError where it cannot be read."""
    path = folder / FILE_NAME
    try:
        content = jsontext.parse(path.read_text(encoding="utf-8"))
        if content["format"] != "genie-faults-operation" or content["version"] != 1:
            raise ValueError(f"format {content['format']!r} version {content['version']!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GenieError(f"{path} cannot be read as what was applied: {error}") from error
    return from_plain(Operation, content, str(path))


def describe(config: ExperimentConfig, network: Topology, fabric: Fabric, facts: RunFacts) -> Operation:
    """What ``config`` asks for on hosts that are known but not changed yet: no nodes."""
    return Operation(
        faults=to_mapping(config)["fault"],
        topology=network,
        capabilities=fabric.capabilities(),
        facts=facts,
        nodes=(),
        tools={},
        inventory=getattr(config.fabric, "inventory", ""),
        ttl_ns=config.safety.ttl_ns,
        began_real_ns=time.time_ns(),
    )


def remember(operation: Operation, plans: Sequence[FaultPlan], fabric: Fabric, config: InventoryConfig) -> Operation:
    """With how to reach every node that ``plans`` change, on a fabric that is built."""
    targets = linux_targets(survey(Path(config.inventory), config.group).entries)
    nodes = tuple(
        NodeRecord(
            name=node,
            ansible={key: value for key, value in fabric.ansible_host(node).items() if key != "ansible_ssh_args"},
            state_dir=fabric.state_dir(node),
            lock=fabric.lock_file(node),
            target=targets.get(node),
        )
        for node in dict.fromkeys(node for plan in plans for node in plan.nodes)
    )
    return replace(operation, nodes=nodes, tools={name: fabric.tool(name) for name in TOOLS})


def remember_run(
    config: ExperimentConfig, network: Topology, fabric: Fabric, plans: Sequence[FaultPlan], folder: Path
) -> None:
    """Before a run changes anything: write what ``genie revert`` needs if it dies. A fabric that ends with its run
    needs nothing.
    """
    if plans and isinstance(config.fabric, InventoryConfig):
        remember(describe(config, network, fabric, plans[0].facts), plans, fabric, config.fabric).write(folder)


def reach(operation: Operation) -> ReachedHosts:
    """The nodes of an operation, not connected yet."""
    return ReachedHosts(operation.nodes, operation.tools)
