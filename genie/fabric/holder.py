"""The process that a fabric lives in: PID 1 of private pid, mount, network (and, without root, user) namespaces.

Run by `genie.fabric.client` as ``python -I -S holder.py CHANNEL_FD RUNNER_PID``; standard library only, nothing of
genie, so that it starts in some 30 ms and never loads what it does not need. It is a fork server: it makes nodes
(network namespaces, named in a private /run/netns), starts programs in them, reads files in them, and says how
programs ended, as JSON lines over an inherited socket. It knows no topology, no qdisc and no fault.

Nothing of it can outlive the runner. It ends when the socket closes, when the runner's pidfd becomes readable, or
when its first stage (the runner's child, which waits outside the pid namespace) dies; as its pid namespace ends,
the kernel kills every process in it, and with the last process every namespace, interface, qdisc and mount goes.
"""

# pathlib costs as much to import as all the rest of this file, and knows no dir_fd.
# ruff: noqa: PTH102, PTH103, PTH123, PTH208, PTH211

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import json
import os
import resource
import selectors
import signal
import stat
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
NETNS_DIR = "/run/netns"
PRIVATE_DIR = "/run/genie"
BPF_DIR = f"{PRIVATE_DIR}/bpf"

_libc = ctypes.CDLL(None, use_errno=True)


class SetupFailed(Exception):
    """A system call that the fabric cannot do without: its name and errno."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(f"{step}: {os.strerror(number)}")
        self.step = step
        self.number = number


def _call(step: str, result: int) -> None:
    if result != 0:
        raise SetupFailed(step, ctypes.get_errno())


def _unshare(flags: int, step: str) -> None:
    _call(step, _libc.unshare(flags))


def _set_namespace(descriptor: int) -> None:
    _call("setns", _libc.setns(descriptor, CLONE_NEWNET))


def _mount(source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    _call(
        f"mount {target}",
        _libc.mount(
            source.encode(),
            target.encode(),
            kind.encode() if kind else None,
            ctypes.c_ulong(flags),
            data.encode() if data else None,
        ),
    )


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _enter_namespaces() -> bool:
    """Make the private namespaces; returns whether a user namespace was needed to be allowed to."""
    uid, gid = os.geteuid(), os.getegid()
    own = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET
    if uid == 0:
        if _libc.unshare(own) == 0:
            return False
        if ctypes.get_errno() != errno.EPERM:
            raise SetupFailed("unshare(mount, pid, net)", ctypes.get_errno())
    _unshare(CLONE_NEWUSER, "unshare(user)")
    try:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {uid} 1")
        _write("/proc/self/gid_map", f"0 {gid} 1")
    except OSError as error:
        raise SetupFailed("write /proc/self/uid_map", error.errno or 0) from error
    _unshare(own, "unshare(mount, pid, net) in a user namespace")
    return True


def _privatise_run() -> list[str]:
    """A private /run with everything that was in it, plus our own netns folder.

    A plain tmpfs on /run/netns would need that folder to exist, and making it would leave a trace on the machine.
    """
    notes = []
    old = os.open("/run", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    _mount("genie", "/run", "tmpfs", 0, "mode=755")
    for name in os.listdir(old):
        target = f"/run/{name}"
        if target in (NETNS_DIR, PRIVATE_DIR):
            continue
        try:
            mode = os.lstat(name, dir_fd=old).st_mode
            if stat.S_ISLNK(mode):
                os.symlink(os.readlink(name, dir_fd=old), target)
                continue
            if stat.S_ISDIR(mode):
                os.mkdir(target)
            else:
                os.close(os.open(target, os.O_CREAT | os.O_CLOEXEC, 0o600))
            _mount(f"/proc/self/fd/{old}/{name}", target, None, MS_BIND | MS_REC)
        except (OSError, SetupFailed) as error:
            notes.append(f"{target} is not visible inside the fabric: {error}")
    os.close(old)
    os.mkdir(NETNS_DIR)
    os.makedirs(BPF_DIR)
    return notes


def _mount_private(user_namespace: bool) -> list[str]:
    """Private mounts. Returns notes on what could not be had and is not essential."""
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    notes = []
    try:
        _mount("proc", "/proc", "proc")
    except SetupFailed as error:
        # Containers cover parts of /proc, and then the kernel refuses a fresh one; the old one serves.
        notes.append(f"no private /proc ({error}): tools inside see the machine's process list")
    notes += _privatise_run()
    if not user_namespace:
        try:
            _mount("bpf", BPF_DIR, "bpf", 0, "mode=700")
        except SetupFailed as error:
            notes.append(f"no bpf file system ({error})")
    return notes


def _find_program(name: str, search: str) -> str:
    if "/" in name:
        return name
    for folder in [*search.split(":"), "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"]:
        path = f"{folder}/{name}"
        if folder and os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(errno.ENOENT, "no such program", name)


class _Program:
    """A started program: how to answer for it and what to give back when it ends."""

    __slots__ = ("deadline", "err", "out", "request", "stdin", "timed_out")

    def __init__(self) -> None:
        self.request: int | None = None
        self.out = self.err = self.stdin = -1
        self.deadline: float | None = None
        self.timed_out = False


class Holder:
    """The event loop of PID 1."""

    def __init__(self, channel: int, guards: list[int]) -> None:
        self._channel = channel
        self._root = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._nodes: dict[str, int] = {}
        self._programs: dict[int, _Program] = {}
        self._environment = dict(os.environ)
        self._incoming = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, "channel")
        for guard in guards:
            self._selector.register(guard, selectors.EVENT_READ, "guard")
        wake_reader, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(wake_reader, selectors.EVENT_READ, "child")
        self._wake_reader = wake_reader
        self._operations: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "environment": self._set_environment,
            "nodes": self._make_nodes,
            "run": self._run,
            "spawn": self._spawn,
            "read": self._read,
            "kill": self._kill,
            "cancel": self._cancel,
            "close_stdin": self._close_stdin,
        }

    def send(self, message: dict[str, Any]) -> None:
        """One JSON line to the runner. If it is gone, so are we."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[os.write(self._channel, data) :]

    def serve(self) -> None:
        """Until the runner closes the channel or dies."""
        while True:
            for key, _ in self._selector.select(self._next_timeout()):
                if key.data == "guard":
                    return
                if key.data == "child":
                    os.read(self._wake_reader, 4096)
                elif not self._receive():
                    return
            self._reap()
            self._expire()

    def _receive(self) -> bool:
        data = os.read(self._channel, 1 << 20)
        if not data:
            return False
        self._incoming += data
        *lines, rest = self._incoming.split(b"\n")
        self._incoming = bytearray(rest)
        for line in lines:
            request = json.loads(line)
            try:
                answer = self._operations[request["op"]](request)
            except (OSError, SetupFailed, KeyError) as error:
                answer = {"error": str(error)}
            if answer is not None:
                self.send({"id": request["id"], **answer})
        return True

    def _next_timeout(self) -> float | None:
        deadlines = [item.deadline for item in self._programs.values() if item.deadline is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _expire(self) -> None:
        now = time.monotonic()
        for pid, program in self._programs.items():
            if program.deadline is not None and program.deadline <= now:
                program.deadline = None
                program.timed_out = True
                _signal_group(pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Collect every ended process: our programs, and orphans that PID 1 inherits."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            program = self._programs.pop(pid, None)
            if program is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            if program.stdin >= 0:
                os.close(program.stdin)
            if program.request is None:
                self.send({"event": "exit", "pid": pid, "rc": code})
            else:
                texts = [_drain(descriptor) for descriptor in (program.out, program.err)]
                self.send({"id": program.request, "rc": code, "out": texts[0], "err": texts[1],
                           "timed_out": program.timed_out})  # fmt: skip

    def _set_environment(self, request: dict[str, Any]) -> dict[str, Any]:
        self._environment = dict(request["environment"])
        return {}

    def _node(self, name: str) -> int:
        if name == "":
            return self._root
        if name not in self._nodes:
            raise FileNotFoundError(errno.ENOENT, "no such node in this fabric", name)
        return self._nodes[name]

    def _make_nodes(self, request: dict[str, Any]) -> dict[str, Any]:
        """Network namespaces with their sysctls, before any interface exists. Answers what could not be set."""
        refused = []
        try:
            for name, sysctls in request["nodes"]:
                if name:
                    _unshare(CLONE_NEWNET, "unshare(net)")
                    path = f"{NETNS_DIR}/{name}"
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400))
                    _mount("/proc/self/ns/net", path, None, MS_BIND)
                    self._nodes[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                for key, value in sysctls:
                    try:
                        _write(f"/proc/sys/{key}", value)
                    except OSError as error:
                        refused.append([name, key, value, os.strerror(error.errno or 0)])
                _set_namespace(self._root)
        finally:
            _set_namespace(self._root)
        return {"refused": refused}

    def _start(self, request: dict[str, Any], stdout: int, stderr: int) -> tuple[int, int]:
        """Start ``argv`` in its node; returns pid and the write end of stdin (-1 unless it is to be held)."""
        held = -1
        if request.get("hold_stdin"):
            stdin, held = os.pipe2(os.O_CLOEXEC)
        else:
            # A memory file and not a pipe: a program that never reads cannot block this loop.
            stdin = os.memfd_create("stdin", os.MFD_CLOEXEC)
            data = memoryview(base64.b64decode(request.get("stdin", "")))
            while data:
                data = data[os.write(stdin, data) :]
            os.lseek(stdin, 0, os.SEEK_SET)
        try:
            environment = {**self._environment, **request.get("environment", {})}
            argv = request["argv"]
            path = _find_program(argv[0], environment.get("PATH", ""))
            namespace = self._node(request["node"])
            if request.get("cwd"):
                os.chdir(request["cwd"])
            try:
                _set_namespace(namespace)
                pid = os.posix_spawn(
                    path,
                    argv,
                    environment,
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, stdin, 0),
                        (os.POSIX_SPAWN_DUP2, stdout, 1),
                        (os.POSIX_SPAWN_DUP2, stderr, 2),
                    ],
                    setsid=True,
                    setsigmask=[],
                    setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
                )
            finally:
                _set_namespace(self._root)
                os.chdir("/")
        except BaseException:
            if held >= 0:
                os.close(held)
            raise
        finally:
            os.close(stdin)
        return pid, held

    def _run(self, request: dict[str, Any]) -> None:
        # Memory files again: a daemon that inherits them cannot keep the answer from coming.
        program = _Program()
        program.request = request["id"]
        program.out = os.memfd_create("stdout", os.MFD_CLOEXEC)
        program.err = os.memfd_create("stderr", os.MFD_CLOEXEC)
        try:
            pid, program.stdin = self._start(request, program.out, program.err)
        except BaseException:
            os.close(program.out)
            os.close(program.err)
            raise
        program.deadline = time.monotonic() + request["timeout_s"]
        self._programs[pid] = program

    def _spawn(self, request: dict[str, Any]) -> dict[str, Any]:
        program = _Program()
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            pid, program.stdin = self._start(request, log, log)
        finally:
            os.close(log)
        self._programs[pid] = program
        return {"pid": pid}

    def _read(self, request: dict[str, Any]) -> dict[str, Any]:
        """Files as they look from inside nodes; absent ones are null."""
        texts: list[str | None] = []
        try:
            for node, path in request["files"]:
                _set_namespace(self._node(node))
                try:
                    with open(path, encoding="utf-8", errors="replace") as file:
                        texts.append(file.read())
                except FileNotFoundError:
                    texts.append(None)
        finally:
            _set_namespace(self._root)
        return {"texts": texts}

    def _kill(self, request: dict[str, Any]) -> dict[str, Any]:
        # Only what still is ours: a pid that was reaped may belong to another program by now.
        if request["pid"] in self._programs:
            _signal_group(request["pid"], request["signal"])
        return {}

    def _cancel(self, request: dict[str, Any]) -> dict[str, Any]:
        """Kill the command of an earlier "run" request, which is then answered as ever. A no-op once it ended."""
        for pid, program in self._programs.items():
            if program.request == request["request"]:
                _signal_group(pid, signal.SIGKILL)
        return {}

    def _close_stdin(self, request: dict[str, Any]) -> dict[str, Any]:
        program = self._programs.get(request["pid"])
        if program is not None and program.stdin >= 0:
            os.close(program.stdin)
            program.stdin = -1
        return {}


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _drain(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb") as file:
        return file.read().decode("utf-8", errors="replace")


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _report_unfit(channel: int, error: SetupFailed) -> None:
    line = json.dumps({"event": "unfit", "step": error.step, "errno": error.number})
    os.write(channel, line.encode() + b"\n")


def _first_process(channel: int, guards: list[int], user_namespace: bool) -> NoReturn:
    """PID 1: mounts, says ready, serves, and takes everything with it."""
    code = 1
    try:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _libc.prctl(PR_SET_NAME, b"genie-holder", 0, 0, 0)
        os.chdir("/")
        notes = _mount_private(user_namespace)
        _raise_file_limit()
        holder = Holder(channel, guards)
        holder.send({"event": "ready", "user_namespace": user_namespace, "notes": notes})
        holder.serve()
        code = 0
    except SetupFailed as error:
        _report_unfit(channel, error)
    except BrokenPipeError:
        code = 0
    finally:
        os._exit(code)


def main(arguments: list[str]) -> int:
    """First stage: unshare, fork PID 1, wait for it or for the runner's end."""
    channel, runner_pid = int(arguments[0]), int(arguments[1])
    os.set_inheritable(channel, False)
    try:
        runner = os.pidfd_open(runner_pid)
    except OSError:
        return 0
    if os.getppid() != runner_pid:  # it died before we looked; the pidfd may be of a stranger
        return 0
    try:
        user_namespace = _enter_namespaces()
    except SetupFailed as error:
        _report_unfit(channel, error)
        return 1
    alive_reader, alive_writer = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.close(alive_writer)
        _first_process(channel, [runner, alive_reader], user_namespace)
    os.close(channel)
    os.close(alive_reader)
    waiter = selectors.DefaultSelector()
    first = os.pidfd_open(child)
    waiter.register(runner, selectors.EVENT_READ)
    waiter.register(first, selectors.EVENT_READ)
    waiter.select()
    with contextlib.suppress(ProcessLookupError):
        # Not wanted any more in either case; wait, so that whoever waits for us knows that all is gone.
        signal.pidfd_send_signal(first, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
