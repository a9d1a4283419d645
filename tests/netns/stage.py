"""Whole runs of one recipe after another on one small fabric, and what their records say of single flows.

Four hosts under two leaves and two spines. The job of most tests is ``pairs``: every two hosts exchange messages in a
rank of their own on each side, without ever waiting for the other pairs, so that a fault shows in exactly the pairs
whose packets meet it. Times are CLOCK_MONOTONIC ns, as recorded.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from genie import experiment, schema
from genie.argv import parse
from genie.compose import compose
from genie.engine import wire
from genie.engine.binaries import find_binary
from genie.engine.encode import LISTEN_PORT, Endpoint, encode
from genie.engine.events import read_events
from genie.errors import GenieError
from genie.experiment import Session
from genie.fabric.netns import MARKER_MAP
from genie.plan import Plan
from genie.report.progress import Narrator
from genie.results.ports import read_ports

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
import chakra_maker as maker

Ints = npt.NDArray[np.int64]
HOSTS = ("h0", "h1", "h2", "h3")
BULK = tuple(combinations(HOSTS, 2))
SMALL = (("h0", "h2"), ("h1", "h3"))
BULK_BYTES = 48 * 1024
SMALL_BYTES = 400
SMALL_PAUSE_US = 15_000
NETWORK = (
    "topology=leaf_spine", "topology.hosts=4", "topology.leaves=2", "topology.spines=2", "topology.host_rate=50Mbps",
    "fabric=netns", "fabric.packets=exact", "fabric.sample_interval=5ms", "seed=7",
)  # fmt: skip
QUIET = ("tracking.mlflow.enabled=false", "report.timeline=false", "report.html=false", "baseline=none", "timeout=20s")


class Flow(NamedTuple):
    """One direction of one pair: ``kind`` is "bulk" or "small"."""

    source: str
    target: str
    kind: str
    sender: int
    receiver: int

    @property
    def name(self) -> str:
        return f"{self.source}→{self.target} ({self.kind})"


def write_pairs(folder: Path) -> str:
    """The job ``pairs`` as Chakra traces. Ranks of a host are neighbours, so placement is ``block``."""
    ranks: dict[tuple[str, int], int] = {}  # (host, number of the pair) → rank
    pairs = [*BULK, *SMALL]
    for host in HOSTS:
        for number, pair in enumerate(pairs):
            if host in pair:
                ranks[host, number] = len(ranks)
    files: list[Any] = [None] * len(ranks)
    for number, pair in enumerate(pairs):
        size = BULK_BYTES if number < len(BULK) else SMALL_BYTES
        for own, other in (pair, pair[::-1]):
            peer = ranks[other, number]
            nodes = [maker.send(1, peer, size, tag=1), maker.recv(2, peer, size, tag=1)]
            if size == SMALL_BYTES:
                nodes.append(maker.comp(3, SMALL_PAUSE_US, data=(1, 2)))
            files[ranks[own, number]] = nodes
    return maker.write_job(folder, *files, prefix="pairs")


def flows() -> tuple[Flow, ...]:
    """Both directions of every pair, with their ranks."""
    pairs = [*BULK, *SMALL]
    names = [(host, number) for host in HOSTS for number, pair in enumerate(pairs) if host in pair]
    rank = {name: index for index, name in enumerate(names)}
    return tuple(
        Flow(own, other, "bulk" if number < len(BULK) else "small", rank[own, number], rank[other, number])
        for number, pair in enumerate(pairs)
        for own, other in (pair, pair[::-1])
    )


@dataclass(frozen=True)
class Run:
    """A run directory as these tests look at it. ``error`` is what ended it, "" where it came to its end."""

    path: Path
    error: str = ""
    paths: dict[Flow, str] = field(default_factory=dict)
    """The port of its leaf by which a flow goes up, "" for those that stay below one leaf."""

    def json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text())

    @cached_property
    def fault(self) -> dict[str, Any]:
        (found,) = self.json("faults.json")["faults"]
        return found

    @property
    def proof(self) -> str:
        """The evidence for people, for the message of a failed test."""
        lines = [f"{self.fault['state']} on {self.fault['targets']} in {self.fault['windows']}"]
        lines += [f"{c['ok']} {c['what']}: expected {c['expected']}, found {c['found']}" for c in self.fault["checks"]]
        return "\n".join(lines)

    @cached_property
    def windows(self) -> list[tuple[int, int]]:
        return [(start, end or 2**62) for start, end in self.fault["windows"]]

    @cached_property
    def window(self) -> tuple[int, int]:
        (only,) = self.windows
        return only

    @cached_property
    def events(self) -> list[npt.NDArray[Any]]:
        world = len(self.json("plan.json")["placement"])
        return [read_events(self.path / "events" / f"rank-{rank}.evt").records for rank in range(world)]

    def of(self, rank: int, kind: wire.EventType) -> npt.NDArray[Any]:
        return self.events[rank][self.events[rank]["type"] == kind]

    def messages(self, sender: int, receiver: int) -> tuple[Ints, Ints]:
        """(allowed at the sender, complete at the receiver) of every message that arrived, in order."""
        sent, got = self.of(sender, wire.EventType.SENT), self.of(receiver, wire.EventType.RECEIVED)
        sent, got = sent[sent["peer"] == receiver], got[got["peer"] == sender]
        count = min(len(sent), len(got))
        return sent["t0_ns"][:count].astype(np.int64), got["t2_ns"][:count].astype(np.int64)

    def took(self, flow: Flow) -> npt.NDArray[np.float64]:
        """Milliseconds that each of a flow's messages took, without the first iteration's."""
        allowed, arrived = self.messages(flow.sender, flow.receiver)
        return (arrived - allowed)[1:] / 1e6

    def iterations(self, world: int) -> tuple[Ints, Ints]:
        """Start and end of each iteration over ranks 0 to ``world``; the first, to warm up, left out."""
        ends = np.max([self.of(rank, wire.EventType.ITERATION)["t2_ns"] for rank in range(world)], axis=0)
        return ends[:-1].astype(np.int64), ends[1:].astype(np.int64)

    @cached_property
    def iteration_ms(self) -> float:
        """Median iteration of a job in which all ranks wait for each other."""
        starts, ends = self.iterations(len(self.events))
        return float(np.median(ends - starts)) / 1e6

    def arrived_within(self, flow: Flow, start: int, end: int) -> int:
        _, arrived = self.messages(flow.sender, flow.receiver)
        return int(((arrived >= start) & (arrived < end)).sum())

    @cached_property
    def _counters(self) -> dict[str, Any]:
        return self.json("counters.json")

    def risen(self, where: str, counter: str) -> int:
        own = self._counters
        return int(own["after"][where].get(counter, 0)) - int(own["before"][where].get(counter, 0))

    def samples(self, port: str) -> npt.NDArray[Any]:
        return read_ports(self.path / "ports.smp").of(self.json("plan.json")["ports"].index(port))

    def queue_bytes(self, port: str, percent: float = 50) -> float:
        """A percentile of a port's queue while it was not empty."""
        queue = self.samples(port)["backlog_bytes"]
        return float(np.percentile(queue[queue > 0], percent)) if (queue > 0).any() else 0.0


class Stage:
    """A fabric for many runs. ``run`` is one, ``healthy`` the same job without a fault, kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pairs = write_pairs(folder)
        self.jobs = {
            "pairs": ("workload=chakra", f'workload.path="{self.pairs}"'),
            "incast": ("workload=collective", "workload.ranks=4", "workload.kind=gather", "workload.sizes=[2MiB]",
                       "collective.gather=direct"),
            "all_to_all": ("workload=collective", "workload.ranks=4", "workload.kind=all_to_all",
                           "workload.sizes=[1MiB]", "collective.all_to_all=direct"),
            "ring": ("workload=collective", "workload.ranks=4", "workload.kind=all_reduce", "workload.sizes=[256KiB]",
                     "collective.all_reduce=ring"),
            "dp": ("workload=dp", "workload.ranks=4", "workload.layers=2", "workload.hidden=128"),
        }  # fmt: skip
        self._session: Session | None = None
        self._healthy: dict[tuple[str, ...], Run] = {}
        self._count = 0
        self._paths: dict[Flow, str] = {}

    def plan(self, recipe: str, *words: str, job: str = "pairs", iterations: int = 40) -> Plan:
        whole = [word[1:] for word in words if word.startswith(":")]
        quiet = [word for word in QUIET if not any(word.split("=")[0] == other.split("=")[0] for other in whole)]
        own = [
            *NETWORK,
            *quiet,
            *whole,
            *self.jobs[job],
            f"workload.iterations={iterations}",
            f"out={self.folder}/runs",
        ]
        own += [f"fault={recipe}"] if recipe else ["fault=[]"]
        own += [f"fault.{recipe}.{word}" for word in words if not word.startswith(":")]
        (composed,) = compose(parse(own))
        return experiment.plan(schema.parse_config(composed.mapping, composed.choices))

    def run(self, recipe: str, *words: str, job: str = "pairs", iterations: int = 40) -> Run:
        """One run to its end, or to what ended it. ``words`` are overrides below the fault; with ``:`` before them of
        the whole. Fails where the fabric is not afterwards what it was.
        """
        plan = self.plan(recipe, *words, job=job, iterations=iterations)
        before = self.state(plan)
        self._count += 1
        path = self.folder / f"{self._count}-{recipe or 'healthy'}-{job}"
        plan = replace(plan, config=replace(plan.config, run_dir=str(path)))
        error = ""
        with Narrator(plan.iterations, len(plan.programs)) as say:
            try:
                experiment.run_on(self.session(plan), plan, say, reproduce="", parent="", baseline="none")
            except GenieError as ended:
                error = ended.message
        after = self.state(plan)
        if error:
            self.close()  # what the dead connections left behind keeps their ports for a while
        if after != before:
            self.close()
            changed = [f"{node}: {before[node]} became {after[node]}" for node in before if before[node] != after[node]]
            raise AssertionError("\n".join(changed))
        return Run(path, error, self.paths(plan) if job == "pairs" else {})

    def healthy(self, job: str = "pairs", iterations: int = 30) -> Run:
        key = (job,)
        if key not in self._healthy:
            self._healthy[key] = self.run("", job=job, iterations=iterations)
        return self._healthy[key]

    def session(self, plan: Plan) -> Session:
        if self._session is None:
            session = Session(plan, self.folder, Narrator(1, 1))
            session.__enter__()
            self._session = session
        return self._session

    def close(self) -> None:
        if self._session is not None:
            self._session.__exit__(None, None, None)
        self._session = None

    def state(self, plan: Plan) -> dict[str, str]:
        """All that faults can change, of every node, without counters."""
        fabric = self.session(plan).fabric
        line = (
            "tc -r qdisc show; nft list ruleset; ip -o -4 route show table main; ip -o -4 neighbour show nud permanent;"
            " ip -o link show"
        )
        found = {node.name: fabric.run(node.name, ["sh", "-c", line]).stdout for node in plan.topology.nodes}
        if plan.capabilities.marker == "bpf":
            tool = str(find_binary("genie-port"))
            for port in plan.topology.ports:
                if port.model.ecn is not None:
                    argv = [tool, "marker", "get", "--map", MARKER_MAP, "--interface", port.interface]
                    told = json.loads(fabric.run(port.node, argv).stdout)
                    found[port.name] = str({k: told[k] for k in ("enabled", "kmin_bytes", "kmax_bytes", "pmax")})
        return found

    def paths(self, plan: Plan) -> dict[Flow, str]:
        """Up which port of its leaf each flow goes, by the kernel's own word for the run's own ports."""
        if self._paths:
            return self._paths
        fabric = self.session(plan).fabric
        address = {host: fabric.address(host) for host in HOSTS}
        ends = [
            Endpoint(int(ipaddress.IPv4Address(address[host])), LISTEN_PORT + rank)
            for rank, host in enumerate(plan.host_of_rank)
        ]
        leaf = {port.node: port.peer for port in plan.topology.ports if port.node in HOSTS}
        for flow in flows():
            if leaf[flow.source] == leaf[flow.target]:
                self._paths[flow] = ""
                continue
            dialler, listener = max(flow.sender, flow.receiver), min(flow.sender, flow.receiver)
            ports = {listener: LISTEN_PORT + listener, dialler: _source_port(plan, dialler, listener, ends)}
            argv = [
                "ip", "-j", "-4", "route", "get", address[flow.target], "from", address[flow.source], "iif",
                flow.source, "ipproto", "tcp", "sport", str(ports[flow.sender]), "dport", str(ports[flow.receiver]),
            ]  # fmt: skip
            done = fabric.run(leaf[flow.source], argv)
            assert done.returncode == 0, done.stderr
            self._paths[flow] = f"{leaf[flow.source]}/{json.loads(done.stdout)[0]['dev']}"
        return self._paths


def _source_port(plan: Plan, dialler: int, listener: int, ends: list[Endpoint]) -> int:
    """The port that ``dialler`` dials from, out of its program (docs/formats.md §1)."""
    blob = encode(plan.programs[dialler], plan.settings, ends)
    counts = np.frombuffer(blob, "<u8", 9, 128)
    tail = blob[len(blob) - int(counts[8]) * wire.CONNECTION.itemsize :]
    table = np.frombuffer(tail, wire.CONNECTION)
    (own,) = table[table["peer"] == listener]
    return int(own["local_port"])


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Stage]:
    stage = Stage(folder)
    try:
        yield stage
    finally:
        stage.close()
        shutil.rmtree(folder, ignore_errors=True)
