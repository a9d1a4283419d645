"""Which of several built executables is taken."""

import os
from pathlib import Path

import pytest

from genie.engine import binaries
from genie.errors import EnvironmentUnfit


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "genie").mkdir()
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(binaries, "_PACKAGE", tmp_path / "genie")
    monkeypatch.delenv(binaries.BIN_PATH_VARIABLE, raising=False)
    return tmp_path


def build(folder: Path, age_s: int) -> Path:
    folder.mkdir(parents=True)
    program = folder / "genie-agent"
    program.touch(mode=0o755)
    os.utime(program, (1_700_000_000 - age_s,) * 2)
    return program


def test_the_newest_build_that_is_not_instrumented(checkout: Path) -> None:
    build(checkout / "build" / "cp311", 20)
    newest = build(checkout / "build" / "native-release", 10)
    for name in ("native-asan", "native-tsan", "native-fuzz"):
        build(checkout / "build" / name, 0)
    assert binaries.find_binary("genie-agent") == newest


def test_the_wheels_own_comes_first(checkout: Path) -> None:
    build(checkout / "build" / "native-release", 0)
    own = build(checkout / "genie" / "bin", 100)
    assert binaries.find_binary("genie-agent") == own


def test_a_folder_of_the_environment_comes_before_all(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = build(checkout / "genie" / "bin", 0)
    asked = build(checkout / "build" / "native-asan", 100)
    monkeypatch.setenv(binaries.BIN_PATH_VARIABLE, f"{checkout / 'nowhere'}:{asked.parent}")
    assert binaries.find_binary("genie-agent") == asked
    asked.unlink()
    assert binaries.find_binary("genie-agent") == own


def test_missing_says_how_to_build(checkout: Path) -> None:
    build(checkout / "build" / "native-tsan", 0)
    with pytest.raises(EnvironmentUnfit, match="pip install -e"):
        binaries.find_binary("genie-agent")
