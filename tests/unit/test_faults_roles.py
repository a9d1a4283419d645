"""The Ansible side as its own tools see it: syntax, lint (production profile), arguments, settings of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from genie.faults.ansible_job import (
    Collector,
    ansible_environment,
    inventory_text,
    python_path,
    write_ansible_command,
)
from genie.faults.recipe import load_mechanism, roles
from genie.paths import playbooks_dir, roles_dir

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


@pytest.mark.parametrize("role", roles())
def test_argument_specifications_name_every_parameter(role: str) -> None:
    specified = yaml.safe_load((roles_dir() / role / "meta" / "argument_specs.yml").read_text())
    told = specified["argument_specs"]["main"]["options"]["genie_ports"]["options"]
    suffix = {"rate": "bps", "ratio": "ppb", "bytes": "bytes"}
    for parameter in load_mechanism(role).parameters:
        assert told[f"{parameter.name}_{suffix[parameter.kind]}"]["type"] == "int"


def test_every_string_of_the_inventory_is_unsafe() -> None:
    text = inventory_text({"f.h0": {"a": "{{ 1 }}", "n": 3, "l": [{"x": 'say "hi"\n$(reboot)'}]}})
    lines = [line for line in text.splitlines() if "{{" in line or "reboot" in line or "hi" in line]
    assert lines
    assert all("!unsafe" in line for line in lines)
    yaml.SafeLoader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))
    assert yaml.safe_load(text)["all"]["hosts"]["f.h0"] == {"a": "{{ 1 }}", "n": 3, "l": [{"x": 'say "hi"\n$(reboot)'}]}


def test_events_become_results_and_are_never_written() -> None:
    collector = Collector()
    data = {
        "host": "slow.h0", "role": "port_rate", "task": "Expect", "task_path": "/x/tasks/verify.yml:3",
        "res": {"rc": 2, "stdout": "out", "stderr": "no", "msg": "non-zero return code"},
    }  # fmt: skip
    assert collector({"event": "runner_on_failed", "event_data": data}) is False
    assert collector({"event": "runner_on_start", "event_data": data}) is False
    found = collector.results[0]
    assert (found.host, found.phase, found.ok, found.rc, found.stderr) == ("slow.h0", "verify", False, 2, "no")


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
