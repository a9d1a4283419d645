"""genie-load over loopback: what leaves, what is told of it, and that its sender ends whatever happens."""

import json
import os
import select
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from genie.engine.binaries import find_binary

LOAD = str(find_binary("genie-load"))
PACKET = 1000
HEADERS = 28
PATIENCE_S = 10.0


def load(*words, timeout=PATIENCE_S):
    return subprocess.run([LOAD, *words], capture_output=True, text=True, timeout=timeout, check=False)


def told(*words):
    done = load(*words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def receiver():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(PATIENCE_S)
        yield udp


@pytest.fixture
def folder(tmp_path):
    """A load's folder; what still sends in it at the end of the test is stopped."""
    path = tmp_path / "load"
    yield str(path)
    load("stop", "--dir", str(path))


def options(folder, receiver, rate=8_000_000, **more):
    values = {"packet-bytes": PACKET, "rate-bps": rate} | {name.replace("_", "-"): v for name, v in more.items()}
    address = f"127.0.0.1:{receiver.getsockname()[1]}"
    return ["--dir", folder, "--to", address, *(word for n, v in values.items() for word in (f"--{n}", str(v)))]


def drain(udp):
    """All that is there now."""
    packets = []
    udp.setblocking(False)
    try:
        while True:
            packets.append(udp.recv(1 << 16))
    except BlockingIOError:
        return packets


def until_gone(pid):
    """Waits for a process that is no child of ours."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], PATIENCE_S)[0], f"process {pid} is still there"
    finally:
        os.close(handle)


def test_what_is_counted_as_sent_is_what_arrives(folder, receiver):
    started = told("start", *options(folder, receiver))
    assert started["state"] == "sending"
    assert started["packets"] >= 1
    packets = [receiver.recv(1 << 16) for _ in range(200)]
    final = told("stop", "--dir", folder)
    packets += drain(receiver)
    assert final["state"] == "ended"
    assert final["ended_by"] == "stop"
    assert final["packets"] == len(packets)
    assert final["bytes"] == sum(len(packet) + HEADERS for packet in packets) == final["packets"] * PACKET
    assert final["to"] == [{"address": f"127.0.0.1:{receiver.getsockname()[1]}", "packets": len(packets), "errors": 0}]
    assert [int.from_bytes(packet[8:16], "little") for packet in packets] == list(range(len(packets)))
    seconds = (final["ended_mono_ns"] - final["started_mono_ns"]) / 1e9
    due = int(seconds * 1000) + 1
    assert final["packets"] + final["skipped"] in (due - 1, due)


def test_it_sends_no_more_than_its_rate_at_any_time(folder, receiver):
    """The n-th packet never comes before its time: counted from the start that is told."""
    start_ns = told("start", *options(folder, receiver, rate=4_000_000))["started_mono_ns"]
    for number in range(60):
        receiver.recv(1 << 16)
        assert time.monotonic_ns() >= start_ns + number * 2_000_000


def test_bursts_and_pauses(folder, receiver):
    words = options(folder, receiver, on_ns=20_000_000, off_ns=60_000_000, ttl_ns=240_000_000)
    pid = told("start", *words)["pid"]
    until_gone(pid)
    final = told("status", "--dir", folder)
    assert final["ended_by"] == "ttl"
    assert final["ended_mono_ns"] - final["started_mono_ns"] >= 240_000_000
    assert final["packets"] + final["skipped"] == 3 * 20
    assert len(drain(receiver)) == final["packets"]


def test_destinations_take_turns(folder, receiver):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.2", 0))
        address = f"127.0.0.2:{other.getsockname()[1]}"
        told("start", *options(folder, receiver, source_port=45_678), "--to", address)
        senders = {receiver.recvfrom(1 << 16)[1], receiver.recvfrom(1 << 16)[1], other.recvfrom(1 << 16)[1]}
        assert senders == {("127.0.0.1", 45_678)}
        sent = [to["packets"] for to in told("stop", "--dir", folder)["to"]]
    assert abs(sent[0] - sent[1]) <= 1


@pytest.mark.parametrize(("ecn", "expected"), [(0, 0), (1, 2)], ids=["not-ECT", "ECT(0)"])
def test_ecn(folder, receiver, ecn, expected):
    receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    told("start", *options(folder, receiver, ecn=ecn))
    _, ancillary, _, _ = receiver.recvmsg(1 << 16, 64)
    assert ancillary[0][2][0] == expected


def test_a_host_that_refuses_does_not_stop_it(folder):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        words = options(folder, udp, ttl_ns=100_000_000)
    until_gone(told("start", *words)["pid"])
    final = told("status", "--dir", folder)
    assert final["packets"] + final["skipped"] == 100
    assert 0 < final["refused"] <= final["packets"]


def test_stop_is_idempotent_and_no_error_where_nothing_was(folder, receiver, tmp_path):
    assert told("stop", "--dir", str(tmp_path / "nowhere"))["state"] == "absent"
    assert told("status", "--dir", str(tmp_path / "nowhere"))["state"] == "absent"
    told("start", *options(folder, receiver))
    assert told("stop", "--dir", folder) == told("stop", "--dir", folder) == told("status", "--dir", folder)


def test_killed_is_told_and_a_next_start_carries_the_totals_on(folder, receiver):
    first = told("start", *options(folder, receiver))
    receiver.recv(1 << 16)
    os.kill(first["pid"], signal.SIGKILL)
    until_gone(first["pid"])
    killed = told("status", "--dir", folder)
    assert (killed["state"], killed["ended_by"]) == ("ended", "killed")
    assert told("stop", "--dir", folder) == killed
    second = told("start", *options(folder, receiver))
    assert second["starts"] == 2
    assert second["pid"] != first["pid"]
    final = told("stop", "--dir", folder)
    assert final["all_packets"] == killed["packets"] + final["packets"]
    assert final["all_bytes"] == killed["bytes"] + final["bytes"]


def test_one_load_a_folder(folder, receiver):
    pid = told("start", *options(folder, receiver))["pid"]
    again = load("start", *options(folder, receiver))
    assert again.returncode == 1
    assert f"a load is running already in {folder}, process {pid}" in again.stderr
    assert told("status", "--dir", folder)["state"] == "sending"


def test_a_process_that_took_the_number_over_is_left_alone(folder, receiver):
    """The page names a live process, but not the one that wrote it: as after a crash and a wrap of process ids."""
    pid = told("start", *options(folder, receiver))["pid"]
    os.kill(pid, signal.SIGKILL)
    until_gone(pid)
    with subprocess.Popen(["sleep", "60"]) as bystander:
        page = os.open(f"{folder}/load.page", os.O_RDWR)
        ticks = int.from_bytes(os.pread(page, 8, 16), "little") - 1
        os.pwrite(page, ticks.to_bytes(8, "little") + bystander.pid.to_bytes(4, "little"), 16)
        os.close(page)
        assert told("stop", "--dir", folder)["pid"] == bystander.pid
        assert bystander.poll() is None
        # Even while someone holds the lock, which says that a sender lives.
        with subprocess.Popen(["flock", f"{folder}/load.lock", "sh", "-c", "echo held; cat"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as holder:  # fmt: skip
            assert holder.stdout.readline() == b"held\n"
            done = load("stop", "--dir", folder)
            assert done.returncode == 1
            assert "by no sender that could be ended" in done.stderr
            holder.stdin.close()
        assert bystander.poll() is None
        bystander.kill()


@pytest.mark.parametrize("after_us", [0, 300, 600, 900, 1200, 1500, 2000, 2500, 3000, 4000])
def test_a_starter_that_is_killed_leaves_nothing_that_stop_does_not_end(folder, receiver, after_us):
    with subprocess.Popen([LOAD, "start", *options(folder, receiver)], stdout=subprocess.DEVNULL) as starter:
        until_ns = time.monotonic_ns() + after_us * 1000
        while time.monotonic_ns() < until_ns:
            pass
        starter.kill()
    final = told("stop", "--dir", folder)
    assert final["state"] in ("absent", "ended")
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if folder.encode() in read_or_nothing(path)]
    assert not left
    assert told("start", *options(folder, receiver))["state"] == "sending"


def read_or_nothing(path):
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""


def test_a_stopped_sender_is_ended_all_the_same(folder, receiver):
    """SIGSTOP: it cannot hear SIGTERM."""
    pid = told("start", *options(folder, receiver))["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert told("stop", "--dir", folder)["ended_by"] == "killed"
    until_gone(pid)


def test_it_outlives_who_started_it_and_holds_nothing_of_theirs(folder, receiver):
    """Its caller's output ends with the caller, and its session is its own."""
    shell = subprocess.run(
        ["sh", "-c", 'exec 7>&1; "$@"', "sh", LOAD, "start", *options(folder, receiver)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    pid = json.loads(shell.stdout)["pid"]
    assert os.getsid(pid) == pid
    assert not [fd for fd in Path(f"/proc/{pid}/fd").iterdir() if "pipe:" in str(fd.readlink())]
    receiver.recv(1 << 16)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rate-bps", "1", "--packet-bytes", "100"], "--to is missing"),
        (["--to", "127.0.0.1", "--rate-bps", "1", "--packet-bytes", "100"], "expected --to IPV4:PORT"),
        (["--to", "127.0.0.1:0", "--rate-bps", "1", "--packet-bytes", "100"], "expected --to IPV4:PORT"),
        (["--to", "127.0.0.1:70000", "--rate-bps", "1", "--packet-bytes", "100"], "expected --to IPV4:PORT"),
        (["--to", "h0:9", "--rate-bps", "1", "--packet-bytes", "100"], "expected --to IPV4:PORT"),
        (["--to", "224.0.0.1:9", "--rate-bps", "1", "--packet-bytes", "100"], "the address of one host"),
        (["--to", "127.0.0.1:9", "--rate-bps", "0", "--packet-bytes", "100"], "expected --rate-bps from 1"),
        (["--to", "127.0.0.1:9", "--rate-bps", "1e6", "--packet-bytes", "100"], "expected --rate-bps from 1"),
        (["--to", "127.0.0.1:9", "--rate-bps", "1", "--packet-bytes", "43"], "expected --packet-bytes from 44"),
        (["--to", "127.0.0.1:9", "--rate-bps", "1", "--packet-bytes", "99", "--on-ns", "5"], "come together"),
        (["--to", "127.0.0.1:9", "--rate-bps", "1", "--packet-bytes", "99", "--ecn", "2"], "expected --ecn from 0"),
        (["--to", "127.0.0.1:9", "--rate-bps", "1", "--packet-bytes", "99", "--burst", "2"], "unknown argument"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_wrong_usage_starts_nothing(tmp_path, words, message):
    done = load("start", "--dir", str(tmp_path / "load"), *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "load").exists()
