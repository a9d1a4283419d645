"""The HTML report as a person sees it in chromium: on a desk, on a phone, in the dark, on paper, without scripts."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import genie_command
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import bisect_folders
from html_runs import EVIL, compared, hostile, large, reason, swept, three_arms

from genie.report.html import render_aba_report, render_bisect_report, render_report, render_sweep_report
from genie.why.store import write_why

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
    pytest.mark.timeout(240),
]
WIDTHS = {"desk": 1280, "phone": 390}
SCHEMES = ("light", "dark")
KINDS = ("run", "hostile", "large", "aba", "sweep", "bisect", "changes")
FEW = {"sweep": 2, "bisect": 3, "changes": 1}
"""Charts of pages that have less than five."""
SAID = {
    "run": ["INCONCLUSIVE", "genie workload=moe seed=1", "1.82x", "link_flap_short: in effect", "Look first at: link"],
    "hostile": ["MEASURED", EVIL],
    "large": ["MEASURED", "64 of 192 ports", "Bytes between ranks"],
    "sweep": ["MEASURED", "7 of 8", "fault and workload together", "3-link_rate-dp"],
    "bisect": ["FOUND", "leaf1-spine0 is slow or lossy both ways", "genie bisect topology.hosts=8", "98.3 %"],
    "changes": ["FOUND", "topology.mtu=1500 (the change that makes it slow)", "98.8 %", "1.29x"],
    "aba": ["DEGRADED", "RECOVERED", "2.05x", "b: with the fault"],
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Files to open, by kind."""
    root = tmp_path_factory.mktemp("report")
    run = compared(root / "run")
    write_why(run, reason())
    texts = {
        "run": render_report(run),
        "hostile": render_report(hostile(root / "hostile")),
        "large": render_report(large(root / "large")),
        "aba": render_aba_report(three_arms(root / "aba")),
        "sweep": render_sweep_report(swept(root / "sweep")),
    }
    bisect_folders.components(root / "search", ["link leaf1-spine0"])
    bisect_folders.changes(root / "search-changes", {("topology.mtu=1500",): 1.3})
    texts["bisect"] = render_bisect_report(root / "search", root)
    texts["changes"] = render_bisect_report(root / "search-changes", root)
    for name, text in texts.items():
        (root / f"{name}.html").write_text(text)
    return root


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, pages):
    """Opens a report; at the end nothing may have been loaded, logged or thrown by any page."""
    wrong, contexts = [], []

    def opened(kind, *, width=1280, scheme="light", scripts=True):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=scripts
        )
        contexts.append(context)
        page = context.new_page()
        own = (pages / f"{kind}.html").as_uri()
        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        page.on(
            "request",
            lambda request: (
                None if request.url.split("#")[0] in (own, "data:,") else wrong.append(f"request: {request.url}")
            ),
        )
        page.goto(own)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


def picture(page, name):
    """Kept where GENIE_PICTURES says, for people to look at."""
    folder = os.environ.get("GENIE_PICTURES")
    if folder:
        page.screenshot(path=f"{folder}/report-{name}.png", full_page=True)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("place", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_can_be_read_everywhere(open_page, kind, place, scheme):
    page = open_page(kind, width=WIDTHS[place], scheme=scheme)
    picture(page, f"{kind}-{place}-{scheme}")
    text = page.locator("body").inner_text()
    for sentence in SAID[kind]:
        assert sentence in text
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[place]
    shown, hidden = (".wide", ".narrow") if place == "desk" else (".narrow", ".wide")
    charts = page.locator(f"figure {shown} svg")
    assert charts.count() >= FEW.get(kind, 5)
    for number in range(charts.count()):
        box = charts.nth(number).bounding_box()
        assert box["height"] > 60
        assert box["width"] <= WIDTHS[place]
    assert not page.locator(f"figure {hidden} svg").first.is_visible()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(15, 19, 24)")


@pytest.mark.parametrize("place", WIDTHS)
@pytest.mark.parametrize("kind", ["run", "aba", "sweep", "bisect", "changes"])
def test_words_in_charts_are_large_enough_and_inside(open_page, kind, place):
    page = open_page(kind, width=WIDTHS[place])
    outside = page.evaluate(
        """() => [...document.querySelectorAll("figure svg text")].filter(t => t.getClientRects().length).map(t => {
            const own = t.getBoundingClientRect(), svg = t.closest("svg").getBoundingClientRect();
            const size = parseFloat(getComputedStyle(t).fontSize) * svg.width / t.closest("svg").viewBox.baseVal.width;
            const out = own.left < svg.left - 1.5 || own.right > svg.right + 1.5 || own.bottom > svg.bottom + 1.5;
            return [t.textContent, size, out];
        }).filter(([, size, out]) => out || size < 10)"""
    )
    assert outside == []


def test_every_chart_has_ink(open_page):
    page = open_page("run")
    colours = page.evaluate(
        """() => [...document.querySelectorAll("figure .wide svg path, figure .wide svg rect")].map(
            p => getComputedStyle(p).fill + " " + getComputedStyle(p).stroke)"""
    )
    assert len(set(colours)) > 8
    assert not [colour for colour in colours if colour == "none none"]


def test_each_measurement_of_a_probe_is_a_click_away(open_page):
    page = open_page("bisect", width=390)
    page.get_by_text("probe-0: each of 8 measurements").click()
    row = page.locator("tr", has=page.get_by_text("BAD", exact=True)).first
    assert re.search(r"h\d → leaf\d → spine0 → leaf\d → h\d", row.inner_text())


def test_without_scripts_nothing_is_lost(open_page):
    page = open_page("run", scripts=False)
    text = page.locator("body").inner_text()
    for sentence in SAID["run"]:
        assert sentence in text
    page.locator("#iterations summary").click()
    assert page.locator("#iterations table").inner_text().count("link_flap_short") == 2


def test_the_pointer_shows_the_row_that_it_is_at(open_page):
    page = open_page("run")
    svg = page.locator("#iterations .wide svg")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5)
    tip = page.locator("#tip")
    tip.wait_for()
    assert re.search(r"iteration: \d+", tip.inner_text())
    assert "took: 20 ms" in tip.inner_text()
    page.mouse.move(4, 4)
    assert not tip.is_visible()


def test_the_pointer_reads_a_heat_map(open_page):
    page = open_page("large")
    svg = page.locator("#pairs-bytes .wide svg")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.3)
    page.locator("#tip").wait_for()
    assert re.fullmatch(r"\d+ → \d+\n1000 B", page.locator("#tip").inner_text())


@pytest.mark.parametrize("kind", KINDS)
def test_it_prints_on_paper(open_page, kind, tmp_path):
    page = open_page(kind, scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    assert page.locator("figure .wide svg").first.is_visible()
    file = Path(os.environ.get("GENIE_PICTURES", str(tmp_path))) / f"report-{kind}.pdf"
    page.pdf(path=str(file), format="A4")
    written = file.read_bytes()
    assert written.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", written)) <= 20


def test_names_from_outside_run_nothing(open_page):
    page = open_page("hostile")
    assert "owned" not in page.title().replace(EVIL, "")
    assert page.locator("script").count() == 1
    assert page.locator("img").count() == 0
    assert page.evaluate("document.title").startswith("MEASURED: ")


@pytest.mark.netns
def test_a_run_ends_with_a_page_that_opens(open_page, pages, tmp_path):
    done = genie_command.run(*genie_command.SMALL, "tracking.mlflow.enabled=false", cwd=tmp_path)
    (directory,) = genie_command.run_directories(tmp_path / "runs")
    assert (directory / "report.html").is_file(), done.stderr
    assert "report.html" in done.stdout
    shutil.copy(directory / "report.html", pages / "real.html")
    page = open_page("real")
    picture(page, "real")
    assert page.locator("figure .wide svg").count() >= 9
    text = page.locator("body").inner_text()
    for sentence in ("all_to_all", "leaf0/spine0", "What an iteration's time went to", "Where each rank's time goes"):
        assert sentence in text
