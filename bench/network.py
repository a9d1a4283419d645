"""Traffic against peers on the same fabric in the same minute: iperf3 for one pair, Gloo for the ring all-reduce."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from harness import Row, call_times_ns, fabric, replay

from genie.collectives.config import CollectivesConfig
from genie.engine.wire import EventType
from genie.fabric.netns import NetnsFabric

TORCH_PYTHON = os.environ.get("GENIE_BENCH_TORCH", "")
"""An interpreter that has torch; without it the Gloo rows are left out and said to be."""


def _iperf3(net: NetnsFabric, seconds: int, control: str) -> tuple[float, float]:
    """(bytes/s, receiver CPU seconds a GB) of one stream."""
    with tempfile.TemporaryDirectory() as folder:
        server = net.spawn("h1", ["iperf3", "-s", "-1"], stdin=b"", log=Path(folder) / "server.log")
        deadline = time.monotonic() + 5
        while net.run("h1", ["ss", "-ltn", "sport", "=", ":5201"]).stdout.count("LISTEN") == 0:
            assert server.poll() is None
            assert time.monotonic() < deadline
        argv = ["iperf3", "-c", net.address("h1"), "-t", str(seconds), "-J", "-C", control]
        done = net.run("h0", argv, timeout_s=seconds + 20)
        end = json.loads(done.stdout)["end"]
    bytes_received = end["sum_received"]["bytes"]
    cpu_s = end["cpu_utilization_percent"]["remote_total"] / 100 * end["sum_received"]["seconds"]
    return end["sum_received"]["bits_per_second"] / 8, cpu_s / (bytes_received / 1e9)


def point_to_point(seconds: int = 5, rounds: int = 3) -> list[Row]:
    """One stream between two hosts, cubic at both, alternating with iperf3."""
    ours, peers = [], []
    size = 512 << 20
    job = {"name": "collective", "ranks": 2, "kind": "broadcast", "sizes": [size], "iterations": 12}
    with fabric(2) as net:
        for _ in range(rounds):
            events = replay(net, job, CollectivesConfig(broadcast="ring"), iterations=12, congestion_control="cubic")
            times = call_times_ns(events, skip=2)
            receiver = events[1]
            cpu_s = (receiver.cpu_user_ns + receiver.cpu_system_ns) / 1e9 / (receiver.bytes_received / 1e9)
            ours.append((size / (statistics.median(times) / 1e9), cpu_s))
            peers.append(_iperf3(net, seconds, "cubic"))
    rate, peer_rate = (statistics.median(x[0] for x in found) for found in (ours, peers))
    cpu, peer_cpu = (statistics.median(x[1] for x in found) for found in (ours, peers))
    return [
        Row("one pair, unshaped, cubic: rate against iperf3", f"{rate / 1e9:.2f} GB/s", f"{peer_rate / 1e9:.2f} GB/s",
            f"{rate / peer_rate:.2f}", ">= 1.5"),
        Row("same: receiver's CPU seconds a GB", f"{cpu:.3f}", f"{peer_cpu:.3f}", f"{cpu / peer_cpu:.2f}", "<= 0.7"),
    ]  # fmt: skip


def shaped(sizes_of_world: tuple[int, ...] = (4, 8)) -> list[Row]:
    """Ring all-reduce of 16 MiB with every port at 1 Gb/s: bus bandwidth against the line."""
    rows = []
    size = 16 << 20
    for world in sizes_of_world:
        job = {"name": "collective", "ranks": world, "sizes": [size], "iterations": 6}
        with fabric(world, shaped_bps="1Gbps") as net:
            events = replay(net, job, CollectivesConfig(all_reduce="ring"), iterations=6, congestion_control="cubic")
        busbw = 2 * (world - 1) / world * size / (statistics.median(call_times_ns(events, skip=1)) / 1e9)
        rows.append(
            Row(f"ring all-reduce 16 MiB, {world} hosts at 1 Gb/s: busbw against the line", f"{busbw / 1e9:.4f} GB/s",
                "0.1250 GB/s", f"{busbw / 125e6:.3f}", ">= 0.94")
        )  # fmt: skip
    return rows


def _gloo(net: NetnsFabric, sizes: list[int], repeats: int, control: str) -> dict[int, float]:
    script = str(Path(__file__).parent / "peers" / "gloo_allreduce.py")
    hosts = [node.name for node in net.topology.hosts]
    for host in hosts:
        net.run(host, ["sh", "-c", 'ip route | while read -r r; do ip route change $r congctl "$0"; done', control])
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank, host in enumerate(hosts):
            interface = next(p.interface for p in net.topology.ports if p.node == host)
            argv = [TORCH_PYTHON, script, str(rank), str(len(hosts)), net.address(hosts[0]), interface, str(repeats)]
            processes.append(net.spawn(host, [*argv, *map(str, sizes)], stdin=b"", log=Path(folder) / f"{rank}.log"))
        deadline = time.monotonic() + 120
        while any(p.poll() is None for p in processes):
            assert time.monotonic() < deadline, (Path(folder) / "0.log").read_text()
            time.sleep(0.05)
        lines = [line.split() for line in (Path(folder) / "0.log").read_text().splitlines() if line[:1].isdigit()]
    return {int(line[0]): statistics.median(map(float, line[1:])) for line in lines}


def _own_time_s(net: NetnsFabric, job: dict[str, object], spin_ns: int) -> float:
    """Median time of the call on rank 0, as the peer takes it."""
    events = replay(
        net, job, CollectivesConfig(all_reduce="ring"), iterations=40, congestion_control="cubic", spin_ns=spin_ns
    )
    ops = events[0].records[events[0].records["type"] == EventType.OPERATOR]
    return float(statistics.median((ops["t2_ns"] - ops["t1_ns"])[5:])) / 1e9


def against_gloo() -> list[Row]:
    """Ring all-reduce of four ranks, unshaped: time against Gloo's all_reduce on the same namespaces."""
    targets = {1 << 10: 20, 1 << 16: 15, 1 << 20: 5, 1 << 24: 3}
    if not TORCH_PYTHON:
        return [Row("ring all-reduce against Gloo", "not measured", "set GENIE_BENCH_TORCH", "-", ">= 3")]
    rows = []
    with fabric(4) as net:
        for control in ("bbr", "cubic"):
            peer = _gloo(net, list(targets), 15, control)
            for size, target in targets.items():
                if control == "cubic" and size != 1 << 24:
                    continue
                job = {"name": "collective", "ranks": 4, "sizes": [size], "iterations": 40}
                ours_s, spin_ns = min(
                    (_own_time_s(net, job, spin_ns), spin_ns) for _ in range(2) for spin_ns in (0, 50_000)
                )
                goal = 2.5 if control == "cubic" else target
                what = f"ring all-reduce, 4 ranks, {size >> 10} KiB, spin {spin_ns // 1000} us, Gloo on {control}"
                ratio = f"{peer[size] / ours_s:.1f}"
                rows.append(Row(what, f"{ours_s * 1e3:.3f} ms", f"{peer[size] * 1e3:.3f} ms", ratio, f">= {goal}"))
    return rows
