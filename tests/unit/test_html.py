"""The HTML report without a browser: what it says, what it never holds, its size, and that pictures are the numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import bisect_folders
import numpy as np
import pytest
from html_runs import EVIL, EVIL_HOST, compared, hostile, large, reason, swept, three_arms
from rundir_maker import IN_EFFECT, MS, T, make_run, plan, write_samples

from genie.errors import GenieError
from genie.report import html
from genie.report.html import (
    messages,
    ports,
    render_aba_report,
    render_bisect_report,
    render_report,
    render_sweep_report,
    series,
    write_report,
)
from genie.report.html.figure import Window, alone
from genie.report.html.heat import Shades, shades_of
from genie.report.html.material import read_baseline, read_material
from genie.report.html.page import figures
from genie.report.html.run import run_page
from genie.results.compare import judge_and_store
from genie.why.store import write_why

MAX_BYTES = 2_000_000
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Reader(HTMLParser):
    """Text, tags with attributes, and whether every tag is closed where it should be."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.words, self.open = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Reports of all kinds, by name."""
    root = tmp_path_factory.mktemp("runs")
    explained = compared(root / "why")
    write_why(explained, reason())
    made = {
        "compared": render_report(compared(root / "compared")),
        "why": render_report(explained),
        "hostile": render_report(hostile(root / "hostile")),
        "large": render_report(large(root / "large")),
        "aba": render_aba_report(three_arms(root / "aba")),
        "sweep": render_sweep_report(swept(root / "sweep")),
    }
    bisect_folders.components(root / "bisect", ["link leaf1-spine0"])
    bisect_folders.changes(root / "changes", {("topology.mtu=1500",): 1.3})
    made |= {kind: render_bisect_report(root / kind) for kind in ("bisect", "changes")}
    return {name: (text, Reader(text)) for name, text in made.items()}


KINDS = ("compared", "why", "hostile", "large", "aba", "sweep", "bisect", "changes")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_loaded_from_anywhere(pages, kind):
    text, read = pages[kind]
    for tag, attributes in read.tags:
        assert tag not in ("iframe", "object", "embed", "img", "base", "form")
        for name in ("src", "href", "action", "data", "srcset", "xlink:href"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:,")), (tag, value)
    assert "@import" not in text
    assert "url(" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_one_script_and_the_one_style_may_run(pages, kind):
    _, read = pages[kind]
    names = [tag for tag, _ in read.tags]
    assert names.count("script") == 1
    assert names.count("style") == 1
    policy = next(a["content"] for tag, a in read.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert all("style" not in attributes for _, attributes in read.tags)
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on")]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_small_enough_to_mail(pages, kind):
    assert len(pages[kind][0].encode()) <= MAX_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_every_chart_has_both_widths_and_a_table_behind_it(pages, kind):
    text, read = pages[kind]
    charts = [part.partition("</figure>")[0] for part in text.split("<figure")[1:]]
    assert charts
    for chart in charts:
        assert chart.count("<svg") == 2
        assert chart.count("<details>") == 1
        assert "<td>" in chart
        assert 'aria-label="' in chart
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    anchors = [a["href"][1:] for tag, a in read.tags if tag == "a"]
    assert set(anchors) <= set(ids)


@pytest.mark.parametrize("kind", ["compared", "why", "large"])
def test_every_chart_stands_alone_as_xml(tmp_path, kind):
    run = large(tmp_path, ranks=8) if kind == "large" else compared(tmp_path)
    if kind == "why":
        write_why(run, reason())
    shown = figures(run_page(run))
    assert len({figure.key for figure in shown}) == len(shown) >= 7
    for figure in shown:
        root = ElementTree.fromstring(alone(figure))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert figure.title in [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_hostile_names_are_shown_and_do_nothing(pages):
    text, read = pages["hostile"]
    assert EVIL not in text
    assert "<img" not in text
    assert EVIL in read.text
    assert EVIL_HOST in read.text
    assert all("onerror" not in attributes for _, attributes in read.tags)


@pytest.mark.parametrize(
    "sentence",
    [
        "INCONCLUSIVE",
        "genie workload=moe seed=1",
        "iteration, median of 11",
        "1.82x",
        "link_flap_short: in effect",
        "shaper of leaf0/spine0 at the end: expected 10 Mb/s, found 10 Mb/s",
        "2 of 11 iterations met its windows",
        "all_reduce",
        "6.12.0-test",
        "was not worked out at the end of this run",
        "Time between ranks against the healthy run",
    ],
)
def test_what_a_report_says(pages, sentence):
    assert sentence in pages["compared"][1].text


@pytest.mark.parametrize(
    "sentence",
    [
        "Look first at: link (grads)",
        "grads has about 10 % of its rate",
        "behind other traffic, or a link below its rate",
        "6 ms, 30%",
        "The critical path of iteration 3",
        "drains at a tenth",
    ],
)
def test_what_the_critical_path_says(pages, sentence):
    assert sentence in pages["why"][1].text


@pytest.mark.parametrize(
    "sentence",
    [
        "DEGRADED",
        "RECOVERED",
        "genie protocol=aba fault=link_rate_10pct",
        "baseline after",
        "b / a1",
        "Network in arm b",
    ],
)
def test_what_a_baseline_fault_baseline_says(pages, sentence):
    assert sentence in pages["aba"][1].text


@pytest.mark.parametrize(
    "sentence",
    [
        "MEASURED 7 measured of the runs",
        "genie -m fault=none,link_rate workload=moe,dp",
        "7 of 8",
        "1 run without a result: genie resume",
        "fault=link_rate / none 1.98x",
        "fault and workload together",
        "3-link_rate-dp",
    ],
)
def test_what_a_sweep_says(pages, sentence):
    assert sentence in pages["sweep"][1].text


def test_axes_have_units(tmp_path):
    for figure in figures(run_page(compared(tmp_path))):
        words = " ".join(re.findall(r"<text[^>]*>([^<]*)", figure.wide))
        if figure.key.startswith("pairs"):
            assert "an iteration" in words or "completion" in words or "times" in words
        else:
            assert re.search(r"\((ns|us|ms|s|B|KiB|share|packets)\)|times the healthy run|b/s", words), figure.key


def test_a_report_is_the_same_twice(tmp_path):
    run = compared(tmp_path)
    assert render_report(run) == render_report(run)


def test_it_is_written_into_the_run_directory(tmp_path):
    run = compared(tmp_path)
    assert write_report(run).read_text() == render_report(run)
    assert write_report(run) == run.path / "report.html"


# -- runs that are not whole --------------------------------------------------------------------------------------


def test_an_aborted_run_has_a_report(tmp_path):
    run = make_run(tmp_path, iteration_ms=(30, 20, 20))
    run.write_plan(replace(run.plan, iterations=12))
    run.mark_ended("aborted", "rank 1: stall")
    text = Reader(render_report(run)).text
    assert "INVALID" in text
    assert "aborted: rank 1: stall" in text
    assert "3 of 12 iterations were completed" in text


def test_a_run_without_a_measured_iteration_has_a_report(tmp_path):
    run = make_run(tmp_path, iteration_ms=(30,))
    text = Reader(render_report(run)).text
    assert "nothing is measured" in text
    assert "iteration, median of 0" in text


def test_a_run_that_goes_on_has_none(tmp_path):
    run = make_run(tmp_path)
    run._update(status="running")
    with pytest.raises(GenieError, match="running: there is no report"):
        render_report(run)


def test_a_run_without_ports_messages_or_load_says_so(tmp_path):
    run = make_run(tmp_path)
    run.ports_path.unlink()
    (run.path / "host.json").unlink()
    for rank in range(2):
        path = run.event_path(rank)
        raw = bytearray(path.read_bytes())
        for at in range(4096, len(raw), 64):
            if raw[at] in (2, 3):
                raw[at] = 5
        path.write_bytes(bytes(raw))
    text = Reader(render_report(run)).text
    assert "No message was recorded" in text
    assert "Ports were not sampled over time" in text


def test_what_goes_wrong_with_the_page_hides_no_result(tmp_path, monkeypatch):
    run = compared(tmp_path)
    assert html.write_or_say(run) == ""
    run.write_bytes("why.json", b"{")
    assert "why.json cannot be read" in html.write_or_say(run)
    monkeypatch.setattr(html, "run_page", lambda run: 1 / 0)
    assert html.write_or_say(run).startswith("no report.html: ZeroDivisionError: division by zero; once that is mended")


def no_clock(run):
    run.write_plan(plan(iterations=12, one_clock=False))


def no_sample(run):
    write_samples(run.ports_path, 2, [])


def one_sample(run):
    write_samples(run.ports_path, 2, [(5 * MS, 0, 0)])


def no_ports(run):
    run.write_plan(plan(iterations=12, ports=()))


def no_events(run):
    for rank in range(2):
        run.event_path(rank).unlink()


def no_counters(run):
    (run.path / "counters.json").unlink()


def never_applied(run):
    run.write_faults([replace(IN_EFFECT, windows=(), start_mono_ns=None, checks=())])


@pytest.mark.parametrize(
    "damage",
    [no_clock, no_sample, one_sample, no_ports, no_events, no_counters, never_applied],
    ids=lambda damage: damage.__name__,
)
def test_a_run_that_lacks_something_has_a_report(tmp_path, damage):
    run = make_run(tmp_path, faults=(IN_EFFECT,))
    damage(run)
    assert "Run it again" in Reader(render_report(run)).text


def test_a_damaged_why_is_named(tmp_path):
    run = compared(tmp_path)
    run.write_bytes("why.json", b"{")
    with pytest.raises(GenieError, match=r"why\.json cannot be read"):
        render_report(run)


def test_the_baseline_is_found_beside_the_run_and_only_if_it_is_the_one(tmp_path):
    run = compared(tmp_path)
    material = read_material(run)
    baseline = read_baseline(material)
    assert baseline is not None
    assert baseline.manifest.run_id == material.judgement.comparison.baseline_run_id
    (baseline.run.path / "manifest.json").unlink()
    assert read_baseline(material) is None
    assert "healthy run" in render_report(run)


# -- pictures are the numbers -------------------------------------------------------------------------------------


def test_windows_are_placed_on_the_clock_of_the_run(tmp_path):
    material = read_material(compared(tmp_path))
    assert material.windows == (
        Window("link_flap_short", 45e6, 55e6),
        Window("link_flap_short", 155e6, 168e6),
    )
    assert material.end_ns == 290e6


def test_windows_are_model_time_where_time_is_dilated(tmp_path):
    run = make_run(tmp_path, faults=(replace(IN_EFFECT, start_mono_ns=T + 50 * MS, end_mono_ns=None),))
    run.write_plan(plan(iterations=12, dilation=10.0, faults=({"name": "link_rate_10pct"},)))
    assert read_material(run).windows == (Window("link_rate_10pct", 5e6, None),)


def test_the_table_behind_the_iterations_has_each_of_them(tmp_path):
    figure = series.iterations(read_material(compared(tmp_path)), None)
    assert len(figure.table.rows) == 12
    assert figure.table.rows[0][0] == "0"
    assert figure.table.rows[0][-1] == "warm-up"
    assert [row[0] for row in figure.table.rows if "link_flap_short" in row[-1]] == ["1", "5"]
    assert figure.table.rows[5][2] == "40 ms"


def test_very_long_runs_are_drawn_in_groups_and_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr(series, "STEPS_MOST", 10)
    run = make_run(tmp_path, iteration_ms=[20] * 20 + [90] + [20] * 4)
    judge_and_store(run, runs_root=tmp_path)
    figure = series.iterations(read_material(run), None)
    assert "groups of 3" in figure.said[0]
    assert [row[0] for row in figure.table.rows[:2]] == ["0", "1 to 3"]
    assert ("19 to 21", "380 ms", "20 ms", "90 ms") in [row[:4] for row in figure.table.rows]


def test_messages_are_the_ones_that_were_measured(tmp_path):
    run = compared(tmp_path)
    material = read_material(run)
    drawn = messages.read_messages(material)
    counted = material.metrics.messages
    assert (len(drawn.ns), drawn.iterations, drawn.of, drawn.said) == (counted.count, 11, 11, "")
    assert float(drawn.ns.max()) == counted.max_ns


def test_of_many_messages_some_iterations_are_drawn_and_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(messages, "DRAWN_MOST", 8)
    drawn = messages.read_messages(read_material(compared(tmp_path)))
    assert drawn.iterations == 4
    assert drawn.said.startswith("Drawn from 4 of 11 measured iterations")


def test_pairs_are_medians_and_bytes_an_iteration():
    drawn = messages.Drawn(
        np.array([1.0, 3.0, 10.0, 20.0, 30.0, 7.0]), np.array([0, 0, 0, 1, 1, 1]), np.array([1, 1, 1, 0, 0, 0]),
        np.array([5.0, 5, 5, 2, 2, 2]), 3, 3, "receiver",
    )  # fmt: skip
    pairs = messages.pairs_of(drawn, 2)
    np.testing.assert_array_equal(pairs.median_ns, [[np.nan, 3], [20, np.nan]])
    np.testing.assert_array_equal(pairs.bytes, [[np.nan, 5], [2, np.nan]])


def test_many_ranks_share_cells():
    ranks = np.arange(129)
    drawn = messages.Drawn(ranks + 1.0, ranks, ranks, np.ones(129), 1, 1, "receiver")
    pairs = messages.pairs_of(drawn, 129)
    assert len(pairs.names) == 43
    assert pairs.names[:2] + pairs.names[-1:] == ("0-2", "3-5", "126-128")
    assert pairs.bytes[42, 42] == 3
    assert pairs.median_ns[0, 0] == 2


def test_ports_over_time_add_up_to_their_counters(tmp_path):
    run = large(tmp_path, ranks=8)
    material = read_material(run)
    found = ports.read_series(material)
    samples = run.ports().records
    last = samples[samples["port"] == 3]
    sent = np.nansum(found.rate_bps[3]) * found.slot_ns / 8e9
    assert sent == pytest.approx(float(last["tx_bytes"][-1] - last["tx_bytes"][0]))
    assert np.nansum(found.ce_marked) == 299 * len(material.plan.ports)
    assert np.nanmax(found.depth_bytes[3]) == last["backlog_bytes"].max()


def test_a_header_that_tells_of_too_many_ports_takes_no_memory_for_them(tmp_path):
    run = large(tmp_path, ranks=8)
    expected = ports.read_series(read_material(run))
    raw = bytearray(run.ports_path.read_bytes())
    raw[16:20] = b"\xff" * 4
    run.ports_path.write_bytes(raw)
    found = ports.read_series(read_material(run))
    np.testing.assert_array_equal(found.depth_bytes, expected.depth_bytes)


def test_counters_that_are_not_known_are_not_drawn(tmp_path):
    run = make_run(tmp_path)
    raw = bytearray(run.ports_path.read_bytes())
    for at in range(4096, len(raw), 64):
        raw[at + 48 : at + 56] = b"\xff" * 8
    run.ports_path.write_bytes(bytes(raw))
    judge_and_store(run, runs_root=tmp_path)
    material = read_material(run)
    found = ports.read_series(material)
    assert np.isnan(found.ce_marked).all()
    assert "CE marks" not in ports.queues(material, found).table.head


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 5.0, 10.0], Shades(0.0, 10.0)),
        ([8.0, 9.0, 10.0], Shades(8.0, 10.0)),
        ([1.0, 1000.0], Shades(1.0, 1000.0, logarithmic=True)),
        ([np.nan], Shades(0.0, 0.0)),
    ],
    ids=["from zero", "from the least", "logarithmic", "nothing"],
)
def test_shades(values, expected):
    assert shades_of(np.array(values)) == expected


def test_the_levels_of_shades_worked_out_by_hand():
    values = np.array([0.0, 1.2, 1.3, 10.0, np.nan, 99.0])
    assert Shades(0.0, 10.0).levels(values).tolist() == [0, 0, 1, 7, -1, 7]
    assert Shades(1.0, 256.0, logarithmic=True).levels(np.array([1.0, 2.0, 255.0, 0.0])).tolist() == [0, 1, 7, 0]
