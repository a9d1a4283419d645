"""``genie faults apply``, ``status`` and ``revert`` over a fabric and hosts of pretence: what is said, what is left.

The words are golden files; GENIE_UPDATE_GOLDEN=1 rewrites them. tests/inventory does the same on machines.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from genie import topology
from genie.cli import main
from genie.errors import ConfigError, EnvironmentUnfit, RunAborted
from genie.fabric.base import Capabilities, Completed, Fabric
from genie.fabric.config import NetnsConfig
from genie.fabric.lease import end_argv
from genie.fabric.ssh import SshTarget
from genie.faults import operate, operation, revert
from genie.faults.command import configure, overrides, run
from genie.faults.journal import Intent, Journal, Owner, read_journal
from genie.faults.plan import RunFacts, plan_faults
from genie.faults.session import FaultRecord
from genie.faults.warden import Status
from genie.topology.config import LeafSpineConfig

GOLDEN = Path(__file__).parents[1] / "golden" / "faults"
NETWORK = topology.build(LeafSpineConfig(hosts=4))
STATE = "/run/genie/" + "0123456789abcdef" * 2
COMMAND = ["faults", "apply", "link_rate", "--inventory=hosts.yml", "targets=h1-leaf0", "ends=up", "ttl=5min"]


def answer(**changes: Any) -> dict[str, Any]:
    """What a warden says in effect, 42 s before its time limit."""
    base: dict[str, Any] = {
        "ok": True, "error": "", "state": "open", "alive": True, "may_be_applied": True, "mono_ns": 10**9,
        "real_ns": 0, "ttl_end_mono_ns": 43 * 10**9, "log": [], "log_error": "",
    }  # fmt: skip
    return base | changes


class Bench:
    """A fabric and, for later processes, its hosts: everything is remembered, commands are answered by a script."""

    name = "inventory"
    notes = ("hosts of hosts.yml: real network",)

    def __init__(self) -> None:
        self.did: list[str] = []
        self.ran: list[tuple[str, tuple[str, ...]]] = []
        self.status: dict[str, Any] = answer()
        self.unreachable: set[str] = set()
        self.broken = ""

    def capabilities(self) -> Capabilities:
        return Capabilities(True, False, True, True, "none", {"ecn": "not known"})

    def address(self, host: str) -> str:
        return "192.0.2.1"

    def platforms(self, node: str) -> tuple[str, ...]:
        return ("linux",)

    def state_dir(self, node: str) -> str:
        return STATE

    def lock_file(self, node: str) -> str:
        return "/run/lock/genie.lock"

    def tool(self, name: str) -> str:
        return f"{STATE}/bin/{name}"

    def protected_interfaces(self, node: str) -> frozenset[str]:
        return frozenset({"lo"})

    def ansible_host(self, node: str) -> dict[str, str]:
        return {"ansible_host": node}

    def build(self) -> None:
        self.did.append("build")
        if self.broken == "build":
            raise EnvironmentUnfit("h1: another run has this host")

    def destroy(self) -> None:
        self.did.append("destroy")

    def run(self, node: str, argv: Sequence[str], **_: Any) -> Completed:
        self.ran.append((node, tuple(argv)))
        if node in self.unreachable:
            raise RunAborted(f"{node} cannot be reached: connection refused")
        said = json.dumps(self.status) if "status" in argv else ""
        return Completed(node, tuple(argv), 0, said, "")

    def has_shell(self, node: str) -> bool:
        return True

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Session:
    """A `FaultSession` that only keeps the journal."""

    bench: Bench

    def __init__(self, plans: Any, fabric: Any, journal: Path, run_dir: Path, *, ttl_ns: int) -> None:
        self.plans, self.journal, self.run, self.ttl_ns = plans, journal, run_dir.name, ttl_ns
        self.records: list[FaultRecord] = []
        self.started: list[dict[str, int]] = []
        self.bench.did.append(f"session {ttl_ns}")

    def apply(self) -> None:
        self.bench.did.append("apply")
        with Journal(self.journal) as journal:
            journal.take_charge(replace(Owner.this_process("inventory"), start_ticks=1))  # a process that is gone
        assert (self.journal.parent / operate.FILE_NAME).is_file(), "nothing may be changed before it is written down"
        if self.bench.broken == "apply":
            raise RunAborted("fault link_rate on h1, phase prepare: cannot be applied")
        with Journal(self.journal) as journal:
            journal.intend(
                Intent(self.run, plan.name, plan.role, c.node, c.object, {"rate": 1}, (("undo",),))
                for plan in self.plans
                for c in plan.changes
            )
            journal.mark_applied(read_journal(self.journal).entries)
        self.records += [FaultRecord(p.name, "applied", p.nodes, p.targets, 1, 2, True) for p in self.plans]

    def start(self, at_mono_ns: int, offsets_ns: dict[str, int]) -> None:
        self.bench.did.append("start")
        assert abs(at_mono_ns - time.monotonic_ns()) < 10**10
        assert set(offsets_ns) == {node for plan in self.plans for node in plan.nodes}
        if self.bench.broken == "start":
            raise RunAborted("its window could not be told")

    def revert(self) -> tuple[FaultRecord, ...]:
        self.bench.did.append("revert")
        ok = self.bench.broken != "revert"
        if ok:
            with Journal(self.journal) as journal:
                journal.close_entries(read_journal(self.journal).opened, "reverted")
        made = [
            FaultRecord(p.name, "reverted", p.nodes, p.targets, 1, 2, ok, "" if ok else "leaf0 on h1 is not as it was")
            for p in self.plans
        ]
        return tuple(made)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    made = Bench()
    monkeypatch.setattr(Session, "bench", made, raising=False)
    monkeypatch.setattr(operate, "inventory", lambda config: NETWORK)
    monkeypatch.setattr(operate, "open_fabric", lambda *_: made)
    target = SshTarget("192.0.2.9", key="/k", become=True)
    monkeypatch.setattr(operation, "survey", lambda *_: SimpleNamespace(entries=()))
    monkeypatch.setattr(operation, "linux_targets", lambda _: {"h1": target})
    monkeypatch.setattr(operate, "reach", lambda operation: made)
    monkeypatch.setattr(operate, "FaultSession", Session)
    return made


def plain(text: str) -> str:
    """Without what differs from time to time."""
    text = re.sub(r"faults-\d{8}-\d{6}", "faults-DATE", text)
    text = re.sub(r"\d\d:\d\d:\d\d UTC", "TIME UTC", text)
    text = re.sub(r"applied [\d.]+ \w+ ago", "applied NOW ago", text)
    return re.sub(r"apart by up to [\d.]+ \w+", "apart by up to A LITTLE", text)


def golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("GENIE_UPDATE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text()


def only_folder() -> Path:
    (folder,) = Path("runs").glob("faults-*")
    return folder


@pytest.mark.parametrize(
    ("name", "more", "did"),
    [
        ("operate_dry", ["dry_run=true"], []),
        ("operate_apply", [], ["session 300000000000", "build", "apply", "destroy"]),
        ("operate_window", ["window.at=1s", "window.for=2s", "parameters.rate=10%"],
         ["session 300000000000", "build", "apply", "start", "destroy"]),
    ],
    ids=["dry run", "whole", "window"],
)  # fmt: skip
def test_apply_says_what_it_does_and_when_it_ends(
    bench: Bench, capsys: pytest.CaptureFixture[str], name: str, more: list[str], did: list[str]
) -> None:
    assert main([*COMMAND, *more]) == 0
    golden(name, plain(capsys.readouterr().out))
    assert bench.did == did
    assert Path("runs").exists() == bool(did)


def test_what_was_applied_is_written_down_for_another_process(bench: Bench) -> None:
    main(COMMAND)
    folder = only_folder()
    assert (folder / operate.FILE_NAME).stat().st_mode & 0o077 == 0
    found = operate.read_operation(folder)
    (plan,) = found.plans()
    assert (plan.name, plan.targets, plan.facts.platforms["h1"]) == ("link_rate", ("h1/leaf0",), ("linux",))
    (node,) = found.nodes
    assert (node.name, node.state_dir, node.ansible) == ("h1", STATE, {"ansible_host": "h1"})
    assert node.target == SshTarget("192.0.2.9", key="/k", become=True)
    assert found.tools["genie-warden"] == f"{STATE}/bin/genie-warden"
    assert found.ends_real_ns > found.began_real_ns > 0
    log = [json.loads(line) for line in Path("runs/audit.log").read_text().splitlines()]
    assert [(line["action"], line["fault"], line["result"]) for line in log] == [
        ("planned", "link_rate", "ok"),
        ("applied", "link_rate", "ok"),
    ]


@pytest.mark.parametrize(
    ("broken", "code", "did"),
    [
        ("build", 3, ["session 300000000000", "build", "revert", "destroy"]),
        ("apply", 4, ["session 300000000000", "build", "apply", "revert", "destroy"]),
        ("start", 4, ["session 300000000000", "build", "apply", "start", "revert", "destroy"]),
    ],
)
def test_what_fails_is_taken_back_and_logged(bench: Bench, broken: str, code: int, did: list[str]) -> None:
    bench.broken = broken
    assert main([*COMMAND, "window.at=1s", "window.for=2s"]) == code
    assert bench.did == did
    assert not read_journal(only_folder() / "faults.journal").opened
    removed = [argv[-1] for _, argv in bench.ran if argv[0] == "rm"]
    assert removed == ([f"{STATE}/link_rate"] if broken == "start" else []), "only what was armed left something"
    last = json.loads(Path("runs/audit.log").read_text().splitlines()[-1])
    assert (last["action"], last["result"] != "ok") == ("refused", True)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["link_rate"], "inventory: which hosts?"),
        (["link_rate", "fabric=netns"], "fabric=netns lives and ends with its run"),
        (["link_rate", "fabric=loopback"], "fabric=loopback lives and ends with its run"),
        (["link_rate", "--inventory=x", "window.at_iteration=2"], "counts iterations of GENIE's ranks"),
        (["link_rate", "--inventory=x", "ttl=2h"], "safety.ttl is 2h, and safety.max_ttl is 1h"),
        (["link_rate", "--inventory=x", "targets=h9"], "matches nothing"),
        (["link_rat", "--inventory=x"], "there is no fault 'link_rat'; did you mean 'link_rate'"),
        (["--inventory=x"], "which fault?"),
        (["link_rate", "--inventory"], "needs a file"),
        (["link_rate", "--inventori=x"], "there is no option --inventori=x"),
        (["link_rate", "tll=5min"], "tll: genie faults apply takes no such key; did you mean 'ttl'"),
        (["link_rate", "workload=moe"], "takes no such key"),
        (["link_rate", "fault=ecn_off"], "takes no such key"),
        (["link_rate", "packet_loss", "targets=h1"], "of which of link_rate, packet_loss?"),
        (["link_rate", "--inventory=x", "parameters.rat=1"], "there is no such parameter"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_applied_is_refused_before_anything_is_touched(
    bench: Bench, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    assert main(["faults", "apply", *words]) == 2
    assert problem in capsys.readouterr().err
    assert (bench.did, bench.ran, Path("runs").exists()) == ([], [], False)


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["a", "--inventory", "h.yml"], ["fault=[a]", "fabric.inventory='h.yml'"]),
        (["a", "inventory=my hosts.yml"], ["fault=[a]", "fabric.inventory='my hosts.yml'"]),
        (["a", "targets=[x,y]", "ttl=1s"], ["fault=[a]", "fault.a.targets=[x,y]", "safety.ttl=1s"]),
        (["a", "b", "fault.b.count=1", "seed=2"], ["fault=[a,b]", "fault.b.count=1", "seed=2"]),
    ],
    ids=["option", "key", "of the fault", "of several"],
)  # fmt: skip
def test_short_keys_are_those_of_a_run(words: list[str], made: list[str]) -> None:
    assert overrides(words) == [made[0], "fabric=inventory", "topology=inventory", *made[1:]]


def test_status_then_revert_then_nothing_is_open(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    main(COMMAND)
    capsys.readouterr()
    assert main(["faults", "status"]) == 0
    assert main(["faults", "revert"]) == 0
    assert main(["faults", "status", str(only_folder())]) == 0
    assert main(["faults", "revert", "runs"]) == 0
    golden("operate_later", plain(capsys.readouterr().out))
    assert bench.ran == [
        ("h1", (f"{STATE}/bin/genie-warden", "status", "--dir", f"{STATE}/link_rate")),
        ("h1", tuple(end_argv(STATE))),
    ]
    last = json.loads(Path("runs/audit.log").read_text().splitlines()[-1])
    assert (last["action"], last["result"]) == ("reverted", "ok")


def test_what_cannot_be_put_back_stays_open_and_keeps_its_folder(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    main(COMMAND)
    bench.broken = "revert"
    assert main(["faults", "revert"]) == 4
    assert "link_rate on h1: leaf0 on h1 is not as it was" in capsys.readouterr().out
    assert bench.ran == []
    bench.broken = ""
    assert main(["faults", "revert"]) == 0


def test_a_node_out_of_reach_is_named_with_when_it_ends(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    main(COMMAND)
    bench.unreachable.add("h1")
    assert main(["faults", "status"]) == 4
    said = plain(capsys.readouterr().out)
    assert (
        "link_rate on h1 (leaf0): h1 cannot be reached: connection refused; its time limit passes by TIME UTC" in said
    )


def test_an_operation_that_cannot_be_read_hinders_no_other(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    main(COMMAND)
    first = only_folder()
    main([*COMMAND, "out=runs/others"])
    (first / operate.FILE_NAME).write_text("{}")
    capsys.readouterr()
    assert main(["faults", "revert"]) == 4
    said = capsys.readouterr().out
    assert f"{first}: not reverted: {first}/operation.json cannot be read" in said
    assert "as it was found" in said


@pytest.mark.parametrize("verb", ["status", "revert"])
def test_nothing_was_ever_applied(bench: Bench, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert main(["faults", verb]) == 0
    Path("runs").mkdir()
    assert main(["faults", verb]) == 0
    assert capsys.readouterr().out == "no faults were applied from runs\n" * 2
    assert main(["faults", verb, "elsewhere"]) == 2


CHANGED = Status("open", alive=True, may_be_applied=True, mono_ns=0, ttl_end_mono_ns=90 * 10**9)


@pytest.mark.parametrize(
    ("found", "fine", "words"),
    [
        (CHANGED, True, "in effect, undone in 90 s at the latest"),
        (Status("armed", alive=True, ttl_end_mono_ns=10**9), True, "armed, not in effect, undone in 1 s at the latest"),
        (Status("closed", alive=True, ttl_end_mono_ns=10**9, windows=((1, 2), (3, 4))), True,
         "armed, not in effect, undone in 1 s at the latest; 2 windows ended"),
        (Status("fired", fired=True, failures=("the time limit passed, the warden reverted the change",)), True,
         "its time limit passed, and the warden put it back; genie faults revert reads it back"),
        (Status("abandoned", fired=True, may_be_applied=True, failures=("undo tc: no such device",)), False,
         "its time limit passed, and the warden could not put it back; genie faults revert reads it back; "
         "undo tc: no such device"),
        (Status("open", may_be_applied=True), False,
         "its warden is gone and the change may be in place: genie faults revert"),
        (Status("failed", alive=True, ttl_end_mono_ns=10**9, failures=("do tc: refused",)), False,
         "failed, undone in 1 s at the latest; do tc: refused"),
        (Status("reverted"), True, "not in effect (reverted)"),
    ],
    ids=["in effect", "armed", "between windows", "fired", "fired in vain", "gone", "failed", "reverted"],
)  # fmt: skip
def test_a_warden_in_words(found: Status, fine: bool, words: str) -> None:
    assert operate.words_of(found) == (fine, words)


def test_a_file_of_a_newer_version_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / operate.FILE_NAME).write_text('{"format": "genie-faults-operation", "version": 2}')
    with pytest.raises(Exception, match="version 2"):
        operate.read_operation(tmp_path)


def test_genie_revert_puts_back_what_was_applied_to_hosts(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    main(COMMAND)
    capsys.readouterr()
    bench.broken = "revert"
    assert main(["revert"]) == 4
    assert "leaf0 on h1 is not as it was; undo by hand what is left:\n  on h1: undo" in capsys.readouterr().out
    bench.broken = ""
    assert main(["revert"]) == 0
    assert capsys.readouterr().out == f"{only_folder()}: link_rate on h1: as it was found\n"
    assert main(["revert"]) == 0


def test_verbs_that_are_none() -> None:
    with pytest.raises(ConfigError, match="did you mean 'status'"):
        run(["statu"], print)


def test_a_run_on_real_hosts_writes_down_how_to_reach_them(bench: Bench, tmp_path: Path) -> None:
    config = configure(["link_rate", "--inventory=hosts.yml", "targets=h1-leaf0"])
    facts = RunFacts(placement=("h0", "h1"))
    plans = plan_faults(config.fault, NETWORK, bench.capabilities(), facts)
    operation.remember_run(config, NETWORK, cast(Fabric, bench), plans, tmp_path)
    assert operation.read_operation(tmp_path).plans() == plans
    (tmp_path / operation.FILE_NAME).unlink()
    operation.remember_run(config, NETWORK, cast(Fabric, bench), (), tmp_path)
    operation.remember_run(replace(config, fabric=NetnsConfig()), NETWORK, cast(Fabric, bench), plans, tmp_path)
    assert not (tmp_path / operation.FILE_NAME).exists()


def test_hosts_with_a_fault_of_an_operator_are_refused_by_name_until_it_ends(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    main(COMMAND)
    assert main(COMMAND) == 3
    said = capsys.readouterr().err
    assert "link_rate on h1 was put there by genie faults apply and stays until" in said
    assert f"genie faults revert {only_folder()}" in said
    after_its_end(only_folder())
    assert main(COMMAND) == 0
    assert "link_rate on h1: as it was found" in capsys.readouterr().out


def after_its_end(folder: Path) -> None:
    """As if the time limit of what was applied had passed."""
    replace(operate.read_operation(folder), ends_real_ns=1).write(folder)


@pytest.mark.parametrize("broken", ["", "revert"])
def test_what_a_dead_process_left_is_put_back_before_its_hosts_are_used(
    bench: Bench, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    main(COMMAND)
    folder = only_folder()
    replace(operate.read_operation(folder), ends_real_ns=0).write(folder)  # it died before all was applied
    bench.broken = broken
    capsys.readouterr()
    fabric, said = cast(Fabric, bench), []
    assert revert.left_open(Path("runs"), fabric, ["h0"]) == (), "not our hosts"
    assert revert.left_open(Path("runs"), fabric, ["h0", "h1"]) == (
        f"{folder} ended with link_rate on h1 open; it is put back before this run begins",
    )
    if broken:
        with pytest.raises(EnvironmentUnfit, match=f"on h1 may still be in place, from {folder}: .*as it was"):
            revert.settle_first(Path("runs"), fabric, ["h1"], said.append)
        return
    revert.settle_first(Path("runs"), fabric, ["h1"], said.append)
    revert.settle_first(Path("runs"), fabric, ["h1"], said.append)
    (only,) = said
    assert re.search(r"runner \d+ died with link_rate on h1 open; link_rate on h1: as it was found", only), only
    assert revert.left_open(Path("runs"), fabric, ["h1"]) == ()


def test_hosts_that_were_lost_keep_nothing_of_a_run_that_was_put_back(bench: Bench, tmp_path: Path) -> None:
    main(COMMAND)
    folder = only_folder()
    said: list[str] = []
    operate.tidy(folder, said.append)
    assert bench.ran == [], "what is open is for genie revert, which reads the warden's log there"
    with Journal(folder / "faults.journal") as journal:
        journal.close_entries(read_journal(folder / "faults.journal").opened, "reverted")
    operate.tidy(folder, said.append)
    assert bench.ran == [("h1", tuple(end_argv(STATE)))]
    bench.unreachable.add("h1")
    operate.tidy(folder, said.append)
    assert said == [f"h1 keeps {STATE}: h1 cannot be reached: connection refused"]
