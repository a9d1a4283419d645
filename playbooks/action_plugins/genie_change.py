"""Ansible action: one phase of a fault's life on one host: ``prepare``, ``act`` or ``revert``.

The one task of every role in ``faults/``. It runs on the controller, where the journal is, and reaches the host by
its connection with raw commands: no Python is needed there, and one command reads or changes all ports of the
host. It fails its host, and with it the play, before any change whose undo could not be written.
"""

from __future__ import annotations

import multiprocessing
from functools import cache
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.plugins.action import ActionBase

from genie.errors import GenieError
from genie.faults import life
from genie.faults.ansible_job import die_with_parent
from genie.paths import roles_dir

_PHASES = {"prepare": life.prepare, "act": life.act, "revert": life.revert}


@cache
def _specification(role: str) -> dict[str, Any]:
    text = (roles_dir() / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
    options: dict[str, Any] = yaml.safe_load(text)["argument_specs"]["main"]["options"]
    return options


def _wrong_arguments(told: dict[str, Any]) -> str:
    """What the role's meta/argument_specs.yml says against these variables; "" if nothing."""
    options = _specification(str(told["genie_role"]))
    given = {name: told[name] for name in options if name in told}
    return "; ".join(ArgumentSpecValidator(options).validate(given).error_messages)


def _die_with_ansible() -> None:
    """Ansible's worker must not go on with a task, arm or change, when Ansible itself was killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return  # called in Ansible's own process
    die_with_parent()
    if not parent.is_alive():
        raise AnsibleActionFail("Ansible was killed")


class ActionModule(ActionBase):
    """``phase``: which part of the life; everything else is the host's variables (docs/add-a-fault.md)."""

    _supports_check_mode = False
    _VALID_ARGS = frozenset(("phase",))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Go through the phase; what it found is in ``genie``."""
        _die_with_ansible()
        result: dict[str, Any] = super().run(tmp, task_vars)
        phase = str(self._task.args.get("phase"))
        if phase not in _PHASES:
            raise AnsibleActionFail(f"genie_change: phase must be one of {', '.join(_PHASES)}, not {phase!r}")
        wrong = _wrong_arguments({**(task_vars or {}), "genie_phase": phase})
        if wrong:
            raise AnsibleActionFail(f"arguments of the role: {wrong}")
        try:
            task = life.Task.from_variables(task_vars or {})
            told = _PHASES[phase](task, self._shell)
        except GenieError as error:
            return result | {"failed": True, "msg": error.message, "genie": {"phase": phase}}
        except OSError as error:
            words = f"the journal of faults could not be written, so nothing is changed: {error}"
            return result | {"failed": True, "msg": words, "genie": {"phase": phase}}
        return result | {"changed": phase != "prepare", "genie": {"phase": phase, **told}}

    def _shell(self, line: str) -> tuple[int, str, str]:
        done = self._low_level_execute_command(line, executable="/bin/sh")
        return int(done["rc"]), str(done["stdout"]), str(done["stderr"])
