"""The lease of one run on one host: its lock, its sign of life, and what sweeps up when the controller is gone.

A shell script at the far end of an ssh channel (`genie.fabric.inventory` starts one a host, before anything of the run
starts there). It holds the host's lock, so that a second controller is refused; it hears a byte every few seconds, and
when they stop, the channel ends or the time limit passes it kills the run's programs and removes the run's files.
Folders of faults stay for ``genie revert`` to read, and the lock until their wardens have undone what they guard.
"""

from __future__ import annotations

import re
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from genie.errors import EnvironmentUnfit, RunAborted
from genie.fabric.ssh import SshLinks, SshProcess
from genie.fabric.survey import DEFAULT_STATE_DIR, LOCK, describe_holder

BEAT_S = 3.0
PATIENCE_S = 20
"""A host that has heard nothing for so long takes the controller for dead."""

_READY_TIMEOUT_S = 20.0
_END_TIMEOUT_S = 20.0

# $s: the run's folder; $b: the folder of runs; both quoted. What others may have put into $s are folders of faults,
# each with a file "alive" that its warden holds locked while it lives.
_SCRIPT = r"""
umask 077; s=STATE; b=BASE; cd /
trap '' HUP PIPE
exec 9>>LOCK || exit 74
if ! flock -n 9; then echo "busy $(head -c 200 LOCK)"; exit 75; fi
end=$(( $(date +%s) + LIMIT ))
echo "RUN ${end}000000000" >LOCK || exit 74
alive() { for f in "$1"/*/alive; do [ -e "$f" ] && ! flock -n "$f" true && return 0; done; return 1; }
# What status says before its log: an event in there tells of a time that is over.
stuck() {
  for f in "$1"/*/log; do
    [ -e "$f" ] && "$1/bin/genie-warden" status --dir "${f%/log}" | grep -q '^[^[]*"may_be_applied":true' && return 0
  done 2>/dev/null
  return 1
}
# Only what is named as runs are: whose folder this is, and what else is in it, is not for us to know.
runs() {
  for old in "$b"/*; do
    name=${old##*/}
    case $name in *[!0-9a-f]*) continue ;; esac
    if [ ${#name} = 32 ] && [ -d "$old" ] && [ ! -L "$old" ] && [ "$old" != "$s" ]; then echo "$old"; fi
  done
}
for old in $(runs); do
  if alive "$old"; then echo "faulty ${old##*/}"; exit 75; fi
  if stuck "$old"; then echo "stuck $old"; exit 75; fi
done
foreign() {
  for f in "$1"/*; do
    case ${f##*/} in bin|pids|work|pace|load|'*') ;; *) if [ -e "$f" ]; then echo "${f##*/}"; fi ;; esac
  done
}
for old in $(runs); do
  if [ -z "$(foreign "$old")" ]; then rm -rf "$old" && echo "swept ${old##*/}"; else echo "left ${old##*/}"; fi
done
mkdir -p "$s/pids" "$s/work" || exit 73
echo ready
why=lost
while [ "$(date +%s)" -lt "$end" ]; do
  byte=$(timeout PATIENCE head -c 1 9>&-)
  if [ "$byte" = q ]; then why=asked; break; fi
  if [ "$byte" != k ]; then break; fi
done
if [ "$(date +%s)" -ge "$end" ]; then echo limit; fi
if [ $why = lost ]; then exec </dev/null >/dev/null 2>&1; fi
ours() {
  case $(readlink "/proc/$1/cwd") in "$s"/work/*) return 0 ;; esac
  tr '\0' ' ' <"/proc/$1/cmdline" | grep -qF "$s/bin/"
}
for f in "$s"/pids/*; do
  p=$(cat "$f" 2>/dev/null) || continue
  if ours "$p"; then kill -s KILL -- "-$p" || kill -s KILL "$p"; fi
done 2>/dev/null
rm -rf "$s/work" "$s/pids"
if [ $why = lost ]; then while alive "$s" && [ "$(date +%s)" -lt "$end" ]; do sleep 1; done; fi
kept=$(foreign "$s")
if [ -n "$kept" ] && { [ $why = lost ] || alive "$s"; }; then echo kept $kept; exit 0; fi
rm -rf "$s"
if [ "$b" = DEFAULT ]; then rmdir "$b" 2>/dev/null; fi
if [ -e "$s" ]; then echo "kept $s"; exit 72; fi
: >LOCK
echo clean
"""


def lease_script(
    run_id: str, state_dir: str, base_dir: str, limit_s: int, *, lock: str = LOCK, patience_s: int = PATIENCE_S
) -> str:
    """The script for one host. All that is filled in is checked by grammar elsewhere, and quoted here."""
    words = {
        "STATE": shlex.quote(state_dir),
        "BASE": shlex.quote(base_dir),
        "LOCK": shlex.quote(lock),
        "DEFAULT": shlex.quote(DEFAULT_STATE_DIR),
        "LIMIT": str(limit_s),
        "RUN": run_id,
        "PATIENCE": str(patience_s),
    }
    return re.sub("|".join(words), lambda found: words[found.group()], _SCRIPT)


_END_SCRIPT = r"""
held() { read -r run _ <"$2" && [ "$run" = "${1##*/}" ] && ! flock -n "$2" true; }
n=0
while held "$@" 2>/dev/null; do
  n=$((n + 1)); if [ $n -gt "$3" ]; then echo "the lease of its run goes on" >&2; exit 75; fi
  sleep 0.1
done
rm -rf -- "$1"
"""


def end_argv(state_dir: str, lock: str = LOCK) -> list[str]:
    """A command for a host whose controller is gone and whose faults are undone: wait for the end of the run's lease,
    which still has programs to kill by what is in the run's folder; then remove the folder.
    """
    return ["sh", "-c", _END_SCRIPT, "sh", state_dir, lock, str((PATIENCE_S + 5) * 10)]


class Leases:
    """The leases of one run on all its hosts. A thread of this process beats for them until `end`."""

    def __init__(self, links: SshLinks, scripts: Mapping[str, str], log_dir: Path) -> None:
        self._links = links
        self._scripts = dict(scripts)
        self._logs = {host: log_dir / f"lease-{host}.log" for host in scripts}
        self._processes: dict[str, SshProcess] = {}
        self._stop = threading.Event()
        self._beating: threading.Thread | None = None

    def take(self) -> tuple[str, ...]:
        """Take every host, or none: raises EnvironmentUnfit naming the ones that are not to be had.

        Gives sentences about what earlier runs had left there.
        """
        for host, script in self._scripts.items():
            self._processes[host] = self._links.converse(host, script, output=self._logs[host])
        self._beating = threading.Thread(target=self._beat, name="genie-lease", daemon=True)
        self._beating.start()
        refused: dict[str, str] = {}
        notes: list[str] = []
        deadline = time.monotonic() + _READY_TIMEOUT_S
        waiting = set(self._processes)
        while waiting:
            for host in sorted(waiting):
                said = self._said(host)
                code = self._processes[host].poll()
                if "ready" in said:
                    notes += [f"{host}: {line}" for line in said if line.startswith(("swept ", "left "))]
                elif code is not None or time.monotonic() > deadline:
                    refused[host] = _why(said, code)
                else:
                    continue
                waiting.discard(host)
            time.sleep(0.02 if waiting else 0)
        if refused:
            raise EnvironmentUnfit(
                "; ".join(f"{host}: {why}" for host, why in sorted(refused.items())),
                hint="a host serves one run at a time; wait for the other, or use other hosts",
            )
        return tuple(notes)

    def _said(self, host: str) -> list[str]:
        log = self._logs[host]
        return log.read_text(errors="replace").splitlines() if log.exists() else []

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_S):
            for process in list(self._processes.values()):
                process.write(b"k")

    def end(self, say: Callable[[str], None]) -> tuple[str, ...]:
        """Give every host back and see that nothing is left; what is, and who did not answer, goes to ``say``.

        Gives the hosts that did not say that they are clean.
        """
        self._stop.set()
        if self._beating is not None:
            self._beating.join()
        processes, self._processes = self._processes, {}
        for process in processes.values():
            process.write(b"q")
            process.close_stdin()
        unclean = []
        deadline = time.monotonic() + _END_TIMEOUT_S
        for host, process in processes.items():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except RunAborted:
                unclean.append(host)
                say(f"{host} did not say within {_END_TIMEOUT_S:g} s that it has removed the run's files")
                continue
            if words := _how_it_ended(self._said(host)):
                unclean.append(host)
                say(f"{host}{words}")
        return tuple(unclean)


def _how_it_ended(said: list[str]) -> str:
    """What a lease has left or missed, as the end of a sentence about its host; "" where all is well."""
    if "limit" in said:
        return " ended the run there: the time limit (fabric.time_limit) had passed"
    if said[-1:] == ["clean"] or "ready" not in said:
        return ""
    kept = next((line.removeprefix("kept ") for line in said if line.startswith("kept ")), "")
    if kept:
        return f": faults' folders were kept: {kept}"
    return f" was lost; it removes the run's files by itself within {PATIENCE_S} s of that"


def _why(said: list[str], code: int | None) -> str:
    busy = next((line for line in said if line.startswith("busy")), "")
    if busy:
        return f"another run has this host: {describe_holder(busy.removeprefix('busy'))}"
    faulty = next((line for line in said if line.startswith("faulty ")), "")
    if faulty:
        return f"a fault of {faulty.removeprefix('faulty ')} is still in place there (genie revert)"
    stuck = next((line for line in said if line.startswith("stuck ")), "").removeprefix("stuck ")
    if stuck:
        return (
            f"the fault of a run may still be in place there and its warden is dead: genie revert where that run was "
            f"started, or on the host: {stuck}/bin/genie-warden revert --dir {stuck}/FAULT"
        )
    if code is None:
        return "its lease did not start in time"
    return f"its lease ended with status {code}: {' '.join(said)[-300:] or 'it said nothing'}"
