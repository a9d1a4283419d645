"""Whether the agent that was built here has a transport, and this machine and other hosts what the transport needs.

Asked by the plan, before anything is touched, and by ``genie doctor``. Transports other than tcp are left out of a
build where the headers of their library are missing.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence

from genie.engine.binaries import find_binary
from genie.errors import EnvironmentUnfit
from genie.rdma.discovery import sysfs_devices, with_pkeys
from genie.rdma.model import RdmaHost, read_verbs_list
from genie.transport.base import RankPlace, TransportConfig

PACKAGES = {"gloo": "libgloo-dev", "ofi": "libfabric-dev", "verbs": "libibverbs-dev"}
"""Debian's packages of those headers."""


def refuse_missing(transport: TransportConfig) -> None:
    """Raises EnvironmentUnfit with what to install if the agent of this build lacks ``transport``."""
    if transport.name not in PACKAGES:
        return
    hint = f"apt-get install {PACKAGES[transport.name]}, then build GENIE again (scripts/setup)"
    try:
        agent = find_binary(transport.agent)
    except EnvironmentUnfit:
        raise EnvironmentUnfit(
            f"transport={transport.name} is not in this build: there is no {transport.agent}", hint=hint
        ) from None
    said = subprocess.run([agent, "--version"], capture_output=True, text=True, timeout=30, check=False)
    if said.returncode != 0:
        raise EnvironmentUnfit(
            f"{agent} does not run here: {said.stderr.strip() or f'it ended with {said.returncode}'}",
            hint="the library that it was linked with may be gone: " + hint,
        )
    offered = said.stdout.strip().partition("transports ")[2].split(", ")
    if transport.name not in offered:
        raise EnvironmentUnfit(
            f"transport={transport.name} is not in this build: {agent} has {', '.join(offered)}", hint=hint
        )


THIS_MACHINE = "this machine"
_SHOWN = 8
_LISTED = ("ofi", "verbs")
"""Transports whose agent loads the library when a run chooses them, and lists what it finds."""


def this_machine(transport: TransportConfig) -> RdmaHost:
    """What this machine has for ``transport``, asked of the agent that would run its ranks: it loads the library as a
    run does. Raises EnvironmentUnfit in the agent's words where it cannot. An agent that is linked with its library is
    not asked: it could not have begun without (`refuse_missing`).
    """
    if transport.name not in _LISTED:
        return RdmaHost(THIS_MACHINE)
    agent = find_binary(transport.agent)
    said = subprocess.run([agent, transport.name, "list"], capture_output=True, text=True, timeout=30, check=False)
    if said.returncode != 0:
        words = said.stderr.strip().removeprefix("genie-agent: ") or f"it ended with {said.returncode}"
        raise EnvironmentUnfit(f"{THIS_MACHINE} cannot have transport={transport.name}: {words}")
    if transport.name == "verbs":
        return RdmaHost(THIS_MACHINE, with_pkeys(read_verbs_list(said.stdout)))
    providers = tuple(str(entry["provider"]) for entry in json.loads(said.stdout)["providers"])
    return RdmaHost(THIS_MACHINE, sysfs_devices(), providers=providers)


def refuse_unfit_hosts(
    transport: TransportConfig,
    places: Sequence[RankPlace],
    address: Callable[[str], str],
    look: Callable[[str], RdmaHost] | None,
) -> None:
    """Raises EnvironmentUnfit that names each host of ``places`` that lacks what ``transport`` needs.

    ``look`` says what a host has; None where all hosts are this machine.
    """
    if not transport.needs_host:
        return
    here = this_machine(transport) if look is None else None
    problems: dict[str, str] = {}
    for place in places:
        host = here if look is None else look(place.host)
        assert host is not None
        try:
            transport.require(place, address(place.host), host)
        except EnvironmentUnfit as error:
            problems.setdefault(error.message, error.hint)
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise EnvironmentUnfit("; ".join(list(problems)[:_SHOWN]) + more, hint=next(iter(problems.values())))
