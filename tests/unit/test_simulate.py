"""The engine's own executor over a virtual clock against the textbook prediction: two ways to the same time."""

import pytest

from genie import _native, workload
from genie.collectives.config import CollectivesConfig
from genie.collectives.lower import lower
from genie.engine.encode import Endpoint, EngineSettings, encode
from genie.engine.predict import predict
from genie.workload.check import check

RATE_BPS = 100_000_000
LATENCY_NS = 30_000


def both(mapping, **collectives):
    """(predicted, simulated) time of one iteration, ns; the simulated payload bytes of each rank, and the predicted."""
    programs = lower(check(workload.load(mapping)), CollectivesConfig(**collectives))
    hosts = [f"h{program.rank}" for program in programs]
    predicted = predict(programs, hosts, dict.fromkeys(hosts, RATE_BPS), LATENCY_NS)
    settings = EngineSettings(run_id=bytes(16))
    blobs = [encode(program, settings, [Endpoint(1)] * len(programs)) for program in programs]
    found = _native.simulate(blobs, latency_ns=LATENCY_NS, rank_rate_bps=[RATE_BPS] * len(programs))
    assert found["failures"] == [None] * len(programs)
    simulated_ns = max(ends[0] for ends in found["iteration_end_ns"])
    return predicted.iteration_ns, simulated_ns, found["bytes_sent"], list(predicted.sent_bytes)


@pytest.mark.parametrize(
    ("mapping", "collectives", "tolerance"),
    [
        pytest.param({"name": "dp"}, {}, 0.005, id="dp moves in lock step"),
        pytest.param({"name": "fsdp"}, {}, 0.005, id="fsdp moves in lock step"),
        pytest.param({"name": "collective"}, {}, 0.005, id="all-reduce at every size"),
        pytest.param({"name": "collective", "kind": "all_to_all"}, {}, 0.02, id="all-to-all at every size"),
        pytest.param({"name": "tp_pp"}, {}, 0.05, id="tp_pp leaves gaps that others fill"),
        pytest.param({"name": "moe"}, {}, 0.10, id="moe shares cards between calls message by message"),
        pytest.param({"name": "moe"}, {"all_to_all": "pairwise"}, 0.02, id="moe in rounds"),
    ],
)
def test_the_executor_takes_the_time_that_was_predicted(mapping, collectives, tolerance):
    predicted_ns, simulated_ns, sent, expected = both(mapping, **collectives)
    assert simulated_ns == pytest.approx(predicted_ns, rel=tolerance)
    assert sent == expected


def test_a_damaged_program_is_refused():
    with pytest.raises(ValueError, match="program"):
        _native.simulate([b"GNIEPRG1"], latency_ns=0, rank_rate_bps=[0])
