"""What the command line does around an experiment: order of calls, sweeps, failures, exit codes."""

import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import genie
from genie.cli import entry, main
from genie.errors import EnvironmentUnfit, RunInvalid
from genie.schema import ExperimentConfig


@dataclass
class Plan:
    config: ExperimentConfig

    def render(self) -> str:
        return f"the plan of {self.config.label}"


@dataclass
class Result:
    exit_code: int = 0


@dataclass
class Summary:
    text: str


@dataclass
class Story:
    """Stands for genie.experiment; ``failures`` maps a run's label to what it raises or returns."""

    failures: dict[str, Any] = field(default_factory=dict)
    planned: list[ExperimentConfig] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    swept: list[tuple[list[Any], Path]] = field(default_factory=list)

    def plan(self, config: ExperimentConfig) -> Plan:
        self.planned.append(config)
        return Plan(config)

    def run(self, plan: Plan, *, reproduce: str = "", parent: str = "") -> Result:
        self.lines.append((reproduce, parent))
        self.ran.append(plan.config.label)
        outcome = self.failures.get(plan.config.label, 0)
        if isinstance(outcome, signal.Signals):
            os.kill(os.getpid(), outcome)
        if isinstance(outcome, BaseException):
            raise outcome
        return Result(outcome)

    def finish_sweep(self, results: list[Any], directory: Path) -> Summary:
        self.swept.append((results, directory))
        return Summary(f"{len(results)} runs compared")


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Story:
    made = Story()
    monkeypatch.setitem(sys.modules, "genie.experiment", made)
    monkeypatch.setattr(genie, "experiment", made, raising=False)
    monkeypatch.chdir(tmp_path)
    return made


def test_plain_genie_runs_the_default_and_says_so(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert story.ran == ["healthy-moe"]
    assert "workload=moe (default)" in capsys.readouterr().out


def test_run_may_be_written(story: Story) -> None:
    assert main(["run", "workload=dp", "name=mine"]) == 0
    assert story.ran == ["mine"]
    assert story.lines == [("genie workload=dp name=mine", "")]


def test_dry_run_prints_the_plan_and_runs_nothing(
    story: Story, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["+fault=link_loss", "dry_run=true"]) == 0
    assert "the plan of link_loss-moe" in capsys.readouterr().out
    assert (story.ran, list(tmp_path.iterdir())) == ([], [])


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(1, 1), (RunInvalid("no mark was seen"), 4), (EnvironmentUnfit("no namespaces"), 3), (KeyError("a defect"), 4)],
)
def test_exit_codes(story: Story, outcome: Any, code: int) -> None:
    story.failures["healthy-moe"] = outcome
    assert main([]) == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_a_run_like_ctrl_c(story: Story, number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(sys, "argv", ["genie"])
    story.failures["healthy-moe"] = number
    try:
        with pytest.raises(SystemExit) as ended:
            entry()
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert ended.value.code == 130


def test_sweep_runs_all_and_compares(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "fault=[],link_loss,link_rate_10pct", "workload=moe,dp"]) == 0
    faults = ("healthy", "link_loss", "link_rate_10pct")
    assert story.ran == [f"{fault}-{workload}" for fault in faults for workload in ("moe", "dp")]
    ((results, directory),) = story.swept
    assert [r.exit_code for r in results] == [0] * 6
    assert directory.parent == Path("runs/sweeps")
    assert story.planned[3].run_dir == str(directory / "3-link_loss-dp")
    assert story.lines[3][0].startswith("genie fault=link_loss workload=dp ")
    assert story.lines[3][1] == str(directory)
    shown = capsys.readouterr().out
    assert "[4/6] genie fault=link_loss workload=dp" in shown
    assert shown.endswith("6 runs compared\n")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RunInvalid("no mark was seen", hint="look at the ports"), 4, "genie: no mark was seen\n  look at the ports\n"),
        (ZeroDivisionError("a defect"), 4, "ZeroDivisionError: a defect"),
    ],
    ids=["known", "defect"],
)
def test_a_failed_run_does_not_stop_a_sweep(
    story: Story, capsys: pytest.CaptureFixture[str], error: Exception, code: int, said: str
) -> None:
    story.failures["healthy-dp"] = error
    assert main(["-m", "workload=moe,dp,fsdp"]) == code
    assert story.ran == ["healthy-moe", "healthy-dp", "healthy-fsdp"]
    ((results, _),) = story.swept
    assert [r.error for r in results] == [None, error, None]
    assert said in capsys.readouterr().err


def test_multirun_by_hydras_own_key(story: Story) -> None:
    assert main(["hydra.mode=MULTIRUN", "workload=moe,dp"]) == 0
    assert story.ran == ["healthy-moe", "healthy-dp"]


def test_a_mistake_in_one_job_is_found_before_the_first_runs(story: Story, tmp_path: Path) -> None:
    assert main(["-m", "workload.layers=1,two"]) == 2
    assert (story.ran, list(tmp_path.iterdir())) == ([], [])


def test_interrupted_sweep_shows_what_it_has(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    story.failures["healthy-dp"] = KeyboardInterrupt()
    assert main(["-m", "workload=moe,dp,fsdp"]) == 130
    assert story.ran == ["healthy-moe", "healthy-dp"]
    assert len(story.swept[0][0]) == 1
    assert capsys.readouterr().out.endswith("1 runs compared\n")
