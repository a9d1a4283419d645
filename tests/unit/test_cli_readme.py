"""What README.md shows is true: its links lead somewhere and its commands compose; every page and recipe is listed."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from genie.argv import parse
from genie.cli import COMMANDS as CLI_COMMANDS
from genie.compose import compose, sweep_cells
from genie.help import summaries
from genie.paths import conf_dir
from genie.schema import DEFAULT_FILES, TOP_LEVEL_KEYS, parse_config

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = sorted(set(re.findall(r"^genie [^#\n|]+|(?<=`)genie [^`]+", README, re.M)))
SUB_COMMANDS = ({*CLI_COMMANDS} - {"run"}) | {"--help"}


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)\)|`(genie/[\w/]+\.py)`", README))))
def test_links_lead_somewhere(target: tuple[str, str]) -> None:
    assert (ROOT / (target[0] or target[1])).exists()


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.split()[1] not in SUB_COMMANDS])
def test_commands_compose(command: str) -> None:
    line = parse(shlex.split(command)[1:])
    for job in [cell for cell, _ in sweep_cells(line)] if line.multirun else compose(line):
        parse_config(job.mapping, job.choices)


@pytest.mark.parametrize("group", ["workload", "fault"])
def test_tables_name_what_exists(group: str) -> None:
    (table,) = re.findall(rf"\| {group} \|.*?\n\n", README, re.S)
    named = [n for row in table.strip().splitlines()[2:] for n in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert named
    assert set(named) <= set(summaries(group, [conf_dir()]))


def test_configuration_page_lists_every_choice_and_key() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    for group in (*DEFAULT_FILES, "experiment"):
        (row,) = re.findall(rf"^\| `{group}` \|.*", text, re.M)
        assert set(re.findall(r"`(\w+)`", row.split("|")[3])) == set(summaries(group, [conf_dir()]))
    for key in TOP_LEVEL_KEYS:
        assert f"| `{key}" in text


def test_the_index_has_every_page_and_every_link_leads_somewhere() -> None:
    pages = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    linked = set(re.findall(r"\]\((\w[\w-]*\.md)\)", pages["README.md"]))
    assert linked == set(pages) - {"README.md"}
    for name, text in pages.items():
        for target in re.findall(r"\]\(([^)#: ]+)(?:#[^)]*)?\)", text):
            assert (ROOT / "docs" / target).exists(), f"{name}: {target}"


def test_the_page_of_faults_has_a_line_for_every_recipe() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| \[?(\w+)\b", (ROOT / "docs" / "faults.md").read_text(), re.M))
    roles = {path.stem: yaml.safe_load(path.read_text())["role"] for path in (ROOT / "conf/fault").glob("*.yaml")}
    assert {name: rows.get(name) for name in roles} == roles


def test_the_fault_file_of_the_configuration_page_works(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    workload, fault = re.findall(r"```yaml\n(.*?)```", text, re.S)
    for name, content in (("workload/gpt", workload), ("fault/slow_spine", fault)):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir()
        path.write_text(content)
    (job,) = compose(parse(["--config-dir", str(tmp_path), "workload=gpt", "fault=slow_spine"]))
    config = parse_config(job.mapping, job.choices)
    assert (config.workload.layers, list(config.fault)) == (24, ["slow_spine"])


def test_make_commands_exist() -> None:
    for target in re.findall(r"^make (\w+)", README, re.M):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)
