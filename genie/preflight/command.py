"""The story of ``genie preflight``: plan the tournament, run it on a fabric, look for what is out of line, keep it.

`genie.cli` calls `run`. The measuring is a run of ``workload=pairs`` like any other (`genie.experiment.run_on`), with a
run directory of its own inside the preflight's folder, or perftest on the hosts (`genie.preflight.perftest`). Whatever
ends it, what was measured until then is kept and shown.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from genie import experiment, schema, topology
from genie.argv import CommandLine, parse
from genie.compose import compose
from genie.errors import (
    EXIT_INTERRUPTED,
    EXIT_INVALID,
    EXIT_OK,
    EXIT_VERDICT_FAILED,
    ConfigError,
    GenieError,
    PlanError,
    closest,
)
from genie.fabric import InventoryConfig, open_fabric
from genie.plan import Plan, make_plan
from genie.preflight import record as records
from genie.preflight.config import PreflightConfig
from genie.preflight.judge import judge
from genie.preflight.measure import measure
from genie.preflight.progress import PreflightNarrator
from genie.preflight.record import Matrices, PreflightRecord, cells
from genie.preflight.report import render, render_schedule, shown_path
from genie.preflight.schedule import Schedule, load_bytes, schedule
from genie.results.compare import DEFAULT_THRESHOLDS, load_judgement
from genie.results.records import to_plain
from genie.results.rundir import RunDir
from genie.schema import Choice, ExperimentConfig, parse_config, reproduce_line
from genie.topology import Topology
from genie.topology.inventory import inventory as read_network
from genie.workload.config import PairsConfig
from genie.workload.generators.pairs import MAX_OPERATORS, round_text

PREFIX = "preflight."
_REFUSED: Mapping[str, str] = {
    "workload": "a preflight brings its own: see preflight.* (docs/preflight.md)",
    "warmup": "a preflight leaves out the first quarter of each measurement instead",
    "protocol": "a preflight compares with the last one of this network",
    "baseline": "a preflight compares with the last one of this network; preflight.keep says what is kept as that",
    "collective.chunk_bytes": "write preflight.message_bytes",
    "record.messages": "a preflight measures by the records of messages",
}
"""Keys of a run that have no meaning here, or another name."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A preflight, decided: nothing was touched. ``sizes``: rate of a way → bytes each way."""

    plan: Plan
    settings: PreflightConfig
    schedule: Schedule
    rails: tuple[str, ...]
    sizes: Mapping[int, int]
    tool: str

    @property
    def fabric_hash(self) -> str:
        """What names the network, for the baseline."""
        return records.fabric_hash(self.plan.config, self.plan.hashes["topology"])

    @property
    def wire_ns(self) -> int:
        """The least that the loads take in real ns, from the rates of the ways; 0 where one is not known."""
        total = 0
        for wave in self.schedule.bandwidth:
            rates = [self.schedule.ways[pair].rate_bps for pair in wave]
            if not all(rates):
                return 0
            total += max(2 * 8 * self.sizes[rate] * 1_000_000_000 // rate for rate in rates)
        return round(total * len(self.rails) * self.settings.repeats * self.plan.time_dilation)

    @property
    def bytes_in_all(self) -> int:
        """Payload of all loads."""
        each = sum(self.sizes[self.schedule.ways[pair].rate_bps] for wave in self.schedule.bandwidth for pair in wave)
        return 2 * each * len(self.rails) * self.settings.repeats

    def render(self) -> str:
        """For ``dry_run=true``."""
        notes = [f"note: {note}" for note in self.plan.notes]
        faults = [fault.describe() for fault in self.plan.faults]
        text = render_schedule(
            self.schedule, self.sizes, repeats=self.settings.repeats, pings=self.settings.pings, wire_ns=self.wire_ns
        )
        return "\n".join([text, *notes, *faults])


def run(arguments: Sequence[str]) -> int:
    """One ``genie preflight``; its exit code. Raises GenieError."""
    line, settings = read_line(arguments)
    (composed,) = compose(line)
    config = parse_config(composed.mapping, composed.choices)
    shown = "  ".join(f"{group}={config.choices[group].name}" for group in ("topology", "transport", "fabric"))
    print(f"genie preflight: {shown}", flush=True)
    prepared = prepare(config, settings)
    if config.dry_run:
        print(prepared.render())
        return EXIT_OK
    return act(prepared, reproduce_line(arguments, command=("genie", "preflight")))


def read_line(arguments: Sequence[str]) -> tuple[CommandLine, PreflightConfig]:
    """Sort the words: ``preflight.*`` to the settings, all others to the experiment. Raises ConfigError."""
    own = [word for word in arguments if word.lstrip("+").startswith(PREFIX)]
    line = parse([word for word in arguments if word not in own])
    if line.multirun or line.show:
        raise ConfigError(f"genie preflight takes no {'-m' if line.multirun else line.show}")
    for override in line.overrides:
        for key, why in _REFUSED.items():
            if override.key == key or override.key.startswith(f"{key}."):
                raise ConfigError(f"is not for a preflight: {why}", key=override.key)
    return line, settings_of(own)


def settings_of(words: Sequence[str]) -> PreflightConfig:
    """The settings that words such as ``preflight.repeats=5`` make. Raises ConfigError."""
    values: dict[str, Any] = {}
    names = [field.name for field in dataclasses.fields(PreflightConfig)]
    for word in words:
        key, equals, text = word.lstrip("+").partition("=")
        name = key.removeprefix(PREFIX)
        if name not in names:
            raise ConfigError(f"there is no such key; {closest(name, names)}", key=key)
        if not equals or not text:
            raise ConfigError(f"a value is missing: write {key}=VALUE", key=key)
        if name in values:
            raise ConfigError("is given twice; leave one out", key=key)
        try:
            values[name] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{text!r} cannot be read", key=key) from error
    made: PreflightConfig = schema.build(PreflightConfig, values, "preflight")
    return made


def prepare(config: ExperimentConfig, settings: PreflightConfig) -> Prepared:
    """Decide one preflight: schedule, sizes, the plan of the run. Raises GenieError; touches nothing."""
    network = _network(config)
    if len(network.hosts) < 2:
        raise PlanError(f"a preflight needs two hosts or more, topology {network.name!r} has {len(network.hosts)}")
    shaped = open_fabric(config.fabric, network, Path(config.out)).capabilities().shaping
    rails = ("",)
    found = schedule(network, shaped=shaped, rounds=settings.rounds, seed=config.seed)
    channels = config.collective.channels
    sizes = {
        way.rate_bps: _whole(settings.load_bytes, settings.message_bytes)
        or load_bytes(way, time_ns=settings.time_ns, message_bytes=settings.message_bytes, channels=channels)
        for way in found.ways.values()
    }
    _refuse_too_many(found, settings, len(rails))
    plan = make_plan(_config_of_run(config, settings, found, sizes, len(rails)))
    return Prepared(plan, settings, found, rails, sizes, "engine")


def _whole(wanted: int, message_bytes: int) -> int:
    """``load_bytes`` in whole messages, 0 where it was not given. Raises ConfigError if they are too few to measure."""
    if wanted and wanted < 2 * message_bytes:
        raise ConfigError(
            f"must be two messages ({2 * message_bytes} bytes, preflight.message_bytes) or more, found {wanted}",
            key="preflight.load_bytes",
        )
    return -(-wanted // message_bytes) * message_bytes


def _refuse_too_many(found: Schedule, settings: PreflightConfig, rails: int) -> None:
    ends = 4 * len(found.pairs) * rails * (settings.pings + 1)
    if ends <= MAX_OPERATORS:
        return
    fewer = MAX_OPERATORS // (4 * len(found.pairs) * rails) - 1
    ways = [f"preflight.pings={fewer}"] if fewer > 0 else []
    rounds = max(1, found.rounds * MAX_OPERATORS // ends)
    raise PlanError(
        f"{len(found.pairs)} pairs with {settings.pings} pings each are more than one program holds",
        hint=" or ".join([*ways, f"preflight.rounds={rounds} for a part of the tournament"]),
    )


def _network(config: ExperimentConfig) -> Topology:
    if isinstance(config.fabric, InventoryConfig):
        return read_network(config.fabric)
    return topology.build(config.topology)


def _config_of_run(
    config: ExperimentConfig, settings: PreflightConfig, found: Schedule, sizes: Mapping[int, int], rails: int
) -> ExperimentConfig:
    """The run that measures: ``workload=pairs`` with our schedule, rank r on host r // rails."""

    def ranks(pairs: Sequence[tuple[int, int]], rail: int) -> list[tuple[int, int]]:
        return [(a * rails + rail, b * rails + rail) for a, b in pairs]

    latency = [round_text(ranks(pairs, rail)) for rail in range(rails) for pairs in found.latency]
    bandwidth = [
        round_text(ranks(pairs, rail), [sizes[found.ways[pair].rate_bps] for pair in pairs])
        for rail in range(rails)
        for pairs in found.bandwidth
    ]
    workload = PairsConfig(
        ranks=len(found.hosts) * rails,
        iterations=settings.repeats,
        pings=settings.pings,
        ping_bytes=settings.ping_bytes,
        latency_rounds=tuple(latency),
        bandwidth_rounds=tuple(bandwidth),
    )
    return replace(
        config,
        name=config.name or "-".join(["preflight", *config.fault]),
        workload=workload,
        warmup=0,
        baseline="none",
        topology=replace(config.topology, placement="block"),
        collective=replace(config.collective, chunk_bytes=settings.message_bytes),
        choices={**config.choices, "workload": Choice("pairs", "pairs")},
    )


def act(prepared: Prepared, reproduce: str) -> int:
    """Measure, keep, show, log. Raises the GenieError that ended it, after what there is was kept and shown."""
    config = prepared.plan.config
    folder = records.create_folder(config, config.name)
    began_s = time.monotonic()
    say = PreflightNarrator(prepared.bytes_in_all, len(prepared.plan.programs))
    status, error = "finished", None
    try:
        with say:
            _measure(prepared, folder, say, reproduce)
    except GenieError as caught:
        status, error = "aborted", caught
    except KeyboardInterrupt:
        status = "interrupted"
    record = _conclude(prepared, folder, reproduce, status, error.message if error else "", time.monotonic() - began_s)
    print(render(record, color=sys.stdout.isatty()), end="")
    if error is not None:
        if any(rail.measured for rail in record.rails):
            more = f"what was measured until then is in {shown_path(folder)}"
            error.hint = f"{error.hint}\n  {more}" if error.hint else more
        raise error
    return EXIT_INTERRUPTED if status == "interrupted" else exit_code(record.verdict, config.expect)


def report(folder: Path, options: set[str]) -> int:
    """``genie report FOLDER`` of a preflight. Raises GenieError."""
    if "--nccl-table" in options:
        raise ConfigError(f"'{folder}' is a preflight", hint=f"genie report {folder / records.RUN_FOLDER} --nccl-table")
    record = records.read_record(folder / records.FILE_NAME)
    if "--log" in options:
        inner = RunDir.open(folder / records.RUN_FOLDER)
        config = parse_config(yaml.safe_load(inner.config_yaml))
        record = _logged(record, folder, config)
    print(render(record, color=sys.stdout.isatty()), end="")
    return EXIT_OK


def exit_code(verdict: str, expect: str | None) -> int:
    """As of a run: an invalid one has no result, another verdict than the expected one fails."""
    if verdict == "invalid":
        return EXIT_INVALID
    return EXIT_VERDICT_FAILED if expect is not None and verdict != expect else EXIT_OK


def _measure(prepared: Prepared, folder: Path, say: PreflightNarrator, reproduce: str) -> None:
    plan = prepared.plan
    inner = replace(plan, config=replace(plan.config, run_dir=str(folder / records.RUN_FOLDER)))
    with experiment.Session(plan, folder, say) as session:
        experiment.run_on(session, inner, say, reproduce=reproduce, parent=folder.name, baseline="none")


@dataclass(frozen=True, slots=True)
class _Measured:
    """What was measured; ``doubt`` is why it may not be believed, ``busy`` why what is slow may not be the network's
    fault ("" where there is no reason).
    """

    rails: tuple[Matrices, ...]
    doubt: str = ""
    busy: str = ""


def _read_run(prepared: Prepared, folder: Path) -> _Measured:
    hosts = len(prepared.schedule.hosts)
    path = folder / records.RUN_FOLDER
    if not (path / "operators.json.gz").is_file():
        empty = records.matrix_of(hosts, {})
        return _Measured(tuple(Matrices(rail, empty, empty, empty, empty) for rail in prepared.rails))
    run = RunDir.open(path)
    rails = measure(run, hosts, prepared.rails, dilation=prepared.plan.time_dilation)
    judgement = load_judgement(run)
    if judgement is None or judgement.verdict != "invalid":
        return _Measured(rails)
    metrics = judgement.metrics
    load = metrics.cpu_busy_ratio
    if load is None or load <= DEFAULT_THRESHOLDS.cpu_busy_ratio or metrics.events_dropped or metrics.iteration is None:
        return _Measured(rails, doubt=judgement.why)
    absent = [f"{fault.name}: {why}" for fault in run.faults() if (why := fault.why_not_in_effect())]
    return _Measured(rails, "; ".join(absent), judgement.why)


def _conclude(
    prepared: Prepared, folder: Path, reproduce: str, status: str, reason: str, duration_s: float
) -> PreflightRecord:
    """Judge, compare with the last one, keep; also what an interruption left."""
    config, out = prepared.plan.config, Path(prepared.plan.config.out)
    measured = _read_run(prepared, folder)
    rails = measured.rails
    record = _record(prepared, folder, reproduce, status, rails, duration_s)
    before, note = _before(record, out)
    verdict = judge(
        rails, record.hosts, prepared.schedule.ways, prepared.settings, before.rails if before is not None else ()
    )
    word, why, notes = verdict.word, verdict.why, [*prepared.plan.notes, note]
    if status != "finished":
        word, why = "invalid", f"{reason or 'interrupted'}; {_done(prepared, rails)}"
    elif measured.doubt:
        word, why = "invalid", measured.doubt
    elif measured.busy and verdict.findings:
        word, why = "invalid", f"{measured.busy}; so what is out of line need not be the network's fault"
    elif measured.busy:  # it can make things slower only, and nothing is
        notes.append("the CPUs were busier than a run may have them, but nothing is out of line")
    record = replace(
        record,
        verdict=word,
        why=why,
        findings=verdict.findings,
        notes=tuple(text for text in notes if text),
        baseline=before.path if before else "",
        baseline_ns=before.created_ns if before else 0,
        baseline_change_ratio=_change(rails, before.rails) if before else None,
    )
    record = _kept(record, prepared, out)
    records.write_record(folder / records.FILE_NAME, record)
    return _logged(record, folder, config) if status == "finished" and config.tracking.mlflow.enabled else record


def _logged(record: PreflightRecord, folder: Path, config: ExperimentConfig) -> PreflightRecord:
    """Send it to MLflow, and say where it is there or why it is not."""
    from genie import track

    logged = track.log_alone(
        "preflight",
        folder.name,
        f"**{record.verdict.upper()}** {record.why}\n\n```text\n{render(record, width=100)}```\n",
        config.tracking.mlflow,
        out=Path(config.out),
        later=record.reproduce,
        tags=tags_of(record),
        metrics=metrics_of(record),
        artifacts=[folder / records.FILE_NAME],
        ok=record.verdict != "invalid",
    )
    if logged.problem:
        record = replace(record, notes=(*record.notes, f"MLflow: not logged: {logged.problem}"))
    else:
        record = replace(record, tracking={"uri": logged.uri, "run_id": logged.run_id, "look": logged.look})
    records.write_record(folder / records.FILE_NAME, record)
    return record


def tags_of(record: PreflightRecord) -> dict[str, str]:
    """What MLflow finds a preflight by."""
    names = ("verdict", "status", "topology", "fabric", "transport", "tool", "fabric_hash")
    tags = {f"genie.{name}": str(getattr(record, name)) for name in names}
    return tags | {"genie.run_dir": record.path, "genie.seed": str(record.seed), "genie.fault": "+".join(record.faults)}


def metrics_of(record: PreflightRecord) -> dict[str, float]:
    """Medians and extremes over all pairs; the pairs themselves are in the artifact."""
    values: dict[str, float] = {"findings_count": float(len(record.findings))}
    for rail in record.rails:
        end = f"/{rail.name}" if rail.name else ""
        for name, matrix, scale in (("bandwidth", rail.bandwidth_bps, 1e9), ("latency", rail.latency_ns, 1e3)):
            found = sorted(value / scale for _, _, value in cells(matrix))
            unit = "Gbps" if name == "bandwidth" else "us"
            if found:
                values |= {
                    f"{name}_median_{unit}{end}": found[len(found) // 2],
                    f"{name}_least_{unit}{end}": found[0],
                    f"{name}_most_{unit}{end}": found[-1],
                }
    return values


def _record(
    prepared: Prepared,
    folder: Path,
    reproduce: str,
    status: str,
    rails: tuple[Matrices, ...],
    duration_s: float,
) -> PreflightRecord:
    config, found = prepared.plan.config, prepared.schedule
    counts = {
        "pairs": len(found.pairs),
        "rounds": found.rounds,
        "all_rounds": found.all_rounds,
        "waves": len(found.bandwidth),
        "repeats": prepared.settings.repeats,
    }
    settings = {**to_plain(prepared.settings), "channels": config.collective.channels}
    return PreflightRecord(
        name=config.name,
        status=status,
        verdict="",
        why="",
        created_ns=time.time_ns(),
        seed=config.seed,
        reproduce=reproduce,
        fabric_hash=prepared.fabric_hash,
        hosts=found.hosts,
        topology=config.choices["topology"].name,
        fabric=config.choices["fabric"].name,
        transport=config.choices["transport"].name,
        tool=prepared.tool,
        settings=settings,
        schedule=counts,
        rails=rails,
        faults=tuple(fault.name for fault in prepared.plan.faults),
        path=str(folder),
        duration_s=duration_s,
    )


def _done(prepared: Prepared, rails: Sequence[Matrices]) -> str:
    wanted = 2 * len(prepared.schedule.pairs) * len(rails)
    return f"{sum(rail.measured for rail in rails)} of {wanted} directions were measured until then"


def _before(record: PreflightRecord, out: Path) -> tuple[PreflightRecord | None, str]:
    """The baseline to compare with, or why the one that is there is none."""
    try:
        before = records.load_baseline(record.fabric_hash, out)
    except GenieError as error:
        return None, f"not compared with the last preflight: {error.message}"
    if before is None:
        return None, ""
    why = records.comparable(record, before)
    return (None, f"not compared with the last preflight: {why}") if why else (before, "")


def _change(rails: Sequence[Matrices], before: Sequence[Matrices]) -> float | None:
    """Median over all directions of bandwidth now over bandwidth then, less 1."""
    ratios = []
    for now, then in zip(rails, before, strict=True):
        old = {(a, b): value for a, b, value in cells(then.bandwidth_bps)}
        ratios += [value / old[a, b] for a, b, value in cells(now.bandwidth_bps) if old.get((a, b))]
    ratios.sort()
    return ratios[len(ratios) // 2] - 1 if ratios else None


def _kept(record: PreflightRecord, prepared: Prepared, out: Path) -> PreflightRecord:
    """Make it the baseline, or say why not."""
    keep = prepared.settings.keep
    why = ""
    if record.status != "finished":
        why = f"it was {record.status}"
    elif record.verdict == "invalid":
        why = "it is invalid"
    elif keep == "never":
        why = "preflight.keep=never"
    elif record.faults:
        why = f"it had {', '.join(record.faults)}"
    elif keep == "auto" and record.verdict == "degraded":
        why = "something is out of line (preflight.keep=always keeps it all the same)"
    elif keep == "auto" and record.schedule["rounds"] != record.schedule["all_rounds"]:
        why = "it is a part of the tournament (preflight.keep=always keeps it all the same)"
    if why:
        return replace(record, kept_why=why)
    path = records.baseline_path(record.fabric_hash, out)
    kept = replace(record, kept=str(path.absolute()))
    records.write_record(path, kept)
    return kept
