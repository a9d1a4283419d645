"""Everything that is decided before the network is touched, and its text for ``dry_run=true``.

`make_plan` reads the configuration and the workload, checks them against the topology, the fabric's capabilities
and each other, and returns a frozen `Plan`; it raises rather than adjust. `genie.experiment.run` acts on it. The
only thing it does to the machine is to ask the fabric what is possible here.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import genie
from genie import schema, topology, workload
from genie.collectives.lower import lower
from genie.collectives.program import RankProgram
from genie.engine.encode import EngineSettings, event_capacity
from genie.engine.predict import Prediction, predict
from genie.engine.wire import EVENT
from genie.errors import ConfigError, EnvironmentUnfit, PlanError, closest
from genie.fabric import InventoryConfig, open_fabric
from genie.fabric.base import Capabilities
from genie.faults import safety
from genie.faults.plan import FaultPlan, RunFacts, plan_faults
from genie.faults.revert import left_open
from genie.results.compare import named_baseline
from genie.results.records import PlanRecord, to_plain
from genie.schema import ExperimentConfig
from genie.topology import Topology
from genie.topology.inventory import inventory as read_network
from genie.topology.model import Node
from genie.topology.routes import forwards
from genie.transport import RankPlace
from genie.transport.built import refuse_missing, refuse_unfit_hosts
from genie.units import format_bytes, format_ns, format_rate, parse_ns
from genie.workload.check import CheckedTrace, check
from genie.workload.config import ChakraConfig

SPIN_NS = 150_000
"""How long before a deadline a rank spins with ``transport.spin=auto``: measured, sleeping until 150 us before and
spinning the rest brings the mean timer error from 40 us to below 1 us where cores are free."""

HOP_LATENCY_NS = 30_000
"""One-way delay of a namespace hop on an idle two-core machine, for predictions only."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One experiment, decided. ``host_of_rank[r]`` is where rank r lives, ``transport_settings[r]`` what its transport
    is told; ``hashes`` tell which runs are comparable.
    """

    config: ExperimentConfig
    checked: CheckedTrace
    topology: Topology
    host_of_rank: tuple[str, ...]
    programs: tuple[RankProgram, ...]
    settings: EngineSettings
    transport_settings: tuple[Mapping[str, str], ...]
    capabilities: Capabilities
    faults: tuple[FaultPlan, ...]
    prediction: Prediction | None
    hashes: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def iterations(self) -> int:
        """How often the workload is repeated, warm-up included."""
        return self.settings.iterations

    @property
    def time_dilation(self) -> float:
        """Real time over model time: 1 where nothing is dilated."""
        return float(getattr(self.config.fabric, "time_dilation", 1.0))

    def render(self) -> str:
        """The plan for people."""
        return "\n".join(_render(self))


def make_plan(config: ExperimentConfig) -> Plan:
    """Decide one experiment. Raises a GenieError that names what does not fit; touches nothing."""
    if not config.dry_run:
        safety.refuse_killed(config.safety)
    network = _network(config)
    hashes = _hashes(config, network)
    _refuse_before_work(config, hashes)
    trace = workload.load(config.workload)
    checked = check(trace)
    host_of_rank = tuple(topology.place(network, trace.world, config.topology.placement))
    streams = getattr(config.workload, "streams", "merged")
    programs = tuple(lower(checked, config.collective, streams=streams))
    _refuse_two_controls(config)
    config.transport.check(host_of_rank, config.choices["fabric"].name)
    refuse_missing(config.transport)
    places = _rank_places(network, host_of_rank)
    transport_settings = tuple(config.transport.settings(place) for place in places)
    fabric = open_fabric(config.fabric, network, Path(config.out))
    # Hosts of an inventory have said what they have; those of the other fabrics are this machine.
    refuse_unfit_hosts(config.transport, places, fabric.address, getattr(fabric, "rdma", None))
    capabilities = fabric.capabilities()
    congestion_control = _congestion_control(config)
    dilation = float(getattr(config.fabric, "time_dilation", 1.0))
    facts = RunFacts(
        packets="exact" if config.transport.is_exact else getattr(config.fabric, "packets", "bulk"),
        congestion_control=congestion_control,
        seed=config.seed,
        time_dilation=dilation,
        mtu=int(str(network.parameters.get("mtu", 1500))),
        placement=host_of_rank,
        addresses={node.name: fabric.address(node.name) for node in network.hosts} if config.fault else {},
        platforms={node.name: fabric.platforms(node.name) for node in network.nodes} if config.fault else {},
        iterations=config.warmup + config.workload.iterations,
    )
    wanted = {name: fault for name, fault in config.fault.items() if not isinstance(fault, schema.NoFault)}
    faults = plan_faults(wanted, network, capabilities, facts)
    settings = EngineSettings(
        run_id=bytes(16),  # each run has its own; `genie.experiment` fills it in
        iterations=config.warmup + config.workload.iterations,
        verify=config.verify,
        record_messages=config.record.messages,
        window_messages=config.collective.window_messages,
        timeout_ns=config.timeout_ns,
        spin_ns=_spin_ns(config, network, host_of_rank),
        transport=config.transport.name,
        congestion_control=congestion_control,
        connect_timeout_s=parse_ns(config.transport.connect_timeout, key="transport.connect_timeout") // 10**9,
        sndbuf_bytes=getattr(config.transport, "sndbuf_bytes", 0),
        rcvbuf_bytes=getattr(config.transport, "rcvbuf_bytes", 0),
        compute_scale_ppm=round(dilation * 1_000_000),
        # Only where packets take paths: on the shared loopback a fixed port may belong to somebody else.
        seed=config.seed if capabilities.shaping else None,
    )
    _refuse_no_room(Path(config.out), programs, settings, arms=3 if config.protocol == "aba" else 1)
    rates_bps = _host_rates(network) if capabilities.shaping else {}
    prediction = predict(programs, host_of_rank, rates_bps, HOP_LATENCY_NS) if rates_bps else None
    predicted_ns = prediction.iteration_ns * settings.iterations * dilation if prediction else 0
    _refuse_longer_than_hosts_wait(config, predicted_ns)
    safety.check(faults, network, config.safety, config.allow_risk, fabric, predicted_ns=predicted_ns)
    open_there = left_open(Path(config.out), fabric, [node.name for node in network.nodes])
    notes = [*trace.notes, *fabric.notes, *config.transport.notes(config.timeout_ns), *open_there]
    return Plan(
        config, checked, network, host_of_rank, programs, settings, transport_settings, capabilities, faults,
        prediction, hashes, tuple(notes),
    )  # fmt: skip


def _network(config: ExperimentConfig) -> Topology:
    """The topology: built as configured, or as the inventory's hosts are cabled."""
    if not isinstance(config.fabric, InventoryConfig):
        return topology.build(config.topology)
    if not isinstance(config.topology, topology.InventoryTopologyConfig):
        raise ConfigError(
            f"fabric=inventory runs on the network its hosts are on, found topology {config.topology.name!r}",
            key="topology",
            hint="leave topology out, or write topology=inventory",
        )
    return read_network(config.fabric)


def _refuse_before_work(config: ExperimentConfig, hashes: Mapping[str, str]) -> None:
    """What would otherwise show only when the run is over, or halfway into it."""
    directory = Path(config.run_dir)
    if config.run_dir and directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise ConfigError(f"{config.run_dir} exists and is not an empty directory", key="run_dir")
    if config.baseline not in ("auto", "none"):
        named_baseline(config.baseline, hashes, Path(config.out))
    name = _congestion_control(config)
    if name:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
            try:
                trial.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
            except OSError as error:
                # EPERM says that it exists, and that not everybody may choose it in the machine's own namespace.
                if error.errno == errno.ENOENT:
                    offered = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
                    raise EnvironmentUnfit(
                        f"transport.congestion_control: this kernel has no {name!r}; {closest(name, offered)}"
                    ) from error


def _refuse_no_room(out: Path, programs: tuple[RankProgram, ...], settings: EngineSettings, arms: int) -> None:
    """Ranks reserve the room for all their events before they start; say it before anything is built."""
    wanted = arms * sum(event_capacity(program, settings) * EVENT.itemsize for program in programs)
    absolute = out.absolute()
    place = next(path for path in (absolute, *absolute.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if wanted > free:
        raise PlanError(
            f"events of {arms * settings.iterations} iterations need {format_bytes(wanted)}, "
            f"{place} has {format_bytes(free)}",
            hint="lower workload.iterations or warmup, set record.messages=false, or choose another out=DIR",
        )


def _refuse_longer_than_hosts_wait(config: ExperimentConfig, predicted_ns: float) -> None:
    """Real hosts end a run at its time limit, whatever it was worth by then."""
    limit = getattr(config.fabric, "time_limit", "")
    if limit and predicted_ns > parse_ns(limit, key="fabric.time_limit"):
        raise PlanError(
            f"the run is predicted to take {format_ns(predicted_ns)}, longer than fabric.time_limit={limit}",
            hint="raise fabric.time_limit, or lower workload.iterations",
        )


def _congestion_control(config: ExperimentConfig) -> str:
    """TCP's, "" where the transport leaves it to the kernel or is not TCP."""
    return str(getattr(config.transport, "congestion_control", ""))


def _rank_places(network: Topology, host_of_rank: tuple[str, ...]) -> tuple[RankPlace, ...]:
    """Where each rank runs; on a host with several ranks they are numbered from 0."""
    attributes = {node.name: node.attributes for node in network.hosts}
    ranks_on: Counter[str] = Counter()
    found = []
    for rank, host in enumerate(host_of_rank):
        found.append(RankPlace(rank, host, ranks_on[host], attributes[host]))
        ranks_on[host] += 1
    return tuple(found)


def _refuse_two_controls(config: ExperimentConfig) -> None:
    """Sockets take the transport's congestion control, routes the fabric's: it must be the same one."""
    routes, sockets = getattr(config.fabric, "congestion", ""), _congestion_control(config)
    if routes and sockets and routes != sockets:
        raise PlanError(
            f"fabric.congestion is {routes!r}, but transport.congestion_control is {sockets!r}",
            hint="give the latter only; the fabric follows it",
        )


def _spin_ns(config: ExperimentConfig, network: Topology, host_of_rank: tuple[str, ...]) -> int:
    """How long a rank spins before it sleeps: not where more ranks than cores would, and take them from ones that work.

    Hosts that say how many cores they have (``cpus``) are machines; all others share the cores of this process.
    """
    if config.transport.spin != "auto":
        return parse_ns(config.transport.spin, key="transport.spin")
    own = {node.name: int(node.attributes["cpus"]) for node in network.hosts if "cpus" in node.attributes}
    ranks = Counter(host_of_rank)
    if own:
        crowded = any(count > own[host] for host, count in ranks.items())
    else:
        crowded = len(host_of_rank) > len(os.sched_getaffinity(0))
    return 0 if crowded else SPIN_NS


def _host_rates(network: Topology) -> dict[str, int]:
    """Egress rate of each host: the sum over its ports."""
    rates: Counter[str] = Counter()
    hosts = {node.name for node in network.hosts}
    for port in network.ports:
        if port.node in hosts:
            rates[port.node] += port.model.rate_bps
    return dict(rates)


def _hashes(config: ExperimentConfig, network: Topology) -> dict[str, str]:
    """What a baseline must share with a run; the fault, the seed's effect on it, and where results go are left out."""
    mapping = schema.to_mapping(config)
    if isinstance(config.fabric, InventoryConfig):  # the same hosts and cables, whatever file describes them
        hosts = [(node.name, node.role) for node in network.nodes]
        mapping["fabric"] = {"hosts": hosts, "links": to_plain(network.links), "mtu": network.parameters["mtu"]}
    if isinstance(config.workload, ChakraConfig):  # the same traces, wherever they lie; others are another workload
        mapping["workload"] = workload.identity(config.workload)

    def digest(*keys: str) -> str:
        text = json.dumps({key: mapping[key] for key in keys}, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    return {
        "workload": digest("workload", "seed", "warmup"),
        "topology": digest("topology", "fabric"),
        "transport": digest("transport", "collective", "verify", "record"),
        "engine": genie.__version__,
    }


def _render(plan: Plan) -> list[str]:
    config, network = plan.config, plan.topology
    lines = ["plan (nothing was touched)"]
    lines += [f"  note: {note}" for note in plan.notes]
    lines.append(
        f"ranks: {len(plan.programs)}, {config.workload.iterations} iterations of workload "
        f"{config.workload.name} after {config.warmup} to warm up"
    )
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(plan.host_of_rank):
        by_host.setdefault(host, []).append(rank)
    lines += [f"  {host}: rank {', '.join(map(str, ranks))}" for host, ranks in by_host.items()]
    lines.append(
        f"topology {network.name}: {len(network.hosts)} hosts, {len(network.nodes) - len(network.hosts)} switches"
    )
    shapes = Counter((link.tier, link.a.model.rate_bps, link.b.model.rate_bps) for link in network.links)
    for (tier, a_bps, b_bps), count in shapes.items():
        rate = format_rate(a_bps) if a_bps == b_bps else f"{format_rate(a_bps)} / {format_rate(b_bps)}"
        lines.append(
            f"  {count} {tier} links of {rate}" + ("" if plan.capabilities.shaping else ", not shaped on this fabric")
        )
    lines.append(f"programs: {_program_text(plan.programs)}")
    records = max(event_capacity(program, plan.settings) for program in plan.programs)
    lines.append(f"  event records: at most {records} a rank")
    lines += _prediction_text(plan)
    if config.protocol == "aba":
        lines.append("protocol aba: baseline, the faults below, baseline, one after the other on one fabric")
    if not plan.faults:
        lines.append("faults: none")
    lines += [fault.describe() for fault in plan.faults]
    return lines


def _prediction_text(plan: Plan) -> list[str]:
    found = plan.prediction
    if found is None:
        return ["expected healthy iteration: not predicted, this fabric shapes nothing"]
    how = "every message followed" if found.exact else "large exchanges by their bytes"
    alone_ns = format_ns(found.busiest_host_ns)
    sent, busiest = sum(found.sent_bytes), max(found.sent_bytes)
    floor = f"compute alone {format_ns(max(found.compute_ns))}, wire of {found.busiest_host} alone"
    return [
        f"  bytes an iteration: {format_bytes(sent)} in all, {format_bytes(busiest)} by the busiest rank",
        f"expected healthy iteration: {format_ns(found.iteration_ns)} ({how}; {floor} {alone_ns})",
    ]


def _program_text(programs: tuple[RankProgram, ...]) -> str:
    counts = {
        "operators": [len(program.ops) for program in programs],
        "calls": [len(program.calls) for program in programs],
        "template steps": [sum(len(template.steps) for _, template in program.templates) for program in programs],
    }
    return ", ".join(f"{min(found)} to {max(found)} {what}" for what, found in counts.items()) + " a rank"


def plan_record(plan: Plan) -> PlanRecord:
    """``plan.json`` (docs/run-directory.md)."""
    config = plan.config
    return PlanRecord(
        name=config.label,
        workload=config.choices["workload"].name,
        topology=config.choices["topology"].name,
        transport=config.choices["transport"].name,
        fabric=config.choices["fabric"].name,
        iterations=plan.iterations,
        placement=plan.host_of_rank,
        ports=tuple(port.name for port in plan.topology.ports),
        warmup=config.warmup,
        dilation=plan.time_dilation,
        links=tuple(link.name for link in plan.topology.links),
        faults=tuple({"name": fault.name, "role": fault.role, "plan": fault.describe()} for fault in plan.faults),
        collective=to_plain(config.collective),
        parameters=to_plain(config.workload),
        predicted_iteration_ns=float(plan.prediction.iteration_ns) if plan.prediction else None,
        notes=plan.notes,
        shaped=plan.capabilities.shaping,
        one_clock=plan.capabilities.one_clock,
        nodes={node.name: _role(node) for node in plan.topology.nodes},
        port_rates_bps=tuple(port.model.rate_bps for port in plan.topology.ports),
        mtu=int(str(plan.topology.parameters.get("mtu", 0))),
    )


def _role(node: Node) -> str:
    return "forwarding host" if node.is_host and forwards(node) else node.role
