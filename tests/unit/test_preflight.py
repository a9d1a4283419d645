"""``genie preflight`` without a network: its words, its plan, its record and baseline, its report, its ends."""

import json
import math
import os
import random
import re
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv6Address
from itertools import combinations
from pathlib import Path

import pytest

from genie.cli import main
from genie.compose import compose
from genie.errors import (
    EXIT_BAD_INPUT,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_VERDICT_FAILED,
    ConfigError,
    GenieError,
    PlanError,
    RunAborted,
)
from genie.preflight import command, load_baseline
from genie.preflight import record as records
from genie.preflight.config import PreflightConfig
from genie.preflight.judge import judge
from genie.preflight.measure import Samples, matrices_of
from genie.preflight.measuring import Measured
from genie.preflight.prepared import Prepared, prepare, rails_of_network
from genie.preflight.progress import PreflightNarrator
from genie.preflight.record import Matrices, PreflightRecord, matrix_of
from genie.preflight.report import render
from genie.preflight.schedule import Way, load_bytes, schedule
from genie.rdma.model import Gid, RdmaDevice, RdmaHost, RdmaPort
from genie.schema import parse_config
from genie.topology import LeafSpineConfig, Node, RingConfig, SingleSwitchConfig, Topology, build, paths
from genie.transport import built
from genie.workload import load
from genie.workload.check import check

GOLDEN = Path(__file__).parents[1] / "golden" / "report"
SMALL = ("fabric=loopback", "topology=single_switch", "topology.hosts=4", "tracking.mlflow.enabled=false")


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("GENIE_UPDATE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text()


# -- words --------------------------------------------------------------------------------------------------------


def test_settings_take_units_and_the_rest_goes_to_the_run() -> None:
    line, settings = command.read_line(
        ["preflight.message_bytes=1MiB", "+preflight.port_least_ratio=90%", "preflight.time=2s", "fabric=loopback"]
    )
    assert (settings.message_bytes, settings.port_least_ratio, settings.time_ns) == (2**20, 0.9, 2 * 10**9)
    assert [override.text for override in line.overrides] == ["fabric=loopback"]
    assert command.read_line([])[1] == PreflightConfig()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["preflight.repeat=2"], r"preflight\.repeat: there is no such key; did you mean 'repeats'"),
        (["preflight.repeats"], "a value is missing"),
        (["preflight.repeats=0"], r"preflight\.repeats: must lie between 1 and 1000"),
        (["preflight.repeats=1", "preflight.repeats=2"], "given twice"),
        (["preflight.tool=iperf"], "found 'iperf'"),
        (["preflight.time=0.5us"], "must be at least 1ms"),
        (["preflight.port_least_ratio=1.5"], "ratio lies between 0 and 1"),
        (["preflight.threshold=-1"], "must be above 0"),
        (["preflight.pings=[1,2]"], "expected an integer"),
        (["preflight.time={"], "cannot be read"),
        (["workload=moe"], r"workload: is not for a preflight: a preflight brings its own"),
        (["workload.iterations=3"], r"workload\.iterations: is not for a preflight"),
        (["collective.chunk_bytes=1MiB"], r"write preflight\.message_bytes"),
        (["protocol=aba"], "compares with the last one"),
        (["-m", "seed=1,2"], "takes no -m"),
        (["--cfg", "job"], "takes no --cfg"),
        (["topolgy.hosts=2"], "did you mean 'topology'"),
    ],
)
def test_what_a_preflight_does_not_know_is_refused(words, message) -> None:
    with pytest.raises(ConfigError, match=message):
        command.read_line(words)


def test_the_command_line_shows_its_usage_and_refuses_a_wrong_word(capsys) -> None:
    assert main(["preflight", "--help"]) == EXIT_OK
    assert "docs/preflight.md" in capsys.readouterr().out
    assert main(["preflight", "preflight.keeps=never"]) == 2
    assert "did you mean 'keep'" in capsys.readouterr().err


def test_a_run_does_not_take_the_settings_of_a_preflight(capsys) -> None:
    assert main(["preflight.repeats=2"]) == 2
    assert "there is no such key" in capsys.readouterr().err


# -- plan ---------------------------------------------------------------------------------------------------------


def prepared(*words: str, **settings: object) -> Prepared:
    line, found = command.read_line([*words, *(f"preflight.{key}={value}" for key, value in settings.items())])
    (composed,) = compose(line)
    return prepare(parse_config(composed.mapping, composed.choices), found)


def carried(network, pairs) -> dict[str, int]:
    """What each port may have to carry at the worst, when every pair's flow takes it."""
    hosts = [node.name for node in network.hosts]
    found: dict[str, int] = {}
    for a, b in pairs:
        trails = paths(network, hosts[a], hosts[b])
        rate = max(min(min(p.model.rate_bps for p in link.ports) for link in trail) for trail in trails)
        for name in {port.name for trail in trails for link in trail for port in link.ports}:
            found[name] = found.get(name, 0) + rate
    return found


NETWORKS = [
    LeafSpineConfig(),
    LeafSpineConfig(hosts=9, leaves=3, spines=2, oversubscription=3.0),
    LeafSpineConfig(hosts=6, leaves=2, spines=4, fabric_rate="25Mbps"),
    SingleSwitchConfig(hosts=7),
    RingConfig(hosts=6),
    RingConfig(hosts=2),
]


@pytest.mark.parametrize("config", NETWORKS, ids=lambda config: f"{config.name}-{config.hosts}")
def test_waves_measure_every_pair_once_and_never_overload_a_cable(config) -> None:
    network = build(config)
    found = schedule(network, shaped=True)
    rates = {port.name: port.model.rate_bps for port in network.ports}
    for rounds in (found.latency, found.bandwidth):
        assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(config.hosts), 2))
        for pairs in rounds:
            places = [place for pair in pairs for place in pair]
            assert len(places) == len(set(places))
    for pairs in found.bandwidth:
        if len(pairs) > 1:  # a pair alone has all that there is
            assert all(load <= rates[port] for port, load in carried(network, pairs).items())


def test_pairs_on_one_switch_go_all_at_once_and_without_rates_one_by_one() -> None:
    network = build(SingleSwitchConfig(hosts=8))
    assert schedule(network, shaped=True).bandwidth == schedule(network, shaped=True).latency
    alone = schedule(network, shaped=False)
    assert all(len(pairs) == 1 for pairs in alone.bandwidth)
    assert {way.rate_bps for way in alone.ways.values()} == {0}


def test_a_part_of_the_tournament_is_drawn_by_the_seed() -> None:
    network = build(SingleSwitchConfig(hosts=16))
    first, again, other = (schedule(network, shaped=True, rounds=3, seed=seed) for seed in (1, 1, 2))
    assert (first.rounds, first.all_rounds, len(first.pairs)) == (3, 15, 24)
    assert first.latency == again.latency != other.latency


@pytest.mark.parametrize(
    ("rate_bps", "time_ns", "expected"),
    [
        (10**8, 300_000_000, 15 * 2**18),
        (400 * 10**9, 10**9, 190735 * 2**18),
        (10**6, 10**6, 8 * 2**18),
        (0, 1, 2**26),
    ],
    ids=["100M", "400G", "so slow that eight messages are more", "no rate known"],
)
def test_a_direction_is_loaded_for_the_time_at_its_rate_in_whole_messages(rate_bps, time_ns, expected) -> None:
    assert load_bytes(Way(2, rate_bps), time_ns=time_ns, message_bytes=2**18, channels=1) == expected


def test_the_job_of_the_default_network_is_one_that_can_be_replayed() -> None:
    found = prepared()
    config = found.plan.config
    check(load(config.workload))
    assert (config.workload.ranks, config.workload.iterations, config.warmup, config.label) == (8, 3, 0, "preflight")
    assert config.collective.chunk_bytes == 256 * 1024
    assert found.plan.host_of_rank == tuple(f"h{n}" for n in range(8))
    assert 15e9 < found.wire_ns < 40e9  # of the 60 s that a preflight of the default network may take
    assert found.bytes_in_all == 2 * 28 * 3 * 15 * 256 * 1024


def test_the_schedule_is_shown_before_anything_is_touched(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["preflight", "dry_run=true", "topology.hosts=4", "topology.leaves=2", "fabric=netns"]) == EXIT_OK
    check_golden("preflight_schedule", capsys.readouterr().out)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("topology.hosts=1",), "needs two hosts or more"),
        (("preflight.load_bytes=1KiB",), r"preflight\.load_bytes: must be two messages"),
        (("preflight.rounds=1000",), r"preflight\.rounds: the tournament of 4 hosts has 3 rounds, found 1000"),
        (("preflight.tool=perftest",), r"preflight\.tool: perftest measures verbs, the transport is tcp"),
        (
            ("topology=leaf_spine", "topology.hosts=64", "topology.leaves=8", "fabric=netns", "preflight.pings=5000"),
            r"(?s)more than one program holds.*preflight\.pings=\d+ or preflight\.rounds=\d+",
        ),
        (
            ("topology.hosts=8", "preflight.rounds=1", "preflight.pings=100000"),
            r"(?s)more than one program holds\n  preflight\.pings=62499$",
        ),
        (
            ("fabric=netns", "preflight.time=1h", "preflight.message_bytes=1"),
            r"preflight\.message_bytes: .* found 1 bytes a message\n  preflight\.message_bytes=21 or more",
        ),
    ],
    ids=[
        "one-host",
        "too-few-bytes",
        "too-many-rounds",
        "perftest-on-tcp",
        "too-many-pings",
        "pings-of-one-round",
        "too-many-messages",
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_way_out(words, message) -> None:
    base = [word for word in SMALL if word.partition("=")[0] not in {own.partition("=")[0] for own in words}]
    with pytest.raises(GenieError) as caught:
        prepared(*base, *words)
    assert re.search(message, str(caught.value))


@pytest.fixture
def with_rdma(monkeypatch) -> None:
    """This machine has two RDMA devices, as far as the plan hears."""
    port = RdmaPort(1, "ACTIVE", "Ethernet", (Gid(3, IPv6Address("::ffff:127.64.0.1"), "RoCE v2"),))
    devices = tuple(RdmaDevice(name, (port,)) for name in ("mlx5_0", "mlx5_1"))
    monkeypatch.setattr(built, "this_machine", lambda transport: RdmaHost("this machine", devices))


@pytest.mark.usefixtures("with_rdma")
def test_rails_are_ranks_of_a_host_and_must_be_as_many_on_each() -> None:
    two = prepared(*SMALL, "transport=verbs", "transport.devices=[mlx5_0,mlx5_1]")
    assert two.rails == ("mlx5_0", "mlx5_1")
    assert two.plan.config.workload.ranks == 8
    assert two.plan.host_of_rank == ("h0", "h0", "h1", "h1", "h2", "h2", "h3", "h3")
    assert {s["device"] for s in two.plan.transport_settings[::2]} == {"mlx5_0"}
    for text in two.plan.config.workload.bandwidth_rounds:  # a rail meets its like only
        a, b = (int(rank) for rank in text.partition(":")[0].split("-"))
        assert a % 2 == b % 2
    one = prepared(*SMALL, "transport=verbs", "transport.devices=[mlx5_0]")
    assert (one.rails, one.plan.config.workload.ranks) == (("",), 4)


@pytest.mark.usefixtures("with_rdma")
def test_hosts_with_different_numbers_of_rails_are_refused_by_name() -> None:
    config = prepared(*SMALL, "transport=verbs", "transport.devices=[mlx5_0]").plan.config
    config = replace(config, transport=replace(config.transport, devices=()))
    hosts = [Node("a", "host", {"rdma_devices": "mlx5_0,mlx5_1"}), Node("b", "host", {"rdma_devices": "mlx5_0"})]
    with pytest.raises(PlanError, match="same number of rails on all hosts: b has 1, a has 2"):
        rails_of_network(config, Topology("inventory", tuple(hosts), ()))
    named = [Node("a", "host", {"rdma_devices": "mlx5_0,mlx5_1"}), Node("b", "host", {"rdma_devices": "mlx5_0,mlx5_2"})]
    assert rails_of_network(config, Topology("inventory", tuple(named), ()))[0] == ("mlx5_0", "rail1")


# -- record and baseline ------------------------------------------------------------------------------------------


def matrices(
    count: int, factor: Callable[[int, int], float] = lambda a, b: 1, seed: int = 1, name: str = ""
) -> Matrices:
    rng = random.Random(seed)
    cells = [(a, b) for a in range(count) for b in range(count) if a != b]
    bandwidth = matrix_of(count, {c: 0.0985e9 * rng.gauss(1, 0.002) * factor(*c) for c in cells})
    latency = {(a, b): 30_000 * rng.gauss(1, 0.05) for a, b in combinations(range(count), 2)}
    return Matrices(name, bandwidth, bandwidth, bandwidth,
                    matrix_of(count, latency | {(b, a): v for (a, b), v in latency.items()}))  # fmt: skip


def record_of(rails: tuple[Matrices, ...], **more: object) -> PreflightRecord:
    count = len(rails[0].bandwidth_bps)
    hosts = tuple(f"h{n}" for n in range(count))
    ways = dict.fromkeys(combinations(range(count), 2), Way(2, 10**8))
    verdict = judge(rails, hosts, ways, PreflightConfig())
    rounds = count - 1 + count % 2
    values = {
        "name": "preflight", "status": "finished", "verdict": verdict.word, "why": verdict.why,
        "created_ns": 1_795_996_800_000_000_000, "seed": 1, "reproduce": "genie preflight", "fabric_hash": "ab" * 8,
        "hosts": hosts, "topology": "leaf_spine", "fabric": "netns", "transport": "tcp", "tool": "engine",
        "settings": {"message_bytes": 262144, "ping_bytes": 64, "channels": 1},
        "schedule": {"pairs": count * (count - 1) // 2, "rounds": rounds, "all_rounds": rounds, "repeats": 3},
        "rails": rails, "findings": verdict.findings, "path": "/runs/20261130-preflight-0000", "duration_s": 18.4,
    }  # fmt: skip
    return PreflightRecord(**{**values, **more})


def test_a_record_reads_back_equal_and_is_found_by_its_fabric(tmp_path) -> None:
    record = record_of((matrices(4, lambda a, b: 0.5 if a == 3 else 1),))
    path = records.baseline_path(record.fabric_hash, tmp_path)
    records.write_record(path, record)
    assert load_baseline(record.fabric_hash, tmp_path) == record
    assert load_baseline("00" * 8, tmp_path) is None
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "genie-preflight", "version": 99}', "\x00", "[" * 200_000, '{"a":' * 100_000],
    ids=["empty", "list", "object", "version", "zero", "brackets", "braces"],
)
def test_a_damaged_baseline_is_said_and_not_believed(tmp_path, text) -> None:
    path = records.baseline_path("ab" * 8, tmp_path)
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(GenieError, match=str(path)) as refused:
        load_baseline("ab" * 8, tmp_path)
    assert refused.value.hint.startswith("delete it")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(hosts=[]), "hosts: expected two or more, found 0"),
        (lambda c: c.update(hosts=c["hosts"][:3]), "bandwidth_bps: expected 3 rows of 3 values"),
        (lambda c: c["rails"][0]["latency_ns"][1].pop(), "latency_ns: expected 4 rows of 4 values"),
        (lambda c: c["rails"][0]["bandwidth_bps"][0].__setitem__(1, math.nan), r"\[0\]\[1\]: expected .*, found nan"),
        (lambda c: c["rails"][0]["bandwidth_bps"][1].__setitem__(0, math.inf), r"\[1\]\[0\]: expected .*, found inf"),
        (lambda c: c["rails"][0]["latency_ns"][0].__setitem__(1, -1), "latency_ns.* found -1"),
        (lambda c: c["rails"][0]["bandwidth_low_bps"][0].__setitem__(1, 0), "bandwidth_low_bps.* above 0, found 0"),
        (lambda c: c["findings"][0].update(hosts=["h9"]), r"expected 1 of its hosts, found \['h9'\]"),
        (lambda c: c["findings"][0].update(where="pair"), r"expected 2 of its hosts, found \['h3'\]"),
        (lambda c: c["settings"].update(ping_bytes="64"), "settings.ping_bytes: expected int, found '64'"),
        (lambda c: c.update(why="\ud800"), "text that cannot be shown"),
        (lambda c: c["rails"][0].update(name="\ud800"), "text that cannot be shown"),
        (lambda c: c.update(more={"of": "a later version"}), ""),
    ],
    ids=["no host", "a host less", "a value less", "nan", "infinity", "negative", "zero", "unknown host", "half a pair",
         "text", "a surrogate", "a rail's name", "an unknown key"],
)  # fmt: skip
def test_what_the_types_of_a_record_do_not_say_is_looked_at(tmp_path, change, said) -> None:
    record = record_of((matrices(4, lambda a, b: 0.5 if a == 3 else 1),))
    path = records.baseline_path(record.fabric_hash, tmp_path)
    records.write_record(path, record)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    if not said:
        assert load_baseline(record.fabric_hash, tmp_path) == record
        return
    with pytest.raises(GenieError, match=said) as refused:
        load_baseline(record.fabric_hash, tmp_path)
    assert refused.value.message.startswith(str(path))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"hosts": ("a", "b", "c", "d")}, "it had other hosts"),
        ({"tool": "perftest"}, "measured with perftest, this one with engine"),
        ({"settings": {"message_bytes": 65536, "ping_bytes": 64, "channels": 1}}, "another message_bytes: 65536"),
        ({"rails": (matrices(4, name="a"),)}, "it had other rails"),
        ({}, ""),
    ],
    ids=["hosts", "tool", "messages", "rails", "alike"],
)
def test_only_what_was_measured_alike_is_compared(change, why) -> None:
    record = record_of((matrices(4),))
    assert why in records.comparable(record, replace(record, **change))
    assert bool(records.comparable(record, replace(record, **change))) == bool(why)


def test_one_network_has_one_hash_whatever_else_is_set() -> None:
    here = prepared(*SMALL).fabric_hash
    assert prepared(*SMALL, "out=elsewhere", "collective.channels=2", repeats=1, pings=3).fabric_hash == here
    assert prepared(*SMALL, "topology.host_rate=200Mbps").fabric_hash != here
    assert prepared(*SMALL, "transport.congestion_control=reno").fabric_hash != here


# -- report -------------------------------------------------------------------------------------------------------


def test_a_healthy_preflight_with_its_last_time(monkeypatch) -> None:
    monkeypatch.chdir("/")
    text = render(
        record_of(
            (matrices(8),), baseline="/runs/old", baseline_ns=1_795_900_000_000_000_000, baseline_change_ratio=-0.004,
            kept="/runs/preflight/abababababababab.json",
        )
    )  # fmt: skip
    check_golden("preflight_ok", text)


def test_a_slow_host_and_a_slow_pair(monkeypatch) -> None:
    monkeypatch.chdir("/")
    slow = matrices(8, lambda a, b: 0.5 if 3 in (a, b) else 0.7 if (a, b) == (0, 1) else 1)
    check_golden("preflight_degraded", render(record_of((slow,), kept_why="something is out of line")))


def test_rails_and_holes(monkeypatch) -> None:
    monkeypatch.chdir("/")
    some = dict.fromkeys([(0, 1), (1, 0), (2, 3)], 95e9)
    part = Matrices("mlx5_1", matrix_of(4, some), matrix_of(4, some), matrix_of(4, some), matrix_of(4, {}))
    rails = (replace(matrices(4), name="mlx5_0"), part)
    record = record_of(rails, verdict="invalid", why="interrupted; 15 of 24 directions were measured until then",
                       status="interrupted", findings=(), kept_why="it was interrupted")  # fmt: skip
    check_golden("preflight_rails", render(record))


def test_many_hosts_are_a_map_of_marks(monkeypatch) -> None:
    monkeypatch.chdir("/")
    many = matrices(24, lambda a, b: 0.4 if a == 7 else 0.7 if (a, b) == (3, 20) else 1)
    text = render(record_of((many,)))
    check_golden("preflight_wide", text)
    assert max(map(len, text.splitlines()[3:])) <= 80


def test_colour_changes_no_letter() -> None:
    record = record_of((matrices(4, lambda a, b: 0.5 if a == 3 else 1),))
    coloured = render(record, color=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render(record)


# -- its ends -----------------------------------------------------------------------------------------------------


class Fake:
    """A measuring that gives what it is told, and ends as it is told."""

    tool = "engine"

    def __init__(self, measured: Measured, error: BaseException | None = None) -> None:
        self._measured, self._error = measured, error

    def go(self, session, say) -> None:
        if self._error is not None:
            raise self._error

    def result(self) -> Measured:
        return self._measured


class NoSession:
    fabric = None

    def __init__(self, *_) -> None: ...

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None: ...


@pytest.fixture
def act(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command.experiment, "Session", NoSession)

    def run(fake: Fake, *words: str) -> int:
        monkeypatch.setattr(command, "choose", lambda *_: fake)
        return main(["preflight", *SMALL, *words])

    return run


def stored(tmp_path: Path) -> list[PreflightRecord]:
    return [records.read_record(path) for path in sorted(tmp_path.glob("runs/*/preflight.json"))]


def test_a_good_one_becomes_the_baseline_and_the_next_is_held_against_it(act, tmp_path, capsys) -> None:
    assert act(Fake(Measured((matrices(4),)))) == EXIT_OK
    (first,) = stored(tmp_path)
    assert (first.verdict, first.baseline) == ("ok", "")
    kept = load_baseline(first.fabric_hash, tmp_path / "runs")
    assert kept is not None
    assert kept.rails == first.rails
    slower = matrices(4, lambda a, b: 0.8 if a == 2 else 1, seed=2)
    assert act(Fake(Measured((slower,))), "expect=ok") == EXIT_VERDICT_FAILED
    second = next(record for record in stored(tmp_path) if record.baseline)
    assert (second.verdict, second.findings[0].hosts) == ("degraded", ("h2",))
    assert "before" in second.findings[0].against
    assert load_baseline(first.fabric_hash, tmp_path / "runs") == kept  # the slower one did not take its place
    assert "not kept as one: something is out of line" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "kept"), [(("preflight.keep=never",), False), (("preflight.keep=always",), True), ((), True)]
)
def test_what_is_kept_is_said(act, tmp_path, words, kept) -> None:
    act(Fake(Measured((matrices(4),))), *words)
    (record,) = stored(tmp_path)
    assert bool(record.kept) is kept
    assert bool(record.kept_why) is not kept


def test_ctrl_c_keeps_and_shows_what_was_measured(act, tmp_path, capsys) -> None:
    some = Samples({(0, 1): [95e9], (1, 0): [94e9]}, {(0, 1): [2000.0]})
    assert act(Fake(Measured((matrices_of("", 4, some),)), KeyboardInterrupt())) == EXIT_INTERRUPTED
    (record,) = stored(tmp_path)
    assert (record.status, record.verdict, record.rails[0].measured) == ("interrupted", "invalid", 2)
    assert "interrupted; 2 of 12 directions were measured until then" in capsys.readouterr().out
    assert not record.kept


def test_an_error_is_told_after_what_was_measured(act, tmp_path, capsys) -> None:
    some = Samples({(0, 1): [95e9]}, {})
    assert act(Fake(Measured((matrices_of("", 4, some),)), RunAborted("h2 is gone"))) == 4
    said = capsys.readouterr()
    assert "INVALID  h2 is gone; 1 of 12 directions" in said.out
    assert "genie: h2 is gone\n  what was measured until then is in runs/" in said.err
    (record,) = stored(tmp_path)
    assert record.status == "aborted"


def test_a_name_that_no_folder_can_have_is_cut(act, tmp_path) -> None:
    assert act(Fake(Measured((matrices(4),))), f"name={'x' * 300}") == EXIT_OK
    (record,) = stored(tmp_path)
    assert record.name == "x" * 300
    assert f"-{'x' * 80}-" in Path(record.path).name


def test_what_measured_nothing_is_compared_with_nothing(act, tmp_path) -> None:
    assert act(Fake(Measured((matrices(4),)))) == EXIT_OK
    assert act(Fake(Measured((matrices_of("", 4, Samples()),)), RunAborted("h2 is gone")), "run_dir=runs/lost") == 4
    assert records.read_record(tmp_path / "runs" / "lost" / records.FILE_NAME).baseline == ""


@pytest.mark.parametrize("text", ["[" * 200_000, "", "{}"], ids=["brackets", "empty", "object"])
def test_a_damaged_baseline_costs_no_measurement(act, tmp_path, text) -> None:
    path = records.baseline_path(prepared(*SMALL).fabric_hash, tmp_path / "runs")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert act(Fake(Measured((matrices(4),)))) == EXIT_OK
    (record,) = stored(tmp_path)
    assert record.rails[0].measured == 12
    assert any(note.startswith("not compared with the last preflight") for note in record.notes)
    assert load_baseline(record.fabric_hash, tmp_path / "runs") is not None  # the good one took its place


def test_of_two_in_one_empty_folder_one_has_it(act, tmp_path, capsys, monkeypatch) -> None:
    create = records.create_folder

    def late(config, name):
        folder = create(config, name)
        (folder / command.CONFIG_NAME).write_text("the other one's")
        return folder

    monkeypatch.setattr(records, "create_folder", late)
    assert act(Fake(Measured((matrices(4),))), "run_dir=here") == EXIT_BAD_INPUT
    assert "here is another preflight's, which began just now" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "here").iterdir()] == [command.CONFIG_NAME]


@pytest.mark.parametrize(
    ("left", "said", "do"),
    [
        (("run/manifest.json",), "has no preflight.json: its preflight was killed", "genie report here/run shows"),
        (("config.yaml",), "has no preflight.json: its preflight was killed", "here/log has what its tools said"),
        (("config.yaml", "events/rank-0.evt"), "is not a run directory", "usage"),
        ((), "is not a run directory", "usage"),
    ],
    ids=["killed", "killed without a run", "a run without its manifest", "nothing"],
)
def test_a_killed_preflight_is_told_from_no_run(tmp_path, monkeypatch, capsys, left, said, do) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here/run").mkdir(parents=True)
    for name in left:
        Path("here", name).parent.mkdir(exist_ok=True)
        Path("here", name).write_text("{}")
    assert main(["report", "here"]) == EXIT_BAD_INPUT
    told = capsys.readouterr().err
    assert said in told
    assert do in told


@pytest.mark.parametrize("text", [None, "", "[", "a: [1", "3"], ids=["none", "empty", "bracket", "cut short", "number"])
def test_logging_again_says_which_configuration_cannot_be_read(act, tmp_path, capsys, text) -> None:
    act(Fake(Measured((matrices(4),))), "run_dir=here")
    path = tmp_path / "here" / command.CONFIG_NAME
    path.unlink() if text is None else path.write_text(text)
    capsys.readouterr()
    assert main(["report", "here", "--log"]) == GenieError.exit_code
    assert "config.yaml" in capsys.readouterr().err


def test_a_full_disk_is_no_defect(act, tmp_path, capsys, monkeypatch) -> None:
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "write_record", full)
    assert act(Fake(Measured((matrices(4),)))) == 4
    assert "genie: the preflight could not go on: [Errno 28] No space left on device" in capsys.readouterr().err


def test_pairs_that_failed_are_findings_and_the_rest_is_judged(act, tmp_path) -> None:
    cells = {c: [0.0985e9] for c in [(a, b) for a in range(4) for b in range(4) if a != b] if c != (1, 2)}
    measured = Measured((matrices_of("", 4, Samples(cells, {})),), (("", (1, 2), "ib_write_bw ended with status 1"),))
    assert act(Fake(measured)) == EXIT_OK
    (record,) = stored(tmp_path)
    assert record.verdict == "degraded"
    assert record.why == "1 directions failed: h1 to h2: ib_write_bw ended with status 1"
    assert record.rails[0].bandwidth_bps[1][2] is None


@pytest.mark.parametrize(
    ("factor", "verdict", "code"), [(1.0, "ok", EXIT_OK), (0.4, "invalid", 4)], ids=["nothing-slow", "one-slow"]
)
def test_busy_cpus_only_matter_where_something_is_slow(act, tmp_path, factor, verdict, code) -> None:
    rail = matrices(4, lambda a, b: factor if a == 1 else 1)
    assert act(Fake(Measured((rail,), busy="emulator saturated"))) == code
    (record,) = stored(tmp_path)
    assert record.verdict == verdict
    assert ("CPUs were busier" in " ".join(record.notes)) is (verdict == "ok")


def test_a_report_is_shown_again_and_logged(act, tmp_path, capsys) -> None:
    act(Fake(Measured((matrices(4),))))
    first = capsys.readouterr().out
    (folder,) = (path.parent for path in tmp_path.glob("runs/*/preflight.json"))
    assert main(["report", str(folder)]) == EXIT_OK
    assert capsys.readouterr().out == first.partition("\n")[2]
    assert main(["report", str(folder), "--nccl-table"]) == 2
    assert json.loads((folder / "preflight.json").read_text())["format"] == "genie-preflight"


def test_progress_says_what_is_left(capsys) -> None:
    assert PreflightNarrator.share(0.01, 3.0) == f"measuring {'':<20} 1%"
    assert PreflightNarrator.share(0.25, 5.0) == f"measuring {'█████':<20} 25%, 15 s left"
    assert PreflightNarrator.share(1.2, 20.0) == f"measuring {'█' * 20} 100%, 0 s left"
    say = PreflightNarrator(1000, 2)
    say.begin(4)
    say.step()
    assert say.describe({}, 1.0).startswith("measuring")


def test_an_inventory_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"fabric\.inventory: names the hosts"):
        prepared("fabric=inventory")
