"""The controller: agents dial it, prove themselves, get programs, connect, start at one instant, report.

One thread, one selector, one socket that listens only while the run lasts (a Unix socket in the run directory
for the embedded fabric). `genie.experiment` drives it phase by phase; each phase ends when every agent or rank
has answered, or with a named error at its deadline. It never looks into programs or events.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from genie.clocks import ClockLook
from genie.errors import RunAborted
from genie.launch import protocol
from genie.launch.protocol import Failure, Fields, Frame, FrameReader, Listener, Progress

_ABORT_GRACE_S = 3.0
_PINGS = 8
_SILENT_S = 12
"""A host that has not acknowledged anything for so long is gone. The agent gives us 15 s (`native/src/agent_main.cpp`):
longer, or the end of its ranks would be heard of, through their peers, before what caused it.
"""


@dataclass(slots=True)
class _Agent:
    socket: socket.socket
    peer: str
    reader: FrameReader = field(default_factory=FrameReader)
    outgoing: bytearray = field(default_factory=bytearray)
    host: str = ""
    nonce_agent: bytes = b""
    nonce_controller: bytes = b""
    proven: bool = False
    closed: bool = False
    heard_s: float = 0.0  # when it last said anything, by our monotonic clock


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the ranks ended: statuses by rank (0 ok, 1 failed, 2 aborted, -1 never said), failures in order of
    arrival, the reason of an abort ("" if there was none), and the hosts whose agents went away before the end.
    """

    statuses: Mapping[int, int]
    failures: tuple[Failure, ...]
    reason: str
    lost: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every rank ended by itself."""
        return not self.failures and not self.reason and all(status == 0 for status in self.statuses.values())


class Controller:
    """Runs the control protocol for one run. Use as a context manager: leaving it closes every socket.

    ``watch`` is called often while waiting and may raise (a fabric process died, the user interrupted): what it
    raises ends the phase. ``log`` receives sentences about strangers and lost agents.
    """

    def __init__(
        self, token: bytes, *, watch: Callable[[], None] = lambda: None, log: Callable[[str], None] = lambda _: None
    ) -> None:
        if len(token) != protocol.TOKEN_BYTES:
            raise ValueError(f"token must be {protocol.TOKEN_BYTES} bytes, not {len(token)}")
        self._token = token
        self._watch = watch
        self._log = log
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._socket_path: Path | None = None
        self._agents: list[_Agent] = []
        self._by_host: dict[str, _Agent] = {}
        self._host_of_rank: dict[int, str] = {}
        self._listening: dict[int, protocol.Opened] = {}
        self._connected: set[int] = set()
        self._statuses: dict[int, int] = {}
        self._failures: list[Failure] = []
        self._pongs: dict[int, tuple[int, int]] = {}
        self._progress: dict[int, Progress] = {}
        self._lost: list[str] = []

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- phases, in order ---------------------------------------------------------------------------------------

    def listen_unix(self, directory: Path) -> str:
        """Listen on ``directory/control.sock`` and return the address for agents started *in* that directory.

        Relative, and bound through the directory's descriptor: a Unix address holds 107 bytes, and run
        directories may be longer.
        """
        path = directory / "control.sock"
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        handle = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        try:
            listener.bind(f"/proc/self/fd/{handle}/control.sock")
        finally:
            os.close(handle)
        path.chmod(0o600)
        listener.listen(1024)
        self._socket_path = path
        self._listen(listener)
        return "unix:control.sock"

    def listen_tcp(self, address: str) -> str:
        """Listen on a port of ``address`` (the management network's) and return ``tcp:HOST:PORT``."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.bind((address, 0))
        except OSError as error:
            raise RunAborted(
                f"cannot listen on {address} for agents: {error.strerror}",
                hint="give an IPv4 address of this machine that all hosts can dial: fabric.control_address=ADDRESS",
            ) from error
        listener.listen(1024)
        self._listen(listener)
        return f"tcp:{address}:{listener.getsockname()[1]}"

    def wait_for_agents(self, hosts: Iterable[str], timeout_s: float) -> None:
        """Until an agent of every host has proven itself."""
        wanted = set(hosts)
        self._until(
            lambda: wanted <= set(self._by_host),
            timeout_s,
            lambda: f"no agent answered from {_names(wanted - set(self._by_host))}",
        )

    def load(self, programs: Mapping[int, tuple[str, str, bytes]], timeout_s: float) -> dict[int, protocol.Opened]:
        """Send each rank's (host, event path, program) and wait until all listen; returns how each is reached."""
        for rank, (host, event_path, blob) in programs.items():
            self._host_of_rank[rank] = host
            self._send(self._by_host[host], protocol.program_frame(rank, event_path, blob))
        self._until(
            lambda: len(self._listening) == len(programs) or bool(self._failures),
            timeout_s,
            lambda: f"{_ranks(set(programs) - set(self._listening))} did not load the program",
        )
        self._raise_first_failure("load its program")
        return dict(self._listening)

    def connect(self, listeners: Sequence[Listener], timeout_s: float) -> None:
        """Tell every agent how each rank is reached and wait until all have connected."""
        self._broadcast(protocol.connect_frame(listeners))
        ranks = set(self._host_of_rank)
        self._until(
            lambda: self._connected >= ranks or bool(self._failures),
            timeout_s,
            lambda: f"{_ranks(ranks - self._connected)} could not reach all peers",
        )
        self._raise_first_failure("connect")

    def clock_offsets(self, timeout_s: float = 5.0) -> dict[str, ClockLook]:
        """Each host's clock against ours: the best of several round trips (Cristian's algorithm, 1989)."""
        return {
            host: min((self._ping(host, agent, timeout_s) for _ in range(_PINGS)), key=lambda found: found.error_ns)
            for host, agent in self._by_host.items()
        }

    def start(self, at_mono_ns: int, offsets: Mapping[str, ClockLook]) -> None:
        """All ranks begin at ``at_mono_ns`` of our clock, each told in its own."""
        for host, agent in self._by_host.items():
            instant = at_mono_ns + offsets[host].correction_ns
            self._send(agent, protocol.frame(Frame.START, struct.pack("<q", instant)))
        self._flush()

    def wait_done(
        self,
        timeout_s: float | None,
        on_progress: Callable[[Mapping[int, Progress]], None] = lambda _: None,
        *,
        silence_s: float | None = None,
    ) -> Outcome:
        """Until every rank has ended. The first failure, a lost agent, an agent that says nothing for ``silence_s``
        (it reports progress several times a second), or ``timeout_s`` aborts all the others; they have a short
        grace to say what they were waiting for. Never raises for a rank's failure.
        """
        reason = ""
        looked_s = self._hear_of_all()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while len(self._statuses) < len(self._host_of_rank):
                self._poll(0.1)
                on_progress(self._progress)
                if deadline is not None and time.monotonic() > deadline:
                    reason = f"the run did not end within {timeout_s:.0f} s"
                elif self._lost:
                    reason = f"the agent on {_names(set(self._lost))} went away"
                elif self._failures:
                    reason = describe(self._failures[0])
                elif silence_s is not None:
                    if time.monotonic() - looked_s > silence_s / 2:
                        self._hear_of_all()  # it was this process that stood still (Ctrl-Z): what they said is unread
                    looked_s = time.monotonic()
                    if silent := self._silent_for(silence_s):
                        reason = f"nothing was heard from the agent on {_names(silent)} for {silence_s:g} s"
                if reason:
                    break
        except KeyboardInterrupt:
            self._abort("interrupted by the user")
            raise
        except RunAborted as error:  # what ``on_progress`` or the watch found: a stop condition, a lost fabric
            self._abort(error.message)
            raise
        if reason:
            self._abort(reason)
        missing = {rank: -1 for rank in self._host_of_rank if rank not in self._statuses}
        return Outcome({**self._statuses, **missing}, tuple(self._failures), reason, tuple(dict.fromkeys(self._lost)))

    def _hear_of_all(self) -> float:
        """Count every agent's silence from now."""
        now_s = time.monotonic()
        for agent in self._agents:
            agent.heard_s = now_s
        return now_s

    def _silent_for(self, silence_s: float) -> set[str]:
        """Hosts with unfinished ranks whose agents have said nothing for so long: stopped, or out of reach."""
        unfinished = {host for rank, host in self._host_of_rank.items() if rank not in self._statuses}
        since = time.monotonic() - silence_s
        return {host for host in unfinished if self._by_host[host].heard_s < since}

    def bye(self) -> None:
        """Let the agents end."""
        self._broadcast(protocol.frame(Frame.BYE))

    def close(self) -> None:
        """Close every socket; agents that are still there end on end-of-file."""
        for agent in self._agents:
            self._drop(agent)
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
        if self._socket_path is not None:
            self._socket_path.unlink(missing_ok=True)
        self._selector.close()

    # -- the loop -----------------------------------------------------------------------------------------------

    def _listen(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ, None)

    def _until(self, done: Callable[[], bool], timeout_s: float, complaint: Callable[[], str]) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            if self._lost:
                raise RunAborted(f"the agent on {_names(set(self._lost))} went away", hint="See log/agent-*.log.")
            if time.monotonic() > deadline:
                raise RunAborted(f"{complaint()} within {timeout_s:.0f} s", hint="See log/agent-*.log.")
            self._poll(0.1)

    def _poll(self, timeout_s: float) -> None:
        self._watch()
        for key, events in self._selector.select(timeout_s):
            agent: _Agent | None = key.data
            if agent is None:
                self._accept()
                continue
            if events & selectors.EVENT_WRITE:
                self._write(agent)
            if events & selectors.EVENT_READ and not agent.closed:
                self._read(agent)

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(BlockingIOError):
            connection, address = self._listener.accept()
            connection.setblocking(False)
            if connection.family == socket.AF_INET:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # frames are short and pings timed
                end_when_silent(connection)
            agent = _Agent(connection, str(address or "a local process"))
            self._agents.append(agent)
            self._selector.register(connection, selectors.EVENT_READ, agent)

    def _read(self, agent: _Agent) -> None:
        try:
            data = agent.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._gone(agent)
            return
        agent.heard_s = time.monotonic()
        try:
            for kind, payload in agent.reader.feed(data):
                self._handle(agent, kind, payload)
        except RunAborted as error:
            if agent.proven:
                raise
            self._log(f"refused {agent.peer}: {error.message}")
            self._drop(agent)

    def _gone(self, agent: _Agent) -> None:
        self._drop(agent)
        ranks = [rank for rank, host in self._host_of_rank.items() if host == agent.host]
        if agent.proven and (not ranks or any(rank not in self._statuses for rank in ranks)):
            self._lost.append(agent.host)

    def _drop(self, agent: _Agent) -> None:
        if not agent.closed:
            agent.closed = True
            self._selector.unregister(agent.socket)
            agent.socket.close()

    def _handle(self, agent: _Agent, kind: Frame, payload: bytes) -> None:
        if not agent.proven:
            self._greet(agent, kind, payload)
            return
        fields = Fields(payload)
        match kind:
            case Frame.LISTENING:
                rank, opened = protocol.parse_listening(payload)
                self._listening[rank] = opened
            case Frame.CONNECTED:
                self._connected.add(fields.take("I")[0])
            case Frame.PONG:
                token, mono_ns, _real_ns = fields.take("Qqq")
                self._pongs[token] = (mono_ns, time.monotonic_ns())
            case Frame.PROGRESS:
                progress = protocol.parse_progress(payload)
                self._progress[progress.rank] = progress
            case Frame.FAILED:
                self._failures.append(protocol.parse_failure(payload))
            case Frame.DONE:
                rank, status = fields.take("II")
                self._statuses.setdefault(rank, status)  # its first word counts
            case _:
                raise RunAborted(f"the agent on {agent.host} sent {kind.name}, which only a controller may send")

    def _greet(self, agent: _Agent, kind: Frame, payload: bytes) -> None:
        fields = Fields(payload)
        if kind is Frame.HELLO and not agent.nonce_controller:
            agent.host = fields.text()
            agent.nonce_agent = fields.raw(protocol.NONCE_BYTES)
            agent.nonce_controller = secrets.token_bytes(protocol.NONCE_BYTES)
            proof = protocol.controller_proof(self._token, agent.nonce_agent, agent.nonce_controller)
            self._send(agent, protocol.frame(Frame.CHALLENGE, agent.nonce_controller + proof))
            return
        expected = protocol.agent_proof(self._token, agent.nonce_agent, agent.nonce_controller)
        genuine = kind is Frame.PROOF and bool(agent.nonce_controller)
        if not genuine or not secrets.compare_digest(fields.raw(32), expected):
            self._log(f"refused {agent.peer}, which said it was host {agent.host!r}: it lacks this run's token")
            self._drop(agent)
            return
        if agent.host in self._by_host:
            raise RunAborted(f"two agents say they are host {agent.host!r}")
        agent.proven = True
        self._by_host[agent.host] = agent

    def _send(self, agent: _Agent, data: bytes) -> None:
        if agent.closed:
            return
        agent.outgoing += data
        self._write(agent)

    def _write(self, agent: _Agent) -> None:
        try:
            while agent.outgoing:
                sent = agent.socket.send(agent.outgoing)
                del agent.outgoing[:sent]
        except BlockingIOError:
            pass  # the selector says when there is room again
        except OSError:
            self._gone(agent)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if agent.outgoing else 0)
        self._selector.modify(agent.socket, events, agent)

    def _ping(self, host: str, agent: _Agent, timeout_s: float) -> ClockLook:
        """One round trip: the agent's clock was read somewhere within it."""
        token = secrets.randbits(63)
        sent_ns = time.monotonic_ns()
        self._send(agent, protocol.frame(Frame.PING, struct.pack("<Q", token)))
        self._until(lambda: token in self._pongs, timeout_s, lambda: f"{host} answered no ping")
        remote_ns, received_ns = self._pongs.pop(token)
        middle_ns = (sent_ns + received_ns) // 2
        return ClockLook(middle_ns, remote_ns - middle_ns, (received_ns - sent_ns) // 2)

    def _broadcast(self, data: bytes) -> None:
        for agent in list(self._by_host.values()):
            self._send(agent, data)
        self._flush()

    def _flush(self, timeout_s: float = 5.0) -> None:
        deadline = time.monotonic() + timeout_s
        while any(a.outgoing and not a.closed for a in self._by_host.values()) and time.monotonic() < deadline:
            self._poll(0.05)

    def _abort(self, reason: str) -> None:
        for agent in list(self._by_host.values()):
            self._send(agent, protocol.frame(Frame.ABORT, protocol.text(reason[:1000])))
        deadline = time.monotonic() + _ABORT_GRACE_S
        alive = {host for host, agent in self._by_host.items() if not agent.closed}
        waited = {rank for rank, host in self._host_of_rank.items() if host in alive}
        while not waited <= set(self._statuses) and time.monotonic() < deadline:
            for key, _events in self._selector.select(0.05):
                if key.data is not None and not key.data.closed:
                    self._write(key.data)
                    if not key.data.closed:
                        self._read(key.data)

    def _raise_first_failure(self, doing: str) -> None:
        if self._failures:
            failure = self._failures[0]
            host = self._host_of_rank[failure.rank]
            raise RunAborted(
                f"rank {failure.rank} on {host} could not {doing}: {failure.text}", hint=f"See log/agent-{host}.log."
            )


def end_when_silent(connection: socket.socket) -> None:
    """Let the kernel end a connection whose other side vanished without a word; the agent does the same."""
    for option, value in (
        (socket.TCP_KEEPIDLE, _SILENT_S // 3),
        (socket.TCP_KEEPINTVL, _SILENT_S // 3),
        (socket.TCP_KEEPCNT, 2),
        (socket.TCP_USER_TIMEOUT, _SILENT_S * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def describe(failure: Failure) -> str:
    """One sentence about a failure, without the names only the plan knows."""
    return f"rank {failure.rank}: {failure.text or failure.code.name.lower().replace('_', ' ')}"


def _names(hosts: set[str]) -> str:
    shown = sorted(hosts)[:8]
    return ", ".join(shown) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")


def _ranks(ranks: set[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {_names({str(rank) for rank in ranks})}"
