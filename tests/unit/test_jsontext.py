"""Text that is no JSON is one kind of damage, however deep its brackets are, for all who read files of a run."""

from pathlib import Path

import pytest

from genie import jsontext
from genie.errors import ConfigError, GenieError
from genie.fabric import inventory
from genie.results.rundir import parse_config_yaml
from genie.sweep import cells

DEEP = "[" * 100_000


@pytest.mark.parametrize("text", ["", "{", DEEP, b"\xff", "nul"], ids=["empty", "cut", "deep", "bytes", "word"])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        jsontext.parse(text)


def test_what_is_json_is_read() -> None:
    assert jsontext.parse(b'{"a": [1, null]}') == {"a": [1, None]}


def test_a_sweep_of_nested_brackets_is_named(tmp_path: Path) -> None:
    (tmp_path / cells.FILE_NAME).write_text(DEEP)
    with pytest.raises(ConfigError, match=r"cannot be read as a sweep: .*nested too deeply"):
        cells.read_plan(tmp_path)


def test_a_configuration_of_nested_brackets_is_named() -> None:
    with pytest.raises(GenieError, match=r"here/config.yaml is not valid YAML: brackets are nested too deeply"):
        parse_config_yaml(DEEP, Path("here/config.yaml"))


@pytest.mark.parametrize("manifest", ["[]", DEEP, '{"run_id": 7}'], ids=["list", "deep", "number"])
def test_a_damaged_manifest_gives_a_fabric_an_id_of_its_own(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    assert len(inventory._run_id(tmp_path)) == 32
