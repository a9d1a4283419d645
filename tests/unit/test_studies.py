"""The studies: their closed forms, their files, and what they say of hand-made runs."""

from __future__ import annotations

import csv
import io
import itertools
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rundir_maker import make_run

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # experiments/ is no installed package

from experiments import __main__ as command  # noqa: E402
from experiments import closed, study  # noqa: E402
from experiments.ecmp.paths import fullest_over_mean, over_seeds  # noqa: E402
from experiments.study import BEGIN, END, Row, Telling, load, names, teller  # noqa: E402
from genie.argv import parse, split_sweep  # noqa: E402
from genie.compose import compose  # noqa: E402
from genie.errors import ConfigError, GenieError, RunInvalid  # noqa: E402
from genie.report.html.figure import Table  # noqa: E402
from genie.results.collectives import CollectiveRow  # noqa: E402
from genie.results.compare import Judgement  # noqa: E402
from genie.results.metrics import FabricTotals, IterationTimes, Metrics, PortTotals, WindowedTimes  # noqa: E402
from genie.results.rundir import RunDir  # noqa: E402
from genie.results.statistics import Estimate, median  # noqa: E402
from genie.schema import parse_config  # noqa: E402
from genie.sweep.cells import Cell, Slot, SweepPlan  # noqa: E402

MS = 1e6
SPELT = {"true": "True", "false": "False"}
SATURATED = "emulator saturated: the CPUs were 97% busy (limit 80%)"


def exactly(value: float) -> Estimate:
    return Estimate(value, value, value)


def metrics(each_ms, *, met=(), call_ms=(), size=262144, ports=(), fabric=None) -> Metrics:
    each = tuple(ms * MS for ms in each_ms)
    calls = tuple(ms * MS for ms in call_ms or each_ms)
    row = CollectiveRow("all_reduce", "", 8, size, 1, *[calls[0]] * 3, *[0.0] * 5, 0.0, 1.75, 0.0, calls)
    windows = (WindowedTimes("link_flap_long", tuple(met), None, None, None),) if met else ()
    times = IterationTimes(each, (), exactly(median(each)), exactly(sum(each) / len(each)), exactly(max(each)))
    return Metrics(
        world=8, iterations_done=len(each), warmup=0, dilation=1.0, one_clock=True, iteration=times,
        exposed_ns=each, compute_ns=each, exposed=None, compute=None, collectives=(row,), messages=None, ranks=(),
        straggler=None, fabric=fabric or FabricTotals(), ports=tuple(ports), cpu_busy_ratio=0.3, events_dropped=0,
        start_mono_ns=0, end_mono_ns=1, windowed=windows,
    )  # fmt: skip


def row(line, factors, found: Metrics | None, why=SATURATED, repeat=0) -> Row:
    verdict = "invalid" if found is None else "measured"
    judgement = Judgement(verdict, why, found or metrics((1, 1)), None)
    return Row(line, factors, repeat, verdict, why if found is None else "", judgement, 0.97 if found is None else 0.3)


def cells(name):
    """(line, factors) of every cell of a study, as Hydra would combine and write them."""
    for line, words in load(name).lines.items():
        swept = {key: split_sweep(value) for key, _, value in (word.partition("=") for word in words)}
        swept = {key: [SPELT.get(value, value) for value in values] for key, values in swept.items() if len(values) > 1}
        for chosen in itertools.product(*swept.values()):
            yield line, dict(zip(swept, chosen, strict=True))


# -- closed forms -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uplinks", "flows", "mean", "p95"),
    [
        (2, 1, 1.50, 2.0), (2, 4, 1.27, 1.75), (2, 16, 1.14, None),
        (4, 1, 2.12, 3.0), (4, 2, 1.77, None), (4, 4, 1.53, 2.0), (4, 8, 1.38, None), (4, 16, 1.26, 1.5),
        (8, 1, 2.60, 4.0), (8, 4, 1.76, 2.25), (8, 8, 1.53, None), (8, 16, 1.37, 1.62), (8, 32, 1.26, None),
    ],
)  # fmt: skip
def test_a_uniform_hash_fills_the_fullest_uplink_as_the_table_says(uplinks, flows, mean, p95):
    found, tail = closed.max_over_mean(flows, uplinks)
    assert found == pytest.approx(mean, abs=0.012)
    assert p95 is None or tail == pytest.approx(p95, abs=0.01)


def test_one_flow_on_one_uplink_is_even():
    assert closed.max_over_mean(3, 1) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("found", "expected_ms"),
    [
        pytest.param(closed.ring_all_reduce_ns(1_000_000, 8, 8e6), 1750, id="ring: 2·7/8 of a second a megabyte"),
        pytest.param(closed.all_to_all_ns(1_000_000, 8, 8e6), 875, id="all-to-all: all but the own block"),
        pytest.param(
            closed.binomial_all_reduce_ns(1_000_000, 8, 8e6), 6000, id="binomial: three vectors in, three out"
        ),
        pytest.param(closed.incast_ns(7, 1_000_000, 8e6), 7000, id="incast: seven senders"),
    ],
)
def test_times_by_hand(found, expected_ms):
    assert found == pytest.approx(expected_ms * MS)


@pytest.mark.parametrize(
    ("gone_ms", "stands_ms"), [(0, 0), (100, 200), (200, 200), (201, 600), (1000, 1400), (5000, 6200)]
)
def test_a_connection_stands_until_the_next_doubled_timeout(gone_ms, stands_ms):
    assert closed.stall_ns(gone_ms * MS) == pytest.approx(stands_ms * MS)


def test_what_has_no_closed_form_is_refused():
    with pytest.raises(ValueError, match="power of two"):
        closed.binomial_all_reduce_ns(1, 6, 1e6)
    with pytest.raises(ValueError, match="rate above 0"):
        closed.incast_ns(1, 1, 0)


# -- paths --------------------------------------------------------------------------------------------------------


def test_seeded_ports_spread_as_a_uniform_hash_does():
    # 60 values; the standard error of the mean is below 0.1
    assert over_seeds(range(1, 31), 1, 4)[0] == pytest.approx(2.12, abs=0.3)


def test_paths_of_seed_1_are_those_that_port_counters_showed():
    # bytes over leaf0's and leaf1's uplinks, MB: 2.8 5.6 0 2.8 and 0 2.9 8.4 0
    assert fullest_over_mean(1, 1, 4) == (2.0, 3.0)
    with pytest.raises(ValueError, match="1 to 16 channels"):
        fullest_over_mean(1, 17, 4)


# -- files --------------------------------------------------------------------------------------------------------


def test_the_studies_are_those_of_the_documentation():
    text = (ROOT / "docs/studies.md").read_text()
    assert len(names()) == 6
    for name in names():
        assert f"experiments/{name}/README.md" in text


@pytest.mark.parametrize("name", names())
def test_a_study_says_its_question_and_ends_with_its_command(name):
    text = (ROOT / "experiments" / name / "README.md").read_text()
    assert text.startswith(f"# {load(name).title}\n")
    assert text.count(BEGIN) == text.count(END) == 1
    assert text.rstrip().endswith(f"    experiments/run {name}")


@pytest.mark.parametrize("name", names())
def test_every_line_is_a_configuration(name):
    for words in load(name).lines.values():
        first = [f"{key}={split_sweep(value)[0]}" for key, _, value in (word.partition("=") for word in words)]
        (composed,) = compose(parse(first))
        assert parse_config(composed.mapping, composed.choices).transport.spin == "0"


def test_the_smallest_form_replaces_words_and_adds_none():
    whole, small = load("slow_link"), load("slow_link", smallest=True)
    assert small.word("ring", "workload.sizes") == "[256KiB]"
    for line in whole.lines:
        assert [w.partition("=")[0] for w in whole.lines[line]] == [w.partition("=")[0] for w in small.lines[line]]


def test_an_unknown_study_is_told_with_those_there_are(capsys, tmp_path):
    with pytest.raises(ConfigError, match="no study 'figure2'"):
        load("figure2")
    assert command.main(["figure2", "--out", str(tmp_path)]) == 2
    assert "studies: ecmp, ecn_off, figure1, incast, link_flap, slow_link" in capsys.readouterr().err


# -- what they say ------------------------------------------------------------------------------------------------


def test_a_place_that_cannot_be_written_is_named(capsys):
    assert command.main(["incast", "--out", "/proc/nothing"]) == 3
    assert "experiments/run: incast: /proc/nothing: " in capsys.readouterr().err


def test_the_try_that_finished_is_the_one_that_is_read(tmp_path):
    plan = SweepPlan((), str(tmp_path), 1, (Cell(0, "x", {}, ()),), (Slot(0, 0, 0),))
    plan.write(tmp_path / "sweep")
    for name, status in (("0-x", "aborted"), ("0-x.2", "finished"), ("0-x.3", "running")):
        run = make_run(tmp_path / "runs")
        shutil.copytree(run.path, tmp_path / "sweep" / name)
        RunDir(tmp_path / "sweep" / name)._update(status=status, name=name)
    (row,) = study.read("line", tmp_path / "sweep")
    assert row.run.path.name == "0-x.2"


@pytest.mark.parametrize("name", [name for name in names() if name != "ecmp"])
def test_runs_that_may_not_be_believed_give_no_number(name):
    rows = [row(line, factors, None) for line, factors in cells(name)]
    told = teller(name)(load(name), rows)
    assert told.figure is None
    assert len(told.table.rows) >= 4
    assert study.refusals(rows) == (f"Not used: {len(rows)} runs, emulator saturated.",)


def test_figure_1_tells_before_during_and_after():
    # 262144 B · 1.75 / 146.8 ms = 3.125 MB/s, the rate of 25 Mb/s
    full = 262144 * 1.75 / 3.125e6 * 1e3
    hurt = [full] * 3 + [2 * full] * 2 + [full] * 2
    rows = [
        row("healthy", {}, metrics([full] * 7)),
        row("degrading", {}, metrics(hurt, met=[False] * 3 + [True] * 2 + [False] * 2)),
    ]
    told = teller("figure1")(load("figure1"), rows)
    assert [(r[1], r[2], r[4], r[5]) for r in told.table.rows] == [
        ("7", "3.12", "100%", "3.12"), ("3", "3.12", "100%", "3.12"),
        ("2", "1.56", "50%", "1.56"), ("2", "3.12", "100%", "3.12"),
    ]  # fmt: skip
    assert "off by 100% there" in told.said[1]
    assert told.figure
    assert "nic_tx_throttle" in told.figure.wide


def test_a_slow_link_is_compared_with_its_closed_form():
    rows = []
    for line, factors in cells("slow_link"):
        if line.endswith("_healthy"):
            rows.append(row(line, factors, metrics((100, 100))))
            continue
        ratio = 2 if factors["fault.link_rate.parameters.rate"] == "50%" else 4
        off = 1.5 if line == "all_to_all" and ratio == 4 else 1.0
        rows.append(row(line, factors, metrics((100 * ratio * off, 100 * ratio * off))))
    told = teller("slow_link")(load("slow_link"), rows)
    assert told.said[0] == "6 of 8 slowdowns are within 10 % of the closed form."
    assert [sentence for sentence in told.said[1:] if "rank 7 at 0.25: 6.00x where" in sentence]
    by_form = {(r[0], r[1], r[2]): r[6] for r in told.table.rows}
    assert by_form["ring", "rank 7", "0.25"] == "4.00x"
    assert by_form["tree", "rank 0", "0.5"] == by_form["double_binary_tree", "rank 0", "0.5"] == "–"


def test_incast_says_where_it_leaves_the_closed_form():
    rows = []
    for line, factors in cells("incast"):
        senders = int(load("incast").word(line, "workload.ranks")) - 1
        form_ms = closed.incast_ns(senders, 65536, 25e6) / MS
        late = 3 if factors["topology.ecn"] == "False" and senders >= 16 else 1.02
        rows.append(
            row(
                line,
                factors,
                metrics(
                    [form_ms * late * 1.9, form_ms * late * 0.1], fabric=FabricTotals(drops=senders, retransmits=0)
                ),
            )
        )
    told = teller("incast")(load("incast"), rows)
    assert told.said == (
        "Marking on: within 10 % of N·S/B for every N that was measured.",
        "Marking off: more than 10 % above N·S/B at N = 16, 32.",
    )
    assert told.table.rows[0][:3] == ("2", "on", "41.9")


def test_a_flap_costs_what_its_iterations_took_longer():
    rows = []
    for line, factors in cells("link_flap"):
        gone_ms = {"100ms": 100, "300ms": 300, "1s": 1000, "2s": 2000, "5s": 5000}[
            factors["fault.link_flap_long.window.for"]
        ]
        stands = closed.stall_ns(gone_ms * MS) / MS + 10
        rows.append(row(line, factors, metrics([150, 150 + stands, 150, 150], met=[False, True, False, False])))
    told = teller("link_flap")(load("link_flap"), rows)
    assert told.said[0] == "The job stood for +0.01 to +0.01 s more than the closed form says."
    assert told.table.rows[0] == ("100 ms", "30s", "went on", "0.20", "0.21", "2.1x")


def test_ecn_off_compares_medians_and_tails():
    def of(factors, repeat, job):
        off = factors.get("fault") == "ecn_off"
        times = [100, 100, 130 if off and job == "moe" else 100]
        return metrics(times, fabric=FabricTotals(queue_p99_bytes=102400 if off else 51200, ce_marked=0, drops=repeat))

    rows = [
        row(line, factors, of(factors, repeat, line), repeat=repeat)
        for line, factors in cells("ecn_off")
        for repeat in (0, 1)
    ]
    told = teller("ecn_off")(load("ecn_off"), rows)
    assert told.said[0] == "moe, marking off: median iteration 1.00x, slowest 1.30x."
    assert told.said[2] == "dp, marking built without: median iteration 1.00x, slowest 1.00x."
    assert told.table.rows[1] == ("moe", "off", "2 of 2", "100", "130", "100", "0", "0", "–")


def test_ecmp_tells_of_computed_paths_and_counters(monkeypatch):
    from experiments.ecmp import study as ecmp

    monkeypatch.setattr(ecmp, "SEEDS", range(1, 4))
    sent = {"leaf0/spine0": 300, "leaf0/spine1": 100, "leaf0/spine2": 0, "leaf0/spine3": 0}
    ports = [PortTotals(name, size, 0, 0, None, None, None) for name, size in sent.items()]
    rows = [
        row(line, factors, metrics((700, 700), ports=ports) if factors["seed"] == "1" else None)
        for line, factors in cells("ecmp")
    ]
    told = ecmp.tell(load("ecmp"), rows)
    first = told.table.rows[0]
    assert (first[0], first[3], first[4], first[5], first[6]) == ("1", "2.50", "3.00", "1 of 3", "700")
    assert told.figure


# -- writing ------------------------------------------------------------------------------------------------------


def told(tmp_path, figure=True):
    from experiments.chart import Axis, Series, lines

    table = Table(("case", "ms"), (("a|b", "1.5"), ("c", "–")))
    points = ((1.0, 2.0), (2.0, 3.0)) if figure else ()
    drawn = lines(
        "k", "A & B", "", Axis("x"), Axis("y"), (Series("s", points), Series("f", ((1, 1),), closed=True)), table
    )
    return Telling(table, drawn, ("It shows something.",))


def test_results_replace_what_was_between_the_marks(tmp_path):
    (tmp_path / "README.md").write_text(f"# T\n\nwhy\n\n{BEGIN}\nold\n{END}\n\n    experiments/run t\n")
    rows = [row("a", {}, metrics((1, 1))), row("b", {}, None)]
    study.write(told(tmp_path), rows, tmp_path, new=False)
    text = (tmp_path / "README.md").read_text()
    assert "old" not in text
    assert text.startswith("# T\n\nwhy\n")
    assert text.endswith("    experiments/run t\n")
    assert "| a\\|b | 1.5 |" in text
    assert "1 of 2 runs may be believed; in those the CPU was busy for 30% to 30% of the time" in text
    assert "* Not used: 1 run, emulator saturated." in text
    assert list(csv.reader(io.StringIO((tmp_path / "table.csv").read_text()))) == [
        ["case", "ms"],
        ["a|b", "1.5"],
        ["c", ""],
    ]
    assert "A &amp; B" in (tmp_path / "figure.svg").read_text()


def test_nothing_is_written_where_no_run_may_be_believed(tmp_path):
    (tmp_path / "README.md").write_text("as it was")
    with pytest.raises(RunInvalid, match="nothing was written: Not used: 1 run, emulator saturated"):
        study.write(told(tmp_path, figure=False), [row("a", {}, None)], tmp_path, new=False)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    assert (tmp_path / "README.md").read_text() == "as it was"


def test_what_was_measured_before_is_not_replaced_by_what_was_not(tmp_path):
    (tmp_path / "README.md").write_text(f"{BEGIN}\n{END}\n")
    study.write(told(tmp_path), [row("a", {}, None)], tmp_path, new=False)  # what is computed needs no run
    study.write(told(tmp_path), [row("a", {}, metrics((1, 1)))], tmp_path, new=False)
    before = (tmp_path / "README.md").read_text()
    with pytest.raises(RunInvalid, match="nothing was written"):
        study.write(told(tmp_path), [row("a", {}, None)], tmp_path, new=False)
    assert (tmp_path / "README.md").read_text() == before


def test_a_readme_without_a_place_for_results_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("no marks")
    with pytest.raises(ConfigError, match="no place for results"):
        study.write(told(tmp_path), [row("a", {}, metrics((1, 1)))], tmp_path, new=False)


def test_the_state_of_the_machine_is_said_first():
    words = study.machine([row("a", {}, None)], datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
    assert words == "2026-01-02 03:04 UTC: 0 of 1 runs may be believed."


def test_a_line_that_genie_refuses_ends_the_study(tmp_path):
    bad = study.Study("x", "t", "q", {"only": ("-m", "workload=nothing")})
    with pytest.raises(GenieError, match="line 'only' of study x ended with code 2"):
        study.measure(bad, tmp_path / "out", lambda words: None)
