"""The page of a bisect, and a search read again from its journal: ended, killed, stopped, still going on, damaged."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import bisect_folders
import pytest
from html_runs import EVIL

from genie.bisect import scene as scenes
from genie.bisect.journal import FILE_NAME as JOURNAL
from genie.bisect.journal import BisectJournal, read_journal
from genie.bisect.record import read_record
from genie.bisect.replay import read_search
from genie.cli import main
from genie.errors import ConfigError, GenieError, RunAborted
from genie.report.html import charts, render_bisect_report, write_report
from genie.report.html.bisect import way_of
from genie.report.html.netmap import suspicion, tiers
from genie.topology import LeafSpineConfig, RingConfig, SingleSwitchConfig, build


class Words(HTMLParser):
    """The text of a page, and its links."""

    def __init__(self, text):
        super().__init__()
        self.words, self.links, self.tags = [], [], []
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "a":
            self.links.append(dict(attrs)["href"])

    def handle_data(self, data):
        self.words.append(data)


def said(folder):
    return Words(render_bisect_report(folder)).text


def found(folder):
    bisect_folders.components(folder, ["link leaf1-spine0"])


def two(folder):
    bisect_folders.components(folder, ["nic h3", "switch spine1"], alarms=0.03)


def killed(folder):
    bisect_folders.components(folder, ["nic h5"], most=2)


def not_begun(folder):
    bisect_folders.components(folder, ["nic h5"], most=0)


def nothing(folder):
    bisect_folders.components(folder, [], alarms=0)


def unknown_ways(folder):
    scene = bisect_folders.scene_of_components(known=False)
    bisect_folders.components(folder, ["link leaf1-spine0"], scene=scene)


def one_change(folder):
    bisect_folders.changes(folder, {("topology.mtu=1500",): 1.3})


def two_together(folder):
    bisect_folders.changes(folder, {("topology.mtu=1500", "seed=7"): 1.3})


def changes_killed(folder):
    bisect_folders.changes(folder, {("topology.mtu=1500",): 1.3}, most=7)


def good_state_killed(folder):
    bisect_folders.changes(folder, {("topology.mtu=1500",): 1.3}, most=1)


SAID = {
    found: (
        "FOUND link leaf1-spine0 (leaf1-spine0 is slow or lossy both ways); confidence 98.3%",
        "6 of 6 measurements that touched it were bad",
        "41 of 42 measurements that touched no culprit were well",
        "genie topology.hosts=8 workload=pairs",
        "machine saturated, so what was slow counts less",
        "bisect.margin_ratio 0.06",
        "2026-09-21 14:13:20 UTC",
    ),
    two: ("nic h3", "switch spine1"),
    killed: (
        "INCONCLUSIVE the search has not ended: 2 probes made, about 3 left",
        "NOT ENDED",
        "it goes on with: genie bisect --resume",
        "Most suspected who chance link h5-leaf2 35.8 %",
    ),
    not_begun: ("0 probes made", "No probe was made yet"),
    nothing: ("NONE no component is guilty of anything that the probes could see",),
    unknown_ways: (" or h", "link leaf1-spine0"),
    one_change: (
        "FOUND topology.mtu=1500 (the change that makes it slow)",
        "6 of 6 runs that had it were bad",
        "2 topology.mtu=1500 guilty",
        "4 seed=7 cleared",
        "90.0 %, 98.8 %",
    ),
    two_together: ("changes that make it slow, only together", "guilty, only together: topology.mtu=1500 + seed=7"),
    changes_killed: (
        "at least one guilty change is among collective=ring and topology.mtu=1500",
        "4 seed=7 not known yet",
        "open",
    ),
    good_state_killed: ("1 run made; no set of the 4 changes is known to be bad yet",),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of each kind, made once; nobody writes into it."""
    folders = {}

    def of(make):
        if make not in folders:
            folders[make] = tmp_path_factory.mktemp("searches") / make.__name__
            make(folders[make])
        return folders[make]

    return of


@pytest.mark.parametrize(
    ("make", "sentence"),
    [(make, sentence) for make, sentences in SAID.items() for sentence in sentences],
    ids=lambda value: value.__name__ if callable(value) else value[:30],
)
def test_what_the_page_says(made, make, sentence):
    assert sentence in said(made(make))


@pytest.mark.parametrize("make", SAID, ids=lambda make: make.__name__)
def test_charts_are_whole_and_the_page_is_the_same_twice(made, make):
    folder = made(make)
    assert render_bisect_report(folder) == render_bisect_report(folder)
    for picture in charts(folder).values():
        assert ElementTree.fromstring(picture).tag.endswith("svg")


@pytest.mark.parametrize("make", [found, two, unknown_ways], ids=lambda make: make.__name__)
def test_what_was_believed_is_what_the_search_believed(made, make):
    folder = made(make)
    record = read_record(folder / "bisect.json")
    believed = read_search(folder).believed
    assert believed.standings[-1].confidence == pytest.approx(record.confidence, abs=1e-12)
    assert set(believed.standings[-1].leader) == {culprit.name for culprit in record.culprits}
    assert len(believed.standings) == len(believed.probes) + 1 == len(record.probes) + 1
    for standing in believed.standings:
        assert all(-1e-9 <= chance <= 1 + 1e-9 for chance in (standing.nobody, standing.confidence, *standing.chances))


def test_beliefs_of_a_search_cut_short_are_those_of_the_whole_until_then(tmp_path):
    found(tmp_path / "whole")
    bisect_folders.components(tmp_path / "part", ["link leaf1-spine0"], most=3)
    whole, part = (read_search(tmp_path / name).believed.standings for name in ("whole", "part"))
    assert part == whole[:4]


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path):
    folder = tmp_path / "search"
    killed(folder)
    before = render_bisect_report(folder)
    with (folder / JOURNAL).open("a") as file:
        file.write('{"event":"probe","num')
    assert render_bisect_report(folder) == before


def test_a_scene_comes_back_from_its_journal(tmp_path):
    for known in (True, False):
        scene = bisect_folders.scene_of_components(known=known)
        folder = tmp_path / str(known)
        folder.mkdir()
        with BisectJournal(folder, {}) as journal:
            scenes.keep(journal, scene)
        assert scenes.scene_of(read_journal(folder)[1], "") == scene


def test_a_search_does_not_go_on_where_flows_go_other_ways(tmp_path):
    killed(tmp_path / "search")
    words = {"words": ["topology.hosts=8"], "mode": "components"}
    with BisectJournal(tmp_path / "search", words) as journal:
        scenes.keep(journal, bisect_folders.scene_of_components())
        other = replace(bisect_folders.scene_of_components(), ground=bisect_folders.scene_of_components(seed=9).ground)
        with pytest.raises(ConfigError, match="flows go other ways"):
            scenes.keep(journal, other)
    assert sum(entry["event"] == "scene" for entry in read_journal(tmp_path / "search")[1]) == 1


def test_a_search_that_stopped_says_why(tmp_path):
    killed(tmp_path / "search")
    words = {"words": ["topology.hosts=8"], "mode": "components"}
    with pytest.raises(RunAborted), BisectJournal(tmp_path / "search", words):
        raise RunAborted("3 probes in a row failed")
    assert "the search has not ended (3 probes in a row failed): 2 probes made" in said(tmp_path / "search")


def test_a_search_that_a_process_is_at_says_so(tmp_path):
    killed(tmp_path / "search")
    with BisectJournal(tmp_path / "search", {"words": ["topology.hosts=8"], "mode": "components"}):
        text = said(tmp_path / "search")
    assert "STILL GOING ON" in text
    assert "--resume" not in text


def without_scene(folder):
    lines = (folder / JOURNAL).read_text().splitlines(keepends=True)
    (folder / JOURNAL).write_text("".join(line for line in lines if '"event":"scene"' not in line))


def test_a_search_from_before_there_were_scenes_has_its_statement(tmp_path):
    found(tmp_path / "search")
    without_scene(tmp_path / "search")
    text = said(tmp_path / "search")
    assert "FOUND link leaf1-spine0" in text
    assert "the journal does not say which ways flows went" in text
    assert "h4 → h2, h3 → h6" in text
    killed(tmp_path / "killed")
    without_scene(tmp_path / "killed")
    with pytest.raises(GenieError, match="does not say of what network"):
        render_bisect_report(tmp_path / "killed")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"event":"scene","mode"', '"event":"scene","mood"'),
        ('"flows":[[0,', '"flows":[["h0",'),
        ('"answers":[["', '"answers":[["nobody'),
        ('"suspects":[{"name"', '"suspects":[{"game"'),
    ],
)
def test_a_damaged_journal_is_named(tmp_path, old, new):
    killed(tmp_path / "search")
    text = (tmp_path / "search" / JOURNAL).read_text()
    assert old in text
    (tmp_path / "search" / JOURNAL).write_text(text.replace(old, new, 1))
    with pytest.raises(GenieError, match=r"journal|bisect\.jsonl"):
        render_bisect_report(tmp_path / "search")


def test_what_was_measured_does_nothing_on_the_page(tmp_path):
    found(tmp_path / "search")
    for name in (JOURNAL, "bisect.json"):
        text = (tmp_path / "search" / name).read_text()
        text = re.sub(r"\d+% of what its path allows", "EVIDENCE", text).replace("EVIDENCE", json.dumps(EVIL)[1:-1])
        (tmp_path / "search" / name).write_text(text)
    text = render_bisect_report(tmp_path / "search")
    assert EVIL not in text
    assert EVIL in Words(text).text
    assert Words(text).tags.count("script") == 1


# -- ways, links, the map -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [found, unknown_ways], ids=lambda make: make.__name__)
def test_every_way_goes_from_the_sender_to_the_receiver_by_cables(made, make):
    search = read_search(made(make))
    cables = {frozenset(cable.nodes) for cable in search.scene.cables}
    flows = [answer for probe in search.believed.probes for answer in probe.answers if ">" in answer.question.name]
    assert flows
    for answer in flows:
        ways = way_of(answer, search.scene).split(" or ")
        assert len(ways) == len(answer.question.ways)
        for way in ways:
            nodes = way.split(" → ")
            assert f"{nodes[0]}>{nodes[-1]}" == answer.question.name
            assert all(frozenset(pair) in cables for pair in pairwise(nodes))


def test_links_lead_to_the_probes_from_where_the_page_is(tmp_path):
    folder = tmp_path / "a search"
    found(folder)
    (folder / "probe-0").mkdir()
    (folder / "probe-1").mkdir()
    (folder / "probe-1" / "report.html").write_text("")
    beside = Words(write_report(folder).read_text()).links
    assert [link for link in beside if not link.startswith("#")] == ["probe-0", "probe-1/report.html"]
    elsewhere = Words(render_bisect_report(folder, tmp_path / "mail")).links
    assert "../a%20search/probe-1/report.html" in elsewhere


@pytest.mark.parametrize(
    ("topology", "sizes"),
    [
        (LeafSpineConfig(hosts=8, leaves=4, spines=2), [8, 4, 2]),
        (SingleSwitchConfig(hosts=5), [5, 1]),
        (RingConfig(hosts=4), None),
    ],
    ids=["leaf and spine", "one switch", "ring"],
)
def test_the_map_has_hosts_below_and_every_node_once(tmp_path, topology, sizes):
    made = build(topology)
    scene = bisect_folders.scene_of_components(made)
    rows = tiers(scene.roles, scene.cables)
    assert sizes is None or [len(row) for row in rows] == sizes
    assert sorted(name for row in rows for name in row) == sorted(node.name for node in made.nodes)
    bisect_folders.components(tmp_path / "search", ["nic h1"], scene=scene, most=2)
    assert "map" in charts(tmp_path / "search")


def test_the_map_is_shaded_where_the_guilty_is(made):
    search = read_search(made(found))
    shown = suspicion(search.scene, search.believed)
    shaded = {name for name, value in {**shown.boxes, **shown.halves}.items() if value > 0.5}
    assert shaded == {"leaf1/spine0", "spine0/leaf1"}


# -- the command --------------------------------------------------------------------------------------------------


def test_a_killed_search_is_reported_by_the_command(tmp_path, capsys):
    folder = tmp_path / "search"
    killed(folder)
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("INCONCLUSIVE  the search has not ended: 2 probes made")
    page = folder / "report.html"
    assert "NOT ENDED" in page.read_text()
    written = page.stat().st_mtime_ns
    assert main(["report", str(folder)]) == 0
    assert f"page       {page}" in capsys.readouterr().out
    assert page.stat().st_mtime_ns == written
    assert main(["report", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "unfinished"
    assert not (folder / "bisect.json").exists()


def test_other_ways_to_show_one(tmp_path, capsys):
    folder = tmp_path / "search"
    found(folder)
    assert main(["report", str(folder), "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("**FOUND**")
    assert main(["report", str(folder), "--html", str(tmp_path / "page.html")]) == 0
    assert "link leaf1-spine0" in (tmp_path / "page.html").read_text()
    assert main(["report", str(folder), "--nccl-table"]) == 2
