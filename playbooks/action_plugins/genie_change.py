"""Ansible action: one phase of a fault's life on one host: ``prepare``, ``act`` or ``revert``.

The one task of every role in ``faults/``. It runs on the controller, where the journal is, and reaches the host by
its connection with raw commands: no Python is needed there, and one command reads or changes all ports of a node. A
host that stands for many nodes of the embedded fabric (``genie_batch_json``) takes each of them through the phase by
itself, several at once. The host fails, and with it the play, where one of its nodes did; ``genie`` in the result says
of each what came of it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
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
_COMMAND_LIMIT_S = 15.0
"""For one command on a node of the embedded fabric: one node that hangs must not take the answers of the others."""
_NODES_AT_ONCE = 2 * (os.cpu_count() or 1) + 2


@cache
def _specification(role: str) -> dict[str, Any]:
    text = (roles_dir() / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
    options: dict[str, Any] = yaml.safe_load(text)["argument_specs"]["main"]["options"]
    return options


def _wrong_arguments(told: Mapping[str, Any]) -> str:
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


def _go_through(phase: str, told: Mapping[str, Any], shell: life.Shell) -> dict[str, Any]:
    """The phase for one fault on one node; what came of it."""
    place = {"fault": str(told["genie_fault"]), "node": str(told["genie_node"])}
    wrong = _wrong_arguments({**told, "genie_phase": phase})
    try:
        if wrong:
            raise GenieError(f"arguments of the role: {wrong}")
        found = _PHASES[phase](life.Task.from_variables(told), shell)
    except GenieError as error:
        return {**place, "ok": False, "message": error.message, "done_mono_ns": time.monotonic_ns()}
    except OSError as error:
        words = f"the journal of faults could not be written, so nothing is changed: {error}"
        return {**place, "ok": False, "message": words, "done_mono_ns": time.monotonic_ns()}
    return {**place, "ok": True, "message": "", "done_mono_ns": time.monotonic_ns(), **found}


class ActionModule(ActionBase):
    """``phase``: which part of the life; everything else is the host's variables (docs/add-a-fault.md)."""

    _supports_check_mode = False
    _VALID_ARGS = frozenset(("phase",))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Go through the phase; what came of it at each place is in ``genie``."""
        _die_with_ansible()
        result: dict[str, Any] = super().run(tmp, task_vars)
        phase = str(self._task.args.get("phase"))
        if phase not in _PHASES:
            raise AnsibleActionFail(f"genie_change: phase must be one of {', '.join(_PHASES)}, not {phase!r}")
        told = task_vars or {}
        if "genie_batch_json" in told:
            batch = json.loads(told["genie_batch_json"])
            with ThreadPoolExecutor(min(_NODES_AT_ONCE, len(batch))) as pool:
                places = list(pool.map(lambda own: _go_through(phase, own, self._entered(own["genie_node"])), batch))
        else:
            places = [_go_through(phase, told, self._shell)]
        wrong = [f"{place['fault']} on {place['node']}: {place['message']}" for place in places if not place["ok"]]
        genie = {"phase": phase, "places": places}
        if wrong:
            return result | {"failed": True, "msg": "; ".join(wrong), "genie": genie}
        return result | {"changed": phase != "prepare", "genie": genie}

    def _shell(self, line: str) -> tuple[int, str, str]:
        done = self._low_level_execute_command(line, executable="/bin/sh")
        return int(done["rc"]), str(done["stdout"]), str(done["stderr"])

    def _entered(self, node: str) -> Callable[[str], tuple[int, str, str]]:
        """The shell of one node of many, by the connection that enters it."""

        def shell(line: str) -> tuple[int, str, str]:
            code, out, error = self._connection.enter(node, line, limit_s=_COMMAND_LIMIT_S)
            return code, out.decode(errors="replace"), error.decode(errors="replace")

        return shell
