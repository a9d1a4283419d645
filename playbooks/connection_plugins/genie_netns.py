"""Ansible connection into a named network namespace: every command runs as ``ip netns exec NODE /bin/sh -c …``.

Used by ``playbooks/fault.yml`` on the embedded fabric, whose nodes are namespaces. The command is passed as an argument
list, so nothing in it is read by a second shell outside the namespace. Files are copied as on the local host:
namespaces share the file system. An inventory host may be one node, or stand for many: then ``genie_change`` enters
each by its name.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as LocalConnection

DOCUMENTATION = """
name: genie_netns
short_description: run commands in a network namespace of the embedded fabric
description:
  - Runs each command with C(ip netns exec) in the namespace that C(ansible_host) names.
author: GENIE
options: {}
"""

# The grammar of node names; the same in genie.faults.plan, which refuses others before Ansible starts.
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


class Connection(LocalConnection):
    """Like ``local``, one namespace further in."""

    transport = "genie_netns"
    has_pipelining = True

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        """Run ``cmd`` by /bin/sh in the namespace; returns exit code, stdout, stderr."""
        return self.enter(str(self._play_context.remote_addr), cmd, in_data or b"")

    def enter(
        self, node: str, cmd: str, in_data: bytes = b"", limit_s: float | None = None
    ) -> tuple[int, bytes, bytes]:
        """The same in the namespace of ``node``. Threads may run many at once.

        What has not ended after ``limit_s`` is killed, with the exit code and the words of that.
        """
        if not NODE_NAME.fullmatch(node):
            raise AnsibleConnectionFailure(f"{node!r} is not the name of a node: letters, digits, '_', '.', '-' only")
        argv = ["ip", "netns", "exec", node, "/bin/sh", "-c", cmd]
        pipe = subprocess.PIPE
        # A group of its own, so that what the shell has started can be killed with it.
        with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, process_group=0) as process:
            try:
                out, error = process.communicate(in_data, timeout=limit_s)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                return -signal.SIGKILL, b"", f"{node} did not end it within {limit_s:g} s, and it was killed".encode()
        return process.returncode, out, error
