"""The events of a run as the analysis needs them: messages with both their ends, operators by rank and iteration.

`Recording.read` loads what `genie.results.metrics` loads, once; the walk back (`genie.why.path`) asks for one `Page` a
rank and iteration, the scores take whole columns. All times are real ns since T on one clock. Only iterations that all
ranks completed are here, from the last warm-up one on. Never judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from genie.engine.wire import EventType
from genie.errors import GenieError
from genie.results.metrics import JobRecords, iteration_ends, load_records
from genie.results.records import JobOperators, OperatorRecord, PlanRecord
from genie.results.rundir import RunDir
from genie.results.statistics import Floats

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """One row a message, in the order in which each connection carried them. ``allowed``: its needs were met;
    ``first``, ``last``: its first and last byte were handed over at the sender; ``header``, ``done``: its head was
    seen, it was complete at the receiver. ``previous`` is the row before on the same connection, -1 for the first.
    ``flow`` indexes `Recording.flows`.
    """

    flow: Ints
    sender: Ints
    receiver: Ints
    iteration: Ints
    call: Ints
    bytes: Ints
    allowed: Ints
    first: Ints
    last: Ints
    header: Ints
    done: Ints
    previous: Ints

    def __len__(self) -> int:
        return len(self.flow)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What one rank received, or handed over, of one call in one iteration: times in order, and rows of `Messages`."""

    times: list[int]
    rows: list[int]


@dataclass(frozen=True, slots=True)
class Page:
    """One iteration of one rank. Operators in the order in which they ended: ``op`` is their number in
    ``operators.json.gz``. ``row_of_call`` finds a call's operator; ``received`` and ``sent`` are by call.
    """

    start: int
    end: int
    op: list[int]
    ready: list[int]
    started: list[int]
    ended: list[int]
    row_of_call: Mapping[int, int]
    received: Mapping[int, Arrivals]
    sent: Mapping[int, Arrivals]


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """Operators of communication in the measured iterations, sorted by call and iteration; a row a rank.
    ``begin`` are the first rows of each (call, iteration), and the end of the last.
    """

    call: Ints
    iteration: Ints
    rank: Ints
    started: Ints
    ended: Ints
    begin: Ints


class Recording:
    """All that was recorded. Make with `read`."""

    def __init__(self, plan: PlanRecord, operators: JobOperators, job: JobRecords) -> None:
        self.plan = plan
        self.operators = operators
        self.job = job
        ends, starts, rank_ends = iteration_ends(job, plan)
        self.ends = ends.astype(np.int64)
        self.rank_starts = starts.astype(np.int64)
        self.rank_ends = rank_ends.astype(np.int64)
        done = len(self.ends)
        self.window = range(min(plan.warmup, done), done)
        self._from = max(0, self.window.start - 1)
        self._ops = {own.rank: own.ops for own in operators.ranks}
        self._pages: dict[tuple[int, int], Page] = {}
        records = job.records
        inside = (records["iteration"] >= self._from) & (records["iteration"] < done)
        self._operators = records[(records["type"] == EventType.OPERATOR) & inside]
        self._check_numbers()
        self.flows, self.messages, self.unpaired = _pair(records, inside, plan.world)

    @staticmethod
    def read(run: RunDir) -> Recording:
        """Load a run. Raises GenieError where files are missing or damaged."""
        plan = run.plan
        kinds = (EventType.OPERATOR, EventType.SENT, EventType.RECEIVED, EventType.ITERATION)
        return Recording(plan, run.operators, load_records(run, plan, kinds))

    def operator(self, rank: int, op: int) -> OperatorRecord:
        """What an operator number of a rank means."""
        return self._ops[rank][op]

    def page(self, rank: int, iteration: int) -> Page | None:
        """One iteration of one rank; None where it is from before what is kept."""
        if not self._from <= iteration < len(self.ends):
            return None
        key = (rank, iteration)
        if key not in self._pages:
            self._pages[key] = self._make_page(rank, iteration)
        return self._pages[key]

    @property
    def all_sent_bytes(self) -> Floats:
        """Payload that each flow sent in the whole run, warm-up and unfinished iterations included."""
        records = self.job.records
        sent = records[records["type"] == EventType.SENT]
        world, channels = (
            self.plan.world,
            max(_channels(sent["channel"]), max((own[2] for own in self.flows), default=0) + 1),
        )
        keys = _connection(sent["rank"], sent["peer"], sent["channel"], world, channels)
        total = np.bincount(keys, weights=sent["bytes"], minlength=world * world * channels)
        numbers = [(sender * world + receiver) * channels + channel for sender, receiver, channel in self.flows]
        return np.asarray(total[np.array(numbers, dtype=np.int64)], dtype=np.float64)

    @cached_property
    def calls(self) -> Calls:
        """Operators of communication of the measured iterations."""
        ops = self._operators
        ops = ops[ops["iteration"] >= self.window.start]
        call = np.full(len(ops), -1, dtype=np.int64)
        for rank, known in self._ops.items():
            mine = np.flatnonzero(ops["rank"] == rank)
            if len(mine):
                call[mine] = np.array([op.call_id for op in known], dtype=np.int64)[ops["op"][mine]]
        ops, call = ops[call >= 0], call[call >= 0]
        iteration = ops["iteration"].astype(np.int64)
        key = call * max(1, len(self.ends)) + iteration
        order = np.argsort(key, kind="stable")
        key, ops = key[order], ops[order]
        begin = np.flatnonzero(np.diff(key, prepend=-1)) if len(key) else np.zeros(0, dtype=np.int64)
        return Calls(
            call=call[order],
            iteration=iteration[order],
            rank=ops["rank"].astype(np.int64),
            started=ops["t1_ns"],
            ended=ops["t2_ns"],
            begin=np.append(begin, len(key)).astype(np.int64),
        )

    @cached_property
    def starts_of_call(self) -> dict[tuple[int, int], tuple[Ints, Ints]]:
        """(call, iteration) → ranks and their starts."""
        calls = self.calls
        found = {}
        for a, b in pairwise(calls.begin.tolist()):
            found[int(calls.call[a]), int(calls.iteration[a])] = (calls.rank[a:b], calls.started[a:b])
        return found

    # -- pages --------------------------------------------------------------------------------------------

    def _make_page(self, rank: int, iteration: int) -> Page:
        slot = rank * len(self.ends) + iteration
        order, begin = self._operator_index
        own = self._operators[order[begin[slot] : begin[slot + 1]]]
        known = self._ops.get(rank, ())
        op = own["op"].tolist()
        row_of_call = {known[number].call_id: row for row, number in enumerate(op) if known[number].call_id >= 0}
        messages = self.messages
        return Page(
            start=int(self.rank_starts[rank, iteration]),
            end=int(self.rank_ends[rank, iteration]),
            op=op,
            ready=own["t0_ns"].tolist(),
            started=own["t1_ns"].tolist(),
            ended=own["t2_ns"].tolist(),
            row_of_call=row_of_call,
            received=self._arrivals(self._receiver_index, slot, messages.done),
            sent=self._arrivals(self._sender_index, slot, messages.last),
        )

    def _arrivals(self, index: tuple[Ints, Ints], slot: int, times: Ints) -> dict[int, Arrivals]:
        order, begin = index
        rows = order[begin[slot] : begin[slot + 1]]
        if not len(rows):
            return {}
        call, at = self.messages.call[rows], times[rows]
        sorting = np.lexsort((at, call))
        rows, call, at = rows[sorting], call[sorting], at[sorting]
        edges = [*np.flatnonzero(np.diff(call, prepend=-1)).tolist(), len(rows)]
        return {int(call[a]): Arrivals(at[a:b].tolist(), rows[a:b].tolist()) for a, b in pairwise(edges)}

    @cached_property
    def _operator_index(self) -> tuple[Ints, Ints]:
        return self._index(self._operators["rank"], self._operators["iteration"])

    @cached_property
    def _receiver_index(self) -> tuple[Ints, Ints]:
        return self._index(self.messages.receiver, self.messages.iteration)

    @cached_property
    def _sender_index(self) -> tuple[Ints, Ints]:
        return self._index(self.messages.sender, self.messages.iteration)

    def _index(self, rank: npt.NDArray[np.integer], iteration: npt.NDArray[np.integer]) -> tuple[Ints, Ints]:
        """Rows in order of (rank, iteration), and where each of those begins."""
        slots = rank.astype(np.int64) * len(self.ends) + iteration.astype(np.int64)
        order = np.argsort(slots, kind="stable").astype(np.int64)
        begin = np.searchsorted(slots[order], np.arange(self.plan.world * len(self.ends) + 1))
        return order, begin.astype(np.int64)

    def _check_numbers(self) -> None:
        for rank in range(self.plan.world):
            own = self._operators["op"][self._operators["rank"] == rank]
            if len(own) and int(own.max()) >= len(self._ops.get(rank, ())):
                raise GenieError(
                    f"rank {rank}: an event names operator {int(own.max())}, operators.json.gz has "
                    f"{len(self._ops.get(rank, ()))}: the event file belongs to another run"
                )


def _channels(channel: npt.NDArray[np.integer]) -> int:
    return int(channel.max(initial=0)) + 1


def _connection(
    sender: npt.NDArray[np.integer],
    receiver: npt.NDArray[np.integer],
    channel: npt.NDArray[np.integer],
    world: int,
    channels: int,
) -> Ints:
    return (sender.astype(np.int64) * world + receiver.astype(np.int64)) * channels + channel.astype(np.int64)


def _pair(
    records: npt.NDArray[np.void], inside: npt.NDArray[np.bool_], world: int
) -> tuple[tuple[tuple[int, int, int], ...], Messages, int]:
    """Flows, messages, and how many records have no other half. A connection keeps order, so the k-th that was sent on
    it is the k-th received; checked, and found by their full names where something is missing.
    """
    # columns are taken by row, so that no record is ever copied whole
    kind = records["type"]
    sent, received = (np.flatnonzero((kind == own) & inside) for own in (EventType.SENT, EventType.RECEIVED))
    channels = max(_channels(records["channel"][rows]) for rows in (sent, received))

    def connections(rows: npt.NDArray[np.intp], sender: str, receiver: str) -> Ints:
        ends = records[sender][rows], records[receiver][rows]
        return _connection(ends[0], ends[1], records["channel"][rows], world, channels)

    sent_on, received_on = connections(sent, "rank", "peer"), connections(received, "peer", "rank")
    sent_order, received_order = np.argsort(sent_on, kind="stable"), np.argsort(received_on, kind="stable")
    sent, received = sent[sent_order], received[received_order]
    sent_on, received_on = sent_on[sent_order], received_on[received_order]
    unpaired = 0
    if not (np.array_equal(sent_on, received_on) and _same_names(records, sent, received)):
        left, right = _match(records, sent, sent_on, received, received_on)
        unpaired = len(sent) + len(received) - 2 * len(left)
        sent, received, sent_on = sent[left], received[right], sent_on[left]
    fresh = np.diff(sent_on, prepend=-1) != 0
    keys, flow = sent_on[fresh], np.cumsum(fresh) - 1
    flows = tuple((*divmod(key // channels, world), key % channels) for key in keys.tolist())
    previous = np.arange(-1, len(sent) - 1, dtype=np.int64)
    previous[fresh] = -1

    def column(name: str, rows: npt.NDArray[np.intp]) -> Ints:
        return records[name][rows].astype(np.int64, copy=False)

    messages = Messages(
        flow=flow.astype(np.int64, copy=False),
        sender=(sent_on // channels) // world,
        receiver=(sent_on // channels) % world,
        iteration=column("iteration", sent),
        call=column("call_id", sent),
        bytes=column("bytes", sent),
        allowed=column("t0_ns", sent),
        first=column("t1_ns", sent),
        last=column("t2_ns", sent),
        header=column("t0_ns", received),
        done=column("t2_ns", received),
        previous=previous,
    )
    return flows, messages, unpaired


_NAME = ("iteration", "call_id", "seq")


def _same_names(records: npt.NDArray[np.void], sent: npt.NDArray[np.intp], received: npt.NDArray[np.intp]) -> bool:
    return all(np.array_equal(records[name][sent], records[name][received]) for name in _NAME)


def _match(
    records: npt.NDArray[np.void],
    sent: npt.NDArray[np.intp],
    sent_on: Ints,
    received: npt.NDArray[np.intp],
    received_on: Ints,
) -> tuple[Ints, Ints]:
    """Places in both that name the same message, in the order of ``sent``."""

    def names(rows: npt.NDArray[np.intp], on: Ints) -> list[tuple[int, ...]]:
        return list(zip(on.tolist(), *(records[name][rows].tolist() for name in _NAME), strict=True))

    where = {name: row for row, name in enumerate(names(received, received_on))}
    pairs = [(k, where[name]) for k, name in enumerate(names(sent, sent_on)) if name in where]
    left, right = (np.array(side, dtype=np.int64) for side in (zip(*pairs, strict=True) if pairs else ((), ())))
    return left, right
