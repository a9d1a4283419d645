"""MLflow: one writer, after the run, from the run directory.

`genie.experiment` calls `log_run` after the verdict is printed; ``genie report RUN --log`` calls it at any later time.
A tracking server that is down costs nothing: `Logged.problem` says what happened, everything is in the run directory
still. Logging twice is the same as once. Names of metrics and tags: docs/results-tracking.md. Never measures.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import logging
import math
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from genie.errors import GenieError
from genie.report.aba import aba_markdown
from genie.report.sweep import Factors, sweep_markdown
from genie.report.terminal import render
from genie.results.aba import FILE_NAME as ABA_FILE
from genie.results.aba import AbaDir, AbaResult, compare_arms, ratio_of
from genie.results.compare import Judgement, load_judgement
from genie.results.records import digest
from genie.results.rundir import RunDir
from genie.results.statistics import Estimate
from genie.schema import MlflowConfig
from genie.sweep.effects import Effect

POINTS_MOST = 1000
ROWS_MOST = 50
PORTS_MOST = 64
PAGE = "report.html"
GLANCE = "at_a_glance"
GLANCE_NAMES = (
    "iteration_time_median_ms",
    "iteration_time_p99_ms",
    "exposed_comm_median_ms",
    "slowdown_median_ratio",
    "slowdown_p99_ratio",
)
KEY_MOST, PARAM_MOST, TAG_MOST = 250, 6000, 5000
_NAME = re.compile(r"[^A-Za-z0-9_\-. /:]+")
_STATUS = {"finished": "FINISHED", "invalid": "FAILED", "aborted": "FAILED"}


@dataclass(frozen=True, slots=True)
class Logged:
    """Where a run is in MLflow and the line that says how to look at it; or, with ``problem``, why it is not there."""

    uri: str
    run_id: str
    experiment_id: str
    look: str
    problem: str = ""


def tracking_uri(config: MlflowConfig, out: Path) -> str:
    """Where runs go: ``config.uri``, else MLFLOW_TRACKING_URI, else an SQLite file in the folder of runs."""
    return config.uri or os.environ.get("MLFLOW_TRACKING_URI", "") or f"sqlite:///{out.absolute() / 'genie.db'}"


def log_run(run: RunDir, config: MlflowConfig, *, out: Path, parent: str = "", force: bool = False) -> Logged:
    """Log a measured run. ``parent`` is the MLflow id of the sweep's run; ``force`` logs again what is logged already.

    Never raises for what goes wrong with MLflow: the sentence is in ``problem``.
    """
    uri = tracking_uri(config, out)
    known = run.manifest.tracking
    if not force and known.get("uri") == uri and known.get("run_id"):
        return _logged_before(uri, known, parent)
    judgement = load_judgement(run)
    if judgement is None:
        return Logged(uri, "", "", "", f"the run was never measured ({run.status[0]}), so there is nothing to log")
    try:
        store = _Store(uri, config.experiment, out)
        logged = store.log(run, judgement, parent, force)
    except Exception as error:  # whatever a tracking server, a database or the network can throw
        return Logged(uri, "", "", "", _problem(uri, error, f"genie report {run.path} --log"))
    run.set_tracking({"uri": uri, "run_id": logged.run_id, "experiment_id": logged.experiment_id, "look": logged.look})
    return logged


def log_sweep(
    runs: Sequence[RunDir],
    config: MlflowConfig,
    *,
    out: Path,
    name: str,
    factors: Factors | None = None,
    effects: Sequence[Effect] = (),
    page: Path | None = None,
    force: bool = False,
) -> Logged:
    """Log a sweep: a parent run called ``name`` with the comparison table and the effects, every run nested below it.

    ``factors`` are what was swept: each run has its own as parameters ``swept.KEY``, and in its name. ``page`` is the
    sweep's report, if it was written; its charts go with it. Never raises for what goes wrong with MLflow; ``problem``
    counts what could not be logged.
    """
    pages = (page,) if page is not None and page.is_file() else ()
    charts = _charts(page.parent) if page is not None else {}
    swept: dict[str, dict[str, None]] = {}
    for own in (factors or {}).values():
        for key, value in own.items():
            swept.setdefault(key, {})[value] = None
    group = _Group(
        "genie.sweep",
        name,
        sweep_markdown(runs, factors),
        "sweep.md",
        {f"genie.swept.{key}": ", ".join(values) for key, values in swept.items()},
        _sweep_metrics(runs, effects),
        pages,
        charts=charts,
    )
    return _log_group(runs, group, config, out, "genie report RUN_DIR --log", force, factors or {})


def log_aba(folder: AbaDir, config: MlflowConfig, *, out: Path, force: bool = False) -> Logged:
    """Log a baseline/fault/baseline: a parent run with what the arms say together, the arms nested below.

    Never raises for what goes wrong with MLflow, as `log_sweep`. An arm that was never measured is not below it.
    """
    record, arms = folder.record, folder.arms()
    result = record.result or compare_arms(arms, record)
    tags = {
        "genie.verdict": result.verdict,
        "genie.recovered": result.recovered or "unknown",
        "genie.fault": "+".join(record.faults),
        "genie.protocol": "aba",
        "genie.status": record.status,
        "genie.run_dir": str(folder.path),
        "genie.seed": str(record.seed),
    }
    group = _Group(
        "genie.aba",
        folder.path.name,
        aba_markdown(result),
        "aba.md",
        tags,
        _aba_metrics(result),
        tuple(path for path in (folder.path / ABA_FILE, folder.path / PAGE) if path.is_file()),
        "FINISHED" if record.status == "finished" and result.verdict != "invalid" else "FAILED",
        charts=_charts(folder),
    )
    runs = [run for run in arms.values() if load_judgement(run) is not None]
    logged = _log_group(runs, group, config, out, f"genie report {folder.path} --log", force)
    if logged.run_id:
        where = {"uri": logged.uri, "run_id": logged.run_id, "experiment_id": logged.experiment_id, "look": logged.look}
        folder.set_tracking(where)
    return logged


def log_alone(
    kind: str,
    name: str,
    note: str,
    config: MlflowConfig,
    *,
    out: Path,
    later: str,
    tags: Mapping[str, str],
    metrics: Mapping[str, float],
    artifacts: Sequence[Path],
    ok: bool,
    runs: Sequence[RunDir] = (),
    page: Path | None = None,
) -> Logged:
    """Log what is no run of a job (a preflight, say): ``note`` in Markdown, tags, metrics by name with unit, files.

    ``kind`` is the tag that says what it is, with ``name``; ``later`` the command that logs it again; ``runs`` are
    nested below it; ``page`` is its report, if it was written, whose charts go with it. Never raises.
    """
    if page is not None and page.is_file():
        artifacts = (*artifacts, page)
    status = "FINISHED" if ok else "FAILED"
    tags = {"mlflow.source.name": "genie", **tags}
    charts = _charts(page.parent) if page is not None else {}
    metrics = {_key(metric): value for metric, value in metrics.items()}
    group = _Group(f"genie.{kind}", name, note, f"{kind}.md", tags, metrics, tuple(artifacts), status, False, charts)
    return _log_group(runs, group, config, out, later, force=False)


@dataclass(frozen=True, slots=True)
class _Group:
    """A parent run: ``tag`` = ``name`` finds it again; ``note`` describes it and is its artifact ``file``."""

    tag: str
    name: str
    note: str
    file: str
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    artifacts: tuple[Path, ...] = ()
    status: str = "FINISHED"
    compared: bool = True
    """Whether one looks at its runs beside each other, else at itself."""
    charts: Mapping[str, str] = field(default_factory=dict)


def _log_group(
    runs: Sequence[RunDir],
    group: _Group,
    config: MlflowConfig,
    out: Path,
    later: str,
    force: bool,
    factors: Factors | None = None,
) -> Logged:
    uri = tracking_uri(config, out)
    try:
        store = _Store(uri, config.experiment, out)
        parent = store.log_parent(runs, group)
    except Exception as error:  # as in log_run
        return Logged(uri, "", "", "", _problem(uri, error, later))
    failed = []
    for run in runs:
        child = log_run(run, config, out=out, parent=parent.run_id, force=force)
        problem = child.problem
        own = (factors or {}).get(run.path) or (factors or {}).get(run.path.parent)
        if own and not problem:
            try:
                store.say_swept(child.run_id, run, own)
            except Exception as error:  # as in log_run
                problem = f"run {child.run_id} is logged, but not with what was swept: {_said(error)}"
        failed += [problem] if problem else []
    if failed:
        problem = f"{len(failed)} of {len(runs)} runs are not logged: {failed[0]}"
        return Logged(uri, parent.run_id, parent.experiment_id, parent.look, problem)
    return parent


def _charts(run: RunDir | AbaDir | Path) -> Mapping[str, str]:
    """The charts of a page that was written, as SVG by name; nothing where pages are switched off."""
    if not ((run if isinstance(run, Path) else run.path) / PAGE).is_file():
        return {}
    from genie.report.html import charts

    with contextlib.suppress(GenieError):  # a file was damaged since: what is logged is still the run
        return charts(run)
    return {}


def _sweep_metrics(runs: Sequence[RunDir], effects: Sequence[Effect]) -> dict[str, float]:
    """Metric name with unit → value of a sweep's parent run: runs by verdict, and what each value does by itself."""
    verdicts = Counter(judgement.verdict if (judgement := load_judgement(run)) else "not_measured" for run in runs)
    values = {"runs_count": float(len(runs))}
    values |= {f"verdict/{_part(verdict)}_count": float(count) for verdict, count in verdicts.items()}
    for effect in effects:
        name = f"effect/{_part(effect.key)}/{_part(effect.value)}/iteration_time_median_ratio"
        if effect.ratio is not None:
            values[name] = effect.ratio.value
            if effect.pairs > 1:
                values |= {f"uncertainty/{name}_low": effect.ratio.low, f"uncertainty/{name}_high": effect.ratio.high}
    return {_key(name): value for name, value in values.items() if not math.isnan(value)}


def _aba_metrics(result: AbaResult) -> dict[str, float]:
    """Metric name with unit → value of the parent run; what was not measured is not there."""
    ratios = {
        "slowdown_median_ratio": ratio_of(result.median),
        "slowdown_p99_ratio": ratio_of(result.p99),
        "slowdown_exposed_comm_ratio": result.exposed,
        "recovery_median_ratio": ratio_of(result.recovery),
    }
    values: dict[str, float] = {}
    for name, ratio in ratios.items():
        if ratio is not None:
            values |= {
                name: ratio.value, f"uncertainty/{name}_low": ratio.low, f"uncertainty/{name}_high": ratio.high
            }  # fmt: skip
    return {name: value for name, value in values.items() if not math.isnan(value)}


def _logged_before(uri: str, known: Mapping[str, str], parent: str) -> Logged:
    logged = Logged(uri, known["run_id"], known.get("experiment_id", ""), known.get("look", ""))
    if not parent:
        return logged
    try:
        _client(uri).set_tag(logged.run_id, "mlflow.parentRunId", parent)
    except Exception as error:  # as in log_run
        return replace(logged, problem=f"run {logged.run_id} is logged, but not below its sweep: {_said(error)}")
    return logged


def _said(error: Exception) -> str:
    """The error in a sentence part: MLflow's texts about a server that is not there are a page long."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "Max retries exceeded" in text or "Connection refused" in text or "timed out" in text:
        return "nobody answers there"
    return text if len(text) <= 300 else text[:300] + "..."


def _problem(uri: str, error: Exception, later: str) -> str:
    said = _said(error)
    return f"MLflow at {uri} did not take the run: {said}. Nothing is lost; log it later with: {later}"


def _client(uri: str) -> Any:
    """MLflow's client, imported late (0.9 s), quiet, and quick to give up on a server that is not there."""
    for name, value in (
        ("MLFLOW_DISABLE_TELEMETRY", "true"),
        ("DO_NOT_TRACK", "1"),
        ("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true"),
        ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1"),
        ("MLFLOW_HTTP_REQUEST_TIMEOUT", "15"),
    ):
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    # its import sets them to INFO
    for logger in ("mlflow", "alembic"):
        logging.getLogger(logger).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri)


@contextlib.contextmanager
def _alone_in(uri: str) -> Iterator[None]:
    """Nobody else makes tables or experiments in the SQLite file meanwhile: MLflow cannot, when several runs that end
    at once are the first ones in a folder. The folder itself carries the lock, so no file is left behind.
    """
    if not uri.startswith("sqlite:///"):
        yield
        return
    folder = Path(uri.removeprefix("sqlite:///")).parent
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: as good as it was without
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class _Store:
    """One experiment in one tracking store."""

    def __init__(self, uri: str, experiment: str, out: Path) -> None:
        self.uri = uri
        with _alone_in(uri):
            self._open(uri, experiment, out)

    def _open(self, uri: str, experiment: str, out: Path) -> None:
        self.client = _client(uri)
        found = self.client.get_experiment_by_name(experiment)
        if found is None:
            # without it MLflow puts artifacts below whatever the working directory happens to be
            location = (out.absolute() / "mlflow-artifacts").as_uri() if uri.startswith("sqlite:") else None
            self.experiment_id = str(self.client.create_experiment(experiment, artifact_location=location))
        elif found.lifecycle_stage == "deleted":
            raise RuntimeError(f"the experiment {experiment!r} is deleted; restore it or choose another name")
        else:
            self.experiment_id = str(found.experiment_id)

    def log(self, run: RunDir, judgement: Judgement, parent: str, force: bool) -> Logged:
        """Everything about one run. A half-written earlier attempt is removed, a complete one is kept."""
        manifest = run.manifest
        charts = _charts(run)
        for earlier in self._find("genie.run_id", manifest.run_id):
            if earlier.info.status != "RUNNING" and not force:
                return self._logged(earlier.info.run_id)
            self.client.delete_run(earlier.info.run_id)
        tags = dict(_tags(run, judgement))
        if parent:
            tags["mlflow.parentRunId"] = parent
        started = (manifest.started_ns or manifest.created_ns) // 1_000_000
        made = self.client.create_run(self.experiment_id, start_time=started, tags=tags, run_name=manifest.name)
        run_id = made.info.run_id
        for batch in _chunks(list(_params(run)), 100):
            self.client.log_batch(run_id, params=batch)
        for batch in _chunks(list(_metrics(judgement, started)), 1000):
            self.client.log_batch(run_id, metrics=batch)
        for name in ("results.json", "config.yaml", "plan.json", "manifest.json", "timeline.json.gz", PAGE):
            if (run.path / name).is_file():
                self.client.log_artifact(run_id, str(run.path / name))
        self._log_charts(run_id, charts)
        self.client.log_text(run_id, render(run, width=100), "report.txt")
        ended = (manifest.ended_ns or time.time_ns()) // 1_000_000
        self.client.set_terminated(run_id, status=_STATUS.get(run.status[0], "FAILED"), end_time=ended)
        return self._logged(run_id)

    def _log_charts(self, run_id: str, charts: Mapping[str, str]) -> None:
        """The charts of the page as pictures below ``charts``: one upload, MLflow's page shows each."""
        if not charts:
            return
        with tempfile.TemporaryDirectory(prefix="genie-charts-") as folder:
            for name, picture in charts.items():
                (Path(folder) / f"{name}.svg").write_text(picture, encoding="utf-8")
            self.client.log_artifacts(run_id, folder, "charts")

    def log_parent(self, runs: Sequence[RunDir], group: _Group) -> Logged:
        """The run that holds others; made once for a name."""
        from mlflow.entities import Metric

        starts = [run.manifest.created_ns // 1_000_000 for run in runs]
        found = self._find(group.tag, group.name)
        if found:
            run_id = found[0].info.run_id
        else:
            tags = {group.tag: group.name, "mlflow.source.name": "genie"}
            made = self.client.create_run(
                self.experiment_id, start_time=min(starts, default=None), tags=tags, run_name=group.name
            )
            run_id = made.info.run_id
        for key, value in {**group.tags, "mlflow.note.content": group.note}.items():
            self.client.set_tag(run_id, key, _cut(value, TAG_MOST, "the run directories"))
        at = min(starts, default=time.time_ns() // 1_000_000)
        self.client.log_batch(run_id, metrics=[Metric(name, value, at, 0) for name, value in group.metrics.items()])
        self.client.log_text(run_id, group.note, group.file)
        for path in group.artifacts:
            self.client.log_artifact(run_id, str(path))
        self._log_charts(run_id, group.charts)
        self.client.set_terminated(run_id, status=group.status)
        if not runs or not group.compared:
            return self._logged(run_id)
        # sorted by time the page folds nested runs below their parent and then draws nothing; sorted by a metric it
        # shows them side by side
        wanted, order = quote(f"tags.`mlflow.parentRunId` = '{run_id}'"), quote("metrics.`iteration_time_median_ms`")
        view = f"workflowType=machine_learning&compareRunsMode=CHART&orderByKey={order}&orderByAsc=true"
        return self._logged(run_id, f"runs?{view}&searchFilter={wanted}")

    def say_swept(self, run_id: str, run: RunDir, own: Mapping[str, str]) -> None:
        """A sweep's run has what was swept as parameters, and in its name: the chart page tells runs apart by it."""
        from mlflow.entities import Param

        params = [Param(_key(f"swept.{key}"), _cut(value, PARAM_MOST, "config.yaml")) for key, value in own.items()]
        self.client.log_batch(run_id, params=params)
        more = [f"{key}={value}" for key, value in own.items() if key not in ("fault", "workload")]
        self.client.set_tag(run_id, "mlflow.runName", _cut(" ".join([run.manifest.name, *more]), KEY_MOST, "params"))

    def _find(self, tag: str, value: str) -> list[Any]:
        quoted = value.replace("'", "\\'")
        return list(
            self.client.search_runs([self.experiment_id], filter_string=f"tags.`{tag}` = '{quoted}'", max_results=10)
        )

    def _logged(self, run_id: str, view: str = "") -> Logged:
        page = f"/#/experiments/{self.experiment_id}/{view or f'runs/{run_id}'}"
        if self.uri.startswith(("http://", "https://")):
            look = f"open '{self.uri.rstrip('/')}{page}'"
        elif self.uri.startswith("databricks"):
            look = f"run {run_id} at {self.uri}"
        else:
            # only the full package has the web page; the base install writes without it
            need = "" if importlib.util.find_spec("flask") else "pip install 'genie-fabric[ui]' && "
            look = f"{need}mlflow ui --backend-store-uri {self.uri}, then open 'http://127.0.0.1:5000{page}'"
        return Logged(self.uri, run_id, self.experiment_id, look)


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _cut(text: str, most: int, where: str) -> str:
    """At most ``most`` characters, and it says so if it was more: MLflow would cut without a word."""
    if len(text) <= most:
        return text
    mark = f" ... ({len(text)} characters, all of them in {where})"
    return text[: most - len(mark)] + mark


def _key(name: str) -> str:
    """A name that MLflow takes; what had to be changed gets a digest, so that two names never become one."""
    clean = _NAME.sub("_", name)
    if clean == name and len(name) <= KEY_MOST:
        return name
    return f"{clean[: KEY_MOST - 12]}...{digest(name)[:8]}"


def _part(text: str) -> str:
    """One part of a metric's name, for what users typed: MLflow takes no name that looks like another path."""
    clean = re.sub(r"[^A-Za-z0-9_\-. :]+", "_", text).strip(". ") or "_"
    return clean if clean == text else f"{clean}.{digest(text)[:8]}"


def _tags(run: RunDir, judgement: Judgement) -> Iterator[tuple[str, str]]:
    manifest, plan = run.manifest, run.plan
    yield "mlflow.source.name", "genie"
    yield "mlflow.note.content", _cut(_note(run, judgement), TAG_MOST, "report.txt")
    values = {
        "run_id": manifest.run_id,
        "run_dir": str(run.path),
        "verdict": judgement.verdict,
        "status": run.status[0],
        "fault": "+".join(manifest.faults) or "none",
        "workload": plan.workload,
        "topology": plan.topology,
        "transport": plan.transport,
        "fabric": plan.fabric,
        "seed": str(manifest.seed),
        "version": manifest.genie_version,
        "baseline": judgement.comparison.baseline_run_id if judgement.comparison else "",
    }
    values |= {f"hash.{key}": value for key, value in manifest.hashes.items()}
    for key, value in values.items():
        if value:
            yield f"genie.{key}", _cut(value, TAG_MOST, "manifest.json")


def _note(run: RunDir, judgement: Judgement) -> str:
    faults = [f"- **{fault.name}**: {fault.why_not_in_effect() or 'in effect'}" for fault in run.faults()]
    return "\n".join(
        [
            f"**{judgement.verdict.upper()}** {judgement.why}",
            "",
            *faults,
            *([""] if faults else []),
            "Run it again:",
            "",
            f"    {run.manifest.reproduce}",
            "",
            f"Run directory: `{run.path}`",
        ]
    )


def _params(run: RunDir) -> Iterator[Any]:
    from mlflow.entities import Param

    for key, value in flatten(run.config):
        yield Param(_key(key), _cut(value, PARAM_MOST, "config.yaml"))


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and text values of nested configuration; lists stay whole, empty mappings are "{}"."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, "{}" if isinstance(value, Mapping) else "" if value is None else str(value)


def _metrics(judgement: Judgement, started_ms: int) -> Iterator[Any]:
    from mlflow.entities import Metric

    for name, value in headline(judgement).items():
        yield Metric(name, value, started_ms, 0)
    found = judgement.metrics.iteration
    if found is None:
        return
    series = {
        "iteration_time_ms": found.each_ns,
        "exposed_comm_ms": judgement.metrics.exposed_ns,
        "compute_ms": judgement.metrics.compute_ns,
    }
    for name, values in {f"{GLANCE}/iteration_time_ms": found.each_ns, **series}.items():
        for step in downsample(len(values)):
            yield Metric(name, values[step] / 1e6, started_ms + step, judgement.metrics.warmup + step)


def downsample(count: int, most: int = POINTS_MOST) -> Iterable[int]:
    """At most ``most`` evenly spaced indexes of ``count``, first and last among them."""
    if count <= most:
        return range(count)
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def headline(judgement: Judgement) -> dict[str, float]:
    """Metric name with unit → value; what was not recorded is not there."""
    metrics, comparison = judgement.metrics, judgement.comparison
    values: dict[str, float | int | None] = {}

    def estimate(name: str, value: Estimate | None, scale: float) -> None:
        if value is not None:
            values[name] = value.value / scale
            values[f"uncertainty/{name}_low"] = value.low / scale
            values[f"uncertainty/{name}_high"] = value.high / scale

    if metrics.iteration:
        estimate("iteration_time_median_ms", metrics.iteration.median, 1e6)
        estimate("iteration_time_p99_ms", metrics.iteration.p99, 1e6)
        estimate("iteration_time_mean_ms", metrics.iteration.mean, 1e6)
    estimate("exposed_comm_median_ms", metrics.exposed, 1e6)
    estimate("compute_median_ms", metrics.compute, 1e6)
    if comparison:
        estimate("slowdown_median_ratio", comparison.median.ratio, 1)
        estimate("slowdown_p99_ratio", comparison.p99.ratio, 1)
        estimate("slowdown_exposed_comm_ratio", comparison.exposed, 1)
    fabric = metrics.fabric
    values["network/retransmits_segments"] = fabric.retransmits
    values["network/ce_marked_packets"] = fabric.ce_marked
    values["network/drops_packets"] = fabric.drops
    values["network/queue_p99_bytes"] = fabric.queue_p99_bytes
    values["host/cpu_busy_percent"] = None if metrics.cpu_busy_ratio is None else metrics.cpu_busy_ratio * 100
    if metrics.messages:
        for name in ("p50", "p90", "p99", "p999", "max"):
            values[f"message/completion_{name}_us"] = getattr(metrics.messages, f"{name}_ns") / 1e3
    for row in metrics.collectives[:ROWS_MOST]:
        key = f"collective/{row.kind}/{row.comm or 'world'}/{row.bytes}B"
        values[f"{key}/time_mean_us"] = row.time_mean_ns / 1e3
        values[f"{key}/time_p99_us"] = row.time_p99_ns / 1e3
        if row.bytes:
            values[f"{key}/algbw_GBps"] = row.algbw_gbytes_per_s
            values[f"{key}/busbw_GBps"] = row.busbw_gbytes_per_s
    deepest = sorted(metrics.ports, key=lambda port: -(port.queue_p99_bytes or 0))[:PORTS_MOST]
    for port in deepest:
        values[f"port/{port.port}/queue_p50_bytes"] = port.queue_p50_bytes
        values[f"port/{port.port}/queue_p99_bytes"] = port.queue_p99_bytes
        values[f"port/{port.port}/queue_max_bytes"] = port.queue_max_bytes
    for rank in metrics.ranks[:PORTS_MOST]:
        values[f"rank/{rank.rank}/exposed_comm_median_ms"] = rank.exposed_ns / 1e6
        values[f"rank/{rank.rank}/lateness_mean_us"] = rank.lateness_ns / 1e3
    # the page shows groups by name, metrics without one last: the numbers that people look for first are there twice
    values |= {f"{GLANCE}/{name}": values[name] for name in GLANCE_NAMES if name in values}
    return {_key(name): float(value) for name, value in values.items() if value is not None and not math.isnan(value)}
