"""The bisect on a live fabric: flows go where it thinks; a fault it is not told of is found, also after a kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from genie import experiment
from genie.argv import parse
from genie.bisect.command import _ground_config
from genie.bisect.config import BisectConfig
from genie.bisect.journal import FILE_NAME
from genie.bisect.paths import ground_of
from genie.bisect.probes import config_of, load_bytes
from genie.bisect.record import read_record
from genie.bisect.replay import read_search
from genie.bisect.search import Probe
from genie.compose import compose
from genie.plan import make_plan
from genie.report.progress import Narrator
from genie.results.rundir import RunDir
from genie.schema import parse_config

pytestmark = pytest.mark.netns

WORDS = (
    "topology.hosts=8", "topology.leaves=4", "topology.spines=2", "topology.host_rate=20Mbps", "seed=4",
    "tracking.mlflow.enabled=false",
)  # fmt: skip
PATIENCE_S = 120.0


def test_flows_go_the_ways_that_the_kernels_were_asked_for(tmp_path: Path) -> None:
    (composed,) = compose(parse([*WORDS, f"out={tmp_path}"]))
    config = parse_config(composed.mapping, composed.choices)
    plan = make_plan(_ground_config(config))
    hosts = [node.name for node in plan.topology.hosts]
    settings = BisectConfig(time="200ms")
    pairs = ((0, 7), (1, 4), (2, 5), (3, 6))
    with (
        Narrator(1, len(hosts), stream=(tmp_path / "said").open("w")) as say,
        experiment.Session(plan, tmp_path, say) as session,
    ):
        ground = ground_of(plan.topology, session.fabric, hosts, seed=config.seed, shaped=True)
        probe = Probe(0, "network", pairs, tuple(ground.questions(pairs)), 0.0, 1)
        own = make_plan(replace(config_of(config, settings, ground, probe), run_dir=str(tmp_path / "probe")))
        experiment.run_on(session, own, say, reproduce="", parent="", baseline="none")
    counters = RunDir.open(tmp_path / "probe").counters()
    assert counters.after is not None
    sent = {port: counters.after[port]["tx_bytes"] - counters.before[port]["tx_bytes"] for port in counters.after
            if "tx_bytes" in counters.after[port]}  # fmt: skip
    wanted: dict[str, int] = dict.fromkeys(sent, 0)
    for a, b in [*pairs, *(pair[::-1] for pair in pairs)]:
        (way,) = ground.flows[a, b]
        for token in way.tokens:
            if token.startswith("port "):
                wanted[token.removeprefix("port ")] += load_bytes(ground, settings, (min(a, b), max(a, b)))
    for port, least in wanted.items():
        # headers, barriers and acknowledgements come on top, which are less than a tenth of one flow
        assert least <= sent[port] <= 1.1 * least + 50_000, port


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = [*WORDS, f"run_dir={tmp_path / 'search'}", "+fault=uplink_degraded", "bisect.time=200ms"]
    with (tmp_path / "said").open("w") as said:
        search = subprocess.Popen([sys.executable, "-m", "genie", "bisect", *words], stdout=said, stderr=said)
        yield search
        search.kill()
        search.wait()


def test_a_search_that_was_killed_goes_on_and_finds_the_hidden_fault(
    tmp_path: Path, begun: subprocess.Popen[bytes]
) -> None:
    folder = tmp_path / "search"
    journal = folder / FILE_NAME
    deadline_s = time.monotonic() + PATIENCE_S
    while not journal.is_file() or journal.read_bytes().count(b'"event":"probe"') < 1:
        assert begun.poll() is None, (tmp_path / "said").read_text()
        assert time.monotonic() < deadline_s
        with contextlib.suppress(subprocess.TimeoutExpired):
            begun.wait(0.05)
    os.kill(begun.pid, signal.SIGKILL)
    begun.wait()
    answers = journal.read_bytes().count(b'"event":"probe"')
    assert read_search(folder).status == "unfinished"

    done = subprocess.run(
        [sys.executable, "-m", "genie", "bisect", "--resume", str(folder)],
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"going on after {answers} probes" in done.stderr
    record = read_record(folder / "bisect.json")
    assert record.word == "found"
    (hidden,) = record.hidden
    assert len(record.culprits) == 1
    ends = hidden.rpartition(" on ")[2].split(", ")[0].split("/")
    assert record.culprits[0].component in (f"{ends[0]}-{ends[1]}", f"{ends[1]}-{ends[0]}")
    assert len(record.probes) > answers
    assert record.duration_s == pytest.approx(sum(probe.took_s for probe in record.probes))
    believed = read_search(folder).believed
    assert believed.standings[-1].confidence == pytest.approx(record.confidence, abs=1e-9)
    assert "The network" in (folder / "report.html").read_text()
    shown = subprocess.run([sys.executable, "-m", "genie", "report", str(folder)], capture_output=True, text=True)
    assert shown.stdout.startswith("FOUND  link ")
