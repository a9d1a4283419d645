"""Hand-made runs for the tests of genie.why: events told one by one, in ms since T, on a network of a few ports."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from genie.engine.wire import EVENT, EVENT_HEADER_BYTES, NONE
from genie.results.records import JobOperators, OperatorRecord, PlanRecord, RankOperators
from genie.results.rundir import HostRecord, RunDir
from genie.why.network import wire_bytes

T = 1_000_000_000
MS = 1_000_000
MTU = 1500
RATE_BPS = 80_000_000
"""10 bytes a us: 10 kB a ms on the wire."""


def payload(ms: float) -> int:
    """Bytes whose frames and headers take ``ms`` on a link of `RATE_BPS`."""
    size = int(ms * RATE_BPS / 8e3)
    while wire_bytes(np.array([size]), MTU)[0] > ms * RATE_BPS / 8e3:
        size -= 1
    return size


def compute(name: str = "compute", planned_ms: float = -1, lane: int = 0) -> OperatorRecord:
    planned = round(planned_ms * MS) if planned_ms >= 0 else -1
    return OperatorRecord(1, name, "compute", "", "", 0, lane, -1, planned_ns=planned)


def call(name: str, call_id: int, *, kind: str = "collective", comm: str = "", lane: int = 1) -> OperatorRecord:
    return OperatorRecord(2, name, kind, "all_reduce" if kind == "collective" else "", comm, 1000, lane, call_id,
                          planned_ns=0)  # fmt: skip


@dataclass
class Job:
    """A run in the making. ``operators[rank]`` are that rank's; times of all events are ms since T."""

    operators: list[list[OperatorRecord]]
    hosts: list[str]
    nodes: dict[str, str] = field(default_factory=dict)
    links: list[tuple[str, str]] = field(default_factory=list)
    rates: dict[str, int] = field(default_factory=dict)
    comms: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dilation: float = 1.0
    warmup: int = 0
    window_messages: int = 0
    fabric: str = "netns"
    kernel: str = "6.12.0"
    counters: tuple[dict, dict | None] = field(default_factory=lambda: ({}, None))
    samples: list[tuple[float, int, int, int]] = field(default_factory=list)
    events: dict[int, list[tuple]] = field(default_factory=dict)

    def _add(self, rank, kind, iteration, op, peer, size, t0, t1, t2, call_id, seq, channel=0):
        at = [T + round(t * MS) for t in (t0, t1, t2)]
        row = (kind, channel, iteration, op, peer, size, *at, call_id, seq, seq)
        self.events.setdefault(rank, []).append(row)

    def op(self, rank, op, ready, start, end, iteration=0):
        self._add(rank, 1, iteration, op, NONE, 0, ready, start, end, NONE, 0)

    def iteration(self, rank, start, end, number=0):
        self._add(rank, 4, number, NONE, NONE, 0, start, start, end, NONE, 0)

    def message(self, sender, receiver, call_id, times, size, *, iteration=0, seq=0, channel=0):
        """``times``: allowed, first byte, last byte at the sender; complete at the receiver."""
        allowed, first, last, done = times
        op = {rank: next(k for k, own in enumerate(self.operators[rank]) if own.call_id == call_id)
              for rank in (sender, receiver)}  # fmt: skip
        self._add(sender, 2, iteration, op[sender], receiver, size, allowed, first, last, call_id, seq, channel)
        self._add(receiver, 3, iteration, op[receiver], sender, size, done, done, done, call_id, seq, channel)

    def write(self, path: Path) -> RunDir:
        run = RunDir.create(path.parent, path.name, argv=("genie",), reproduce="genie", seed=1, hashes={},
                            config_yaml="seed: 1\nfabric:\n  name: netns\n  seed: 1\ntransport:\n  name: tcp\n",
                            path=path)  # fmt: skip
        ports = [f"{end[0]}/{end[1]}" for a, b in self.links for end in ((a, b), (b, a))]
        world = len(self.operators)
        iterations = 1 + max(row[2] for rows in self.events.values() for row in rows)
        run.write_plan(
            PlanRecord(
                name=path.name, workload="w", topology="t", transport="tcp", fabric=self.fabric, iterations=iterations,
                placement=tuple(self.hosts), ports=tuple(ports), links=tuple(f"{a}-{b}" for a, b in self.links),
                warmup=self.warmup, dilation=self.dilation, nodes=self.nodes, mtu=MTU,
                port_rates_bps=tuple(self.rates.get(port, RATE_BPS) for port in ports),
                collective={"window_messages": self.window_messages},
            )
        )  # fmt: skip
        ranks = tuple(RankOperators(rank, ("a", "b"), tuple(ops)) for rank, ops in enumerate(self.operators))
        run.write_operators(JobOperators(ranks, {"": tuple(range(world)), **self.comms}))
        run.mark_running()
        for rank in range(world):
            self._write_events(run.event_path(rank), rank, world)
        if self.samples:
            self._write_samples(run.ports_path, len(ports))
        run.write_counters(*self.counters)
        run.write_host(HostRecord(2, kernel=self.kernel))
        run.mark_ended("finished")
        return run

    def _write_events(self, path: Path, rank: int, world: int) -> None:
        # an engine writes each record when its last time has come
        rows = sorted(self.events.get(rank, []), key=lambda row: row[8])
        header = bytearray(EVENT_HEADER_BYTES)
        struct.pack_into("<8sIIIIQ", header, 0, b"GNIEEVT1", 1, 64, rank, world, len(rows))
        struct.pack_into("<QQ", header, 64, len(rows), 0)
        struct.pack_into("<II", header, 80, 1, 3)
        struct.pack_into("<qq", header, 128, T, T)
        path.write_bytes(bytes(header) + np.array(rows, dtype=EVENT).tobytes())

    def _write_samples(self, path: Path, ports: int) -> None:
        """Rows of (ms since T, port, backlog bytes, bytes sent so far)."""
        from genie.results.ports import RECORD

        header = bytearray(4096)
        struct.pack_into("<8sIII", header, 0, b"GNIESMP1", 1, 64, ports)
        struct.pack_into("<QQQQQ", header, 24, len(self.samples), 0, 0, 0, 0)
        struct.pack_into("<QQQ", header, 64, len(self.samples), 0, MS)
        records = np.zeros(len(self.samples), dtype=RECORD)
        for k, (at, port, backlog, sent) in enumerate(self.samples):
            records[k] = (T + round(at * MS), port, 0, backlog, sent, 0, 0, 0, 0)
        path.write_bytes(bytes(header) + records.tobytes())


def pair(**changes) -> Job:
    """Two ranks on two hosts at one switch."""
    given = {
        "operators": [[compute(planned_ms=8), call("send", 0, kind="send")], [call("recv", 0, kind="recv")]],
        "hosts": ["h0", "h1"],
        "nodes": {"h0": "host", "h1": "host", "switch0": "switch"},
        "links": [("h0", "switch0"), ("h1", "switch0")],
    }
    return Job(**{**given, **changes})


def leaf_spine(ranks: int, leaves: int = 2, spines: int = 2, **changes) -> Job:
    """One rank a host, hosts in blocks on leaves, every leaf on every spine; operators are the caller's."""
    nodes = {f"h{k}": "host" for k in range(ranks)}
    nodes |= {f"leaf{k}": "leaf" for k in range(leaves)} | {f"spine{k}": "spine" for k in range(spines)}
    links = [(f"h{k}", f"leaf{k * leaves // ranks}") for k in range(ranks)]
    links += [(f"leaf{leaf}", f"spine{spine}") for leaf in range(leaves) for spine in range(spines)]
    given = {"operators": [[] for _ in range(ranks)], "hosts": [f"h{k}" for k in range(ranks)],
             "nodes": nodes, "links": links}  # fmt: skip
    return Job(**{**given, **changes})
