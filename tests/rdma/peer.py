"""Rank 1 of a job of two, in pyverbs: an independent other half for the native verbs transport, which is rank 0.

Runs in a machine of the lab under the distribution's Python, with nothing of GENIE but the agent that it starts, whose
controller it is as well. It speaks the control protocol from docs/formats.md §4 and the wire's conventions from
native/src/verbs*.h: cards, one RDMA write with immediate a message with the call's id, credits of 64 bytes under the
topmost bit. It checks every message that arrives (call, length, payload, order, what its credits allowed) and sends
what rank 1's program says; rank 0 checks that (verify). ``peer.py SPEC.json`` prints what it found as JSON.

The spec has ``agent``, ``token`` and ``blob`` (hex), ``device``, ``gid_index``, ``slots``, ``queue_pairs``,
``message_bytes``, ``iterations``, ``messages`` (of one iteration: [do, call, message, bytes]) and ``lie``: what it does
wrong on purpose with its last message, "" (nothing), "payload" or "call".
"""

from __future__ import annotations

import collections
import hashlib
import hmac
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from ipaddress import IPv6Address
from pathlib import Path

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PATIENCE_S = 60.0
VERSION = 3
HELLO, CHALLENGE, PROOF, PROGRAM, LISTENING, CONNECT, CONNECTED = range(1, 8)
START, PROGRESS, DONE, FAILED, ABORT, BYE = range(10, 16)
CARD = struct.Struct("<I16sHBBBBBIIIQQI")
CARD_MAGIC = int.from_bytes(b"GVB2", "little")
FLOW = struct.Struct("<IHBQQ")
CREDIT = struct.Struct("<QQQ40x")
IS_CREDIT = 1 << 31
LINE_BYTES = 64
WORD = (1 << 64) - 1
NEVER = WORD
"""No message goes before its immediate: adaptive routing is off, as by default on Ethernet."""


class Wrong(Exception):
    """What the other side did wrong."""


def pattern(call, iteration, message, size):
    """The payload of a message of a run with verify (native/src/pattern.h), written anew."""

    def mix(x):
        x ^= x >> 33
        x = x * 0xFF51AFD7ED558CCD & WORD
        x ^= x >> 33
        x = x * 0xC4CEB9FE1A85EC53 & WORD
        return x ^ x >> 33

    seed = mix(mix(call << 32 | iteration) ^ message)
    words = ((seed + index) * 0x9E3779B97F4A7C15 & WORD for index in range(-(-size // 8)))
    return b"".join(word.to_bytes(8, "little") for word in words)[:size]


class Agent:
    """The native rank's agent, and the controller's end of its connection."""

    def __init__(self, spec, folder):
        self._token = bytes.fromhex(spec["token"])
        path = f"{folder}/control"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(path)
            listening.listen(1)
            listening.settimeout(PATIENCE_S)
            self.process = subprocess.Popen(
                [spec["agent"], "run", "--control", f"unix:{path}", "--host", "native"],
                stdin=subprocess.PIPE, stdout=sys.stderr, stderr=sys.stderr, cwd=folder,
            )  # fmt: skip
            self.process.stdin.write(self._token)
            self.process.stdin.close()
            self._socket, _ = listening.accept()
        self._socket.settimeout(PATIENCE_S)
        self._buffer = b""
        self.failed = None
        self._prove()

    def _prove(self):
        payload = self.wait(HELLO)
        (length,) = struct.unpack_from("<H", payload)
        theirs, ours = payload[2 + length : 34 + length], os.urandom(32)
        self.send(CHALLENGE, ours + self._hmac(b"genie-controller" + theirs + ours))
        if self.wait(PROOF) != self._hmac(b"genie-agent" + ours + theirs):
            raise Wrong("the agent does not know the token")

    def _hmac(self, text):
        return hmac.new(self._token, text, hashlib.sha256).digest()

    def send(self, kind, payload=b""):
        self._socket.sendall(struct.pack("<IHH", len(payload), kind, VERSION) + payload)

    def wait(self, kind):
        """The payload of the next frame of that kind; failures are kept, progress is passed over."""
        while True:
            size, found, version = struct.unpack("<IHH", self._take(8))
            if version != VERSION:
                raise Wrong(f"control protocol {version}, expected {VERSION}")
            payload = self._take(size)
            if found == kind:
                return payload
            if found == FAILED:
                rank, code, _, iteration, peer, call = struct.unpack_from("<6I", payload)
                (length,) = struct.unpack_from("<H", payload, 32)
                text = payload[34 : 34 + length].decode()
                self.failed = {"code": code, "iteration": iteration, "peer": peer, "call": call, "text": text}
                if kind in (LISTENING, CONNECTED):
                    raise Wrong(f"rank {rank} failed: {text}")
            elif found not in (PROGRESS, DONE):
                raise Wrong(f"a frame of type {found}, expected {kind}")

    def _take(self, size):
        while len(self._buffer) < size:
            data = self._socket.recv(1 << 16)
            if not data:
                raise Wrong("the agent closed the control connection")
            self._buffer += data
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data


class Flow:
    """One direction between the two ranks: our queue pairs and place for it, and where the other side's are."""

    def __init__(self, verbs, sends, place, stride):
        self.sends, self.place, self.stride = sends, place, stride
        self.pairs = [verbs.queue_pair() for _ in range(verbs.spec["queue_pairs"])]
        self.remote = None
        self.lanes = [collections.deque() for _ in self.pairs]  # (immediate, bytes) of what arrived
        self.count = 0  # messages sent, or received


class Verbs:
    """A device, memory and queue pairs, in pyverbs."""

    def __init__(self, spec):
        self.spec = spec
        self.slot = -(-spec["message_bytes"] // LINE_BYTES) * LINE_BYTES
        slots = spec["slots"]
        self.context = Context(name=spec["device"])
        self.gid = self.context.query_gid(1, spec["gid_index"])
        self.mtu = int(self.context.query_port(1).active_mtu)
        self.domain = PD(self.context)
        payload, ring = slots * self.slot, slots * LINE_BYTES
        self.memory = MR(self.domain, 2 * payload + 2 * ring + LINE_BYTES,
                         e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)  # fmt: skip
        self.completions = CQ(self.context, 4096)
        self._pairs = []
        self.source = payload  # where what we send is made; what arrives lies before it
        self.outgoing = Flow(self, True, 2 * payload, LINE_BYTES)  # its place is the ring of credits we read
        self.incoming = Flow(self, False, 0, self.slot)
        self.credit_at = 2 * payload + ring
        self._sent = 0  # completions of sends to come
        self.granted = slots
        self.credits_seen = 0

    def queue_pair(self):
        depth = 4 * self.spec["slots"]
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=1, max_recv_sge=1)
        made = QP(self.domain, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.completions, rcq=self.completions, cap=cap,
                                          sq_sig_all=True))  # fmt: skip
        self._pairs.append(made)
        return made, int.from_bytes(os.urandom(3), "little")

    def card(self):
        spec = self.spec
        raw = IPv6Address(self.gid.gid).packed
        out = CARD.pack(CARD_MAGIC, raw, 0, 2, self.mtu, 0, 0, 1, spec["queue_pairs"], spec["slots"],
                        self.memory.rkey, spec["message_bytes"], NEVER, 2)  # fmt: skip
        for flow in (self.outgoing, self.incoming):
            out += FLOW.pack(0, 0, flow.sends, self.memory.buf + flow.place, flow.stride)
            for pair, psn in flow.pairs:
                out += struct.pack("<II", pair.qp_num, psn)
        return out

    def connect(self, card):
        """Read the native rank's card, and bring each queue pair to it; receives are there before it can write."""
        head = CARD.unpack_from(card)
        magic, raw, _, layer, mtu, mode, split, verify, pairs, slots, rkey, message_bytes, data_first, flows = head
        spec = self.spec
        expected = (CARD_MAGIC, 2, 0, 0, 1, spec["queue_pairs"], spec["slots"], spec["message_bytes"], NEVER, 2)
        found = (magic, layer, mode, split, verify, pairs, slots, message_bytes, data_first, flows)
        if found != expected:
            raise Wrong(f"a card of {found}, expected {expected}")
        at = CARD.size
        for _ in range(flows):
            peer, channel, sends, address, stride = FLOW.unpack_from(card, at)
            at += FLOW.size
            ends = [struct.unpack_from("<II", card, at + 8 * number) for number in range(pairs)]
            at += 8 * pairs
            if (peer, channel) != (1, 0):
                raise Wrong(f"a flow to rank {peer} on channel {channel}")
            flow = self.incoming if sends else self.outgoing
            flow.remote = address, stride, rkey
            for (pair, psn), (number, their_psn) in zip(flow.pairs, ends, strict=True):
                self._to_ready(pair, psn, number, their_psn, IPv6Address(raw).exploded, min(mtu, self.mtu))
                for _ in range(2 * slots):
                    self._receive(pair)
        if at != len(card):
            raise Wrong(f"a card of {len(card)} bytes, read {at}")

    def _to_ready(self, pair, psn, number, their_psn, gid, mtu):
        route = GlobalRoute(dgid=GID(gid), sgid_index=self.spec["gid_index"], hop_limit=255)
        attributes = QPAttr(port_num=1)
        attributes.pkey_index = 0
        attributes.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        attributes.path_mtu = mtu
        attributes.dest_qp_num, attributes.rq_psn, attributes.sq_psn = number, their_psn, psn
        attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 1
        attributes.min_rnr_timer, attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = 12, 20, 7, 7
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        pair.to_rts(attributes)

    def _receive(self, pair):
        # A write with immediate takes a receive and no place in it, but pyverbs wants one.
        pair.post_recv(RecvWR(wr_id=0, num_sge=1, sg=[SGE(self.memory.buf, 0, self.memory.lkey)]))

    # -- what goes over it

    def _write(self, flow, lane, immediate, source, size, target):
        """One RDMA write with immediate from ``source`` of our memory to ``target`` of theirs, to its completion."""
        piece = SGE(self.memory.buf + source, size, self.memory.lkey)
        request = SendWR(
            wr_id=1, opcode=e.IBV_WR_RDMA_WRITE_WITH_IMM, num_sge=1, imm_data=socket.htonl(immediate), sg=[piece]
        )
        request.set_wr_rdma(flow.remote[2], target)
        flow.pairs[lane][0].post_send(request)
        self._sent += 1
        self._until(lambda: self._sent == 0, f"a write of {size} bytes")

    def _until(self, reached, what):
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            count, found = self.completions.poll(16)
            for completion in found[:count]:
                self._complete(completion)
            if not count and time.monotonic() > deadline:
                raise Wrong(f"{what} did not come within {PATIENCE_S:g} s")

    def _complete(self, completion):
        if completion.status != e.IBV_WC_SUCCESS:
            raise Wrong(f"a completion with status {completion.status} on queue pair {completion.qp_num}")
        if completion.wr_id == 1:
            self._sent -= 1
            return
        for flow in (self.outgoing, self.incoming):
            for lane, (pair, _) in enumerate(flow.pairs):
                if pair.qp_num == completion.qp_num:
                    self._arrived(flow, lane, socket.ntohl(completion.imm_data), completion.byte_len)
                    self._receive(pair)

    def _arrived(self, flow, lane, immediate, size):
        if not flow.sends:
            flow.lanes[lane].append((immediate, size))
            if sum(map(len, flow.lanes)) > self.spec["slots"]:
                raise Wrong("more messages than the credits allow")
            return
        place = flow.place + self.credits_seen % self.spec["slots"] * LINE_BYTES
        number, granted, _ = CREDIT.unpack(self.memory.read(LINE_BYTES, place))
        if (lane, size, number) != (0, LINE_BYTES, self.credits_seen) or immediate != IS_CREDIT | number:
            raise Wrong(
                f"credit {number} ({immediate:#x}, {size} bytes, queue pair {lane}), expected {self.credits_seen}"
            )
        if granted < self.granted or granted > flow.count + self.spec["slots"]:
            raise Wrong(f"credit {number} lets {granted} messages come, after {self.granted} and {flow.count} sent")
        self.granted = granted
        self.credits_seen += 1

    def send(self, call, iteration, message, size, lie=""):
        flow = self.outgoing
        self._until(lambda: flow.count < self.granted, f"a credit for message {flow.count}")
        data = pattern(call, iteration, message, size)
        if lie == "payload":
            data = data[:-1] + bytes([data[-1] ^ 1])
        if size:
            self.memory.write(data, size, self.source)
        address, stride, _ = flow.remote
        target = address + flow.count % self.spec["slots"] * stride
        lane, said = flow.count % len(flow.pairs), call + 1 if lie == "call" else call
        flow.count += 1  # before its credit can come
        self._write(flow, lane, said, self.source, size, target)

    def receive(self, call, iteration, message, size):
        flow = self.incoming
        lane = flow.lanes[flow.count % len(flow.pairs)]
        self._until(lambda: lane, f"message {flow.count} (call {call}, {size} bytes)")
        found = lane.popleft()
        if found != (call, size):
            raise Wrong(f"message {flow.count}: call and bytes {found}, expected {(call, size)}")
        place = flow.place + flow.count % self.spec["slots"] * flow.stride
        if size and self.memory.read(size, place) != pattern(call, iteration, message, size):
            raise Wrong(f"message {flow.count} of call {call}: another payload than expected")
        flow.count += 1
        number = flow.count - 1
        self.memory.write(CREDIT.pack(number, flow.count + self.spec["slots"], 0), LINE_BYTES, self.credit_at)
        address, stride, _ = flow.remote
        target = address + number % self.spec["slots"] * stride
        self._write(flow, 0, IS_CREDIT | number, self.credit_at, LINE_BYTES, target)


def exchange(spec, verbs):
    """Rank 1's program, message by message."""
    for iteration in range(spec["iterations"]):
        for number, (do, call, message, size) in enumerate(spec["messages"]):
            if do == "recv":
                verbs.receive(call, iteration, message, size)
                continue
            last = (iteration, number) == (spec["iterations"] - 1, spec["last_send"])
            verbs.send(call, iteration, message, size, spec["lie"] if last else "")
            if last and spec["lie"]:
                return


def main(path):
    spec = json.loads(Path(path).read_text())
    found = {"problem": "", "failed": None, "status": None}
    with tempfile.TemporaryDirectory() as folder:
        agent = Agent(spec, folder)
        try:
            verbs = Verbs(spec)
            blob, event_path = bytes.fromhex(spec["blob"]), b"native.evt"
            agent.send(
                PROGRAM, struct.pack("<IH", 0, len(event_path)) + event_path + struct.pack("<I", len(blob)) + blob
            )
            _, _, _, size = struct.unpack_from("<IHHI", payload := agent.wait(LISTENING))
            card = payload[12 : 12 + size]
            verbs.connect(card)
            ranks = b"".join(struct.pack("<IIHHI", rank, 0, 0, 0, len(data)) + data
                             for rank, data in enumerate((card, verbs.card())))  # fmt: skip
            agent.send(CONNECT, struct.pack("<I", 2) + ranks)
            agent.wait(CONNECTED)
            agent.send(START, struct.pack("<q", time.monotonic_ns() + 50_000_000))
            exchange(spec, verbs)
            _, found["status"] = struct.unpack_from("<II", agent.wait(DONE))
            agent.send(BYE)
            found.update(sent=verbs.outgoing.count, received=verbs.incoming.count, credits=verbs.credits_seen)
        except Wrong as wrong:
            found["problem"] = str(wrong)
        finally:
            found["failed"] = agent.failed
            agent.process.kill()
            agent.process.wait()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
