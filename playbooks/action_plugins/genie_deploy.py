"""Ansible action: bring programs into a new folder of a host and check that they arrived whole. No Python there.

Each file travels on the standard input of one command, so neither sftp nor a temporary folder is needed. The task of
``playbooks/deploy.yml``; a host whose disk is full or whose shell refuses fails with its own words.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

SHELL = "/bin/sh"


class ActionModule(ActionBase):
    """``state``: the run's folder on the host; ``files``: list of {name, source, sha256}, put into ``state``/bin."""

    _supports_check_mode = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """One command a file, one that checks them all."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        state, files = str(self._task.args["state"]), list(self._task.args["files"])
        folder = shlex.quote(f"{state}/bin")
        for file in files:
            target = shlex.quote(f"{state}/bin/{file['name']}")
            command = f"umask 077; mkdir -p {folder} && cat >{target} && chmod 700 {target}"
            self._do(command, f"{file['name']} to {state}/bin", Path(str(file["source"])).read_bytes())
        sums = "".join(f"{file['sha256']}  {file['name']}\n" for file in files)
        self._do(f"cd {folder} && sha256sum -c - >/dev/null", "what arrived", sums.encode())
        result["changed"] = True
        return result

    def _do(self, command: str, what: str, data: bytes) -> None:
        done = self._low_level_execute_command(command, in_data=data, executable=SHELL)
        if done["rc"] != 0:
            said = " ".join((done["stderr"] or done["stdout"]).split())[-500:] or "nothing"
            raise AnsibleActionFail(f"{what}: the host's shell ended with {done['rc']} and said: {said}")
