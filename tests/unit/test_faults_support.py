"""The table of real gear: what the document says is what the platform files say, and what the command prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from genie.faults.catalogue import list_text
from genie.faults.recipe import load_mechanism, roles
from genie.faults.support import GEAR, support_table, write_into

DOCUMENT = Path(__file__).parents[2] / "docs" / "real-gear.md"


def test_the_document_has_the_table_of_the_platform_files(tmp_path: Path) -> None:
    """To write it anew: python -c "from genie.faults.support import *; write_into(Path('docs/real-gear.md'))"."""
    if not DOCUMENT.exists():
        pytest.skip("not a checkout")
    copy = tmp_path / "real-gear.md"
    copy.write_text(DOCUMENT.read_text())
    write_into(copy)
    assert copy.read_text() == DOCUMENT.read_text()


def test_the_command_prints_the_same_rows() -> None:
    printed = [tuple(line.split()[:3]) for line in list_text(support=True).splitlines()[1:] if not line.startswith(" ")]
    assert printed == [(row.recipe, row.platform, row.tested) for row in support_table()]


def test_what_only_a_double_has_seen_says_so() -> None:
    real = [row for row in support_table() if row.platform in GEAR and row.platform != "linux"]
    assert {row.words for row in real} == {"tested against a stand-in, not on hardware"}
    assert {row.platform for row in real} == set(GEAR) - {"linux"}


def test_every_readme_of_a_role_with_real_gear_leads_to_the_document() -> None:
    for role in roles():
        mechanism = load_mechanism(role)
        if {"mlx5", "sonic", "infiniband"} & set(mechanism.platforms) and role in ("port_pfc", "port_speed"):
            assert "real-gear.md" in (mechanism.folder / "README.md").read_text(), role
