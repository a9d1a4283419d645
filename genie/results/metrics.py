"""What a run measured: docs/metrics.md as code. `measure(rundir) -> Metrics`, numbers only, no verdict.

Called by `genie.experiment` after a run and by ``genie report``. Reads the run directory and nothing else; works on
aborted runs with what is there. All times are *model* time (real time / dilation), on a clock that starts at the
agreed start T. A number that was not recorded is None, never 0; what makes numbers doubtful is a sentence in ``flags``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from genie.clocks import HostClock
from genie.engine.wire import EVENT, EventType
from genie.errors import GenieError
from genie.results import statistics
from genie.results.collectives import SEND_RECV, CollectiveRow, call_facts, collective_rows, instances
from genie.results.interference import Interference, interference
from genie.results.messages import MessageTimes, message_times
from genie.results.ports import NOT_KNOWN, PortSamples
from genie.results.records import FaultOutcome, JobOperators, PlanRecord
from genie.results.rundir import CountersRecord, HostRecord, RunDir
from genie.results.statistics import Estimate, Floats

COMPUTE_KINDS = ("compute", "memory")
COMM_KINDS = ("collective", "send", "recv")
STRAGGLER_LAST_RATIO = 0.5
STRAGGLER_COST_RATIO = 0.02


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """Iteration times in model ns: ``each_ns`` are measured, ``warmup_ns`` were run before and are in nothing else."""

    each_ns: tuple[float, ...]
    warmup_ns: tuple[float, ...]
    median: Estimate
    mean: Estimate
    p99: Estimate


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One rank, model ns, medians over measured iterations: compute + exposed + idle = the rank's own iteration.

    ``lateness_ns``: mean time by which it started collectives after the first rank did. ``last_ratio``: share of
    collective calls that it was the last to start. ``cpu_ns``: real CPU time of its thread, whole run.
    """

    rank: int
    host: str
    compute_ns: float
    exposed_ns: float
    idle_ns: float
    lateness_ns: float
    last_ratio: float
    cpu_ns: int
    bytes_sent: int


@dataclass(frozen=True, slots=True)
class PortTotals:
    """One port over the run. Queue depths over the samples between start and end; None: not sampled or counted."""

    port: str
    tx_bytes: int | None
    drops: int | None
    ce_marked: int | None
    queue_p50_bytes: float | None
    queue_p99_bytes: float | None
    queue_max_bytes: float | None


@dataclass(frozen=True, slots=True)
class FabricTotals:
    """Sums over the fabric, start to end of the run. None: the counter was not read.

    ``queue_p99_bytes`` is that of the port named ``queue_p99_port``, the deepest.
    """

    retransmits: int | None = None
    segments_sent: int | None = None
    ce_marked: int | None = None
    ce_received: int | None = None
    drops: int | None = None
    softnet_dropped: int | None = None
    queue_p99_bytes: float | None = None
    queue_p99_port: str = ""


@dataclass(frozen=True, slots=True)
class WindowedTimes:
    """Iterations that met a window of one fault beside those that did not, for a fault that was not in effect all the
    time. ``met`` has a flag for each measured iteration; ``slowdown`` is the inner median over the outer one. None:
    there is no such iteration.
    """

    fault: str
    met: tuple[bool, ...]
    inside: Estimate | None
    outside: Estimate | None
    slowdown: Estimate | None

    def split(self, each_ns: Sequence[float]) -> tuple[list[float], list[float]]:
        """``each_ns`` of the iterations that met a window, and of the others."""
        pairs = list(zip(each_ns, self.met, strict=True))
        return [ns for ns, met in pairs if met], [ns for ns, met in pairs if not met]


@dataclass(frozen=True, slots=True)
class Metrics:
    """All of it. ``exposed_ns`` and ``compute_ns`` are per measured iteration, means over ranks; ``straggler`` is a
    rank, None when no rank stands out; ``start_mono_ns`` is T on the controller's clock. ``clock_error_ns``: hosts have
    clocks of their own, whose instants were moved to the controller's and may each be off by so much (real time);
    None: one clock, or clocks that nobody compared.
    """

    world: int
    iterations_done: int
    warmup: int
    dilation: float
    one_clock: bool
    iteration: IterationTimes | None
    exposed_ns: tuple[float, ...]
    compute_ns: tuple[float, ...]
    exposed: Estimate | None
    compute: Estimate | None
    collectives: tuple[CollectiveRow, ...]
    messages: MessageTimes | None
    ranks: tuple[RankTimes, ...]
    straggler: int | None
    fabric: FabricTotals
    ports: tuple[PortTotals, ...]
    cpu_busy_ratio: float | None
    events_dropped: int
    start_mono_ns: int | None
    end_mono_ns: int | None
    flags: tuple[str, ...] = ()
    windowed: tuple[WindowedTimes, ...] = ()
    clock_error_ns: int | None = None
    interference: Interference = field(default_factory=Interference)


@dataclass(frozen=True, slots=True)
class JobRecords:
    """Event records of all ranks in one array, with ``rank`` added and times moved to ns since T (real time).

    ``start_mono_ns``: T of each rank, on one clock for all where ``one_clock``.
    """

    records: npt.NDArray[np.void]
    start_mono_ns: dict[int, int]
    dropped: int
    cpu_ns: dict[int, int]
    bytes_sent: dict[int, int]
    missing: tuple[int, ...]
    one_clock: bool = True


def measure(run: RunDir) -> Metrics:
    """Measure a run, finished or not. Raises GenieError where its files are missing or damaged."""
    plan, operators = run.plan, run.operators
    clocks = None if plan.one_clock else run.clocks()
    job = load_records(run, plan)
    seed = run.manifest.seed
    flags: list[str] = []
    if job.missing:
        flags.append(f"no events of rank {', '.join(map(str, job.missing))}")
    if job.dropped:
        flags.append(f"{job.dropped} events found no room in the event files: the numbers are incomplete")
    ends, rank_starts, rank_ends = iteration_ends(job, plan)
    done = len(ends)
    window = range(min(plan.warmup, done), done)
    durations = np.diff(ends, prepend=0.0) / plan.dilation
    if done < plan.iterations:
        flags.append(f"{done} of {plan.iterations} iterations were completed by all ranks")
    if done and not len(window):
        flags.append(f"all {done} completed iterations are warm-up: nothing is measured")
    iteration = _iteration_times(durations, window, seed) if len(window) else None
    shares = _shares(job, operators, plan, window, rank_starts, rank_ends)
    exposed = tuple(float(v) for v in shares["exposed"].mean(axis=0))
    compute = tuple(float(v) for v in shares["compute"].mean(axis=0))
    facts = call_facts(operators)
    calls = _call_records(job, operators, window)
    ranks, straggler = _rank_times(job, plan, calls, facts, shares, iteration)
    start, end = _real_window(job, ends)
    port_totals, fabric = _fabric(run, plan, start, end, flags)
    windowed = _windowed(run.faults(), durations, ends, window, start, seed)
    messages = message_times(
        _messages(job, EventType.SENT, window),
        _messages(job, EventType.RECEIVED, window),
        one_clock=job.one_clock,
        dilation=plan.dilation,
    )
    if messages and messages.unpaired:
        flags.append(f"{messages.unpaired} message records have no other half and are left out of completion times")
    taken = interference(run.host(), job.cpu_ns.values()) if plan.one_clock else Interference()
    flags += taken.notes
    return Metrics(
        world=plan.world,
        iterations_done=done,
        warmup=plan.warmup,
        dilation=plan.dilation,
        one_clock=plan.one_clock,
        iteration=iteration,
        exposed_ns=exposed,
        compute_ns=compute,
        exposed=statistics.estimate(exposed, statistics.rows_median, seed) if exposed else None,
        compute=statistics.estimate(compute, statistics.rows_median, seed) if compute else None,
        collectives=collective_rows(calls, facts, window, plan.dilation) if len(window) else (),
        messages=messages,
        ranks=ranks,
        straggler=straggler,
        fabric=fabric,
        ports=port_totals,
        cpu_busy_ratio=_cpu_busy(run.host(), start, end) if plan.one_clock else _busiest_host(run.counters()),
        events_dropped=job.dropped,
        start_mono_ns=start,
        end_mono_ns=end,
        flags=tuple(flags),
        windowed=windowed,
        clock_error_ns=clocks.error_ns if clocks else None,
        interference=taken,
    )


def load_records(
    run: RunDir, plan: PlanRecord, kinds: Sequence[EventType] = (), iterations: Sequence[int] = ()
) -> JobRecords:
    """Events of all ranks, or of some ``kinds`` and ``iterations`` only.

    With one clock all are relative to the earliest start; where hosts have their own, times are moved to the
    controller's and relative to its T, or, where nobody compared the clocks, each is relative to its own host's T.
    """
    clocks = None if plan.one_clock else run.clocks()
    found = {rank: run.events(rank) for rank in range(plan.world)}
    present = {rank: events for rank, events in found.items() if events is not None and events.start_mono_ns > 0}
    starts = {rank: int(events.start_mono_ns) for rank, events in present.items()}
    if plan.one_clock and starts:
        starts = dict.fromkeys(starts, min(starts.values()))
    on_ours: dict[int, HostClock] = {}
    if clocks is not None:
        starts = dict.fromkeys(starts, clocks.start_mono_ns)
        on_ours = {rank: clocks.hosts[plan.host(rank)] for rank in starts if plan.host(rank) in clocks.hosts}
    parts = {rank: np.asarray(events.records) for rank, events in present.items()}
    if kinds:
        parts = {rank: part[np.isin(part["type"], kinds)] for rank, part in parts.items()}
    if len(iterations):
        parts = {rank: part[np.isin(part["iteration"], iterations)] for rank, part in parts.items()}
    records = np.empty(sum(map(len, parts.values())), dtype=_RECORD)
    end = 0
    for rank, part in parts.items():
        own = records[end : (end := end + len(part))]
        for name in part.dtype.names or ():
            if name not in _TIMES:
                own[name] = part[name]
                continue
            times = part[name].astype(np.int64)
            own[name] = (on_ours[rank].to_ours(times) if rank in on_ours else times) - starts[rank]
        own["rank"] = rank
    return JobRecords(
        records=records,
        start_mono_ns=starts,
        # a file cut short (full disk) has lost what its header still counts
        dropped=sum(e.dropped + e.committed - len(e.records) for e in present.values()),
        cpu_ns={rank: int(events.cpu_user_ns + events.cpu_system_ns) for rank, events in present.items()},
        bytes_sent={rank: int(events.bytes_sent) for rank, events in present.items()},
        missing=tuple(rank for rank in range(plan.world) if rank not in present),
        one_clock=plan.one_clock or clocks is not None,
    )


_TIMES = ("t0_ns", "t1_ns", "t2_ns")
_RECORD = np.dtype([*EVENT.descr, ("rank", "<u4")])


def iteration_ends(job: JobRecords, plan: PlanRecord) -> tuple[Floats, Floats, Floats]:
    """End of each iteration that *all* ranks completed (latest rank, ns since T), and per rank starts and ends."""
    own = job.records[job.records["type"] == EventType.ITERATION]
    shape = (plan.world, plan.iterations)
    starts, ends = np.full(shape, np.nan), np.full(shape, np.nan)
    inside = own[own["iteration"] < plan.iterations]
    starts[inside["rank"], inside["iteration"]] = inside["t0_ns"]
    ends[inside["rank"], inside["iteration"]] = inside["t2_ns"]
    complete = ~np.isnan(ends).any(axis=0)
    done = plan.iterations if complete.all() else int(np.argmin(complete))
    if not done:
        return np.zeros(0), starts[:, :0], ends[:, :0]
    return ends[:, :done].max(axis=0), starts[:, :done], ends[:, :done]


def _iteration_times(durations: Floats, window: range, seed: int) -> IterationTimes:
    each = durations[window.start :]
    return IterationTimes(
        each_ns=tuple(float(v) for v in each),
        warmup_ns=tuple(float(v) for v in durations[: window.start]),
        median=statistics.estimate(each, statistics.rows_median, seed),
        mean=statistics.estimate(each, statistics.rows_mean, seed),
        p99=statistics.estimate(each, statistics.rows_p99, seed),
    )


def _windowed(
    faults: Sequence[FaultOutcome], durations: Floats, ends: Floats, window: range, start: int | None, seed: int
) -> tuple[WindowedTimes, ...]:
    """For each fault that was in effect for a part of the run only. ``ends`` are real ns since T, ``start`` is T on the
    clock of the faults' windows; without it nobody can tell which iterations met one.
    """
    if start is None or not len(window):
        return ()
    lefts = np.concatenate([[0.0], ends[:-1]])
    each = durations[window.start :]
    found = []
    for fault in faults:
        stretches = sorted(fault.stretches, key=lambda stretch: stretch[0])
        begun = np.array([begin - start for begin, _ in stretches], dtype=np.float64)
        ended = np.array([np.inf if end is None else end - start for _, end in stretches], dtype=np.float64)
        if not len(begun) or (len(begun) == 1 and begun[0] <= 0 and ended[0] >= ends[-1]):
            continue
        # of the windows that began before an iteration ended, one must have ended after it began
        reach = np.concatenate([[-np.inf], np.maximum.accumulate(ended)])
        met = (reach[np.searchsorted(begun, ends, side="left")] > lefts)[window.start :]
        inner, outer = each[met], each[~met]
        found.append(
            WindowedTimes(
                fault=fault.name,
                met=tuple(bool(flag) for flag in met),
                inside=statistics.estimate(inner, statistics.rows_median, seed) if len(inner) else None,
                outside=statistics.estimate(outer, statistics.rows_median, seed) if len(outer) else None,
                slowdown=statistics.ratio(list(inner), list(outer), statistics.rows_median, seed)
                if len(inner) and len(outer)
                else None,
            )
        )
    return tuple(found)


def covered(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The union of intervals as a function: ``np.interp(t, times, lengths)`` is how much of (-inf, t] is covered."""
    if not len(starts):
        return np.zeros(1), np.zeros(1)
    order = np.argsort(starts, kind="stable")
    begin, reach = starts[order], np.maximum.accumulate(ends[order])
    fresh = np.ones(len(begin), dtype=bool)
    fresh[1:] = begin[1:] > reach[:-1]
    first = np.flatnonzero(fresh)
    lefts = begin[first].astype(np.float64)
    rights = reach[np.append(first[1:] - 1, len(reach) - 1)].astype(np.float64)
    lengths = np.cumsum(rights - lefts)
    times = np.column_stack([lefts, rights]).ravel()
    values = np.column_stack([lengths - (rights - lefts), lengths]).ravel()
    return times, values


def _operator_codes(operators: JobOperators, rank: int) -> npt.NDArray[np.int8]:
    """By operator number: 1 compute, 2 communication, 0 neither."""
    found = next((own for own in operators.ranks if own.rank == rank), None)
    kinds = [op.kind for op in found.ops] if found else []
    return np.array([1 if k in COMPUTE_KINDS else 2 if k in COMM_KINDS else 0 for k in kinds], dtype=np.int8)


def _shares(
    job: JobRecords, operators: JobOperators, plan: PlanRecord, window: range, starts: Floats, ends: Floats
) -> dict[str, Floats]:
    """Compute, exposed and idle time in model ns, ranks × measured iterations."""
    shape = (plan.world, len(window))
    shares = {name: np.zeros(shape) for name in ("compute", "exposed", "idle")}
    if not len(window):
        return shares
    ops = job.records[job.records["type"] == EventType.OPERATOR]
    for rank in range(plan.world):
        own = ops[ops["rank"] == rank]
        kinds = _kinds_of(own, _operator_codes(operators, rank), rank)
        lefts, rights = starts[rank, window.start :], ends[rank, window.start :]
        busy = own[kinds == 1]
        times, lengths = covered(busy["t1_ns"], busy["t2_ns"])
        compute = np.interp(rights, times, lengths) - np.interp(lefts, times, lengths)
        active = own[kinds != 0]
        times, lengths = covered(active["t1_ns"], active["t2_ns"])
        either = np.interp(rights, times, lengths) - np.interp(lefts, times, lengths)
        shares["compute"][rank] = compute / plan.dilation
        shares["exposed"][rank] = (either - compute) / plan.dilation
        shares["idle"][rank] = (rights - lefts - either) / plan.dilation
    return shares


def _kinds_of(own: npt.NDArray[np.void], codes: npt.NDArray[np.int8], rank: int) -> npt.NDArray[np.int8]:
    if len(own) and int(own["op"].max()) >= len(codes):
        raise GenieError(
            f"rank {rank}: an event names operator {int(own['op'].max())}, operators.json.gz has {len(codes)}: "
            "the event file belongs to another run"
        )
    found: npt.NDArray[np.int8] = codes[own["op"]]
    return found


def _call_records(job: JobRecords, operators: JobOperators, window: range) -> npt.NDArray[np.void]:
    """Operator records of communication in measured iterations; their call id is the operator's own."""
    ops = job.records[
        (job.records["type"] == EventType.OPERATOR)
        & (job.records["iteration"] >= window.start)
        & (job.records["iteration"] < window.stop)
    ]
    keep = np.zeros(len(ops), dtype=bool)
    calls = np.zeros(len(ops), dtype=np.uint32)
    for own in operators.ranks:
        mine = np.flatnonzero(ops["rank"] == own.rank)
        ids = (
            np.array([op.call_id for op in own.ops], dtype=np.int64)[ops["op"][mine]]
            if own.ops
            else np.zeros(0, np.int64)
        )
        keep[mine] = ids >= 0
        calls[mine] = np.where(ids >= 0, ids, 0)
    ops["call_id"] = calls
    found: npt.NDArray[np.void] = ops[keep]
    return found


def _rank_times(
    job: JobRecords,
    plan: PlanRecord,
    calls: npt.NDArray[np.void],
    facts: Mapping[int, object],
    shares: Mapping[str, Floats],
    iteration: IterationTimes | None,
) -> tuple[tuple[RankTimes, ...], int | None]:
    shared = [call_id for call_id, fact in facts.items() if getattr(fact, "kind", "") != SEND_RECV]
    own = calls[np.isin(calls["call_id"], np.asarray(shared, dtype=np.int64))]
    own = own[np.lexsort((own["iteration"], own["call_id"]))]
    late, last, joined = np.zeros(plan.world), np.zeros(plan.world), np.zeros(plan.world)
    if len(own):
        firsts = instances(own)
        sizes = np.diff(np.append(firsts, len(own)))
        behind = own["t1_ns"] - np.repeat(np.minimum.reduceat(own["t1_ns"], firsts), sizes)
        most = np.repeat(np.maximum.reduceat(behind, firsts), sizes)
        np.add.at(late, own["rank"], behind / plan.dilation)
        # where all start at once nobody is last
        np.add.at(last, own["rank"], (behind == most) & (most > 0))
        np.add.at(joined, own["rank"], 1)
    rows = []
    for rank in range(plan.world):
        rows.append(
            RankTimes(
                rank=rank,
                host=plan.host(rank),
                compute_ns=_median0(shares["compute"][rank]),
                exposed_ns=_median0(shares["exposed"][rank]),
                idle_ns=_median0(shares["idle"][rank]),
                lateness_ns=float(late[rank] / joined[rank]) if joined[rank] else 0.0,
                last_ratio=float(last[rank] / joined[rank]) if joined[rank] else 0.0,
                cpu_ns=job.cpu_ns.get(rank, 0),
                bytes_sent=job.bytes_sent.get(rank, 0),
            )
        )
    straggler = None
    if iteration is not None and len(own):
        worst = int(np.argmax(late))
        cost = late[worst] / len(iteration.each_ns)
        if rows[worst].last_ratio >= STRAGGLER_LAST_RATIO and cost >= STRAGGLER_COST_RATIO * iteration.median.value:
            straggler = worst
    return tuple(rows), straggler


def _median0(values: Floats) -> float:
    return float(np.median(values)) if len(values) else 0.0


def _messages(job: JobRecords, kind: int, window: range) -> npt.NDArray[np.void]:
    records = job.records
    inside = (records["iteration"] >= window.start) & (records["iteration"] < window.stop)
    found: npt.NDArray[np.void] = records[(records["type"] == kind) & inside]
    return found


def _real_window(job: JobRecords, ends: Floats) -> tuple[int | None, int | None]:
    """T and the end of the last completed iteration, on the one clock; None where there is not one clock."""
    if not job.one_clock or not job.start_mono_ns:
        return None, None
    start = min(job.start_mono_ns.values())
    return start, start + int(ends[-1]) if len(ends) else None


def _cpu_busy(host: HostRecord | None, start: int | None, end: int | None) -> float | None:
    """Mean over the samples between T and the end; each sample stands for the time since the one before it."""
    if host is None or not host.samples:
        return None
    times = np.array([t for t, _ in host.samples], dtype=np.int64)
    busy = np.array([ratio for _, ratio in host.samples], dtype=np.float64)
    lefts = np.concatenate([[start if start is not None else times[0]], times[:-1]]).astype(np.int64)
    lower = np.maximum(lefts, start) if start is not None else lefts
    upper = np.minimum(times, end) if end is not None else times
    weights = np.maximum(0, upper - lower)
    return float((busy * weights).sum() / weights.sum()) if weights.sum() else float(busy.mean())


def _busiest_host(counters: CountersRecord) -> float | None:
    """Busy share of the CPUs of the busiest of several machines, between the two readings of their counters."""
    shares = []
    for host, before in counters.before.items():
        after = (counters.after or {}).get(host, {})
        if "cpu_ticks" in before and "cpu_ticks" in after and after["cpu_ticks"] > before["cpu_ticks"]:
            busy = after["cpu_busy_ticks"] - before["cpu_busy_ticks"]
            shares.append(busy / (after["cpu_ticks"] - before["cpu_ticks"]))
    return max(shares, default=None)


def _fabric(
    run: RunDir, plan: PlanRecord, start: int | None, end: int | None, flags: list[str]
) -> tuple[tuple[PortTotals, ...], FabricTotals]:
    counters = run.counters()
    before, after = counters.before, counters.after
    samples = run.ports()
    if samples is not None and samples.dropped:
        flags.append(f"{samples.dropped} queue samples found no room")

    def rise(where: str, counter: str) -> int | None:
        a, b = before.get(where, {}).get(counter), (after or {}).get(where, {}).get(counter)
        if a is None or b is None or NOT_KNOWN in (a, b):
            return None
        if b < a:
            flags.append(f"counter {counter} of {where} went down during the run ({a} to {b}): not used")
            return None
        return b - a

    def total(counter: str) -> int | None:
        found = [delta for where in before if (delta := rise(where, counter)) is not None]
        return sum(found) if found else None

    ports = []
    for number, name in enumerate(plan.ports):
        p50, p99, largest = _queue(samples, number, start, end)
        ports.append(
            PortTotals(name, rise(name, "tx_bytes"), rise(name, "drops"), rise(name, "ce_marked"), p50, p99, largest)
        )
    deepest = max(
        (port for port in ports if port.queue_p99_bytes is not None), key=lambda p: p.queue_p99_bytes or 0, default=None
    )
    # what the whole machine's softnet dropped is the same number in every namespace: the most, not the sum
    softnet = [delta for where in before if (delta := rise(where, "softnet_dropped")) is not None]
    return tuple(ports), FabricTotals(
        retransmits=total("TcpRetransSegs"),
        segments_sent=total("TcpOutSegs"),
        ce_marked=total("ce_marked"),
        ce_received=total("IpExtInCEPkts"),
        drops=total("drops"),
        softnet_dropped=max(softnet) if softnet else None,
        queue_p99_bytes=deepest.queue_p99_bytes if deepest else None,
        queue_p99_port=deepest.port if deepest else "",
    )


def _queue(
    samples: PortSamples | None, port: int, start: int | None, end: int | None
) -> tuple[float | None, float | None, float | None]:
    if samples is None:
        return None, None, None
    own = samples.of(port)
    if start is not None:
        own = own[own["mono_ns"] >= start]
    if end is not None:
        own = own[own["mono_ns"] <= end]
    if not len(own):
        return None, None, None
    depth = own["backlog_bytes"].astype(np.float64)
    return statistics.percentile(depth, 0.5), statistics.percentile(depth, 0.99), float(depth.max())
