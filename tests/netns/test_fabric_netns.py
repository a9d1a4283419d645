"""The embedded fabric as the caller finds it: rates, paths, marking, programs, counters, samples."""

import itertools
import json
import os
import signal
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fabrics import difference, running, send, serve, wait_until

from genie.engine.binaries import find_binary
from genie.errors import EnvironmentUnfit, PlanError, RunAborted
from genie.fabric import NetnsConfig
from genie.fabric.netns import MARKER_MAP, NetnsFabric
from genie.fabric.probe import probe
from genie.topology import LeafSpineConfig, RingConfig, SingleSwitchConfig, build

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(probe().unfit), reason=f"no namespaces: {probe().unfit}"),
]
needs_marker = pytest.mark.skipif(
    not (probe().has("bpf") or probe().has("red")), reason="no ECN marking here: needs root or sch_red"
)


@pytest.fixture(scope="module")
def fabric(tmp_path_factory):
    """One leaf-spine of 8 hosts for the tests that leave it as it was."""
    directory = tmp_path_factory.mktemp("fabric")
    with running(directory) as built:
        for host in ("h7", "h1"):
            serve(built, host, directory / f"{host}.log")
        yield built


def test_one_flow_across_leaves_gets_the_rate_of_the_host_port(fabric):
    began = time.monotonic()
    before = fabric.counters()
    send(fabric, "h0", "h7", 4_000_000)
    seconds = time.monotonic() - began
    after = fabric.counters()
    sent = difference(before, after, "h0/leaf0", "tx_bytes")
    assert 4_000_000 < sent < 4_400_000
    goodput_bps = 4_000_000 * 8 / seconds
    assert goodput_bps < 100e6, "the shaper let more through than the rate"
    assert goodput_bps > 60e6, "far below the rate of 100 Mb/s"


def test_flows_of_one_pair_spread_over_both_spines(fabric):
    before = fabric.counters()
    send(fabric, "h0", "h7", 100_000, flows=24)
    after = fabric.counters()
    shares = [difference(before, after, f"leaf0/spine{spine}", "tx_bytes") for spine in (0, 1)]
    assert min(shares) > sum(shares) / 10, shares
    assert sum(shares) > 2_400_000


def test_traffic_under_one_leaf_stays_below_the_spines(fabric):
    before = fabric.counters()
    send(fabric, "h0", "h1", 500_000)
    after = fabric.counters()
    assert difference(before, after, "leaf0/h1", "tx_bytes") > 500_000
    assert all(difference(before, after, f"leaf0/spine{spine}", "tx_bytes") < 1_000 for spine in (0, 1))


def _incast(fabric, size):
    with ThreadPoolExecutor(7) as pool:
        list(pool.map(lambda number: send(fabric, f"h{number}", "h7", size), range(7)))


@needs_marker
def test_ports_mark_under_incast_and_do_not_once_switched_off(fabric):
    if fabric.capabilities().marker != "bpf":
        pytest.skip("switching off is a tc change where sch_red marks")
    before = fabric.counters()
    _incast(fabric, 1_000_000)
    marked = fabric.counters()
    assert difference(before, marked, "leaf1/h7", "above_kmin") > 0
    assert difference(before, marked, "leaf1/h7", "ce_marked") > 20
    assert difference(before, marked, "h7", "IpExtInCEPkts") >= difference(before, marked, "leaf1/h7", "ce_marked") // 2
    assert difference(before, marked, "h7", "IpExtInECT0Pkts") > 1_000

    def switch(enabled: int) -> None:
        # At every port: flows that share a spine can be marked there too.
        for port in fabric.topology.ports:
            if port.model.ecn is None:
                continue  # hosts do not mark
            ifindex = str(fabric.plan.interface(port.name).ifindex)
            argv = [str(find_binary("genie-port")), "marker", "set", "--map", MARKER_MAP, "--ifindex", ifindex]
            done = fabric.run("", [*argv, "--enabled", str(enabled)])
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["enabled"] is bool(enabled)

    switch(0)
    try:
        between = fabric.counters()
        _incast(fabric, 1_000_000)
        unmarked = fabric.counters()
    finally:
        switch(1)
    assert difference(between, unmarked, "leaf1/h7", "ce_marked") == 0
    assert difference(between, unmarked, "leaf1/h7", "ect_over") > 0, "the evidence that marks are missing"
    assert difference(between, unmarked, "h7", "IpExtInECT0Pkts") > 1_000
    assert difference(between, unmarked, "h7", "IpExtInCEPkts") == 0


@needs_marker
def test_the_marker_refuses_thresholds_that_make_no_sense(fabric):
    if fabric.capabilities().marker != "bpf":
        pytest.skip("only the BPF marker has this tool")
    argv = [str(find_binary("genie-port")), "marker", "set", "--map", MARKER_MAP, "--ifindex"]
    argv.append(str(fabric.plan.interface("leaf0/h0").ifindex))
    for arguments, words in (
        (["--kmin", "75000"], "kmin must be below kmax"),
        (["--enabled", "yes"], "--enabled is 0 or 1"),
        (["--pmax", "1.5"], "between 0 and 1"),
        (["--colour", "red"], "no option --colour"),
    ):
        refused = fabric.run("", [*argv, *arguments])
        assert refused.returncode == 2
        assert words in refused.stderr


def test_samples_are_valid_while_written_and_after(fabric, tmp_path):
    path = tmp_path / "ports.smp"
    sampler = fabric.start_sampler(path, 2_000_000)

    def committed() -> int:
        return struct.unpack_from("<Q", path.read_bytes()[:4096], 64)[0] if path.exists() else 0

    wait_until(lambda: committed() > 24 * 20, "twenty rounds of samples")
    send(fabric, "h0", "h7", 500_000)
    sampler.close_stdin()
    assert sampler.wait(5) == 0
    data = path.read_bytes()
    assert data[:8] == b"GNIESMP1"
    assert struct.unpack_from("<IIII", data, 8) == (1, 64, 24, 0)
    capacity, count, dropped, interval_ns = (
        struct.unpack_from("<Q", data, 24)[0], *struct.unpack_from("<QQQ", data, 64)
    )  # fmt: skip
    assert (capacity, dropped, interval_ns) == (count, 0, 2_000_000)
    assert len(data) == 4096 + 64 * count
    records = list(struct.iter_unpack("<qIIQQQQQQ", data[4096:]))
    assert [record[1] for record in records[:48]] == [*range(24), *range(24)]
    times = [record[0] for record in records]
    assert times == sorted(times)
    port = fabric.plan.interface("leaf1/h7").port
    number = list(build(LeafSpineConfig()).ports).index(port)
    mine = [record for record in records if record[1] == number]
    assert mine[-1][4] - mine[0][4] > 500_000, "tx_bytes"
    assert all(a[4] <= b[4] and a[5] <= b[5] for a, b in itertools.pairwise(mine))
    unknown = 2**64 - 1
    marks = [port.model.ecn is not None and fabric.capabilities().marker != "none" for port in fabric.topology.ports]
    assert all((record[7] != unknown) == marks[record[1]] for record in records)


@needs_marker
def test_marking_follows_a_port_whose_rate_or_buffer_is_changed(tmp_path):
    with running(tmp_path, SingleSwitchConfig(hosts=2)) as fabric:
        if fabric.capabilities().marker != "bpf":
            pytest.skip("sch_red sits under the shaper and needs no following")
        fabric.start_sampler(tmp_path / "ports.smp", 1_000_000)
        ifindex = str(fabric.plan.interface("switch0/h1").ifindex)
        argv = [str(find_binary("genie-port")), "marker", "get", "--map", MARKER_MAP, "--ifindex", ifindex]

        def shape():
            marker = json.loads(fabric.run("", argv).stdout)
            return marker["rate_bytes_per_s"], marker["limit_bytes"]

        assert shape() == (12_500_000, 128_000)
        change = "qdisc change dev h1 root handle 7e1e: tbf rate 10mbit burst 6250b limit 50000b"
        assert fabric.run("switch0", ["tc", *change.split()]).returncode == 0
        wait_until(lambda: shape() == (1_250_000, 50_000), "the marker's new rate")


def test_a_sampler_killed_at_any_time_leaves_a_readable_file(fabric, tmp_path):
    path = tmp_path / "ports.smp"
    sampler = fabric.start_sampler(path, 1_000_000)
    wait_until(lambda: path.exists() and path.stat().st_size > 4096, "the first sample")
    sampler.kill()
    assert sampler.wait(5) == -9
    data = path.read_bytes()
    count = struct.unpack_from("<Q", data, 64)[0]
    assert len(data) >= 4096 + 64 * count


def test_programs_get_their_input_folder_and_log_and_say_how_they_ended(fabric, tmp_path):
    log = tmp_path / "log"
    process = fabric.spawn("h3", ["sh", "-c", "cat; pwd; exit 7"], stdin=b"token\n" * 20_000, log=log, cwd=tmp_path)
    assert process.wait(10) == 7
    assert log.read_text() == "token\n" * 20_000 + f"{tmp_path}\n"
    assert process.poll() == 7
    process.kill()


def test_a_killed_program_takes_its_children_along(fabric, tmp_path):
    process = fabric.spawn("h3", ["sh", "-c", "sleep 600 & echo $!; wait"], stdin=b"", log=tmp_path / "log")
    child = wait_until(lambda: (tmp_path / "log").read_text().strip(), "the child's start")
    process.kill()
    assert process.wait(5) == -9
    wait_until(lambda: fabric.run("", ["test", "-e", f"/proc/{child}"]).returncode == 1, "the child's end")


def test_commands_answer_with_all_they_said(fabric):
    done = fabric.run("h2", ["sh", "-c", "cat >&2; ip -br address show dev leaf0; exit 3"], stdin=b"said")
    assert (done.node, done.returncode, done.stderr) == ("h2", 3, "said")
    assert "leaf0" in done.stdout


def test_commands_that_hang_are_killed_and_named(fabric):
    with pytest.raises(RunAborted, match=r"'sleep 600' in node 'h0' did not end within 0\.1 s and was killed"):
        fabric.run("h0", ["sleep", "600"], timeout_s=0.1)


@pytest.mark.parametrize(
    ("node", "argv", "words"),
    [("h0", ["no-such-program"], "no such program"), ("h99", ["true"], "no such node in this fabric")],
)
def test_what_cannot_start_says_why(fabric, node, argv, words):
    with pytest.raises(RunAborted, match=words):
        fabric.run(node, argv)


def test_only_hosts_have_addresses_for_ranks(fabric):
    with pytest.raises(PlanError, match="'leaf0' is no host"):
        fabric.address("leaf0")


def test_a_daemon_left_behind_does_not_hold_up_the_answer(fabric):
    began = time.monotonic()
    assert fabric.run("h0", ["sh", "-c", "sleep 600 & echo started"]).stdout == "started\n"
    assert time.monotonic() - began < 5


def test_many_commands_run_at_once(fabric):
    with ThreadPoolExecutor(16) as pool:
        began = time.monotonic()
        done = list(pool.map(lambda number: fabric.run(f"h{number % 8}", ["sleep", "0.3"]), range(16)))
    assert all(item.returncode == 0 for item in done)
    assert time.monotonic() - began < 2.4, "half of what one after the other takes"


def test_long_inputs_and_long_answers_do_not_wait_for_each_other(fabric):
    text = b"x" * 3_000_000
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda number: fabric.run(f"h{number}", ["cat"], stdin=text), range(8)))
    assert all(item.stdout == text.decode() for item in done)


def test_ip_netns_works_inside_the_fabric(fabric):
    """Ansible's connection plugin goes this way."""
    listed = fabric.run("", ["ip", "netns", "list"])
    assert {line.split()[0] for line in listed.stdout.splitlines()} >= {"h0", "leaf1", "spine0"}
    entered = fabric.run("", ["ip", "netns", "exec", "leaf0", "ip", "-br", "link", "show", "dev", "spine1"])
    assert entered.returncode == 0, entered.stderr


def test_ports_are_as_the_topology_says(fabric):
    shown = json.loads(fabric.run("leaf0", ["tc", "-j", "qdisc", "show", "dev", "spine0"]).stdout)
    root = next(item for item in shown if item.get("root"))
    assert (root["kind"], root["handle"]) == ("tbf", "7e1e:")
    assert root["options"]["rate"] * 8 == 200_000_000
    link = json.loads(fabric.run("h0", ["ip", "-j", "-d", "link", "show", "dev", "leaf0"]).stdout)[0]
    assert (link["ifindex"], link["gso_max_segs"], link["mtu"]) == (1000, 1, 4200)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/proc/sys/net/ipv4/fib_multipath_hash_policy", "3"),
        ("/proc/sys/net/ipv4/fib_multipath_hash_fields", "55"),
        ("/proc/sys/net/ipv4/tcp_ecn", "1"),
        ("/proc/sys/net/ipv4/tcp_no_metrics_save", "1"),
        ("/proc/sys/net/ipv4/conf/leaf0/rp_filter", "0"),
        ("/proc/sys/net/ipv6/conf/leaf0/disable_ipv6", "1"),
    ],
)
def test_nodes_have_their_sysctls(fabric, path, expected):
    assert (fabric.read("h0", path) or "").strip() == expected


def test_routes_choose_a_congestion_control_that_hears_marks(fabric):
    assert "congctl cubic" in fabric.run("h0", ["ip", "route", "show", "default"]).stdout


def test_receive_steering_keeps_packets_in_order(fabric):
    mask = fabric.run("", ["ip", "netns", "exec", "h0", "cat", "/sys/class/net/leaf0/queues/rx-0/rps_cpus"]).stdout
    assert int(mask.replace(",", ""), 16) == (1 << (os.cpu_count() or 1)) - 1


def test_two_fabrics_at_once_do_not_meet(fabric, tmp_path):
    with running(tmp_path) as other:
        serve(other, "h7", tmp_path / "serve.log")
        before, other_before = fabric.counters(), other.counters()
        send(other, "h0", "h7", 200_000)
        after, other_after = fabric.counters(), other.counters()
    assert difference(other_before, other_after, "h0/leaf0", "tx_bytes") > 200_000
    assert difference(before, after, "h0/leaf0", "tx_bytes") < 1_000


def test_dilation_divides_the_rate(tmp_path):
    config = NetnsConfig(time_dilation=400, packets="exact")
    topology = SingleSwitchConfig(hosts=2, host_rate="40Gbps")
    with running(tmp_path, topology, config) as fabric:
        shown = json.loads(fabric.run("h0", ["tc", "-j", "qdisc", "show", "dev", "switch0"]).stdout)
        assert next(item for item in shown if item.get("root"))["options"]["rate"] * 8 == 100_000_000


def test_the_topologys_own_loss_is_counted_by_the_port_that_lost(tmp_path):
    with running(tmp_path, SingleSwitchConfig(hosts=2, loss=0.02)) as fabric:
        serve(fabric, "h1", tmp_path / "serve.log")
        before = fabric.counters()
        send(fabric, "h0", "h1", 1_000_000)
        after = fabric.counters()
        assert difference(before, after, "h0/switch0", "lost") > 0
        assert difference(before, after, "h0", "TcpRetransSegs") > 0


def test_hosts_of_a_ring_forward_for_each_other(tmp_path):
    with running(tmp_path, RingConfig(hosts=5)) as fabric:
        serve(fabric, "h2", tmp_path / "serve.log")
        before = fabric.counters()
        send(fabric, "h0", "h2", 100_000)
        after = fabric.counters()
        assert difference(before, after, "h1/h2", "tx_bytes") > 100_000
        assert difference(before, after, "h4/h3", "tx_bytes") < 1_000


def test_bulk_mode_carries_super_packets_at_the_rate(tmp_path):
    topology = SingleSwitchConfig(hosts=2, host_rate="1Gbps", queue="500KB", ecn_kmin="100KB", ecn_kmax="400KB")
    with running(tmp_path, topology, NetnsConfig(packets="bulk")) as fabric:
        serve(fabric, "h1", tmp_path / "serve.log")
        began = time.monotonic()
        send(fabric, "h0", "h1", 30_000_000)
        assert 400e6 < 30_000_000 * 8 / (time.monotonic() - began) < 1e9


def test_without_marking_ports_count_and_sample_all_the_same(tmp_path):
    with running(tmp_path, SingleSwitchConfig(hosts=2, ecn=False)) as fabric:
        assert "ce_marked" not in fabric.counters()["h0/switch0"]
        sampler = fabric.start_sampler(tmp_path / "ports.smp", 1_000_000)
        sampler.close_stdin()
        assert sampler.wait(5) == 0
        assert struct.unpack_from("<Q", (tmp_path / "ports.smp").read_bytes(), 4096 + 48)[0] == 2**64 - 1


def test_64_hosts_come_up_and_reach_each_other(tmp_path, record_property):
    began = time.monotonic()
    with running(tmp_path, LeafSpineConfig(hosts=64, leaves=8, spines=4)) as fabric:
        record_property("build_seconds", round(time.monotonic() - began, 3))
        serve(fabric, "h63", tmp_path / "serve.log")
        send(fabric, "h0", "h63", 1_000)
    assert time.monotonic() - began < 20


def test_a_fabric_built_in_a_thread_outlives_the_thread(tmp_path):
    fabric = NetnsFabric(NetnsConfig(), build(SingleSwitchConfig(hosts=2)), tmp_path)
    thread = threading.Thread(target=fabric.build)
    thread.start()
    thread.join()
    try:
        assert fabric.run("h0", ["true"]).returncode == 0
    finally:
        fabric.destroy()


def test_building_and_destroying_leaks_no_descriptor(tmp_path):
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with running(tmp_path, SingleSwitchConfig(hosts=2)):
        pass
    before = count()
    for _ in range(3):
        with running(tmp_path, SingleSwitchConfig(hosts=2)) as fabric:
            fabric.run("h0", ["true"])
            fabric.destroy()
    assert count() == before


def test_a_command_that_the_kernel_refuses_is_told_and_leaves_nothing(tmp_path):
    fabric = NetnsFabric(NetnsConfig(congestion="nosuchcc"), build(SingleSwitchConfig(hosts=2)), tmp_path)
    with pytest.raises(EnvironmentUnfit, match=r"in node 'h0': 'ip route add default .* congctl nosuchcc'"):
        fabric.build()
    with pytest.raises(RunAborted, match="not built"):
        fabric.run("h0", ["true"])


@pytest.fixture
def interruptible():
    """Started in the background by a shell, Python finds SIGINT ignored, and leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_command_whose_asker_is_interrupted_is_killed(tmp_path):
    """Else a fault that was being applied could be applied after it was taken back."""
    with running(tmp_path, SingleSwitchConfig(hosts=2)) as fabric:

        def count() -> int:
            return len(fabric.run("", ["pgrep", "-fx", "sleep 612"]).stdout.split())

        def interrupt() -> None:
            wait_until(lambda: count() == 1, "the command's start")
            os.kill(os.getpid(), signal.SIGINT)

        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            fabric.run("h0", ["sleep", "612"])
        interrupter.join()
        assert count() == 0
