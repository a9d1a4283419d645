"""The sample of long tables: what a seed draws, and that nothing that was asked for by name is left out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MARK = pytest.mark.sample(3).mark


@dataclass(frozen=True)
class Item:
    """As much of a pytest item as is looked at."""

    originalname: str
    case: int
    mark: Any = None
    path: Path = Path("test_table.py")

    @property
    def nodeid(self):
        return f"{self.originalname}[{self.case}]"

    def get_closest_marker(self, name):
        return self.mark if name == "sample" else None


LONG = [Item("test_long", case, MARK) for case in range(20)]
SHORT = [Item("test_short", case) for case in range(5)]


@pytest.fixture
def drawn(request):
    return next(plugin.drawn for plugin in request.config.pluginmanager.get_plugins() if hasattr(plugin, "drawn"))


def test_a_seed_draws_some_cases_of_a_long_table_and_all_of_others(drawn):
    kept, left_out = drawn([*LONG, *SHORT], "1")
    assert len(kept) == 3 + 5
    assert kept[3:] == SHORT
    assert sorted(kept[:3] + left_out, key=lambda item: item.case) == LONG
    assert left_out == [item for item in LONG if item in left_out]


def test_the_same_seed_draws_the_same_and_another_seed_others(drawn):
    assert drawn(LONG, "1") == drawn(LONG, "1")
    assert len({tuple(item.case for item in drawn(LONG, str(seed))[0]) for seed in range(9)}) > 5


def test_cases_asked_for_by_name_all_run(drawn):
    assert drawn(LONG[4:7], "1") == (LONG[4:7], [])


@pytest.mark.parametrize(
    ("folder", "mark", "stray"),
    [
        ("netns", "netns", ""),
        ("unit", "netns", "netns"),
        ("rdma", "rdma", ""),
        ("lab", "rdma", "rdma"),
        ("unit", "", ""),
    ],
    ids=["at home", "a unit test", "RDMA", "RDMA in the plain lab's", "without a mark"],
)
def test_a_mark_is_refused_in_a_folder_where_no_stage_looks_for_it(request, folder, mark, stray):
    (conftest,) = (of for of in request.config.pluginmanager.get_plugins() if hasattr(of, "stray_mark"))

    class Marked(Item):
        def get_closest_marker(self, name):
            return MARK if name == mark else None

    assert conftest.stray_mark(Marked("test_it", 0, path=conftest.TESTS / folder / "test_it.py")) == stray
