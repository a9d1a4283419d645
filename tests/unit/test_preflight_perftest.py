"""perftest's tables are read, its failures named; a whole tournament of it on stand-ins."""

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import perftest as standin
import pytest

from genie.errors import EnvironmentUnfit, RunAborted
from genie.fabric.base import Completed
from genie.fabric.config import LoopbackConfig
from genie.fabric.loopback import LoopbackFabric
from genie.preflight import command, measuring, perftest
from genie.preflight.hardware import counted, sentences
from genie.preflight.judge import Verdict
from genie.preflight.measuring import Measured, PerftestMeasuring
from genie.preflight.perftest import (
    ClockUnread,
    Perftest,
    Seat,
    parse_bandwidth_bps,
    parse_latency_ns,
    rail_with_address,
)
from genie.preflight.record import Finding
from genie.rdma.model import read_verbs_list
from genie.rdma.rails import Rail
from genie.topology import SingleSwitchConfig, build
from genie.transport import VerbsTransport

RECORDED = Path(__file__).parents[1] / "data" / "perftest"


@pytest.mark.parametrize(
    ("row", "bps"),
    [
        (" 65536      5000             391.81             391.55              0.746822", 391.55e9),
        (" 65536      1000             0.00               0.45                0.000862", 65536 * 8 * 862),
        (" 1048576    200              0.20               0.19 \t\t   0.000023", 0.19e9),
    ],
    ids=["400G", "by duration, slow", "slow, as old versions print it"],
)
def test_a_rate_is_the_average_or_the_message_rate_whichever_has_more_digits(row, bps) -> None:
    assert parse_bandwidth_bps(f"{standin.LINE}\n{standin.BW_HEAD}\n{row}\n{standin.LINE}") == pytest.approx(bps)


def test_what_was_recorded_on_soft_roce_is_read() -> None:
    bandwidth = parse_bandwidth_bps((RECORDED / "ib_write_bw.txt").read_text())
    assert bandwidth == 25_222_000
    assert parse_latency_ns((RECORDED / "ib_write_lat.txt").read_text()) == 5_498_740


@pytest.mark.parametrize(
    "text",
    ["", " Failed to complete run_iter_bw function successfully", f"{standin.BW_HEAD}\n", standin.LAT_HEAD],
    ids=["nothing", "failed", "no-row", "another-table"],
)
def test_anything_but_the_table_is_refused(text) -> None:
    with pytest.raises(RunAborted, match="expected perftest's table with the column 'BW average"):
        parse_bandwidth_bps(text)


# -- on stand-ins -------------------------------------------------------------------------------------------------


@pytest.fixture
def fabric(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{standin.install(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}")
    # All hosts are this one, and so are those of a test that runs beside it (pytest-xdist).
    beside = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    monkeypatch.setattr(perftest, "FIRST_PORT", perftest.FIRST_PORT + beside * perftest.PORTS)
    made = LoopbackFabric(LoopbackConfig(), build(SingleSwitchConfig(hosts=4)), tmp_path)
    yield made
    made.destroy()


def seats(fabric, **devices: str) -> dict[int, Seat]:
    return {n: Seat(f"h{n}", fabric.address(f"h{n}"), Rail(devices.get(f"h{n}", f"rxe{n % 3}")), 1) for n in range(4)}


def yardstick(fabric, tmp_path, **devices: str) -> Perftest:
    return Perftest(fabric, tmp_path, seats(fabric, **devices), queue_pairs=2, options=["-u", "20", "-S", "0"])


def test_pairs_of_a_wave_are_measured_at_once_each_way_by_itself(fabric, tmp_path, monkeypatch) -> None:
    slow = f"rxe2>{fabric.address('h0')}"
    monkeypatch.setenv("GENIE_PERFTEST_GBPS", json.dumps({"*": 95.5, slow: 12.25}))
    test = yardstick(fabric, tmp_path)
    test.bandwidth([(0, 1), (2, 3)], size=65536, count=100, takes_s=0.1)
    test.bandwidth([(1, 0), (3, 2)], size=65536, count=100, takes_s=0.1)
    test.bandwidth([(2, 0)], size=65536, count=100, takes_s=0.1)
    test.latency([(0, 1)], size=64, count=40)
    assert test.outcome.failed == {}
    found = test.outcome.samples.bandwidth_bps
    assert {way: [round(value / 1e9, 2) for value in values] for way, values in found.items()} == {
        (0, 1): [95.5], (2, 3): [95.5], (1, 0): [95.5], (3, 2): [95.5], (2, 0): [12.25],
    }  # fmt: skip
    assert test.outcome.samples.latency_ns == {(0, 1): [30_000.0]}


def test_a_pair_that_fails_is_named_with_what_was_said_and_the_others_go_on(fabric, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GENIE_PERFTEST_DEAD", "rxe2")
    test = yardstick(fabric, tmp_path)
    test.bandwidth([(0, 1), (2, 3)], size=65536, count=100, takes_s=0.1)
    assert list(test.outcome.samples.bandwidth_bps) == [(0, 1)]
    assert test.outcome.failed == {
        (2, 3): "ib_write_bw from h2 to h3 ended with status 1: Completion with error at client / "
        "Failed status 12: wr_id 0 syndrom 0x81 / scnt=128, ccnt=0"
    }


def test_a_server_that_cannot_begin_is_named(fabric, tmp_path) -> None:
    test = yardstick(fabric, tmp_path, h1="mlx5_9")
    test.bandwidth([(0, 1)], size=65536, count=100, takes_s=0.1)
    (why,) = test.outcome.failed.values()
    assert why.startswith("ib_write_bw on h1 ended with status 1 before anybody called: IB device mlx5_9 not found")


def test_servers_do_not_outlive_their_wave(fabric, tmp_path) -> None:
    yardstick(fabric, tmp_path, h0="mlx5_9").bandwidth([(0, 1)], size=65536, count=100, takes_s=0.1)
    assert all(process.poll() is not None for process in fabric._children)


def test_an_interruption_does_not_wait_for_clients(fabric, tmp_path, monkeypatch) -> None:
    test, begun, over = yardstick(fabric, tmp_path), threading.Event(), threading.Event()
    waited: list[bool] = []

    def client(way, *_) -> str:
        if way == (0, 1):
            begun.wait(30)
            return ""
        begun.set()
        waited.append(over.wait(30))
        return ""

    def interrupt(*_) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(test, "_client", client)
    monkeypatch.setattr(test, "_keep_bandwidth", interrupt)
    with pytest.raises(KeyboardInterrupt):
        test.bandwidth([(0, 1), (2, 3)], size=65536, count=100, takes_s=0.1)
    assert waited == []  # the other client is still there
    over.set()
    assert all(process.poll() is not None for process in fabric._children)


def test_hosts_without_perftest_are_named(fabric, tmp_path, monkeypatch) -> None:
    assert perftest.missing(fabric, ["h0", "h1"]) == ()
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("sh",):
        (tmp_path / name).symlink_to("/bin/sh")
    assert perftest.missing(fabric, ["h0", "h1"]) == ("h0", "h1")


# -- which port of which host -------------------------------------------------------------------------------------


def listed(*devices: tuple[str, str]) -> str:
    """What the agent lists: (name, IPv4 address of its port)."""
    return json.dumps({"devices": [
        {"name": name, "ports": [{"port": 1, "state": "ACTIVE", "link_layer": "Ethernet", "gids": [
            {"index": 0, "gid": "fe80::1", "type": "RoCE v2", "interface": "w"},
            {"index": 1, "gid": f"::ffff:{address}", "type": "RoCE v2", "interface": "w"}]}]}
        for name, address in devices
    ]})  # fmt: skip


def asked(text: str, code: int = 0):
    return SimpleNamespace(
        tool=lambda name: name,
        address=lambda host: "10.0.0.1",
        run=lambda host, argv, **_: Completed(host, tuple(argv), code, text, ""),
    )


def test_the_seat_is_the_rail_that_was_named_or_the_port_with_the_hosts_address() -> None:
    two = asked(listed(("mlx5_0", "10.9.0.1"), ("mlx5_1", "10.0.0.1")))
    assert perftest.seat(two, "h0", None, -1) == Seat("h0", "10.0.0.1", Rail("mlx5_1"), 1)
    assert perftest.seat(two, "h0", Rail("mlx5_0"), 0) == Seat("h0", "10.0.0.1", Rail("mlx5_0"), 0)
    only = read_verbs_list(listed(("mlx5_0", "10.9.0.1")))
    assert rail_with_address(only, "10.0.0.1") == Rail("mlx5_0")


@pytest.mark.parametrize(
    ("fabric", "rail", "error", "message"),
    [
        (asked("no library", 1), None, EnvironmentUnfit, "h0: RDMA devices cannot be listed: no library"),
        (asked(listed()), None, EnvironmentUnfit, "no RDMA device has the address 10.0.0.1; devices there: none"),
        (asked(listed(("a", "1.1.1.1"), ("b", "2.2.2.2"))), None, EnvironmentUnfit, "devices there: a, b"),
        (asked(listed(("mlx5_0", "10.0.0.1"))), Rail("mlx5_7"), EnvironmentUnfit, "h0 has no RDMA device 'mlx5_7'"),
    ],
    ids=["agent-fails", "none", "two-others", "not-there"],
)
def test_a_host_that_cannot_be_seated_is_named(fabric, rail, error, message) -> None:
    with pytest.raises(error, match=message):
        perftest.seat(fabric, "h0", rail, -1)


# -- what the ports counted meanwhile -----------------------------------------------------------------------------


class Counting:
    """A fabric whose hosts only show counters, which move each time that somebody looks."""

    def __init__(self, steps: dict[str, list[dict[str, int] | None]]) -> None:
        self._steps = {host: list(values) for host, values in steps.items()}

    def run(self, host: str, argv, **_) -> Completed:
        found = self._steps[host].pop(0)
        if found is None:
            raise RunAborted(f"{host} does not answer")
        assert argv[0] == "grep"
        return Completed(host, tuple(argv), 0, "".join(f"{argv[-1]}/{k}:{v}\n" for k, v in found.items()), "")


RXE = {"sent_pkts": 5, "rcvd_seq_err": 0, "completer_retry_err": 7, "out_of_seq_request": 0, "send_err": 1}


def test_a_port_that_lost_packets_is_noted_with_what_it_counted() -> None:
    after = {**RXE, "sent_pkts": 900, "rcvd_seq_err": 3, "completer_retry_err": 9, "send_err": 400}
    fabric, notes = Counting({"h0": [RXE, after], "h1": [RXE, RXE]}), []
    with counted(fabric, [("h0", Rail("rxe0")), ("h1", Rail("rxe0", 2))], notes):
        pass
    (note,) = notes
    assert note.startswith("h0 rxe0 counted rcvd_seq_err 3 (NAKs for a gap")
    assert "completer_retry_err 2 (times that this side went back" in note
    assert "send_err" not in note  # a full queue of one's own loses nothing


def test_counters_that_cannot_be_read_are_said_and_end_nothing() -> None:
    fabric, notes = Counting({"h0": [RXE, None]}), []
    with counted(fabric, [("h0", Rail("rxe0"))], notes):
        pass
    assert notes == ["hardware counters are not complete: h0 does not answer"]
    with counted(fabric, [], notes):  # nothing to ask
        pass


def test_many_ports_are_a_few_notes() -> None:
    before = {(f"h{n}", Rail("rxe0")): RXE for n in range(20)}
    after = {port: {**RXE, "out_of_seq_request": 1} for port in before}
    assert len(sentences(before, after)) == 9
    assert sentences(before, after)[-1] == "and 12 more ports counted such things"


# -- a clock that perftest could not read -------------------------------------------------------------------------

ROW_0 = " 65536      1000             0.00               0.00                0.000000"
ROW_INF = " 64      40          inf         inf      inf   \t       inf      \t-nan \t\tinf\t\tinf"
NO_RATE, NO_TIME = (
    f"{standin.LINE}\n{head}\n{row}\n{standin.LINE}"
    for head, row in ((standin.BW_HEAD, ROW_0), (standin.LAT_HEAD, ROW_INF))
)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_bandwidth_bps, NO_RATE, "perftest measured a bandwidth of 0"),
        (parse_latency_ns, NO_TIME, "perftest measured 64 40 inf inf inf: it could not read its clock"),
        (parse_latency_ns, NO_TIME.replace("inf", "0.00").replace("-nan", "0.00"), "a latency of 0"),
    ],
    ids=["bandwidth 0", "latency inf", "latency 0"],
)
def test_what_has_no_time_is_no_measurement(parse, text, message) -> None:
    with pytest.raises(ClockUnread, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("blind", "rates", "begun"),
    [(1, {(0, 1): [95e9]}, 2), (99, {}, perftest.CLOCK_ATTEMPTS)],
    ids=["read the second time", "never read"],
)
def test_a_measurement_without_a_time_is_begun_again_and_leaves_no_empty_sample(
    fabric, tmp_path, monkeypatch, blind, rates, begun
) -> None:
    monkeypatch.setenv("GENIE_PERFTEST_GBPS", json.dumps({"*": 95}))
    test, parsed = yardstick(fabric, tmp_path), []

    def parse(text: str) -> float:
        parsed.append(text)
        return parse_bandwidth_bps(NO_RATE if len(parsed) <= blind else text)

    monkeypatch.setattr(perftest, "parse_bandwidth_bps", parse)
    test.bandwidth([(0, 1)], size=65536, count=100, takes_s=0.1)
    assert len(parsed) == begun
    assert {way: [round(rate, -9) for rate in own] for way, own in test.outcome.samples.bandwidth_bps.items()} == rates
    assert test.outcome.failed == {}
    assert [why.partition(":")[0] for why in test.outcome.untold()] == (
        [] if rates else [f"ib_write_bw from h0 to h1, {begun} times begun"]
    )


@pytest.mark.parametrize(
    ("rates", "unread", "untold"),
    [
        ({(0, 1): [1e9]}, {}, ""),
        ({(0, 1): [1e9]}, {("ib_write_bw", (0, 1)): "of another repeat"}, ""),
        ({}, {("ib_write_bw", (0, 1)): "no clock"}, "1 measurements have no time: no clock (preflight.tool=engine"),
    ],
    ids=["all read", "read in one repeat", "never read"],
)
def test_what_was_never_timed_is_told_and_is_no_failure(tmp_path, rates, unread, untold) -> None:
    prepared = SimpleNamespace(schedule=SimpleNamespace(hosts=("h0", "h1")), rails=("",))
    measuring = PerftestMeasuring(prepared, tmp_path)
    test = Perftest(None, tmp_path, {}, queue_pairs=1)
    test.outcome.samples.bandwidth_bps.update(rates)
    test.outcome.unread.update(unread)
    measuring._tests[""] = test
    found = measuring.result()
    assert (found.failed, found.doubt) == ((), "")
    assert found.untold[: len(untold) or None] == untold


FOUND = Finding("bandwidth", "pair", ("h0", "h1"), "", 1e6, 1e9, ("ports",), "h0 to h1 is slow")


@pytest.mark.parametrize(
    ("findings", "word", "why", "note"),
    [((), "invalid", "no clock", ""), ((FOUND,), "degraded", "h0 to h1 is slow", "no clock")],
    ids=["nothing else out of line", "something is"],
)
def test_what_was_never_timed_takes_no_finding_back(findings, word, why, note) -> None:
    verdict = Verdict("degraded" if findings else "ok", "h0 to h1 is slow", findings)
    record = SimpleNamespace(status="finished", hosts=("h0", "h1"))
    weighed, also = command._weigh(verdict, record, None, Measured((), untold="no clock"), "")
    assert (weighed.word, weighed.why, also) == (word, why, note)


@pytest.mark.parametrize(
    ("changed", "more"),
    [
        ({}, []),
        ({"pkey_index": 3}, ["--pkey_index", "3"]),
        ({"traffic_class": 104, "mtu": "1024"}, ["--tclass", "104", "-m", "1024"]),
    ],
    ids=["defaults", "partition key", "class and MTU"],
)
def test_perftest_is_told_what_the_transport_is_told(changed, more) -> None:
    assert measuring._options(VerbsTransport(**changed)) == ["-u", "20", "-S", "0", *more]
