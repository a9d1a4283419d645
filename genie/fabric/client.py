"""The runner's side of a fabric's holder: starts it, asks it, hears how programs ended, ends it.

`genie.fabric.netns` is the only user. Requests are answered in any order, so that commands in many nodes run at
once; any thread may ask. The holder ends with this process however that ends; `close` only makes it orderly.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

from genie.errors import EnvironmentUnfit, RunAborted
from genie.fabric.base import Completed

_HOLDER = Path(__file__).with_name("holder.py")
_READY_TIMEOUT_S = 20.0
_CANCEL_PATIENCE_S = 5.0
_WAY_OUT = "fabric=loopback runs without namespaces (it shapes nothing and refuses faults)"

Answer = dict[str, Any]


def _read_setting(path: str) -> str:
    try:
        return Path("/proc/sys", path).read_text().strip()
    except OSError:
        return ""


def explain_refusal(step: str, number: int) -> EnvironmentUnfit:
    """What a system call's refusal during set-up means on this machine, and what to do about it."""
    said = f"{step} failed: {os.strerror(number)}"
    if "user" in step or "uid_map" in step or (number in (errno.EPERM, errno.EACCES) and os.geteuid() != 0):
        if number == errno.ENOSPC or _read_setting("user/max_user_namespaces") == "0":
            cause = "user.max_user_namespaces is 0 or used up"
            remedy = "sysctl -w user.max_user_namespaces=10000, or run as root"
        elif _read_setting("kernel/unprivileged_userns_clone") == "0":
            cause = "kernel.unprivileged_userns_clone=0"
            remedy = "sysctl -w kernel.unprivileged_userns_clone=1, or run as root"
        elif _read_setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
            cause = "kernel.apparmor_restrict_unprivileged_userns=1 takes a user namespace's rights away"
            remedy = "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or run as root"
        elif number in (errno.ENOSYS, errno.EINVAL):
            cause, remedy = "this kernel has no user namespaces (CONFIG_USER_NS)", "run as root"
        elif "uid_map" in step and os.geteuid() == 0:
            cause = "this root has neither CAP_SYS_ADMIN nor CAP_SETFCAP, as in some containers"
            remedy = "run as an ordinary user, or start the container with --privileged"
        else:
            cause = "a seccomp or LSM policy forbids it, as container runtimes do by default"
            remedy = "start the container with --privileged, or run on the machine itself"
        return EnvironmentUnfit(f"no private network here: {said}; {cause}", hint=f"{remedy}; or {_WAY_OUT}")
    if number == errno.ENOSPC:
        kinds = "max_net_namespaces, user.max_pid_namespaces or user.max_mnt_namespaces"
        return EnvironmentUnfit(
            f"no private network here: {said}; user.{kinds} is 0 or used up",
            hint=f"raise it with sysctl -w; or {_WAY_OUT}",
        )
    return EnvironmentUnfit(f"no private network here: {said}", hint=_WAY_OUT)


class HolderClient:
    """A running holder. Raises EnvironmentUnfit from the constructor if this machine refuses one."""

    def __init__(self, log: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._waiting: dict[int, Future[Answer]] = {}
        self._exits: dict[int, Future[int]] = {}
        self._next_id = 0
        self._lost = ""
        self._log = log
        self.notes: tuple[str, ...] = ()
        self.user_namespace = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channel = ours
        try:
            with theirs, self._open_log() as output:
                self._holder = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_HOLDER), str(theirs.fileno()), str(os.getpid())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise EnvironmentUnfit(f"the fabric's holder cannot be started: {error}", hint=_WAY_OUT) from error
        except BaseException:
            ours.close()
            raise
        try:
            self._await_ready()
        except BaseException:
            self._end_holder()
            raise
        self._reader = threading.Thread(target=self._read_answers, name="genie-fabric", daemon=True)
        self._reader.start()
        self.call("environment", environment=dict(os.environ))

    def _open_log(self) -> Any:
        return Path(os.devnull if self._log is None else self._log).open("ab")

    def _await_ready(self) -> None:
        self._channel.settimeout(_READY_TIMEOUT_S)
        data = bytearray()
        try:
            while not data.endswith(b"\n"):
                part = self._channel.recv(65536)
                if not part:
                    raise EnvironmentUnfit(
                        f"the fabric's holder ended while starting (exit code {self._holder.wait()})",
                        hint=f"its output is in {self._log}" if self._log else _WAY_OUT,
                    )
                data += part
        except TimeoutError as error:
            raise EnvironmentUnfit(f"the fabric's holder did not start within {_READY_TIMEOUT_S:g} s") from error
        self._channel.settimeout(None)
        message = json.loads(data)
        if message["event"] == "unfit":
            raise explain_refusal(message["step"], message["errno"])
        self.notes = tuple(message["notes"])
        self.user_namespace = message["user_namespace"]

    def _read_answers(self) -> None:
        with contextlib.suppress(OSError), self._channel.makefile("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                self._deliver(json.loads(line))
        self._lose("the fabric's holder ended, and its nodes and programs with it")

    def _deliver(self, message: Answer) -> None:
        if message.get("event") == "exit":
            self._settle_exit(self._exit_of(message["pid"]), message["rc"])
            return
        with self._lock:
            future = self._waiting.pop(message["id"])
        future.set_result(message)

    def _lose(self, reason: str) -> None:
        with self._lock:
            self._lost = self._lost or reason
            waiting, self._waiting = self._waiting, {}
            exits = list(self._exits.values())
        for future in waiting.values():
            future.set_exception(RunAborted(self._lost))
        for exit_code in exits:
            self._settle_exit(exit_code, -int(SIGKILL))

    def _settle_exit(self, future: Future[int], code: int) -> None:
        with self._lock:  # the reader and whoever closes may come at once; the first word counts
            if not future.done():
                future.set_result(code)

    def _exit_of(self, pid: int) -> Future[int]:
        with self._lock:
            future = self._exits.setdefault(pid, Future())
            if self._lost and not future.done():
                future.set_result(-int(SIGKILL))
            return future

    def ask(self, operation: str, **fields: Any) -> Future[Answer]:
        """Send a request; the future gives its answer, or RunAborted if the holder ends first."""
        future: Future[Answer] = Future()
        with self._lock:
            if self._lost:
                raise RunAborted(self._lost)
            self._next_id += 1
            number = self._next_id
            self._waiting[number] = future
        line = json.dumps({"id": number, "op": operation, **fields}).encode() + b"\n"
        try:
            # Not under the lock that answers need: the holder may be waiting for us to take a long one.
            with self._sending:
                self._channel.sendall(line)
        except OSError as error:
            with self._lock:
                self._waiting.pop(number, None)
            raise RunAborted("the fabric's holder ended, and its nodes and programs with it") from error
        return future

    def call(self, operation: str, **fields: Any) -> Answer:
        """Ask and wait. Raises RunAborted with the holder's reason on refusal."""
        return settle(operation, self.ask(operation, **fields))

    def ask_run(self, node: str, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Future[Answer]:
        """Begin a command in a node; `settle_run` waits for it."""
        return self.ask("run", node=node, argv=list(argv), stdin=base64.b64encode(stdin).decode(), timeout_s=timeout_s)

    def run(self, node: str, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = 30.0) -> Completed:
        """A command in a node to its end. Raises RunAborted if it cannot start or is killed at the timeout."""
        future = self.ask_run(node, argv, stdin, timeout_s)
        try:
            return settle_run(node, argv, timeout_s, future)
        except KeyboardInterrupt:
            self._cancel(future)
            raise

    def _cancel(self, future: Future[Answer]) -> None:
        """Kill a command whose asker was interrupted, so that it changes nothing any more; returns when it is gone."""
        with self._lock:
            number = next((n for n, waiting in self._waiting.items() if waiting is future), None)
        if number is not None:
            with contextlib.suppress(RunAborted, FutureTimeout):  # the holder is gone, and the command with it
                self.ask("cancel", request=number)
                future.result(_CANCEL_PATIENCE_S)

    def spawn(
        self,
        node: str,
        argv: Sequence[str],
        *,
        stdin: bytes,
        log: Path,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        hold_stdin: bool = False,
    ) -> NetnsProcess:
        """Start a program. With ``hold_stdin`` its standard input stays open until `NetnsProcess.close_stdin`."""
        answer = self.call(
            "spawn",
            node=node,
            argv=list(argv),
            stdin=base64.b64encode(stdin).decode(),
            log=str(log.absolute()),
            cwd=str(cwd.absolute()) if cwd else str(Path.cwd()),
            environment=dict(environment or {}),
            hold_stdin=hold_stdin,
        )
        return NetnsProcess(self, answer["pid"], self._exit_of(answer["pid"]))

    def read(self, files: Iterable[tuple[str, str]]) -> list[str | None]:
        """Contents of (node, path) pairs as seen from inside the nodes; None for files that are not there."""
        texts: list[str | None] = self.call("read", files=[list(item) for item in files])["texts"]
        return texts

    def _end_holder(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        try:
            self._holder.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._holder.kill()  # its first stage; PID 1 dies with that, and all else with PID 1
            self._holder.wait()
        self._channel.close()

    def close(self) -> None:
        """End the holder and with it every program; returns when they are gone. Idempotent."""
        if self._channel.fileno() < 0:
            return
        self._lose("the fabric was taken down")
        self._end_holder()
        self._reader.join()

    @property
    def pid(self) -> int:
        """The holder's first stage, as this process sees it."""
        return self._holder.pid


class NetnsProcess:
    """A program in a node; `genie.fabric.base.Process` and a little more."""

    def __init__(self, client: HolderClient, pid: int, exit_code: Future[int]) -> None:
        self._client = client
        self._pid = pid
        self._exit_code = exit_code

    @property
    def pid(self) -> int:
        """Process id inside the fabric's pid namespace."""
        return self._pid

    def poll(self) -> int | None:
        """Exit code (negative: the signal it died of), or None while it runs."""
        return self._exit_code.result() if self._exit_code.done() else None

    def wait(self, timeout_s: float | None = None) -> int:
        """Exit code once it ended. Raises RunAborted after ``timeout_s``."""
        try:
            return self._exit_code.result(timeout_s)
        except FutureTimeout as error:
            raise RunAborted(f"process {self._pid} of the fabric did not end within {timeout_s:g} s") from error

    def _signal(self, number: int) -> None:
        if not self._exit_code.done():
            with contextlib.suppress(RunAborted):  # the holder is gone, and so is the process
                self._client.call("kill", pid=self._pid, signal=number)

    def kill(self) -> None:
        """SIGKILL to its process group; a no-op once it ended."""
        self._signal(SIGKILL)

    def terminate(self) -> None:
        """SIGTERM to its process group; a no-op once it ended."""
        self._signal(SIGTERM)

    def close_stdin(self) -> None:
        """Close a standard input that was held open: the orderly end of programs that run until then."""
        if not self._exit_code.done():
            with contextlib.suppress(RunAborted):  # as above
                self._client.call("close_stdin", pid=self._pid)


def settle(what: str, future: Future[Answer]) -> Answer:
    """The answer to a request. Raises RunAborted if the holder refused it or is gone."""
    answer = future.result()
    if "error" in answer:
        raise RunAborted(f"the fabric could not {what}: {answer['error']}")
    return answer


def settle_run(node: str, argv: Sequence[str], timeout_s: float, future: Future[Answer]) -> Completed:
    """The end of a command begun with `HolderClient.ask_run`."""
    where = f"in node {node!r}" if node else "in the fabric's root namespace"
    answer = settle(f"run {' '.join(argv)!r} {where}", future)
    if answer["timed_out"]:
        raise RunAborted(
            f"{' '.join(argv)!r} {where} did not end within {timeout_s:g} s and was killed",
            hint=f"its errors so far: {answer['err'].strip()}" if answer["err"].strip() else "",
        )
    return Completed(node, tuple(argv), answer["rc"], answer["out"], answer["err"])
