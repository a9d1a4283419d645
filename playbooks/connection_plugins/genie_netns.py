"""Ansible connection into a named network namespace: every command runs as ``ip netns exec NODE /bin/sh -c …``.

Used by ``playbooks/fault.yml`` on the embedded fabric, where an inventory host is a node of the topology. The
command is passed as an argument list, so nothing in it is read by a second shell outside the namespace. Files
are copied as on the local host: namespaces share the file system.
"""

from __future__ import annotations

import re
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
        node = str(self._play_context.remote_addr)
        if not NODE_NAME.fullmatch(node):
            raise AnsibleConnectionFailure(f"{node!r} is not the name of a node: letters, digits, '_', '.', '-' only")
        done = subprocess.run(
            ["ip", "netns", "exec", node, "/bin/sh", "-c", cmd],
            input=in_data if in_data is not None else b"",
            capture_output=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr
