"""A lab of machines to reach by ssh: each a network namespace with its own /run/genie, /run/lock, sshd and host key.

Every machine has two cables: one into a bridge that this process reaches (management, 10.77.SLOT.0/24) and one into a
bridge that it does not (data, 10.78.SLOT.0/24, the NIC ``data0``). Labs at the same time have slots of their own.
Everything is removed at the end, and by the next lab in the slot if a test process was killed.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

UNPACKED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "genie-lab/sshd"
"""Where scripts/setup puts an SSH server on a machine that has none installed."""
SSHD = next((p for p in ("/usr/sbin/sshd", f"{UNPACKED}/usr/sbin/sshd") if os.access(p, os.X_OK)), "")
PREFIX = "gnl"  # of namespaces and interfaces on this machine; nobody else's
SLOTS = 16
RATE = "100Mbps"


def unavailable() -> str:
    """Why the lab cannot be had here, or ""."""
    if os.geteuid() != 0:
        return "needs root"
    if not SSHD:
        return "needs an sshd: scripts/setup --dev as root gets one, or apt-get install openssh-server"
    return ""


def sh(*argv: str, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
    """A command to its end."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, **more)
    assert done.returncode == 0 or not check, f"{' '.join(argv)}: {done.stderr}"
    return done


@dataclass
class Machine:
    """One machine of the lab."""

    name: str
    number: int
    slot: int
    server: subprocess.Popen[bytes] | None = None
    ahead_s: int = 0

    @property
    def space(self) -> str:
        """Name of its network namespace."""
        return f"{PREFIX}{self.slot:x}s{self.number}"

    @property
    def management(self) -> str:
        """The address of its sshd."""
        return f"10.77.{self.slot}.{self.number + 1}"

    @property
    def data(self) -> str:
        """The address of its data NIC."""
        return f"10.78.{self.slot}.{self.number + 1}"

    def cable(self, network: str) -> str:
        """Our end of its cable into "mgmt" or "data"."""
        return f"{PREFIX}{self.slot:x}{network[0]}{self.number}"

    def run(self, script: str, check: bool = True) -> str:
        """A shell script inside the machine, without ssh."""
        return sh(
            "nsenter", f"--net=/run/netns/{self.space}", f"--mount=/proc/{self.server_pid}/ns/mnt", "sh", "-c", script,
            check=check,
        ).stdout  # fmt: skip

    @property
    def server_pid(self) -> int:
        """A process in the machine's own mount namespace."""
        assert self.server is not None
        return self.server.pid

    def kill_server(self) -> None:
        """The machine answers no new ssh connection."""
        assert self.server is not None
        self.server.kill()
        self.server.wait()

    def processes(self, program: str) -> list[int]:
        """Ids of processes of ``program`` that live in this machine's network."""
        found = []
        inode = Path(f"/run/netns/{self.space}").stat().st_ino
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if (entry / "ns/net").stat().st_ino == inode and words[0].endswith(program.encode()):
                    found.append(int(entry.name))
        return found


@dataclass
class Lab:
    """The machines, and the inventory that describes them."""

    folder: Path
    machines: list[Machine] = field(default_factory=list)

    def __getitem__(self, name: str) -> Machine:
        return next(machine for machine in self.machines if machine.name == name)

    def inventory(self, name: str = "hosts.yml", *, hosts: Sequence[str] = (), **changes: Mapping[str, Any]) -> Path:
        """An inventory of all machines or of some; ``changes`` replaces variables by host (None removes one)."""
        described = {}
        for machine in self.machines:
            if hosts and machine.name not in hosts:
                continue
            variables: dict[str, Any] = {
                "ansible_host": machine.management,
                "ansible_port": 22,
                "ansible_user": "root",
                "ansible_ssh_private_key_file": str(self.folder / "user_key"),
                "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.folder / 'known_hosts'}",
                "genie_allowed": True,
                "genie_address": machine.data,
                "genie_rate": RATE,
            }
            variables |= changes.get(machine.name, {})
            described[machine.name] = {key: value for key, value in variables.items() if value is not None}
        path = self.folder / name
        path.write_text(yaml.safe_dump({"all": {"hosts": described}}))
        return path

    def leftovers(self) -> list[str]:
        """Files and processes of GENIE on the machines, of which there must be none between runs."""
        found = []
        for machine in self.machines:
            found += [f"{machine.name}: {line}" for line in machine.run("find /run/genie -mindepth 1").split()]
            for program in ("genie-agent", "genie-port", "timeout", "head"):
                found += [f"{machine.name}: {program} {pid}" for pid in machine.processes(program)]
        return found


SSHD_CONFIG = """
Port 22
ListenAddress {address}
HostKey {key}
AuthorizedKeysFile {folder}/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
UseDNS no
MaxStartups 100
MaxSessions 100
PrintMotd no
PrintLastLog no
# bash reads no ~/.bashrc then: what root's does on a developer's machine is no part of the lab.
SetEnv SHLVL=5
"""

# The server's mount namespace is the machine's: its own /run/genie, /run/lock. argv: config, MB of /run/genie. An
# installed server has a user "sshd" and programs of its own; to an unpacked one its machine gives both.
_START = (
    "mount --make-rprivate / && mkdir -p /run/genie /run/lock /run/sshd && "
    'mount -t tmpfs -o size="$2"m tmpfs /run/genie && mount -t tmpfs tmpfs /run/lock && '
    '{ grep -q ^sshd: /etc/passwd || { echo "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin" | '
    'cat /etc/passwd - >"$1.passwd" && mount --bind "$1.passwd" /etc/passwd; }; } && '
    f"{{ test {SSHD} = /usr/sbin/sshd || mount --bind {UNPACKED}/usr/lib/openssh /usr/lib/openssh; }} && "
    f'exec {SSHD} -D -e -f "$1"'
)


def _take_slot() -> tuple[int, int]:
    """A slot that no other lab has, and the descriptor whose lock says so."""
    for slot in range(SLOTS):
        handle = os.open(f"/run/lock/genie-test-lab-{slot}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            continue
        return slot, handle
    raise AssertionError(f"{SLOTS} labs are up at once")


def sweep(slot: int) -> None:
    """Remove the lab of a slot: processes by their namespace, then the namespaces and bridges."""
    for name in sh("ip", "netns", "list").stdout.split():
        if name.startswith(f"{PREFIX}{slot:x}s"):
            for pid in sh("ip", "netns", "pids", name, check=False).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            sh("ip", "netns", "del", name, check=False)
    # A namespace goes some time after its last process; a cable goes with either end at once.
    for interface in Path("/sys/class/net").iterdir():
        if interface.name.startswith(f"{PREFIX}{slot:x}"):
            sh("ip", "link", "del", interface.name, check=False)


def _bridge(slot: int, network: str) -> str:
    return f"{PREFIX}{slot:x}{network}"


@contextlib.contextmanager
def lab(folder: Path, count: int, *, ahead: Mapping[str, int] | None = None, room_mb: int = 256) -> Iterator[Lab]:
    """``count`` machines m0, m1 …; ``ahead``: by how many seconds a machine's CLOCK_MONOTONIC is ahead of ours."""
    slot, handle = _take_slot()
    sweep(slot)
    folder.mkdir(parents=True, exist_ok=True)
    made = Lab(folder)
    try:
        for network in ("mgmt", "data"):
            sh("ip", "link", "add", _bridge(slot, network), "type", "bridge")
            sh("ip", "link", "set", _bridge(slot, network), "up")
        sh("ip", "addr", "add", f"10.77.{slot}.254/24", "dev", _bridge(slot, "mgmt"))
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "user_key"))
        for number in range(count):
            machine = Machine(f"m{number}", number, slot, ahead_s=(ahead or {}).get(f"m{number}", 0))
            made.machines.append(machine)
            _start(made, machine, room_mb)
        for machine in made.machines:
            _await_server(machine)
        yield made
    finally:
        for machine in made.machines:
            if machine.server is not None:
                machine.kill_server()
        sweep(slot)
        os.close(handle)
        shutil.rmtree(folder, ignore_errors=True)


def _start(lab: Lab, machine: Machine, room_mb: int) -> None:
    sh("ip", "netns", "add", machine.space)
    batch = "link set lo up\n"
    for network, inside, address in (("mgmt", "mgmt0", machine.management), ("data", "data0", machine.data)):
        outside = machine.cable(network)
        sh("ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", machine.space)
        sh("ip", "link", "set", outside, "master", _bridge(machine.slot, network), "up")
        if network == "data":  # what arrives is as slow as the inventory says; the machine's own queues are untouched
            sh("tc", "qdisc", "add", "dev", outside, "root", "tbf", "rate", "100mbit", "burst", "32k", "limit", "512k")
        batch += f"addr add {address}/24 dev {inside}\nlink set {inside} up\n"
    sh("ip", "-n", machine.space, "-batch", "-", input=batch)
    key = lab.folder / f"host_key_{machine.name}"
    sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    with (lab.folder / "known_hosts").open("a") as known:
        known.write(f"{machine.management} {key.with_suffix('.pub').read_text()}")
    config = lab.folder / f"sshd_{machine.name}.conf"
    config.write_text(SSHD_CONFIG.format(address=machine.management, key=key, folder=lab.folder))
    clock = ["--time", "--monotonic", str(machine.ahead_s), "--fork", "--kill-child"] if machine.ahead_s else []
    apart = ["ip", "netns", "exec", machine.space, "unshare", *clock, "--mount"]
    with (lab.folder / f"sshd_{machine.name}.log").open("wb") as log:
        machine.server = subprocess.Popen(
            [*apart, "sh", "-c", _START, "sh", str(config), str(room_mb)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _await_server(machine: Machine) -> None:
    wait_until(
        lambda: "0.0.0.0:*" in sh("ip", "netns", "exec", machine.space, "ss", "-tln", "sport", "=", "22").stdout,
        f"the port of {machine.name}",
    )


def wait_until(condition: Any, what: str, timeout_s: float = 20.0) -> Any:
    """The first true answer of ``condition``."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{what} did not come within {timeout_s} s"
        time.sleep(0.02)


def genie(*arguments: str) -> list[str]:
    """The argv of one genie command with this interpreter."""
    return [sys.executable, "-m", "genie", *arguments]
