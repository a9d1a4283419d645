"""A run directory: the source of truth about one run (format: docs/run-directory.md).

`genie.experiment` creates it and writes into it; everything else reads. Every file is replaced whole (written beside
and renamed) or append-only, so a reader finds a usable directory whatever moment the writer was killed at, and can
tell that it was. Nothing here measures or prints.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import secrets
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

import genie
from genie import jsontext
from genie.clocks import Clocks
from genie.errors import ConfigError, GenieError
from genie.results.ports import PortSamples, read_ports
from genie.results.records import FaultOutcome, JobOperators, PlanRecord, from_plain, to_plain

if TYPE_CHECKING:
    from genie.engine.events import Events

FORMAT = "genie-run"
VERSION = 1
STATUSES = ("created", "running", "finished", "aborted", "invalid")
_UNSAFE = re.compile(r"[^A-Za-z0-9._+=,-]+")


@dataclass(frozen=True, slots=True)
class Manifest:
    """``manifest.json``. Times are Unix ns; ``pid`` and ``pid_start`` (ticks since boot) tell a dead run from a live
    one; ``hashes`` name what must be equal for two runs to be compared; ``faults`` are names, empty when healthy;
    ``parent`` names the sweep.
    """

    run_id: str
    name: str
    status: str
    argv: tuple[str, ...]
    reproduce: str
    seed: int
    created_ns: int
    hashes: Mapping[str, str]
    faults: tuple[str, ...] = ()
    parent: str = ""
    started_ns: int | None = None
    ended_ns: int | None = None
    reason: str = ""
    verdict: str = ""
    genie_version: str = ""
    pid: int = 0
    pid_start: int = 0
    boot_id: str = ""
    tracking: Mapping[str, str] = field(default_factory=dict)
    format: str = FORMAT
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class HostRecord:
    """``host.json``: the machine that ran the emulation. ``cores`` are those the run may use, ``samples`` are
    (CLOCK_MONOTONIC ns, share of them that was busy since the sample before, 0 to 1).

    Over all of ``span_ns``: ``work_ns`` is their time in user and system mode, ``stolen_ns`` what the hypervisor gave
    to others, ``own_ns`` what this process took itself. ``suspended_ns``: how long the machine slept;
    ``clock_step_ns``: the largest jump of the wall clock.
    """

    cores: int
    samples: tuple[tuple[int, float], ...] = ()
    span_ns: int = 0
    work_ns: int = 0
    stolen_ns: int = 0
    own_ns: int = 0
    suspended_ns: int = 0
    clock_step_ns: int = 0
    kernel: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CountersRecord:
    """``counters.json``: node or port → counter → value, right before the start and right after the end."""

    before: Mapping[str, Mapping[str, int]]
    after: Mapping[str, Mapping[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class _Faults:
    """``faults.json``."""

    faults: tuple[FaultOutcome, ...]


def parse_config_yaml(text: str, path: Path) -> dict[str, Any]:
    """The configuration in ``text``, which is that of ``path``, plain. Raises GenieError where it is damaged."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise GenieError(f"{path} is not valid YAML: {str(error).splitlines()[0]}") from error
    except RecursionError:
        raise GenieError(f"{path} is not valid YAML: brackets are nested too deeply") from None
    if not isinstance(found, dict):
        raise GenieError(f"{path}: expected a mapping, found {type(found).__name__}")
    return found


class RunDir:
    """One run directory. Make with `create` or `open`; one process writes, any number read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # -- life ---------------------------------------------------------------------------------------------

    @staticmethod
    def create(
        root: Path,
        name: str,
        *,
        argv: Sequence[str],
        reproduce: str,
        seed: int,
        hashes: Mapping[str, str],
        config_yaml: str,
        faults: Sequence[str] = (),
        parent: str = "",
        path: Path | None = None,
    ) -> RunDir:
        """A new directory ``root/<UTC time>-<name>-<4 hex>``, or exactly ``path``.

        Raises ConfigError if the path exists and is not empty, or cannot be made: runs are never overwritten.
        """
        now = time.time_ns()
        if path is None:
            stamp = datetime.fromtimestamp(now / 1e9, UTC).strftime("%Y%m%d-%H%M%S")
            path = root / f"{stamp}-{_UNSAFE.sub('_', name)[:80] or 'run'}-{secrets.token_hex(2)}"
        path = path.absolute()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path} exists and is not an empty directory", key="run_dir")
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / "events").mkdir()  # of two runs that found it empty at once, one
            (path / "log").mkdir()
        except FileExistsError as error:
            raise ConfigError(f"{path} is another run's, which began just now", key="run_dir") from error
        except OSError as error:
            raise ConfigError(
                f"cannot create the run directory {path}: {error.strerror}", hint="choose another with out=DIR"
            ) from error
        run = RunDir(path)
        run._write_text("config.yaml", config_yaml)
        run._write_manifest(
            Manifest(
                run_id=secrets.token_hex(16),
                name=name,
                status="created",
                argv=tuple(argv),
                reproduce=reproduce,
                seed=seed,
                created_ns=now,
                hashes=dict(hashes),
                faults=tuple(faults),
                parent=parent,
                genie_version=genie.__version__,
                pid=os.getpid(),
                pid_start=_process_start(os.getpid()) or 0,
                boot_id=_boot_id(),
            )
        )
        return run

    @staticmethod
    def open(path: Path) -> RunDir:
        """An existing directory. Raises ConfigError if it is not one or is of a version this GENIE does not know."""
        run = RunDir(path.absolute())
        if not (path / "manifest.json").is_file():
            raise ConfigError(
                f"{path} is not a run directory: it has no manifest.json", hint="runs are folders below runs/"
            )
        manifest = run._read_json("manifest.json")
        if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
            raise ConfigError(
                f"{path}: a run directory of format {manifest.get('format')!r} version {manifest.get('version')!r}; "
                f"this GENIE reads {FORMAT!r} version {VERSION}"
            )
        return run

    def mark_running(self) -> None:
        """The ranks start now."""
        self._update(status="running", started_ns=time.time_ns())

    def mark_ended(self, status: str, reason: str = "") -> None:
        """``status`` "finished", "aborted" or "invalid", with the sentence why for the latter two."""
        if status not in STATUSES[2:]:
            raise ValueError(f"a run ends as one of {STATUSES[2:]}, not {status!r}")
        self._update(status=status, reason=reason, ended_ns=time.time_ns())

    def set_verdict(self, verdict: str) -> None:
        """Remember the verdict where a search for baselines sees it at once."""
        self._update(verdict=verdict)

    def set_tracking(self, tracking: Mapping[str, str]) -> None:
        """Remember where this run was logged (tracking URI, run id)."""
        self._update(tracking=dict(tracking))

    @property
    def manifest(self) -> Manifest:
        """As on disk now."""
        return from_plain(Manifest, self._read_json("manifest.json"), str(self.path / "manifest.json"))

    @property
    def status(self) -> tuple[str, str]:
        """(status, why): a run that never ended and whose process is gone is "aborted", whatever its manifest says."""
        manifest = self.manifest
        if manifest.status in ("created", "running") and not is_alive(manifest):
            return "aborted", "the process that ran it is gone"
        return manifest.status, manifest.reason

    # -- writing ------------------------------------------------------------------------------------------

    def write_plan(self, plan: PlanRecord) -> None:
        """``plan.json``."""
        self._write_json("plan.json", {"format": "genie-plan", "version": 1, **to_plain(plan)})

    def write_operators(self, operators: JobOperators) -> None:
        """``operators.json.gz``; make it with `genie.results.records.job_operators`."""
        self._write_gzip_json("operators.json.gz", operators.to_json())

    def write_counters(
        self, before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]] | None
    ) -> None:
        """``counters.json``: what `Fabric.counters` gave right before the start and right after the end."""
        content = {"format": "genie-counters", "version": 1, "before": to_plain(before), "after": to_plain(after)}
        self._write_json("counters.json", content)

    def write_host(self, host: HostRecord) -> None:
        """``host.json``."""
        self._write_json("host.json", {"format": "genie-host", "version": 1, **to_plain(host)})

    def write_clocks(self, clocks: Clocks) -> None:
        """``clocks.json``: how hosts' clocks stood to ours, where they have clocks of their own."""
        content = {"error_ns": clocks.error_ns, **to_plain(clocks)}
        self._write_json("clocks.json", {"format": "genie-clocks", "version": 1, **content})

    def write_transport(self, name: str, ranks: Sequence[Mapping[str, Any]]) -> None:
        """``transport.json``: of each rank where it was, what its transport was told, and what it uses."""
        content = {"transport": name, "ranks": [to_plain(rank) for rank in ranks]}
        self._write_json("transport.json", {"format": "genie-transport", "version": 1, **content})

    def write_faults(self, faults: Sequence[FaultOutcome]) -> None:
        """``faults.json``."""
        self._write_json("faults.json", {"format": "genie-faults", "version": 1, "faults": to_plain(tuple(faults))})

    def write_results(self, content: Mapping[str, Any]) -> None:
        """``results.json``: metrics and comparison, as `genie.results.compare.Judgement` lays them out."""
        self._write_json("results.json", {"format": "genie-results", "version": 1, **to_plain(content)})

    def write_bytes(self, name: str, content: bytes) -> Path:
        """Any other file, atomically (timeline, report text)."""
        return self._write(name, content)

    def append_journal(self, event: str, **fields: Any) -> None:
        """One line of ``journal.jsonl``, the diary of the run: phases, what was done where, for people."""
        line = {"real_ns": time.time_ns(), "mono_ns": time.monotonic_ns(), "event": event, **to_plain(fields)}
        with (self.path / "journal.jsonl").open("ab") as out:
            out.write(json.dumps(line, default=str).encode() + b"\n")

    # -- reading ------------------------------------------------------------------------------------------

    @property
    def config_yaml(self) -> str:
        """The configuration that was run, as text. Raises GenieError where it is gone or no text."""
        path = self.path / "config.yaml"
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise GenieError(f"{path} cannot be read: {error}") from error

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that was run, plain. Raises GenieError where it is damaged."""
        return parse_config_yaml(self.config_yaml, self.path / "config.yaml")

    @property
    def log_dir(self) -> Path:
        """Where processes of the run write what they say."""
        return self.path / "log"

    @property
    def ports_path(self) -> Path:
        """For `Fabric.start_sampler`."""
        return self.path / "ports.smp"

    @property
    def timeline_path(self) -> Path:
        """Where the timeline is, once written."""
        return self.path / "timeline.json.gz"

    def event_path(self, rank: int) -> Path:
        """Where the agent writes the events of ``rank``."""
        return self.path / "events" / f"rank-{rank}.evt"

    @property
    def plan(self) -> PlanRecord:
        """Raises GenieError where the run ended before it had a plan."""
        return from_plain(PlanRecord, self._read_json("plan.json"), str(self.path / "plan.json"))

    @property
    def operators(self) -> JobOperators:
        """Raises GenieError where the run ended before."""
        return JobOperators.from_json(self._read_json("operators.json.gz"))

    def events(self, rank: int) -> Events | None:
        """Committed events of ``rank``; None if it never got as far as a file."""
        from genie.engine.events import read_events

        path = self.event_path(rank)
        return read_events(path) if path.is_file() else None

    def ports(self) -> PortSamples | None:
        """Queue samples; None where the fabric has no ports."""
        return read_ports(self.ports_path) if self.ports_path.is_file() else None

    def counters(self) -> CountersRecord:
        """Empty, and without an after, where none were read."""
        content = self._read_optional("counters.json")
        return from_plain(CountersRecord, content, str(self.path / "counters.json")) if content else CountersRecord({})

    def host(self) -> HostRecord | None:
        """The machine's load; None where it was not watched."""
        content = self._read_optional("host.json")
        return from_plain(HostRecord, content, str(self.path / "host.json")) if content else None

    def clocks(self) -> Clocks | None:
        """Hosts' clocks; None where all hosts read ours, and where the run ended before they were compared."""
        content = self._read_optional("clocks.json")
        return from_plain(Clocks, content, str(self.path / "clocks.json")) if content else None

    def faults(self) -> tuple[FaultOutcome, ...]:
        """What became of each fault; empty for a healthy run and for one that ended before its faults."""
        content = self._read_optional("faults.json")
        if content is None:
            return ()
        return from_plain(_Faults, content, str(self.path / "faults.json")).faults

    def results(self) -> dict[str, Any] | None:
        """``results.json`` as it is; None before the run was measured."""
        return self._read_optional("results.json")

    # -- files --------------------------------------------------------------------------------------------

    def _update(self, **changes: Any) -> None:
        self._write_manifest(replace(self.manifest, **changes))

    def _write_manifest(self, manifest: Manifest) -> None:
        self._write_json("manifest.json", to_plain(manifest))

    def _write_json(self, name: str, content: Mapping[str, Any]) -> Path:
        return self._write_text(name, json.dumps(content, indent=1, default=str) + "\n")

    def _write_gzip_json(self, name: str, content: Mapping[str, Any]) -> Path:
        text = json.dumps(content, separators=(",", ":"))
        return self._write(name, gzip.compress(text.encode(), compresslevel=5, mtime=0))

    def _write_text(self, name: str, text: str) -> Path:
        return self._write(name, text.encode())

    def _write(self, name: str, content: bytes) -> Path:
        target = self.path / name
        beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            beside.write_bytes(content)
            beside.replace(target)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
        return target

    def _read_optional(self, name: str) -> dict[str, Any] | None:
        return self._read_json(name) if (self.path / name).is_file() else None

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            raw = path.read_bytes()
            content = jsontext.parse(gzip.decompress(raw) if name.endswith(".gz") else raw)
        except FileNotFoundError as error:
            raise GenieError(f"{self.path} has no {name}: the run ended before it was written") from error
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise GenieError(f"{path} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise GenieError(f"{path}: expected an object, found {type(content).__name__}")
        return content


def is_alive(manifest: Manifest) -> bool:
    """Whether the process that made the run still lives: same boot, same pid, same start time."""
    return manifest.boot_id == _boot_id() and _process_start(manifest.pid) == manifest.pid_start


def find_runs(root: Path) -> list[RunDir]:
    """Run directories directly below ``root``, one level further down, and in its ``sweeps``, newest first.

    Others are passed over: a folder of runs may hold anything.
    """
    found: list[tuple[int, RunDir]] = []
    for pattern in ("*/manifest.json", "*/*/manifest.json", "sweeps/*/*/manifest.json"):
        for path in root.glob(pattern):
            run = RunDir(path.parent.absolute())
            try:
                manifest = run.manifest
            except GenieError:
                continue
            if manifest.format == FORMAT and manifest.version == VERSION:
                found.append((manifest.created_ns, run))
    return [run for _, run in sorted(found, key=lambda pair: pair[0], reverse=True)]


def _process_start(pid: int) -> int | None:
    """Start of a process in ticks since boot (proc(5), stat field 22), None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
