"""``genie why`` as people and programs read it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from why_maker import Job, call, compute, leaf_spine, payload

from genie import cli
from genie.errors import ConfigError, GenieError
from genie.why.command import run as why_command
from genie.why.difference import compare
from genie.why.explain import explain
from genie.why.records import CAUSES
from genie.why.store import FILE_NAME, explain_and_store, explain_or_say, load_why

GOLDEN = Path(__file__).parents[1] / "golden" / "why"


def golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("GENIE_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def job(*, slow_ms: float = 0.0, stretch_ms: float = 0.0) -> Job:
    """Four hosts under two leaves: each computes 10 ms (host 3 more), then sends 4 ms of bytes to the next; what goes
    to rank 2 takes ``slow_ms`` longer, and its port's queue empties at a third of its rate then.
    """
    ops = [[compute("forward", 10), call("grads", 0, comm="dp")] for _ in range(4)]
    made = leaf_spine(4, operators=ops, comms={"dp": (0, 1, 2, 3)}, spines=1)
    for iteration in (0, 1):
        begin = iteration * (14 + slow_ms + stretch_ms)
        start = [begin + 10 + (stretch_ms if rank == 3 else 0) for rank in range(4)]
        ends = [0.0] * 4
        for rank in range(4):
            peer = (rank + 1) % 4
            took = 4 + (slow_ms if peer == 2 else 0)
            ends[peer] = max(start[peer], start[rank] + took)
            made.message(rank, peer, 0, (start[rank], start[rank], start[rank] + 1, start[rank] + took), payload(4),
                         iteration=iteration)  # fmt: skip
        for rank in range(4):
            made.op(rank, 0, begin, begin, start[rank], iteration=iteration)
            made.op(rank, 1, start[rank], start[rank], ends[rank], iteration=iteration)
            made.iteration(rank, begin, ends[rank], iteration)
    if slow_ms:
        port = made.links.index(("h2", "leaf1")) * 2 + 1
        made.samples = [(10 + k, port, 9000, round(k * 10_000 / 3)) for k in range(30)]
    return made


def test_a_slow_link_as_people_read_it(tmp_path: Path) -> None:
    job(slow_ms=8).write(tmp_path / "slow")
    golden("slow_link.txt", why_command([str(tmp_path / "slow")]))


def test_a_slow_host_as_people_read_it(tmp_path: Path) -> None:
    job(stretch_ms=5).write(tmp_path / "stretched")
    golden("slow_host.txt", why_command([str(tmp_path / "stretched")]))


def test_a_slow_host_does_not_hide_a_slow_link(tmp_path: Path) -> None:
    why = explain(job(slow_ms=8, stretch_ms=5).write(tmp_path / "both"))
    assert (why.suspect.kind, why.suspect.names) == ("link", ("leaf1/h2",))
    assert "Besides, host h3: compute takes 1.50 times its plan" in why.suspect.text


def test_a_healthy_run_as_people_read_it(tmp_path: Path) -> None:
    job().write(tmp_path / "healthy")
    golden("healthy.txt", why_command([str(tmp_path / "healthy")]))


def test_a_difference_as_people_read_it(tmp_path: Path) -> None:
    job().write(tmp_path / "healthy")
    job(slow_ms=8).write(tmp_path / "slow")
    text = why_command([str(tmp_path / "slow"), "--against", str(tmp_path / "healthy")])
    golden("difference.txt", text)


def test_a_difference_for_programs_adds_up(tmp_path: Path) -> None:
    job().write(tmp_path / "healthy")
    job(slow_ms=8, stretch_ms=2).write(tmp_path / "slow")
    text = why_command([str(tmp_path / "slow"), f"--against={tmp_path / 'healthy'}", "--json"])
    found = json.loads(text)
    assert (found["format"], found["version"]) == ("genie-why-difference", 1)
    whole = found["after_ns"] - found["before_ns"]
    assert whole == pytest.approx(9e6)
    for kind in ("causes", "operators", "comms", "pairs", "links", "ranks"):
        assert sum(row["delta_ns"] for row in found[kind]) == pytest.approx(whole, abs=5), kind
        assert sum(row["ratio"] for row in found[kind]) == pytest.approx(1, abs=1e-6), kind


def test_the_same_run_twice_has_no_difference(tmp_path: Path) -> None:
    why = explain(job().write(tmp_path / "run"))
    found = compare(why, why, before_name="a", after_name="a")
    assert "no difference to speak of" in found.verdict
    assert {row.ratio for row in found.causes} == {None}
    text = why_command([str(tmp_path / "run"), "--against", str(tmp_path / "run")])
    assert "0 more" not in text


def test_why_json_holds_everything(tmp_path: Path) -> None:
    run = job(slow_ms=8).write(tmp_path / "run")
    assert load_why(run) is None
    printed = json.loads(why_command([str(tmp_path / "run"), "--json"]))
    stored = json.loads((tmp_path / "run" / FILE_NAME).read_text())
    assert printed == stored
    assert stored["format"] == "genie-why"
    assert load_why(run) == explain(run)
    assert {share["name"] for share in stored["causes"]} <= set(CAUSES)


def test_a_damaged_why_json_is_named(tmp_path: Path) -> None:
    run = job().write(tmp_path / "run")
    (tmp_path / "run" / FILE_NAME).write_text("{")
    with pytest.raises(GenieError, match=r"why\.json cannot be read"):
        load_why(run)
    (tmp_path / "run" / FILE_NAME).write_text('{"format": "genie-why", "version": 9}')
    with pytest.raises(GenieError, match="expected format genie-why version 1"):
        load_why(run)
    assert explain_and_store(run) is not None
    assert load_why(run) is not None


def test_a_run_that_cannot_be_explained_says_so_in_its_diary(tmp_path: Path) -> None:
    made = replace(job(), warmup=2)
    run = made.write(tmp_path / "run")
    assert explain_and_store(run) is None
    assert not (tmp_path / "run" / FILE_NAME).exists()
    line = json.loads((tmp_path / "run" / "journal.jsonl").read_text().splitlines()[-1])
    assert line["event"] == "not explained"
    assert "warm-up" in line["reason"]


def test_a_defect_costs_a_run_nothing_but_its_explanation(tmp_path: Path, monkeypatch) -> None:
    run = job().write(tmp_path / "run")
    assert explain_or_say(run) == ""

    def broken(run: object) -> None:
        raise ZeroDivisionError("three apples among none")

    monkeypatch.setattr("genie.why.store.explain", broken)
    assert "no why.json: ZeroDivisionError: three apples among none; genie why" in explain_or_say(run)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param([], "expected one run directory, found 0", id="nothing"),
        pytest.param(["a", "b"], "expected one run directory, found 2", id="two"),
        pytest.param(["nowhere"], "'nowhere' is not a run directory", id="no run"),
        pytest.param(["RUN", "--against"], "--against needs a run directory", id="against nothing"),
        pytest.param(["RUN", "--against", "--json"], "--against needs a run directory", id="against an option"),
        pytest.param(["RUN", "--against", "nowhere"], "'nowhere' is not a run directory", id="against no run"),
        pytest.param(["RUN", "--yaml"], "there is no option --yaml", id="another option"),
        pytest.param(["ABA"], "holds three runs", id="a folder of three arms"),
        pytest.param(["RUNS"], "holds 1 run\n  genie why .*/run", id="a folder of runs"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, arguments, words) -> None:
    job().write(tmp_path / "run")
    (tmp_path / "aba").mkdir()
    (tmp_path / "aba" / "aba.json").write_text("{}")
    places = {"RUN": str(tmp_path / "run"), "ABA": str(tmp_path / "aba"), "RUNS": str(tmp_path)}
    given = [places.get(word, word) for word in arguments]
    with pytest.raises(ConfigError, match=words):
        why_command(given)


def test_the_command_line_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job(stretch_ms=5).write(tmp_path / "run")
    assert cli.main(["why", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("run: host h3: compute takes 1.50 times its plan")
    assert cli.main(["why", "--help"]) == 0
    assert "usage: genie why" in capsys.readouterr().out
    assert cli.main(["why"]) == 2
