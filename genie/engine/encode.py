"""Packs a `RankProgram` into the blob that an agent executes (docs/formats.md §1), and reads one back for tests.

`genie.experiment` calls `encode` once a rank. Connections follow from the templates' peers: the lower world rank of
a pair accepts, the higher connects. With a seed the connecting side's source port is fixed too, so that ECMP hashes
the same run onto the same paths. It decides nothing else and touches no file.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genie.collectives.program import Call, RankProgram, SizeKind, StepKind, Template
from genie.engine import wire
from genie.errors import PlanError

SOURCE_PORTS = range(10_000, 32_768)
"""Source ports of seeded runs: below the kernel's ephemeral ports, so that no other socket takes one by chance."""

LISTEN_PORT = 7000
"""Rank r of a seeded run listens on this plus r."""

LONGEST_NS = (2**63 - 1) // 4
MOST_MESSAGES_A_STEP = 2**31 - 1
MOST_EVENTS = (2**63 - 1) // 64 - 64
MOST_WINDOW_MESSAGES = 2**20
MOST_SETTINGS_BYTES = 2**16
"""What the engine takes (native/src/program.cpp); beyond it sums of times or counts could overflow."""

Array = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a rank listens: ``ipv4`` in host order; ``port`` 0 = the kernel chooses and the agent tells."""

    ipv4: int
    port: int = 0


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engine runs programs; all ranks of a job get the same.

    ``run_id`` is 16 bytes. ``compute_scale_ppm`` multiplies compute durations (1_000_000 = 1). ``seed`` fixes source
    ports, None leaves them to the kernel. Buffers of 0 are the kernel's autotuning, ``spin_ns`` 0 never spins.
    """

    run_id: bytes
    iterations: int = 1
    verify: bool = False
    record_messages: bool = True
    window_messages: int = 0
    timeout_ns: int = 30_000_000_000
    spin_ns: int = 0
    congestion_control: str = ""
    compute_scale_ppm: int = 1_000_000
    connect_timeout_s: int = 10
    sndbuf_bytes: int = 0
    rcvbuf_bytes: int = 0
    seed: int | None = None
    transport: str = "tcp"

    def __post_init__(self) -> None:
        limits: tuple[tuple[str, int, int, int], ...] = (
            ("iterations", self.iterations, 1, 2**32 - 2),
            ("window_messages", self.window_messages, 0, MOST_WINDOW_MESSAGES),
            ("timeout_ns", self.timeout_ns, 1, 2**63 - 1),
            ("spin_ns", self.spin_ns, 0, 2**63 - 1),
            ("compute_scale_ppm", self.compute_scale_ppm, 0, 2**63 - 1),
            ("connect_timeout_s", self.connect_timeout_s, 1, 2**16 - 1),
            ("sndbuf_bytes", self.sndbuf_bytes, 0, 2**31 - 1),
            ("rcvbuf_bytes", self.rcvbuf_bytes, 0, 2**31 - 1),
        )
        for name, value, low, high in limits:
            if not low <= value <= high:
                raise PlanError(f"engine setting {name} must lie between {low} and {high}, found {value}")
        if len(self.run_id) != 16:
            raise PlanError(f"engine setting run_id must be 16 bytes, found {len(self.run_id)}")
        if len(self.congestion_control.encode()) > 15:
            raise PlanError(f"congestion control {self.congestion_control!r} is longer than 15 bytes")
        if not 0 < len(self.transport.encode()) <= 15:
            raise PlanError(f"transport {self.transport!r} must have 1 to 15 bytes")


def encode(
    program: RankProgram,
    settings: EngineSettings,
    endpoints: Sequence[Endpoint],
    transport_settings: Mapping[str, str] | None = None,
) -> bytes:
    """The blob of one rank. ``endpoints[r]`` is where world rank r listens; ``transport_settings`` are what its
    transport is told.

    Raises:
        PlanError: a number does not fit its field, or there are more connections than source ports.
    """
    for rank, endpoint in enumerate(endpoints):
        if not 0 <= endpoint.port <= 65535 or not 0 <= endpoint.ipv4 < 2**32:
            raise PlanError(f"rank {rank} cannot listen on port {endpoint.port} of address {endpoint.ipv4:#x}")
    if len(endpoints) != program.world:
        raise PlanError(f"{program.world} ranks but {len(endpoints)} endpoints")
    connections, connection_of = _connections(program, settings.seed, endpoints)
    ops, out_edges = _ops(program)
    templates, steps, needs = _templates(program, connection_of)
    calls, vectors = _calls(program)
    lanes = np.array([1 if lane.ordered else 0 for lane in program.lanes], wire.U32)
    header = np.zeros(1, wire.HEADER)
    header["magic"] = wire.PROGRAM_MAGIC
    header["version"] = wire.PROGRAM_VERSION
    header["flags"] = settings.verify * wire.FLAG_VERIFY | settings.record_messages * wire.FLAG_RECORD_MESSAGES
    header["rank"] = program.rank
    header["world"] = program.world
    header["iterations"] = settings.iterations
    header["window_messages"] = settings.window_messages
    header["timeout_ns"] = settings.timeout_ns
    header["spin_ns"] = settings.spin_ns
    header["event_capacity"] = event_capacity(program, settings)
    header["listen_ipv4"] = endpoints[program.rank].ipv4
    header["listen_port"] = endpoints[program.rank].port
    header["connect_timeout_s"] = settings.connect_timeout_s
    header["congestion_control"] = settings.congestion_control.encode()
    header["run_id"][0, :16] = np.frombuffer(settings.run_id, np.uint8)
    header["sndbuf_bytes"] = settings.sndbuf_bytes
    header["rcvbuf_bytes"] = settings.rcvbuf_bytes
    header["compute_scale_ppm"] = settings.compute_scale_ppm
    header["transport"] = settings.transport.encode()
    own = np.frombuffer(_settings_text(transport_settings or {}), wire.U8)
    sections = (ops, out_edges, lanes, calls, templates, steps, needs, vectors, connections, own)
    header["counts"][0] = [len(section) for section in sections]
    parts = [header.tobytes()]
    for section in sections:
        raw = section.tobytes()
        parts.append(raw + b"\0" * (-len(raw) % 8))
    return b"".join(parts)


def _settings_text(settings: Mapping[str, str]) -> bytes:
    for key, value in settings.items():
        if not key or "=" in key or "\n" in key + value:
            raise PlanError(f"a transport's setting cannot be written as KEY=VALUE: {key!r} with {value!r}")
    text = "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
    if len(text) > MOST_SETTINGS_BYTES:
        raise PlanError(f"a transport's settings take {len(text)} bytes, the engine takes {MOST_SETTINGS_BYTES}")
    return text


def decode(blob: bytes) -> tuple[Array, dict[str, npt.NDArray[np.void]]]:
    """Header and sections of a blob: the check of `encode`, and a look into what an agent got.

    Raises:
        PlanError: wrong magic, version or length.
    """
    if len(blob) < wire.HEADER.itemsize or blob[:8] != wire.PROGRAM_MAGIC:
        raise PlanError(f"not a program blob: expected it to begin with {wire.PROGRAM_MAGIC!r}, found {blob[:8]!r}")
    header = np.frombuffer(blob, wire.HEADER, 1)[0]
    if header["version"] != wire.PROGRAM_VERSION:
        raise PlanError(f"program blob of version {header['version']}, this is version {wire.PROGRAM_VERSION}")
    offset = wire.HEADER.itemsize
    sections = {}
    for name, dtype, count in zip(wire.SECTIONS, wire.SECTION_DTYPES, header["counts"], strict=True):
        if offset + int(count) * dtype.itemsize > len(blob):
            raise PlanError(f"program blob ends within section {name}: {len(blob)} bytes")
        sections[name] = np.frombuffer(blob, dtype, int(count), offset)
        offset += wire.padded(int(count), dtype)
    if offset != len(blob):
        raise PlanError(f"program blob should have {offset} bytes, found {len(blob)}")
    return header, sections


def event_capacity(program: RankProgram, settings: EngineSettings) -> int:
    """Records a whole run writes: each operator and iteration once, each message at both of its ends."""
    both_ways = messages(program)
    an_iteration = len(program.ops) + 1 + (both_ways if settings.record_messages else 0)
    capacity = settings.iterations * an_iteration
    if capacity > MOST_EVENTS:
        raise PlanError(
            f"rank {program.rank} would record {capacity} events in {settings.iterations} iterations",
            hint="use larger collective.chunk_bytes, or record.messages=false",
        )
    return capacity


def messages(program: RankProgram) -> int:
    """Messages that one iteration of the rank sends and receives."""
    known: dict[tuple[int, int, tuple[int, ...], int], int] = {}
    total = 0
    for call in program.calls:
        key = (call.template, call.bytes, call.vector, call.chunk_bytes)
        if key not in known:
            largest = max(call.bytes, *call.vector) if call.vector else call.bytes
            if largest // call.chunk_bytes > MOST_MESSAGES_A_STEP:
                op = program.ops[call.op]
                raise PlanError(
                    f"rank {program.rank}: {op.name!r} (node {op.trace_id}) cuts {largest} bytes into messages of "
                    f"{call.chunk_bytes}: more than {MOST_MESSAGES_A_STEP} messages",
                    hint="use larger collective.chunk_bytes",
                )
            known[key] = _messages(program.templates[call.template][1], call)
        total += known[key]
    return total


def _messages(template: Template, call: Call) -> int:
    count = 0
    sizes: dict[tuple[int, SizeKind, int, int], int] = {}
    for step in template.steps:
        if step.kind is StepKind.LOCAL:
            continue
        key = (step.channel, step.size.kind, step.size.index, step.size.of)
        if key not in sizes:
            size = step.size.bytes(
                total=call.bytes, vector=call.vector, channel=step.channel, channels=template.channels
            )
            sizes[key] = max(1, -(-size // call.chunk_bytes))
        count += sizes[key]
    return count


def _ops(program: RankProgram) -> tuple[Array, npt.NDArray[np.uint32]]:
    """Operators, and their successors as one array that each operator has a slice of."""
    source = program.ops
    count = len(source)
    for op in source:
        if not 0 <= op.duration_ns <= LONGEST_NS:
            raise PlanError(f"rank {program.rank}: {op.name!r} (node {op.trace_id}) lasts {op.duration_ns} ns")
    ops = np.zeros(count, wire.OP)
    ops["duration_ns"] = [op.duration_ns for op in source]
    ops["call"] = np.array([op.call for op in source], np.int64) & wire.NONE
    ops["lane"] = np.array([op.lane for op in source], np.int64) & wire.NONE
    ops["trace_id"] = [op.trace_id & (2**64 - 1) for op in source]
    dep_count = np.array([len(op.needs) for op in source], np.int64)
    ops["dep_count"] = dep_count
    needed = np.fromiter((need for op in source for need in op.needs), np.int64, int(dep_count.sum()))
    if needed.size and (needed.min() < 0 or needed.max() >= count):
        raise PlanError(f"rank {program.rank}: an operator needs operator {needed.max()} of {count}")
    waiting = np.repeat(np.arange(count), dep_count)
    out_edges = waiting[np.argsort(needed, kind="stable")].astype(wire.U32)
    ends = np.cumsum(np.bincount(needed, minlength=count))
    ops["out_end"] = ends
    ops["out_begin"][1:] = ends[:-1]
    return ops, out_edges


def _templates(
    program: RankProgram, connection_of: Mapping[tuple[int, int], int]
) -> tuple[Array, Array, npt.NDArray[np.void]]:
    templates = np.zeros(len(program.templates), wire.TEMPLATE)
    steps: list[tuple[int, int, int, int, int, int, int, int, int, int]] = []
    needs: list[tuple[int, int]] = []
    for number, (comm, template) in enumerate(program.templates):
        members = program.comms[comm]
        begin = len(steps)
        for step in template.steps:
            need_begin = len(needs)
            needs.extend((need.step, int(need.mode)) for need in step.needs)
            connection = wire.NONE
            if step.kind is not StepKind.LOCAL:
                connection = connection_of[members[step.peer], step.channel]
            steps.append((int(step.kind), int(step.size.kind), step.channel, connection, step.size.index, step.size.of,
                          need_begin, len(needs), step.local_ns, 0))  # fmt: skip
        templates[number] = (begin, len(steps), template.channels, 0)
    return templates, np.array(steps, wire.STEP), np.array(needs, wire.NEED)


def _calls(program: RankProgram) -> tuple[Array, npt.NDArray[np.uint64]]:
    comm_number = {comm: number for number, comm in enumerate(program.comms)}
    begin_of: dict[tuple[int, ...], int] = {(): 0}
    vectors: list[int] = []
    rows = []
    for call in program.calls:
        begin = begin_of.get(call.vector)
        if begin is None:
            begin = begin_of[call.vector] = len(vectors)
            vectors.extend(call.vector)
        rows.append((call.call_id, call.op, call.template, comm_number[call.comm], call.bytes, begin, len(call.vector),
                     call.chunk_bytes, 0))  # fmt: skip
    return np.array(rows, wire.CALL), np.array(vectors, wire.U64)


def _connections(
    program: RankProgram, seed: int | None, endpoints: Sequence[Endpoint]
) -> tuple[Array, dict[tuple[int, int], int]]:
    """The table, ordered by peer and channel, and the index of each (peer, channel) in it."""
    pairs = sorted(
        {
            (program.comms[comm][step.peer], step.channel)
            for comm, template in program.templates
            for step in template.steps
            if step.kind is not StepKind.LOCAL
        }
    )
    ports = None if seed is None else SourcePorts(program.rank, seed, endpoints)
    table = np.zeros(len(pairs), wire.CONNECTION)
    for number, (peer, channel) in enumerate(pairs):
        connects = program.rank > peer
        local_port = ports.port(peer, channel) if ports and connects else 0
        remote = endpoints[peer]
        table[number] = (peer, channel, wire.ROLE_CONNECT if connects else wire.ROLE_ACCEPT, remote.ipv4, remote.port,
                         local_port, 0)  # fmt: skip
    return table, {pair: number for number, pair in enumerate(pairs)}


class SourcePorts:
    """Source ports of one rank: a permutation of `SOURCE_PORTS`, drawn from the seed for each host address.

    Every connection that any rank of the host makes has its own place in the permutation, so no two of them share a
    port, whichever rank computes it. Ports on which a rank of the host listens are left out.
    """

    def __init__(self, rank: int, seed: int, endpoints: Sequence[Endpoint]) -> None:
        own = endpoints[rank].ipv4
        on_host = [other for other, endpoint in enumerate(endpoints) if endpoint.ipv4 == own]
        taken = {endpoints[other].port for other in on_host}
        self._free = [port for port in SOURCE_PORTS if port not in taken]
        self._world = len(endpoints)
        self._on_host = len(on_host)
        self._place = on_host.index(rank)
        digest = hashlib.sha256(f"genie source ports {seed} {own}".encode()).digest()
        size = len(self._free)
        self._offset = int.from_bytes(digest[:8], "little") % size
        self._stride = int.from_bytes(digest[8:16], "little") % size
        while math.gcd(self._stride, size) != 1:
            self._stride += 1

    def port(self, peer: int, channel: int) -> int:
        """Source port of this rank's connection to ``peer``. Raises PlanError if there are not that many."""
        place = (channel * self._on_host + self._place) * self._world + peer
        if place >= len(self._free):
            raise PlanError(
                f"{self._on_host} ranks on a host, {self._world} in the job and {channel + 1} channels are more "
                f"connections than the {len(self._free)} source ports of a seeded run",
                hint="use fewer channels or fewer ranks a host, or leave source ports to the kernel (no seed)",
            )
        return self._free[(self._offset + place * self._stride) % len(self._free)]
