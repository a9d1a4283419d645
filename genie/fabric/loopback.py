"""The fabric for machines without namespaces: every host is an address of this machine's loopback interface.

It shapes nothing, marks nothing and refuses faults: what it measures is the software. Programs are plain children
that die with this process by ``PR_SET_PDEATHSIG`` set in the child, through a small wrapper.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path

from genie.clocks import HostClock
from genie.engine.binaries import find_binary
from genie.errors import PlanError, RunAborted
from genie.fabric import counters as parse
from genie.fabric.base import Capabilities, Completed
from genie.fabric.config import LoopbackConfig
from genie.topology.model import Topology

_FIRST_ADDRESS = int(IPv4Address("127.64.0.1"))
_REASON = "fabric=loopback has no ports of its own; use fabric=netns"
# Run by the child before the program proper: without namespaces nothing else ties its life to ours.
_TIE = (
    "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,9,0,0,0);"
    "sys.exit(1) if os.getppid()!=int(sys.argv[1]) else os.execvp(sys.argv[2],sys.argv[2:])"
)


class LoopbackProcess:
    """A child of this process; `genie.fabric.base.Process`."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    @property
    def pid(self) -> int:
        """Process id on this machine."""
        return self._child.pid

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""
        return self._child.poll()

    def kill(self) -> None:
        """SIGKILL to its process group; a no-op once it ended."""
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def close_stdin(self) -> None:
        """Nothing to do: standard input is what was given at the start and ends by itself."""

    def wait(self, timeout_s: float | None = None) -> int:
        """Exit code once it ended. Raises RunAborted after ``timeout_s``."""
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise RunAborted(f"process {self._child.pid} did not end within {timeout_s} s") from error


class LoopbackFabric:
    """See module."""

    name = "loopback"
    notes: tuple[str, ...] = ("fabric=loopback shapes nothing: times say what the software costs, not the network",)

    def __init__(self, config: LoopbackConfig, topology: Topology, run_dir: Path) -> None:
        self._topology = topology
        self._run_dir = run_dir.absolute()
        self._hosts = {node.name: str(IPv4Address(_FIRST_ADDRESS + index)) for index, node in enumerate(topology.hosts)}
        self._children: list[LoopbackProcess] = []

    def capabilities(self) -> Capabilities:
        """Nothing can be emulated here."""
        reasons = dict.fromkeys(("shaping", "ecn", "loss", "faults"), _REASON)
        return Capabilities(False, False, False, False, "none", reasons)

    def build(self) -> None:
        """Nothing to bring up: Linux answers on all of 127.0.0.0/8."""

    def address(self, host: str) -> str:
        """127.64.0.1 for the first host, and so on. Raises PlanError for anything but a host."""
        if host not in self._hosts:
            raise PlanError(f"{host!r} is no host of this topology", hint=f"hosts: {', '.join(self._hosts)}")
        return self._hosts[host]

    def _check_node(self, node: str) -> None:
        if node and all(node != known.name for known in self._topology.nodes):
            raise PlanError(f"no node {node!r} in topology {self._topology.name!r}")

    def spawn(
        self, node: str, argv: Sequence[str], *, stdin: bytes, log: Path, cwd: Path | None = None
    ) -> LoopbackProcess:
        """Start a program as a child of this process."""
        self._check_node(node)
        memory = os.memfd_create("stdin")
        try:
            data = memoryview(stdin)
            while data:
                data = data[os.write(memory, data) :]
            os.lseek(memory, 0, os.SEEK_SET)
            with log.open("ab") as output:
                child = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *argv],
                    stdin=memory,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=cwd,
                    start_new_session=True,
                )
        finally:
            os.close(memory)
        process = LoopbackProcess(child)
        self._children.append(process)
        return process

    def run(self, node: str, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> Completed:
        """A command to its end; every node is this machine."""
        self._check_node(node)
        try:
            done = subprocess.run(list(argv), input=stdin, capture_output=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as error:
            raise RunAborted(f"{' '.join(argv)!r} did not end within {timeout_s:g} s and was killed") from error
        except OSError as error:
            raise RunAborted(f"could not run {' '.join(argv)!r}: {error}") from error
        return Completed(
            node,
            tuple(argv),
            done.returncode,
            done.stdout.decode(errors="replace"),
            done.stderr.decode(errors="replace"),
        )

    def counters(self) -> dict[str, dict[str, int]]:
        """The machine's own TCP counters under "": hosts have none of their own."""
        values: dict[str, int] = {}
        for path in parse.SNMP_FILES:
            values.update(parse.parse_snmp(Path(path).read_text()))
        values.update(parse.parse_softnet(Path(parse.SOFTNET_FILE).read_text()))
        return {"": values}

    def start_sampler(self, path: Path, interval_ns: int) -> None:
        """There are no queues to record."""

    def tool(self, name: str) -> str:
        """Path of one of GENIE's programs on this machine."""
        return str(find_binary(name))

    def ansible_host(self, node: str) -> dict[str, str]:
        """Nothing is changed here, so nothing is reached by Ansible."""
        raise PlanError(_REASON)

    def platforms(self, node: str) -> tuple[str, ...]:
        """This machine."""
        return ("linux",)

    def state_dir(self, node: str) -> str:
        """In the run directory."""
        return str(self._run_dir / "state" / node)

    def lock_file(self, node: str) -> str:
        """None: nothing here is ours alone."""
        return ""

    def protected_interfaces(self, node: str) -> frozenset[str]:
        """Every interface of this machine."""
        return frozenset(name for _, name in socket.if_nameindex())

    @property
    def control_address(self) -> str:
        """None: nodes share this machine's files, and so a Unix socket."""
        return ""

    def collect(self, directory: Path) -> None:
        """Nothing to bring: it was written here."""

    def learn_clocks(self, clocks: Mapping[str, HostClock]) -> None:
        """All nodes read this machine's clock."""

    def destroy(self) -> None:
        """Kill what still runs; idempotent."""
        children, self._children = self._children, []
        for child in children:
            child.kill()
            child.wait()
