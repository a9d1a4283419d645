"""Kill anything at any step of a fault's life, on machines reached by ssh: what is left, and who put it back.

``python tests/inventory/kill_matrix.py [netns] [SUBSTRING ...]`` runs the cells whose name holds a substring (all
without one) and prints the table; `test_kill_matrix.py` runs the same cells. A run is stopped at a step by a
genie-warden of our own that waits before or after the true one does its work, so what was on its way when something
died still arrives, late: that is the worst case. Nothing in GENIE knows of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machines
from machines import Lab, genie, wait_until

from genie.engine.binaries import find_binary
from genie.faults.journal import FILE_NAME, read_journal

PATIENCE_S = 120.0  # for what must come, on a machine with other work
MARGIN_S = 8.0  # beside the time limit: an undo, and a look at it, on such a machine
TARGET, OTHER = "m0", "m1"
RUN = (
    "workload=dp", "workload.ranks=2", "workload.layers=2", "transport.spin=0", "timeout=20s",
    "tracking.mlflow.enabled=false", "report.timeline=false", "report.html=false", "baseline=none", "out=runs",
)  # fmt: skip
FAULT = (
    "+fault=link_rate", f"fault.link_rate.targets=[{TARGET}/data0]",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """Where the run stands when something is killed. ``hold``: at which of the warden's commands, "arm-before" say;
    "" for a condition of its own. ``changed``: whether the fault is in place then.
    """

    name: str
    hold: str
    ttl_s: int
    changed: bool
    words: tuple[str, ...] = ("workload.iterations=2", "fault.link_rate.parameters.rate=20%")


STEPS = (
    Step("before the journal", "", 6, False),
    Step("journaled", "arm-before", 6, False),
    Step("armed", "open-before", 8, False),
    Step("applied", "open-after", 8, True),
    Step("in a window", "", 15, True, ("workload.iterations=6", "fault.link_rate.window.at=100ms",
                                       "fault.link_rate.window.for=60s", "fault.link_rate.parameters.rate=2%")),
    Step("evidence", "status-before", 20, True),
    Step("reverting", "revert-before", 20, True),
    Step("reverted, not closed", "revert-after", 20, False),
)  # fmt: skip
VICTIMS = (
    "controller", "ansible", "agent", "worker", "worker and guardian", "connection, silent", "connection, reset",
)  # fmt: skip
NO_ANSIBLE = ("in a window", "evidence")
NO_AGENT = ("evidence", "reverting", "reverted, not closed")
NO_WARDEN = ("before the journal", "journaled", "reverted, not closed")


@dataclass(frozen=True)
class Cell:
    """One death at one step."""

    step: Step
    victim: str

    @property
    def name(self) -> str:
        return f"{self.step.name} / {self.victim}"

    @property
    def why_not(self) -> str:
        """Why there is no such death, "" where there is."""
        if self.victim == "ansible" and self.step.name in NO_ANSIBLE:
            return "no play is running"
        if self.victim == "agent" and self.step.name in NO_AGENT:
            return "the ranks have ended"
        if self.victim.startswith("worker") and self.step.name in NO_WARDEN:
            return "no warden lives"
        return ""

    @property
    def looks_first(self) -> str:
        """Who finds the journal: the next run in one half of the cells, ``genie revert`` in the other."""
        return "run" if (STEPS.index(self.step) + VICTIMS.index(self.victim)) % 2 else "revert"


CELLS = tuple(Cell(step, victim) for step in STEPS for victim in VICTIMS)
POSSIBLE = tuple(cell for cell in CELLS if not cell.why_not)


# -- a warden that waits ------------------------------------------------------------------------------------------

_WAITING = """#!/bin/sh
# genie-warden, but it can be held before and after it does what it is told.
verb=$1
hold() {{
  [ -e "{folder}/want-$verb-$1" ] || return 0
  echo $$ >"{folder}/held"
  : <"{folder}/go"
}}
hold before
"{warden}" "$@"
code=$?
hold after
exit $code
"""


@dataclass
class Hold:
    """Holds the wardens of one run at one command, "VERB-before" or "VERB-after"."""

    folder: Path
    opened: int = -1

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        os.mkfifo(self.folder / "go")
        program = self.folder / "genie-warden"
        program.write_text(_WAITING.format(folder=self.folder, warden=find_binary("genie-warden")))
        program.chmod(0o755)

    def want(self, where: str) -> None:
        (self.folder / f"want-{where}").touch()

    @property
    def held(self) -> bool:
        return (self.folder / "held").exists()

    def release(self) -> None:
        """What was held goes on, and nothing is held any more."""
        for wanted in self.folder.glob("want-*"):
            wanted.unlink()
        if self.opened < 0:
            self.opened = os.open(self.folder / "go", os.O_RDWR | os.O_NONBLOCK)

    def close(self) -> None:
        self.release()
        os.close(self.opened)


# -- processes ----------------------------------------------------------------------------------------------------


def cmdline(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def descendants(root: int) -> list[int]:
    """Of a process, itself not included, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(parent_of(int(entry.name)), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        own = children.get(waiting.pop(0), [])
        found += own
        waiting += own
    return found


def plays(controller: int) -> list[int]:
    """Ansible's processes on the faults' play, the first one the parent of the others."""
    return [pid for pid in descendants(controller) if {"playbook", "fault.yml"} <= set(cmdline(pid)) and "-I" not in
            cmdline(pid)]  # fmt: skip


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


# -- one run ------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """A run with the fault that is stopped at a step; its words in a file."""

    folder: Path
    words: tuple[str, ...]
    hold: Hold
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        environment = {**os.environ, "GENIE_BIN_PATH": str(self.hold.folder)}
        with (self.folder / "said").open("wb") as said:
            self.process = subprocess.Popen(
                genie(*RUN, *self.words), cwd=self.folder, stdout=said, stderr=said, env=environment
            )

    @property
    def said(self) -> str:
        return re.sub(r"\s+", " ", (self.folder / "said").read_text())

    @property
    def journal(self) -> Path | None:
        """The faults' journal, once there is one."""
        return next((self.folder / "runs").glob(f"*/{FILE_NAME}"), None)

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """The condition, while the run lives."""

        def holds() -> Any:
            found = condition()
            assert found or self.process.poll() is None, f"the run ended before {what}: {self.said[-1500:]}"
            return found

        return wait_until(holds, what, PATIENCE_S)

    def stand_at(self, step: Step, opened: Callable[[], bool]) -> list[int]:
        """Until the run stands at ``step``; gives the processes that were stopped for it."""
        if step.hold:
            self.wait_for(lambda: self.hold.held, f"the warden's {step.hold}")
            return []
        if step.name == "in a window":
            self.wait_for(opened, "a window")
            return []
        self.wait_for(lambda: self.journal and read_journal(self.journal).owner, "the journal's owner")
        found = self.wait_for(lambda: plays(self.process.pid), "the play")
        for pid in found:
            os.kill(pid, signal.SIGSTOP)
        assert self.journal is not None
        assert not read_journal(self.journal).entries, "the play was too fast to be stopped"
        return list(found)


@dataclass
class Result:
    """What became of one cell, for the table."""

    cell: Cell
    put_back_s: float
    by: str
    told_by: str


def snapshot(lab: Lab) -> str:
    """All that a fault could leave on the target: queues, rules, links."""
    links = json.loads(lab[TARGET].run("ip -j -d link show"))
    kept = [{key: link.get(key) for key in ("ifname", "flags", "mtu", "operstate", "txqlen")} for link in links
            if link["ifname"] != "mgmt0"]  # fmt: skip
    return json.dumps(kept) + lab[TARGET].run("tc -j qdisc show; tc -j filter show dev data0; nft list ruleset")


def warden_log(lab: Lab) -> list[dict[str, Any]]:
    """Events of the target's warden."""
    text = lab[TARGET].run("cat /run/genie/*/link_rate/log 2>/dev/null", check=False)
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def wardens(lab: Lab) -> tuple[int, int]:
    """(guardian, worker) of the target."""
    pids = lab[TARGET].processes("genie-warden")
    worker = next(pid for pid in pids if parent_of(pid) in pids)
    return parent_of(worker), worker


def servers(lab: Lab) -> list[int]:
    """Processes of sshd that hold connections, without the one that listens."""
    return [pid for pid in descendants(lab[TARGET].server_pid) if cmdline(pid)[0].startswith("sshd:")]


def strike(lab: Lab, run: Run, victim: str) -> None:
    """Kill it."""
    match victim:
        case "controller":
            kill(run.process.pid)
        case "ansible":
            kill(plays(run.process.pid)[0])
        case "agent":
            agents = lab[TARGET].processes("genie-agent")
            assert agents, "no agent lives"
            for pid in agents:
                kill(pid)
        case "worker":
            kill(wardens(lab)[1])
        case "worker and guardian":
            for pid in wardens(lab):
                kill(pid)
        case "connection, silent":
            machines.sh("ip", "link", "set", lab[TARGET].cable("mgmt"), "down")
        case "connection, reset":
            found = servers(lab)
            assert found, "no connection is open"
            for pid in found:
                kill(pid)
        case _:
            raise AssertionError(victim)


def accounted_for(cell: Cell, code: int, said: str) -> bool:
    """Whether a run whose controller lived says what became of it: that it was aborted, or rightly that all is whole.

    A controller may put back itself what its dead warden would have. And once all is measured it does not matter who
    is first at putting it back.
    """
    if code == 4 or cell.step.name == "reverted, not closed":
        return True
    spared = cell.step.name == "reverting" or cell.victim == "worker and guardian"
    return spared and code == 0 and "reverted and read back" in said


def left_behind(lab: Lab) -> list[str]:
    """GENIE's processes on both machines, wardens included."""
    return [
        f"{name}: {program} {pid}"
        for name in (TARGET, OTHER)
        for program in ("genie-agent", "genie-port", "genie-warden", "timeout", "head")
        for pid in lab[name].processes(program)
    ]


def command(folder: Path, *words: str) -> tuple[int, str]:
    """A command of genie to its end: exit code, all it said."""
    done = subprocess.run(genie(*words), cwd=folder, capture_output=True, text=True, timeout=180, check=False)
    return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)


def run_cell(lab: Lab, cell: Cell, folder: Path) -> Result:
    """One death, and all that must hold after it. The target has a shaper of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    inventory = f"fabric.inventory={lab.inventory(hosts=(TARGET, OTHER))}"
    before = snapshot(lab)
    hold = Hold(folder / "bin")
    if cell.step.hold:
        hold.want(cell.step.hold)
    words = ("fabric=inventory", inventory, *FAULT, f"safety.ttl={cell.step.ttl_s}s", *cell.step.words)
    run = Run(folder, words, hold)
    try:
        stopped = run.stand_at(cell.step, lambda: any(event["event"] == "opened" for event in warden_log(lab)))
        assert (snapshot(lab) != before) == cell.step.changed, f"the fault is not as at {cell.step.name}"
        began_s = time.monotonic()
        strike(lab, run, cell.victim)
        if cell.victim == "controller":
            run.process.wait()
        hold.release()
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        # A command that was on its way arrives now. From here the time limit runs at the latest.
        limit_s = cell.step.ttl_s + MARGIN_S
        wait_until(
            lambda: not lab[TARGET].processes("genie-warden") and snapshot(lab) == before,
            "the end of the fault",
            limit_s,
        )
        put_back_s = time.monotonic() - began_s
        code = run.process.wait(PATIENCE_S)
        assert cell.victim == "controller" or accounted_for(cell, code, run.said), run.said[-1500:]
    finally:
        machines.sh("ip", "link", "set", lab[TARGET].cable("mgmt"), "up")
        hold.close()
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGINT)
            run.process.wait(PATIENCE_S)
    wait_until(lambda: not left_behind(lab), f"the end of {left_behind(lab)}", PATIENCE_S)
    assert snapshot(lab) == before, "the fault came back"
    by = _by(lab, run)
    told_by = _settle(lab, cell, run, inventory)
    assert snapshot(lab) == before, "settling changed something"
    assert not (left := lab.leftovers()), left
    return Result(cell, put_back_s, by, told_by)


def _by(lab: Lab, run: Run) -> str:
    """Who put the target back, in a word or two, before anybody settles."""
    hows = [entry.how for entry in read_journal(run.journal).entries if entry.how] if run.journal else []
    if hows:  # the run has settled it itself
        return _who(hows[0])
    ends = [event for event in warden_log(lab) if event["event"] == "reverted"]
    if not ends:
        return "nothing changed"
    if not ends[-1]["ran"]:
        return "nothing in place"
    return {"ttl": "time limit", "guardian": "guardian", "revert": "the run"}.get(ends[-1]["by"], ends[-1]["by"])


def _who(how: str) -> str:
    """Who put it back, by the words that the journal was closed with."""
    for words, who in (
        ("time limit", "time limit"),
        ("worker had been killed", "guardian"),
        ("in its stead", "the run, in the warden's stead"),
        ("never armed", "nothing changed"),
    ):
        if words in how:
            return who
    return "the run"


def _settle(lab: Lab, cell: Cell, run: Run, inventory: str) -> str:
    """``genie revert`` and a next run, in the cell's order. Gives who told what had happened."""
    was_open = bool(run.journal and read_journal(run.journal).opened)
    early = cell.step.name == "before the journal" and cell.victim == "controller"
    told_by = "the run" if run.process.returncode == 4 else "nobody"
    for who in ("run", "revert") if cell.looks_first == "run" else ("revert", "run"):
        if who == "run":
            words = (*RUN, "fabric=inventory", inventory, "workload.iterations=1")
            code, said = command(run.folder, *words)
            assert code == 0 or "hosts saturated" in said, said[-1500:]
        else:
            code, said = command(run.folder, "revert")
            assert code == 0, said[-1500:]
        told = f"died with link_rate on {TARGET} open" in said and "as it was found" in said
        assert told == was_open, said[-1500:]
        assert ("died before it changed anything" in said) == early, said[-1500:]
        if told or early:
            told_by = "next run" if who == "run" else "genie revert"
        if told:
            actions = [json.loads(line) for line in (run.folder / "runs/audit.log").read_text().splitlines()]
            assert actions[-1]["action"] == "reverted", actions[-1]
            assert actions[-1]["result"] == "ok", actions[-1]
        was_open = early = False
    assert not (run.journal and read_journal(run.journal).opened)
    return told_by


def run_with_nobody_left(lab: Lab, folder: Path) -> None:
    """Controller, worker and guardian die at once where no systemd stands by: the change stays until somebody comes,
    the host is leased to nobody who does not know of it, and the next run of the same folder puts it back.
    """
    applied = next(step for step in STEPS if step.name == "applied")
    inventory = f"fabric.inventory={lab.inventory(hosts=(TARGET, OTHER))}"
    before = snapshot(lab)
    hold = Hold(folder / "bin")
    hold.want(applied.hold)
    run = Run(folder, ("fabric=inventory", inventory, *FAULT, "safety.ttl=3s", *applied.words), hold)
    try:
        run.stand_at(applied, lambda: False)
        for victim in ("worker and guardian", "controller"):
            strike(lab, run, victim)
        run.process.wait()
    finally:
        hold.close()
        kill(run.process.pid)
    wait_until(lambda: not left_behind(lab), f"the end of {left_behind(lab)}", PATIENCE_S)
    assert snapshot(lab) != before
    stranger = (*RUN[:-1], "out=elsewhere", "fabric=inventory", inventory, "workload.iterations=1")
    code, said = command(folder, *stranger)
    assert (code, "its warden is dead" in said) == (3, True), said[-1500:]
    code, said = command(folder, *RUN, "fabric=inventory", inventory, "workload.iterations=1")
    assert code == 0 or "hosts saturated" in said, said[-1500:]
    assert f"died with link_rate on {TARGET} open" in said, said[-1500:]
    assert f"the warden of {TARGET} was dead; its undo was run in its stead" in said, said[-1500:]
    assert snapshot(lab) == before
    assert not (left := lab.leftovers()), left


# -- on namespaces ------------------------------------------------------------------------------------------------

NETNS_RUN = ("fabric=netns", "topology=single_switch", "topology.hosts=2", "topology.host_rate=40Mbps")
NETNS_FAULT = ("+fault=link_rate", "fault.link_rate.targets=[h0]")
NETNS_CELLS = tuple(cell for cell in POSSIBLE if not cell.victim.startswith("connection"))


def _programs(run: Run, program: str) -> list[int]:
    """A run's processes of one program, as its fabric's holder has them."""
    return [pid for pid in descendants(run.process.pid) if cmdline(pid)[0].endswith(program)]


def _netns_warden_log(run: Run) -> str:
    for pid in _programs(run, "genie-warden"):
        words = cmdline(pid)
        if "--dir" in words:
            with contextlib.suppress(OSError):
                return Path(f"/proc/{pid}/root{words[words.index('--dir') + 1]}/log").read_text()
    return ""


def _netns_strike(run: Run, victim: str) -> None:
    pids = _programs(run, "genie-warden")
    workers = [pid for pid in pids if parent_of(pid) in pids]
    match victim:
        case "controller":
            kill(run.process.pid)
        case "ansible":
            kill(plays(run.process.pid)[0])
        case "agent":
            kill(_programs(run, "genie-agent")[0])
        case "worker":
            kill(workers[0])
        case "worker and guardian":
            kill(parent_of(workers[0]))
            kill(workers[0])


def run_netns_cell(cell: Cell, folder: Path) -> Result:
    """The same death on the embedded fabric. With the controller goes the fabric; all else the run takes back."""
    folder.mkdir(parents=True, exist_ok=True)
    hold = Hold(folder / "bin")
    if cell.step.hold:
        hold.want(cell.step.hold)
    words = (*NETNS_RUN, *NETNS_FAULT, f"safety.ttl={cell.step.ttl_s}s", *cell.step.words)
    run = Run(folder, words, hold)
    try:
        stopped = run.stand_at(cell.step, lambda: '"opened"' in _netns_warden_log(run))
        inside = descendants(run.process.pid)
        began_s = time.monotonic()
        _netns_strike(run, cell.victim)
        if cell.victim == "controller":
            run.process.wait()
        hold.release()
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        code = run.process.wait(PATIENCE_S)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside), "the fabric's end", PATIENCE_S)
        put_back_s = time.monotonic() - began_s
    finally:
        hold.close()
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGINT)
            run.process.wait(PATIENCE_S)
    early = cell.step.name == "before the journal" and cell.victim == "controller"
    if cell.victim == "controller":
        by, told = "end of the fabric", "died before it changed anything" if early else "its fabric ended with it"
    else:
        assert accounted_for(cell, code, run.said), run.said[-1500:]
        by, told = "the run", ""
    was_open = early or bool(run.journal and read_journal(run.journal).opened)
    assert not was_open or told, "the run left its journal open"
    told_by = "the run" if code == 4 else "nobody"
    for who in ("run", "revert") if cell.looks_first == "run" else ("revert", "run"):
        words = (*RUN, *NETNS_RUN, "workload.iterations=1") if who == "run" else ("revert",)
        code, said = command(folder, *words)
        assert code == 0 or "emulator saturated" in said, said[-1500:]
        assert (bool(told) and told in said) == was_open, said[-1500:]
        if was_open:
            told_by = "next run" if who == "run" else "genie revert"
        was_open = False
    return Result(cell, put_back_s, by, told_by)


# -- the table ----------------------------------------------------------------------------------------------------


def table(results: list[Result]) -> str:
    """Step by victim: after how long the target was back, by whom; and who told."""
    found = {result.cell: result for result in results}
    rows = [["killed at", *VICTIMS]]
    for step in STEPS:
        row = [step.name]
        for victim in VICTIMS:
            cell = Cell(step, victim)
            result = found.get(cell)
            row.append(
                f"— ({cell.why_not})" if cell.why_not else "not run" if result is None
                else f"{result.put_back_s:.1f} s: {result.by}; told by {result.told_by}"
            )  # fmt: skip
        rows.append(row)
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


@contextlib.contextmanager
def shaped(lab: Lab) -> Iterator[Lab]:
    """The lab, with a shaper of the machine's own on the target's data interface."""
    lab[TARGET].run("tc qdisc add dev data0 root handle 7e1e: tbf rate 80mbit burst 32k limit 512k")
    try:
        yield lab
    finally:
        lab[TARGET].run("tc qdisc del dev data0 root", check=False)


def main(wanted: list[str]) -> int:
    """Run cells and print the table; 1 where one failed. The word "netns" among ``wanted``: on namespaces."""
    on_netns = "netns" in wanted
    wanted = [word for word in wanted if word != "netns"]
    cells = NETNS_CELLS if on_netns else POSSIBLE
    cells = tuple(cell for cell in cells if not wanted or any(part in cell.name for part in wanted))
    results, failed = [], []
    with tempfile.TemporaryDirectory(prefix="genie-kill-") as folder, contextlib.ExitStack() as stack:
        if not on_netns:
            lab = stack.enter_context(machines.lab(Path(folder, "lab"), 2, room_mb=64))
            stack.enter_context(shaped(lab))
        for number, cell in enumerate(cells):
            began_s = time.monotonic()
            own = Path(folder, str(number))
            try:
                results.append(run_netns_cell(cell, own) if on_netns else run_cell(lab, cell, own))
                word = f"{results[-1].by}, told by {results[-1].told_by}"
            except (AssertionError, subprocess.TimeoutExpired) as error:
                failed.append(cell.name)
                word = f"FAILED: {error}"
            print(f"{cell.name}: {word} ({time.monotonic() - began_s:.0f} s)", flush=True)
    print(table(results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
