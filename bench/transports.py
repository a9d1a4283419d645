"""Our TCP against the transports that have a library under them: the same programs, namespaces and minute.

libfabric's tcp provider and Gloo both end in the kernel's TCP, so the ratio is what the library costs.
"""

from __future__ import annotations

import statistics

from harness import Row, call_times_ns, fabric, replay

from genie.collectives.config import CollectivesConfig
from genie.errors import EnvironmentUnfit
from genie.fabric.netns import NetnsFabric
from genie.transport import GlooTransport, OfiTransport, TcpTransport, TransportConfig
from genie.transport.built import refuse_missing

CARRIERS: dict[str, TransportConfig] = {"tcp": TcpTransport(), "ofi (tcp)": OfiTransport(), "gloo": GlooTransport()}
ROUNDS = 3
SPIN_NS = 50_000
CHUNK_BYTES = 512 << 10


def _median_s(net: NetnsFabric, job: dict[str, object], carrier: TransportConfig, iterations: int) -> float:
    chosen = CollectivesConfig(all_reduce="ring", broadcast="ring", chunk_bytes=CHUNK_BYTES)
    spin_ns = 0 if carrier.name == "gloo" else SPIN_NS
    events = replay(
        net, {**job, "iterations": iterations}, chosen, carrier,
        iterations=iterations, congestion_control="cubic", spin_ns=spin_ns,
    )  # fmt: skip
    return float(statistics.median(call_times_ns(events, skip=iterations // 5))) / 1e9


def _built() -> dict[str, TransportConfig]:
    found = {}
    for name, carrier in CARRIERS.items():
        try:
            refuse_missing(carrier)
        except EnvironmentUnfit as unfit:
            print(f"left out: {unfit.message}")
        else:
            found[name] = carrier
    return found


def _rows(net: NetnsFabric, what: str, job: dict[str, object], iterations: int, rate_of: int = 0) -> list[Row]:
    """Each carrier in turn, several times over; ``rate_of`` bytes make a rate of a time."""
    carriers = _built()
    times: dict[str, list[float]] = {name: [] for name in carriers}
    for _ in range(ROUNDS):
        for name, carrier in carriers.items():
            times[name].append(_median_s(net, job, carrier, iterations))
    best = {name: min(found) for name, found in times.items()}

    def shown(time_s: float) -> str:
        return f"{rate_of / time_s / 1e9:.2f} GB/s" if rate_of else f"{time_s * 1e3:.3f} ms"

    return [
        Row(f"{what}: our tcp against {name}", shown(best["tcp"]), shown(best[name]),
            f"{best[name] / best['tcp']:.2f}", ">= 1")
        for name in best if name != "tcp"
    ]  # fmt: skip


def against_our_tcp() -> list[Row]:
    """One pair and the ring all-reduce of four ranks, unshaped; the ratio is their time to ours."""
    rows = []
    with fabric(2) as net:
        for size, text in ((64, "64 B"), (64 << 10, "64 KiB")):  # two messages, one after the other
            job: dict[str, object] = {"name": "collective", "ranks": 2, "sizes": [size]}
            rows += _rows(net, f"one pair, all-reduce of {text}", job, 200)
        size = 64 << 20
        job = {"name": "collective", "ranks": 2, "kind": "broadcast", "sizes": [size]}
        rows += _rows(net, "one pair, 64 MiB one way", job, 12, size)
    with fabric(4) as net:
        for size, iterations in ((64 << 10, 60), (16 << 20, 15)):
            job = {"name": "collective", "ranks": 4, "sizes": [size]}
            rows += _rows(net, f"ring all-reduce, 4 ranks, {size >> 10} KiB", job, iterations)
    return rows
