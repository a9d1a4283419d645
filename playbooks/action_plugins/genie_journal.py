"""Ansible action: write the undo of a coming change to the run's journal, on the controller, before the change.

The last task of every role's ``snapshot.yml``. It fails the host, and with it the play, when the record cannot be
made durable; so a change without a written undo cannot happen. What was found is returned as ``genie_found``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from genie.faults.journal import Intent, Journal

_REQUIRED = ("object", "old", "undo")


class ActionModule(ActionBase):
    """``entries``: list of {object: str, old: {…}, undo: [[argv], …]}."""

    _requires_connection = False
    _supports_check_mode = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Append one intent an entry and wait until the disk has them."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        entries = self._task.args.get("entries")
        if not isinstance(entries, list) or not entries:
            raise AnsibleActionFail("genie_journal: 'entries' must be a list with at least one change")
        intents = []
        for entry in entries:
            missing = [key for key in _REQUIRED if key not in entry]
            if missing:
                raise AnsibleActionFail(f"genie_journal: an entry lacks {', '.join(missing)}")
            intents.append(
                Intent(
                    run=str(variables["genie_run"]),
                    fault=str(variables["genie_fault"]),
                    role=str(variables["genie_role"]),
                    node=str(variables["genie_node"]),
                    object=str(entry["object"]),
                    old={str(key): value for key, value in dict(entry["old"]).items()},
                    undo=tuple(tuple(str(word) for word in argv) for argv in entry["undo"]),
                )
            )
        try:
            with Journal(Path(str(variables["genie_journal_path"]))) as journal:
                journal.intend(intents)
        except OSError as error:
            raise AnsibleActionFail(
                f"genie_journal: the undo could not be written, so nothing is changed: {error}"
            ) from error
        result["changed"] = False
        result["ansible_facts"] = {"genie_found": {intent.object: intent.old for intent in intents}}
        return result
