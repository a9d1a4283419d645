"""The roles of hosts here: what they read, do and undo with the real programs, and what their evidence says."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genie.engine.binaries import find_binary
from genie.errors import ConfigError, PlanError
from genie.fabric.base import Capabilities
from genie.faults.change import State, differences, parse_state, render_reads, render_steps, unrestored
from genie.faults.config import FaultConfig
from genie.faults.evidence import Observed, judge
from genie.faults.plan import FaultPlan, RunFacts, plan_faults
from genie.faults.recipe import load_platform
from genie.results.ports import RECORD
from genie.topology import SingleSwitchConfig, build

ALL_CAN = Capabilities(True, True, True, True, "bpf", {})
FACTS = RunFacts(mtu=1000, addresses={"h0": "127.0.0.1"})
TOOLS = {name.replace("-", "_"): str(find_binary(name)) for name in ("genie-agent", "genie-load")}
Runner = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def here(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)


def planned(role: str, targets: str, **parameters: Any) -> FaultPlan:
    topology = build(SingleSwitchConfig(hosts=3, host_rate="8Mbps"))
    return plan_faults({"f": FaultConfig(role, targets, parameters=parameters)}, topology, ALL_CAN, FACTS)[0]


class Life:
    """One change of a role, lived through by its own commands."""

    def __init__(self, plan: FaultPlan, state: Path, run: Runner = here) -> None:
        self.how = load_platform(plan.role, plan.changes[0].platform)
        told = plan.port_variables(plan.changes[0])
        self.variables = {"port": {**told, **told["set"]}, "fault": plan.name, "state": str(state), **TOOLS}
        self.run = run

    def read(self) -> State:
        done = [self.run(argv) for argv in render_reads(self.how, self.variables)]
        return parse_state(self.how.read, [(one.returncode, one.stdout) for one in done], self.variables)

    def make(self, found: State) -> None:
        self.steps(self.how.do, found)

    def undo(self, found: State) -> None:
        self.steps(self.how.undo, found)

    def steps(self, steps: Any, found: State) -> None:
        for argv in render_steps(steps, {**self.variables, "found": found}):
            done = self.run(argv)
            assert done.returncode == 0, (argv, done.stderr)

    def refused(self) -> list[str]:
        return [field for field, _, _ in differences(self.how.before, self.read(), self.variables)]

    def whole(self, meanwhile: Callable[[State], None] = lambda _: None) -> None:
        """Prepare, act, look, revert twice: the second time, as after a crash that lost the closing of the journal."""
        found = self.read()
        assert differences(self.how.before, found, self.variables) == []
        self.make(found)
        changed = self.read()
        assert differences(self.how.after, changed, self.variables) == []
        meanwhile(changed)
        for _ in range(2):
            self.undo(found)
            assert unrestored(found, self.read(), self.how.volatile) == []


# ---- compute pace ---------------------------------------------------------------------------------------------------


def test_pace_is_set_and_put_back(tmp_path: Path) -> None:
    here([TOOLS["genie_agent"], "pace", "set", "--file", str(tmp_path / "pace"), "--milli", "1000"])
    Life(planned("host_pace", "h1", speed="83%"), tmp_path).whole(lambda state: None)


@pytest.mark.parametrize(
    ("speed", "milli"), [("50%", "2000"), ("83%", "1205"), ("0.1%", "1000000"), ("99.9%", "1001")], ids=str
)
def test_a_speed_is_a_stretch_in_thousandths(speed: str, milli: str) -> None:
    assert planned("host_pace", "h1", speed=speed).changes[0].commands[0].endswith(f"--milli {milli}")


@pytest.mark.parametrize("speed", ["100%", "0.05%", "0", "150%", "fast"])
def test_a_speed_that_is_none_is_refused_by_the_plan(speed: str) -> None:
    with pytest.raises((PlanError, ConfigError), match=r"parameters\.speed"):
        planned("host_pace", "h1", speed=speed)


def test_a_host_without_an_agent_has_no_pace(tmp_path: Path) -> None:
    life = Life(planned("host_pace", "h1", speed="50%"), tmp_path)
    with pytest.raises(Exception, match="pace get"):
        life.read()


def test_a_pace_that_somebody_set_is_refused(tmp_path: Path) -> None:
    here([TOOLS["genie_agent"], "pace", "set", "--file", str(tmp_path / "pace"), "--milli", "1500"])
    assert Life(planned("host_pace", "h1", speed="50%"), tmp_path).refused() == ["stretch_milli"]


# ---- cross traffic --------------------------------------------------------------------------------------------------


def test_load_is_started_and_stopped(tmp_path: Path) -> None:
    life = Life(planned("host_load", "h1", to="h0", rate="30%"), tmp_path)
    try:
        life.whole(lambda state: None)
    finally:
        here([TOOLS["genie_load"], "stop", "--dir", str(tmp_path / "load" / "f.switch0")])


def test_the_victim_is_what_the_load_is_aimed_at() -> None:
    assert planned("host_load", "h1", to="h0", rate="30%").aimed_at == ("h0",)
    assert planned("host_pace", "h1", speed="50%").aimed_at == ()


def test_the_victim_cannot_be_a_sender() -> None:
    with pytest.raises(PlanError, match="h0 is a target itself"):
        planned("host_load", "hosts", to="h0", rate="30%")


# ---- CPU quota ------------------------------------------------------------------------------------------------------


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[int]:
    """A process by the name of the agent, with its pid file, that wants a whole core."""
    program = tmp_path / "genie-agent"
    program.write_text("#!/bin/sh\necho up\nwhile :; do :; done\n")
    program.chmod(0o755)
    (tmp_path / "pids").mkdir()
    (tmp_path / "work").mkdir()
    with subprocess.Popen([str(program)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        (tmp_path / "pids" / "1").write_text(f"{process.pid}\n")
        (tmp_path / "pids" / "2").write_text(f"{os.getpid()}\n")
        (tmp_path / "pids" / "3").write_text("nonsense\n")
        try:
            yield process.pid
        finally:
            process.kill()


def quota(state: Path, run: Runner = here) -> Life:
    return Life(planned("host_cpu", "h1", quota="20%"), state, run)


V1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or not os.access(V1, os.W_OK), reason="needs root and cgroup v1 with cpu")
def test_a_quota_under_cgroup_v1_throttles_and_goes(agent: int, tmp_path: Path) -> None:
    def home() -> str:
        return next(
            line
            for line in Path(f"/proc/{agent}/cgroup").read_text().splitlines()
            if ":cpu:" in line or ":cpu," in line
        )

    before = home()

    def meanwhile(state: State) -> None:
        assert state["controller"] == "v1"
        assert home().endswith("/genie_f")
        stat = V1.parent / "genie_f" / "cpu.stat"
        while "nr_throttled 0" in stat.read_text():  # some periods of 100 ms
            os.sched_yield()

    quota(tmp_path).whole(meanwhile)
    assert home() == before
    assert not (V1.parent / "genie_f").exists()
    kept = (tmp_path / "work" / "genie_f.stat").read_text()
    observed = Observed({}, {}, None, {("cpu_throttled", "h1"): kept})
    assert judge(planned("host_cpu", "h1", quota="20%"), observed).facts["h1.throttled"] >= 1


@pytest.fixture
def standin(agent: int, tmp_path: Path) -> Iterator[Runner]:
    """A mount namespace in which /sys/fs/cgroup is cgroup v2 made of files; its rmdir takes a group's files along."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "rmdir").write_text('#!/bin/sh\nexec rm -r "$1"\n')
    (tools / "rmdir").chmod(0o755)
    setup = "mount -t tmpfs none /sys/fs/cgroup && cd /sys/fs/cgroup && echo cpu io >cgroup.subtree_control && echo up"
    argv = ["unshare", "-m", "sh", "-c", f"{setup} && exec cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as inside:
        assert inside.stdin is not None
        assert inside.stdout is not None
        if inside.stdout.readline() != b"up\n":
            pytest.skip("no mount namespace here")

        def run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
            path = f"PATH={tools}:{os.environ['PATH']}"
            return here(["nsenter", "-m", "-t", str(inside.pid), "env", path, *words])

        try:
            yield run
        finally:
            inside.stdin.close()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_quota_under_cgroup_v2(agent: int, tmp_path: Path, standin: Runner) -> None:
    own = next(line[3:] for line in Path(f"/proc/{agent}/cgroup").read_text().splitlines() if line.startswith("0::"))
    standin(["mkdir", "-p", f"/sys/fs/cgroup{own}"])

    def meanwhile(state: State) -> None:
        assert state["controller"] == "v2"
        group = "/sys/fs/cgroup/genie_f"
        assert standin(["cat", f"{group}/cpu.max"]).stdout == "20000 100000"
        assert standin(["cat", f"{group}/cgroup.procs"]).stdout == str(agent)
        standin(["sh", "-c", f"echo >>{group}/cgroup.procs; echo nr_throttled 7 >{group}/cpu.stat"])

    quota(tmp_path, standin).whole(meanwhile)
    assert standin(["cat", f"/sys/fs/cgroup{own}/cgroup.procs"]).stdout == str(agent)
    assert (tmp_path / "work" / "genie_f.stat").read_text() == "nr_throttled 7\n"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_quota_is_refused_without_a_controller(agent: int, tmp_path: Path, standin: Runner) -> None:
    standin(["sh", "-c", "echo memory >/sys/fs/cgroup/cgroup.subtree_control"])
    life = quota(tmp_path, standin)
    assert "controller" in life.refused()


def test_a_quota_is_refused_where_no_agent_is_known(tmp_path: Path) -> None:
    assert "agent" in quota(tmp_path).refused()


# ---- evidence -------------------------------------------------------------------------------------------------------


def judged(plan: FaultPlan, state: State, **seen: Any) -> str:
    states = {change.target: (state,) for change in plan.changes}
    return judge(plan, Observed(**({"before": {}, "after": {}, "samples": None, "states": states} | seen))).state


@pytest.mark.parametrize(
    ("text", "state", "expected"),
    [
        ('{"stretched_ops": 9, "added_ns": 5}', 2000, "in_effect"),
        ('{"stretched_ops": 0, "added_ns": 0}', 2000, "not_exercised"),
        ('{"stretched_ops": 9, "added_ns": 5}', 1000, "not_in_effect"),
        ("", 2000, "not_in_effect"),
    ],
    ids=["stretched", "no operator", "put back by another", "not read"],
)
def test_evidence_of_a_pace(text: str, state: int, expected: str) -> None:
    plan = planned("host_pace", "h1", speed="50%")
    assert judged(plan, {"stretch_milli": state}, texts={("compute_stretched", "h1"): text}) == expected


@pytest.mark.parametrize(
    ("sent", "arrived", "expected"),
    [
        (500, 40, "in_effect"),
        (500, 0, "not_exercised"),
        (500, None, "not_exercised"),
        (0, 0, "not_in_effect"),
        (440, 440, "in_effect"),
        (300, 300, "not_in_effect"),
    ],
    ids=["arrived", "all lost", "not recorded", "nothing sent", "as asked for", "less than asked for"],
)
def test_evidence_of_load(sent: int, arrived: int | None, expected: str) -> None:
    plan = planned("host_load", "h1", to="h0", rate="30%")
    after = {"h1": {"UdpOutDatagrams": 7 + sent}, "h0": {} if arrived is None else {"UdpNoPorts": 2 + arrived}}
    samples = np.zeros(3, RECORD)
    samples["mono_ns"] = [1_000_000_000, 2_000_000_000, 4_000_000_000]
    # 300 packets of 1000 bytes a second, for 1 s and the last half second
    windows = ((1_500_000_000, 2_500_000_000), (3_500_000_000, 0))
    seen: dict[str, Any] = {"samples": samples, "windows": windows} | {
        "before": {"h1": {"UdpOutDatagrams": 7}, "h0": {"UdpNoPorts": 2}},
        "after": after,
    }
    rate = plan.changes[0].values["rate_bps"]
    assert judged(plan, {"sending": True, "rate_bps": rate}, **seen) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("nr_periods 9\nnr_throttled 2\nnr_throttled 1\n", "in_effect"), ("nr_throttled 0\n", "not_exercised"),
     ("", "not_exercised")],
    ids=["throttled", "never", "not read"],
)  # fmt: skip
def test_evidence_of_a_quota(text: str, expected: str) -> None:
    plan = planned("host_cpu", "h1", quota="50%")
    assert judged(plan, {"group": "there", "limit": "50000 100000"}, texts={("cpu_throttled", "h1"): text}) == expected
