"""However the runner or its holder dies, the kernel removes programs, namespaces, interfaces, queues and mounts."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from fabrics import running, tagged_processes, wait_until

from genie.errors import RunAborted
from genie.fabric.probe import probe
from genie.topology import SingleSwitchConfig

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(probe().unfit), reason=f"no namespaces: {probe().unfit}"),
]
CHECKOUT = Path(__file__).resolve().parents[2]
SEED = 20
TC = shutil.which("tc", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or "tc"

RUNNER = """
import sys, time
from pathlib import Path
from genie.fabric import NetnsConfig
from genie.fabric.netns import NetnsFabric
from genie.topology import LeafSpineConfig, build
fabric = NetnsFabric(NetnsConfig(), build(LeafSpineConfig()), Path(sys.argv[1]))
fabric.capabilities()
print("building", flush=True)
fabric.build()
fabric.start_sampler(Path(sys.argv[1], "ports.smp"), 1_000_000)
fabric.spawn("h0", ["sh", "-c", "(setsid sleep 600 &) ; sleep 600"], stdin=b"", log=Path(sys.argv[1], "log"))
inodes = fabric.run("", ["sh", "-c", "stat -Lc %i /run/netns/* /proc/self/ns/net"]).stdout.split()
print("running", *inodes, flush=True)
time.sleep(600)
"""


def _machine_state() -> dict[str, object]:
    """What a fabric could leave behind on the machine itself."""
    return {
        "interfaces": sorted(entry.name for entry in Path("/sys/class/net").iterdir()),
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "run": sorted(entry.name for entry in Path("/run").iterdir()),
        "netns": sorted(Path("/run/netns").iterdir()) if Path("/run/netns").exists() else [],
        "queues": subprocess.run([TC, "qdisc", "show"], capture_output=True, text=True, check=True).stdout,
    }


def _users_of(inodes: set[str]) -> list[str]:
    """Processes whose network namespace is one of ``inodes``, and mounts of one that are visible to anyone."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str((entry / "ns/net").stat().st_ino) in inodes:
                found.append(entry.name)
            mounts = (entry / "mountinfo").read_text()
        except OSError:
            continue
        found += [f"{entry.name}: {inode}" for inode in inodes if f"net:[{inode}]" in mounts]
    return found


def _start_runner(directory: Path, tag: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "GENIE_TEST_TAG": tag, "PYTHONPATH": f"{CHECKOUT}:{os.environ.get('PYTHONPATH', '')}"},
    )


def _moments() -> list[tuple[str, float]]:
    random_moment = random.Random(SEED)
    return [("building", random_moment.uniform(0, 0.12)) for _ in range(4)] + [
        ("running", random_moment.uniform(0, 0.05)) for _ in range(2)
    ]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("phase", "delay_s"), _moments(), ids=lambda value: str(value)[:7])
def test_kill_9_of_the_runner_leaves_nothing(tmp_path, phase, delay_s):
    before = _machine_state()
    tag = f"genie-test-{uuid.uuid4()}"
    runner = _start_runner(tmp_path, tag)
    inodes: set[str] = set()
    assert runner.stdout is not None
    with runner.stdout:
        assert runner.stdout.readline() == "building\n"
        if phase == "running":
            word, *rest = runner.stdout.readline().split()
            assert word == "running"
            inodes = set(rest)
            assert len(inodes) == 13
            assert _users_of(inodes)
        with pytest.raises(subprocess.TimeoutExpired):  # the moment is the point, not a condition
            runner.wait(delay_s)
        runner.send_signal(signal.SIGKILL)
        runner.wait()
        wait_until(lambda: not tagged_processes(tag), "the end of every process")
    assert _users_of(inodes) == []
    assert _machine_state() == before


@pytest.mark.parametrize("victim", ["first stage", "PID 1"])
def test_kill_9_of_the_holder_ends_every_program_and_is_told(tmp_path, victim):
    with running(tmp_path, SingleSwitchConfig(hosts=2)) as fabric:
        process = fabric.spawn("h0", ["sleep", "600"], stdin=b"", log=tmp_path / "log")
        first_stage = fabric.holder_pid
        children = Path(f"/proc/{first_stage}/task/{first_stage}/children").read_text().split()
        os.kill(first_stage if victim == "first stage" else int(children[0]), signal.SIGKILL)
        wait_until(lambda: process.poll() is not None, "the news of the program's end")
        assert process.poll() == -9
        with pytest.raises(RunAborted, match="holder ended"):
            fabric.run("h0", ["true"])
        wait_until(lambda: not Path(f"/proc/{children[0]}").exists(), "the end of PID 1")


def test_a_terminals_interrupt_does_not_reach_the_fabric(tmp_path):
    with running(tmp_path, SingleSwitchConfig(hosts=2)) as fabric:
        assert os.getsid(fabric.holder_pid) != os.getsid(0)


def _can_be_nobody() -> str:
    """Why the tests below cannot run as another user here, "" if they can."""
    if os.geteuid() != 0:
        return "not root: all tests here are rootless already"
    tried = _as_nobody("import genie.topology, networkx; print('ok')", Path("/"))
    return (
        "" if tried.stdout == "ok\n" else f"nobody cannot use this checkout or {NOBODYS_PYTHON}: {tried.stderr[-200:]}"
    )


NOBODYS_PYTHON = "/usr/bin/python3"


def _as_nobody(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    return subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", NOBODYS_PYTHON, "-c", code, str(directory)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{CHECKOUT}:{packages}", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


ROOTLESS = """
import json, os, sys, time
from pathlib import Path
from genie.fabric import NetnsConfig
from genie.fabric.netns import NetnsFabric
from genie.topology import LeafSpineConfig, build
fabric = NetnsFabric(NetnsConfig(), build(LeafSpineConfig(loss=0.001)), Path(sys.argv[1]))
found = fabric.capabilities()
fabric.build()
probe_code = '''
import socket, sys
listener = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
connection, _ = listener.accept()
total = 0
while data := connection.recv(65536):
    total += len(data)
print(total, flush=True)
'''
log = Path(sys.argv[1], "log")
server = fabric.spawn("h7", [sys.executable, "-c", probe_code, fabric.address("h7")], stdin=b"", log=log)
while "listening" not in log.read_text():
    time.sleep(0.01)
sender = "import socket,sys; socket.create_connection((sys.argv[1], 5000)).sendall(bytes(1000000))"
began = time.monotonic()
sent = fabric.run("h0", [sys.executable, "-c", sender, fabric.address("h7")])
assert sent.returncode == 0, sent.stderr
server.wait(20)
print(json.dumps({
    "uid": os.getuid(), "marker": found.marker, "ecn": found.ecn, "reason": found.reasons.get("ecn", ""),
    "shaping": found.shaping, "loss": found.loss, "received": log.read_text().split()[-1],
    "seconds": time.monotonic() - began, "notes": fabric.notes,
    "exec": fabric.run("", ["ip", "netns", "exec", "h0", "ip", "link"]).returncode,
    "rps": fabric.run("", ["ip", "netns", "exec", "h0", "cat", "/sys/class/net/leaf0/queues/rx-0/rps_cpus"]).stdout,
    "snmp": fabric.read("h0", "/proc/net/snmp")[:3],
}))
fabric.destroy()
"""


def test_an_unprivileged_user_gets_the_whole_fabric_but_marking(nobodys_folder):
    why_not = _can_be_nobody()
    if why_not:
        pytest.skip(why_not)
    done = _as_nobody(ROOTLESS, nobodys_folder / "run")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["uid"], said["received"], said["exec"]) == (65534, "1000000", 0)
    assert said["shaping"]
    assert said["loss"]
    assert said["seconds"] > 0.08 * 0.9, "1 MB at 100 Mb/s"
    assert int(said["rps"].replace(",", ""), 16) > 0
    if said["marker"] == "none":
        assert "sch_red" in said["reason"]
        assert "Run as root" in said["reason"]
        assert any("do not mark ECN" in note for note in said["notes"])
