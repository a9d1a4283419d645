"""The typed content of a run directory's JSON files: plan, operators, faults.

`genie.results.rundir` reads and writes them, `genie.experiment` fills them in, everything that measures or reports
reads them. Field names are the file format (docs/run-directory.md); nothing here touches a disk.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from genie.collectives.program import RankProgram
from genie.errors import GenieError
from genie.workload.trace import OpKind, Trace

if TYPE_CHECKING:
    from genie.faults.evidence import EvidenceRecord
    from genie.faults.session import FaultSession

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Dataclasses, tuples and mappings as plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(inner) for inner in value]
    return value


def from_plain(cls: type[T], value: Any, where: str) -> T:
    """An instance of dataclass ``cls``. Unknown keys are left out (a later minor version may add some); a missing key
    without a default, or a value of another shape, raises GenieError that names it.
    """
    return typing.cast(T, _read(cls, value, where))


@functools.cache
def _hints(cls: type) -> Mapping[str, Any]:
    """Types of a dataclass' fields. Working them out takes longer than reading a record, and a file has thousands."""
    return typing.get_type_hints(cls)


def _read(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _read(next(a for a in arguments if a is not types.NoneType), value, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise GenieError(f"{where}: expected an object, found {type(value).__name__}")
        hints = _hints(hint)
        values = {}
        for spec in dataclasses.fields(hint):
            if spec.name in value:
                values[spec.name] = _read(hints[spec.name], value[spec.name], f"{where}.{spec.name}")
            elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
                raise GenieError(f"{where}: the key '{spec.name}' is missing")
        return hint(**values)
    if origin is tuple:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise GenieError(f"{where}: expected a list, found {type(value).__name__}")
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_read(arguments[0], inner, f"{where}[{i}]") for i, inner in enumerate(value))
        if len(value) != len(arguments):
            raise GenieError(f"{where}: expected {len(arguments)} entries, found {len(value)}")
        return tuple(_read(a, inner, where) for a, inner in zip(arguments, value, strict=True))
    if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        if not isinstance(value, Mapping):
            raise GenieError(f"{where}: expected an object, found {type(value).__name__}")
        return {str(key): _read(arguments[1], inner, f"{where}.{key}") for key, inner in value.items()}
    if hint in (int, float, str, bool):
        wanted = (int, float) if hint is float else (hint,)
        if not isinstance(value, wanted) or (isinstance(value, bool) and hint is not bool):
            raise GenieError(f"{where}: expected {hint.__name__}, found {value!r}")
        if isinstance(value, int) and abs(value) >= 2**64:
            raise GenieError(f"{where}: expected a number of at most 64 bits, found one of {value.bit_length()}")
        return float(value) if hint is float else value
    return value


def digest(value: Any) -> str:
    """16 hex digits that name a configuration: SHA-256 of its canonical JSON. Equal digests may be compared."""
    text = json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """``plan.json``: what was decided before the network was touched.

    ``placement[rank]`` is the rank's host; ``ports`` is in the order of ``ports.smp``; ``dilation`` is k: real time =
    k × model time; ``one_clock`` says that all ranks read the same CLOCK_MONOTONIC (one machine); ``warmup``
    iterations are run but not measured; ``predicted_iteration_ns`` is the healthy prediction in model time; ``shaped``
    says that ports have rates, so that the network and not the CPUs ought to set the pace. ``nodes`` is the role of
    each node ("forwarding host" for a host that carries others' traffic), ``port_rates_bps`` in the order of ``ports``
    and in model time; ports 2k and 2k + 1 are the ends of link k. Both are empty, and ``mtu`` 0, in runs from before
    they were recorded.
    """

    name: str
    workload: str
    topology: str
    transport: str
    fabric: str
    iterations: int
    placement: tuple[str, ...]
    ports: tuple[str, ...] = ()
    warmup: int = 0
    dilation: float = 1.0
    one_clock: bool = True
    links: tuple[str, ...] = ()
    faults: tuple[dict[str, Any], ...] = ()
    collective: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    predicted_iteration_ns: float | None = None
    notes: tuple[str, ...] = ()
    shaped: bool = True
    nodes: Mapping[str, str] = field(default_factory=dict)
    port_rates_bps: tuple[int, ...] = ()
    mtu: int = 0

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.placement)

    def host(self, rank: int) -> str:
        """Host of ``rank``. Raises GenieError for one that the plan does not place: files of two runs, or damaged."""
        if not 0 <= rank < len(self.placement):
            raise GenieError(
                f"plan.json places {len(self.placement)} ranks, other files of the run speak of rank {rank}"
            )
        return self.placement[rank]

    @property
    def fault_names(self) -> tuple[str, ...]:
        """Names of the planned faults; empty for a healthy run."""
        return tuple(str(fault.get("name", "fault")) for fault in self.faults)


@dataclass(frozen=True, slots=True)
class OperatorRecord:
    """One operator as an event names it (by its index). ``bytes`` follows `genie.workload.trace.Operator`;
    ``call_id`` is -1 for an operator that moves nothing; ``lane`` -1 for none; ``planned_ns`` is how long it computes
    by the trace (model time), -1 in runs from before it was recorded.
    """

    trace_id: int
    name: str
    kind: str
    collective: str
    comm: str
    bytes: int
    lane: int
    call_id: int
    peer: int = -1
    per_peer_bytes: tuple[int, ...] | None = None
    planned_ns: int = -1


@dataclass(frozen=True, slots=True)
class RankOperators:
    """Operators of one rank, in event order, and the names of its lanes."""

    rank: int
    lanes: tuple[str, ...]
    ops: tuple[OperatorRecord, ...]


@dataclass(frozen=True, slots=True)
class JobOperators:
    """``operators.json.gz``: all ranks, and the world ranks of each communicator ("" is the world)."""

    ranks: tuple[RankOperators, ...]
    comms: Mapping[str, tuple[int, ...]]

    def to_json(self) -> dict[str, Any]:
        """The compact form of the file: an operator is a list, in the order of `OperatorRecord`."""
        return {
            "format": "genie-operators",
            "version": 1,
            "fields": [f.name for f in dataclasses.fields(OperatorRecord)],
            "comms": to_plain(self.comms),
            "ranks": [
                {
                    "rank": rank.rank,
                    "lanes": list(rank.lanes),
                    "ops": [
                        [op.trace_id, op.name, op.kind, op.collective, op.comm, op.bytes, op.lane, op.call_id, op.peer,
                         None if op.per_peer_bytes is None else list(op.per_peer_bytes), op.planned_ns]
                        for op in rank.ops
                    ],
                }
                for rank in self.ranks
            ],
        }  # fmt: skip

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> JobOperators:
        """Inverse of `to_json`. Raises GenieError that names what is no such value."""
        where = "operators.json.gz"
        ranks = []
        for n, rank in enumerate(_read(tuple[dict[str, Any], ...], value.get("ranks"), f"{where}.ranks")):
            inside = f"{where}.ranks[{n}]"
            ops = _read(tuple[Any, ...], rank.get("ops"), f"{inside}.ops")
            ranks.append(
                RankOperators(
                    _read(int, rank.get("rank"), f"{inside}.rank"),
                    _read(tuple[str, ...], rank.get("lanes"), f"{inside}.lanes"),
                    tuple(_operator(fields, f"{inside}.ops[{place}]") for place, fields in enumerate(ops)),
                )
            )
        comms = _read(dict[str, tuple[int, ...]], value.get("comms"), f"{where}.comms")
        return JobOperators(tuple(ranks), comms)


_OPERATOR_TYPES = (int, str, str, str, str, int, int, int, int)
"""Of the first entries of an operator; per_peer_bytes and planned_ns follow."""


def _operator(fields: Any, where: str) -> OperatorRecord:
    # There may be hundreds of thousands: types are compared here, and `_read` is asked only for the words.
    if not isinstance(fields, list) or len(fields) < len(_OPERATOR_TYPES) + 1:
        raise GenieError(f"{where}: expected a list of {len(_OPERATOR_TYPES) + 1} entries or more")
    if tuple(map(type, fields[: len(_OPERATOR_TYPES)])) != _OPERATOR_TYPES:
        for spec, hint, found in zip(dataclasses.fields(OperatorRecord), _OPERATOR_TYPES, fields, strict=False):
            _read(hint, found, f"{where}.{spec.name}")
    trace_id, name, kind, collective, comm, size, lane, call_id, peer, vector = fields[:10]
    per_peer = None if vector is None else _read(tuple[int, ...], vector, f"{where}.per_peer_bytes")
    planned_ns = _read(int, fields[10], f"{where}.planned_ns") if len(fields) > 10 else -1
    return OperatorRecord(trace_id, name, kind, collective, comm, size, lane, call_id, peer, per_peer, planned_ns)


def job_operators(programs: Sequence[RankProgram], trace: Trace) -> JobOperators:
    """What the event files' operator numbers mean, from the programs that were sent and the trace they came from.

    An operator that lowering added (its id is not in the trace) is named by the program: compute if it takes time.
    """
    traced = {rank.rank: {op.id: op for op in rank.operators} for rank in trace.ranks}
    ranks = []
    for program in programs:
        known = traced.get(program.rank, {})
        ops = []
        for op in program.ops:
            call = program.calls[op.call] if op.call >= 0 else None
            origin = known.get(op.trace_id)
            if origin is None:
                kind = OpKind.COLLECTIVE if call else OpKind.COMPUTE if op.duration_ns > 0 else OpKind.NOOP
                record = OperatorRecord(
                    op.trace_id, op.name, kind.value, "", call.comm if call else "", call.bytes if call else 0,
                    op.lane, call.call_id if call else -1, planned_ns=op.duration_ns,
                )  # fmt: skip
            else:
                record = OperatorRecord(
                    op.trace_id, op.name or origin.name, origin.kind.value,
                    origin.collective.value if origin.collective else "", call.comm if call else origin.comm,
                    origin.bytes, op.lane, call.call_id if call else -1, origin.peer, origin.per_peer_bytes,
                    op.duration_ns,
                )  # fmt: skip
            ops.append(record)
        ranks.append(RankOperators(program.rank, tuple(lane.name for lane in program.lanes), tuple(ops)))
    return JobOperators(tuple(ranks), dict(trace.communicators))


@dataclass(frozen=True, slots=True)
class Check:
    """One piece of evidence: what was looked at, what was expected, what was found."""

    what: str
    expected: str
    found: str
    ok: bool
    kind: str = "in_place"


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    """One fault of ``faults.json``: what was done, when, and the evidence that it took effect.

    ``windows`` are the stretches in which it was in effect, each (start, end) in CLOCK_MONOTONIC ns of the controller's
    machine, in order; an end of None: not ended within the run. ``start_mono_ns`` is the first start (None: never in
    effect), ``end_mono_ns`` the last end. ``state`` is "in_effect", "not_exercised" or "not_in_effect"
    (docs/faults.md). ``twin_counter`` names a fabric total (``ce_marked``) that must be above 0 in the *healthy* twin
    for this fault to mean anything: if it was not marked either, marking switched off switches off nothing.
    """

    name: str
    role: str = ""
    targets: tuple[str, ...] = ()
    start_mono_ns: int | None = None
    end_mono_ns: int | None = None
    state: str = "not_in_effect"
    reverted: bool = False
    checks: tuple[Check, ...] = ()
    facts: Mapping[str, float] = field(default_factory=dict)
    twin_counter: str = ""
    hypothesis: str = ""
    problem: str = ""
    windows: tuple[tuple[int, int | None], ...] = ()

    @property
    def stretches(self) -> tuple[tuple[int, int | None], ...]:
        """``windows``; of a file from before there were several, the one that it has."""
        if self.windows or self.start_mono_ns is None:
            return self.windows
        return ((self.start_mono_ns, self.end_mono_ns),)

    def why_not_in_effect(self) -> str:
        """Why this fault cannot count as injected, in one sentence part; "" when it can."""
        if self.problem:
            return self.problem
        if self.start_mono_ns is None:
            return "it was never applied"
        if self.state == "in_effect":
            return ""
        failed = next((check for check in self.checks if not check.ok), None)
        said = "the traffic never met it" if self.state == "not_exercised" else "it was not in effect"
        return f"{said}: {failed.what}: expected {failed.expected}, found {failed.found}" if failed else said


def fault_outcomes(session: FaultSession, evidence: Sequence[EvidenceRecord]) -> tuple[FaultOutcome, ...]:
    """What became of each fault of a session, after `revert`. ``evidence`` is what `FaultSession.evidence` gave; a
    fault without it (the run was aborted) counts as not in effect.
    """
    windows: dict[str, list[tuple[int, int | None]]] = {}
    for window in sorted(session.windows(), key=lambda window: window.started_ns):
        windows.setdefault(window.fault, []).append((window.started_ns, window.ended_ns or None))
    proofs = {record.fault: record for record in evidence}
    outcomes = []
    for plan in session.plans:
        own, proof = windows.get(plan.name, []), proofs.get(plan.name)
        reverts = [record for record in session.records if record.fault == plan.name and record.action == "reverted"]
        outcomes.append(
            FaultOutcome(
                name=plan.name,
                role=plan.role,
                targets=plan.targets,
                start_mono_ns=own[0][0] if own else None,
                end_mono_ns=own[-1][1] if own else None,
                state=proof.state if proof else "not_in_effect",
                reverted=bool(reverts) and all(record.ok for record in reverts),
                checks=tuple(Check(c.what, c.expected, c.found, bool(c.ok), c.kind) for c in proof.checks)
                if proof
                else (),
                facts=dict(proof.facts) if proof else {},
                twin_counter=plan.mechanism.twin_counter,
                hypothesis=plan.hypothesis,
                problem="; ".join(f"could not be reverted: {r.message}" for r in reverts if not r.ok),
                windows=tuple(own),
            )
        )
    return tuple(outcomes)
