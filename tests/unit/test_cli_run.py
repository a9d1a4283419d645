"""What the command line does around an experiment: order of calls, sweeps, failures, exit codes."""

import errno
import io
import os
import re
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import genie
from genie.argv import parse
from genie.cli import entry, main
from genie.errors import EnvironmentUnfit, GenieError, PlanError, RunInvalid
from genie.schema import ExperimentConfig
from genie.sweep import story as sweep_story
from genie.sweep.cells import alone


@dataclass
class Plan:
    config: ExperimentConfig

    prediction: Any = None
    time_dilation: float = 1.0
    iterations: int = 1
    faults: tuple[str, ...] = ()

    def render(self) -> str:
        return f"the plan of {self.config.label}"


@dataclass
class Result:
    exit_code: int = 0


@dataclass
class Summary:
    text: str
    exit_code: int


@dataclass
class Story:
    """Stands for genie.experiment; ``failures`` maps a run's label to what it raises or returns."""

    failures: dict[str, Any] = field(default_factory=dict)
    planned: list[ExperimentConfig] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    swept: list[tuple[list[Any], Path]] = field(default_factory=list)
    refused: dict[str, GenieError] = field(default_factory=dict)
    found_code: int = 0

    def plan(self, config: ExperimentConfig) -> Plan:
        self.planned.append(config)
        if config.label in self.refused:
            raise self.refused[config.label]
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

    def finish_sweep(self, results: list[Any], directory: Path, plan: Any, before: Any) -> Summary:
        self.swept.append((results, directory))
        return Summary(f"{len(results)} runs compared", self.found_code)


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
    [
        (1, 1),
        (RunInvalid("no mark was seen"), 4),
        (EnvironmentUnfit("no namespaces"), 3),
        (KeyError("a defect"), 4),
        (OSError(errno.ENOSPC, "No space left on device", "runs/x"), 3),
        (OSError(errno.EBADF, "Bad file descriptor"), 4),
    ],
    ids=["a verdict", "invalid", "unfit", "a defect", "a full disk", "a defect with files"],
)
def test_exit_codes(story: Story, outcome: Any, code: int) -> None:
    story.failures["healthy-moe"] = outcome
    assert main([]) == code


def test_a_full_disk_is_said_in_a_sentence(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    story.failures["healthy-moe"] = OSError(errno.ENOSPC, "No space left on device", "runs/x")
    assert main([]) == 3
    said = capsys.readouterr().err
    assert said.startswith("genie: runs/x: No space left on device\n  make room")
    assert "Traceback" not in said


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
    assert main(["-m", "fault=[],link_loss,link_rate_10pct", "workload=moe,dp", "sweep.order=given"]) == 0
    faults = ("healthy", "link_loss", "link_rate_10pct")
    assert story.ran == [f"{fault}-{workload}" for fault in faults for workload in ("moe", "dp")]
    ((results, directory),) = story.swept
    assert [r.exit_code for r in results] == [0] * 6
    assert directory.parent == Path("runs/sweeps")
    # All were planned once before, to know how long they will take.
    assert story.planned[9].run_dir == str(directory / "3-link_loss-dp")
    assert story.lines[3][0].startswith("genie fault=link_loss workload=dp ")
    assert story.lines[3][1] == str(directory)
    shown = capsys.readouterr().out
    assert "sweep over fault (3), workload (2): 6 cells × 1 = 6 runs\norder as given; about 12 s" in shown
    assert re.search(r"\[4/6\] about \d+ s left: genie fault=link_loss workload=dp", shown)
    assert shown.endswith("6 runs compared\n")


def test_a_run_that_failed_tells_nothing_of_the_time_left(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    story.failures["healthy-moe"] = RunInvalid("no mark was seen")
    assert main(["-m", "workload=moe,dp,fsdp", "sweep.order=given"]) == 4
    heads = re.findall(r"^\[\d/3\].* genie", capsys.readouterr().out, re.MULTILINE)
    assert heads[0] == "[1/3] genie"
    assert heads[1] == "[2/3] genie"
    assert re.fullmatch(r"\[3/3\] about \d+ s left: genie", heads[2])


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
    assert main(["-m", "workload=moe,dp,fsdp", "sweep.order=given"]) == code
    assert story.ran == ["healthy-moe", "healthy-dp", "healthy-fsdp"]
    ((results, _),) = story.swept
    assert [r.error for r in results] == [None, error, None]
    assert said in capsys.readouterr().err


def test_a_sweep_whose_output_nobody_reads_ends(story: Story, capfd: pytest.CaptureFixture[str]) -> None:
    story.failures["healthy-moe"] = BrokenPipeError()
    with pytest.raises(BrokenPipeError):
        sweep_story.run(parse(["-m", "workload=moe,dp", "sweep.order=given"]), [])
    assert story.ran == ["healthy-moe"]
    assert "Traceback" not in capfd.readouterr().err


def ended_by_rich() -> SystemExit:
    """What a Console raises where its write failed."""
    ended = SystemExit(1)
    ended.__context__ = BrokenPipeError()
    return ended


@pytest.mark.parametrize(
    ("words", "code"), [([], 141), (["-m", "seed=1,2"], 141), (["--version"], 0)], ids=["a run", "a sweep", "a text"]
)
@pytest.mark.parametrize("error", [BrokenPipeError(), ended_by_rich()], ids=["a print", "rich"])
def test_who_stops_reading_is_no_failed_verdict(
    words: list[str], code: int, error: BaseException, story: Story, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    story.failures.update({"healthy-moe": error})

    def broken(arguments: object) -> int:
        raise error

    monkeypatch.setattr("genie.cli._version", broken)
    kept = os.dup(1)
    try:
        with (tmp_path / "out").open("w") as out:
            monkeypatch.setattr(sys, "stdout", out)
            assert main(words) == code
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def test_a_resumed_sweep_of_which_the_rest_cannot_be_shows_what_there_is(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    story.refused["healthy-dp"] = PlanError("no host is left")
    assert main(["-m", "workload=moe,dp", "sweep.order=given"]) == 2
    ((_, directory),) = story.swept
    done = directory / "0-healthy-moe"
    done.mkdir()
    (done / "manifest.json").write_text('{"status": "finished"}')
    assert main(["resume", str(directory)]) == 2
    assert "1 runs compared" in capsys.readouterr().out.rpartition("1 of 2 runs")[2]


def test_many_cells_are_announced_before_they_are_checked(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "seed=range(0,31)", "sweep.order=shuffled"]) == 2
    assert capsys.readouterr().out == "checking 31 cells\n"


def test_multirun_by_hydras_own_key(story: Story) -> None:
    assert main(["hydra.mode=MULTIRUN", "workload=moe,dp", "sweep.order=given"]) == 0
    assert story.ran == ["healthy-moe", "healthy-dp"]


def test_a_mistake_in_one_job_is_found_before_the_first_runs(story: Story, tmp_path: Path) -> None:
    assert main(["-m", "workload.layers=1,two"]) == 2
    assert (story.ran, list(tmp_path.iterdir())) == ([], [])


def test_interrupted_sweep_shows_what_it_has(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    story.failures["healthy-dp"] = KeyboardInterrupt()
    assert main(["-m", "workload=moe,dp,fsdp", "sweep.order=given"]) == 130
    assert story.ran == ["healthy-moe", "healthy-dp"]
    assert len(story.swept[0][0]) == 1
    assert "1 runs compared\n2 runs are missing: genie resume runs/sweeps/" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("sweep.repeats=1,2", "sweep.repeats"),
        ("sweep.mode=product,zip", "sweep.mode"),
        ("dry_run=true,false", "dry_run"),
        ("yes=true,false", "yes"),
        ("out=a,b", "out"),
        ("run_dir=a,b", "run_dir"),
        ("tracking.mlflow.enabled=true,false", "tracking.mlflow.enabled"),
    ],
    ids=lambda value: str(value),
)
@pytest.mark.parametrize("sweeper", [[], ["hydra/sweeper=optuna"]], ids=["basic", "optuna"])
def test_what_is_about_the_whole_sweep_is_not_swept(
    word: str, key: str, sweeper: list[str], story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    if sweeper:
        pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    assert main(["-m", *sweeper, "workload=moe,dp", word]) == 2
    assert f"{key}: cannot be swept, it is about the sweep as a whole" in capsys.readouterr().err
    assert story.planned == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["seed=1,1"], "seed=1 is swept twice"),
        (["fault=none,[]", "workload=dp"], "fault=none is swept twice"),
        (["workload=dp,dp", "seed=3,3", "sweep.mode=zip"], "workload=dp seed=3 is swept twice"),
    ],
    ids=["one key", "two words for no fault", "zipped"],
)
def test_a_cell_is_not_swept_twice(
    words: list[str], said: str, story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", *words]) == 2
    assert f"{said}\n  sweep.repeats=N runs every cell N times" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-m", "seed=range(1,1e9)"], "seed: 'seed=range(1,1e9)' are more than 10000 values"),
        (
            ["-m", "seed=range(1,300)", "warmup=range(1,300)"],
            "89401 cells are more than 10000: 299 of seed × 299 of warmup",
        ),
        (["-m", "seed=interval(1,2)"], "'seed=interval(1,2)' has no values to go through"),
        (["-m", "seed=choice(1,2),3"], "seed: 'seed=choice(1,2),3' cannot be gone through"),
        (["--multirun=true", "seed=1"], "option --multirun takes no value, found '--multirun=true'"),
        (["sweep.repeats=3"], "sweep.repeats: is about a sweep, and this is a single run\n  put -m before it"),
    ],
    ids=["a range without end", "a product too large", "an interval", "two kinds of sweep", "a flag's value", "no -m"],
)
def test_what_is_no_sweep_is_named(
    words: list[str], said: str, story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err
    assert story.planned == []


def test_zipped_values_may_be_alike_in_one_key(story: Story) -> None:
    assert main(["-m", "workload=dp,dp", "seed=3,4", "sweep.mode=zip", "sweep.order=given"]) == 0
    assert [config.seed for config in story.planned[2:]] == [3, 4]


def test_the_mode_may_be_quoted_or_in_a_file(story: Story, tmp_path: Path) -> None:
    words = ["-m", "workload=moe,dp", "workload.iterations=3,5", "sweep.order=given"]
    assert main([*words, 'sweep.mode="zip"']) == 0
    assert len(story.ran) == 2
    own = tmp_path / "own" / "experiment"
    own.mkdir(parents=True)
    (own / "side.yaml").write_text("# @package _global_\nsweep:\n  mode: zip\n")
    assert main([*words, "experiment=side", f"--config-dir={own.parent}"]) == 0
    assert len(story.ran) == 4


def test_cells_that_cannot_be_planned_are_named_first(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    story.refused["healthy-dp"] = PlanError("no host is left")
    assert main(["-m", "workload=moe,dp", "sweep.order=given"]) == 2
    shown = capsys.readouterr().out
    assert "cannot run: workload=dp: no host is left" in shown.partition("[1/2]")[0]
    assert story.ran == ["healthy-moe"]


def test_a_sweep_of_which_nothing_can_be_planned_does_not_begin(story: Story, tmp_path: Path) -> None:
    story.refused["healthy-dp"] = PlanError("no host is left")
    assert main(["-m", "workload=dp", "seed=1,2"]) == 2
    assert (story.ran, list(tmp_path.iterdir())) == ([], [])


def test_a_dry_sweep_goes_on_after_a_cell_that_cannot_be(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    story.refused["healthy-moe"] = PlanError("no host is left")
    assert main(["-m", "workload=moe,dp", "dry_run=true"]) == 2
    said = capsys.readouterr()
    assert "genie: no host is left" in said.err
    assert "the plan of healthy-dp" in said.out


def test_a_folder_that_cannot_be_written_is_named(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    assert main(["-m", "seed=1,2", "out=file"]) == 2
    assert "cannot write the sweep's folder file/sweeps/" in capsys.readouterr().err
    assert story.ran == []


def test_what_runs_say_together_counts_for_the_exit_code(story: Story) -> None:
    story.found_code = 1
    assert main(["-m", "workload=moe,dp"]) == 1
    ((_, directory),) = story.swept
    for number in (0, 1):
        done = directory / f"{number}-x"
        done.mkdir()
        (done / "manifest.json").write_text('{"status": "finished"}')
    assert main(["resume", str(directory)]) == 1, "all was done before, and not all of it was well"


def test_one_sweep_is_run_by_one_process(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    story.failures["healthy-dp"] = KeyboardInterrupt()
    assert main(["-m", "workload=moe,dp", "sweep.order=given"]) == 130
    ((_, directory),) = story.swept
    story.ran.clear()
    with alone(directory):
        assert main(["resume", str(directory)]) == 2
    assert f"another process is at this sweep: it holds {directory}/sweep.json" in capsys.readouterr().err
    assert story.ran == []


def test_a_sweep_is_resumed_from_another_folder(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    story.failures["healthy-dp"] = KeyboardInterrupt()
    assert main(["-m", "workload=moe,dp", "sweep.order=given"]) == 130
    ((_, directory),) = story.swept
    story.failures.clear()
    monkeypatch.chdir(directory)
    assert main(["resume", "."]) == 0
    assert Path.cwd() == tmp_path
    assert story.planned[-1].run_dir == str(directory / "1-healthy-dp")
    assert main(["resume", str(directory)]) == 0


def test_a_sweep_from_a_folder_that_is_gone_is_not_resumed(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "seed=1,2"]) == 0
    ((_, directory),) = story.swept
    kept = directory / "sweep.json"
    kept.write_text(kept.read_text().replace(f'"{tmp_path}"', '"/nowhere"'))
    assert main(["resume", str(directory)]) == 2
    assert "the sweep was started in /nowhere" in capsys.readouterr().err


def test_a_random_order_follows_from_its_seed_and_keeps_blocks(story: Story) -> None:
    words = ["-m", "workload=moe,dp,fsdp", "sweep.repeats=4"]
    assert main([*words, "sweep.seed=7"]) == 0
    assert main([*words, "sweep.seed=7"]) == 0
    first, again = story.ran[:12], story.ran[12:]
    assert first == again
    blocks = [first[at : at + 3] for at in range(0, 12, 3)]
    assert all(sorted(block) == ["healthy-dp", "healthy-fsdp", "healthy-moe"] for block in blocks)
    assert len({tuple(block) for block in blocks}) > 1


def test_zipped_values_go_side_by_side(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "workload=moe,dp", "workload.iterations=3,5", "sweep.mode=zip", "sweep.order=given"]) == 0
    assert [(c.label, c.workload.iterations) for c in story.planned[2:]] == [("healthy-moe", 3), ("healthy-dp", 5)]
    assert main(["-m", "workload=moe,dp", "workload.iterations=3,4,5", "sweep.mode=zip"]) == 2
    said = "sweep.mode: zip takes the same number of values of each key: workload has 2, workload.iterations has 3"
    assert said in capsys.readouterr().err


def test_a_glob_sweeps_files(story: Story) -> None:
    assert main(["-m", "fault=glob(link_rate*)", "sweep.order=given", "workload=dp"]) == 0
    assert story.ran == ["link_rate-dp", "link_rate_10pct-dp", "link_rate_half-dp"]


def test_a_glob_that_matches_nothing_is_a_mistake(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "fault=glob(lnik*)"]) == 2
    assert "fault: 'fault=glob(lnik*)' matches nothing" in capsys.readouterr().err
    assert story.ran == []


def test_a_long_sweep_wants_to_be_told_so(story: Story, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["-m", "workload=moe,dp", "sweep.ask_above=1s"]
    assert main(words) == 2
    assert "the sweep will take longer than sweep.ask_above=1s" in capsys.readouterr().err
    assert (story.ran, list(tmp_path.iterdir())) == ([], [])
    assert main([*words, "yes=true"]) == 0
    assert len(story.ran) == 2


@pytest.mark.parametrize(
    ("answer", "runs"),
    [("y\n", 2), ("YES\n", 2), ("n\n", 0), ("\n", 0), ("", 0)],
    ids=["y", "yes", "n", "nothing", "the end of input"],
)
def test_who_is_asked_may_say_no(
    answer: str, runs: int, story: Story, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    said = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", said)
    assert main(["-m", "workload=moe,dp", "sweep.ask_above=1s"]) == 0
    assert len(story.ran) == runs
    assert said.getvalue() == "go on? [y/N] " + ("" if runs else "genie: nothing was run\n")
    assert "go on?" not in capsys.readouterr().out, "a redirected output would hide the question"


def test_a_dry_sweep_shows_every_plan(story: Story, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["-m", "workload=moe,dp", "dry_run=true"]) == 0
    shown = capsys.readouterr().out
    assert "2 cells × 1 = 2 runs" in shown
    assert "the plan of healthy-moe" in shown
    assert "the plan of healthy-dp" in shown
    assert (story.ran, list(tmp_path.iterdir())) == ([], [])


def test_resuming_runs_what_is_missing(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    story.failures["healthy-dp"] = KeyboardInterrupt()
    words = ["-m", "workload=moe,dp,fsdp", "sweep.order=given"]
    assert main(words) == 130
    ((_, directory),) = story.swept
    done = directory / "0-healthy-moe"
    done.mkdir()
    (done / "manifest.json").write_text('{"status": "finished"}')
    (directory / "1-healthy-dp").mkdir()
    story.failures.clear()
    story.ran.clear()
    assert main(["resume", str(directory)]) == 0
    assert story.ran == ["healthy-dp", "healthy-fsdp"]
    assert story.planned[-2].run_dir == str(directory / "1-healthy-dp.2"), "what the killed run left stays"
    assert "1 of 3 runs of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resume"], "the directory of a sweep is missing"),
        (["resume", "nowhere"], "'nowhere' is not a sweep: it has no sweep.json"),
        (["resume", "nowhere", "workload=dp"], "'workload=dp' cannot change a sweep that has begun"),
    ],
    ids=["no directory", "no sweep", "another sweep"],
)
def test_what_cannot_be_resumed(words: list[str], said: str, story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_a_sweep_whose_files_have_changed_is_not_resumed(
    story: Story, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = tmp_path / "own" / "workload"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("name: dp\nlayers: 2\n")
    story.failures["healthy-mine"] = KeyboardInterrupt()
    assert main(["-m", "--config-dir", str(own.parent), "workload=mine", "workload.ranks=2,4"]) == 130
    assert story.lines[0][0].startswith(f"genie --config-dir={own.parent} workload=mine ")
    (directory,) = Path("runs/sweeps").iterdir()
    assert capsys.readouterr().out.endswith(f"2 runs are missing: genie resume {directory}\n")
    (own / "mine.yaml").write_text("name: dp\nlayers: 3\n")
    assert main(["resume", str(directory)]) == 2
    assert "are others now: files of the configuration have changed since it began" in capsys.readouterr().err
    (own / "mine.yaml").unlink()
    assert main(["resume", str(directory)]) == 2
    assert "there is no workload 'mine'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2}',
        '{"version": 1, "cells": [], "slots": [{"number": 0, "cell": 3, "repeat": 0}]}',
        '{"version": 1, "cells": [], "slots": [{"number": Infinity, "cell": 0, "repeat": 0}]}',
    ],
    ids=["empty", "a list", "another version", "a run of no cell", "a number without end"],
)
def test_a_damaged_sweep_file_is_named(
    text: str, story: Story, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "sweep.json").write_text(text)
    assert main(["resume", str(tmp_path)]) == 2
    assert f"genie: {tmp_path}/sweep.json" in capsys.readouterr().err.replace("\n", "")
