"""A switch of GENIE's embedded fabric that the machines are plugged into, each at a shaped port.

Called by `keeper.py`, which holds the fabric as a run would: it ends with the keeper. Host ``h0`` of the fabric gives
its place to the first machine, ``h1`` to the second: their cables are bridged to taps, and what they were to the
switch (addresses, hardware address) the machines are. ``h2`` stays a namespace, for traffic that gets in the way.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parts import LabError

TAP = Path(__file__).resolve().parent / "tap.py"
HOSTS = 3
OTHER = "h2"
SWITCH = "switch0"
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Plug:
    """What a machine needs to be a host of the fabric; ``tap`` is a descriptor for QEMU.

    ``address`` is the host's own, ``link_address`` that of its cable, in a /31 with the switch's ``gateway``.
    """

    host: str
    address: str
    link_address: str
    gateway: str
    mac: str
    tap: int


class Switch:
    """One switch with `HOSTS` ports. Raises LabError where this machine cannot have it, with the reason."""

    def __init__(self, rate_mbps: int, folder: Path) -> None:
        # Here and not above: who boots a plain lab needs nothing of GENIE's fabric.
        from genie.errors import GenieError
        from genie.fabric import NetnsConfig
        from genie.fabric.netns import NetnsFabric
        from genie.topology import SingleSwitchConfig, build

        topology = build(SingleSwitchConfig(hosts=HOSTS, host_rate=f"{rate_mbps}Mbps"))
        self._folder = folder
        self._fabric = NetnsFabric(NetnsConfig(), topology, folder)
        try:
            self._fabric.build()
        except GenieError as error:
            raise LabError(f"no switch here: {error}") from error

    def plug(self, number: int) -> Plug:
        """Give the place of host ``number``, counted from 0, to a machine."""
        from genie.errors import GenieError

        host = f"h{number}"
        try:
            return self._plugged(number, host)
        except GenieError as error:
            raise LabError(f"{host} cannot give its place to a machine: {error}") from error

    def _plugged(self, number: int, host: str) -> Plug:
        plan = self._fabric.plan.nodes[host]
        (cable,) = plan.interfaces
        tap = self._tap(host)
        # The cable's own hardware address goes to the machine; a bridge takes frames for its ports' addresses itself.
        self._in_node(host, f"""
            address flush dev {cable.port.interface}
            address del {plan.address}/32 dev lo
            link set dev {cable.port.interface} address 02:00:00:77:00:{number:02x}
            link add name bridge type bridge
            link set dev {cable.port.interface} master bridge
            link set dev tap master bridge
            link set dev tap mtu {self._fabric.topology.parameters["mtu"]}
            link set dev tap up
            link set dev bridge up
        """)  # fmt: skip
        return Plug(host, plan.address, cable.address, cable.peer_address, cable.mac, tap)

    def state(self) -> dict[str, Any]:
        """For `lab.json`: how commands get into the fabric's nodes."""
        first = self._fabric.holder_pid
        (holder,) = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return {"holder": int(holder), "is_users": os.geteuid() != 0, "node": SWITCH, "other": OTHER}

    def close(self) -> None:
        """Take it down; idempotent."""
        self._fabric.destroy()

    def _in_node(self, host: str, lines: str) -> None:
        done = self._fabric.run(host, ["ip", "-batch", "-"], stdin=lines.encode())
        if done.returncode != 0:
            raise LabError(f"{host} cannot give its place to a machine: {done.stderr.strip()}")

    def _tap(self, host: str) -> int:
        """A descriptor of a tap in a node: only what runs there can open one."""
        path = self._folder / "tap"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.settimeout(_PATIENCE_S)
            listener.bind(str(path))
            listener.listen()
            argv = [sys.executable, "-I", "-S", str(TAP), "tap", str(path)]
            helper = self._fabric.spawn(host, argv, stdin=b"", log=self._folder / f"tap-{host}.log")
            try:
                while True:
                    listener.settimeout(0.2)
                    try:
                        connection, _ = listener.accept()
                        break
                    except TimeoutError:
                        if helper.poll() is not None:
                            said = (self._folder / f"tap-{host}.log").read_text().strip() or "it does not say why"
                            raise LabError(f"no tap in {host}: {said.splitlines()[-1]}") from None
                with connection:
                    _, (tap,), _, _ = socket.recv_fds(connection, 64, 1)
                helper.wait(_PATIENCE_S)
            finally:
                path.unlink()
        return tap


def unfit() -> str:
    """Why machines cannot be plugged into a switch here; empty if they can. Tries it, without machines."""
    with tempfile.TemporaryDirectory(prefix="genie-lab-") as folder:
        try:
            switch = Switch(8, Path(folder))
            try:
                os.close(switch.plug(0).tap)
            finally:
                switch.close()
        except (LabError, OSError) as error:
            return " ".join(str(error).split())
    return ""
