"""``workload=chakra``: the files of a job to one `Trace`.

`read_chakra` finds the files, sniffs each, reads it with the reader of its kind, decides about control dependencies,
and puts the communicators together. Every decision is a sentence in `Trace.notes`. What it cannot read or must not
guess is a TraceError; whether the ranks fit together is left to `genie.workload.check`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from genie.errors import ConfigError, TraceError
from genie.workload.chakra import et, files, groups, jsonform, jsonizer, pytorch, wire
from genie.workload.chakra.nodes import Maker
from genie.workload.chakra.rankfile import RankFile
from genie.workload.chakra.sniff import Kind, Sniffed, sniff
from genie.workload.config import ChakraConfig
from genie.workload.excerpt import excerpt, label
from genie.workload.trace import CollectiveKind, OpKind, RankTrace, Trace

_REFUSALS = {
    Kind.ET_V2: (
        "schema v0.0.2 and v0.0.3 number their fields in several ways that the file does not tell apart",
        "convert the original again with a chakra of 2023-10 or later",
    ),
    Kind.PYTORCH_HOST: (
        "it records which operators the host issued, but neither how long they took nor which kernels ran",
        "link it with the Kineto trace of the same run (chakra_trace_link); the linked trace can be replayed",
    ),
    Kind.KINETO: (
        "it is a timeline of what ran, without dependencies between operators",
        "link it with the execution trace of the same run (chakra_trace_link); the linked trace can be replayed",
    ),
    Kind.MSCCL: (
        "it is the algorithm of one collective, not a workload",
        "replay a workload that calls the collective",
    ),
    Kind.ASTRA_TEXT: ("it is a layer table without a graph", "convert it: chakra_converter Text"),
    Kind.GOAL: ("GOAL is not read", "convert it to Chakra ET, or use a generator"),
    Kind.ARCHIVE: ("it is packed", "unpack it first; only gzip of a single file is unpacked here"),
    Kind.COMM_GROUPS: (
        "it names communicators, not operators",
        "give it as workload.comm_groups and the trace as path",
    ),
    Kind.EMPTY: ("a trace has at least its metadata message", "it may have been cut off; write it again"),
}


def read_chakra(config: ChakraConfig) -> Trace:
    """The job at ``config.path``, durations as recorded (None where there are none).

    Raises:
        TraceError: files missing or ambiguous, a file that is damaged or of a kind that cannot be replayed, a node
            that does not say what it must.
        ConfigError: ``replicate_ranks`` out of range.
    """
    if not 0 <= config.replicate_ranks <= 65536 or config.replicate_ranks == 1:
        found = config.replicate_ranks
        raise ConfigError(f"expected 0 (off) or 2 to 65536, found {found}", key="workload.replicate_ranks")
    job = files.find(config.path)
    decoded: dict[bytes, tuple[str, object]] = {}
    read: list[RankFile] = []
    makers: list[Maker] = []
    kinds: dict[Kind, int] = {}
    for rank, path in job.files.items():
        sniffed = _sniff(path)
        if not read:
            files.check_complete(job)
        kinds[sniffed[0].kind] = kinds.get(sniffed[0].kind, 0) + 1
        maker = Maker(rank, str(path), decoded)
        read.append(_read(*sniffed, maker))
        makers.append(maker)
    trace = Trace(
        [
            RankTrace(rank, part.operators, maker.file)
            for rank, (part, maker) in enumerate(zip(read, makers, strict=True))
        ],
        {},
    )
    told = ", ".join(f"{count} {kind.value}" for kind, count in kinds.items())
    trace.notes.append(f"read {trace.world} rank{'s' if trace.world > 1 else ''} from {job.prefix}: {told}")
    for note, count in Counter(note for part in read for note in part.notes).items():
        trace.notes.append(note if count == 1 else f"{note} ({count} files)")
    defined = _definitions(config, job, read, trace)
    if config.replicate_ranks:
        _check_replicable(trace, defined)
    elif trace.world == 1:
        _refuse_lonely(trace, defined)
    if "0" not in defined:
        _world_by_number(trace)
    _note_counts(trace, makers)
    _durations(trace)
    _control(trace, config.control_deps)
    if config.replicate_ranks:
        _replicate(trace, config.replicate_ranks)
    world = tuple(range(trace.world))
    trace.communicators = {"": world} | {name: ranks or world for name, ranks in defined.items() if name}
    return trace


def content_digest(config: ChakraConfig) -> str:
    """16 hex digits of what the files of ``config`` hold, rank by rank, wherever they lie and however they are packed.

    Raises TraceError as `read_chakra` does where files are missing, ambiguous or unreadable.
    """
    job = files.find(config.path)
    made = hashlib.sha256()
    for path in (*job.files.values(), _group_file(config, job)):
        content = wire.read_bytes(path) if path else b""
        made.update(len(content).to_bytes(8, "big") + content)
    return made.hexdigest()[:16]


def _sniff(path: Path) -> tuple[Sniffed, bytes]:
    data = wire.read_bytes(path)
    sniffed = sniff(data, str(path))
    if sniffed.kind is Kind.UNKNOWN:
        start = data[:16]
        reason = f" ({sniffed.reason})" if sniffed.reason else ""
        raise TraceError(f"is no trace that GENIE knows{reason}; it begins with {start!r}", file=str(path))
    if sniffed.kind in _REFUSALS:
        reason, hint = _REFUSALS[sniffed.kind]
        schema = ""
        if sniffed.documents and isinstance(sniffed.documents[0], dict):
            schema = f", schema {excerpt(sniffed.documents[0]['schema'])}" if "schema" in sniffed.documents[0] else ""
        raise TraceError(f"is {_article(sniffed.kind.value)}{schema}: {reason}", file=str(path), hint=hint)
    return sniffed, data


def _article(text: str) -> str:
    return f"an {text}" if text.startswith(("A", "E", "MSCCL", "a", "e")) else f"a {text}"


def _read(sniffed: Sniffed, data: bytes, maker: Maker) -> RankFile:
    if sniffed.kind is Kind.ET:
        return et.read_current(data, maker, sniffed.headless)
    if sniffed.kind is Kind.ET_V1:
        return et.read_first(data, maker)
    if sniffed.kind is Kind.JSONIZER:
        return jsonizer.read(sniffed.documents, maker)
    if sniffed.kind is Kind.PYTORCH_LINKED:
        return pytorch.read_linked(sniffed.documents[0], maker)
    if sniffed.kind is Kind.FEEDER_JSON:
        return jsonform.read_feeder(sniffed.documents[0], maker)
    return jsonform.read_stg(sniffed.documents[0], maker)


def _definitions(
    config: ChakraConfig, job: files.Job, read: list[RankFile], trace: Trace
) -> dict[str, tuple[int, ...]]:
    """Communicators by name, () = all ranks: of the nodes first, then of the file."""
    defined: dict[str, tuple[int, ...]] = {}
    for part, rank in zip(read, trace.ranks, strict=True):
        groups.merge(defined, part.groups, rank.source)
    source = _group_file(config, job)
    if source is None:
        return defined
    from_file = groups.read_group_file(source)
    for name, ranks in from_file.items():
        if name in {"", "0"}:
            raise TraceError(f"communicator {excerpt(name)} is the world and cannot be defined", file=str(source))
        if not ranks:
            raise TraceError(f"communicator {excerpt(name)} has no ranks", file=str(source))
    trace.notes.append(f"{len(from_file)} communicators from {source}")
    return {**from_file, **defined}


def _group_file(config: ChakraConfig, job: files.Job) -> Path | None:
    return Path(config.comm_groups).expanduser() if config.comm_groups else _group_file_beside(job)


def _group_file_beside(job: files.Job) -> Path | None:
    """``PREFIX.json``, ``comm_group.json`` or ``comm_groups.json`` beside the trace, if it holds communicators."""
    folder = job.prefix.parent
    for name in (f"{job.prefix.name}.json", "comm_group.json", "comm_groups.json"):
        path = folder / name
        if path in job.files.values() or not path.is_file():
            continue
        if sniff(wire.read_bytes(path), str(path)).kind is Kind.COMM_GROUPS:
            return path
    return None


def _world_by_number(trace: Trace) -> None:
    """pg_name "0" is the world where nothing defines it otherwise."""
    for rank in trace.ranks:
        for op in rank.operators:
            if op.comm == "0":
                op.comm = ""


def _refuse_lonely(trace: Trace, defined: Mapping[str, tuple[int, ...]]) -> None:
    """One file of a bigger job: collectives and messages that need other ranks."""
    rank = trace.ranks[0]
    for op in rank.operators:
        if op.kind in (OpKind.SEND, OpKind.RECV, OpKind.COLLECTIVE) and defined.get(op.comm, ()) != (0,):
            raise TraceError(
                "communicates, but this is the trace of one rank and the other ranks' files are not given",
                file=rank.source,
                node=label(op.id, op.name),
                hint="give all ranks (PREFIX.<rank>.et), or workload.replicate_ranks=N to run N copies of this rank",
            )


def _check_replicable(trace: Trace, defined: Mapping[str, tuple[int, ...]]) -> None:
    """Copies of a rank agree only on collectives of all ranks: messages and named ranks are refused."""
    rank = trace.ranks[0]
    if trace.world != 1:
        message = f"workload.replicate_ranks needs the trace of one rank, found {trace.world} ranks"
        raise TraceError(message, file=rank.source)
    for op in rank.operators:
        node = label(op.id, op.name)
        if op.kind in (OpKind.SEND, OpKind.RECV):
            message = f"{op.kind}s to or from a certain rank, so copies of this rank cannot stand for the others"
            raise TraceError(message, file=rank.source, node=node)
        if op.kind is OpKind.COLLECTIVE and op.comm not in {"", "0"} and defined.get(op.comm) != ():
            message = (
                f"communicator {excerpt(op.comm)} is not known to be all ranks, so copies cannot stand for the others"
            )
            raise TraceError(message, file=rank.source, node=node)


def _replicate(trace: Trace, ranks: int) -> None:
    """Give the operators of the only rank to ``ranks`` ranks."""
    rank = trace.ranks[0]
    trace.ranks = [RankTrace(copy, list(rank.operators), rank.source) for copy in range(ranks)]
    trace.notes.append(f"all {ranks} ranks run copies of {rank.source} (workload.replicate_ranks)")


def _note_counts(trace: Trace, makers: list[Maker]) -> None:
    def total(key: str) -> int:
        return sum(maker.counts[key] for maker in makers)

    if count := total("host_side"):
        trace.notes.append(
            f"{count} communication nodes are the host's calls (is_cpu_op, no comm_type, no comm_size): replayed as "
            "computation of their recorded duration; the bytes are in the kernels' nodes"
        )
    if count := total("untagged"):
        trace.notes.append(f"{count} messages have no comm_tag: they are matched by order")
    if count := total("rootless"):
        trace.notes.append(f"{count} rooted collectives: Chakra has no root, the communicator's first rank is taken")
    kinds = {op.collective for rank in trace.ranks for op in rank.operators if op.per_peer_bytes is None}
    if CollectiveKind.ALL_GATHER in kinds:
        trace.notes.append("comm_size of all_gather is taken as the shard of each rank (ASTRA-sim's convention)")
    if CollectiveKind.ALL_TO_ALL in kinds:
        trace.notes.append("all_to_all is split evenly over its peers: the trace has one size, not one for each peer")


def _durations(trace: Trace) -> None:
    """0 and absent are the same in protobuf: 0 means "below 1 us" in a trace that has other durations, else nothing."""
    timed = (OpKind.COMPUTE, OpKind.MEMORY)
    if not any(op.duration_ns for rank in trace.ranks for op in rank.operators if op.kind in timed):
        return
    instant = 0
    for rank in trace.ranks:
        for op in rank.operators:
            if op.kind in timed and op.duration_ns is None and not op.flops and not op.memory_bytes:
                op.duration_ns = 0
                instant += 1
    if instant:
        trace.notes.append(
            f"{instant} compute nodes have duration 0 and end at once: the trace has whole microseconds, rounded down"
        )


def _control(trace: Trace, choice: str) -> None:
    """Keep or drop control dependencies (``workload.control_deps``), and say which."""
    total = sum(len(op.ctrl_deps) for rank in trace.ranks for op in rank.operators)
    if not total:
        return
    if choice == "on":
        trace.notes.append(f"{total} control dependencies are honoured (workload.control_deps=on)")
        return
    if choice == "auto":
        fault = next((fault for rank in trace.ranks if (fault := _control_fault(rank))), "")
        if not fault:
            trace.notes.append(f"{total} control dependencies are honoured: they are closed and free of cycles")
            return
        trace.notes.append(f"{total} control dependencies are dropped, data dependencies kept: {fault}")
    else:
        trace.notes.append(f"{total} control dependencies are dropped (workload.control_deps=off)")
    for rank in trace.ranks:
        rank.operators = [replace(op, ctrl_deps=()) if op.ctrl_deps else op for op in rank.operators]


def _control_fault(rank: RankTrace) -> str:
    """Why the control dependencies of ``rank`` cannot be honoured, or ""."""
    place = {op.id: index for index, op in enumerate(rank.operators)}
    absent = sum(dep not in place for op in rank.operators for dep in op.ctrl_deps)
    own = sum(op.id in op.ctrl_deps for op in rank.operators)
    if absent or own:
        return f"in {rank.source} {absent} point to nodes that do not exist and {own} nodes depend on themselves"
    if stuck := _stuck(rank, place, with_control=True) - _stuck(rank, place, with_control=False):
        return f"in {rank.source} they put {stuck} nodes in or behind a cycle"
    return ""


def _stuck(rank: RankTrace, place: Mapping[int, int], *, with_control: bool) -> int:
    """How many nodes can never run."""
    waiting = [0] * len(rank.operators)
    successors: list[list[int]] = [[] for _ in rank.operators]
    for index, op in enumerate(rank.operators):
        for dep in (*op.data_deps, *op.ctrl_deps) if with_control else op.data_deps:
            if dep in place:
                waiting[index] += 1
                successors[place[dep]].append(index)
    ready = [index for index, count in enumerate(waiting) if not count]
    done = 0
    while ready:
        done += 1
        for other in successors[ready.pop()]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return len(rank.operators) - done
