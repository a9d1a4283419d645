"""Recipes → exact changes. Pure: reads the topology, the capabilities and the roles' own files; touches nothing.

`plan_faults` resolves targets, converts parameters to numbers for each port, refuses what cannot work here or what
two faults would both change, and renders the very commands of the role (its ``apply.yml``) for the dry run. What
only the target knows is shown as ``<as found>``: the undo goes back to what was found, never to a default.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jinja2
import yaml

from genie.engine.binaries import find_binary
from genie.errors import ConfigError, EnvironmentUnfit, PlanError
from genie.fabric.base import Capabilities
from genie.fabric.holder import BPF_DIR
from genie.faults.config import FaultConfig
from genie.faults.recipe import Mechanism, Parameter, load_mechanism
from genie.faults.targets import resolve
from genie.topology.model import Port, Topology
from genie.units import format_rate, parse_bytes, parse_rate_bps, parse_ratio

PPB = 1_000_000_000
ECN_CONTROLS = ("cubic", "reno", "dctcp")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_FOUND_UNIT = re.compile(r"<as found>(?:bit|b)\b")
_INTERFACE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a fault must know of the run around it.

    ``packets`` is ``fabric.packets``: "exact" or "bulk". ``congestion_control`` "" means not known.
    ``time_dilation`` divides every rate on the wire. ``placement`` is the host of each rank, for ``rank=3``.
    """

    packets: str = "bulk"
    congestion_control: str = ""
    seed: int = 1
    time_dilation: float = 1.0
    mtu: int = 1500
    placement: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One change at one interface of one node, on behalf of the faulted ``port``, number ``index`` of the topology.

    ``values``: the parameters as numbers for this port (``rate_bps`` on the wire, ``ratio_ppb``, …). ``commands`` and
    ``undo`` are shell text as the role runs it, for people.
    """

    port: Port
    index: int
    node: str
    interface: str
    values: Mapping[str, int]
    commands: tuple[str, ...]
    undo: tuple[str, ...]


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
    def ports(self) -> tuple[Port, ...]:
        """The faulted ports."""
        return tuple(change.port for change in self.changes)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that are changed, each once, in order."""
        return tuple(dict.fromkeys(change.node for change in self.changes))

    def describe(self) -> str:
        """Text for the dry run: targets, commands, undo."""
        said = ", ".join(f"{key} {value}" for key, value in self.config.parameters.items())
        lines = [
            f"fault {self.name}: {self.mechanism.summary}{f' ({said})' if said else ''}; risk {self.mechanism.risk}",
            f"  expected: {self.hypothesis}",
            f"  targets ({len(self.changes)}): {', '.join(port.name for port in self.ports)}",
        ]
        alike: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
        for change in self.changes:
            alike.setdefault((change.node, change.commands, change.undo), []).append(change.port.name)
        for (node, commands, undo), ports in alike.items():
            lines.append(f"  in {node}, for {', '.join(ports)}:")
            lines += [f"    apply: {command}" for command in commands]
            lines += [f"    undo:  {command}" for command in undo]
        return "\n".join(lines)


def plan_faults(
    faults: Mapping[str, FaultConfig], topology: Topology, capabilities: Capabilities, facts: RunFacts
) -> tuple[FaultPlan, ...]:
    """All faults of a run, in the order given.

    Raises EnvironmentUnfit when this machine cannot emulate the fault (with its reason), PlanError when a target
    resolves to nothing, the fabric takes no faults, the run's settings would make it show
    nothing, or two faults change the same thing on a port.
    """
    plans = tuple(_plan(name, config, topology, capabilities, facts) for name, config in faults.items())
    taken: dict[tuple[str, str, str], str] = {}
    for plan in plans:
        for change in plan.changes:
            what = (change.node, change.interface, plan.mechanism.changes)
            if what in taken:
                raise PlanError(
                    f"faults {taken[what]!r} and {plan.name!r} both change the {plan.mechanism.changes} of "
                    f"{change.port.name}",
                    hint=f"give them different targets: fault.{plan.name}.targets=[…]",
                )
            taken[what] = plan.name
    return plans


def _plan(name: str, config: FaultConfig, topology: Topology, capabilities: Capabilities, facts: RunFacts) -> FaultPlan:
    mechanism = load_mechanism(config.role)
    _refuse_unfit(name, mechanism, capabilities, facts)
    ports = resolve(
        name,
        config,
        topology,
        acts_on=mechanism.acts_on,
        eligible=lambda port: _ineligible(mechanism, port),
        seed=facts.seed,
        placement=facts.placement,
    )
    numbers = {port.name: index for index, port in enumerate(topology.ports)}
    far = {port.name: other for link in topology.links for port, other in (link.ports, link.ports[::-1])}
    tasks = _raw_tasks(mechanism)
    changes = []
    for port in ports:
        place = far[port.name] if mechanism.placed == "far_ingress" else port
        _refuse_name(name, "node", place.node, _NODE_NAME)
        _refuse_name(name, "interface", place.interface, _INTERFACE_NAME)
        values: dict[str, int] = {}
        for parameter in mechanism.parameters:
            key, value = _convert(name, parameter, config.parameters[parameter.name], port, facts)
            values[key] = value
        variables = {
            "genie_fault": name,
            "genie_node": place.node,
            "genie_ports": [port_variables(port, place.interface, values, facts)],
            **fabric_variables(capabilities.marker),
        }
        undo = (_render(text, {**variables, "port": variables["genie_ports"][0]}) for text in mechanism.undo)
        commands = (
            _render(task.text, variables) for task in tasks if all(_holds(test, variables) for test in task.when)
        )
        changes.append(
            Change(
                port,
                numbers[port.name],
                place.node,
                place.interface,
                values,
                tuple(commands),
                tuple(filter(None, undo)),
            )
        )
    return FaultPlan(name, mechanism, config, capabilities.marker, tuple(changes), facts)


def port_variables(port: Port, interface: str, values: Mapping[str, int], facts: RunFacts) -> dict[str, Any]:
    """What a role is told of one port, an element of ``genie_ports``: names, its rate on the wire, what it marks
    by where it marks, and the parameters.
    """
    told: dict[str, Any] = {"port": port.name, "interface": interface}
    told["own_bps"] = round(port.model.rate_bps / facts.time_dilation)
    told["mtu"] = facts.mtu
    ecn = port.model.ecn
    if ecn is not None:
        told |= {"kmin_bytes": ecn.kmin_bytes, "kmax_bytes": ecn.kmax_bytes}
    return {**told, **values}


def fabric_variables(marker: str) -> dict[str, str]:
    """What a role is told of the fabric: what marks packets, by which tool, and where that has its settings."""
    return {"genie_marker": marker, "genie_marker_map": BPF_DIR, "genie_tool": _marker_tool()}


def _marker_tool() -> str:
    """genie-port's path; its bare name where it isn't built, which only a fabric without BPF marking can be."""
    try:
        return str(find_binary("genie-port"))
    except EnvironmentUnfit:
        return "genie-port"


def _refuse_unfit(name: str, mechanism: Mechanism, capabilities: Capabilities, facts: RunFacts) -> None:
    for needed in ("faults", *mechanism.requires):
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


def _convert(fault: str, parameter: Parameter, said: object, port: Port, facts: RunFacts) -> tuple[str, int]:
    """The name and number under which a role is given a parameter of one port."""
    key = f"fault.{fault}.parameters.{parameter.name}"
    if isinstance(said, bool) or not isinstance(said, str | int | float):
        raise ConfigError(f"expected {parameter.help}, found {said!r}", key=key)
    if parameter.kind == "rate":
        own_bps = port.model.rate_bps
        percent = isinstance(said, str) and said.strip().endswith("%")
        model_bps = parse_ratio(said, key=key) * own_bps if percent else parse_rate_bps(said, key=key)
        if not 0 < model_bps < own_bps:
            raise PlanError(
                f"{key}: expected a rate above 0 and below the port's own, found {said} at {port.name}, "
                f"which has {format_rate(own_bps)}"
            )
        wire_bps = int(model_bps / facts.time_dilation) // 8 * 8  # tbf counts whole bytes a second
        if wire_bps < 8000:
            raise PlanError(f"{key}: {said} is {wire_bps} bit/s on the wire of {port.name}; the shaper needs 8 kbit/s")
        return f"{parameter.name}_bps", wire_bps
    if parameter.kind == "ratio":
        ppb = round(parse_ratio(said, key=key) * PPB)
        if ppb == 0:
            raise PlanError(f"{key}: {said} is below one in a billion, which would change nothing")
        if ppb >= PPB:
            raise PlanError(f"{key}: {said} would lose every packet, so that no rank could finish; expected less")
        return f"{parameter.name}_ppb", ppb
    return f"{parameter.name}_bytes", parse_bytes(said, key=key)


class _AsFound(jinja2.ChainableUndefined):
    """A value that only the target knows, whatever filter it passes."""

    __slots__ = ()

    def __str__(self) -> str:
        return "<as found>"


def _quote(value: object) -> str:
    return str(value) if isinstance(value, _AsFound) else shlex.quote(str(value))


def _int(value: Any) -> object:
    return value if isinstance(value, _AsFound) else int(value)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(undefined=_AsFound, autoescape=False)  # noqa: S701  text for a terminal, not HTML
    environment.filters["quote"] = _quote
    environment.filters["int"] = _int
    return environment


@dataclass(frozen=True, slots=True)
class _RawTask:
    text: str
    when: tuple[str, ...]


def _raw_tasks(mechanism: Mechanism) -> tuple[_RawTask, ...]:
    """The commands of the role's apply phase, as written there."""
    path = mechanism.folder / "tasks" / "apply.yml"
    found = []
    for task in yaml.safe_load(path.read_text(encoding="utf-8")):
        if "ansible.builtin.raw" in task:
            when = task.get("when", [])
            found.append(_RawTask(str(task["ansible.builtin.raw"]), tuple(when) if isinstance(when, list) else (when,)))
    return tuple(found)


def _render(text: str, variables: Mapping[str, object]) -> str:
    """One line; the tool by its name alone, since where it is installed says nothing to people."""
    line = " ".join(_environment().from_string(text).render({**variables, "genie_tool": "genie-port"}).split())
    return _FOUND_UNIT.sub("<as found>", line.removeprefix("true && "))


def _holds(expression: str, variables: Mapping[str, object]) -> bool:
    return bool(_environment().compile_expression(expression)(**variables))
