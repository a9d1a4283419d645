"""Agents of one run: started on every host through the fabric, driven through the control protocol, watched.

`genie.experiment` asks for three things: `muster` (start, load, connect), `race` (start together, wait to the
end) and, by leaving the context, that none is left. Knows no faults and no results.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genie.clocks import ClockLook, Clocks, HostClock
from genie.engine.binaries import find_binary
from genie.errors import RunAborted
from genie.fabric.base import Fabric, Process
from genie.launch.control import Controller, Outcome
from genie.launch.protocol import TOKEN_BYTES, Listener, Progress

_EXIT_PATIENCE_S = 1.0
_SSH_LOST = 255  # what ssh ends with where it loses its host; no agent does
_LEAD_NS = 30_000_000  # between "start at T" and T: every agent has heard of T well before it


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one rank runs where: its program blob and its event file, relative to the run directory."""

    rank: int
    host: str
    program: bytes
    event_path: str


@dataclass(frozen=True, slots=True)
class Race:
    """How a start-to-end went: the agreed instant (our monotonic clock), hosts' clocks against ours, the outcome, and a
    sentence about each agent that ended before its time.
    """

    start_mono_ns: int
    clocks: Clocks
    outcome: Outcome
    gone: tuple[str, ...] = ()

    @property
    def clock_error_ns(self) -> int:
        """The largest error of any host's clock against ours."""
        return self.clocks.error_ns


class Agents:
    """The agents of one run, as a context manager; leaving it ends every one of them."""

    def __init__(
        self,
        fabric: Fabric,
        directory: Path,
        *,
        log: Callable[[str], None],
        connect_timeout_s: float,
        silence_s: float | None = None,
        agent: str = "genie-agent",
    ) -> None:
        """``silence_s``: an agent that says nothing for so long while ranks run is given up. ``agent`` is the
        executable that has the run's transport.
        """
        self._fabric = fabric
        self._directory = directory
        self._connect_timeout_s = connect_timeout_s
        self._silence_s = silence_s
        self._agent = agent
        self._processes: dict[str, Process] = {}
        self.used: Mapping[int, Mapping[str, Any]] = {}
        """Once mustered: what the transport of each rank uses, in its own words."""
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._log = log
        self._controller = Controller(self._token, watch=self._watch, log=log)
        self._racing = False
        self._failed = False
        self._ending = False

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._ending = True
        self._controller.close()
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():  # the next run on this fabric listens where these did
            with contextlib.suppress(RunAborted):
                process.wait(_EXIT_PATIENCE_S)
        try:
            self._fabric.collect(self._directory)  # event files come here however the run ended
        except RunAborted as lost:
            if error is None and not self._failed:
                raise
            self._log(lost.message)  # what ended the run stands before files that were lost with it

    def muster(self, assignments: Mapping[int, Assignment]) -> None:
        """Start an agent on every host in use, give each rank its program, and connect all peers.

        Raises RunAborted naming the host, rank or peer that was missing at the deadline.
        """
        hosts = sorted({assignment.host for assignment in assignments.values()})
        address = self._fabric.control_address
        control = self._controller.listen_tcp(address) if address else self._controller.listen_unix(self._directory)
        agent = str(find_binary(self._agent))
        for host in hosts:
            argv = [agent, "run", "--control", control, "--host", host, *self._pace_arguments(host)]
            log = self._directory / "log" / f"agent-{host}.log"
            self._processes[host] = self._fabric.spawn(host, argv, stdin=self._token, log=log, cwd=self._directory)
        self._controller.wait_for_agents(hosts, self._connect_timeout_s)
        programs = {a.rank: (a.host, a.event_path, a.program) for a in assignments.values()}
        found = self._controller.load(programs, self._connect_timeout_s)
        listeners = [
            Listener(rank, int(ipaddress.IPv4Address(self._fabric.address(assignments[rank].host))), one.port, one.card)
            for rank, one in sorted(found.items())
        ]
        self.used = {rank: one.used for rank, one in found.items()}
        self._controller.connect(listeners, self._connect_timeout_s)

    def race(
        self,
        timeout_s: float | None,
        on_progress: Callable[[Mapping[int, Progress]], None],
        on_start: Callable[[int, Mapping[str, int]], None] = lambda *_: None,
    ) -> Race:
        """Start all ranks at one instant and wait until every one has ended or the first failure stopped the rest.

        ``on_start`` is told that instant and each host's clock correction (ns), once the ranks have been told.
        """
        self._racing = True  # from here on a lost agent is part of the outcome, with what its peers say of it
        offsets = self._controller.clock_offsets()
        longest_trip_ns = 2 * max(look.error_ns for look in offsets.values())
        start_mono_ns = time.monotonic_ns() + _LEAD_NS + longest_trip_ns
        self._controller.start(start_mono_ns, offsets)
        on_start(start_mono_ns, {host: offset.correction_ns for host, offset in offsets.items()})
        outcome = self._controller.wait_done(timeout_s, on_progress, silence_s=self._silence_s)
        self._failed = not outcome.ok
        after = self._look_again() if self._fabric.control_address and outcome.ok else {}
        clocks = Clocks(start_mono_ns, {host: HostClock(look, after.get(host)) for host, look in offsets.items()})
        self._fabric.learn_clocks(clocks.hosts)
        self._ending = True
        self._controller.bye()
        gone = tuple(self._how_it_went(host) for host in outcome.lost)
        return Race(start_mono_ns, clocks, outcome, gone)

    def _pace_arguments(self, host: str) -> list[str]:
        """Where a fault can slow this host's compute; nothing on a fabric whose nodes keep no state folder."""
        state_dir: Callable[[str], str] | None = getattr(self._fabric, "state_dir", None)
        return ["--pace", f"{state_dir(host)}/pace"] if state_dir else []

    def _look_again(self) -> dict[str, ClockLook]:
        """Hosts' clocks once more at the end, for their drift; without it the error is that of the first look."""
        try:
            return self._controller.clock_offsets()
        except RunAborted as error:
            self._log(f"clocks were not compared at the end, so their drift is not known: {error.message}")
            return {}

    def _how_it_went(self, host: str) -> str:
        lost = f"the connection to the agent on {host} was lost"
        try:
            code = self._processes[host].wait(_EXIT_PATIENCE_S)
        except RunAborted:
            return lost
        if code == _SSH_LOST and self._fabric.control_address:
            return lost
        return f"the agent on {host} {ending(code)}"

    def _watch(self) -> None:
        if self._ending or self._racing:
            return
        for host, process in self._processes.items():
            code = process.poll()
            if code is not None and code != 0:
                raise RunAborted(
                    f"the agent on {host} {ending(code)} before the start",
                    hint=f"See log/agent-{host}.log: {self._tail(host)}",
                )

    def _tail(self, host: str) -> str:
        path = self._directory / "log" / f"agent-{host}.log"
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return lines[-1] if lines else "it said nothing"


def ending(code: int) -> str:
    """How a program ended, as the end of a sentence; a negative code is the signal it died of."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    return f"was killed by {name}"
