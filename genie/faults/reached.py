"""Hosts that faults were applied to by a process that is gone, reached again from what it wrote down.

`genie.faults.operate` asks their wardens and reverts over it. It needs neither the inventory, which may say something
else by now, nor a fabric, which would want the hosts for itself. Runs commands; decides nothing.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from genie.errors import RunAborted
from genie.fabric.base import Completed
from genie.fabric.ssh import SshLinks, SshTarget


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One changed node. ``ansible``: the variables by which Ansible reaches it; ``target`` None: only Ansible does.

    ``state_dir`` is the folder of these faults there, ``lock`` its lock file.
    """

    name: str
    ansible: Mapping[str, str]
    state_dir: str
    lock: str
    target: SshTarget | None


class ReachedHosts:
    """What `genie.faults.session.FaultSession` needs of a fabric to revert. Use as a context manager.

    A node that cannot be reached is no error before somebody wants something of it.
    """

    name = "inventory"

    def __init__(self, nodes: Iterable[NodeRecord], tools: Mapping[str, str]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._tools = dict(tools)
        self._links = SshLinks({name: node.target for name, node in self._nodes.items() if node.target is not None})
        self._unreachable: dict[str, str] = {}

    def __enter__(self) -> ReachedHosts:
        self._unreachable = self._links.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._links.close()

    def has_shell(self, node: str) -> bool:
        """Whether commands can be run there, as far as its record goes."""
        return self._nodes[node].target is not None

    def tool(self, name: str) -> str:
        """Where a program of ours was put on the nodes."""
        return self._tools.get(name, name)

    def state_dir(self, node: str) -> str:
        """The folder of these faults on a node."""
        return self._nodes[node].state_dir

    def lock_file(self, node: str) -> str:
        """The node's lock file."""
        return self._nodes[node].lock

    def ansible_host(self, node: str) -> dict[str, str]:
        """How Ansible reaches it: as then, over our connection where that stands."""
        record = self._nodes[node]
        shared = record.target is not None and node not in self._unreachable
        arguments = f"-o ControlMaster=no -o ControlPath={self._links.control(node)}" if shared else ""
        return {**record.ansible, **({"ansible_ssh_args": arguments} if arguments else {})}

    def run(self, node: str, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> Completed:
        """A command to its end; ``node`` "" is this machine. Raises RunAborted where it cannot be run."""
        if node:
            if node in self._unreachable:
                raise RunAborted(f"{node} cannot be reached: {self._unreachable[node]}")
            done = self._links.run(node, f"exec {shlex.join(argv)}", stdin=stdin, timeout_s=timeout_s)
            return Completed(node, tuple(argv), done.returncode, done.stdout, done.stderr)
        try:
            local = subprocess.run(list(argv), input=stdin, capture_output=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as error:
            raise RunAborted(f"{' '.join(argv)!r} did not end within {timeout_s:g} s and was killed") from error
        said, complained = (text.decode(errors="replace") for text in (local.stdout, local.stderr))
        return Completed("", tuple(argv), local.returncode, said, complained)
