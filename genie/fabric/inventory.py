"""Real hosts of an Ansible inventory: programs are brought there, run over ssh, and everything is taken away again.

`genie.experiment` uses it through `genie.fabric.base.Fabric`. It changes nothing of a host's network and emulates
nothing: queues, rates and marking are the real ones. What is read before is `genie.fabric.survey`; who may use a host,
and what ends a run there when we are gone, is `genie.fabric.lease`. It knows no fault.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from genie import jsontext, paths
from genie.clocks import HostClock
from genie.engine.binaries import find_binary
from genie.errors import ConfigError, EnvironmentUnfit, GenieError, PlanError, RunAborted
from genie.fabric import counters as parse
from genie.fabric.base import Capabilities, Completed
from genie.fabric.config import InventoryConfig
from genie.fabric.lease import Leases, lease_script
from genie.fabric.samples import HostSamples, merge_samples
from genie.fabric.ssh import SshLinks, SshProcess
from genie.fabric.survey import DEFAULT_STATE_DIR, HostEntry, HostFacts, linux_targets, look, survey
from genie.rdma.model import RdmaHost
from genie.topology.model import Topology
from genie.units import format_bytes, parse_ns

NEEDED_PROGRAMS = ("genie-agent", "genie-port")
FAULT_PROGRAMS = ("genie-warden", "genie-load")
DEPLOY_TIMEOUT_S = 300
GRACE_S = 120
"""From the end of a run's programs by the time limit to the end of its lease: for bringing the files here."""

_LOST = 255  # what ssh ends with where it loses its host
TIMED_OUT = 124  # what timeout(1) ends with
_LEAST_SAMPLE_INTERVAL_NS = 100_000
_ROOM_BYTES = 16 << 20
"""Beside the programs: records of a short run. A rank whose events find no room says so when it loads its program."""

_COLLECT_TIMEOUT_S = 600.0
_SAMPLER_PATIENCE_S = 5.0
_MAGIC = b"GNIE"  # event files and port samples begin so
_COUNTERS_TIMEOUT_S = 10.0
_GAUGES = {"backlog_bytes", "backlog_packets"}
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_ANSIBLE_PROGRAM = (
    "genie.faults.ansible_job"  # a program of its own: reads a job, runs one play, says what each task said
)


class InventoryFabric:
    """See module. ``notes`` says what of the hosts matters for what will be measured."""

    name = "inventory"

    def __init__(
        self, config: InventoryConfig, topology: Topology, run_dir: Path, programs: Sequence[str] = ()
    ) -> None:
        interval_ns = parse_ns(config.sample_interval, key="fabric.sample_interval")
        if interval_ns < _LEAST_SAMPLE_INTERVAL_NS:
            raise ConfigError(
                f"expected at least 100us, found {config.sample_interval!r}", key="fabric.sample_interval"
            )
        self._limit_s = parse_ns(config.time_limit, key="fabric.time_limit") // 10**9
        if self._limit_s < 1:
            raise ConfigError(f"must be at least 1s, found {config.time_limit!r}", key="fabric.time_limit")
        self._config = config
        self._needed = dict.fromkeys((*NEEDED_PROGRAMS, *programs))
        self.topology = topology
        self._run_dir = run_dir.absolute()
        self._survey = survey(Path(config.inventory), config.group)
        self._facts: dict[str, HostFacts] = dict(self._survey.facts)
        self._run_id = _run_id(self._run_dir)
        self._links: SshLinks | None = None
        self._leases: Leases | None = None
        self._sampler: HostSamplers | None = None
        self._clocks: dict[str, HostClock] = {}
        self._processes: list[SshProcess] = []
        self._folders: dict[Path, str] = {}
        self._used: dict[Path, set[str]] = {}
        self._notes: list[str] = []
        self.unclean: tuple[str, ...] = ()  # once destroyed: hosts that may keep files of this run

    # -- what the plan asks -------------------------------------------------------------------------------------

    def capabilities(self) -> Capabilities:
        """The real network has rates; it marks, loses and queues as it is set up, which nobody here can know."""
        marks = any(facts.marks for facts in self._facts.values())
        reasons = (
            {} if marks else {"ecn": "no host has a red that marks, and what the network's switches do is not known"}
        )
        powerless = [facts.name for facts in self._facts.values() if facts.uid != 0]
        if powerless:
            reasons["faults"] = (
                f"commands on {', '.join(powerless[:8])} do not run as root; set ansible_become: true in the inventory"
            )
        without = [facts.name for facts in self._facts.values() if "nft" not in facts.tools]
        if without:
            reasons["loss"] = f"no nft on {', '.join(without[:8])} (apt-get install nftables)"
        without = [facts.name for facts in self._facts.values() if "tc" not in facts.tools]
        if without:
            reasons["delay"] = f"no tc on {', '.join(without[:8])} (apt-get install iproute2)"
        return Capabilities(
            shaping=True,
            ecn=marks,
            loss="loss" not in reasons,
            delay="delay" not in reasons,
            faults="faults" not in reasons,
            marker="red" if marks else "none",
            reasons=reasons,
            one_clock=False,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the plan and, once built, about what was found on the hosts."""
        shared = [facts.name for facts in self._facts.values() if facts.interface in facts.management]
        notes = [f"hosts of {self._survey.path}: real network, {len(self._facts)} hosts, nothing is emulated"]
        if shared:
            notes.append(
                f"the data interface of {', '.join(shared[:8])} is also its way of management: the run's traffic "
                "shares it, and no fault may touch it"
            )
        return (*notes, *self._notes)

    def address(self, host: str) -> str:
        """The IPv4 address of a host's data interface. Raises PlanError for anything but a host."""
        facts = self._facts.get(host)
        if facts is None or not facts.address:
            raise PlanError(f"{host!r} is no host of {self._survey.path}")
        return facts.address

    def rdma(self, host: str) -> RdmaHost:
        """What a host said that it has for transports that need a device or a library."""
        facts = self._facts[host]
        return RdmaHost(f"host {host}", facts.rdma_devices, facts.libraries)

    def platforms(self, node: str) -> tuple[str, ...]:
        """``genie_platforms`` of the inventory; none for the opaque network between hosts, which no fault can touch."""
        known = {entry.name: entry.platforms for entry in self._survey.entries}
        return known.get(node, ())

    def state_dir(self, node: str) -> str:
        """The run's own folder on a host."""
        return f"{self._survey.entry(node).state_dir}/{self._run_id}"

    def lock_file(self, node: str) -> str:
        """None for wardens to take: the run's lease holds the host, and for as long as a warden of the run lives."""
        return ""

    def tool(self, name: str) -> str:
        """Where a deployed program is on every host whose ``genie_state_dir`` is the same."""
        folders = {entry.state_dir for entry in self._survey.entries if entry.is_linux}
        if len(folders) > 1:
            raise PlanError(
                f"hosts keep GENIE's files at different places ({', '.join(sorted(folders))}), so programs have no one "
                "path", hint="give all hosts the same genie_state_dir",
            )  # fmt: skip
        return f"{folders.pop()}/{self._run_id}/bin/{name}"

    def protected_interfaces(self, node: str) -> frozenset[str]:
        """Loopback, the default route's interface, and the one that ssh comes by."""
        facts = self._facts.get(node)
        return frozenset({"lo"}) | (facts.management if facts is not None else frozenset())

    def ansible_host(self, node: str) -> dict[str, str]:
        """The user's own connection variables, sharing our connection while there is one."""
        entry = self._survey.entry(node)
        variables = {key: str(value) for key, value in entry.connection.items()}
        if entry.is_linux:
            variables |= {"ansible_connection": "ssh", "ansible_host": entry.target.address}
            if self._links is not None:
                variables["ansible_ssh_args"] = f"-o ControlMaster=no -o ControlPath={self._links.control(node)}"
        return variables

    # -- its life -----------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Look at every host again, bring the programs there, take the leases. Leaves nothing on failure.

        Raises EnvironmentUnfit naming each host that cannot serve; nothing was changed on any by then, except that
        programs may have been brought to hosts that then turned out to be taken, and were removed.
        """
        if self._links is not None:
            raise RunAborted("the fabric is already built")
        self._run_dir.mkdir(parents=True, exist_ok=True)
        (self._run_dir / "log").mkdir(exist_ok=True)
        self._links = SshLinks(linux_targets(self._survey.entries))
        try:
            self._look_again(self._links)
            self._deploy()
            scripts = {
                entry.name: lease_script(
                    self._run_id, self.state_dir(entry.name), entry.state_dir, self._limit_s + GRACE_S
                )
                for entry in self._linux
            }
            self._leases = Leases(self._links, scripts, self._run_dir / "log")
            self._notes += self._leases.take()
        except BaseException:
            self._undeploy()
            self.destroy()
            raise

    @property
    def _linux(self) -> tuple[HostEntry, ...]:
        return tuple(entry for entry in self._survey.entries if entry.is_linux)

    def _look_again(self, links: SshLinks) -> None:
        """Hosts may have changed since the plan; what the plan was made of must still hold."""
        found = look(links, self._survey.entries)
        problems = []
        room = sum(path.stat().st_size for path in self._programs().values()) + _ROOM_BYTES
        for name, facts in found.items():
            planned = self._facts[name]
            for what in ("address", "interface", "rate_bps", "mtu"):
                if getattr(facts, what) != getattr(planned, what):
                    problems.append(
                        f"{name}: {what} was {getattr(planned, what)} when the run was planned and is "
                        f"{getattr(facts, what)} now"
                    )
            if facts.lock:
                problems.append(f"{name}: another run has this host: {facts.lock}")
            if facts.warden:
                problems.append(f"{name}: a fault is still in place there (genie revert): {facts.warden}")
            if facts.free_bytes < room:
                where = self._survey.entry(name).state_dir
                problems.append(
                    f"{name}: {format_bytes(facts.free_bytes)} are free at {where}, {format_bytes(room)} are needed"
                )
        if problems:
            raise EnvironmentUnfit("; ".join(problems[:8]), hint="nothing was changed on any host")
        self._facts = found

    def _programs(self) -> dict[str, Path]:
        programs = {name: find_binary(name) for name in self._needed}
        for name in FAULT_PROGRAMS:
            try:
                programs[name] = find_binary(name)
            except EnvironmentUnfit:
                continue  # a fault that needs it says so
        return programs

    def _deploy(self) -> None:
        began = time.monotonic()
        files = [
            {"name": name, "source": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for name, path in self._programs().items()
        ]
        answer = self._play("deploy.yml", {"genie_files": files})
        if answer["status"] != "successful":
            failed = [result for result in answer["results"] if not result["ok"]]
            words = [f"{result['host']}: {' '.join(str(result['message']).split())[-400:]}" for result in failed]
            raise EnvironmentUnfit(
                f"GENIE's programs could not be brought to {'; '.join(words[:8]) or answer['stdout'].strip()[-800:]}",
                hint="nothing was left on any host",
            )
        self._log(f"brought {len(files)} programs to {len(self._linux)} hosts in {time.monotonic() - began:.2f} s")

    def _play(self, playbook: str, extra: Mapping[str, Any]) -> dict[str, Any]:
        """One Ansible run on all Linux nodes, on this machine, over the connections that are there already."""
        root = Path(paths.__file__).resolve().parent.parent
        job = {
            "playbook": playbook,
            "playbooks": str(paths.playbooks_dir()),
            "roles": str(paths.roles_dir()),
            "package_root": str(root),
            "hosts": {
                e.name: {**self.ansible_host(e.name), "genie_state": self.state_dir(e.name)} for e in self._linux
            },
            "extra": dict(extra),
            "timeout_s": DEPLOY_TIMEOUT_S,
        }
        path = os.pathsep.join(part for part in (str(root), os.environ.get("PYTHONPATH", "")) if part)
        argv = ["env", f"PYTHONPATH={path}", sys.executable, "-m", _ANSIBLE_PROGRAM]
        done = self.run("", argv, stdin=json.dumps(job).encode(), timeout_s=DEPLOY_TIMEOUT_S + 10)
        if done.returncode != 0:
            raise RunAborted(f"the Ansible job {playbook} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def _undeploy(self) -> None:
        """After a failed build: whoever got programs but no lease."""
        links = self._links
        if links is None:
            return
        leased = self._leases is not None
        for entry in self._linux:
            if not links.is_open(entry.name):
                continue
            state = shlex.quote(self.state_dir(entry.name))
            # Where the lease was taken it removes all this itself, and its pids folder says that it was.
            guard = f"[ -e {state}/pids ] || " if leased else ""
            try:
                tidy = f"rmdir {DEFAULT_STATE_DIR} 2>/dev/null; " if entry.state_dir == DEFAULT_STATE_DIR else ""
                links.run(entry.name, f"{guard}rm -rf {state}; {tidy}true")
            except RunAborted as error:
                self._log(f"{entry.name}: {error.message}")

    def _log(self, text: str) -> None:
        with (self._run_dir / "log" / "inventory.log").open("a") as out:
            out.write(text + "\n")

    def _built(self) -> SshLinks:
        if self._links is None:
            raise RunAborted("the fabric is not built")
        return self._links

    @property
    def control_address(self) -> str:
        """The address of ours that agents dial: as told, or the one that every host sees ssh come from."""
        if self._config.control_address:
            return self._config.control_address
        seen = sorted({facts.seen_from for facts in self._facts.values()})
        if len(seen) == 1 and _is_ours(seen[0]):
            return seen[0]
        raise EnvironmentUnfit(
            f"hosts see this machine as {', '.join(seen) or 'nobody'}, which is not one IPv4 address of it",
            hint="give the one that all hosts can dial: fabric.control_address=ADDRESS",
        )

    def destroy(self) -> None:
        """Give every host back: stop what runs, remove the run's files, see that they are gone. Idempotent."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None and self._links is not None and not sampler.merged:
            sampler.close_stdin()
            try:
                sampler.wait(_SAMPLER_PATIENCE_S)
            except RunAborted as error:
                self._log_and_tell(error.message)
        late = sorted({process.host for process in self._processes if process.poll() == TIMED_OUT})
        if late and self._links is not None:
            self._log_and_tell(f"the time limit (fabric.time_limit={self._config.time_limit}) ended {', '.join(late)}")
        links, self._links = self._links, None
        leases, self._leases = self._leases, None
        if links is None:
            return
        try:
            if leases is not None:
                self.unclean = leases.end(self._log_and_tell)
        finally:
            links.close()

    def _log_and_tell(self, text: str) -> None:
        self._log(text)
        print(f"genie: {text}", file=sys.stderr)

    # -- programs on hosts --------------------------------------------------------------------------------------

    def spawn(self, node: str, argv: Sequence[str], *, stdin: bytes, log: Path, cwd: Path | None = None) -> SshProcess:
        """Start a program on a host; it ends with the run's lease there, and at the time limit, at the latest.

        A program of GENIE's own is run from where it was brought.
        """
        deployed = {str(path): name for name, path in self._programs().items()}
        if argv[0] in deployed:
            argv = [self._bin(node, deployed[argv[0]]), *argv[1:]]
        return self._spawn(node, argv, stdin, log, self._folder(node, cwd or self._run_dir))

    def _folder(self, node: str, cwd: Path) -> str:
        """The folder on the host that stands for ``cwd`` here; `collect` brings its files."""
        self._used.setdefault(cwd, set()).add(node)
        name = self._folders.setdefault(cwd, f"work/{len(self._folders)}")
        return f"{self.state_dir(node)}/{name}"

    def _spawn(self, node: str, argv: Sequence[str], stdin: bytes | None, log: Path, folder: str) -> SshProcess:
        self._check_node(node)
        pid_file = f"{self.state_dir(node)}/pids/{len(self._processes)}"
        process = self._built().spawn(
            node, argv, pid_file=pid_file, limit_s=self._limit_s, folder=folder, log=log, stdin=stdin
        )
        self._processes.append(process)
        return process

    def _check_node(self, node: str) -> None:
        if node not in {entry.name for entry in self._linux}:
            raise PlanError(f"commands cannot be run on {node!r}: it is no Linux node of {self._survey.path}")

    def run(self, node: str, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> Completed:
        """A command on a host to its end; ``node`` "" is this machine."""
        if node:
            self._check_node(node)
            done = self._built().run(node, f"exec {shlex.join(argv)}", stdin=stdin, timeout_s=timeout_s)
            return Completed(node, tuple(argv), done.returncode, done.stdout, done.stderr)
        try:
            local = subprocess.run(list(argv), input=stdin, capture_output=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as error:
            raise RunAborted(f"{' '.join(argv)!r} did not end within {timeout_s:g} s and was killed") from error
        except OSError as error:
            raise RunAborted(f"could not run {' '.join(argv)!r}: {error}") from error
        said, complained = (text.decode(errors="replace") for text in (local.stdout, local.stderr))
        return Completed("", tuple(argv), local.returncode, said, complained)

    # -- what hosts count ---------------------------------------------------------------------------------------

    def _own_ports(self, node: str) -> list[tuple[int, str, int]]:
        """(number in the topology, name, interface index) of a host's ports, as far as they are interfaces of its."""
        known = self._facts[node].interfaces
        return [
            (number, port.name, known[port.interface])
            for number, port in enumerate(self.topology.ports)
            if port.node == node and port.interface in known
        ]

    def _port_argv(self, node: str) -> list[str]:
        return [word for *_, index in self._own_ports(node) for word in ("--port", f"/proc/self/ns/net:{index}")]

    def counters(self) -> dict[str, dict[str, int]]:
        """Node counters as in ``nstat``, a host's CPU ticks, and port counters by port name.

        A host that does not answer has none, and is told of; its rank has more to say about it.
        """
        links = self._built()
        readable = [entry.name for entry in self._linux if links.is_open(entry.name)]
        result: dict[str, dict[str, int]] = {}
        with ThreadPoolExecutor(16) as pool:
            for counted in pool.map(self._count, readable):
                if isinstance(counted, str):
                    self._log_and_tell(counted)
                else:
                    result.update(counted)
        return result

    def _count(self, node: str) -> dict[str, dict[str, int]] | str:
        own_ports = self._own_ports(node) if self._facts[node].uid == 0 else []  # reading queues takes root
        argv = [self._bin(node, "genie-port"), "read", *self._port_argv(node)]
        read = shlex.join(argv) if own_ports else "echo '{\"ports\": []}'"
        files = " ".join((*parse.SNMP_FILES, parse.SOFTNET_FILE))
        script = f"echo ==; for f in {files}; do cat $f; echo; echo ==; done; head -n 1 /proc/stat; echo ==; {read}"
        try:
            done = self._built().run(node, script, timeout_s=_COUNTERS_TIMEOUT_S)
        except RunAborted as error:
            return f"counters of {node} were not read: {error.message}"
        if done.returncode != 0:
            return f"counters of {node} were not read: {done.stderr.strip()[-300:]}"
        # Before the first mark is what the login shell there may have printed.
        _, snmp, netstat, softnet, stat, said = done.stdout.split("==\n", 5)
        own = parse.parse_snmp(snmp.strip()) | parse.parse_snmp(netstat.strip()) | parse.parse_softnet(softnet.strip())
        ticks = [int(word) for word in stat.split()[1:9]]
        own |= {"cpu_ticks": sum(ticks), "cpu_busy_ticks": sum(ticks) - ticks[3] - ticks[4]}
        result = {node: own}
        for (_, name, _), values in zip(own_ports, json.loads(said)["ports"], strict=True):
            result[name] = {key: value for key, value in values.items() if key not in _GAUGES}
        return result

    def _bin(self, node: str, name: str) -> str:
        return f"{self.state_dir(node)}/bin/{name}"

    def learn_clocks(self, clocks: Mapping[str, HostClock]) -> None:
        """How hosts' clocks stand to ours: their port samples are moved by it."""
        self._clocks = dict(clocks)

    def start_sampler(self, path: Path, interval_ns: int) -> HostSamplers | None:
        """Record the queues of every host's own ports, by each host's clock; merged into ``path`` at the end."""
        started: dict[str, SshProcess] = {}
        folder = path.parent / ".samples"
        for entry in self._linux:
            ports = self._port_argv(entry.name)
            if not ports or self._facts[entry.name].uid != 0:
                continue  # reading queues takes root
            argv = [self._bin(entry.name, "genie-port"), "sample", "--out", "ports.smp"]
            argv += ["--interval-ns", str(interval_ns), *ports]
            log = self._run_dir / "log" / f"sampler-{entry.name}.log"
            started[entry.name] = self._spawn(entry.name, argv, None, log, self._folder(entry.name, folder))
        self._sampler = HostSamplers(self, path, folder, started) if started else None
        return self._sampler

    def gather_samples(self, path: Path, folder: Path, hosts: Sequence[str]) -> bool:
        """Bring the samples of ``hosts`` and merge them into ``path``; says whose are missing, and gives False then."""
        folder.mkdir(exist_ok=True)
        whole = True
        try:
            self.collect(folder)
        except RunAborted as error:
            whole = False
            self._log_and_tell(f"queue samples: {error.message}")
        files = {host: folder / f"ports-{host}.smp" for host in hosts}
        parts = [
            HostSamples(host, file, [number for number, *_ in self._own_ports(host)])
            for host, file in files.items()
            if file.is_file()
        ]
        try:
            merge_samples(parts, self._clocks, len(self.topology.ports), path)
        except GenieError as error:
            whole = False
            self._log_and_tell(error.message)
        shutil.rmtree(folder, ignore_errors=True)
        return whole

    # -- files --------------------------------------------------------------------------------------------------

    def collect(self, directory: Path) -> None:
        """Bring event files (and samples) that were written in the hosts' counterparts of ``directory``.

        Only what is committed travels. Files of hosts that answer are kept whatever became of the others.
        """
        nodes = sorted(self._used.pop(directory, ()))
        if not nodes or self._links is None:
            return
        with ThreadPoolExecutor(16) as pool:
            problems = [said for said in pool.map(lambda node: self._collect(node, directory), nodes) if said]
        if problems:
            raise RunAborted(f"not all files of the run could be brought here: {'; '.join(problems[:8])}")

    def _collect(self, node: str, directory: Path) -> str:
        """Why a host's files could not be brought; empty where they were."""
        links = self._built()
        folder = f"{self.state_dir(node)}/{self._folders[directory]}"
        try:
            listed = links.run(node, f"cd {shlex.quote(folder)} && ls -d events/*.evt ports.smp 2>/dev/null; true")
            for name in listed.stdout.split():
                if not re.fullmatch(r"events/rank-\d+\.evt|ports\.smp", name):
                    return f"{node}: unexpected file {name!r}"
                target = directory / (f"ports-{node}.smp" if name == "ports.smp" else name)
                part = target.with_name(f".{target.name}.part")
                file = shlex.quote(f"{folder}/{name}")
                # A header of 4096 bytes, the number of valid records at offset 64, records of 64 bytes.
                script = f"n=$(od -An -t u8 -j 64 -N 8 {file}) && exec head -c $((4096 + 64 * n)) {file}"
                done = links.run(node, script, timeout_s=_COLLECT_TIMEOUT_S, output=part)
                if done.returncode != 0:
                    part.unlink(missing_ok=True)
                    return f"{node}: {name}: {done.stderr.strip()[-300:]}"
                with part.open("rb") as file_here:
                    if file_here.read(len(_MAGIC)) != _MAGIC:
                        return f"{node}: {name} is not what was written: does its login shell print something?"
                part.replace(target)
        except (RunAborted, OSError) as error:
            return f"{node}: {error}"
        return ""


class HostSamplers:
    """The samplers of all hosts as one `genie.fabric.base.Process`; waiting for them brings and merges their files."""

    def __init__(self, fabric: InventoryFabric, path: Path, folder: Path, processes: Mapping[str, SshProcess]) -> None:
        self._fabric = fabric
        self._path = path
        self._folder = folder
        self._processes = dict(processes)
        self.merged = False

    @property
    def pid(self) -> int:
        """Of the first one's ssh client."""
        return next(iter(self._processes.values())).pid

    def poll(self) -> int | None:
        """The first exit code that is not 0; None while one runs."""
        codes = [process.poll() for process in self._processes.values()]
        return next((code for code in codes if code), None if None in codes else 0)

    def kill(self) -> None:
        """SIGKILL to all."""
        for process in self._processes.values():
            process.kill()

    def close_stdin(self) -> None:
        """Ask all to take a last sample and end."""
        for process in self._processes.values():
            process.close_stdin()

    def wait(self, timeout_s: float | None = None) -> int:
        """The first exit code that is not 0, else 0, once all have ended and ``ports.smp`` is here.

        A host whose samples could not be brought counts as one whose sampler failed; the others' are kept.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        codes = [
            process.wait(None if deadline is None else max(0.1, deadline - time.monotonic()))
            for process in self._processes.values()
        ]
        if not self.merged:
            self.merged = True
            if not self._fabric.gather_samples(self._path, self._folder, list(self._processes)):
                codes.append(_LOST)
        return next((code for code in codes if code), 0)


def _run_id(run_dir: Path) -> str:
    """The run's own id where it has a manifest; else one of this fabric's own."""
    try:
        manifest = jsontext.parse((run_dir / "manifest.json").read_text())
    except (OSError, ValueError):
        manifest = None
    found = str(manifest.get("run_id", "")) if isinstance(manifest, dict) else ""
    return found if _RUN_ID.fullmatch(found) else secrets.token_hex(16)


def _is_ours(address: str) -> bool:
    """Whether agents' connections to ``address`` can be listened for here."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return True
