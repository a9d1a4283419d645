"""What `genie report` prints for parsers: golden texts, and the structure of nccl-tests' and SuperBench's own files.

Their structures are written down here from their writers: nccl-tests 2.19 ``src/util.cu`` and a results-summary line of
SuperBench 0.12 (``superbench/runner/runner.py``; its own test data names numbers ``benchmark/metric[:rank]``).
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path

import pytest
from html_runs import compared, hostile, swept, three_arms
from rundir_maker import make_run

from genie.errors import ConfigError, GenieError
from genie.report import command
from genie.report.export import aba_markdown, run_json, run_markdown
from genie.report.export_nccl import nccl_json
from genie.report.export_superbench import summary_lines
from genie.results.compare import judge_and_store, load_judgement
from genie.track import headline

GOLDEN = Path(__file__).parent.parent / "golden" / "report"

NUMBER = (int, float)
NCCL_RUN = {"time": NUMBER, "alg_bw": NUMBER, "bus_bw": NUMBER, "nwrong": (int, float, type(None))}
NCCL = {
    "version": int,
    "start_time": str,
    "args": [str],
    "env": [str],
    "nccl_version": int,
    "config": {
        "nthreads": int, "ngpus": int, "minimum_bytes": int, "maximum_bytes": int, "step_bytes": int,
        "warmup_iters": int,
        "iterations": int, "aggregated_iterations": int, "validation": int, "graph": int, "blocking_collectives": str,
        "per_iter_timing": str, "per_iter_skip": int, "parallel_init": str,
        "devices": [{
            "rank": int, "group": int, "pid": int, "hostname": str, "device": int, "device_hex": str,
            "device_info": str,
        }],
    },
    "results": [{
        "size": int, "count": int, "type": str, "redop": str, "root": str, "out_of_place": NCCL_RUN,
        "in_place": NCCL_RUN,
        "actual_iterations": int, "experiment_name": str,
    }],
    "out_of_bounds": {"count": int, "okay": str},
    "average_bus_bandwidth": {"bandwidth": NUMBER, "okay": str},
    "end_time": str,
}  # fmt: skip
"""The keys in the order of the writer."""
SUPERBENCH_NAME = re.compile(r"[a-z-]+(:[A-Za-z0-9_.-]+)?/[a-z0-9_]+(:\d+)?")


def shaped(value, shape, where="$"):
    """`value` has exactly the keys and types of `shape`, in its order; a key ``genie`` may be anywhere."""
    if isinstance(shape, dict):
        assert [key for key in value if key != "genie"] == list(shape), where
        for key, inner in shape.items():
            shaped(value[key], inner, f"{where}.{key}")
    elif isinstance(shape, list):
        assert isinstance(value, list), where
        for i, inner in enumerate(value):
            shaped(inner, shape[0], f"{where}[{i}]")
    else:
        assert isinstance(value, shape), (where, value)


@pytest.fixture
def run(tmp_path):
    return compared(tmp_path)


def plain(text):
    """Without what differs from run to run."""
    text = re.sub(r"\d{8}-\d{6}-([\w.+-]+)-[0-9a-f]{4}", r"DATE-\1-HEX", text)
    text = re.sub(r'"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"', '"TIME"', text)
    return re.sub(r"\b[0-9a-f]{32}\b", "RUN_ID", text)


def rounded(value):
    """Six digits: what a sum of another order may change is no matter of these tests."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def check_golden(name, text):
    path = GOLDEN / name
    if os.environ.get("GENIE_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


# -- nccl-tests ---------------------------------------------------------------------------------------------------


def test_nccl_json_has_the_keys_of_its_writer_in_its_order(run):
    documents = [json.loads(line) for line in nccl_json(run, load_judgement(run)).splitlines()]
    assert len(documents) == 2
    for document in documents:
        shaped(document, NCCL)
        assert all(len(result["root"]) == 6 for result in document["results"])
        assert document["config"]["blocking_collectives"] in ("true", "false")
        assert document["genie"]["verdict"] == "inconclusive"


def test_golden_nccl_json(run):
    lines = nccl_json(run, load_judgement(run)).splitlines()
    text = "\n".join(json.dumps(rounded(json.loads(line)), indent=1) for line in lines) + "\n"
    check_golden("nccl.json", plain(text))


def test_nccl_json_says_what_the_table_says(run):
    from genie.report.nccl_table import nccl_table

    judgement = load_judgement(run)
    rows = [line.split() for line in nccl_table(judgement.metrics, run.plan).splitlines() if re.match(r" +\d", line)]
    results = [r for line in nccl_json(run, judgement).splitlines() for r in json.loads(line)["results"]]
    assert len(rows) == len(results)
    for row, result in zip(rows, results, strict=True):
        assert [int(row[0]), int(row[1]), row[2], row[3]] == [result[key] for key in ("size", "count", "type", "redop")]
        assert float(row[5]) == pytest.approx(result["out_of_place"]["time"], rel=1e-2)


# -- SuperBench ---------------------------------------------------------------------------------------------------


def test_a_superbench_line_is_flat_numbers_and_the_name_of_a_node(run):
    lines = [json.loads(line) for line in summary_lines(run, load_judgement(run)).splitlines()]
    assert [line["node"] for line in lines] == ["h0", "h1"]
    for line in lines:
        for name, value in line.items():
            if name != "node":
                assert SUPERBENCH_NAME.fullmatch(name), name
                assert isinstance(value, NUMBER)
                assert math.isfinite(value)
    assert all(line["genie/return_code"] == 0 for line in lines)


def test_golden_superbench(run):
    lines = summary_lines(run, load_judgement(run)).splitlines()
    check_golden("superbench.jsonl", "".join(json.dumps(rounded(json.loads(line))) + "\n" for line in lines))


def test_superbench_hears_of_an_invalid_run(tmp_path):
    run = make_run(tmp_path, busy=0.95)
    judge_and_store(run, runs_root=tmp_path)
    line = json.loads(summary_lines(run, load_judgement(run)).splitlines()[0])
    assert line["genie/return_code"] == 4
    assert line["nccl-bw:genie-world/return_code"] == 4


def test_no_name_from_outside_breaks_a_metric_name(tmp_path):
    run = hostile(tmp_path)
    for line in summary_lines(run, load_judgement(run)).splitlines():
        assert all(SUPERBENCH_NAME.fullmatch(name) for name in json.loads(line) if name != "node")


# -- JSON and Markdown --------------------------------------------------------------------------------------------


def test_json_has_the_numbers_of_mlflow_by_their_names(run):
    judgement = load_judgement(run)
    content = json.loads(run_json(run, judgement), parse_constant=pytest.fail)
    assert content["format"] == "genie-report"
    assert content["verdict"] == "inconclusive"
    assert content["numbers"] == {
        name: value for name, value in headline(judgement).items() if not name.startswith("at_a_glance/")
    }
    assert content["numbers"]["iteration_time_median_ms"] == 20
    assert content["faults"][0]["checks"][0]["found"] == "10 Mb/s"
    assert content["reproduce"] == run.manifest.reproduce


def test_golden_markdown(run):
    check_golden("run.md", plain(run_markdown(run, load_judgement(run))))


def test_golden_markdown_of_three_arms(tmp_path):
    check_golden("aba.md", aba_markdown(three_arms(tmp_path)))


def test_markdown_takes_hostile_names_as_they_are(tmp_path):
    run = hostile(tmp_path)
    text = run_markdown(run, load_judgement(run))
    assert "<script" not in text
    assert "&lt;script>" in text


# -- the command --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "show", "file", "log"),
    [
        (["run"], "", "", False),
        (["--log", "run"], "", "", True),
        (["run", "--html", "a.html"], "--html", "a.html", False),
        (["run", "--html=a.html", "--log"], "--html", "a.html", True),
        (["--html", "-", "run"], "--html", "-", False),
        (["run", "--superbench"], "--superbench", "", False),
        (["run", "--json", "--json"], "--json", "", False),
    ],
)
def test_words_of_the_command(words, show, file, log):
    assert command.parse(words) == command.Request(Path("run"), show, file, log)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--html"], "--html needs the name of a file"),
        (["run", "--html", "--log"], "--html needs the name of a file"),
        (["run", "--jsn"], "there is no option --jsn; did you mean '--json'?"),
        (["run", "--json", "--markdown"], "expected one way to show it, found --json and --markdown"),
        ([], "expected one run directory, found 0"),
        (["a", "b"], "expected one run directory, found 2"),
    ],
)
def test_mistakes_are_named(words, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        command.parse(words)


@pytest.mark.parametrize("show", ["--markdown", "--json", "--nccl-table", "--nccl-json", "--superbench"])
def test_each_form_goes_to_standard_output(run, capsys, show):
    assert command.run([str(run.path), show]) == 0
    assert capsys.readouterr().out.count("\n") > 1


def test_the_page_goes_to_a_file(run, tmp_path, capsys):
    file = tmp_path / "mail.html"
    assert command.run([str(run.path), "--html", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"wrote {file} (")
    assert "INCONCLUSIVE" in file.read_text()
    with pytest.raises(ConfigError, match="cannot write"):
        command.run([str(run.path), "--html", str(tmp_path / "no" / "such.html")])


@pytest.mark.parametrize("show", ["--html", "--markdown", "--json"])
def test_three_arms_in_each_form_they_have(tmp_path, capsys, show):
    folder = three_arms(tmp_path)
    words = [str(folder.path), show, *(["-"] if show == "--html" else [])]
    assert command.run(words) == 0
    assert "degraded" in capsys.readouterr().out.lower()


@pytest.mark.parametrize("show", ["--nccl-table", "--nccl-json", "--superbench"])
def test_three_arms_have_no_form_of_one_run(tmp_path, show):
    folder = three_arms(tmp_path)
    with pytest.raises(ConfigError, match="holds three runs") as caught:
        command.run([str(folder.path), show])
    assert f"/b {show}" in caught.value.hint


def test_a_sweep_has_a_page_and_its_table(tmp_path, capsys):
    folder = swept(tmp_path)
    assert command.run([str(folder), "--html", "-"]) == 0
    assert "sweep report" in capsys.readouterr().out
    (folder / "sweep.txt").write_text("the table\n")
    assert command.run([str(folder)]) == 0
    assert capsys.readouterr().out == "the table\n"
    with pytest.raises(ConfigError, match="a sweep has no --json"):
        command.run([str(folder), "--json"])


def test_a_run_that_was_never_measured_has_no_export(tmp_path):
    run = make_run(tmp_path)
    with pytest.raises(GenieError, match="was never measured"):
        command.run([str(run.path), "--json"])
