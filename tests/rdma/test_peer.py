"""The native verbs transport against an independent half in pyverbs (`peer.py`): what each sends, the other checks."""

import json
import secrets
from dataclasses import replace
from pathlib import Path

import pytest
import roce

from genie import experiment
from genie.argv import parse
from genie.collectives.program import StepKind
from genie.compose import compose
from genie.engine.binaries import find_binary
from genie.engine.encode import Endpoint, encode
from genie.schema import parse_config

pytestmark = [pytest.mark.rdma, pytest.mark.timeout(300)]

PYTHON = "/usr/bin/python3"
"""Of a machine: the one that has pyverbs."""

JOB = ("fabric=loopback", "topology=single_switch", "topology.hosts=2", "workload=pairs", "workload.ranks=2",
       "warmup=0", "workload.iterations=2", "workload.pings=12", "workload.ping_bytes=64", "workload.bytes=100000",
       "collective.chunk_bytes=8191", "verify=true", "timeout=30s", "transport=verbs",
       f"transport.devices=[{roce.DEVICE}]")  # fmt: skip
"""Empty messages (barriers), small ones, and 13 at a time of which the last is short; slots and credits go round."""

PROTOCOL, BAD_PAYLOAD = 4, 7


@pytest.fixture(autouse=True)
def planned_for_another_machine(monkeypatch):
    """The job is planned here and runs in the lab: that there is no RDMA device here is no reason to refuse it."""
    monkeypatch.setattr("genie.plan.refuse_unfit_hosts", lambda *_: None)


def messages(program):
    """What a rank does in one iteration, in order: [do, call, message of its step, bytes]."""
    found = []
    for op in program.ops:
        if op.call < 0:
            continue
        call = program.calls[op.call]
        _, template = program.templates[call.template]
        for step in template.steps:
            size = step.size.bytes(total=call.bytes, vector=call.vector, channel=0, channels=template.channels)
            do = "send" if step.kind is StepKind.SEND else "recv"
            for number in range(max(1, -(-size // call.chunk_bytes))):
                rest = min(call.chunk_bytes, size - number * call.chunk_bytes)
                found.append([do, call.call_id, number, rest])
    return found


def spec_of(folder: Path, *words: str, lie: str = "") -> dict:
    (composed,) = compose(parse([*JOB, f"out={folder}", *words]))
    plan = experiment.plan(parse_config(composed.mapping, composed.choices))
    settings = replace(plan.settings, run_id=secrets.token_bytes(16))
    blob = encode(plan.programs[0], settings, [Endpoint(0), Endpoint(0)], plan.transport_settings[0])
    own = messages(plan.programs[1])
    return {
        "token": secrets.token_hex(32), "blob": blob.hex(), "device": roce.DEVICE, "gid_index": roce.GID_INDEX,
        "slots": plan.config.transport.slots, "queue_pairs": plan.config.transport.qps_per_connection,
        "message_bytes": max(size for *_, size in own), "iterations": 2, "messages": own, "lie": lie,
        "last_send": max(number for number, (do, *_, size) in enumerate(own) if do == "send" and size),
    }  # fmt: skip


def meet(lab, folder: Path, *words: str, lie: str = "") -> dict:
    """What the peer found."""
    spec = spec_of(folder, *words, lie=lie)
    spec["agent"] = lab.share(find_binary("genie-agent-dl"))
    (folder / "spec.json").write_text(json.dumps(spec))
    program, told = lab.share(Path(__file__).with_name("peer.py")), lab.share(folder / "spec.json")
    out = lab.output("vm1", PYTHON, program, told, timeout=240)
    return {**json.loads(out.splitlines()[-1]), "spec": spec}


@pytest.mark.parametrize(
    "words",
    [(), ("transport.qps_per_connection=4",), ("transport.slots=2", "transport.credit_every=2"),
     ("transport.inline_bytes=0",)],
    ids=["as-by-default", "four-queue-pairs", "two-slots-a-credit-for-both", "nothing-inline"],
)  # fmt: skip
def test_what_each_sends_arrives_at_the_other(lab, clean, tmp_path, words):
    found = meet(lab, tmp_path, *words)
    assert (found["problem"], found["failed"], found["status"]) == ("", None, 0)
    own = found["spec"]["messages"]
    sent, received = (2 * sum(do == wanted for do, *_ in own) for wanted in ("send", "recv"))
    assert (found["sent"], found["received"]) == (sent, received)
    assert found["credits"] >= 1


@pytest.mark.parametrize(
    ("lie", "code", "text"),
    [("payload", BAD_PAYLOAD, "byte"), ("call", PROTOCOL, "call")],
    ids=["a-byte-that-differs", "another-call"],
)
def test_what_is_not_as_agreed_is_found_by_the_native_side(lab, clean, tmp_path, lie, code, text):
    found = meet(lab, tmp_path, lie=lie)
    assert found["problem"] == ""
    assert found["status"] != 0
    assert (found["failed"]["code"], found["failed"]["peer"]) == (code, 1)
    assert text in found["failed"]["text"]
