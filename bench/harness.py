"""What the benchmarks share: an unshaped fabric, GENIE's engine on it from Python, and rows with ratios.

Benchmarks call the same parts that a run uses (workload, lowering, agents), with recording and checks on. A row
holds our absolute figure, the peer's from the same minute, and their ratio; nothing is asserted.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from genie import topology, workload
from genie.collectives.config import CollectivesConfig
from genie.collectives.lower import lower
from genie.engine.encode import Endpoint, EngineSettings, encode
from genie.engine.events import Events, read_events
from genie.engine.wire import EventType
from genie.fabric import NetnsConfig
from genie.fabric.netns import NetnsFabric
from genie.fabric.program import FabricProgram
from genie.launch.agents import Agents, Assignment
from genie.topology import SingleSwitchConfig
from genie.transport import RankPlace, TcpTransport, TransportConfig
from genie.workload.check import check


@dataclass(frozen=True, slots=True)
class Row:
    """One line of RESULTS.md. ``ours`` and ``peer`` are printed as given; ``target`` is what was hoped for."""

    what: str
    ours: str
    peer: str
    ratio: str
    target: str


class UnshapedFabric(NetnsFabric):
    """The embedded fabric without shaping: what remains is the kernel and the machine."""

    def program(self) -> FabricProgram:
        """As for any fabric, but no queueing discipline and no marker."""
        program = super().program()
        nodes = tuple(dataclasses.replace(node, tc="") for node in program.nodes)
        return dataclasses.replace(program, nodes=nodes, markers=())


@contextmanager
def fabric(hosts: int, *, shaped_bps: str = "", packets: str = "bulk", ecn: bool = False) -> Iterator[NetnsFabric]:
    """Hosts on one switch; unshaped unless a rate is given."""
    shape = SingleSwitchConfig(hosts=hosts, host_rate=shaped_bps or "1Tbps", queue="1MB", ecn=ecn)
    kind = NetnsFabric if shaped_bps else UnshapedFabric
    with tempfile.TemporaryDirectory(prefix="genie-bench-") as folder:
        made = kind(NetnsConfig(packets=packets), topology.build(shape), Path(folder))
        made.build()
        try:
            yield made
        finally:
            made.destroy()


def replay(
    net: NetnsFabric,
    mapping: Mapping[str, Any],
    collectives: CollectivesConfig,
    transport: TransportConfig | None = None,
    **settings: Any,
) -> list[Events]:
    """Run a workload on ``net``, a rank a host in turn, and return each rank's events. ``transport`` None is tcp."""
    carrier = transport or TcpTransport()
    checked = check(workload.load(dict(mapping)))
    programs = lower(checked, collectives)
    hosts = [node.name for node in net.topology.hosts]
    placed = [hosts[rank % len(hosts)] for rank in range(len(programs))]
    chosen = EngineSettings(run_id=secrets.token_bytes(16), transport=carrier.name, **settings)
    endpoints = [Endpoint(int(ipaddress.IPv4Address(net.address(host))), 7000 + r) for r, host in enumerate(placed)]
    with tempfile.TemporaryDirectory(prefix="genie-bench-") as folder:
        directory = Path(folder)
        (directory / "events").mkdir()
        (directory / "log").mkdir()
        assignments = {
            p.rank: Assignment(
                p.rank,
                placed[p.rank],
                encode(p, chosen, endpoints, carrier.settings(RankPlace(p.rank, placed[p.rank]))),
                f"events/rank-{p.rank}.evt",
            )
            for p in programs
        }
        with Agents(net, directory, log=print, connect_timeout_s=30, agent=carrier.agent) as agents:
            agents.muster(assignments)
            race = agents.race(None, lambda _: None)
            if not race.outcome.ok:
                raise RuntimeError(f"{race.outcome.reason} {race.outcome.failures}")
        events = [read_events(directory / "events" / f"rank-{p.rank}.evt") for p in programs]
        return [dataclasses.replace(e, records=np.array(e.records)) for e in events]


def call_times_ns(events: list[Events], skip: int = 0) -> np.ndarray:
    """Time of each collective: from the first rank's start to the last rank's end, in the order of iterations."""
    per_rank = []
    for rank in events:
        ops = rank.records[(rank.records["type"] == EventType.OPERATOR) & (rank.records["call_id"] != 0xFFFFFFFF)]
        per_rank.append(np.stack([ops["t1_ns"], ops["t2_ns"]]))
    starts = np.min([p[0] for p in per_rank], axis=0)
    ends = np.max([p[1] for p in per_rank], axis=0)
    return (ends - starts)[skip:]
