"""What a preflight will do, decided before anything is touched: schedule, sizes, rails, and the run that measures.

`genie.preflight.command` asks `prepare` and hands the result to `genie.preflight.measuring`. Pure but for reading what
the plan of a run reads (an inventory's hosts are looked at).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from genie import topology
from genie.engine.encode import MOST_MESSAGES_A_STEP
from genie.errors import ConfigError, PlanError
from genie.fabric import InventoryConfig, open_fabric
from genie.plan import Plan, make_plan
from genie.preflight.config import PreflightConfig
from genie.preflight.record import fabric_hash
from genie.preflight.report import render_schedule
from genie.preflight.schedule import Schedule, load_bytes, schedule
from genie.rdma.rails import Rail, rails_of
from genie.schema import Choice, ExperimentConfig
from genie.topology import Topology
from genie.topology.inventory import inventory as read_network
from genie.units import format_bytes
from genie.workload.config import PairsConfig
from genie.workload.generators.pairs import MAX_OPERATORS, round_text


@dataclass(frozen=True, slots=True)
class Prepared:
    """A preflight, decided: nothing was touched.

    ``rails`` are their names, one that is "" where hosts have one way only; ``seats`` the device of each rail by host,
    where somebody named them. ``sizes``: rate of a way → bytes each way.
    """

    plan: Plan
    settings: PreflightConfig
    schedule: Schedule
    rails: tuple[str, ...]
    sizes: Mapping[int, int]
    seats: Mapping[str, tuple[Rail, ...]] = field(default_factory=dict)

    @property
    def fabric_hash(self) -> str:
        """What names the network, for the baseline."""
        return fabric_hash(self.plan.config, self.plan.hashes["topology"])

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


def prepare(config: ExperimentConfig, settings: PreflightConfig) -> Prepared:
    """Decide one preflight: schedule, sizes, the plan of the run. Raises GenieError; touches nothing."""
    network = _network(config)
    if len(network.hosts) < 2:
        raise PlanError(f"a preflight needs two hosts or more, topology {network.name!r} has {len(network.hosts)}")
    _refuse_tool(config, settings)
    shaped = open_fabric(config.fabric, network, Path(config.out)).capabilities().shaping
    rails, seats = rails_of_network(config, network)
    found = schedule(network, shaped=shaped, rounds=settings.rounds, seed=config.seed)
    if settings.rounds > found.all_rounds:
        raise ConfigError(
            f"the tournament of {len(found.hosts)} hosts has {found.all_rounds} rounds, found {settings.rounds}",
            key="preflight.rounds",
            hint="0 plays all of them",
        )
    channels = config.collective.channels
    sizes = {
        way.rate_bps: _whole(settings.load_bytes, settings.message_bytes)
        or load_bytes(way, time_ns=settings.time_ns, message_bytes=settings.message_bytes, channels=channels)
        for way in found.ways.values()
    }
    _refuse_too_many(found, settings, len(rails))
    _refuse_small_messages(tuple(sizes.values()), settings)
    plan = make_plan(_config_of_run(config, settings, found, sizes, len(rails)))
    return Prepared(plan, settings, found, rails, sizes, seats)


def _refuse_tool(config: ExperimentConfig, settings: PreflightConfig) -> None:
    """What perftest cannot do, it is not asked for."""
    if settings.tool != "perftest":
        return
    if config.transport.name != "verbs":
        raise ConfigError(
            f"perftest measures verbs, the transport is {config.transport.name}",
            key="preflight.tool",
            hint="add transport=verbs, or leave preflight.tool to auto",
        )
    if config.fault:
        raise ConfigError("faults are put in place by GENIE's engine only", key="preflight.tool", hint="use engine")


def rails_of_network(
    config: ExperimentConfig, network: Topology
) -> tuple[tuple[str, ...], dict[str, tuple[Rail, ...]]]:
    """Names of the rails, and each host's devices. Raises PlanError where hosts have different numbers of them."""
    devices = getattr(config.transport, "devices", None)
    if devices is None:
        return ("",), {}
    seats = {node.name: rails_of(node.name, node.attributes, devices) for node in network.hosts}
    counts = {len(rails): host for host, rails in seats.items()}
    if len(counts) > 1:
        shown = ", ".join(f"{host} has {count}" for count, host in sorted(counts.items()))
        raise PlanError(
            f"a preflight needs the same number of rails on all hosts: {shown}", hint="see genie_rdma_devices"
        )
    (count,) = counts
    if count < 2:
        return ("",), seats if count else {}
    names = [sorted({str(rails[number]) for rails in seats.values()}) for number in range(count)]
    return tuple(own[0] if len(own) == 1 else f"rail{number}" for number, own in enumerate(names)), seats


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
    if rounds := found.rounds * MAX_OPERATORS // ends:
        ways.append(f"preflight.rounds={rounds} for a part of the tournament")
    if not ways:  # a round alone is too much for these pings, all rounds are too much for one
        each = -(-len(found.pairs) // found.rounds)
        ways.append(f"preflight.rounds=1 preflight.pings={MAX_OPERATORS // (4 * each * rails) - 1}")
    raise PlanError(
        f"{len(found.pairs)} pairs with {settings.pings} pings each are more than one program holds",
        hint=" or ".join(ways),
    )


def _refuse_small_messages(sizes: Sequence[int], settings: PreflightConfig) -> None:
    """A load of more messages than a program can number, in the words of a preflight's keys."""
    if (most := max(sizes, default=0)) > settings.message_bytes * MOST_MESSAGES_A_STEP:
        raise ConfigError(
            f"{format_bytes(most)} each way are more than {MOST_MESSAGES_A_STEP} messages, found "
            f"{settings.message_bytes} bytes a message",
            key="preflight.message_bytes",
            hint=f"preflight.message_bytes={-(-most // MOST_MESSAGES_A_STEP)} or more, or a smaller load",
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
        report=replace(config.report, timeline=False, html=False),
        choices={**config.choices, "workload": Choice("pairs", "pairs")},
    )
