"""Whether the agent that was built here has a transport. Asked by the plan, before anything is touched.

Transports other than tcp are left out of a build where the headers of their library are missing.
"""

from __future__ import annotations

import subprocess

from genie.engine.binaries import find_binary
from genie.errors import EnvironmentUnfit
from genie.transport.base import TransportConfig

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
