"""What a plan refuses before anything is built, run or written."""

import gzip
import shutil
from pathlib import Path

import pytest

from genie.argv import parse
from genie.compose import compose
from genie.errors import ConfigError, EnvironmentUnfit, PlanError
from genie.plan import make_plan
from genie.schema import parse_config


def plan(*overrides: str):
    (composed,) = compose(parse(["experiment=quick", "fabric=loopback", *overrides]))
    return make_plan(parse_config(composed.mapping, composed.choices))


@pytest.mark.parametrize("baseline", ["nope", '""', "/etc"])
def test_a_baseline_that_is_no_run_is_refused_before_the_run(baseline):
    said = "baseline: expected auto, none, a run directory, or the name= of a run in .*, found"
    with pytest.raises(ConfigError, match=said):
        plan(f"baseline={baseline}")


def test_a_run_directory_that_is_taken_is_refused_before_the_run(tmp_path):
    (tmp_path / "notes").touch()
    for taken in (tmp_path, tmp_path / "notes"):
        with pytest.raises(ConfigError, match=r"run_dir: .* exists and is not an empty directory"):
            plan(f"run_dir={taken}")
    plan(f"run_dir={tmp_path / 'new'}")


def test_events_that_the_disk_cannot_hold_are_refused_before_the_run():
    with pytest.raises(PlanError, match=r"events of 1000000001 iterations need .*iB, .* has .*iB"):
        plan("workload.iterations=1000000000")


def test_a_congestion_control_that_the_kernel_lacks_is_named():
    with pytest.raises(EnvironmentUnfit, match=r"transport\.congestion_control: this kernel has no 'cubik'"):
        plan("transport.congestion_control=cubik")


TRACES = Path(__file__).parents[1] / "data" / "traces" / "genie_allgather4"


def replay_of(folder: Path, *overrides: str) -> str:
    (composed,) = compose(parse(["workload=chakra", f"workload.path={folder}", "fabric=loopback", *overrides]))
    return make_plan(parse_config(composed.mapping, composed.choices)).hashes["workload"]


def test_traces_are_the_same_workload_wherever_they_lie_and_another_where_they_changed(tmp_path, monkeypatch):
    shutil.copytree(TRACES, tmp_path / "one")
    shutil.copytree(TRACES, tmp_path / "two")
    first = replay_of(tmp_path / "one")
    assert replay_of(tmp_path / "two") == first
    monkeypatch.chdir(tmp_path)
    assert replay_of(Path("one")) == first
    packed = tmp_path / "two" / "ALL_GATHER.1.et"
    packed.write_bytes(gzip.compress(packed.read_bytes()))
    assert replay_of(tmp_path / "two") == first, "packed, not changed"
    swapped = [tmp_path / "one" / f"ALL_GATHER.{rank}.et" for rank in (0, 3)]
    contents = [path.read_bytes() for path in swapped]
    for path, content in zip(swapped, reversed(contents), strict=True):
        path.write_bytes(content)
    assert replay_of(tmp_path / "one") != first, "other ranks do it"
    (tmp_path / "two" / "comm_groups.json").write_text('{"1": [0, 1, 2, 3]}')
    assert replay_of(tmp_path / "two") != first, "communicators are part of the job"
    assert replay_of(tmp_path / "one", "workload.iterations=7") != replay_of(tmp_path / "one")
