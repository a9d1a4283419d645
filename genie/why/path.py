"""The critical path: from the last end of an iteration back through what each thing waited for, without a gap.

The engine is a state machine whose records carry the instant of the event that allowed them, so what a thing waited for
is found by time: an operator became ready when another ended, a message was allowed when one arrived, a call ended with
its last message. `walk` goes back so from end(i) to end(i-1) and gives every nanosecond between them to one cause
(docs/why.md), which is why shares sum to the iteration. Called by `genie.why.explain`; times are real ns since T.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from genie.results.metrics import COMPUTE_KINDS
from genie.results.records import OperatorRecord
from genie.why.recording import Page, Recording
from genie.why.records import (
    COMPUTE,
    CREDITS,
    HOST,
    LATENCY,
    PEER,
    QUEUEING,
    RECOVERY,
    SERIALIZATION,
    STRETCH,
)
from genie.why.transit import Transit

FEWEST_RANKS_TO_WAIT = 3
"""In a collective of fewer, that one waits for the other says nothing about either."""

Step = tuple[str, int, int, int]
"""What the walk looks at next: what, rank, iteration, and the row of its page, or the row of `Messages`."""


@dataclass(slots=True)
class Piece:
    """A stretch of the path in real ns, latest first. ``message`` is a row of `Messages`, -1 for none."""

    start: int
    end: int
    cause: str
    rank: int
    iteration: int
    op: int
    message: int = -1


class Walk:
    """One walk over one iteration. Use `walk`."""

    def __init__(self, recording: Recording, transit: Transit, window_messages: int) -> None:
        self._recording = recording
        self._messages = recording.messages
        self._transit = transit
        self._window = window_messages
        self._dilation = recording.plan.dilation
        self._recorded = len(recording.messages) > 0
        self.pieces: list[Piece] = []
        self._at = 0
        self._low = 0
        self._awaited = (-1, 0)  # rank that most of its communicator waited for, and since when

    def run(self, iteration: int) -> list[Piece]:
        """The pieces of one iteration, latest first; together they are exactly (end(i-1), end(i)]."""
        recording = self._recording
        self.pieces = []
        self._at = int(recording.ends[iteration])
        self._low = int(recording.ends[iteration - 1]) if iteration else 0
        last = int(np.argmax(recording.rank_ends[:, iteration]))
        step: Step | None = ("iteration", last, iteration, -1)
        stood, seen = self._at, set[Step]()
        while step is not None and self._at > self._low:
            if self._at < stood:
                stood = self._at
                seen.clear()
            if step in seen:
                break  # records that contradict each other lead in a circle; what is left belongs to nothing
            seen.add(step)
            step = self._back(step)
        if self._at > self._low:  # before the first thing that was recorded
            rank = self.pieces[-1].rank if self.pieces else last
            self._put(self._low, HOST, rank, iteration, -1)
        return self.pieces

    def _put(self, start: int, cause: str, rank: int, iteration: int, op: int, message: int = -1) -> None:
        """The path from ``start`` to where it stands was ``cause``; it stands at ``start`` then."""
        start = max(start, self._low)
        if start < self._at:
            self.pieces.append(Piece(start, self._at, cause, rank, iteration, op, message))
            self._at = start

    def _back(self, step: Step) -> Step | None:
        what, rank, iteration, row = step
        if what == "received":
            return self._received(row)
        if what == "handed":
            return self._handed(row)
        if what == "sending":
            return self._sending(row)
        if what == "allowed":
            return self._allowed(row)
        page = self._recording.page(rank, iteration)
        if page is None:
            return None
        if what == "iteration":
            return self._last_ended(page, rank, iteration, self._at, len(page.op))
        if what == "ended":
            return self._ended(page, rank, iteration, row)
        return self._started(page, rank, iteration, row)

    # -- operators ----------------------------------------------------------------------------------------

    def _last_ended(self, page: Page, rank: int, iteration: int, at: int, before: int) -> Step:
        """What ended last on a rank until ``at``, of the first ``before`` of the page; else the iteration's start."""
        row = bisect_right(page.ended, at, 0, before) - 1
        op = page.op[row] if row >= 0 else -1
        if row < 0 or page.ended[row] < page.start:
            self._put(page.start, HOST, rank, iteration, op)
            return ("iteration", rank, iteration - 1, -1)
        self._put(page.ended[row], HOST, rank, iteration, op)
        return ("ended", rank, iteration, row)

    def _ended(self, page: Page, rank: int, iteration: int, row: int) -> Step:
        number = page.op[row]
        op = self._recording.operator(rank, number)
        started = page.started[row]
        if op.call_id < 0:
            self._compute(op, rank, iteration, number, started)
            return ("started", rank, iteration, row)
        if not self._recorded:
            return self._whole_call(op, rank, iteration, row, started)
        received, sent = page.received.get(op.call_id), page.sent.get(op.call_id)
        last_received = received.times[-1] if received else -1
        last_sent = sent.times[-1] if sent else -1
        latest = max(last_received, last_sent)
        if latest <= started:  # all had come before it began, or it moves nothing
            self._put(started, HOST, rank, iteration, number)
            return ("started", rank, iteration, row)
        credits = self._window and latest == last_sent
        self._put(latest, CREDITS if credits else HOST, rank, iteration, number)
        if received and latest == last_received:
            return ("received", rank, iteration, received.rows[-1])
        return ("handed", rank, iteration, sent.rows[-1] if sent else -1)

    def _compute(self, op: OperatorRecord, rank: int, iteration: int, number: int, started: int) -> None:
        """Compute: what it took beyond its plan, then the plan, of it what most others waited for."""
        if op.kind in COMPUTE_KINDS and op.planned_ns >= 0:
            self._put(min(self._at, started + round(op.planned_ns * self._dilation)), STRETCH, rank, iteration, number)
        awaited, since = self._awaited
        if rank == awaited:
            self._put(max(started, since), PEER, rank, iteration, number)
        self._put(started, COMPUTE if op.kind in COMPUTE_KINDS else HOST, rank, iteration, number)

    def _whole_call(self, op: OperatorRecord, rank: int, iteration: int, row: int, started: int) -> Step:
        """Without messages: from the last rank's start on, a call is under way; before it, that rank is late."""
        ranks, starts = self._recording.starts_of_call.get((op.call_id, iteration), (None, None))
        page = self._recording.page(rank, iteration)
        number = page.op[row] if page else -1
        last = rank
        if ranks is not None and starts is not None:
            late = int(np.argmax(starts))
            last, started = int(ranks[late]), max(started, min(int(starts[late]), self._at))
        self._put(started, QUEUEING, rank, iteration, number)
        other = self._recording.page(last, iteration)
        if other is None or op.call_id not in other.row_of_call:
            return ("started", rank, iteration, row)
        return ("started", last, iteration, other.row_of_call[op.call_id])

    def _started(self, page: Page, rank: int, iteration: int, row: int) -> Step:
        number, ready, started = page.op[row], page.ready[row], page.started[row]
        op = self._recording.operator(rank, number)
        self._remember_waiters(op, rank, iteration, started)
        if started > ready and op.lane >= 0:
            # it waited for its stream: whatever held that before it
            for before in range(row - 1, -1, -1):
                if page.ended[before] <= ready:
                    break
                if page.ended[before] <= started and self._recording.operator(rank, page.op[before]).lane == op.lane:
                    self._put(page.ended[before], HOST, rank, iteration, number)
                    return ("ended", rank, iteration, before)
        self._put(ready, HOST, rank, iteration, number)
        if ready <= page.start:
            self._put(page.start, HOST, rank, iteration, number)
            return ("iteration", rank, iteration - 1, -1)
        return self._last_ended(page, rank, iteration, ready, row)

    def _remember_waiters(self, op: OperatorRecord, rank: int, iteration: int, started: int) -> None:
        if op.kind != "collective":
            return
        ranks, starts = self._recording.starts_of_call.get((op.call_id, iteration), (None, None))
        if ranks is None or starts is None or len(starts) < FEWEST_RANKS_TO_WAIT:
            return
        since = int(np.median(starts[ranks != rank]))
        if since < started:
            self._awaited = (rank, since)

    # -- messages -----------------------------------------------------------------------------------------

    def _place(self, m: int, at_receiver: bool) -> tuple[int, int, int]:
        """Rank, iteration and operator number of one end of a message."""
        messages = self._messages
        rank = int((messages.receiver if at_receiver else messages.sender)[m])
        iteration, call = int(messages.iteration[m]), int(messages.call[m])
        page = self._recording.page(rank, iteration)
        row = page.row_of_call.get(call, -1) if page else -1
        return rank, iteration, page.op[row] if page and row >= 0 else -1

    def _received(self, m: int) -> Step:
        """A message was complete: its own time on the way, then the one before it, or its sender."""
        transit, messages = self._transit, self._messages
        rank, iteration, op = self._place(m, at_receiver=True)
        self._put(int(messages.done[m]), HOST, rank, iteration, op)
        begin = int(transit.begin[m])
        done = self._at
        own, latency = float(transit.serialization[m]), float(transit.latency[m])
        self._put(max(begin, round(done - own)), SERIALIZATION, rank, iteration, op, m)
        self._put(max(begin, round(done - own - latency)), LATENCY, rank, iteration, op, m)
        self._put(begin, RECOVERY if transit.stalled[m] else QUEUEING, rank, iteration, op, m)
        if transit.behind[m]:
            return ("received", -1, -1, int(messages.previous[m]))
        self._awaited = (-1, 0)
        return ("sending", -1, -1, m)

    def _handed(self, m: int) -> Step:
        """A message was handed over whole: the connection took it as fast as it drained."""
        messages = self._messages
        rank, iteration, op = self._place(m, at_receiver=False)
        self._put(int(messages.last[m]), HOST, rank, iteration, op)
        whole = self._at - int(messages.first[m])
        own = min(float(self._transit.serialization[m]), float(max(whole, 0)))
        self._put(max(int(messages.first[m]), round(self._at - own)), SERIALIZATION, rank, iteration, op, m)
        self._put(int(messages.first[m]), QUEUEING, rank, iteration, op, m)
        return ("sending", -1, -1, m)

    def _sending(self, m: int) -> Step:
        """A message's first byte was handed over: at once, or when the connection or the window had room."""
        messages = self._messages
        rank, iteration, op = self._place(m, at_receiver=False)
        first, allowed, previous = int(messages.first[m]), int(messages.allowed[m]), int(messages.previous[m])
        self._put(first, HOST, rank, iteration, op)
        if first > allowed and previous >= 0:
            if self._window:
                freed = self._freed_by(m, allowed, first)
                if freed >= 0:
                    self._put(int(messages.done[freed]), CREDITS, rank, iteration, op, m)
                    return ("received", -1, -1, freed)
            if allowed < int(messages.last[previous]) <= first:
                self._put(int(messages.last[previous]), HOST, rank, iteration, op)
                return ("handed", -1, -1, previous)
        self._put(allowed, HOST, rank, iteration, op)
        return ("allowed", -1, -1, m)

    def _freed_by(self, m: int, allowed: int, first: int) -> int:
        """The message whose arrival gave the credit that this one waited for; -1 if it waited for none."""
        messages = self._messages
        oldest, row = m, int(messages.previous[m])
        for _ in range(self._window):
            if row < 0:
                return -1
            oldest, row = row, int(messages.previous[row])
        # credits are given for several at once, so the one that freed this may be a later one
        for candidate in range(m - 1, oldest - 1, -1):
            if int(messages.done[candidate]) <= first:
                return candidate if int(messages.done[candidate]) > allowed else -1
        return -1

    def _allowed(self, m: int) -> Step:
        """A message's needs were met: by the start of its call, or by another message of the call on this rank."""
        messages = self._messages
        rank, iteration, number = self._place(m, at_receiver=False)
        page = self._recording.page(rank, iteration)
        call = int(messages.call[m])
        if page is None or call not in page.row_of_call:
            return ("iteration", rank, iteration, -1)
        row = page.row_of_call[call]
        allowed = int(messages.allowed[m])
        self._put(allowed, HOST, rank, iteration, number)
        best, found = page.started[row], ("started", rank, iteration, row)
        if best < allowed:
            for what, arrivals in (("received", page.received.get(call)), ("handed", page.sent.get(call))):
                k = bisect_right(arrivals.times, allowed) - 1 if arrivals else -1
                if arrivals and k >= 0 and arrivals.times[k] > best and arrivals.rows[k] != m:
                    best, found = arrivals.times[k], (what, rank, iteration, arrivals.rows[k])
        self._put(best, HOST, rank, iteration, number)
        return found


def walk(recording: Recording, transit: Transit, window_messages: int, iterations: Sequence[int]) -> list[list[Piece]]:
    """The critical path of each of ``iterations``, latest piece first."""
    walker = Walk(recording, transit, window_messages)
    return [walker.run(iteration) for iteration in iterations]
