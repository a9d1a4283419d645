"""The controller against agents written in Python: the protocol of docs/formats.md §4 from the other side."""

import os
import socket
import struct
import threading
import time

import pytest

from genie.errors import RunAborted
from genie.launch import protocol
from genie.launch.control import Controller
from genie.launch.protocol import Frame, FrameReader

TOKEN = bytes(range(32))


class PythonAgent(threading.Thread):
    """Speaks the agent's side; ``script`` gets (agent, frame, payload) for each frame after the proof."""

    def __init__(self, directory, host, script, token=TOKEN):
        super().__init__(daemon=True)
        self.directory, self.host, self.script, self.token = directory, host, script, token
        self.controller_was_genuine = None
        self.seen = []

    def send(self, kind, payload=b""):
        self.socket.sendall(protocol.frame(kind, payload))

    def run(self):
        self.socket = socket.socket(socket.AF_UNIX)
        handle = os.open(self.directory, os.O_PATH)
        self.socket.connect(f"/proc/self/fd/{handle}/control.sock")
        os.close(handle)
        nonce = os.urandom(32)
        self.send(Frame.HELLO, protocol.text(self.host) + nonce + struct.pack("<I", 1))
        reader = FrameReader()
        while data := self.socket.recv(1 << 16):
            for kind, payload in reader.feed(data):
                if kind is Frame.CHALLENGE:
                    expected = protocol.controller_proof(self.token, nonce, payload[:32])
                    self.controller_was_genuine = payload[32:] == expected
                    self.send(Frame.PROOF, protocol.agent_proof(self.token, nonce, payload[:32]))
                    continue
                self.seen.append(kind)
                if self.script(self, kind, payload) == "leave":
                    self.socket.close()
                    return


USED = protocol.text('{"device": "rxe0"}')


def obedient(agent, kind, payload):
    """Loads, connects, answers pings, runs for no time, is done."""
    if kind is Frame.PROGRAM:
        agent.rank = struct.unpack_from("<I", payload)[0]
        agent.send(Frame.LISTENING, struct.pack("<IHHI", agent.rank, 4000 + agent.rank, 0, 4) + b"card" + USED)
    elif kind is Frame.CONNECT:
        agent.told = payload
        agent.send(Frame.CONNECTED, struct.pack("<I", agent.rank))
    elif kind is Frame.PING:
        agent.send(Frame.PONG, payload + struct.pack("<qq", time.monotonic_ns() + 10**9, time.time_ns()))
    elif kind is Frame.START:
        (agent.start_ns,) = struct.unpack("<q", payload)
        agent.send(Frame.PROGRESS, struct.pack("<IIQQQ", agent.rank, 1, 10, 100, 100))
        agent.send(Frame.DONE, struct.pack("<II", agent.rank, 0) + protocol.text(""))
    elif kind is Frame.ABORT:
        agent.send(Frame.DONE, struct.pack("<II", agent.rank, 2) + protocol.text("aborted"))
    elif kind is Frame.BYE:
        return "leave"
    return None


def run_phases(tmp_path, scripts, silence_s=None, on_progress=lambda _: None):
    with Controller(TOKEN) as controller:
        controller.listen_unix(tmp_path)
        agents = [PythonAgent(tmp_path, f"h{i}", script) for i, script in enumerate(scripts)]
        for agent in agents:
            agent.start()
        controller.wait_for_agents([a.host for a in agents], 5)
        opened = controller.load({i: (f"h{i}", f"events/rank-{i}.evt", b"blob") for i in range(len(agents))}, 5)
        assert all(one.used == {"device": "rxe0"} for one in opened.values())
        listeners = [protocol.Listener(rank, 0x7F000001, one.port, one.card) for rank, one in sorted(opened.items())]
        controller.connect(listeners, 5)
        offsets = controller.clock_offsets()
        controller.start(time.monotonic_ns(), offsets)
        outcome = controller.wait_done(10, on_progress, silence_s=silence_s)
        controller.bye()
        for agent in agents:
            agent.join(5 if silence_s is None else 0)
    return controller, agents, offsets, outcome


def test_a_whole_run(tmp_path):
    _, agents, offsets, outcome = run_phases(tmp_path, [obedient, obedient])
    assert outcome.ok
    assert all(agent.controller_was_genuine for agent in agents)
    reached = b"".join(struct.pack("<IIHHI", rank, 0x7F000001, 4000 + rank, 0, 4) + b"card" for rank in (0, 1))
    assert [agent.told for agent in agents] == [struct.pack("<I", 2) + reached] * 2
    assert not (tmp_path / "control.sock").exists()
    for offset in offsets.values():
        assert abs(offset.offset_ns - 10**9) <= offset.error_ns + 1_000_000


@pytest.mark.parametrize("said", ["{", "[1]", "7"], ids=["no-json", "a-list", "a-number"])
def test_what_a_transport_uses_is_an_object_or_no_run(said):
    payload = struct.pack("<IHHI", 3, 4003, 0, 0) + protocol.text(said)
    with pytest.raises(RunAborted, match="rank 3 said what no transport of this version uses"):
        protocol.parse_listening(payload)


def on_our_clock(agent, kind, payload):
    """As obedient, but reading the clock that the controller reads."""
    if kind is Frame.PING:
        agent.send(Frame.PONG, payload + struct.pack("<qq", time.monotonic_ns(), time.time_ns()))
        return None
    return obedient(agent, kind, payload)


def test_agents_of_one_clock_start_at_the_very_same_instant(tmp_path):
    _, agents, _, outcome = run_phases(tmp_path, [on_our_clock] * 3)
    assert outcome.ok
    assert len({agent.start_ns for agent in agents}) == 1


def failing(agent, kind, payload):
    if kind is Frame.START:
        body = struct.pack("<IIIIIIQ", agent.rank, 2, 7, 3, 0, 5, 10**9) + protocol.text("no progress on all_reduce")
        agent.send(Frame.FAILED, body)
        agent.send(Frame.DONE, struct.pack("<II", agent.rank, 1) + protocol.text(""))
        return None
    return obedient(agent, kind, payload)


def silent(agent, kind, payload):
    return None if kind is Frame.START else obedient(agent, kind, payload)


def test_a_failed_rank_aborts_the_others(tmp_path):
    _, agents, _, outcome = run_phases(tmp_path, [failing, silent])
    assert not outcome.ok
    assert outcome.statuses == {0: 1, 1: 2}
    assert outcome.failures[0].op == 7
    assert outcome.reason == "rank 0: no progress on all_reduce"
    assert Frame.ABORT in agents[1].seen


def test_a_lost_agent_ends_the_run_by_name(tmp_path):
    def leaving(agent, kind, payload):
        return "leave" if kind is Frame.START else obedient(agent, kind, payload)

    _, _, _, outcome = run_phases(tmp_path, [leaving, silent])
    assert outcome.reason == "the agent on h0 went away"
    assert outcome.lost == ("h0",)
    assert outcome.statuses == {0: -1, 1: 2}


def talkative(agent, kind, payload):
    """Reports progress for a second, then is done."""
    if kind is Frame.START:
        threading.Thread(target=keep_talking, args=(agent,), daemon=True).start()
        return None
    return obedient(agent, kind, payload)


def keep_talking(agent):
    end_s = time.monotonic() + 1
    while Frame.ABORT not in agent.seen and time.monotonic() < end_s:
        agent.send(Frame.PROGRESS, struct.pack("<IIQQQ", agent.rank, 1, 10, 100, 100))
        time.sleep(0.02)  # the pace of progress is what is tested
    if Frame.ABORT not in agent.seen:
        agent.send(Frame.DONE, struct.pack("<II", agent.rank, 0) + protocol.text(""))


def test_a_controller_that_stood_still_itself_blames_nobody(tmp_path):
    stood_still = []

    def stand_still(progress):
        if progress and not stood_still:
            stood_still.append(time.sleep(0.7))

    _, _, _, outcome = run_phases(tmp_path, [talkative, talkative], silence_s=0.4, on_progress=stand_still)
    assert stood_still
    assert outcome.ok, outcome


def test_agents_that_say_nothing_are_given_up_by_name(tmp_path):
    def dead(agent, kind, payload):
        return None if kind in (Frame.START, Frame.ABORT) else obedient(agent, kind, payload)

    _, _, _, outcome = run_phases(tmp_path, [talkative, dead], silence_s=0.4)
    assert outcome.reason == "nothing was heard from the agent on h1 for 0.4 s"
    assert outcome.statuses == {0: 2, 1: -1}


@pytest.mark.parametrize(
    "first_bytes",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(protocol.frame(Frame.PROOF, bytes(32)), id="a proof without a challenge"),
        pytest.param(protocol.frame(Frame.HELLO, b"\x10"), id="a short hello"),
        pytest.param(protocol.frame(Frame.LISTENING, struct.pack("<IH", 0, 1)), id="skips the proof"),
    ],
)
def test_strangers_are_refused_and_named(tmp_path, first_bytes):
    said = []
    with Controller(TOKEN, log=said.append) as controller:
        controller.listen_unix(tmp_path)
        handle = os.open(tmp_path, os.O_PATH)
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(f"/proc/self/fd/{handle}/control.sock")
        stranger.sendall(first_bytes)
        agent = PythonAgent(tmp_path, "h0", obedient)
        agent.start()
        controller.wait_for_agents(["h0"], 5)
        stranger.settimeout(5)
        with pytest.raises(RunAborted, match="no agent answered from h1"):
            controller.wait_for_agents(["h1"], 0.3)
        assert stranger.recv(100) == b""
        os.close(handle)
    assert len(said) == 1
    assert said[0].startswith("refused ")


def test_an_agent_without_the_token_is_refused(tmp_path):
    said = []
    with Controller(TOKEN, log=said.append) as controller:
        controller.listen_unix(tmp_path)
        agent = PythonAgent(tmp_path, "h0", obedient, token=bytes(32))
        agent.start()
        with pytest.raises(RunAborted, match="no agent answered from h0"):
            controller.wait_for_agents(["h0"], 0.5)
    assert agent.controller_was_genuine is False
    assert "lacks this run's token" in said[0]
