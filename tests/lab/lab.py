"""A lab as its user sees it: start it, run commands in its machines over SSH, pull its cable, end it.

Called by `command.py` and by the tests. The machines belong to a keeper process (`keeper.py`); this module only starts
it and reads what it left in the run folder:

    lab.json      what runs: machines, ports, the keeper's process
    hosts.yml     the machines as an Ansible inventory; hosts_switch.yml the same by way of the switch
    ssh_config    for ssh -F; with user_key and known_hosts beside it
    vm1/console   all that the machine's kernel said
    alive         locked by the keeper while it lives
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from guests import PORT, RDMA_DEVICES, SHARED, WIRE, Size
from monitor import qmp
from parts import LabError

KEEPER = Path(__file__).resolve().parent / "keeper.py"
LONGEST_RUN = 75
"""A Unix socket's path holds 107 bytes; ssh makes one of `vm1.ssh.` and 16 letters."""

FILES = ("lab.json", "hosts.yml", "hosts_switch.yml", "ssh_config", "known_hosts", "user_key", "user_key.pub")


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab that runs, found by its run folder."""

    run: Path
    state: dict[str, Any]

    @property
    def inventory(self) -> Path:
        """The machines as an Ansible inventory."""
        return self.run / "hosts.yml"

    @property
    def switch_inventory(self) -> Path:
        """The machines as they are reached through the switch."""
        return self.run / "hosts_switch.yml"

    @property
    def names(self) -> list[str]:
        """Names of the machines."""
        return [machine["name"] for machine in self.state["machines"]]

    def machine(self, name: str) -> dict[str, Any]:
        """What `lab.json` says of one machine.

        Raises:
            LabError: there is none of that name.
        """
        for machine in self.state["machines"]:
            if machine["name"] == name:
                return dict(machine)
        raise LabError(f"no machine {name} in this lab; it has {', '.join(self.names)}")

    def ssh_argv(self, name: str, command: list[str]) -> list[str]:
        """The ssh command that runs `command` (argv words) on a machine; a shell there if it is empty."""
        self.machine(name)
        words = [shlex.join(command)] if command else []
        return ["ssh", "-F", str(self.run / "ssh_config"), name, *words]

    def command(self, name: str, *command: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command on a machine and take its output; the caller looks at the code."""
        argv = self.ssh_argv(name, list(command))
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)

    def output(self, name: str, *command: str, timeout: float = 60.0) -> str:
        """What a command says that must succeed.

        Raises:
            LabError: it failed; with what it said.
        """
        done = self.command(name, *command, timeout=timeout)
        if done.returncode != 0:
            raise LabError(f"{name}: {shlex.join(command)} ended with {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout

    def cable(self, plugged: bool, card: str = "wire0", names: tuple[str, ...] = ()) -> None:
        """Plug in or pull the cable of a card (`wire0`, `manage0`), of all machines or of `names`: they see it."""
        for name in names or self.names:
            qmp(Path(self.machine(name)["folder"]) / "qmp", "set_link", {"name": card, "up": plugged})

    def kill(self, name: str) -> None:
        """Take the power of one machine away."""
        os.kill(self.machine(name)["pid"], signal.SIGKILL)

    def node_argv(self, node: str, command: list[str]) -> list[str]:
        """The command that runs `command` in a node of the switch's fabric: `switch0`, or `h2`, a host without machine.

        Raises:
            LabError: the lab has no switch.
        """
        switch = self.state["switch"]
        if switch is None:
            raise LabError("this lab has no switch: scripts/lab up --switch")
        user = ["--user", "--preserve-credentials"] if switch["is_users"] else []
        enter = ["nsenter", "--target", str(switch["holder"]), *user, "--mount", "--net", "--pid"]
        return [*enter, "nsenter", f"--net=/run/netns/{node}", *command]

    def share(self, path: Path) -> str:
        """Where the machines see a copy of a file of this host, made now; for programs of a test's own."""
        copy = self.run / SHARED / path.name
        shutil.copy(path, copy)
        return f"/run/lab/{SHARED}/{copy.name}"

    def console(self, name: str) -> str:
        """All that the machine's console has shown."""
        return (Path(self.machine(name)["folder"]) / "console").read_text(errors="replace")


def default_run() -> Path:
    """Where a user's lab keeps its files while it runs: short-lived, and a user's own."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "genie-lab" if base else Path(tempfile.gettempdir()) / f"genie-lab-{os.getuid()}"


def running(run: Path) -> Lab | None:
    """The lab of this run folder, if it is up."""
    if not _alive(run) or not (run / "lab.json").exists():
        return None
    return Lab(run, json.loads((run / "lab.json").read_text()))


def start(
    run: Path, cache: Path, seconds: float, options: list[str], attached: bool = False
) -> tuple[Lab, subprocess.Popen[str]]:
    """Start a lab in `run` and wait until both machines answer; it ends by itself after `seconds`.

    Args:
        run: A folder, made if absent; one lab at a time.
        cache: Where kernel packages are kept.
        seconds: Time limit of the lab, counted from when it is ready.
        options: Further options of the keeper.
        attached: End the lab when the returned process's standard input closes, so also when the caller dies.

    Raises:
        LabError: it is up already, or did not come up; with the reason.
    """
    _prepare(run)
    argv = [sys.executable, str(KEEPER), str(run), "--cache", str(cache), "--seconds", str(seconds), *options]
    with (run / "keeper.log").open("w") as log:
        keeper = subprocess.Popen(
            [*argv, "--attached"] if attached else argv,
            stdin=subprocess.PIPE if attached else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd="/",
            start_new_session=True,
        )
    assert keeper.stdout is not None
    try:
        line = keeper.stdout.readline()
    except BaseException:
        keeper.terminate()
        raise
    words: dict[str, Any] = json.loads(line) if line else {}
    if "ready" not in words:
        keeper.wait()
        raise LabError(words.get("failed") or (run / "keeper.log").read_text().strip() or "the keeper was killed")
    return Lab(run, words["ready"]), keeper


@contextmanager
def session(run: Path, cache: Path, seconds: float = 1800.0, options: tuple[str, ...] = ()) -> Iterator[Lab]:
    """A lab for as long as the block lasts, and never longer than this process."""
    lab, keeper = start(run, cache, seconds, list(options), attached=True)
    try:
        yield lab
    finally:
        keeper.terminate()
        keeper.wait()


def stop(run: Path, timeout: float = 20.0) -> bool:
    """End the lab of this run folder and wait until it is gone; False if none was up."""
    if not _alive(run):
        return False
    pid = int((run / "pid").read_text())
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while _alive(run):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return True


def write_state(run: Path, state: dict[str, Any]) -> None:
    """For the keeper: say that the lab is ready. All or nothing."""
    fresh = run / "lab.json.new"
    fresh.write_text(json.dumps(state, indent=2) + "\n")
    fresh.rename(run / "lab.json")


def write_access(run: Path, state: list[dict[str, Any]], size: Size) -> None:
    """For the keeper: known_hosts, ssh_config and the Ansible inventories of machines that are up."""
    known = run / "known_hosts"
    known.write_text("".join(f"[127.0.0.1]:{machine['port']} {machine['host_key']}\n" for machine in state))
    secure = {
        "IdentityFile": str(run / "user_key"),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": str(known),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
    }
    # One connection a machine for all commands: signing in takes an emulated machine most of a second.
    shared = {"ControlMaster": "auto", "ControlPath": str(run / "%n.ssh"), "ControlPersist": "10m"}
    options = "".join(f"    {name} {value}\n" for name, value in (secure | shared).items())
    secure["Compression"] = "yes"  # inflating is cheaper there than deciphering
    (run / "ssh_config").write_text(
        "".join(
            f"Host {machine['name']}\n    HostName 127.0.0.1\n    Port {machine['port']}\n    User root\n{options}"
            for machine in state
        )
    )
    other = {a["name"]: b["name"] for a, b in (state, state[::-1])}
    reached = {machine["name"]: {"ansible_host": "127.0.0.1", "ansible_port": machine["port"]} for machine in state}
    on_wire = {
        machine["name"]: {
            "genie_address": machine["address"],
            "genie_interface": WIRE,
            "genie_links": {WIRE: f"{other[machine['name']]}/{WIRE}"},
        }
        for machine in state
    }
    # Without links: what is between them is one opaque node, since no machine of the inventory is the switch.
    at_switch = {
        machine["name"]: {"genie_address": machine["port_address"], "genie_interface": PORT} for machine in state
    }
    every = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": secure["IdentityFile"],
        "ansible_ssh_common_args": shlex.join(
            [word for name, value in secure.items() if name != "IdentityFile" for word in ("-o", f"{name}={value}")]
        ),
        "ansible_python_interpreter": "/usr/bin/python3",
        **({"genie_rate": f"{size.rate_mbps}Mbps"} if size.rate_mbps else {}),
        "genie_allowed": True,
        "genie_platforms": ["linux"],
    }
    inventories = {"hosts.yml": on_wire} | ({"hosts_switch.yml": at_switch} if size.switch else {})
    for file, said in inventories.items():
        hosts = {name: reached[name] | said[name] for name in reached}
        if size.rdma:
            for host in hosts.values():
                host["genie_rdma_devices"] = [RDMA_DEVICES[host["genie_interface"]]]
        (run / file).write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": every}}, sort_keys=False))


def _prepare(run: Path) -> None:
    """Make it an empty folder that only this user can read, with nothing of an earlier lab."""
    if len(str(run)) > LONGEST_RUN:
        raise LabError(f"{run} is too long a name for sockets in it; name another folder with --run")
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    if run.stat().st_uid != os.getuid():
        raise LabError(f"{run} belongs to another user; name a folder of your own with --run")
    run.chmod(0o700)
    if _alive(run):
        raise LabError(f"a lab is up in {run} already: scripts/lab down, or name another folder with --run")
    for path in run.iterdir():
        if path.is_dir() and (path.name.startswith("vm") or path.name in (SHARED, "switch")):
            shutil.rmtree(path)
        elif path.name in FILES:
            path.unlink()


def _alive(run: Path) -> bool:
    """Whether a keeper holds the folder's lock."""
    try:
        lock = (run / "alive").open("r")
    except FileNotFoundError:
        return False
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
