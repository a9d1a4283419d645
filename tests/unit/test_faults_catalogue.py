"""``genie faults list`` and ``genie faults show``: golden texts over two roles of their own, so that no recipe of
GENIE's changes them, and that every recipe that there is can be shown. GENIE_UPDATE_GOLDEN=1 rewrites them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from genie import paths
from genie.cli import main
from genie.errors import ConfigError
from genie.faults import catalogue
from genie.faults.change import render_word

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "faults"
FILES = {
    "conf/fault/slow_uplink.yaml": (
        "# @package fault.slow_uplink\n# One uplink of a leaf runs at a tenth of its rate for a while\n"
        "role: example_rate\ntargets: [tier=fabric]\ncount: 1\nends: up\nparameters:\n  rate: 10%\n"
        "window:\n  at: 2s\n  for: 3s\n"
    ),
    "conf/fault/hot_host.yaml": "# @package fault.hot_host\nrole: example_heat\ntargets: [h98, h99]\nfraction: 0.5\n",
    "faults/example_rate/mechanism.yml": (
        "summary: A port runs at another rate\nhypothesis: >-\n  Steps take longer by the inverse of the rate\n"
        "risk: low\nacts_on: link\nchanges: shaper\nrequires: [shaping]\nparameters:\n  rate:\n    kind: rate\n"
        "    help: share of the port's own rate\nevidence: [rate_capped]\n"
    ),
    "faults/example_rate/platforms/linux.yml": (
        "support: embedded\nread: {argv: [tc, qdisc, show, dev, '{{ port.interface }}'], parse: root_qdisc}\n"
        "do: [[tc, qdisc, change, dev, '{{ port.interface }}', rate, '{{ port.rate_bps }}bit']]\n"
        "undo: [[tc, qdisc, change, dev, '{{ port.interface }}', rate, '{{ found.rate_bps }}bit']]\n"
    ),
    "faults/example_rate/platforms/sonic.yml": (
        "support: stand-in\nrisk: high\nnote: needs the port's own profile\n"
        "read: {argv: [sonic-db-cli, CONFIG_DB, hgetall, '{{ port.interface }}'], parse: fields}\n"
        "do: [[config, interface, speed, '{{ port.interface }}', '{{ port.rate_bps }}']]\n"
        "undo: [[config, interface, speed, '{{ port.interface }}', '{{ found.speed }}']]\n"
    ),
    "faults/example_rate/README.md": (
        "# example_rate: a port runs at\nanother rate\n\n**Symptom.** A ring runs at the rate of its *slowest* link,\n"
        "see `tc-tbf(8)` and [the kernel](https://kernel.org).\n\n- one\n- two, which is\n  longer\n\n"
        "| a | b |\n|---|---|\n\n    code  stays\n\n```sh\ngenie  run\n\nagain\n```\n\nEnd of a_b*c*d.\n"
    ),
    "faults/example_heat/mechanism.yml": (
        "summary: A host computes more slowly\nhypothesis: all wait for it\nrisk: medium\nacts_on: host\n"
        "changes: pace\nevidence: [slowed]\n"
    ),
    "faults/example_heat/platforms/linux.yml": (
        "support: lab\nread: {argv: [cat, /x], parse: fields}\ndo: [[echo, '{{ nothing }}']]\nundo: [[echo, b]]\n"
    ),
}  # fmt: skip


@pytest.fixture
def two_roles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "nowhere")
    monkeypatch.setattr(paths, "_CHECKOUT", tmp_path)
    monkeypatch.delenv(paths.CONF_PATH_VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["list"], "list.txt"),
        (["list", "--support"], "support.txt"),
        (["show", "slow_uplink"], "show.txt"),
        (["show", "hot_host"], "show_bare.txt"),
        ([], "usage.txt"),
    ],
    ids=["list", "support", "show", "show what cannot be shown", "usage"],
)
@pytest.mark.usefixtures("two_roles")
def test_golden_texts(arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", *arguments]) == 0
    text = capsys.readouterr().out
    path = GOLDEN / name
    if os.environ.get("GENIE_UPDATE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.usefixtures("two_roles")
def test_a_name_that_is_none_is_answered_with_the_closest() -> None:
    with pytest.raises(ConfigError, match="there is no fault 'slow_uplnk'; did you mean 'slow_uplink'"):
        catalogue.show_text("slow_uplnk")


@pytest.mark.usefixtures("two_roles")
def test_a_recipe_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    (tmp_path / "conf" / "fault" / "bad.yaml").write_text("a: [\n")
    with pytest.raises(ConfigError, match=r"bad\.yaml: not valid YAML"):
        catalogue.list_text()


def test_a_recipe_of_the_user_builds_on_one_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fault").mkdir()
    (tmp_path / "fault" / "ours.yaml").write_text(
        "# @package fault.ours\n# Our own\ndefaults:\n  - link_rate@_here_\nparameters:\n  rate: 25%\n"
    )
    monkeypatch.setenv(paths.CONF_PATH_VARIABLE, str(tmp_path))
    (own,) = [recipe for recipe in catalogue.recipes() if recipe.name == "ours"]
    assert (own.what, own.mechanism.role, own.content["parameters"]["rate"]) == ("Our own", "port_rate", "25%")


def test_every_recipe_can_be_shown_with_its_commands() -> None:
    found = catalogue.recipes()
    assert found
    for recipe in found:
        assert recipe.what, f"conf/fault/{recipe.name}.yaml needs a first comment line"
        text = catalogue.show_text(recipe.name)
        assert "cannot be shown for a sample" not in text, recipe.name
        assert recipe.mechanism.hypothesis.split()[0] in text


def test_every_stand_in_is_called_one() -> None:
    text = catalogue.list_text(support=True)
    for line in text.splitlines()[1:]:
        words = line.split()
        assert words[2] in catalogue.SUPPORT_WORDS, line
        assert line.endswith(catalogue.SUPPORT_WORDS[words[2]]), line


@pytest.mark.parametrize("arguments", [["list"], ["--help"], ["status"]], ids=" ".join)
def test_the_command_loads_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    code = f"import sys, genie.cli; genie.cli.main(['faults', *{arguments!r}]); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"hydra", "omegaconf", "numpy", "networkx", "mlflow", "rich", "ansible_runner", "jinja2"}


@pytest.mark.parametrize(
    ("number", "shown"), [({"found": {"x": 10}}, "w=000a"), ({}, "w=<as found>")], ids=["known", "dry"]
)
def test_a_number_that_only_the_target_knows_has_no_format_yet(number: dict[str, object], shown: str) -> None:
    assert render_word("w={{ '%04x' | format(found.x) }}", number, dry=not number) == shown
