"""Commands on other machines through the plain OpenSSH client: one connection a host, everything multiplexed over it.

`genie.fabric.survey` reads hosts with it, `genie.fabric.inventory` works on them. A *master* holds each connection; it
dies with this process (``PR_SET_PDEATHSIG``) and takes every command's channel with it, so a program at the other end
sees the end of its standard input however we died. Host keys are checked. Never runs shell text that came from a
configuration: commands are argv lists, quoted here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from genie.errors import EnvironmentUnfit, RunAborted
from genie.fabric.base import Completed

CONNECT_TIMEOUT_S = 10
_POLL_S = 0.02
_ENDING_S = 0.3
_PREFIX = "genie-ssh-"
_LOCK_FILE = "lock"
_SWEEP_AGE_S = 60.0
_CLIENT_MARGIN_S = 5.0
_LEAST_SIGNAL_STATUS, _MOST_SIGNAL_STATUS = 129, 192  # what a shell makes of a program that a signal ended
_PATH = "PATH=$PATH:/usr/sbin:/sbin LC_ALL=C; export PATH LC_ALL; "
# Run by the child before ssh proper: a master must not outlive us, whatever ends us.
_TIE = (
    "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,15,0,0,0);"
    "sys.exit(1) if os.getppid()!=int(sys.argv[1]) else os.execvp(sys.argv[2],sys.argv[2:])"
)


@dataclass(frozen=True, slots=True)
class SshTarget:
    """How to reach one host: what the inventory's connection variables say. ``become``: commands run under sudo."""

    address: str
    port: int = 0
    user: str = ""
    key: str = ""
    arguments: tuple[str, ...] = ()
    become: bool = False

    def argv(self, control: Path, *options: str) -> list[str]:
        """An ssh client that shares the connection behind ``control``; ssh takes the first value of each option."""
        argv = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "PermitLocalCommand=no", "-o", "ForwardAgent=no"]
        argv += ["-o", f"ControlPath={control}", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}", "-o", "LogLevel=ERROR"]
        argv += ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
        argv += ["-p", str(self.port)] if self.port else []
        argv += ["-l", self.user] if self.user else []
        argv += ["-i", self.key, "-o", "IdentitiesOnly=yes"] if self.key else []
        return [*argv, *options, *self.arguments, "--", self.address]

    def shell(self, script: str) -> str:
        """``script`` as the one word that ssh hands to whatever shell the user has there."""
        prefix = "sudo -n " if self.become else ""
        return f'exec {prefix}/bin/sh -c {shlex.quote(_PATH + script)} genie "$SSH_CONNECTION"'


class SshProcess:
    """A program on a host; `genie.fabric.base.Process`. Its ssh client is a child of ours and reports its end."""

    def __init__(self, links: SshLinks, host: str, client: subprocess.Popen[bytes], pid_file: str) -> None:
        self._links = links
        self.host = host
        self._client = client
        self._pid_file = pid_file

    @property
    def pid(self) -> int:
        """Process id of the ssh client on this machine."""
        return self._client.pid

    def poll(self) -> int | None:
        """Exit code as the host told it, negative for a signal; 255 where the connection was lost."""
        code = self._client.poll()
        return None if code is None else _exit_code(code)

    def write(self, data: bytes) -> bool:
        """Send bytes to its standard input; False where nobody reads it any more."""
        if self._client.stdin is None or self._client.stdin.closed:
            return False
        try:
            self._client.stdin.write(data)
            self._client.stdin.flush()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL to the program and all that it started in its group; a no-op once it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._client.wait(_ENDING_S)  # it may well be at its end, and only the word of it under way
            return
        # dash, the /bin/sh of Debian and Ubuntu, takes "--" after -s KILL only, not after -9
        script = f"p=$(cat {shlex.quote(self._pid_file)}) && {{ kill -s KILL -- -$p || kill -s KILL $p; }}"
        with contextlib.suppress(RunAborted):  # a host that is out of reach ends it by itself (its lease)
            self._links.run(self.host, script, timeout_s=5.0)
        try:
            self._client.wait(2.0)
        except subprocess.TimeoutExpired:
            self._client.kill()
            self._client.wait()

    def close_stdin(self) -> None:
        """End of its standard input; a no-op once it is closed."""
        if self._client.stdin is not None:
            with contextlib.suppress(OSError):
                self._client.stdin.close()

    def wait(self, timeout_s: float | None = None) -> int:
        """Exit code once it ended. Raises RunAborted after ``timeout_s``."""
        try:
            return _exit_code(self._client.wait(timeout_s))
        except subprocess.TimeoutExpired as error:
            raise RunAborted(f"a program on {self.host} did not end within {timeout_s} s") from error


def _exit_code(code: int) -> int:
    return 128 - code if _LEAST_SIGNAL_STATUS <= code <= _MOST_SIGNAL_STATUS else code


class SshLinks:
    """Open connections to hosts by name, in a private folder. Use as a context manager or call `close`.

    Open them from a thread that lives as long as they do: the kernel ties a master to the thread that started it.
    """

    def __init__(self, targets: Mapping[str, SshTarget]) -> None:
        self.targets = dict(targets)
        # A Unix address holds 107 bytes, of which ssh wants 17 for a name of its own.
        parent = Path(tempfile.gettempdir() if len(tempfile.gettempdir()) < 50 else "/tmp")  # noqa: S108  mkdtemp makes it
        _sweep(parent)
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        self._lock = os.open(self._folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._masters: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> SshLinks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def control(self, host: str) -> Path:
        """The socket by which other ssh clients (Ansible's) share the connection to ``host``."""
        return self._folder / str(list(self.targets).index(host))

    def _log(self, host: str) -> Path:
        return self._folder / f"{list(self.targets).index(host)}.log"

    def open(self) -> dict[str, str]:
        """Connect to every host at once; gives the ones that could not be reached and ssh's own words."""
        tie = [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid())]
        for host, target in self.targets.items():
            with self._log(host).open("wb") as log:
                self._masters[host] = subprocess.Popen(
                    [*tie, *target.argv(self.control(host), "-N", "-o", "ControlMaster=yes")],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        deadline = time.monotonic() + CONNECT_TIMEOUT_S + _CLIENT_MARGIN_S
        waiting, unreachable = set(self.targets), {}
        while waiting:
            for host in sorted(waiting):
                master = self._masters[host]
                if self.control(host).exists():
                    waiting.discard(host)
                elif master.poll() is not None or time.monotonic() > deadline:
                    waiting.discard(host)
                    unreachable[host] = self.words(host) or f"no connection within {CONNECT_TIMEOUT_S} s"
            time.sleep(_POLL_S if waiting else 0)
        return unreachable

    def words(self, host: str) -> str:
        """What ssh said about the connection to ``host``, as one line."""
        log = self._log(host)
        return " ".join(log.read_text(errors="replace").split())[-500:] if log.exists() else ""

    def is_open(self, host: str) -> bool:
        """Whether the connection still stands, as far as this machine knows."""
        master = self._masters.get(host)
        return master is not None and master.poll() is None

    def _client_argv(self, host: str, script: str) -> list[str]:
        target = self.targets[host]
        # Where the master is gone there is no way to the host, rather than a second connection of its own.
        argv = target.argv(self.control(host), "-o", "ControlMaster=no", "-o", "ProxyCommand=false")
        return [*argv, target.shell(script)]

    def run(
        self, host: str, script: str, *, stdin: bytes = b"", timeout_s: float = 30.0, output: Path | None = None
    ) -> Completed:
        """A script to its end; ``output`` takes its standard output instead of the answer.

        Raises RunAborted where the connection is lost or it does not end in time.
        """
        out = output.open("wb") if output is not None else None
        try:
            done = subprocess.run(
                self._client_argv(host, script),
                input=stdin,
                stdout=out if out is not None else subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=timeout_s,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise RunAborted(f"a command on {host} did not end within {timeout_s:g} s and was given up") from error
        finally:
            if out is not None:
                out.close()
        if done.returncode == 255 and not self.is_open(host):
            words = self.words(host) or "it does not answer any more"
            raise RunAborted(f"the connection to {host} was lost: {words}")
        said = b"" if done.stdout is None else done.stdout
        return Completed(
            host,
            (script,),
            _exit_code(done.returncode),
            said.decode(errors="replace"),
            done.stderr.decode(errors="replace"),
        )

    def spawn(
        self,
        host: str,
        argv: Sequence[str],
        *,
        pid_file: str,
        limit_s: int,
        folder: str,
        log: Path,
        stdin: bytes | None,
    ) -> SshProcess:
        """Start a program in ``folder`` that ends after ``limit_s`` at the latest.

        ``stdin`` is written and closed; None holds it open. The program is the child of ``timeout``, whose process
        group `SshProcess.kill` ends.
        """
        # A shell gives a program in the background /dev/null to read, so its input comes by another number.
        script = (
            f"mkdir -p {shlex.quote(folder)}/events && cd {shlex.quote(folder)} && exec 3<&0 && "
            f"{{ timeout -k 5 {limit_s} {shlex.join(argv)} <&3 3<&- & }} && echo $! >{shlex.quote(pid_file)} && "
            "exec 3<&- 0</dev/null && wait $!"
        )
        with log.open("ab") as output:
            client = subprocess.Popen(
                self._client_argv(host, script),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process = SshProcess(self, host, client, pid_file)
        if stdin is not None:
            process.write(stdin)
            process.close_stdin()
        return process

    def converse(self, host: str, script: str, *, output: Path) -> SshProcess:
        """Start a script whose standard input stays open; it says what it says into ``output``."""
        with output.open("ab") as out:
            client = subprocess.Popen(
                self._client_argv(host, script), stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True
            )
        return SshProcess(self, host, client, "")

    def close(self) -> None:
        """Close every connection and remove the folder; idempotent."""
        masters, self._masters = self._masters, {}
        for master in masters.values():
            if master.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(master.pid, signal.SIGTERM)
        for master in masters.values():
            try:
                master.wait(2.0)
            except subprocess.TimeoutExpired:
                master.kill()
                master.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _sweep(parent: Path) -> None:
    """Remove what controllers that were killed left of their folders: a log, a socket. By its lock and not by its
    process id, which says nothing about a controller in a container that shares this folder with us.
    """
    for folder in parent.glob(f"{_PREFIX}*-*"):
        with contextlib.suppress(OSError):  # gone by now, or somebody else's
            found = folder.stat()
            if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _SWEEP_AGE_S:
                continue  # a young one may be about to take its lock
            lock = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def require_ssh() -> None:
    """Raises EnvironmentUnfit where this machine has no OpenSSH client."""
    if shutil.which("ssh") is None:
        raise EnvironmentUnfit("fabric=inventory needs the OpenSSH client", hint="apt-get install openssh-client")
