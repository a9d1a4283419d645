"""What every fabric offers to a run. `genie.experiment` knows only this; one module a backend implements it.

Nothing here knows faults: a fault asks for a command in a node and reads counters, as an operator would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from genie.clocks import HostClock


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished command: what was run where, and all it said."""

    node: str
    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


class Process(Protocol):
    """A process that lives in a node of the fabric and ends with it at the latest."""

    @property
    def pid(self) -> int:
        """Process id, for messages only: inside the fabric's own pid namespace where it has one."""
        ...

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""
        ...

    def kill(self) -> None:
        """SIGKILL; a no-op once it ended."""
        ...

    def close_stdin(self) -> None:
        """End of its standard input: how a sampler is asked to finish. A no-op once it is closed."""
        ...

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code, once it has ended. Raises RunAborted after ``timeout_s``."""
        ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this fabric can emulate here. Each False has its reason in ``reasons`` under the same name."""

    shaping: bool
    ecn: bool
    loss: bool
    faults: bool
    marker: str  # "bpf", "red" or "none"
    reasons: Mapping[str, str]
    delay: bool = False
    one_clock: bool = True  # every node reads this machine's CLOCK_MONOTONIC
    own_cores: bool = True  # the cores of a host are its own


class Fabric(Protocol):
    """A network with hosts. ``build`` and ``destroy`` bracket its life; all else needs it built."""

    name: str

    def capabilities(self) -> Capabilities:
        """What can be had, found out without changing anything. Called by the plan."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the plan: what is emulated otherwise than asked, and why."""
        ...

    def build(self) -> None:
        """Bring it up. Raises EnvironmentUnfit naming cause and way out. Leaves nothing on failure."""
        ...

    def address(self, host: str) -> str:
        """The IPv4 address that ranks on ``host`` use."""
        ...

    def spawn(self, node: str, argv: Sequence[str], *, stdin: bytes, log: Path, cwd: Path | None = None) -> Process:
        """Start a program in a node. ``stdin`` is written and closed; stdout and stderr go to ``log``."""
        ...

    def run(self, node: str, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> Completed:
        """Run a command in a node to its end. ``node`` "" is the fabric's own root namespace (where Ansible runs)."""
        ...

    def counters(self) -> dict[str, dict[str, int]]:
        """Cumulative counters by node or port name: {"TcpRetransSegs": …} or {"tx_bytes": …, "drops": …}."""
        ...

    def start_sampler(self, path: Path, interval_ns: int) -> Process | None:
        """Record queue depth of every port into ``path`` (docs/formats.md §5); None where there are no ports."""
        ...

    def tool(self, name: str) -> str:
        """Path of one of GENIE's programs ("genie-agent", "genie-warden", …) on nodes; its name where there is none."""
        ...

    def ansible_host(self, node: str) -> dict[str, str]:
        """How Ansible reaches a node: ``ansible_host``, ``ansible_connection``, …"""
        ...

    def platforms(self, node: str) -> tuple[str, ...]:
        """What kind of node it is, for the roles' platform files, best first ("mlx5", "linux")."""
        ...

    def state_dir(self, node: str) -> str:
        """A folder on the node that is this run's own; whoever needs it makes it."""
        ...

    def lock_file(self, node: str) -> str:
        """The file on the node whose lock keeps two runs apart; "" where the node is this run's alone."""
        ...

    def protected_interfaces(self, node: str) -> frozenset[str]:
        """Interfaces of the node that no fault may touch: management, default route, loopback."""
        ...

    @property
    def control_address(self) -> str:
        """Our IPv4 address that agents dial; "" where they share our files, and so a Unix socket. Known once built."""
        ...

    def collect(self, directory: Path) -> None:
        """Bring here what programs wrote in ``directory``, their ``cwd``, on nodes that do not share our files.

        Gives every node its chance, then raises RunAborted naming the ones whose files are missing or incomplete.
        """
        ...

    def learn_clocks(self, clocks: Mapping[str, HostClock]) -> None:
        """Told after a run how hosts' clocks stand to ours, for samples that were taken by theirs."""
        ...

    def destroy(self) -> None:
        """Take it down; idempotent; also happens by itself when this process dies, however it dies."""
        ...
