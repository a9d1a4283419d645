"""A probe as a run, and the answers that its events hold.

A network probe is ``workload=pairs`` with one pairing of the hosts, cut into waves; a compute probe is a step of data
parallel training with next to no bytes. `config_of` makes the configuration (anyone can run it again), `answers_of`
reads the run directory: what a flow reached against what its path allows, what its sender's kernel sent again, how long
compute took against the others. `genie.bisect.command` calls both; judging is the search's.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from genie.bisect.belief import Answer, Question
from genie.bisect.config import BisectConfig
from genie.bisect.rounds import Ground, Pair, waves
from genie.bisect.search import Probe
from genie.engine.wire import EventType
from genie.preflight.measure import loads_to
from genie.preflight.schedule import LEAST_MESSAGES
from genie.results.rundir import RunDir
from genie.schema import Choice, ExperimentConfig
from genie.workload.config import DpConfig, PairsConfig
from genie.workload.generators.pairs import round_text

UNSHAPED_BYTES = 16 << 20
"""Each way, where no rate says how much ``time`` is."""

COMPUTE_ITERATIONS = 2
COMPUTE_SCALE = 400.0
"""Makes the compute of a step a quarter of a second: what a busy machine wakes a rank too late is little of that."""

_TCP_HEADERS = 20 + 32
_ETHERNET_HEADER = 14


@dataclass(frozen=True, slots=True)
class Expected:
    """What a healthy flow reaches in bit/s of payload: of single pairs (a preflight's baseline), else by its rate.

    ``source`` says where that is from, for people.
    """

    mtu: int
    pairs: Mapping[Pair, float]
    source: str

    def bps(self, ends: Pair, rate: int) -> float:
        """0 where nothing is known."""
        if ends in self.pairs:
            return self.pairs[ends]
        payload = self.mtu - _TCP_HEADERS
        return rate * payload / (self.mtu + _ETHERNET_HEADER) if payload > 0 else float(rate)


def config_of(config: ExperimentConfig, settings: BisectConfig, ground: Ground, probe: Probe) -> ExperimentConfig:
    """The run that is this probe; its faults are what the user gave, its folder is the caller's to choose."""
    ranks = len(ground.hosts)
    if probe.kind == "compute":
        repeats = max(COMPUTE_ITERATIONS, probe.repeats)
        workload: PairsConfig | DpConfig = DpConfig(
            ranks=ranks, layers=1, hidden=32, ffn=64, sequence=64, iterations=repeats, compute_scale=COMPUTE_SCALE
        )
    else:
        rounds = [
            round_text(wave, [load_bytes(ground, settings, pair) for pair in wave])
            for wave in waves(ground, probe.pairs)
        ]
        workload = PairsConfig(ranks=ranks, iterations=probe.repeats, pings=0, bandwidth_rounds=tuple(rounds))
    return replace(
        config,
        name=f"probe{probe.number}-{probe.kind}",
        workload=workload,
        warmup=0,
        baseline="none",
        expect=None,
        topology=replace(config.topology, placement="block"),
        collective=replace(config.collective, chunk_bytes=settings.message_bytes, channels=1),
        record=replace(config.record, messages=True),
        report=replace(config.report, timeline=False),
        choices={**config.choices, "workload": Choice(workload.name, workload.name)},
    )


def load_bytes(ground: Ground, settings: BisectConfig, pair: Pair) -> int:
    """Each way of a pair: what ``bisect.time`` at its rate carries, in whole messages, and enough of them."""
    rate = min(ground.flow_bps[pair], ground.flow_bps[pair[::-1]])
    wanted = rate * settings.time_ns // 8_000_000_000 if rate else UNSHAPED_BYTES
    return settings.message_bytes * max(LEAST_MESSAGES, -(-wanted // settings.message_bytes))


def answers_of(
    run: RunDir, probe: Probe, ground: Ground, settings: BisectConfig, expected: Expected, *, dilation: float
) -> list[Answer]:
    """One answer for each question and repeat that the run measured."""
    if probe.kind == "compute":
        return _compute_answers(run, ground, probe.questions, settings, dilation)
    rates = flow_rates(run, dilation)
    typical = _typical(rates, ground)
    again = _sent_again(run, ground)
    made = []
    for a, b in (ends for pair in probe.pairs for ends in (pair, pair[::-1])):
        question = ground.question(a, b)
        reference = expected.bps((a, b), ground.flow_bps[a, b]) or typical
        losses = again.get(a, 0)
        for number, rate in enumerate(rates.get((a, b), ())):
            slow = rate < reference * (1 - settings.margin_ratio)
            lossy = losses >= settings.losses and number < losses
            text = f"{rate / reference:.0%} of what its path allows"
            if losses:
                text += f", {losses} segments sent again"
            made.append(Answer(question, slow or lossy, text))
    return made


def flow_rates(run: RunDir, dilation: float) -> dict[Pair, tuple[float, ...]]:
    """(from, to) → payload bit/s in model time, by the receiver's clock, of each repeat that arrived whole."""
    found: dict[Pair, list[float]] = {}
    for rank in run.operators.ranks:
        events = run.events(rank.rank)
        if events is None:
            continue
        for source, rate in loads_to(rank, events.of(EventType.RECEIVED), dilation):
            found.setdefault((source, rank.rank), []).append(rate)
    return {ends: tuple(values) for ends, values in found.items()}


def _typical(rates: Mapping[Pair, Sequence[float]], ground: Ground) -> float:
    """The median of all flows: what is expected where no path has a rate."""
    return statistics.median([rate for values in rates.values() for rate in values] or [1.0])


def _sent_again(run: RunDir, ground: Ground) -> dict[int, int]:
    """Place of a host → segments that its kernel sent again during the run, where it was counted."""
    counters = run.counters()
    if counters is None or counters.after is None:
        return {}
    found = {}
    for place, host in enumerate(ground.hosts):
        before, after = counters.before.get(host, {}), counters.after.get(host, {})
        if "TcpRetransSegs" in before and "TcpRetransSegs" in after:
            found[place] = after["TcpRetransSegs"] - before["TcpRetransSegs"]
    return found


def stretches(run: RunDir, dilation: float) -> dict[int, tuple[float, ...]]:
    """Rank → of each iteration, how long its compute took over how long it was planned."""
    found = {}
    for rank in run.operators.ranks:
        events = run.events(rank.rank)
        if events is None:
            continue
        operators = events.of(EventType.OPERATOR)
        planned = {n: op.planned_ns for n, op in enumerate(rank.ops) if op.kind == "compute" and op.planned_ns > 0}
        mine = []
        for iteration in np.unique(operators["iteration"]):
            once = operators[operators["iteration"] == iteration]
            times = {int(r["op"]): int(r["t2_ns"] - r["t1_ns"]) for r in once if int(r["op"]) in planned}
            if times.keys() == planned.keys() and planned:
                mine.append(sum(times.values()) / sum(planned.values()) / dilation)
        found[rank.rank] = tuple(mine)
    return found


def _compute_answers(
    run: RunDir, ground: Ground, questions: Sequence[Question], settings: BisectConfig, dilation: float
) -> list[Answer]:
    found = stretches(run, dilation)
    every = [stretch for own in found.values() for stretch in own]
    if not every:
        return []
    typical = statistics.median(every)
    made = []
    for place, question in enumerate(questions):
        for stretch in found.get(place, ()):
            bad = stretch > typical * (1 + settings.compute_margin_ratio)
            made.append(Answer(question, bad, f"compute takes {stretch / typical:.2f} of what others' does"))
    return made
