"""The verbs transport against perftest on one RDMA device, in turns: ratios of one run on one machine.

    python3 bench/verbs.py --device rxe0 --bench build/native/tests/genie_verbs_bench

Runs where the device is, so also in a machine of the lab: standard library only. Each figure is the median over rounds
in which both sides ran one after the other; of a busy machine the ratios say more than the figures. With more
than one processor both sides poll; on a single one ours sleep, and perftest where it can. Asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

DEPTH = 128
"""Messages in flight, perftest's own default for bandwidth."""


@dataclass(frozen=True)
class Setting:
    """What is measured on: the device, the index and IPv4 address of its GID, our program, rounds of each figure, and
    whether both sides poll without end.
    """

    device: str
    gid_index: int
    address: str
    bench: Path
    rounds: int
    polling: bool

    @property
    def completion(self) -> str:
        """How our ranks wait."""
        return "busy" if self.polling else "events"

    @property
    def events(self) -> tuple[str, ...]:
        """The same for perftest."""
        return () if self.polling else ("-e",)


@dataclass(frozen=True)
class Result:
    """``ours`` and ``peer`` are medians in ``unit``, ``ratio`` the median of the rounds' ratios, ``hoped`` its goal.
    None: the peer gave no figure in any round.
    """

    what: str
    unit: str
    ours: float
    peer: float | None
    ratio: float | None
    hoped: str


def find_gid(device: str) -> tuple[int, str]:
    """Index and address of the first RoCE v2 GID with an IPv4 address on port 1."""
    port = Path("/sys/class/infiniband") / device / "ports/1"
    for index in range(256):
        try:
            gid = (port / f"gids/{index}").read_text().strip()
            kind = (port / f"gid_attrs/types/{index}").read_text().strip()
        except OSError:
            continue
        if kind == "RoCE v2" and gid.startswith("0000:0000:0000:0000:0000:ffff:"):
            high, low = (int(part, 16) for part in gid.split(":")[-2:])
            return index, f"{high >> 8}.{high & 255}.{low >> 8}.{low & 255}"
    raise SystemExit(f"{device} has no RoCE v2 GID with an IPv4 address")


def genie(setting: Setting, kind: str, **keys: object) -> dict[str, float]:
    """One run of our program."""
    words = [f"{key}={value}" for key, value in keys.items()]
    argv = [str(setting.bench), kind, f"device={setting.device}", f"gid_index={setting.gid_index}", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} failed: {done.stderr}")
    return json.loads(done.stdout)


def rate_gbps(run: Mapping[str, float], message_bytes: int) -> float:
    """What rank 0 sent in messages of one size, over all the time that the ranks took."""
    return run["messages"] * message_bytes * 8 / run["total_us"] / 1e3


class NoClockError(Exception):
    """Perftest found no line through the processor's clock and the kernel's, and says inf or 0 for each figure: on a
    busy emulated processor.
    """


def perftest(setting: Setting, program: str, *options: str) -> tuple[list[float], float]:
    """The columns that perftest's client printed, and the microseconds of processor it used. Raises NoClockError."""
    for _ in range(3):
        columns, used = perftest_once(setting, program, *options)
        if all(math.isfinite(value) for value in columns) and any(columns[2:]):
            return columns, used
    raise NoClockError(program)


def perftest_once(setting: Setting, program: str, *options: str) -> tuple[list[float], float]:
    """The same of one server and its client, whatever they measured."""
    common = [program, "-d", setting.device, "-x", str(setting.gid_index), "-F", *options]
    processors = sorted(os.sched_getaffinity(0))
    pinned = setting.polling and program.endswith("_lat")
    first, last = ([["taskset", "-c", str(processors[i])] for i in (0, -1)]) if pinned else ([], [])
    server = subprocess.Popen([*first, *common], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(50):
            time.sleep(0.1)  # its server has no other sign of being there than to answer
            client = subprocess.Popen(
                [*last, *common, setting.address], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            text = client.stdout.read() if client.stdout else ""
            _, status, used = os.wait4(client.pid, 0)
            client.returncode = os.waitstatus_to_exitcode(status)
            lines = [line.split() for line in text.splitlines() if re.match(r"\s*\d+\s+\d+\s+[-\d.in]", line)]
            if client.returncode == 0 and lines:
                return [float(word) for word in lines[-1]], 1e6 * (used.ru_utime + used.ru_stime)
        raise SystemExit(f"{program}: no result from its client")
    finally:
        server.kill()
        server.wait()


def compare(
    rounds: int, what: str, unit: str, hoped: str, ours: Callable[[], float], peer: Callable[[], float]
) -> Result:
    """Both in turns. Rounds in which the peer had no clock are left out."""
    pairs, alone = [], []
    for number in range(rounds):
        first, second = (ours, peer) if number % 2 == 0 else (peer, ours)
        values: dict[Callable[[], float], float] = {}
        try:
            values[first] = first()
            values[second] = second()
        except NoClockError:
            alone.append(values[ours] if ours in values else ours())
        else:
            pairs.append((values[ours], values[peer]))
    if not pairs:
        print(f"{what}: {statistics.median(alone):.4g} {unit}, the peer found no clock", file=sys.stderr)
        return Result(what, unit, statistics.median(alone), None, None, hoped)
    ratios = sorted(mine / theirs for mine, theirs in pairs)
    mine, theirs = (statistics.median(values) for values in zip(*pairs, strict=True))
    result = Result(what, unit, mine, theirs, statistics.median(ratios), hoped)
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    print(f"{what}: {mine:.4g} {unit}, {theirs:.4g}, ratio {statistics.median(ratios):.2f} ({spread})", file=sys.stderr)
    return result


def bandwidth(setting: Setting, size: int, count: int, queue_pairs: int) -> Result:
    """One way, both with the same depth and queue pairs; Gb/s. Ours wait as perftest's client does: it polls."""

    def ours() -> float:
        run = genie(
            setting, "stream", bytes=size, count=count, slots=DEPTH, credit_every=DEPTH // 4,
            qps_per_connection=queue_pairs, completion=setting.completion, pin=int(setting.polling), iterations=3,
        )  # fmt: skip
        return rate_gbps(run, size)

    def peer() -> float:
        options = ("-s", str(size), "-n", str(count), "-t", str(DEPTH), "-q", str(queue_pairs), "--report_gbits")
        return perftest(setting, "ib_write_bw", *options)[0][3]

    what = f"write bandwidth, {size >> 10} KiB, {queue_pairs} QP"
    return compare(setting.rounds, f"{what} / ib_write_bw", "Gb/s", ">= 0.95", ours, peer)


def latency(setting: Setting, program: str, count: int, hoped: str = "<= 1.15") -> list[Result]:
    """There and back at 64 bytes: half a round trip, and processor time a round trip of one side; microseconds.

    A start takes more processor time than the messages, so two runs of each side count, by their difference.
    Sides that poll stay on a processor each: two pollers on one give a round trip a tick of the kernel. A run is short,
    and a host's bad moment may fill it: three times as many rounds as of the others.
    """
    cpu: dict[str, list[float | None]] = {"ours": [], "peer": []}  # of each round; None where perftest had no clock

    def ours() -> float:
        few, many = (
            genie(
                setting, "ping", bytes=64, count=count, completion=setting.completion, slots=DEPTH,
                credit_every=DEPTH // 2, pin=int(setting.polling), iterations=times,
            )
            for times in (2, 16)
        )  # fmt: skip
        cpu["ours"].append((many["cpu_us"] - few["cpu_us"]) / (many["messages"] - few["messages"]))
        return many["iteration_us"] / count / 2

    def peer() -> float:
        cpu["peer"].append(None)
        (few, used), (many, more) = (
            perftest(setting, program, "-s", "64", "-n", str(times * count), *setting.events) for times in (1, 16)
        )
        cpu["peer"][-1] = max(0.0, more - used) / (many[1] - few[1]) or None
        return many[5]

    first = compare(3 * setting.rounds, f"latency, 64 B / {program}", "us", hoped, ours, peer)
    pairs = [(ours, peer) for ours, peer in zip(cpu["ours"], cpu["peer"], strict=True) if peer is not None]
    mine = statistics.median([ours for ours, _ in pairs] or cpu["ours"])
    theirs = statistics.median(peer for _, peer in pairs) if pairs else None
    ratio = statistics.median(ours / peer for ours, peer in pairs) if pairs else None
    return [first, Result(f"processor a round trip, 64 B / {program}", "us", mine, theirs, ratio, hoped)]


def ring(setting: Setting, size: int, chunk: int, ranks: int) -> Result:
    """All-reduce against what the wire gives the same ranks when each only sends to the next; Gb/s a rank."""

    def ours() -> float:
        run = genie(setting, "ring", bytes=size, chunk=chunk, ranks=ranks, completion="events", iterations=4)
        return rate_gbps(run, chunk)

    def bound() -> float:
        count = size * 2 * (ranks - 1) // ranks // chunk
        run = genie(setting, "stream", bytes=chunk, count=count, ranks=ranks, completion="events", iterations=4)
        return rate_gbps(run, chunk)

    what = f"ring all-reduce, {ranks} ranks, {size >> 20} MiB / each rank sending to the next"
    return compare(setting.rounds, what, "Gb/s", ">= 0.85", ours, bound)


def doorbells(setting: Setting) -> Mapping[str, float]:
    """Requests, doorbells and polls a message, at both ends of the spectrum."""
    stream = genie(setting, "stream", bytes=4096, count=2000, slots=64, credit_every=16, iterations=2)
    ping = genie(setting, "ping", bytes=64, count=200, completion=setting.completion, credit_every=4, iterations=2)
    return {
        "messages a doorbell, streaming": stream["messages"] / stream["doorbells"],
        "completions a message, streaming": stream["completions"] / stream["messages"],
        "messages a doorbell, ping-pong": ping["messages"] / ping["doorbells"],
        "completions a message, ping-pong": ping["completions"] / ping["messages"],
    }


def main() -> int:
    """All figures, as a table and as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="rxe0")
    parser.add_argument("--bench", type=Path, required=True, help="genie_verbs_bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of messages")
    chosen = parser.parse_args()
    index, address = find_gid(chosen.device)
    polling = len(os.sched_getaffinity(0)) > 1
    setting = Setting(chosen.device, index, address, chosen.bench, chosen.rounds, polling)

    def many(count: int) -> int:
        return max(DEPTH, int(count * chosen.scale))

    results = [
        bandwidth(setting, 64 << 10, many(600), 1),
        bandwidth(setting, 1 << 20, many(128), 1),
        bandwidth(setting, 64 << 10, many(600), 4),
        *latency(setting, "ib_send_lat", many(1000)),
        # It can only poll, and looks at memory where others take a completion: what RDMA can do, and no goal.
        *(latency(setting, "ib_write_lat", many(1000), "-") if polling else ()),
        ring(setting, 8 << 20, 256 << 10, 4),
    ]
    counted = doorbells(setting)
    print("| what | GENIE | peer | ratio | hoped for |\n| --- | --- | --- | --- | --- |")
    for one in results:
        peer, ratio = ("no clock", "") if one.peer is None else (f"{one.peer:.3g}", f"{one.ratio:.2f}")
        print(f"| {one.what} | {one.ours:.3g} {one.unit} | {peer} | {ratio} | {one.hoped} |")
    for what, value in counted.items():
        print(f"| {what} | {value:.2f} | | | |")
    print(json.dumps({"results": [vars(one) for one in results], "counted": counted}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
