"""A failure in the words of the job: operator, communicator, rank and peer by name."""

from dataclasses import replace

import pytest

from genie.collectives.config import CollectivesConfig
from genie.collectives.lower import lower
from genie.launch.agents import ending
from genie.launch.blame import explain
from genie.launch.protocol import Failure, FailureCode
from genie.workload import load
from genie.workload.check import check
from genie.workload.config import MoeConfig

NONE = 0xFFFFFFFF
HOSTS = tuple(f"h{rank}" for rank in range(8))


@pytest.fixture(scope="module")
def programs():
    return lower(check(load(MoeConfig())), CollectivesConfig())


def failure(programs, code, peer=3, waited_ns=2_000_000_000):
    op = next(i for i, op in enumerate(programs[1].ops) if op.call >= 0)
    return op, Failure(1, code, op, 4, peer, 0, waited_ns, "said by the engine")


def test_a_stall_names_operator_communicator_peer_and_time(programs):
    op, stalled = failure(programs, FailureCode.STALL)
    words = explain(programs, HOSTS, stalled)
    operator = programs[1].ops[op]
    assert words.startswith(f"on h1 made no progress in operator {operator.trace_id} '{operator.name}'")
    assert f"communicator '{programs[1].calls[operator.call].comm}', iteration 4" in words
    assert words.endswith("waiting for rank 3 on h3 for 2 s (said by the engine)")


def test_a_lost_peer_is_not_what_was_waited_for(programs):
    _, lost = failure(programs, FailureCode.PEER_CLOSED)
    words = explain(programs, HOSTS, lost)
    assert words.startswith("on h1 lost its peer, rank 3 on h3, in operator")
    assert "waiting for" not in words


def test_an_iteration_that_nobody_said_is_not_named(programs):
    op, refused = failure(programs, FailureCode.PROTOCOL)
    words = explain(programs, HOSTS, replace(refused, iteration=NONE))
    assert f"in operator {programs[1].ops[op].trace_id}" in words
    assert "iteration" not in words


def test_nothing_is_named_that_is_not_known(programs):
    words = explain(programs, HOSTS, Failure(1, FailureCode.OUT_OF_MEMORY, NONE, 0, NONE, 0, 0, ""))
    assert words == "on h1 ran out of memory"


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "ended with status 0"), (3, "ended with status 3"), (-9, "was killed by SIGKILL"), (-99, "was killed by 99")],
)
def test_how_a_program_ended(code, words):
    assert ending(code) == words
