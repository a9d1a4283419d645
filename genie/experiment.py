"""The story of one run, top to bottom: plan, build, break, race, mend, measure, say.

`plan` decides everything before the network is touched (`genie.plan`); `run` acts on it through one fabric and
writes a run directory, the source of truth; what people see is made from that. The command line calls both.
A `Session` is the fabric of one run, or of several (`genie.aba`). Backends, collectives, fault commands and statistics
live behind the names imported here.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from genie import schema
from genie.engine.encode import LISTEN_PORT, Endpoint, encode
from genie.errors import (
    EXIT_INVALID,
    EXIT_OK,
    EXIT_VERDICT_FAILED,
    FaultRefused,
    GenieError,
    RankFailed,
    RunAborted,
)
from genie.fabric import open_fabric
from genie.fabric.base import Fabric
from genie.faults.audit import AuditLog
from genie.faults.operation import FILE_NAME as OPERATION_FILE
from genie.faults.operation import remember_run
from genie.faults.revert import settle_first
from genie.faults.safety import Guard, blast_radius
from genie.faults.session import FaultSession
from genie.launch.agents import Agents, Assignment, Race, ending
from genie.launch.blame import explain
from genie.launch.protocol import FailureCode, Progress
from genie.plan import Plan, make_plan, plan_record
from genie.report import sweep, terminal
from genie.report.progress import Narrator
from genie.results.compare import Judgement, judge_and_store
from genie.results.load import LoadWatch
from genie.results.records import fault_outcomes, job_operators
from genie.results.rundir import RunDir
from genie.units import parse_ns

if TYPE_CHECKING:
    from genie.faults.evidence import EvidenceRecord
    from genie.sweep import SweepResult
    from genie.sweep.cells import SweepPlan

DEFAULT_SAMPLE_INTERVAL_NS = 10_000_000
SAMPLER_PATIENCE_S = 5.0
SILENCE_MARGIN_S = 2.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended: its directory, the judgement (None if it was never measured), and the exit code.

    ``arms`` are the run directories of ``protocol=aba``, whose ``path`` is the folder that holds them.
    """

    path: Path
    judgement: Judgement | None
    exit_code: int
    config: schema.ExperimentConfig
    arms: tuple[RunDir, ...] = ()

    @property
    def runs(self) -> tuple[RunDir, ...]:
        """Every run directory it made."""
        return self.arms or (RunDir.open(self.path),)


def plan(config: schema.ExperimentConfig) -> Plan:
    """Decide one experiment (`genie.plan.make_plan`). A refusal for safety is a line of the audit log."""
    try:
        return make_plan(config)
    except FaultRefused as error:
        if not config.dry_run:
            audit = AuditLog(Path(config.out))
            for name, fault in config.fault.items():
                audit.write("refused", name, fault.selectors, result=error.message)
        raise


def run(plan: Plan, *, reproduce: str = "", parent: str = "") -> RunResult:
    """Run a plan to its verdict. Prints progress, verdict, table, and where things are.

    Raises the GenieError that ended it, after what was measured has been kept and shown; the fabric and
    every fault are gone by then.
    """
    try:
        if plan.config.protocol == "aba":
            from genie import aba

            return aba.run(plan, reproduce=reproduce, parent=parent)
        return _run(plan, reproduce, parent)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _cannot_write(plan, error) from error


class Session:
    """A fabric that is built once, for one run or for several in a row. A context manager; leaving it destroys it."""

    def __init__(self, plan: Plan, folder: Path, say: Narrator) -> None:
        """``folder`` takes what the fabric itself has to say (``fabric.log``)."""
        self._say = say
        self._plan = plan
        self._folder = folder
        self.fabric = open_fabric(plan.config.fabric, plan.topology, folder, programs=(plan.config.transport.agent,))

    def __enter__(self) -> Session:
        nodes = [node.name for node in self._plan.topology.nodes]
        settle_first(Path(self._plan.config.out), self.fabric, nodes, self._say.note)
        self._say.phase("building the fabric")
        try:
            self.fabric.build()
        except BaseException:
            self.fabric.destroy()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.fabric.destroy()
        if getattr(self.fabric, "unclean", ()):
            self._tidy()

    def _tidy(self) -> None:
        """Hosts were lost in between: what our faults keep there is of no use where they are undone."""
        from genie.faults.operate import tidy

        for path in sorted(self._folder.rglob(OPERATION_FILE)):
            try:
                tidy(path.parent, self._say.note)
            except GenieError as error:
                self._say.note(error.message)


def _run(plan: Plan, reproduce: str, parent: str) -> RunResult:
    directory = _create(plan, reproduce, parent)
    say = Narrator(plan.iterations, len(plan.programs))
    try:
        with _recorded(directory), say, Session(plan, directory.path, say) as session:
            _race(plan, session.fabric, directory, say)
    except GenieError as error:
        _conclude_aborted(plan, directory, error)
        raise
    except KeyboardInterrupt:
        if (directory.path / "counters.json").is_file():
            shown = terminal.shown_path(directory.path)
            print(f"what was measured until then: genie report {shown}", file=sys.stderr)
        raise
    judgement = _conclude(plan, directory)
    return RunResult(directory.path, judgement, _exit_code(judgement, plan.config.expect), plan.config)


def run_on(
    session: Session, plan: Plan, say: Narrator, *, reproduce: str, parent: str, baseline: str = "auto"
) -> RunDir:
    """One run on a fabric that is there already, measured and judged but not shown: an arm of a larger experiment.

    Raises the GenieError that ended it, after what there is of it was measured.
    """
    directory = _create(plan, reproduce, parent)
    try:
        with _recorded(directory):
            _race(plan, session.fabric, directory, say)
    except GenieError:
        with contextlib.suppress(GenieError, OSError):  # that the arm failed is the news, not that it left nothing
            _measure(plan, directory, baseline)
        raise
    _measure(plan, directory, baseline)
    return directory


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """What a sweep has to say at its end. ``exit_code`` is the worst of its runs that were measured, by the verdicts
    that they have now: some are compared only when all have ended.
    """

    text: str
    exit_code: int


def finish_sweep(
    results: Sequence[SweepResult], directory: Path, plan: SweepPlan, before: Mapping[int, Path]
) -> SweepSummary:
    """The comparison of a sweep's runs, kept in its directory and logged as parent and nested MLflow runs.

    ``before`` are slots that an earlier part of the sweep has finished.
    """
    from genie import track
    from genie.results.sweep import judge_again, responses, runs_below, split_damaged, verdict_of
    from genie.sweep.effects import effects, heat_map

    made = {result.number: result.run.path for result in results if result.run is not None}
    cells = {slot.number: plan.cell_of(slot) for slot in plan.slots}
    found, damaged = split_damaged(dict(sorted({**before, **made}.items())))
    runs = [run for path in found.values() for run in runs_below(path)]
    failed = [result for result in results if result.run is None]
    count = len(results) + len(before)
    lines = [f"sweep: {count} run{'s' * (count != 1)}, {len(failed) + len(damaged)} of them without a result"]
    lines += [f"  run {r.number + 1}, {cells[r.number].words}: {r.error}" for r in failed if r.error]
    lines += [f"  {problem}" for problem in damaged]
    codes = [EXIT_INVALID] * len(damaged)
    if runs:
        config = schema.parse_config(runs[0].config)
        judge_again(found.values(), Path(config.out), config.judge)
        codes += [_exit_code_of(*verdict_of(path)) for path in found.values()]
        factors = {path.absolute(): cells[number].factors for number, path in found.items() if plan.factors}
        lines.append(sweep.render_sweep(runs, factors, width=Console().width))
        measured = responses(found)
        alone = effects(plan, measured)
        lines.append(sweep.render_effects(alone, heat_map(plan, measured), width=Console().width))
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "sweep.txt").write_text("\n".join(lines) + "\n")
        if config.report.html and (directory / "sweep.json").is_file():
            from genie.report.html import write_or_say

            problem = write_or_say(directory)
            lines.append(problem or f"page: {terminal.shown_path(directory)}/report.html")
        if config.tracking.mlflow.enabled:
            logged = track.log_sweep(
                runs,
                config.tracking.mlflow,
                out=Path(config.out),
                name=directory.name,
                factors=factors,
                effects=alone,
                page=directory / track.PAGE,
            )
            lines.append(f"MLflow: not logged: {logged.problem}" if logged.problem else f"MLflow: {logged.look}")
        lines.append(f"runs: {terminal.shown_path(directory)}")
    return SweepSummary("\n".join(lines), max(codes, default=EXIT_OK))


# -- the acts -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _recorded(directory: RunDir) -> Iterator[None]:
    """Whatever ends the run, its manifest says so."""
    try:
        yield
    except GenieError as error:
        _mark_aborted(directory, error.message)
        raise
    except BaseException as error:
        _mark_aborted(directory, "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or repr(error))
        raise
    directory.mark_ended("finished")


def _race(plan: Plan, fabric: Fabric, directory: RunDir, say: Narrator) -> None:
    """Connect, break, race, mend. Whatever happens, faults are reverted and no agent is left."""
    evidence: Sequence[EvidenceRecord] = ()
    audit = AuditLog(Path(plan.config.out), run=str(directory.path), run_id=directory.manifest.run_id)
    guard = _guard(plan, fabric, audit, say)
    guard.look_for_kill_switch()
    with ExitStack() as undo:
        say.phase("connecting the ranks")
        agents = undo.enter_context(_agents(plan, directory, fabric, say))
        agents.muster(_assignments(plan, directory, fabric))
        directory.write_transport(plan.config.transport.name, _transport_ranks(plan, agents.used))

        safety = plan.config.safety
        faults = FaultSession(
            plan.faults, fabric, directory.path / "faults.journal", directory.path, ttl_ns=safety.ttl_ns
        )
        if plan.faults:
            say.phase(f"applying {', '.join(fault.name for fault in plan.faults)}")
            undo.callback(_mend, faults, directory, audit, say, lambda: evidence)
            remember_run(plan.config, plan.topology, fabric, plan.faults, directory.path)
            _break(faults, audit, say)

        before = fabric.counters()
        directory.write_counters(before, None)
        guard.begin(before)
        sampler = fabric.start_sampler(directory.ports_path, _sample_interval_ns(plan))
        directory.mark_running()
        say.phase("running")
        sampled = 0
        with LoadWatch(directory) as load:

            def watch(progress: Mapping[int, Progress]) -> None:
                load.sample()
                say.progress(progress)
                faults.progress(min((rank.iteration for rank in progress.values()), default=0))
                guard.look(progress)

            try:
                race = agents.race(None, watch, faults.start)
            except RunAborted:  # by the guard, or the fabric is gone: what ports saw until then, if they can say
                with contextlib.suppress(GenieError):
                    directory.write_counters(before, fabric.counters())
                raise
        try:
            if sampler is not None:
                sampler.close_stdin()
                sampled = sampler.wait(SAMPLER_PATIENCE_S)  # it takes a last sample and trims its file
            after = fabric.counters()
        except RunAborted:
            _raise_if_failed(plan, race)  # a host that was lost in the race does not answer now: that is the reason
            raise
        directory.write_counters(before, after)
        directory.append_journal("raced", start_mono_ns=race.start_mono_ns, clock_error_ns=race.clock_error_ns)
        if not plan.capabilities.one_clock:
            directory.write_clocks(race.clocks)
        if plan.faults:
            say.phase("proving and reverting the faults")
            evidence = faults.evidence(before, after, _samples(directory))
    _raise_if_failed(plan, race)
    if sampled != 0:
        raise RunAborted(
            f"the sampler of the ports' queues {ending(sampled)}, so queue depths are known for a part of the run only",
            hint="fabric.log in the folder of the run, or of all arms, says why (a full disk, say)",
        )


def _break(faults: FaultSession, audit: AuditLog, say: Narrator) -> None:
    """Apply the faults, each with its lines in the audit log: what is going to be done, and what became of it."""
    for fault in faults.plans:
        audit.write("planned", fault.name, fault.targets, risk=fault.risk, window=fault.config.window.describe())
    try:
        applied = faults.apply()
    except BaseException as error:
        why = error.message if isinstance(error, GenieError) else str(error) or type(error).__name__
        for fault in faults.plans:
            _note_in(audit, say, "refused", fault.name, fault.targets, result=why)
        raise
    for record in applied:
        audit.write("applied", record.fault, record.ports, nodes=record.nodes, armed=record.action == "armed")


def _mend(
    faults: FaultSession,
    directory: RunDir,
    audit: AuditLog,
    say: Narrator,
    evidence: Callable[[], Sequence[EvidenceRecord]],
) -> None:
    try:
        faults.revert()
    except KeyboardInterrupt:
        faults.revert()  # once more, to its end; only a second interrupt leaves it to the fabric's own end
        raise
    finally:
        directory.write_faults(fault_outcomes(faults, evidence()))
        for record in faults.records:
            if record.action == "reverted":
                result = "ok" if record.ok else record.message
                how = {"how": record.message} if record.ok and record.message else {}
                _note_in(audit, say, "reverted", record.fault, record.ports, result=result, nodes=record.nodes, **how)
                if record.message:
                    say.note(f"{record.fault}: {record.message}")


def _note_in(audit: AuditLog, say: Narrator, action: str, fault: str, targets: Sequence[str], **more: Any) -> None:
    """What has happened already is not undone for the lack of a line about it."""
    try:
        audit.write(action, fault, targets, **more)
    except RunAborted as error:
        say.note(error.message)


def _guard(plan: Plan, fabric: Fabric, audit: AuditLog, say: Narrator) -> Guard:
    def fired(why: str) -> None:
        for fault in plan.faults:
            _note_in(audit, say, "fired", fault.name, fault.targets, result=why)

    return Guard(plan.config.safety, blast_radius(plan.faults, plan.topology), fabric.counters, on_fire=fired)


def _measure(plan: Plan, directory: RunDir, baseline: str) -> Judgement | None:
    """Measure, judge, draw: all from the run directory. None where nothing was recorded."""
    from genie.results.timeline import write_timeline
    from genie.why.store import explain_or_say

    if not any(directory.path.glob("events/*.evt")):
        return None
    judgement = judge_and_store(
        directory, runs_root=Path(plan.config.out), baseline=baseline, thresholds=plan.config.judge
    )
    if problem := explain_or_say(directory):
        print(problem, file=sys.stderr)
    if plan.config.report.timeline:
        write_timeline(directory)
    if plan.config.report.html:
        from genie.report.html import write_or_say

        if problem := write_or_say(directory):
            print(problem, file=sys.stderr)
    return judgement


def _conclude(plan: Plan, directory: RunDir) -> Judgement | None:
    """Measure, then print and log. None where nothing was measured."""
    from genie import track

    config = plan.config
    judgement = _measure(plan, directory, config.baseline)
    if judgement is None:
        return None
    terminal.print_report(Console(highlight=False), directory)
    if config.tracking.mlflow.enabled and not directory.manifest.parent:
        logged = track.log_run(directory, config.tracking.mlflow, out=Path(config.out))
        print(f"MLflow: not logged: {logged.problem}" if logged.problem else f"MLflow: {logged.look}")
    return judgement


def _conclude_aborted(plan: Plan, directory: RunDir, error: GenieError) -> None:
    """Show what there is of a run that `error` ended. What fails here must not hide that error."""
    try:
        if _conclude(plan, directory) is not None:
            _add_hint(error, f"what was measured until then is in {terminal.shown_path(directory.path)}")
    except (GenieError, OSError) as second:
        _add_hint(error, f"what is in {terminal.shown_path(directory.path)} could not be shown: {second}")


# -- what the acts need -------------------------------------------------------------------------------------------


def _create(plan: Plan, reproduce: str, parent: str) -> RunDir:
    config = plan.config
    directory = RunDir.create(
        Path(config.out),
        config.label,
        argv=sys.argv,
        reproduce=reproduce,
        seed=config.seed,
        hashes=plan.hashes,
        config_yaml=yaml.safe_dump(schema.to_mapping(config), sort_keys=False),
        faults=tuple(fault.name for fault in plan.faults),
        parent=parent,
        path=Path(config.run_dir) if config.run_dir else None,
    )
    directory.write_plan(plan_record(plan))
    directory.write_operators(job_operators(plan.programs, plan.checked.trace))
    return directory


def _agents(plan: Plan, directory: RunDir, fabric: Fabric, say: Narrator) -> Agents:
    timeout_s = plan.settings.connect_timeout_s + 5.0
    # A rank whose peer is gone says so within the timeout, which tells more than silence does.
    silence_s = plan.config.timeout_ns / 1e9 + SILENCE_MARGIN_S
    agent = plan.config.transport.agent
    return Agents(fabric, directory.path, log=say.note, connect_timeout_s=timeout_s, silence_s=silence_s, agent=agent)


def _assignments(plan: Plan, directory: RunDir, fabric: Fabric) -> dict[int, Assignment]:
    base_port = getattr(plan.config.transport, "base_port", 0) or (LISTEN_PORT if plan.settings.seed is not None else 0)
    endpoints = [
        Endpoint(int(ipaddress.IPv4Address(fabric.address(host))), base_port + rank if base_port else 0)
        for rank, host in enumerate(plan.host_of_rank)
    ]
    settings = replace(plan.settings, run_id=bytes.fromhex(directory.manifest.run_id))
    return {
        program.rank: Assignment(
            program.rank,
            plan.host_of_rank[program.rank],
            encode(program, settings, endpoints, plan.transport_settings[program.rank]),
            f"events/rank-{program.rank}.evt",
        )
        for program in plan.programs
    }


def _transport_ranks(plan: Plan, used: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the transport of each rank was told, and what it said that it uses."""
    return [
        {"rank": rank, "host": host, "told": dict(plan.transport_settings[rank]), "used": dict(used.get(rank, {}))}
        for rank, host in enumerate(plan.host_of_rank)
    ]


def _sample_interval_ns(plan: Plan) -> int:
    interval = getattr(plan.config.fabric, "sample_interval", None)
    return DEFAULT_SAMPLE_INTERVAL_NS if interval is None else parse_ns(interval, key="fabric.sample_interval")


def _samples(directory: RunDir) -> Any:
    ports = directory.ports()
    return None if ports is None else ports.records


def _raise_if_failed(plan: Plan, race: Race) -> None:
    outcome = race.outcome
    if outcome.ok:
        return
    gone = "; ".join(race.gone)
    # Ranks that were stopped say what they waited for; why they were stopped is the others' or the controller's word.
    stopped = [failure for failure in outcome.failures if failure.code is FailureCode.ABORTED]
    first = next((failure for failure in outcome.failures if failure not in stopped), None)
    if first is not None:
        words = explain(plan.programs, plan.host_of_rank, first)
        # A rank that waited for a message has nothing unacknowledged, and so cannot say this by itself.
        notes = plan.config.transport.notes(plan.config.timeout_ns) if first.code is FailureCode.STALL else ()
        raise RankFailed(f"{words}; {gone}" if gone else words, hint="\n  ".join(notes), rank=first.rank)
    reason = gone or outcome.reason
    reason = reason or f"ranks {sorted(r for r, s in outcome.statuses.items() if s)} did not finish"
    words = f"rank {stopped[0].rank} {explain(plan.programs, plan.host_of_rank, stopped[0])}" if stopped else ""
    raise RunAborted(reason, hint=words)


def _mark_aborted(directory: RunDir, reason: str) -> None:
    # Where even this cannot be written, the manifest's owner is gone, and that reads as aborted too.
    with contextlib.suppress(OSError):
        directory.mark_ended("aborted", reason)


def _cannot_write(plan: Plan, error: OSError) -> RunAborted:
    about_disk = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
    where = plan.config.run_dir or plan.config.out
    if about_disk:
        return RunAborted(
            f"the run's files cannot be written below {where}: {error.strerror}",
            hint="make room there, or choose another place with out=DIR",
        )
    return RunAborted(f"the run could not go on: {error}", hint=f"its files are below {where}")


def _add_hint(error: GenieError, hint: str) -> None:
    error.hint = f"{error.hint}\n  {hint}" if error.hint else hint


def _exit_code(judgement: Judgement | None, expect: str | None) -> int:
    return _exit_code_of(judgement.verdict if judgement else "invalid", expect or "")


def _exit_code_of(verdict: str, expect: str) -> int:
    if verdict == "invalid":
        return EXIT_INVALID
    return EXIT_VERDICT_FAILED if expect and verdict != expect else EXIT_OK


__all__ = ["RunResult", "Session", "SweepSummary", "finish_sweep", "plan", "run", "run_on"]
