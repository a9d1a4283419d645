"""A lab machine: its name and addresses, the files it is told its settings by, the QEMU command that runs it.

Called by `keeper.py`. Decides and writes files; never starts a process but `ssh-keygen`.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import tsc
from parts import GUEST, Parts
from switch import Plug

WIRE_MTU = 4200
"""Bytes: RoCE's 4096 of payload and its headers, as on the embedded fabric."""

CONTROL_ADDRESS = "127.78.0.1"
"""This host, as the machines reach it: an address of its loopback that they have a route to, and to nothing else."""

SHARED = "shared"
"""A folder of the run folder whose files the machines see as they are: how a test brings a program there."""

WIRE, PORT = "wire0", "port0"
"""The cards between the machines: the wire, and the one that is plugged into a switch, where there is one."""

RDMA_DEVICES = {WIRE: "rxe0", PORT: "rxe1"}
"""Names of the Soft-RoCE devices by card."""

QUEUE_BYTES, KMIN_BYTES, KMAX_BYTES = 131072, 25600, 76800
"""Queue and ECN thresholds of the wire's shaper, those of the embedded fabric's ports."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of the host one machine takes."""

    cpus: int = 1
    memory_mib: int = 1024
    rate_mbps: int = 10
    """Of the shaper at each end of the wire; 0 for none."""
    rdma: bool = False
    """Whether the wire (and the port) gets a Soft-RoCE device."""
    switch: bool = False
    """Whether there is a switch, with a port of that rate for each machine."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The `number`th machine of a lab, counted from 1."""

    number: int
    plug: Plug | None = None
    """Its place at a switch."""

    @property
    def name(self) -> str:
        """Name in the inventory and of the host itself."""
        return f"vm{self.number}"

    @property
    def wire_address(self) -> str:
        """Address on the wire between the machines."""
        return f"10.77.0.{self.number}"

    @property
    def manage_network(self) -> str:
        """The first three bytes of this machine's management network, which it shares with nobody."""
        return f"10.78.{self.number}"

    def mac(self, network: str) -> str:
        """Hardware address on network `manage`, `wire` or `port`."""
        if network == "port":
            assert self.plug is not None
            return self.plug.mac
        return f"52:54:00:77:{0 if network == 'manage' else 1:02x}:{self.number:02x}"


def write_settings(machine: Machine, machines: list[Machine], parts: Parts, folder: Path, size: Size) -> None:
    """What the machine reads at its start, and its SSH host key, into `folder`."""
    folder.mkdir(mode=0o700)
    key_pair(folder / "host_key", f"{machine.name} of a GENIE lab")
    (folder / "start").write_bytes((GUEST / "start").read_bytes())
    (folder / "start").chmod(0o755)
    hosts = "".join(f"{other.wire_address} {other.name}\n" for other in machines if other != machine)
    settings = {
        "name": machine.name,
        "release": parts.release,
        "hosts": hosts,
        "manage_mac": machine.mac("manage"),
        "manage_address": f"{machine.manage_network}.15/24",
        "manage_gateway": f"{machine.manage_network}.2",
        "wire_mac": machine.mac("wire"),
        "wire_address": f"{machine.wire_address}/24",
        "wire_mtu": str(WIRE_MTU),
        "control_address": CONTROL_ADDRESS,
        "shaper": _shaper(size.rate_mbps),
        "marker": _marker(size.rate_mbps),
        "rdma": "yes" if size.rdma else "",
    }
    if machine.plug is not None:
        settings |= {
            "port_mac": machine.mac("port"),
            "port_address": f"{machine.plug.address}/32",
            "port_link": f"{machine.plug.link_address}/31",
            "port_gateway": machine.plug.gateway,
        }
    (folder / "settings").write_text("".join(f"{name}='{value}'\n" for name, value in settings.items()))
    (folder / "sshd_config").write_text(
        "HostKey /run/lab/ssh/host_key\nAuthorizedKeysFile /run/lab/ssh/authorized_keys\nPidFile none\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n"
        "UseDNS no\nPrintMotd no\nMaxSessions 100\nMaxStartups 100\nSubsystem sftp internal-sftp\n"
        "SetEnv PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/lab/bin\n"
    )


def _shaper(rate_mbps: int) -> str:
    """tc's words for a shaper like those of the embedded fabric; empty for none."""
    burst = max(4 * (WIRE_MTU + 14), rate_mbps * 1_000_000 // 8 // 2000)
    return f"tbf rate {rate_mbps}mbit burst {burst}b limit {QUEUE_BYTES}b" if rate_mbps else ""


def _marker(rate_mbps: int) -> str:
    """tc's words for the red below it."""
    burst = -(-(2 * KMIN_BYTES + KMAX_BYTES) // (3 * WIRE_MTU))
    thresholds = f"limit {QUEUE_BYTES} min {KMIN_BYTES} max {KMAX_BYTES} avpkt {WIRE_MTU} burst {burst}"
    return f"red {thresholds} bandwidth {rate_mbps}mbit probability 0.1 ecn nodrop" if rate_mbps else ""


def key_pair(path: Path, comment: str) -> None:
    """A throwaway ed25519 key without a pass phrase in `path`, its public half beside it."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


def accelerated(kvm: bool) -> list[str]:
    """The part of QEMU's command that says by what the processor is run."""
    if kvm:
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max"]


def probe_argv(parts: Parts, kvm: bool) -> list[str]:
    """QEMU's command for a machine that says `genie-lab: probed` and ends."""
    return [*_bare(parts, "genie_lab=probe", kvm), *accelerated(kvm), "-m", "256"]


def argv(machine: Machine, parts: Parts, folder: Path, size: Size, kvm: bool, wire: int) -> list[str]:
    """QEMU's command: console on standard output, a QMP socket in `folder`, `wire` a socket to the other machine.

    The management network is QEMU's own: connections come in from this host's loopback to the SSH port (the host's
    port is chosen by the kernel), and the machines reach what they have a route to: `CONTROL_ADDRESS`.
    """
    conf = folder / "conf"
    shares = {
        "host": Path("/"),
        "conf": conf,
        "shared": folder.parent / SHARED,
        "modules": parts.modules,
        "programs": parts.programs,
    }
    if parts.layer is not None:
        shares["layer"] = parts.layer
    net = machine.manage_network
    user = f"user,id=manage,ipv6=off,net={net}.0/24,host={net}.2,hostfwd=tcp:127.0.0.1:0-{net}.15:22"
    port = []
    if machine.plug is not None:
        port = ["-netdev", f"tap,id=port,fd={machine.plug.tap}"]
        port += ["-device", f"virtio-net-pci,id={PORT},netdev=port,mac={machine.mac('port')},host_mtu={WIRE_MTU}"]
    return [
        *_bare(parts, "genie_lab=boot genie_lab_layer" if parts.layer else "genie_lab=boot", kvm),
        *accelerated(kvm),
        *("-name", f"genie-lab-{machine.name}", "-smp", str(size.cpus), "-m", str(size.memory_mib)),
        *("-qmp", f"unix:{folder / 'qmp'},server=on,wait=off"),
        *(word for tag, path in shares.items() for word in _share(tag, path)),
        *("-netdev", user, "-device", f"virtio-net-pci,id=manage0,netdev=manage,mac={machine.mac('manage')}"),
        *("-netdev", f"socket,id=wire,fd={wire}"),
        *("-device", f"virtio-net-pci,id={WIRE},netdev=wire,mac={machine.mac('wire')},host_mtu={WIRE_MTU}"),
        *port,
    ]


def _bare(parts: Parts, word: str, kvm: bool) -> list[str]:
    clock = "" if kvm else f"{clock_words(tsc.khz())} "
    return [
        "qemu-system-x86_64",
        *("-machine", "q35", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"),
        *("-kernel", str(parts.kernel), "-initrd", str(parts.initrd)),
        *("-append", f"console=ttyS0 quiet panic=-1 random.trust_cpu=on mitigations=off {clock}{word}"),
    ]


def clock_words(khz: int | None) -> str:
    """What an emulated kernel is told of its clocks. HPET, too, counts the host's own time."""
    return f"tsc=reliable tsc_early_khz={khz}" if khz else "tsc=unstable clocksource=hpet"


def _share(tag: str, path: Path) -> list[str]:
    fs = f"local,id={tag},path={path},security_model=none,readonly=on,multidevs=remap"
    return ["-fsdev", fs, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


def kvm_may_work() -> bool:
    """Whether this user may open /dev/kvm; whether a machine then boots is for a probe to find out."""
    return os.access("/dev/kvm", os.R_OK | os.W_OK)
