"""Recipes → exact changes. Pure: reads the topology, the capabilities and the roles' own files; touches nothing.

`plan_faults` resolves targets, converts parameters to numbers for each port or node, refuses what cannot work here or
what two faults would both change, and renders the role's own commands for the dry run. What only the target knows
is shown as ``<as found>``: the undo goes back to what was found, never to a default.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from genie.engine.binaries import find_binary
from genie.errors import EnvironmentUnfit, PlanError
from genie.fabric.base import Capabilities
from genie.fabric.holder import BPF_DIR
from genie.faults.change import Argv, render_steps, render_word
from genie.faults.config import FaultConfig
from genie.faults.parameters import convert
from genie.faults.recipe import RISKS, Mechanism, Platform, find_platform, load_mechanism, load_platform
from genie.faults.targets import resolve, resolve_nodes
from genie.topology.model import Node, Port, Topology
from genie.units import format_ns

ECN_CONTROLS = ("cubic", "reno", "dctcp")
DRY_TOOLS = {"genie_port": "genie-port", "genie_agent": "genie-agent", "genie_load": "genie-load"}
_FAULT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")  # part of nft tables, folders and inventory names
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_FOUND_UNIT = re.compile(r"'<as found>(?:bit|b)?'|<as found>(?:bit|b)?")
_INTERFACE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}(/[0-9]{1,3}){0,2}")  # Ethernet1/1 on modular switches


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a fault must know of the run around it.

    ``packets`` is ``fabric.packets``: "exact" or "bulk". ``congestion_control`` "" means not known.
    ``time_dilation`` divides every rate on the wire. ``placement`` is the host of each rank, for ``rank=3``.
    ``addresses``: IPv4 of each host. ``platforms`` of each node, best first; a node that isn't there is ["linux"].
    ``iterations`` of the run with its warm-up, 0: not known.
    """

    packets: str = "bulk"
    congestion_control: str = ""
    seed: int = 1
    time_dilation: float = 1.0
    mtu: int = 1500
    placement: tuple[str, ...] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)
    platforms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    iterations: int = 0


@dataclass(frozen=True, slots=True)
class Attached:
    """A cable at a node that has a fault: its interface there, and what is at the other end."""

    interface: str
    peer: str
    peer_interface: str
    tier: str


@dataclass(frozen=True, slots=True)
class Change:
    """One change at one ``object`` of one node (an interface, or for faults of nodes what the mechanism changes), on
    behalf of ``target``: the faulted port, number ``index`` of the topology, or the node.

    ``values``: the parameters as numbers for this target (``rate_bps`` on the wire, ``ratio_ppb``, …). ``commands``,
    ``later`` and ``undo`` are shell text as the role runs it, for people. ``platform`` is a file's stem in the role.
    ``links``: the cables at the node, of a fault of nodes.
    """

    target: str
    node: str
    object: str
    port: Port | None
    index: int | None
    platform: str
    values: Mapping[str, int | str]
    commands: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    links: tuple[Attached, ...] = ()


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """One fault, decided. ``changes`` are in topology order; ``marker`` is the marking backend of the fabric."""

    name: str
    mechanism: Mechanism
    config: FaultConfig
    marker: str
    changes: tuple[Change, ...]
    facts: RunFacts = field(default_factory=RunFacts)

    @property
    def role(self) -> str:
        """The Ansible role that does it."""
        return self.mechanism.role

    @property
    def hypothesis(self) -> str:
        """What the fault is expected to do to a job; a claim to test, not a result."""
        return self.mechanism.hypothesis

    @property
    def risk(self) -> str:
        """The highest risk of the mechanism and of the platforms on which it is used."""
        said = (self.platform(change).risk for change in self.changes)
        return max((self.mechanism.risk, *filter(None, said)), key=RISKS.index)

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the faulted ports or nodes."""
        return tuple(change.target for change in self.changes)

    @property
    def ports(self) -> tuple[Port, ...]:
        """The faulted ports; none for a fault of nodes."""
        return tuple(change.port for change in self.changes if change.port is not None)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that are changed, each once, in order."""
        return tuple(dict.fromkeys(change.node for change in self.changes))

    @property
    def aimed_at(self) -> tuple[str, ...]:
        """Hosts that its parameters name: they are not changed, and feel it all the same."""
        named = [parameter.name for parameter in self.mechanism.parameters if parameter.kind == "host"]
        return tuple(dict.fromkeys(str(change.values[name]) for change in self.changes for name in named))

    @property
    def is_control(self) -> bool:
        """Whether it is there to change nothing (A/A, sham), so that its run is a healthy one."""
        return self.mechanism.changes == "nothing"

    def platform(self, change: Change) -> Platform:
        """How the role works on the node of a change."""
        return load_platform(self.role, change.platform)

    def port_variables(self, change: Change) -> dict[str, Any]:
        """What the role is told of one change, an element of ``genie_ports``."""
        told: dict[str, Any] = {"target": change.target, "object": change.object, "interface": change.object}
        told["mtu"] = self.facts.mtu
        if change.port is not None:
            model = change.port.model
            told["own_bps"] = round(model.rate_bps / self.facts.time_dilation)
            told["limit_bytes"] = told["own_limit_bytes"] = model.limit_bytes
            if model.ecn is not None:
                told |= {
                    "kmin_bytes": model.ecn.kmin_bytes,
                    "kmax_bytes": model.ecn.kmax_bytes,
                    "pmax": f"{model.ecn.pmax:.9g}",
                }
        if change.links:
            told["links"] = [asdict(link) for link in change.links]
        return {**told, "set": dict(change.values)}

    def describe(self) -> str:
        """Text for the dry run: targets, commands, undo."""
        said = {p.name: self.config.parameter(p.name) for p in self.mechanism.parameters}
        shown = ", ".join(f"{key} {value}" for key, value in said.items())
        lines = [
            f"fault {self.name}: {self.mechanism.summary}{f' ({shown})' if shown else ''}; risk {self.risk}",
            f"  expected: {self.hypothesis}",
            f"  window: {self.config.window.describe()}",
            f"  targets ({len(self.changes)}): {', '.join(self.targets)}",
        ]
        alike: dict[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], list[str]] = {}
        for change in self.changes:
            key = (change.node, change.commands, change.later, change.undo)
            alike.setdefault(key, []).append(change.target)
        for (node, commands, later, undo), targets in alike.items():
            lines.append(f"  in {node}, for {', '.join(targets)}:")
            lines += [f"    apply: {command}" for command in commands]
            lines += [f"    later: {command}" for command in later]
            lines += [f"    undo:  {command}" for command in undo]
        return "\n".join(lines)


def plan_faults(
    faults: Mapping[str, FaultConfig], topology: Topology, capabilities: Capabilities, facts: RunFacts
) -> tuple[FaultPlan, ...]:
    """All faults of a run, in the order given.

    Raises EnvironmentUnfit when this machine cannot emulate the fault (with its reason), PlanError when a target
    resolves to nothing, the fabric takes no faults, the run's settings would make it show
    nothing, or two faults change the same thing on a port or node.
    """
    plans = tuple(_plan(name, config, topology, capabilities, facts) for name, config in faults.items())
    taken: dict[tuple[str, str, str], str] = {}
    for plan in plans:
        if plan.is_control:
            continue
        for change in plan.changes:
            what = (change.node, change.object, plan.mechanism.changes)
            if what in taken:
                raise PlanError(
                    f"faults {taken[what]!r} and {plan.name!r} both change the {plan.mechanism.changes} of "
                    f"{change.target}",
                    hint=f"give them different targets: fault.{plan.name}.targets=[…]",
                )
            taken[what] = plan.name
    for plan in plans:
        _refuse_undone(plan, [other for other in plans if other is not plan])
    return plans


def _refuse_undone(plan: FaultPlan, others: Sequence[FaultPlan]) -> None:
    """Refuse a fault whose undo would undo another one, too."""
    if not plan.mechanism.puts_back:
        return
    reached = _reached(plan)
    for other in others:
        alike = other.role == plan.role and plan.mechanism.acts_on == "node"  # several ports of a node undo with care
        both = [node for node in (_reached(other) if alike else other.nodes) if node in reached]
        if both and (alike or other.mechanism.changes in plan.mechanism.puts_back):
            what = plan.mechanism.puts_back[0] if alike else other.mechanism.changes
            raise PlanError(
                f"faults {plan.name!r} and {other.name!r} do not go together on {both[0]}: what undoes {plan.name!r} "
                f"puts back the {what} of its nodes",
                hint=f"give them other targets (fault.{other.name}.targets=[…])"
                + (", or name all in the targets of one" if alike else ""),
            )


def _reached(plan: FaultPlan) -> tuple[str, ...]:
    """Nodes that a fault changes, and those that the nodes it takes down are cabled to."""
    return tuple(dict.fromkeys(n for change in plan.changes for n in (change.node, *(at.peer for at in change.links))))


def _plan(name: str, config: FaultConfig, topology: Topology, capabilities: Capabilities, facts: RunFacts) -> FaultPlan:
    if not _FAULT_NAME.fullmatch(name):
        raise PlanError(f"fault: {name!r} cannot be the name of a fault: letters, digits, '_' and '-' only, at most 63")
    mechanism = load_mechanism(config.role)
    _refuse_unfit(name, mechanism, ("faults",), capabilities, facts)
    first = config.window.at_iteration
    if first is not None and 0 < facts.iterations <= first:
        raise PlanError(
            f"fault.{name}.window.at_iteration: {first} is past the end: the run has {facts.iterations} iterations "
            f"with its warm-up, the last is {facts.iterations - 1}"
        )
    places: list[tuple[str, str, str, Port | None, int | None]] = []  # target, node, object, port, index
    if mechanism.acts_on in ("node", "host"):
        nodes: tuple[Node, ...] = resolve_nodes(
            name, config, topology, acts_on=mechanism.acts_on, seed=facts.seed, placement=facts.placement
        )
        places = [(node.name, node.name, mechanism.changes.replace(" ", "_"), None, None) for node in nodes]
    else:
        ports = resolve(
            name,
            config,
            topology,
            acts_on=mechanism.acts_on,
            eligible=lambda port: "" if _is_gear(mechanism, port.node, facts) else _ineligible(mechanism, port),
            seed=facts.seed,
            placement=facts.placement,
        )
        if mechanism.spread == "upstream":
            fed = {port.node for port in ports}
            ports = tuple(port for port in topology.ports if port in ports or port.peer in fed)
        numbers = {port.name: index for index, port in enumerate(topology.ports)}
        far = {port.name: other for link in topology.links for port, other in (link.ports, link.ports[::-1])}
        for port in ports:
            place = far[port.name] if mechanism.placed == "far_ingress" else port
            places.append((port.name, place.node, place.interface, port, numbers[port.name]))
    if not all(_is_gear(mechanism, node, facts) for _, node, _, _, _ in places):
        _refuse_unfit(name, mechanism, mechanism.requires, capabilities, facts)
    plan = FaultPlan(name, mechanism, config, capabilities.marker, (), facts)
    changes = []
    for target, node, subject, at_port, index in places:
        _refuse_name(name, "node", node, _NODE_NAME)
        _refuse_name(name, "interface", subject, _INTERFACE_NAME)
        offered = facts.platforms.get(node, ("linux",))
        platform = find_platform(mechanism, offered, capabilities.marker)
        if not offered:
            raise PlanError(
                f"fault.{name}: nothing can be changed on node {node!r}, which {target!r} means",
                hint=f"it stands for what nobody described; choose hosts: fault.{name}.targets=[HOST]",
            )
        if not platform:
            raise PlanError(
                f"fault.{name}: role {mechanism.role} does not know {' or '.join(offered)}, which node {node!r} is",
                hint=f"it knows {', '.join(mechanism.platforms)} (genie faults list --support)",
            )
        values: dict[str, int | str] = {}
        for parameter in mechanism.parameters:
            if parameter.only and platform.partition(".")[0] not in parameter.only:
                continue
            values |= convert(name, parameter, config.parameter(parameter.name), target, at_port, facts)
        links = () if at_port else _attached(node, topology)
        change = Change(target, node, subject, at_port, index, platform, values, links=links)
        how = load_platform(mechanism.role, platform)
        if how.deadman == "own" and config.window.kind != "whole":
            raise PlanError(
                f"fault.{name}: on {platform} the switch itself holds the time limit of a change, which cannot be made "
                f"{config.window.describe()}",
                hint=f"let it last the whole run: fault.{name}.window={{}}",
            )
        told = plan.port_variables(change)
        variables = {
            "port": {**told, **told["set"]}, **words(name, node, capabilities.marker), **DRY_TOOLS, "state": "<state>",
            "ttl_hms": "<safety.ttl>",
        }  # fmt: skip
        do, later, undo = (
            tuple(map(_shown, render_steps(steps, variables, dry=True))) for steps in (how.do, how.later, how.undo)
        )
        if later:
            after_ns = int(render_word(how.later_after, variables))
            later = (f"after {format_ns(after_ns)}:", *later)
        changes.append(replace(change, commands=do, later=later, undo=undo))
    return FaultPlan(name, mechanism, config, capabilities.marker, tuple(changes), facts)


def _attached(node: str, topology: Topology) -> tuple[Attached, ...]:
    ends = [(link.tier, *ends) for link in topology.links for ends in (link.ports, link.ports[::-1])]
    return tuple(Attached(a.interface, b.node, b.interface, tier) for tier, a, b in ends if a.node == node)


def words(fault: str, node: str, marker: str) -> dict[str, str]:
    """What every command of a role may name beside its port; ``marker_map`` is where the marking program is set."""
    return {"fault": fault, "node": node, "marker": marker, "marker_map": BPF_DIR, "state": "STATE"}


def local_tools() -> dict[str, str]:
    """Programs of GENIE that commands of a role may run, by variable; a bare name where one isn't built."""
    found = {}
    for variable, name in DRY_TOOLS.items():
        try:
            found[variable] = str(find_binary(name))
        except EnvironmentUnfit:
            found[variable] = name
    return found


def _is_gear(mechanism: Mechanism, node: str, facts: RunFacts) -> bool:
    """Whether a node does it by gear of its own: what a fabric emulates is then nothing to go by, and the role's own
    ``before`` says whether the gear is set up for it.
    """
    own = find_platform(mechanism, facts.platforms.get(node, ("linux",)), "none")
    return own not in ("", "linux", "netns")


def _refuse_unfit(
    name: str, mechanism: Mechanism, all_needed: Sequence[str], capabilities: Capabilities, facts: RunFacts
) -> None:
    for needed in all_needed:
        if not getattr(capabilities, needed):
            reason = capabilities.reasons.get(needed, "the fabric does not say why")
            what = "faults" if needed == "faults" else f"a fault that needs {needed} ({mechanism.role})"
            kind = PlanError if needed == "faults" else EnvironmentUnfit
            raise kind(f"fault.{name}: this fabric cannot have {what}: {reason}", hint="run with fault=[] instead")
    for needed in mechanism.needs_run:
        if needed == "packets_exact" and facts.packets != "exact":
            raise PlanError(
                f"fault.{name}: {mechanism.role} acts on single packets, and with fabric.packets={facts.packets} the "
                "kernel moves up to 64 KB as one",
                hint="add fabric.packets=exact (at most 100 Mb/s a host)",
            )
        if needed == "ecn_reacting" and facts.congestion_control and facts.congestion_control not in ECN_CONTROLS:
            raise PlanError(
                f"fault.{name}: TCP's congestion control {facts.congestion_control!r} does not react to ECN marks, so "
                "the fault would show nothing",
                hint=f"set transport.congestion_control to one of {', '.join(ECN_CONTROLS)}",
            )


def _ineligible(mechanism: Mechanism, port: Port) -> str:
    if "ecn" in mechanism.needs_port and port.model.ecn is None:
        return "which marks nothing (no ECN in its model)"
    return ""


def _refuse_name(name: str, what: str, found: str, grammar: re.Pattern[str]) -> None:
    if not grammar.fullmatch(found):
        raise PlanError(f"fault.{name}: {found!r} cannot be the name of a {what} that commands are run on")


def _shown(argv: Argv) -> str:
    """One line for people; what is only known at the target without quotes and units of its own."""
    return _FOUND_UNIT.sub("<as found>", shlex.join(argv))
