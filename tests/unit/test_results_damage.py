"""Run directories whose files were damaged by hand: a sentence that names the file, never a traceback."""

import pytest
from rundir_maker import make_run

from genie.errors import GenieError
from genie.results.compare import judge_and_store
from genie.results.metrics import measure


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        pytest.param("host.json", '{"cores": 2, "samples": [[1]]}', "expected 2 entries, found 1", id="a short sample"),
        pytest.param(
            "host.json", '{"cores": 2, "samples": [["x", 0.5]]}', "expected int, found 'x'", id="a word as time"
        ),
        pytest.param(
            "host.json", f'{{"cores": 2, "samples": [[{9 * 10**40}, 0.5]]}}', "at most 64 bits", id="a time past all"
        ),
        pytest.param("counters.json", '{"after": {}}', "the key 'before' is missing", id="no counters before"),
        pytest.param("counters.json", '{"before": 3, "after": {}}', "expected an object, found int", id="a number"),
        pytest.param(
            "counters.json", '{"before": {"h0": []}}', "expected an object, found list", id="a list of counters"
        ),
        pytest.param("counters.json", "[" * 200_000, "cannot be read", id="brackets"),
        pytest.param("plan.json", '{"a":' * 100_000, "cannot be read", id="braces"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, said):
    run = make_run(tmp_path)
    (run.path / name).write_text(content)
    with pytest.raises(GenieError, match=name) as refused:
        measure(run)
    assert said in str(refused.value)


def test_a_shaped_run_without_the_machines_load_is_invalid(tmp_path):
    run = make_run(tmp_path)
    (run.path / "host.json").unlink()
    judgement = judge_and_store(run, runs_root=tmp_path)
    assert judgement.verdict == "invalid"
    assert "load of this machine was not recorded" in judgement.why
