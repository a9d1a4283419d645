"""The Ansible side as its own tools see it: syntax, lint (production profile), arguments, settings of a run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jinja2 import meta

from genie.errors import ConfigError
from genie.fabric.base import Capabilities
from genie.faults import change
from genie.faults.ansible_job import (
    Collector,
    ansible_environment,
    inventory_text,
    python_path,
    write_ansible_command,
)
from genie.faults.config import FaultConfig
from genie.faults.evidence import find_rule
from genie.faults.plan import RunFacts, plan_faults
from genie.faults.play import APPLY_PHASES, REVERT_PHASES
from genie.faults.reading import PARSERS
from genie.faults.recipe import PLATFORMS, find_platform, load_mechanism, load_platform, roles
from genie.paths import playbooks_dir, roles_dir
from genie.topology import build
from genie.topology.config import LeafSpineConfig

BIN = Path(sys.executable).parent


def run(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        argv, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path, **environment}
    )


def test_the_play_and_its_roles_parse(tmp_path: Path) -> None:
    root = playbooks_dir().parent
    settings = ansible_environment(tmp_path, playbooks_dir(), roles_dir(), root)
    (tmp_path / "ansible.cfg").write_text("[defaults]\n")
    done = run("ansible-playbook", "--syntax-check", "-i", "localhost,", str(playbooks_dir() / "fault.yml"), **settings)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not (BIN / "ansible-lint").exists(), reason="ansible-lint is not installed")
def test_lint_finds_nothing_in_the_production_profile() -> None:
    root = playbooks_dir().parent
    if not (root / ".ansible-lint").exists():
        pytest.skip("not a checkout")
    done = subprocess.run(
        ["ansible-lint", "-q", "--nocolor", "-c", ".ansible-lint", "faults", "playbooks"],
        cwd=root, capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


ROLES = roles()
PLATFORM_FILES = [(role, path.stem) for role in ROLES for path in sorted((roles_dir() / role / "platforms").glob("*"))]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_complete(role: str) -> None:
    folder = roles_dir() / role
    mechanism = load_mechanism(role)
    assert {path.name for path in folder.iterdir()} >= {"mechanism.yml", "platforms", "tasks", "meta", "README.md"}
    assert mechanism.platforms, "a role without a platform can do nothing"
    assert set(mechanism.platforms) <= set(PLATFORMS)
    assert all(find_rule(name) for name in mechanism.evidence)
    assert mechanism.hypothesis
    assert all(parameter.help for parameter in mechanism.parameters)
    assert len((folder / "README.md").read_text().splitlines()) > 10


@pytest.mark.parametrize("role", ROLES)
def test_a_role_hands_every_phase_to_genie_change_and_does_nothing_else(role: str) -> None:
    tasks = [path for path in (roles_dir() / role).rglob("*.yml") if path.parent.name in ("tasks", "handlers")]
    assert [path.name for path in tasks] == ["main.yml"]
    said = yaml.safe_load(tasks[0].read_text())
    assert [list(task) for task in said] == [["name", "genie_change"]]
    assert said[0]["genie_change"] == {"phase": "{{ genie_phase }}"}


@pytest.mark.parametrize("role", ROLES)
def test_argument_specifications_say_what_the_play_tells(role: str) -> None:
    specified = yaml.safe_load((roles_dir() / role / "meta" / "argument_specs.yml").read_text())
    told = specified["argument_specs"]["main"]["options"]
    assert told.keys() == {"genie_phase", "genie_fault", "genie_node", "genie_platform", "genie_parameters"}
    assert told["genie_phase"]["choices"] == [*APPLY_PHASES, *REVERT_PHASES]
    assert all(option["required"] and option["description"] for option in told.values())
    # The session tells every parameter as the user wrote it, or its default: all are there, all are text.
    parameters = load_mechanism(role).parameters
    options = told["genie_parameters"].get("options", {})
    assert told["genie_parameters"]["type"] == "dict"
    assert options.keys() == {parameter.name for parameter in parameters}
    assert all(option["type"] == "str" and option["description"] for option in options.values())
    for parameter in parameters:
        assert options[parameter.name].get("required", False) is (parameter.default is None), parameter.name
        assert str(options[parameter.name].get("default", parameter.default)) == str(parameter.default)


@pytest.mark.parametrize(("role", "stem"), PLATFORM_FILES)
def test_a_platform_file_can_be_used(role: str, stem: str) -> None:
    how = load_platform(role, stem)
    assert how.read, "what is not read can neither be checked nor restored"
    assert all(read.parse in PARSERS for read in how.read), [read.parse for read in how.read]
    assert how.do
    assert how.undo, "every change has an undo"
    assert how.after or load_mechanism(role).changes == "nothing", "the read-back must be able to fail"
    assert stem.partition(".")[2] in ("", "bpf", "red")


@cache
def told_of_a_port() -> frozenset[str]:
    """What a plan tells of a port that marks, and of a node."""
    can = Capabilities(shaping=True, ecn=True, loss=True, faults=True, marker="bpf", reasons={})
    faults = {"marks": FaultConfig("port_ecn", "switches"), "nodes": FaultConfig("sham", "switches")}
    plans = plan_faults(faults, build(LeafSpineConfig()), can, RunFacts())
    return frozenset(key for plan in plans for key in plan.port_variables(plan.changes[0]))


@pytest.mark.parametrize(("role", "stem"), PLATFORM_FILES)
def test_a_platform_file_names_only_what_there_is(role: str, stem: str) -> None:
    """Every template compiles, and names of it only what `genie.faults` gives: a typo fails here, not on a switch."""
    how = load_platform(role, stem)
    everywhere = {"port", "fault", "node", "state", "marker", "marker_map", "genie_port", "genie_agent", "genie_load"}
    everywhere |= {"ttl_hms"}
    reads = [(word, everywhere) for read in how.read for word in read.argv]
    changes = [
        (word, everywhere | {"found", "item", "loop_index"}) for step in (*how.do, *how.undo) for word in step.argv
    ]
    told = [said for step in (*how.do, *how.undo) for said in (step.when, step.each) if said]
    expressions = [(f"{{{{ {said} }}}}", everywhere | {"found"}) for said in told]
    conditions = [(said, everywhere) for part in (how.before, how.after) for said in texts_in(part)]
    environment = change._environment(False)
    for text, known in reads + changes + expressions + conditions:
        assert meta.find_undeclared_variables(environment.parse(text)) <= known, text
    ports = told_of_a_port()
    for parameter in load_mechanism(role).parameters:
        ports |= {f"{parameter.name}{suffix}" for suffix in ("", "_bps", "_ppb", "_bytes", "_ns", "_address")}
    for text, _ in reads + changes + expressions + conditions:
        templates = "".join(re.findall(r"{[{%].*?[%}]}", text))
        named = set(re.findall(r"\bport\.(\w+)", re.sub(r"\bport\.\w+ \| default\(", "", templates)))
        assert named <= ports, text


def texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from texts_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts_in(inner)


MECHANISM = "summary: s\nhypothesis: h\nrisk: low\nacts_on: port\nchanges: c\nevidence: [rate_capped]\n"
PLATFORM = "support: embedded\nread: {argv: [cat, x], parse: value}\n"


def write_role(folder: Path, mechanism: str = MECHANISM, platform: str = PLATFORM) -> Path:
    (folder / "r" / "platforms").mkdir(parents=True)
    (folder / "r" / "mechanism.yml").write_text(mechanism)
    (folder / "r" / "platforms" / "linux.yml").write_text(platform)
    return folder


def test_a_declaration_and_a_platform_with_nothing_but_the_necessary(tmp_path: Path) -> None:
    write_role(tmp_path)
    mechanism = load_mechanism("r", tmp_path)
    assert (mechanism.placed, mechanism.parameters, mechanism.platforms) == ("egress", (), ("linux",))
    how = load_platform("r", "linux", tmp_path)
    assert (how.deadman, how.do, dict(how.before), how.risk) == ("warden", (), {}, "")


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        pytest.param("- a list\n", "expected a mapping", id="a list"),
        pytest.param(MECHANISM + "paramters: {}\n", "did you mean 'parameters'", id="a key with a typo"),
        pytest.param(MECHANISM.replace("summary: s\n", ""), "key 'summary' is missing", id="no summary"),
        pytest.param(MECHANISM.replace("low", "lo"), "did you mean 'low'", id="no such risk"),
        pytest.param(MECHANISM.replace("port", "prt"), "did you mean 'port'", id="no such thing to act on"),
        pytest.param(MECHANISM + "placed: ingress\n", "placed is 'ingress'", id="no such place"),
        pytest.param(
            MECHANISM + "parameters: {x: {kind: speed}}\n", "kind of parameter x is 'speed'", id="no such kind"
        ),
        pytest.param(MECHANISM + "parameters: {x: {kind: rate, leest: 1}}\n", "unknown keys leest", id="no such bound"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused_by_file(tmp_path: Path, mechanism: str, words: str) -> None:
    write_role(tmp_path, mechanism=mechanism)
    with pytest.raises(ConfigError) as caught:
        load_mechanism("r", tmp_path)
    assert "r/mechanism.yml: " in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("platform", "words"),
    [
        pytest.param("", "expected a mapping", id="empty"),
        pytest.param(PLATFORM + "undone: []\n", "did you mean 'undo'", id="a key with a typo"),
        pytest.param("support: embedded\n", "key 'read' is missing", id="nothing is read"),
        pytest.param(PLATFORM.replace("embedded", "always"), "support is 'always'", id="no such support"),
        pytest.param(PLATFORM + "deadman: none\n", "deadman is 'none'", id="no such dead-man's switch"),
        pytest.param(PLATFORM + "risk: huge\n", "risk is 'huge'", id="no such risk"),
        pytest.param(PLATFORM + "do: [reboot now]\n", "expected a list of words", id="a command as text"),
        pytest.param(PLATFORM + "do: [[]]\n", "expected the words of a command", id="a command of no words"),
        pytest.param(PLATFORM + "do: [{argv: [a], wen: x}]\n", "expected a list of words", id="a step with a typo"),
        pytest.param(PLATFORM.replace("[cat, x]", "cat x"), "as a list, found 'cat x'", id="a read as text"),
        pytest.param(PLATFORM + "after: {n: {at_lest: 3}}\n", "did you mean 'at_least'", id="a condition with a typo"),
        pytest.param(PLATFORM + "before: [kind]\n", "expected conditions by field", id="conditions as a list"),
    ],
)
def test_a_platform_that_makes_no_sense_is_refused_by_file(tmp_path: Path, platform: str, words: str) -> None:
    write_role(tmp_path, platform=platform)
    with pytest.raises(ConfigError) as caught:
        load_platform("r", "linux", tmp_path)
    assert "r/platforms/linux.yml: " in str(caught.value)
    assert words in str(caught.value)


def test_the_first_platform_of_a_node_that_the_role_knows_is_taken(tmp_path: Path) -> None:
    write_role(tmp_path)
    for stem in ("linux.red", "mlx5"):
        (tmp_path / "r" / "platforms" / f"{stem}.yml").write_text(PLATFORM)
    mechanism = load_mechanism("r", tmp_path)
    assert mechanism.platforms == ("linux", "mlx5")
    assert find_platform(mechanism, ("sonic", "linux"), "bpf") == "", "a switch's kernel does not see what it forwards"
    assert find_platform(mechanism, ("mlx5", "linux"), "red") == "mlx5"
    assert find_platform(mechanism, ("linux", "mlx5"), "red") == "linux.red"
    assert find_platform(mechanism, ("eos",), "red") == ""


class Unsafe(str):
    """A string that Ansible must not read as a template."""

    __slots__ = ()


class Loader(yaml.SafeLoader):
    """Loads an inventory as Ansible does, with its one tag."""


Loader.add_constructor("!unsafe", lambda loader, node: Unsafe(loader.construct_scalar(node)))
CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXTS, KEYS = st.text(CHARACTERS), st.text(CHARACTERS, max_size=40)  # YAML takes no key of more than 1024 characters
VALUES = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def strings_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings_in(inner)


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.sampled_from(["f.h0", "f.h1", "nodes"]), st.dictionaries(KEYS, VALUES)))
@example(
    {"f.h0": {"a": "{{ 1 }}", "n": 3, "l": [{"x": 'say "hi"\n$(reboot)', "y": "\x7f\x85\u2028\ufeff\U0001f600\0"}]}}
)
def test_an_inventory_says_what_it_was_told_and_every_string_is_unsafe(hosts: dict[str, dict[str, Any]]) -> None:
    found = yaml.load(inventory_text(hosts), Loader)["all"]["hosts"]
    assert found == hosts
    assert all(isinstance(text, Unsafe) for text in strings_in(list(found.values())))


def test_events_become_results_and_are_never_written() -> None:
    collector = Collector()
    data = {
        "host": "slow.h0", "role": "port_rate", "task": "Go through the phase asked for",
        "res": {"rc": 2, "stdout": "out", "stderr": "no", "msg": "words", "genie": {"phase": "act", "found": {"x": 1}}},
    }  # fmt: skip
    assert collector({"event": "runner_on_failed", "event_data": data}) is False
    assert collector({"event": "runner_on_start", "event_data": data}) is False
    found = collector.results[0]
    assert (found.host, found.phase, found.ok, found.rc, found.stderr) == ("slow.h0", "act", False, 2, "no")
    assert found.message == "words"
    assert found.told == {"phase": "act", "found": {"x": 1}}


def test_ansible_is_this_interpreters_whatever_scripts_are_installed(tmp_path: Path) -> None:
    command = write_ansible_command(tmp_path / "bin")
    done = subprocess.run(
        [str(command), "--version"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ansible-playbook [core ")


@pytest.mark.parametrize("own", [None, "/opt/a:/opt/b"])
def test_the_callers_python_path_stays_behind_this_genies(
    own: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if own is not None:
        monkeypatch.setenv("PYTHONPATH", own)
    assert python_path(tmp_path) == f"{tmp_path}:{own}" if own else str(tmp_path)


def test_nothing_of_the_user_reaches_ansible(tmp_path: Path) -> None:
    settings = ansible_environment(tmp_path, tmp_path, tmp_path, tmp_path)
    for key in ("ANSIBLE_CONFIG", "ANSIBLE_HOME", "ANSIBLE_LOCAL_TEMP"):
        assert settings[key].startswith(str(tmp_path)), key
    assert settings["PATH"].split(os.pathsep)[:2] == [str(tmp_path / "bin"), str(BIN)]
