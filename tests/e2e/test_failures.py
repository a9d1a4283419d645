"""What a run says when its network, its ranks or its neighbours misbehave: real agents in real namespaces."""

import os
import signal
import subprocess
import sys

import pytest
from genie_command import SMALL, command, read, run, run_directories
from one_job import Job, interface

from genie import experiment
from genie.engine.encode import event_capacity
from genie.engine.wire import EVENT
from genie.errors import RankFailed
from genie.fabric.probe import probe

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(probe().unfit), reason=f"no namespaces: {probe().unfit}"),
]
STALL_S = 2.0
LONG = ("workload=moe", "workload.iterations=60", *SMALL[1:-1], f"timeout={STALL_S:g}s")
SHORT = ("workload=moe", "workload.iterations=1", *SMALL[1:-1], "timeout=20s")
STRANGER = """
import socket, sys
stranger = socket.create_connection((sys.argv[1], int(sys.argv[2])))
stranger.settimeout(5)
try:
    stranger.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
    sys.exit(len(stranger.recv(9)))
except ConnectionError:
    pass
"""


def test_a_dead_link_ends_every_rank_within_the_timeout_by_name(tmp_path):
    job = Job(LONG, tmp_path)
    race = job.race(lambda job: job.fabric.run("h3", ["ip", "link", "set", interface(job, "h3"), "down"]))
    error = job.error(race)
    assert isinstance(error, RankFailed)
    # The first rank gives up after the timeout, the others are told; none is left to a kill.
    assert all(status in (1, 2) for status in race.outcome.statuses.values())
    assert STALL_S * 0.5 < job.ended_at - job.done_at < STALL_S + 4
    words = error.message
    assert "made no progress in operator" in words
    assert "waiting for rank" in words
    assert any(call.comm and f"communicator '{call.comm}'" in words for call in job.plan.programs[0].calls)
    # Those who cannot tell the controller's story twice still say what they waited for.
    waited = [failure for failure in race.outcome.failures if failure.peer != 0xFFFFFFFF]
    assert len(waited) >= 2


def test_a_stopped_rank_is_named_by_those_who_wait_for_it(tmp_path):
    job = Job(LONG, tmp_path)
    race = job.race(lambda job: job.signal("h2", "STOP"))
    assert "made no progress" in job.error(race).message
    assert race.outcome.statuses[2] == -1
    assert 2 in {failure.peer for failure in race.outcome.failures}


def test_ranks_that_all_stop_are_given_up(tmp_path):
    job = Job(LONG, tmp_path)
    race = job.race(lambda job: [job.signal(f"h{i}", "STOP") for i in range(8)])
    assert "nothing was heard from the agent on h0, h1" in job.error(race).message
    assert job.ended_at - job.done_at < STALL_S + experiment.SILENCE_MARGIN_S + 6


def test_a_killed_agent_is_named_with_its_signal(tmp_path):
    job = Job(LONG, tmp_path)
    race = job.race(lambda job: job.signal("h4", "KILL"))
    assert "the agent on h4 was killed by SIGKILL" in job.error(race).message
    assert all(status in (1, 2) for rank, status in race.outcome.statuses.items() if rank != 4)
    assert job.ended_at - job.done_at < 4


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("SIGINT", "building"),
        ("SIGTERM", "connecting"),
        ("SIGINT", "applying"),
        ("SIGTERM", "running"),
        ("SIGINT", "proving"),
    ],
)
def test_an_interrupt_at_any_phase_takes_faults_back_and_keeps_what_there_is(name, phase, tmp_path):
    process = subprocess.Popen(
        command("+fault=link_rate", *SHORT), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if f"] {phase} " in f"{line.rstrip()} ":
            break
    process.send_signal(getattr(signal, name))
    said = process.stdout.read()
    assert process.wait(30) == 130, said
    assert said.splitlines()[-1] == "genie: interrupted"
    assert "Traceback" not in said
    (directory,) = run_directories(tmp_path / "runs")
    manifest = read(directory, "manifest.json")
    assert (manifest["status"], manifest["reason"]) == ("aborted", "interrupted")
    if phase in ("running", "proving"):
        assert f"genie report {directory.relative_to(tmp_path)}" in said
        (fault,) = read(directory, "faults.json")["faults"]
        assert fault["reverted"] is True
        shown = run("report", str(directory), cwd=tmp_path)
        assert shown.returncode in (0, 4), shown.stderr
        assert "interrupted" in shown.stdout


# Beyond what the plan knows it needs: a disk that others fill meanwhile. Other files do not fit each time.
@pytest.mark.sample(1)
@pytest.mark.parametrize("more_kib", [8, 40, 100])
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_full_disk_is_one_sentence_with_its_place(more_kib, tmp_path):
    plan = Job(SHORT, tmp_path / "plan").plan
    room_kib = sum(event_capacity(program, plan.settings) * EVENT.itemsize for program in plan.programs) // 1024
    disk = tmp_path / "disk"
    disk.mkdir()
    # In a mount namespace of its own: gone with the command, whatever happens.
    script = 'mount -t tmpfs -o "size=$1" disk "$2" && shift 2 && exec "$@"'
    genie = command("fault=[]", *SHORT, f"out={disk}")
    inside = ["unshare", "-m", "sh", "-c", script, "sh", f"{room_kib + more_kib}k", str(disk), *genie]
    done = subprocess.run(inside, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr
    assert disk.name in done.stderr
    assert "expected an event file" not in done.stderr  # none is there rather than half of one


def test_strangers_at_a_ranks_port_and_at_the_controllers_socket_are_refused_and_logged(tmp_path):
    job = Job(SHORT, tmp_path)

    def intrude(job):
        port = str(experiment.LISTEN_PORT)
        heard = job.fabric.run("h1", [sys.executable, "-I", "-c", STRANGER, job.fabric.address("h0"), port])
        assert heard.returncode == 0, heard.stderr
        for words in ("b'GET / HTTP/1.1\\r\\n\\r\\n'", "b''", "bytes(100000)"):
            code = f"import socket;s=socket.socket(socket.AF_UNIX);s.connect('control.sock');s.sendall({words})"
            subprocess.run([sys.executable, "-c", code], cwd=job.directory.path, check=True)

    race = job.race(intrude)
    assert race.outcome.ok, race.outcome
    assert "refused a connection from" in (job.directory.log_dir / "agent-h0.log").read_text()
    assert sum(text.startswith("refused ") for text in job.said) == 2
