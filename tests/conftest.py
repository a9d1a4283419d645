"""What tests of more than one folder share: a folder of nobody's own, and the sample of long tables.

A test marked ``sample(n)`` has more cases than every change can wait for. ``--sample SEED`` runs n of them (all, if
fewer were selected, so a case asked for by name always runs); without it all run. The same seed draws the same cases.
"""

import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest

NOBODY = 65534
TESTS = Path(__file__).resolve().parent

pytest_plugins = ["lab_fixtures"]

HOMES = {"netns": {"netns", "inventory", "e2e"}, "inventory": {"inventory"}, "lab": {"lab"}, "rdma": {"rdma"}}
"""Folders whose tests may have a mark: scripts/test looks for it there only."""


def pytest_addoption(parser):
    parser.addoption("--sample", metavar="SEED", help="of tests marked sample(n) run n cases, drawn by this seed")


def pytest_report_header(config):
    seed = config.getoption("--sample")
    return f"tests marked sample: a part of their cases, --sample {seed} draws the same" if seed else None


def pytest_itemcollected(item):
    if mark := stray_mark(item):
        homes = ", ".join(sorted(HOMES[mark]))
        raise pytest.UsageError(
            f"{item.nodeid} is marked {mark}: scripts/test looks for that in {homes} of tests/ only"
        )


@pytest.hookimpl(trylast=True)  # after -k and -m: what is drawn from is what was asked for
def pytest_collection_modifyitems(config, items):
    if not (seed := config.getoption("--sample")):
        return
    kept, left_out = drawn(items, seed)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def stray_mark(item):
    """A mark of a test for which scripts/test does not look in its folder; "" if there is none."""
    folder = item.path.relative_to(TESTS).parts[0]
    return next((mark for mark in HOMES if folder not in HOMES[mark] and item.get_closest_marker(mark)), "")


def drawn(items, seed):
    """Split tests into those that run and those that this seed leaves out; both in the order they came in."""
    tables = {}
    for item in items:
        if mark := item.get_closest_marker("sample"):
            tables.setdefault((str(item.path), item.originalname), (mark.args[0], []))[1].append(item)
    left_out = set()
    for (_, name), (count, cases) in tables.items():
        if len(cases) > count:
            random.Random(f"{seed} {name}").shuffle(cases)
            left_out.update(case.nodeid for case in cases[count:])
    return [i for i in items if i.nodeid not in left_out], [i for i in items if i.nodeid in left_out]


@pytest.fixture
def nobodys_folder():
    """A folder of the user nobody's own, for tests that root runs as somebody else. Root's folders stay closed."""
    if os.geteuid() != 0:
        pytest.skip("not root: every test here runs as a user already")
    folder = Path(tempfile.mkdtemp(prefix="genie-nobody-"))
    os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)
