"""The embedded fabric: every host and switch a network namespace, every cable a veth pair, every port a queue.

`genie.experiment` uses it through `genie.fabric.base.Fabric`. It runs what `genie.fabric.program` says inside a
holder (`genie.fabric.client`), so that nothing outlives the run and two runs cannot meet. It knows no fault: faults
are commands that someone runs in its nodes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from genie.clocks import HostClock
from genie.engine.binaries import find_binary
from genie.errors import ConfigError, EnvironmentUnfit, PlanError, RunAborted, closest
from genie.fabric import counters as parse
from genie.fabric.base import Capabilities, Completed
from genie.fabric.client import HolderClient, NetnsProcess, settle_run
from genie.fabric.config import PACKETS, NetnsConfig
from genie.fabric.holder import BPF_DIR, NETNS_DIR, PRIVATE_DIR
from genie.fabric.probe import PINNED_MARKER, Probe, load_marker_argv, probe
from genie.fabric.program import LOSS_TABLE, FabricProgram, NodeProgram, Settings, fabric_program
from genie.topology.model import Topology
from genie.topology.routes import AddressPlan, address_plan
from genie.units import format_rate, parse_ns

MARKER_MAP = BPF_DIR
_STEP_TIMEOUT_S = 60.0
_LEAST_SAMPLE_INTERVAL_NS = 100_000
_CONGESTION = re.compile(r"[a-z0-9_-]{1,15}")
_EXACT_LIMIT_PACKETS_PER_S = 8_000
"""Of one host among eight: 3,000 kept two cores a quarter busy, 8,300 above four fifths (docs/fabric.md)."""
LEAST_RATE_BPS, MOST_RATE_BPS = 8_000, 1_000_000_000_000
# What `genie-port read` says of the moment; not cumulative, so not a counter.
_GAUGES = {"backlog_bytes", "backlog_packets", "marker_peak_bytes", "marker_enabled"}
_OPTIONAL_SYSCTLS = {
    "net/ipv4/fib_multipath_hash_seed": "flows take other paths in every run (kernel older than 6.11)",
    "net/core/rps_default_mask": "packets can be reordered between namespaces (kernel older than 6.3)",
    "net/ipv6/conf/all/disable_ipv6": "",
    "net/ipv6/conf/default/disable_ipv6": "",
}


class NetnsFabric:
    """See module. ``notes`` says what this machine makes different from what the topology asks for."""

    name = "netns"

    def __init__(self, config: NetnsConfig, topology: Topology, run_dir: Path) -> None:
        if config.packets not in PACKETS:
            raise ConfigError(f"no mode {config.packets!r}, {closest(config.packets, PACKETS)}", key="fabric.packets")
        if not config.time_dilation >= 1:
            raise ConfigError(
                f"expected a factor of at least 1, found {config.time_dilation:g}: below it the machine would have to "
                "be faster than the network it emulates",
                key="fabric.time_dilation",
            )
        for port in topology.ports:
            rate_bps = port.model.rate_bps / config.time_dilation
            if not LEAST_RATE_BPS <= rate_bps <= MOST_RATE_BPS:
                raise ConfigError(
                    f"makes {port.name} a port of {rate_bps:.3g} bit/s (its {format_rate(port.model.rate_bps)} divided "
                    f"by {config.time_dilation:g}); the shaper needs 8 kbit/s to 1 Tbit/s",
                    key="fabric.time_dilation",
                )
        if not _CONGESTION.fullmatch(config.congestion):
            raise ConfigError(
                f"expected the name of a TCP congestion control, found {config.congestion!r}", key="fabric.congestion"
            )
        if parse_ns(config.sample_interval, key="fabric.sample_interval") < _LEAST_SAMPLE_INTERVAL_NS:
            raise ConfigError(
                f"expected at least 100us, found {config.sample_interval!r}", key="fabric.sample_interval"
            )
        self._config = config
        self.topology = topology
        self._run_dir = run_dir
        self._plan: AddressPlan = address_plan(topology)
        self._client: HolderClient | None = None
        self._sampler: NetnsProcess | None = None
        self._has_markers = False
        self._build_notes: list[str] = []

    def capabilities(self) -> Capabilities:
        """What can be emulated here; nothing outside a throw-away namespace is touched."""
        found = probe()
        if found.unfit:
            reason = f"{found.unfit}; {found.remedy}"
            return Capabilities(False, False, False, False, "none", dict.fromkeys(_FEATURES, reason))
        reasons = {"own_cores": "its hosts share this machine's cores, and cpu_throttle slows their compute alone"}
        marker = _choose_marker(found)
        if not found.has("tbf"):
            reasons["shaping"] = found.missing["tbf"]
        if marker == "none":
            reasons["ecn"] = (
                f"no ECN marking here: {found.missing['red']}, and without it a BPF program must mark, but: "
                f"{found.missing['bpf']}. Run as root, or on a kernel with sch_red (Debian's and Ubuntu's have it)"
            )
        if not found.has("nft") and not found.has("netem"):
            reasons["loss"] = f"{found.missing['nft']}; {found.missing['netem']}"
        if not found.has("detour"):
            reasons["delay"] = found.missing["detour"]
        return Capabilities(
            shaping="shaping" not in reasons,
            ecn="ecn" not in reasons,
            loss="loss" not in reasons,
            delay="delay" not in reasons,
            own_cores=False,
            faults=True,
            marker=marker,
            reasons=reasons,
        )

    @property
    def _mtu(self) -> int:
        mtu = self.topology.parameters.get("mtu", 1500)
        if not isinstance(mtu, int):
            raise PlanError(f"topology {self.topology.name!r} has mtu {mtu!r}, expected bytes")
        return mtu

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the plan: what is emulated otherwise than asked, and what to expect of this machine."""
        found = probe()
        if found.unfit:
            return (found.unfit,)
        notes = [*found.notes, *self._build_notes]
        wants_ecn = any(port.model.ecn for port in self.topology.ports)
        reason = self.capabilities().reasons.get("ecn")
        if wants_ecn and reason:
            notes.append(f"ports do not mark ECN. {reason}")
        fastest = max((port.model.rate_bps for port in self.topology.ports), default=0) / self._config.time_dilation
        host_ports = [port.model.rate_bps for link in self.topology.links if link.tier == "host" for port in link.ports]
        fastest_host = max(host_ports, default=fastest) / self._config.time_dilation
        packets_per_s = fastest_host / 8 / self._mtu
        if self._config.packets == "exact" and packets_per_s > _EXACT_LIMIT_PACKETS_PER_S:
            notes.append(
                f"hosts at {format_rate(fastest_host)} with fabric.packets=exact send {packets_per_s:.0f} packets/s "
                "each, likely bound by this machine's CPU: lower topology.host_rate, raise topology.mtu or "
                "fabric.time_dilation, or use fabric.packets=bulk"
            )
        return tuple(notes)

    def program(self) -> FabricProgram:
        """The commands that `build` will run, for the plan."""
        settings = Settings(
            packets=self._config.packets,
            time_dilation=self._config.time_dilation,
            congestion=self._config.congestion,
            mtu=self._mtu,
            seed=self._config.seed,
            marker=self.capabilities().marker,
            cpus=os.cpu_count() or 1,
        )
        return fabric_program(self.topology, self._plan, settings, PINNED_MARKER)

    def build(self) -> None:
        """Bring it up. Raises EnvironmentUnfit naming what failed; leaves nothing then."""
        if self._client is not None:
            raise RunAborted("the fabric is already built")
        found = probe()
        if found.unfit:
            raise EnvironmentUnfit(found.unfit, hint=found.remedy)
        if not found.has("tbf"):
            raise EnvironmentUnfit(
                f"ports cannot be shaped: {found.missing['tbf']}",
                hint="load the module (modprobe sch_tbf), or fabric=loopback, which shapes nothing",
            )
        if any(port.model.loss_ratio for port in self.topology.ports) and not found.has("nft"):
            raise EnvironmentUnfit(f"topology.loss needs nft: {found.missing['nft']}", hint="apt-get install nftables")
        program = self.program()
        self._has_markers = bool(program.markers)
        self._run_dir.mkdir(parents=True, exist_ok=True)
        self._client = HolderClient(self._run_dir / "fabric.log")
        try:
            self._bring_up(self._client, program)
        except BaseException:
            self.destroy()
            raise

    def _bring_up(self, client: HolderClient, program: FabricProgram) -> None:
        nodes = [[node.name, node.sysctls] for node in program.nodes]
        self._check_sysctls(client.call("nodes", nodes=nodes)["refused"])
        links = client.ask_run("", ["ip", "-batch", "-"], program.links.encode(), _STEP_TIMEOUT_S)
        if program.markers:
            lines = "".join(
                f"{port.ifindex} {port.rate_bytes_per_s} {port.limit_bytes} "
                f"{port.ecn.kmin_bytes} {port.ecn.kmax_bytes} {port.ecn.pmax:.9f}\n"
                for port in program.markers
            )
            loaded = client.run("", load_marker_argv(), lines.encode(), _STEP_TIMEOUT_S)
            _require(loaded, "load the marking program")
        _require(
            settle_run("", ["ip", "-batch", "-"], _STEP_TIMEOUT_S, links), "create the cables", batch=program.links
        )

        # Nodes are independent: all at once, each node's own steps in order.
        steps = (
            ("ip", ["ip", "-batch", "-"], "set addresses and routes"),
            ("tc", ["tc", "-batch", "-"], "shape the ports"),
            ("nft", ["nft", "-f", "-"], "add loss"),
        )
        for attribute, argv, what in steps:
            begun = []
            for node in program.nodes:
                text: str = getattr(node, attribute)
                if text:
                    begun.append((node, client.ask_run(node.name, argv, text.encode(), _STEP_TIMEOUT_S)))
            for node, future in begun:
                _require(settle_run(node.name, argv, _STEP_TIMEOUT_S, future), what, node, getattr(node, attribute))

    def _check_sysctls(self, refused: list[list[str]]) -> None:
        for node, key, value, reason in refused:
            if key not in _OPTIONAL_SYSCTLS:
                raise EnvironmentUnfit(
                    f"node {node!r}: could not set {key.replace('/', '.')} to {value}: {reason}",
                    hint="fabric=loopback runs without namespaces (it shapes nothing and refuses faults)",
                )
            note = _OPTIONAL_SYSCTLS[key]
            if note and note not in self._build_notes:
                self._build_notes.append(note)

    def _built(self) -> HolderClient:
        if self._client is None:
            raise RunAborted("the fabric is not built")
        return self._client

    def address(self, host: str) -> str:
        """The IPv4 address that ranks on ``host`` use. Raises PlanError for anything but a host."""
        return self._plan.address(host)

    @property
    def plan(self) -> AddressPlan:
        """Addresses, interface indexes and routes of every node."""
        return self._plan

    @property
    def holder_pid(self) -> int:
        """The process of this machine that the fabric ends with, for messages only."""
        return self._built().pid

    def spawn(
        self, node: str, argv: Sequence[str], *, stdin: bytes, log: Path, cwd: Path | None = None
    ) -> NetnsProcess:
        """Start a program in a node; it ends with the fabric at the latest."""
        return self._built().spawn(node, argv, stdin=stdin, log=log, cwd=cwd)

    def run(self, node: str, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> Completed:
        """A command in a node ("" is the fabric's root namespace) to its end; threads may run many at once."""
        return self._built().run(node, argv, stdin, timeout_s)

    def read(self, node: str, path: str) -> str | None:
        """A file as it looks from inside a node (``/proc/net/…``); None if it is not there."""
        return self._built().read([(node, path)])[0]

    def _port_arguments(self) -> list[str]:
        arguments = []
        for port in self.topology.ports:
            ifindex = self._plan.interface(port.name).ifindex
            arguments += ["--port", f"{NETNS_DIR}/{port.node}:{ifindex}"]
        if self._has_markers:
            arguments += ["--map", MARKER_MAP]
        return arguments

    def counters(self) -> dict[str, dict[str, int]]:
        """Node counters as in ``nstat``, port counters by port name, and "" for what the machine as a whole dropped."""
        client = self._built()
        argv = [str(find_binary("genie-port")), "read", *self._port_arguments()]
        ports = client.ask_run("", argv, b"", _STEP_TIMEOUT_S)
        files = [(node.name, path) for node in self.topology.nodes for path in parse.SNMP_FILES]
        texts = client.read([*files, ("", parse.SOFTNET_FILE)])
        result: dict[str, dict[str, int]] = {"": parse.parse_softnet(texts.pop() or "")}
        for (node, _), text in zip(files, texts, strict=True):
            result.setdefault(node, {}).update(parse.parse_snmp(text or ""))
        answer = settle_run("", argv, _STEP_TIMEOUT_S, ports)
        _require(answer, "read port counters")
        for port, values in zip(self.topology.ports, json.loads(answer.stdout)["ports"], strict=True):
            result[port.name] = {name: value for name, value in values.items() if name not in _GAUGES}
        self._add_losses(client, result)
        return result

    def _add_losses(self, client: HolderClient, result: dict[str, dict[str, int]]) -> None:
        """Packets that the topology's own loss took, as "lost" of the port they left by."""
        receivers: dict[str, dict[str, str]] = {}
        for link in self.topology.links:
            for sender, receiver in ((link.a, link.b), (link.b, link.a)):
                if sender.model.loss_ratio:
                    receivers.setdefault(receiver.node, {})[f"from_{receiver.peer}"] = sender.name
        for node, senders in receivers.items():
            listed = client.run(node, ["nft", "-j", "list", "table", "netdev", LOSS_TABLE])
            _require(listed, "read loss counters")
            for chain, packets in parse.parse_nft_counters(listed.stdout).items():
                result[senders[chain]]["lost"] = packets

    def start_sampler(self, path: Path, interval_ns: int) -> NetnsProcess | None:
        """Record every port's queue into ``path`` until `destroy`, `kill` or the end of its standard input."""
        argv = [str(find_binary("genie-port")), "sample", "--out", str(path.absolute())]
        argv += ["--interval-ns", str(interval_ns), *self._port_arguments()]
        log = self._run_dir / "fabric.log"
        self._sampler = self._built().spawn("", argv, stdin=b"", log=log, hold_stdin=True)
        return self._sampler

    def tool(self, name: str) -> str:
        """Path of one of GENIE's programs: nodes share this machine's files."""
        try:
            return str(find_binary(name))
        except EnvironmentUnfit:
            return name

    def ansible_host(self, node: str) -> dict[str, str]:
        """By the connection plugin of playbooks/connection_plugins, which enters the namespace."""
        return {"ansible_host": node, "ansible_connection": "genie_netns"}

    def platforms(self, node: str) -> tuple[str, ...]:
        """Every node is a Linux, among others that can be entered from it."""
        return ("netns", "linux")

    def state_dir(self, node: str) -> str:
        """Below the holder's private /run, so gone with it."""
        return f"{PRIVATE_DIR}/node/{node}"

    def lock_file(self, node: str) -> str:
        """None: a namespace of the holder is this run's alone."""
        return ""

    def protected_interfaces(self, node: str) -> frozenset[str]:
        """Only loopback: nothing else of the machine is in a node."""
        return frozenset({"lo"})

    @property
    def control_address(self) -> str:
        """None: nodes share this machine's files, and so a Unix socket."""
        return ""

    def collect(self, directory: Path) -> None:
        """Nothing to bring: it was written here."""

    def learn_clocks(self, clocks: Mapping[str, HostClock]) -> None:
        """All nodes read this machine's clock."""

    def destroy(self) -> None:
        """Take it down; idempotent. The kernel removes nodes and cables as the last process goes."""
        client, self._client = self._client, None
        sampler, self._sampler = self._sampler, None
        if client is None:
            return
        try:
            if sampler is not None and sampler.poll() is None:
                sampler.close_stdin()
                sampler.wait(timeout_s=2.0)
        finally:
            client.close()


_FAILED_LINE = re.compile(r"Command failed -:(\d+)")
_FEATURES = ("shaping", "ecn", "loss", "delay", "faults")


def _choose_marker(found: Probe) -> str:
    for marker in ("red", "bpf"):
        if found.has(marker):
            return marker
    return "none"


def _require(completed: Completed, what: str, node: NodeProgram | None = None, batch: str = "") -> None:
    if completed.returncode == 0:
        return
    where = f" in node {node.name!r}" if node else ""
    said = " ".join(completed.stderr.split()) or "nothing"
    # ip and tc count the lines of a batch; the text of the line is what a person can use.
    at_line = _FAILED_LINE.search(completed.stderr)
    lines = batch.splitlines()
    command = " ".join(completed.argv)
    if at_line and int(at_line.group(1)) <= len(lines):
        command = f"{completed.argv[0]} {lines[int(at_line.group(1)) - 1]}"
    raise EnvironmentUnfit(
        f"could not {what}{where}: {command!r} said: {said}",
        hint="genie doctor shows what this machine can do; fabric=loopback runs without namespaces",
    )
