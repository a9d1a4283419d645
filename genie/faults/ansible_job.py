"""One Ansible run, as a program: reads a job (JSON) on standard input, prints what every task said (JSON).

`genie.faults.session` starts it *inside* the fabric (``fabric.run("", [python, "-m", "genie.faults.ansible_job"])``),
because only there the namespaces have names and only there a kill takes Ansible with it. Knows no fault: it is
given a playbook, hosts with variables, and extra variables. Values of hosts reach Ansible as ``!unsafe``, so that
none is ever read as a template. It never writes into the caller's home or working directory.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORKS = 16
_SIGKILL, _PR_SET_PDEATHSIG = 9, 1
# Run in between by the child: a play must not go on changing hosts for a run that is dead.
_TIED = (
    f"import ctypes,os,sys;ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG},{_SIGKILL},0,0,0);"
    "sys.exit(1) if os.getppid()!=int(sys.argv[1]) else os.execv(sys.argv[2],sys.argv[2:])"
)
PLAY_TIMEOUT_S = 60
_NOT_ASCII = re.compile(r"[^ -~]")


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What one task did on one host. ``ok`` False with ``message`` says why; ``seen_mono_ns`` is CLOCK_MONOTONIC;
    ``told`` is what ``genie_change`` gave, its phase among it.
    """

    host: str
    role: str
    phase: str
    task: str
    ok: bool
    skipped: bool
    message: str
    stdout: str
    stderr: str
    rc: int | None
    seen_mono_ns: int
    told: Mapping[str, Any]


@dataclass(slots=True)
class Collector:
    """Keeps task results out of ansible-runner's events; returning False keeps runner from writing files."""

    results: list[TaskResult] = field(default_factory=list)

    def __call__(self, event: Mapping[str, Any]) -> bool:
        """ansible-runner's ``event_handler``."""
        kind = str(event.get("event", ""))
        if kind in {"runner_on_ok", "runner_on_failed", "runner_on_unreachable", "runner_on_skipped"}:
            self.results.append(_task_result(kind, event.get("event_data", {})))
        return False


def _task_result(kind: str, data: Mapping[str, Any]) -> TaskResult:
    outcome = data.get("res") or {}
    told = outcome.get("genie") or {}
    message = outcome.get("msg") or outcome.get("reason") or outcome.get("stderr") or ""
    rc = outcome.get("rc")
    return TaskResult(
        host=str(data.get("host", "")),
        role=str(data.get("role", "")),
        phase=str(told.get("phase", "")),
        task=str(data.get("task", "")),
        ok=kind in {"runner_on_ok", "runner_on_skipped"},
        skipped=kind == "runner_on_skipped",
        message=message if isinstance(message, str) else json.dumps(message),
        stdout=str(outcome.get("stdout", "")),
        stderr=str(outcome.get("stderr", "")),
        rc=rc if isinstance(rc, int) else None,
        seen_mono_ns=time.monotonic_ns(),
        told=dict(told),
    )


def inventory_text(hosts: Mapping[str, Mapping[str, Any]]) -> str:
    """An inventory in which every string value is ``!unsafe``: YAML in the flow style, a host a line. Written here,
    since PyYAML takes a microsecond a character.
    """
    lines = ",\n".join(f"{_quoted(name)}: {_unsafe(variables)}" for name, variables in hosts.items())
    return f'{{"all": {{"hosts": {{\n{lines}\n}}}}}}\n'


def _unsafe(value: Any) -> str:
    if isinstance(value, str):
        return f"!unsafe {_quoted(value)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quoted(str(key))}: {_unsafe(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_unsafe, value)) + "]"
    return json.dumps(value)


def _quoted(text: str) -> str:
    """A double-quoted scalar of ASCII alone: JSON's escapes are YAML's, but for characters beyond 16 bits."""
    return _NOT_ASCII.sub(lambda found: f"\\U{ord(found.group()):08x}", json.dumps(text, ensure_ascii=False))


def python_path(package_root: Path) -> str:
    """PYTHONPATH with this GENIE first; the caller's own comes after, where Ansible itself may live."""
    return os.pathsep.join(part for part in (str(package_root), os.environ.get("PYTHONPATH", "")) if part)


def write_ansible_command(folder: Path) -> Path:
    """An ``ansible-playbook`` of this interpreter's Ansible. The installed script need not be on any path, and its
    first line may name an interpreter that this user cannot run.
    """
    folder.mkdir()
    command = folder / "ansible-playbook"
    python = shlex.quote(sys.executable)
    tied = f"{python} -I -S -c {shlex.quote(_TIED)} {os.getpid()}"
    command.write_text(f'#!/bin/sh\nexec {tied} {python} -m ansible playbook "$@"\n')
    command.chmod(0o755)
    return command


def ansible_environment(work: Path, playbooks: Path, roles: Path, package_root: Path) -> dict[str, str]:
    """Settings of Ansible for one run: nothing of the user's own configuration, nothing written to their home."""
    return {
        "PATH": os.pathsep.join(
            [str(work / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]
        ),
        "PYTHONPATH": python_path(package_root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CONFIG": str(work / "ansible.cfg"),
        "ANSIBLE_HOME": str(work / "home"),
        "ANSIBLE_LOCAL_TEMP": str(work / "tmp"),
        "ANSIBLE_ROLES_PATH": str(roles),
        "ANSIBLE_CONNECTION_PLUGINS": str(playbooks / "connection_plugins"),
        "ANSIBLE_ACTION_PLUGINS": str(playbooks / "action_plugins"),
        "ANSIBLE_RETRY_FILES_ENABLED": "0",
        "ANSIBLE_HOST_KEY_CHECKING": "1",
        "ANSIBLE_SSH_USETTY": "0",  # a terminal mixes what commands print with what they complain of
        "ANSIBLE_GATHERING": "explicit",
        "ANSIBLE_INJECT_FACT_VARS": "1",
        "ANSIBLE_FORKS": str(FORKS),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "0",
        "ANSIBLE_LOCALHOST_WARNING": "0",
    }


def perform(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the job and give {status, rc, elapsed_ns, results, stdout}.

    ``job``: playbook (name within playbooks), tags (of the tasks to run; without it all), playbooks, roles,
    package_root (folders), hosts, extra (variables),
    timeout_s. ``status`` is ansible-runner's: "successful", "failed", "timeout", …
    """
    import ansible_runner

    began = time.monotonic_ns()
    playbooks, roles = Path(job["playbooks"]), Path(job["roles"])
    with tempfile.TemporaryDirectory(prefix="genie-ansible-") as folder:
        work = Path(folder)
        inventory = work / "inventory"
        inventory.mkdir()
        write_ansible_command(work / "bin")
        (work / "ansible.cfg").write_text("[defaults]\n")
        (inventory / "hosts.yml").write_text(inventory_text(job["hosts"]))
        collector = Collector()
        runner = ansible_runner.run(
            private_data_dir=str(work),
            project_dir=str(playbooks),
            playbook=str(job["playbook"]),
            tags=",".join(job["tags"]) if job.get("tags") else None,
            inventory=str(inventory),
            extravars=dict(job["extra"]),
            envvars=ansible_environment(work, playbooks, roles, Path(job["package_root"])),
            suppress_env_files=True,
            quiet=True,
            timeout=int(job.get("timeout_s", PLAY_TIMEOUT_S)),
            settings={"pexpect_timeout": 1, "idle_timeout": 0},
            event_handler=collector,
        )
        said = ""
        if runner.status != "successful":
            said = runner.stdout.read()[-8000:]
        return {
            "status": runner.status,
            "rc": runner.rc,
            "elapsed_ns": time.monotonic_ns() - began,
            "results": [asdict(result) for result in collector.results],
            "stdout": said,
        }


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, however it does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def main() -> int:
    """Program entry: 0 whenever a JSON answer was printed; what went wrong is in it. Dies with whoever started it."""
    die_with_parent()  # before the job is read, whose end comes from a parent that lives
    job = json.load(sys.stdin)
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        del os.environ[name]  # a user's own settings (strategy, callbacks, vault) are not for this run
    # Ansible and runner print as they like; standard output is kept for the one answer.
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    answer = perform(job)
    with os.fdopen(answer_fd, "w") as out:
        json.dump(answer, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
