"""The story of ``genie preflight``: plan the tournament, run it on a fabric, look for what is out of line, keep it.

`genie.cli` calls `run`. The measuring is a run of ``workload=pairs`` like any other (`genie.experiment.run_on`), with a
run directory of its own inside the preflight's folder, or perftest on the hosts (`genie.preflight.perftest`). Whatever
ends it, what was measured until then is kept and shown.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from genie import experiment, schema
from genie.argv import CommandLine, parse
from genie.compose import compose
from genie.errors import (
    EXIT_INTERRUPTED,
    EXIT_INVALID,
    EXIT_OK,
    EXIT_VERDICT_FAILED,
    ConfigError,
    GenieError,
    RunAborted,
)
from genie.own_keys import settings_from
from genie.preflight import record as records
from genie.preflight.config import PreflightConfig
from genie.preflight.judge import Verdict, failures, judge
from genie.preflight.measuring import EngineMeasuring, Measured, Measuring, choose
from genie.preflight.prepared import Prepared, prepare
from genie.preflight.progress import PreflightNarrator
from genie.preflight.record import Matrices, PreflightRecord, cells
from genie.preflight.report import render, shown_path
from genie.results.records import to_plain
from genie.results.rundir import parse_config_yaml
from genie.schema import ExperimentConfig, parse_config, reproduce_line

PREFIX = "preflight."
CONFIG_NAME = "config.yaml"
_REFUSED: Mapping[str, str] = {
    "workload": "a preflight brings its own: see preflight.* (docs/preflight.md)",
    "warmup": "a preflight leaves out the first quarter of each measurement instead",
    "protocol": "a preflight compares with the last one of this network",
    "baseline": "a preflight compares with the last one of this network; preflight.keep says what is kept as that",
    "collective.chunk_bytes": "write preflight.message_bytes",
    "report": "a preflight has one report; genie report FOLDER/run shows the run that measured",
    "sweep": "a preflight is no sweep",
    "yes": "a preflight does not ask",
    "record.messages": "a preflight measures by the records of messages",
}
"""Keys of a run that have no meaning here, or another name."""


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
    try:
        return act(prepared, reproduce_line(arguments, command=("genie", "preflight")))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RunAborted(
            f"the preflight could not go on: {error}", hint="its files are below out=DIR, and need room there"
        ) from error


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
    return settings_from(words, PreflightConfig, "preflight")


def act(prepared: Prepared, reproduce: str) -> int:
    """Measure, keep, show, log. Raises the GenieError that ended it, after what there is was kept and shown."""
    config = prepared.plan.config
    folder = records.create_folder(config, config.name)
    try:  # of two that found it empty at once, one has it
        with (folder / CONFIG_NAME).open("x") as file:
            file.write(yaml.safe_dump(schema.to_mapping(config), sort_keys=False))
    except FileExistsError:
        raise ConfigError(f"{folder} is another preflight's, which began just now", key="run_dir") from None
    began_s = time.monotonic()
    engine = EngineMeasuring(prepared, folder, reproduce)
    measuring: Measuring = engine
    status, error = "finished", None
    try:
        say = PreflightNarrator(prepared.bytes_in_all, len(prepared.plan.programs))
        with say, experiment.Session(prepared.plan, folder, say) as session:
            measuring = choose(prepared, folder, session.fabric, engine)
            measuring.go(session, say)
    except GenieError as caught:
        status, error = "aborted", caught
    except KeyboardInterrupt:
        status = "interrupted"
    record = _record(prepared, folder, reproduce, measuring.tool, status, time.monotonic() - began_s)
    record = _conclude(prepared, record, measuring.result(), error.message if error else status)
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
        record = _logged(record, _read_config(folder / CONFIG_NAME), folder.absolute().parent)
    print(render(record, color=sys.stdout.isatty()), end="")
    return EXIT_OK


def _read_config(path: Path) -> ExperimentConfig:
    """The configuration that a preflight left; it says where MLflow is. Raises GenieError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GenieError(f"{path} cannot be read: {error}") from error
    return parse_config(parse_config_yaml(text, path))


def exit_code(verdict: str, expect: str | None) -> int:
    """As of a run: an invalid one has no result, another verdict than the expected one fails."""
    if verdict == "invalid":
        return EXIT_INVALID
    return EXIT_VERDICT_FAILED if expect is not None and verdict != expect else EXIT_OK


def _conclude(prepared: Prepared, record: PreflightRecord, measured: Measured, reason: str) -> PreflightRecord:
    """Judge, compare with the last one, keep; also what an interruption left."""
    config, out = prepared.plan.config, Path(prepared.plan.config.out)
    record = replace(record, rails=measured.rails)
    before, note = _before(record, out) if any(rail.measured for rail in measured.rails) else (None, "")
    verdict = judge(
        measured.rails,
        record.hosts,
        prepared.schedule.ways,
        prepared.settings,
        before.rails if before is not None else (),
    )
    verdict, more = _weigh(verdict, record, prepared, measured, reason)
    record = replace(
        record,
        verdict=verdict.word,
        why=verdict.why,
        findings=verdict.findings,
        notes=tuple(text for text in [*prepared.plan.notes, *measured.notes, note, more] if text),
        baseline=before.path if before else "",
        baseline_ns=before.created_ns if before else 0,
        baseline_change_ratio=_change(measured.rails, before.rails) if before else None,
    )
    record = _kept(record, prepared, out)
    records.write_record(Path(record.path) / records.FILE_NAME, record)
    logs = record.status == "finished" and config.tracking.mlflow.enabled
    return _logged(record, config, out) if logs else record


def _weigh(
    verdict: Verdict, record: PreflightRecord, prepared: Prepared, measured: Measured, reason: str
) -> tuple[Verdict, str]:
    """The verdict with all that speaks against it, and a note for what does not."""
    findings = (*failures(measured.failed, record.hosts), *verdict.findings)
    if record.status != "finished":
        wanted = 2 * len(prepared.schedule.pairs) * len(measured.rails)
        done = sum(rail.measured for rail in measured.rails)
        return Verdict("invalid", f"{reason}; {done} of {wanted} directions were measured until then", findings), ""
    if measured.doubt:
        return Verdict("invalid", measured.doubt, findings), ""
    if measured.busy and findings:
        why = f"{measured.busy}; so what is out of line need not be the network's fault"
        return Verdict("invalid", why, findings), ""
    if measured.failed:
        word = "degraded" if any(rail.measured for rail in measured.rails) else "invalid"
        also = f"; {verdict.why}" if verdict.word == "degraded" else ""
        return Verdict(word, f"{len(measured.failed)} directions failed: {findings[0].text}{also}", findings), ""
    if measured.untold:  # what was found stays found; that nothing else is out of line cannot be said
        return (verdict, measured.untold) if findings else (Verdict("invalid", measured.untold, ()), "")
    # Busy CPUs can make things slower only, and nothing is.
    note = "the CPUs were busier than a run may have them, but nothing is out of line" if measured.busy else ""
    return verdict, note


def _logged(record: PreflightRecord, config: ExperimentConfig, out: Path) -> PreflightRecord:
    """Send it to MLflow, and say where it is there or why it is not."""
    from genie import track

    folder = Path(record.path)
    logged = track.log_alone(
        "preflight",
        folder.name,
        f"**{record.verdict.upper()}** {record.why}\n\n```text\n{render(record, width=100)}```\n",
        config.tracking.mlflow,
        out=out,
        later=f"genie report {folder} --log",
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
    prepared: Prepared, folder: Path, reproduce: str, tool: str, status: str, duration_s: float
) -> PreflightRecord:
    """All that is known without what was measured."""
    config, found = prepared.plan.config, prepared.schedule
    counts = {
        "pairs": len(found.pairs),
        "rounds": found.rounds,
        "all_rounds": found.all_rounds,
        "waves": len(found.bandwidth),
        "repeats": prepared.settings.repeats,
    }
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
        tool=tool,
        settings={**to_plain(prepared.settings), "channels": config.collective.channels},
        schedule=counts,
        rails=(),
        faults=tuple(fault.name for fault in prepared.plan.faults),
        path=str(folder),
        duration_s=duration_s,
    )


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
