"""Everything together: a run directory to a `Why`, its critical path, shares, stragglers, scores and first suspect.

Called by ``genie why``, by the end of a run and by reports; `link_scores` is what the bisect orders its suspects by.
Reads the run directory only, writes nothing, and costs a fraction of a second (docs/why.md says how much).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from genie.errors import GenieError
from genie.results.rundir import RunDir
from genie.why.hosts import score_hosts
from genie.why.loads import measure_loads
from genie.why.losses import find_losses
from genie.why.network import Network, read_network
from genie.why.path import Piece, walk
from genie.why.recording import Recording
from genie.why.records import CAUSES, HostScore, IterationBlame, LinkScore, PairRow, Segment, Why
from genie.why.scores import measure_drains, score_links, unexplained_by_port
from genie.why.shares import Queues, Shares, pair_name, ranked, share_out
from genie.why.stragglers import find_stragglers
from genie.why.suspect import find_suspect, verdict
from genie.why.transit import Transit, measure_transit


def explain(run: RunDir) -> Why:
    """Why the measured iterations of ``run`` took as long as they did.

    Raises GenieError where no iteration was measured, hosts' clocks cannot be compared, or files are damaged.
    """
    recording = Recording.read(run)
    _require(recording)
    sent_bytes = recording.all_sent_bytes
    counters = run.counters()
    network = read_network(run, recording.plan, counters, recording.flows, sent_bytes)
    transit = measure_transit(recording.messages, network, recording.plan, counters)
    window = int(recording.plan.collective.get("window_messages", 0) or 0)
    paths = walk(recording, transit, window, list(recording.window))
    loads = measure_loads(recording, transit, network)
    samples = run.ports()
    drains = measure_drains(samples, recording, network)
    taken = unexplained_by_port(loads, recording, network, drains)
    shares = share_out(paths, recording, network, Queues(samples, recording, network), taken)
    losses = find_losses(network, recording.plan, counters, sent_bytes)
    links = score_links(loads, taken, recording, network, drains, losses, counters, shares.waiting)
    hosts = score_hosts(recording)
    blames = _blames(recording, paths)
    whole = float(np.mean([blame.duration_ns for blame in blames]))
    suspect = find_suspect(links, hosts, shares, whole)
    middle = sorted(range(len(blames)), key=lambda k: blames[k].duration_ns)[(len(blames) - 1) // 2]
    return Why(
        verdict=verdict(suspect, shares.causes, whole),
        suspect=suspect,
        iteration_ns=whole,
        iterations=blames,
        causes=ranked(shares.causes, whole),
        operators=ranked(shares.operators, whole),
        comms=ranked(shares.comms, whole),
        links=ranked(shares.links, whole),
        ranks=ranked(shares.ranks, whole),
        pairs=_pairs(recording, transit, network, shares),
        path_iteration=blames[middle].iteration,
        path=_segments(recording, network, paths[middle]),
        stragglers=find_stragglers(recording),
        link_scores=links,
        host_scores=hosts,
        routes=network.facts,
        recovery=transit.recovery,
        notes=_notes(recording, transit, run),
    )


def link_scores(run: RunDir) -> dict[str, LinkScore]:
    """Score of every port of a run's network by its name, the most suspect first. Raises GenieError as `explain`."""
    return {score.port: score for score in explain(run).link_scores}


def host_scores(run: RunDir) -> dict[str, HostScore]:
    """Score of the compute of every host that has ranks, the most suspect first. Raises GenieError as `explain`."""
    recording = Recording.read(run)
    _require(recording)
    return {score.host: score for score in score_hosts(recording)}


def _require(recording: Recording) -> None:
    where = "nothing can be explained"
    if not len(recording.window):
        done = len(recording.ends)
        found = f"all {done} completed iterations are warm-up" if done else "no iteration was completed by all ranks"
        raise GenieError(f"{where}: {found}")
    if not recording.job.one_clock:
        raise GenieError(
            f"{where}: the hosts have clocks of their own and the run has no clocks.json that compares them",
            hint="it is written when a run ends; this one ended before",
        )
    if recording.job.missing:
        ranks = ", ".join(map(str, recording.job.missing))
        raise GenieError(f"{where}: there are no events of rank {ranks}")


def _blames(recording: Recording, paths: Sequence[Sequence[Piece]]) -> tuple[IterationBlame, ...]:
    scale = 1 / recording.plan.dilation
    found = []
    for iteration, path in zip(recording.window, paths, strict=True):
        end = int(recording.ends[iteration])
        start = int(recording.ends[iteration - 1]) if iteration else 0
        causes = dict.fromkeys(CAUSES, 0.0)
        for piece in path:
            causes[piece.cause] += (piece.end - piece.start) * scale
        last = int(np.argmax(recording.rank_ends[:, iteration]))
        found.append(
            IterationBlame(
                iteration=iteration,
                start_ns=start * scale,
                duration_ns=(end - start) * scale,
                last_rank=last,
                causes={cause: ns for cause, ns in causes.items() if ns},
            )
        )
    return tuple(found)


def _segments(recording: Recording, network: Network, path: Sequence[Piece]) -> tuple[Segment, ...]:
    """The path in the order of time, neighbours of one kind joined."""
    scale = 1 / recording.plan.dilation
    found: list[Segment] = []
    for piece in reversed(path):
        op = recording.operator(piece.rank, piece.op) if piece.op >= 0 else None
        message = piece.message
        segment = Segment(
            start_ns=piece.start * scale,
            end_ns=piece.end * scale,
            cause=piece.cause,
            rank=piece.rank,
            peer=int(recording.messages.sender[message]) if message >= 0 else -1,
            operator=(op.name or f"node {op.trace_id}") if op else "",
            comm=op.comm if op and op.call_id >= 0 else None,
            route=network.route(int(recording.messages.flow[message])) if message >= 0 else (),
        )
        same = found and _kind(found[-1]) == _kind(segment)
        if same:
            segment = Segment(found[-1].start_ns, segment.end_ns, *_kind(segment))
            found.pop()
        found.append(segment)
    return tuple(found)


def _kind(segment: Segment) -> tuple[str, int, int, str, str | None, tuple[str, ...]]:
    return (segment.cause, segment.rank, segment.peer, segment.operator, segment.comm, segment.route)


def _pairs(recording: Recording, transit: Transit, network: Network, shares: Shares) -> tuple[PairRow, ...]:
    messages = recording.messages
    measured = np.flatnonzero(messages.iteration >= recording.window.start)
    if not len(measured):
        return ()
    world = recording.plan.world
    pair = messages.sender[measured] * world + messages.receiver[measured]
    order = np.argsort(pair, kind="stable")
    rows, pair = measured[order], pair[order]
    firsts = np.flatnonzero(np.diff(pair, prepend=-1))
    scale = 1 / recording.plan.dilation
    taken = (messages.done[rows] - transit.begin[rows]) * scale
    least = (transit.serialization[rows] + transit.latency[rows]) * scale
    counts = np.diff(np.append(firsts, len(rows)))
    sums, least_sums = np.add.reduceat(taken, firsts), np.add.reduceat(least, firsts)
    sizes, worst = np.add.reduceat(messages.bytes[rows], firsts), np.maximum.reduceat(taken, firsts)
    known = ~np.isnan(network.slowest[messages.flow[rows[firsts]]])
    found = []
    for k, first in enumerate(firsts.tolist()):
        found.append(
            PairRow(
                sender=int(messages.sender[rows[first]]),
                receiver=int(messages.receiver[rows[first]]),
                messages=int(counts[k]),
                bytes=int(sizes[k]),
                path_ns=shares.pairs.get(pair_name(recording, int(rows[first])), 0.0),
                mean_ns=float(sums[k] / counts[k]),
                worst_ns=float(worst[k]),
                slowdown=float(sums[k] / least_sums[k]) if known[k] and least_sums[k] > 0 else None,
            )
        )
    return tuple(sorted(found, key=lambda row: (-row.path_ns, row.sender, row.receiver)))


def _notes(recording: Recording, transit: Transit, run: RunDir) -> tuple[str, ...]:
    notes = []
    if not len(recording.messages):
        notes.append(
            "messages were not recorded (record.messages=false): a call counts as queueing from its last start on, "
            "and links cannot be scored"
        )
    elif transit.text:
        notes.append(transit.text)
    if recording.unpaired:
        notes.append(f"{recording.unpaired} message records have no other half and are left out")
    if recording.job.dropped:
        notes.append(f"{recording.job.dropped} events found no room: the path may have gaps, which count as host")
    if any(op.planned_ns < 0 for own in recording.operators.ranks for op in own.ops):
        notes.append("the run does not record planned compute: a host is compared with the median of its peers")
    clocks = None if recording.plan.one_clock else run.clocks()
    if clocks is not None:
        notes.append(f"hosts' clocks were compared to {clocks.error_ns / 1000:.0f} us: shorter times say nothing")
    return tuple(notes)
