"""The pace of a host's compute, from outside: the real genie-agent as an operator and as a role's task runs it."""

import json
import socket
import subprocess

import pytest

from genie.engine.binaries import find_binary

AGENT = str(find_binary("genie-agent"))


def pace(*words):
    return subprocess.run([AGENT, "pace", *words], capture_output=True, text=True, timeout=10, check=False)


def shown(*words):
    done = pace(*words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_set_makes_the_file_and_get_reads_it_back(tmp_path):
    file = str(tmp_path / "run" / "h0" / "pace")
    assert pace("get", "--file", file).returncode == 1
    assert shown("set", "--file", file, "--milli", "2000")["stretch_milli"] == 2000
    assert shown("get", "--file", file) == {"stretch_milli": 2000, "changes": 1, "stretched_ops": 0, "added_ns": 0}
    assert shown("set", "--file", file, "--milli", "1000")["stretch_milli"] == 1000


@pytest.mark.parametrize("milli", ["99", "1000001", "-1", "1e3", "2000x", "0x10", "4294968296"])
def test_a_pace_out_of_range_changes_nothing(tmp_path, milli):
    file = str(tmp_path / "pace")
    shown("set", "--file", file, "--milli", "1500")
    done = pace("set", "--file", file, "--milli", milli)
    assert done.returncode == 2
    assert f"expected --milli from 100 to 1000000, found '{milli}'" in done.stderr
    assert shown("get", "--file", file)["stretch_milli"] == 1500


@pytest.mark.parametrize(
    "words",
    [["get"], ["set", "--file", "x"], ["get", "--file", ""], ["get", "--milli", "5"], ["show"], []],
    ids=lambda words: "-".join(words) or "nothing",
)
def test_wrong_usage_is_told(words):
    done = pace(*words)
    assert done.returncode == 2
    assert "usage: genie-agent" in done.stderr


def test_what_is_no_pace_file_is_named_and_left_alone(tmp_path):
    file = tmp_path / "pace"
    file.write_text("mine")
    for words in (["get"], ["set", "--milli", "2000"]):
        done = pace(words[0], "--file", str(file), *words[1:])
        assert done.returncode == 1
        assert "is no pace file" in done.stderr
    assert file.read_text() == "mine"


def test_an_agent_makes_its_file_before_it_dials_and_keeps_a_pace_that_is_there(tmp_path):
    folder = tmp_path / "h0"
    with socket.socket(socket.AF_UNIX) as controller:
        controller.bind(str(tmp_path / "c"))
        controller.listen()
        argv = [AGENT, "run", "--control", f"unix:{tmp_path / 'c'}", "--host", "h0", "--pace", str(folder / "pace")]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as agent:
            agent.stdin.write(bytes(32))
            agent.stdin.flush()
            controller.accept()[0].recv(1)  # it says hello, so it is up
            assert shown("get", "--file", str(folder / "pace"))["stretch_milli"] == 1000
            agent.kill()
        shown("set", "--file", str(folder / "pace"), "--milli", "3000")
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as agent:
            agent.stdin.write(bytes(32))
            agent.stdin.flush()
            controller.accept()[0].recv(1)
            agent.kill()
            assert b"pace 3000 found in" in agent.stderr.read()
        assert shown("get", "--file", str(folder / "pace"))["stretch_milli"] == 3000
