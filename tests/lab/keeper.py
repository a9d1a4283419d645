"""The process that owns a lab: it starts the virtual machines, and they end with it.

Run as `keeper.py RUN_FOLDER …` by `lab.py`. It says one line of JSON when the lab is ready or has failed, then keeps
the machines until it is told to end (SIGTERM), its standard input closes (if `--attached`), or its time is over. The
kernel kills every machine when this process dies, however it dies (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import guests
import lab
from guests import Machine, Size
from monitor import qmp
from parts import LabError, Parts, ready
from switch import Switch

BOOT_LIMIT_S = 180.0
PROBE_LIMIT_S = 10.0
_PR_SET_PDEATHSIG = 1


class Guest:
    """One running machine and what its console has said."""

    def __init__(self, machine: Machine, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.machine = machine
        self.process = process
        self.folder = folder
        self.text = b""
        self.log = (folder / "console").open("wb", buffering=0)

    def heard(self) -> bool:
        """Take what the console has to say; False at its end."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        self.log.write(data)
        self.text = (self.text + data)[-20_000:]
        return bool(data)

    def said(self, pattern: bytes) -> re.Match[bytes] | None:
        """The first line of the console that has `pattern`, from there on."""
        return re.search(pattern + rb"[^\r\n]*", self.text)


def kvm_works(parts: Parts, cache: Path) -> bool:
    """Whether a machine boots under KVM, tried once a boot of this host and kept in the cache."""
    if not guests.kvm_may_work():
        return False
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    known = cache / f"kvm-{parts.release}-{boot}"
    if not known.exists():
        for old in cache.glob("kvm-*"):
            old.unlink()
        probe = subprocess.Popen(
            guests.probe_argv(parts, kvm=True),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with(os.getpid()),
        )
        try:
            said, _ = probe.communicate(timeout=PROBE_LIMIT_S)
        except subprocess.TimeoutExpired:
            probe.kill()
            said, _ = probe.communicate()
        known.write_text("yes" if b"genie-lab: probed" in said else "no")
    return known.read_text() == "yes"


def _end_with(parent: int) -> Callable[[], None]:
    """For a child between fork and exec: have the kernel kill it when the keeper ends."""
    libc = ctypes.CDLL(None, use_errno=True)

    def arrange() -> None:
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
            os._exit(1)

    return arrange


class Keeper:
    """Starts, watches and ends the machines of one lab."""

    def __init__(self, run: Path, parts: Parts, size: Size, kvm: bool) -> None:
        self.run = run
        self.parts = parts
        self.size = size
        self.kvm = kvm
        self.guests: list[Guest] = []
        self.switch: Switch | None = None
        self.selector = selectors.DefaultSelector()

    def boot(self) -> dict[str, Any]:
        """Start all machines at once and wait until each answers SSH; what `lab.json` says of them."""
        began = time.monotonic()
        fleet = [Machine(1), Machine(2)]
        if self.size.switch:
            (self.run / "switch").mkdir(mode=0o700)
            self.switch = Switch(self.size.rate_mbps, self.run / "switch")
            fleet = [replace(machine, plug=self.switch.plug(machine.number - 1)) for machine in fleet]
        (self.run / guests.SHARED).mkdir(mode=0o755, exist_ok=True)
        guests.key_pair(self.run / "user_key", "user of a GENIE lab")
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for machine, wire in zip(fleet, ends, strict=True):
            self._start(machine, fleet, wire)
        deadline = began + BOOT_LIMIT_S
        waiting = list(self.guests)
        while waiting:
            self.listen(1.0)
            for guest in list(waiting):
                if failed := guest.said(rb"genie-lab: FAILED: "):
                    raise LabError(f"{guest.machine.name} could not be set up: {failed[0].decode(errors='replace')}")
                if guest.process.poll() is not None:
                    raise LabError(f"{guest.machine.name} ended with {guest.process.returncode}: {self._tail(guest)}")
                if guest.said(rb"genie-lab: ready"):
                    waiting.remove(guest)
            if waiting and time.monotonic() > deadline:
                late = waiting[0]
                raise LabError(f"{late.machine.name} did not come up in {BOOT_LIMIT_S:.0f} s: {self._tail(late)}")
        state = []
        for guest in self.guests:
            port = self._ssh_port(guest)
            self._await_ssh(guest, port, deadline)
            public = (guest.folder / "conf/host_key.pub").read_text().split()
            state.append(
                {
                    "name": guest.machine.name,
                    "pid": guest.process.pid,
                    "port": port,
                    "address": guest.machine.wire_address,
                    "port_address": guest.machine.plug.address if guest.machine.plug else "",
                    "folder": str(guest.folder),
                    "host_key": " ".join(public[:2]),
                }
            )
        lab.write_access(self.run, state, self.size)
        return {
            "keeper": os.getpid(),
            "accelerator": "kvm" if self.kvm else "tcg",
            "kernel": self.parts.release,
            "control_address": guests.CONTROL_ADDRESS,
            "rate_mbps": self.size.rate_mbps,
            "rdma": self.size.rdma,
            "switch": self.switch.state() if self.switch else None,
            "boot_s": round(time.monotonic() - began, 1),
            "machines": state,
        }

    def listen(self, timeout: float) -> None:
        """Take what consoles say, for at most `timeout` seconds; end if standard input closed."""
        for key, _ in self.selector.select(max(0.0, timeout)):
            if key.data is None:
                if not os.read(key.fd, 4096):
                    raise SystemExit(0)
            elif not key.data.heard():
                self.selector.unregister(key.fileobj)

    def end(self) -> None:
        """Kill the machines. There is nothing in them to be saved."""
        for guest in self.guests:
            guest.process.kill()
        for guest in self.guests:
            guest.process.wait()
        if self.switch is not None:
            self.switch.close()

    def _start(self, machine: Machine, fleet: list[Machine], wire: socket.socket) -> None:
        folder = self.run / machine.name
        folder.mkdir(mode=0o700)
        guests.write_settings(machine, fleet, self.parts, folder / "conf", self.size)
        (folder / "conf/authorized_keys").write_bytes((self.run / "user_key.pub").read_bytes())
        process = subprocess.Popen(
            guests.argv(machine, self.parts, folder, self.size, self.kvm, wire.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[wire.fileno(), *([machine.plug.tap] if machine.plug else [])],
            preexec_fn=_end_with(os.getpid()),
        )
        wire.close()
        if machine.plug is not None:
            os.close(machine.plug.tap)
        guest = Guest(machine, process, folder)
        self.guests.append(guest)
        self.selector.register(process.stdout, selectors.EVENT_READ, guest)  # type: ignore[arg-type]

    def _ssh_port(self, guest: Guest) -> int:
        """The port of this host's loopback that leads to the machine's SSH server."""
        text = str(qmp(guest.folder / "qmp", "human-monitor-command", {"command-line": "info usernet"}))
        found = re.search(r"TCP\[HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)", text)
        if found is None:
            raise LabError(f"QEMU names no forwarded port: {text}")
        return int(found[1])

    def _await_ssh(self, guest: Guest, port: int, deadline: float) -> None:
        """Until the SSH server shows its banner. QEMU itself takes the connection before that, and drops it."""
        said = b""
        while not said.startswith(b"SSH-"):
            if time.monotonic() > deadline or guest.process.poll() is not None:
                raise LabError(f"no SSH server came up on {guest.machine.name}: {self._tail(guest)}")
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                    said = connection.recv(64)
            except OSError as error:
                said = str(error).encode()
            if not said.startswith(b"SSH-"):
                self.listen(0.1)

    @staticmethod
    def _tail(guest: Guest) -> str:
        return "its console ended with\n" + guest.text.decode(errors="replace").strip()[-1500:]


def main(arguments: list[str]) -> int:
    """Keep one lab; 0 if it was ready and ended as it was told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--accelerator", choices=("auto", "kvm", "tcg"), default="auto")
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--memory", type=int, default=1024)
    parser.add_argument("--rate", type=int, default=10)
    parser.add_argument("--rdma", action="store_true")
    parser.add_argument("--layer", type=Path)
    parser.add_argument("--switch", action="store_true")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--attached", action="store_true")
    options = parser.parse_args(arguments)

    # Whoever asks whether this lab is alive tries this lock: it goes with the process.
    alive = (options.run / "alive").open("w")
    fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (options.run / "pid").write_text(f"{os.getpid()}\n")

    def told(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, told)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper = None
    try:
        parts = replace(ready(options.cache), layer=options.layer)
        kvm = options.accelerator == "kvm" or (options.accelerator == "auto" and kvm_works(parts, options.cache))
        size = Size(options.cpus, options.memory, options.rate, options.rdma, options.switch)
        keeper = Keeper(options.run, parts, size, kvm)
        if options.attached:
            keeper.selector.register(0, selectors.EVENT_READ, None)
        state = keeper.boot()
        ends = time.monotonic() + options.seconds
        lab.write_state(options.run, state)
        _say({"ready": state})
        while (left := ends - time.monotonic()) > 0:
            keeper.listen(left)
    except (LabError, OSError) as error:
        _say({"failed": str(error)})
        return 1
    finally:
        if keeper is not None:
            keeper.end()
    return 0


def _say(words: dict[str, Any]) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
