"""The measuring of a preflight, by GENIE's engine or by perftest, and what there is of it however it ended.

`genie.preflight.command` chooses one with `choose` once the fabric is built, lets it `go`, and asks for its `result` in
any case. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from genie import experiment
from genie.errors import EnvironmentUnfit, GenieError
from genie.fabric.base import Fabric
from genie.preflight import perftest
from genie.preflight.hardware import counted
from genie.preflight.measure import Samples, matrices_of, measure
from genie.preflight.perftest import Perftest, Seat
from genie.preflight.prepared import Prepared
from genie.preflight.progress import PreflightNarrator
from genie.preflight.record import RUN_FOLDER, Matrices
from genie.rdma.rails import Rail
from genie.results.compare import load_judgement
from genie.results.rundir import RunDir
from genie.workload.generators.pairs import Pair


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured. ``failed``: (rail, from and to, why) of directions that could not be. ``doubt`` is why none
    of it may be believed, ``busy`` why what is slow may not be the network's fault, ``untold`` what has no value though
    the network carried it ("" where there is no reason).
    """

    rails: tuple[Matrices, ...]
    failed: tuple[tuple[str, Pair, str], ...] = ()
    notes: tuple[str, ...] = ()
    doubt: str = ""
    busy: str = ""
    untold: str = ""


class Measuring(Protocol):
    """One way to measure. ``tool`` is its name in the record."""

    tool: str

    def go(self, session: experiment.Session, say: PreflightNarrator) -> None:
        """Measure all of it. Raises GenieError."""
        ...

    def result(self) -> Measured:
        """What there is until now."""
        ...


def choose(prepared: Prepared, folder: Path, fabric: Fabric, engine: EngineMeasuring) -> Measuring:
    """The tool that ``preflight.tool`` means here: ``engine``, or perftest where it can be.

    Raises EnvironmentUnfit where perftest is asked for and a host lacks it.
    """
    wanted, config = prepared.settings.tool, prepared.plan.config
    if wanted == "engine" or config.transport.name != "verbs":
        return engine
    if config.fault:
        engine.notes.append("perftest was not used: faults are put in place by GENIE's engine only")
        return engine
    without = perftest.missing(fabric, prepared.schedule.hosts)
    if not without:
        return PerftestMeasuring(prepared, folder)
    shown = f"{', '.join(without[:8])}{' and others' if len(without) > 8 else ''}"
    if wanted == "perftest":
        raise EnvironmentUnfit(
            f"no perftest ({perftest.BANDWIDTH}, {perftest.LATENCY}) on {shown}",
            hint="apt-get install perftest there, or preflight.tool=engine",
        )
    engine.notes.append(f"measured with GENIE's engine: {shown} lacks perftest")
    return engine


class EngineMeasuring:
    """A run of ``workload=pairs`` in the preflight's folder."""

    tool = "engine"

    def __init__(self, prepared: Prepared, folder: Path, reproduce: str) -> None:
        self._prepared = prepared
        self._folder = folder
        self._reproduce = reproduce
        self.notes: list[str] = []

    @property
    def _path(self) -> Path:
        return self._folder / RUN_FOLDER

    def go(self, session: experiment.Session, say: PreflightNarrator) -> None:
        """One run on the fabric of the session."""
        plan = self._prepared.plan
        inner = replace(plan, config=replace(plan.config, run_dir=str(self._path)))
        with counted(session.fabric, self._ports(session.fabric), self.notes):
            experiment.run_on(session, inner, say, reproduce=self._reproduce, parent=self._folder.name, baseline="none")

    def _ports(self, fabric: Fabric) -> list[tuple[str, Rail]]:
        """The RDMA ports that ranks will use; none over another transport, or where they cannot be told."""
        if self._prepared.plan.config.transport.name != "verbs":
            return []
        try:
            seats = [seat for rail in seats_of(self._prepared, fabric) for seat in rail.values()]
        except GenieError as error:
            self.notes.append(f"hardware counters were not read: {error.message}")
            return []
        return [(seat.host, seat.rail) for seat in seats]

    def result(self) -> Measured:
        """From the run directory, if there is one."""
        hosts, rails, notes = len(self._prepared.schedule.hosts), self._prepared.rails, tuple(self.notes)
        if not (self._path / "operators.json.gz").is_file():
            return Measured(tuple(matrices_of(rail, hosts, Samples()) for rail in rails), notes=notes)
        run = RunDir.open(self._path)
        found = measure(run, hosts, rails, dilation=self._prepared.plan.time_dilation)
        doubt, busy = _doubts(run, self._prepared.plan.config.judge.cpu_busy_ratio)
        return Measured(found, notes=notes, doubt=doubt, busy=busy)


def _doubts(run: RunDir, most_busy: float) -> tuple[str, str]:
    """Why the run may not be believed, and why what is slow in it may be the fault of its CPUs."""
    judgement = load_judgement(run)
    if judgement is None or judgement.verdict != "invalid":
        return "", ""
    metrics = judgement.metrics
    load = metrics.cpu_busy_ratio
    if load is None or load <= most_busy or metrics.events_dropped or metrics.iteration is None:
        return judgement.why, ""
    absent = [f"{fault.name}: {why}" for fault in run.faults() if (why := fault.why_not_in_effect())]
    return "; ".join(absent), judgement.why


class PerftestMeasuring:
    """perftest on the hosts, rail by rail."""

    tool = "perftest"

    def __init__(self, prepared: Prepared, folder: Path) -> None:
        self._prepared = prepared
        self._folder = folder
        self._tests: dict[str, Perftest] = {}
        self.notes: list[str] = []

    def go(self, session: experiment.Session, say: PreflightNarrator) -> None:
        """Latency and bandwidth of each rail, repeat by repeat, so that an interruption leaves something of all."""
        prepared, settings, found = self._prepared, self._prepared.settings, self._prepared.schedule
        config = prepared.plan.config
        logs = self._folder / "log"
        logs.mkdir(exist_ok=True)
        say.phase("looking at the hosts' RDMA devices")
        ports = []
        for rail, seats in zip(prepared.rails, seats_of(prepared, session.fabric), strict=True):
            ports += [(seat.host, seat.rail) for seat in seats.values()]
            self._tests[rail] = Perftest(
                session.fabric,
                logs,
                seats,
                queue_pairs=config.transport.qps_per_connection,
                options=_options(config.transport),
            )
        say.phase("measuring with perftest")
        steps = (len(found.latency) * (settings.pings > 0) + 2 * len(found.bandwidth)) * settings.repeats
        say.begin(steps * len(prepared.rails))
        with counted(session.fabric, ports, self.notes):
            for _ in range(settings.repeats):
                for test in self._tests.values():
                    self._once(test, say)

    def _once(self, test: Perftest, say: PreflightNarrator) -> None:
        settings, found = self._prepared.settings, self._prepared.schedule
        if settings.pings:
            for pairs in found.latency:
                test.latency(pairs, size=settings.ping_bytes, count=settings.pings)
                say.step()
        for pairs in found.bandwidth:
            for ways in (pairs, [(b, a) for a, b in pairs]):
                self._load(test, ways)
                say.step()

    def _load(self, test: Perftest, ways: Sequence[Pair]) -> None:
        """One direction of a wave; its pairs get the same number of messages, that of the fastest."""
        rates = [self._prepared.schedule.ways[min(way), max(way)].rate_bps for way in ways]
        size = max(self._prepared.sizes[rate] for rate in rates)
        message = self._prepared.settings.message_bytes
        takes_s = size * 8 / min(rates) if all(rates) else perftest.PATIENCE_S
        test.bandwidth(ways, size=message, count=size // message, takes_s=takes_s)

    def result(self) -> Measured:
        """What the tests have until now."""
        hosts = len(self._prepared.schedule.hosts)
        outcomes = {rail: test.outcome for rail, test in self._tests.items()}
        rails = tuple(
            matrices_of(rail, hosts, outcomes[rail].samples if rail in outcomes else Samples())
            for rail in self._prepared.rails
        )
        failed = [(rail, way, why) for rail, outcome in outcomes.items() for way, why in outcome.failed.items()]
        untold = [why for outcome in outcomes.values() for why in outcome.untold()]
        lack = ""
        if untold:
            lack = f"{len(untold)} measurements have no time: {untold[0]} (preflight.tool=engine has another clock)"
        return Measured(rails, tuple(failed), tuple(self.notes), untold=lack)


def seats_of(prepared: Prepared, fabric: Fabric) -> list[dict[int, Seat]]:
    """Each rail's port on every host, by place of the host. Raises GenieError naming the host that has none."""
    hosts, gid_index = prepared.schedule.hosts, prepared.plan.config.transport.gid_index
    found = []
    for number in range(len(prepared.rails)):
        rails = {host: prepared.seats[host][number] if prepared.seats else None for host in hosts}
        with ThreadPoolExecutor(min(16, len(hosts))) as pool:
            asked = [pool.submit(perftest.seat, fabric, host, rails[host], gid_index) for host in hosts]
            found.append({place: answer.result() for place, answer in enumerate(asked)})
    return found


def _options(transport: Any) -> list[str]:
    """What perftest must be told for its queue pairs to be those of the transport."""
    options = ["-u", str(transport.timeout), "-S", str(transport.service_level)]
    if transport.pkey_index:
        options += ["--pkey_index", str(transport.pkey_index)]
    if transport.traffic_class:
        options += ["--tclass", str(transport.traffic_class)]
    if transport.mtu != "auto":
        options += ["-m", transport.mtu]
    return options
