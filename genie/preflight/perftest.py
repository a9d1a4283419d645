"""Pairs measured with perftest, the yardstick of RDMA: ``ib_write_bw`` and ``ib_write_lat`` on the hosts themselves.

`genie.preflight.command` uses it where transport=verbs and every host has both programs. Each pair has a server on one
host and a client on the other; pairs of a wave at once, one direction after the other. A pair that fails is named with
what perftest said, and the others go on. The port and GID are those that the run's transport would use.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from genie.errors import EnvironmentUnfit, GenieError, RunAborted
from genie.fabric.base import Fabric, Process
from genie.preflight.measure import Samples
from genie.rdma.model import RdmaDevice, read_verbs_list
from genie.rdma.rails import Rail, check_rails
from genie.workload.generators.pairs import Pair

BANDWIDTH, LATENCY = "ib_write_bw", "ib_write_lat"
LEAST_ITERATIONS = 5
FIRST_PORT, PORTS = 18515, 1000
"""perftest's own port for the first words of a pair over TCP, and how many above it are used in turn."""

READY = "Waiting for client to connect"
READY_TIMEOUT_S = 20.0
PATIENCE_S = 30.0
"""Beyond ten times what a load takes at the rate of its ports."""

CLOCK_ATTEMPTS = 5
"""How often a measurement is begun before a clock that perftest could not read leaves it unmeasured."""

ENDING_S = 5.0
_POLL_S = 0.02
_NUMBER = re.compile(r"\d+(\.\d+)?")
_NO_NUMBER = re.compile(r"-?(inf|nan)")
_NOISE = re.compile(r"^[\s\-*]*$|^ *(WARNING|Conflicting CPU frequency)")


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a host is measured: address of the data network, port of a device, GID index."""

    host: str
    address: str
    rail: Rail
    gid_index: int


class ClockUnread(RunAborted):
    """perftest transferred everything and could not say how long it took: no word about the network."""


@dataclass(slots=True)
class Outcome:
    """What was measured until now, by [from, to] of the hosts; ``failed`` says why a direction was not, ``unread`` by
    program and direction that perftest's clock did not do, with the times that it was tried.
    """

    samples: Samples = field(default_factory=Samples)
    failed: dict[Pair, str] = field(default_factory=dict)
    unread: dict[tuple[str, Pair], str] = field(default_factory=dict)

    def untold(self) -> list[str]:
        """Why a measurement is missing altogether, for each whose clock was never read."""
        of = {BANDWIDTH: self.samples.bandwidth_bps, LATENCY: self.samples.latency_ns}
        return [why for (program, way), why in self.unread.items() if way not in of[program]]


def missing(fabric: Fabric, hosts: Sequence[str]) -> tuple[str, ...]:
    """Hosts that lack one of the two programs."""

    def lacks(host: str) -> bool:
        asked = fabric.run(host, ["sh", "-c", f"command -v {BANDWIDTH} && command -v {LATENCY} && command -v stdbuf"])
        return asked.returncode != 0

    with ThreadPoolExecutor(min(16, len(hosts))) as pool:
        return tuple(host for host, is_without in zip(hosts, pool.map(lacks, hosts), strict=True) if is_without)


def seat(fabric: Fabric, host: str, rail: Rail | None, gid_index: int) -> Seat:
    """Look at a host's devices through its agent, and settle which port and GID is measured.

    ``rail`` None is the port that has the host's address; ``gid_index`` -1 the one that the transport would choose.
    Raises EnvironmentUnfit or PlanError naming the host.
    """
    asked = fabric.run(host, [fabric.tool("genie-agent-dl"), "verbs", "list"])
    if asked.returncode != 0:
        raise EnvironmentUnfit(f"{host}: RDMA devices cannot be listed: {_said(asked.stdout + asked.stderr)}")
    devices = read_verbs_list(asked.stdout, where=f"{host}: genie-agent-dl verbs list")
    address = fabric.address(host)
    chosen = rail or rail_with_address(devices, address)
    if chosen is None:
        names = ", ".join(device.name for device in devices) or "none"
        raise EnvironmentUnfit(
            f"{host}: no RDMA device has the address {address}; devices there: {names}",
            hint="name it: transport.devices=[NAME], or genie_rdma_devices in the inventory",
        )
    check_rails(f"host {host}", [chosen], devices, gid_index=gid_index)
    device = next(device for device in devices if device.name == chosen.device)
    port = device.port(chosen.port)
    assert port is not None  # check_rails has seen it
    return Seat(host, address, chosen, gid_index if gid_index >= 0 else port.chosen.index)


def rail_with_address(devices: Sequence[RdmaDevice], address: str) -> Rail | None:
    """The port one of whose GIDs maps an IPv4 address; the only port where none does."""
    ports = [(device, port) for device in devices for port in device.ports]
    for device, port in ports:
        if any(str(gid.ipv4) == address for gid in port.gids):
            return Rail(device.name, port.number)
    return Rail(ports[0][0].name, ports[0][1].number) if len(ports) == 1 else None


class Perftest:
    """Measures waves of pairs; what is there so far is always in ``outcome``."""

    def __init__(
        self, fabric: Fabric, log_dir: Path, seats: Mapping[int, Seat], *, queue_pairs: int, options: Sequence[str] = ()
    ) -> None:
        """``seats`` by place of the host. ``log_dir`` takes what servers say; ``options`` are said to both ends."""
        self._fabric = fabric
        self._log_dir = log_dir
        self._seats = seats
        self._queue_pairs = queue_pairs
        self._options = list(options)
        self._ports = itertools.cycle(range(FIRST_PORT, FIRST_PORT + PORTS))
        self.outcome = Outcome()

    def latency(self, pairs: Sequence[Pair], *, size: int, count: int) -> None:
        """Half a round trip of ``size`` bytes, the typical (median) of ``count``; the lower place begins."""
        words = ["-s", str(size), "-n", str(max(count, LEAST_ITERATIONS))]
        self._waves(pairs, LATENCY, words, 2 * PATIENCE_S, self._keep_latency)

    def bandwidth(self, ways: Sequence[Pair], *, size: int, count: int, takes_s: float) -> None:
        """Payload rate of ``count`` messages of ``size`` bytes in each direction [from, to] of ``ways``."""
        words = ["-s", str(size), "-n", str(max(count, LEAST_ITERATIONS)), "-q", str(self._queue_pairs)]
        words += ["--report_gbits"]
        self._waves(ways, BANDWIDTH, words, 10 * takes_s + PATIENCE_S, self._keep_bandwidth)

    def _keep_latency(self, way: Pair, text: str) -> None:
        value = parse_latency_ns(text)  # first: what cannot be read must leave no trace
        self.outcome.samples.latency_ns.setdefault((min(way), max(way)), []).append(value)

    def _keep_bandwidth(self, way: Pair, text: str) -> None:
        value = parse_bandwidth_bps(text)
        self.outcome.samples.bandwidth_bps.setdefault(way, []).append(value)

    def _waves(
        self, ways: Sequence[Pair], program: str, words: list[str], timeout_s: float, keep: Callable[[Pair, str], None]
    ) -> None:
        """A wave, and again those of it whose clock was not read: perftest gauges it anew at each start."""
        left: Mapping[Pair, str] = dict.fromkeys(ways, "")
        for _ in range(CLOCK_ATTEMPTS):
            left = self._wave(list(left), program, words, timeout_s, keep)
            if not left:
                return
        for way, why in left.items():
            source, target = (self._seats[place].host for place in way)
            self.outcome.unread[program, way] = (
                f"{program} from {source} to {target}, {CLOCK_ATTEMPTS} times begun: {why}"
            )

    def _wave(
        self, ways: Sequence[Pair], program: str, words: list[str], timeout_s: float, keep: Callable[[Pair, str], None]
    ) -> dict[Pair, str]:
        """Measure all at once; those whose clock was not read, with what perftest had instead."""
        unread: dict[Pair, str] = {}
        servers: dict[Pair, tuple[Process, int, Path]] = {}
        pool = ThreadPoolExecutor(max(1, len(ways)))
        try:
            for source, target in ways:
                port = next(self._ports)
                log = self._log_dir / f"{program}-{self._seats[target].host}-{port}.log"
                argv = ["stdbuf", "-oL", *self._argv(program, self._seats[target], port, words)]
                process = self._fabric.spawn(self._seats[target].host, argv, stdin=b"", log=log)
                servers[source, target] = process, port, log
            answers = {way: pool.submit(self._client, way, program, words, servers[way], timeout_s) for way in ways}
            for way, answer in answers.items():
                try:
                    keep(way, answer.result())
                except ClockUnread as error:
                    unread[way] = error.message
                except GenieError as error:
                    self.outcome.failed[way] = error.message
        finally:
            # After an interruption clients may still run: they end with their servers, or with the fabric, whose
            # destruction must not wait for the patience that a client has.
            pool.shutdown(wait=False, cancel_futures=True)
            for process, _, _ in servers.values():
                with contextlib.suppress(GenieError):  # a host that is gone has been named already
                    process.kill()
                    process.wait(ENDING_S)
        return unread

    def _argv(self, program: str, seat: Seat, port: int, words: Sequence[str]) -> list[str]:
        where = ["-d", seat.rail.device, "-i", str(seat.rail.port), "-x", str(seat.gid_index)]
        return [program, *where, "-p", str(port), "-F", *self._options, *words]

    def _client(
        self, way: Pair, program: str, words: Sequence[str], server: tuple[Process, int, Path], timeout_s: float
    ) -> str:
        """What the client said at its end. Raises RunAborted with what went wrong at either end."""
        process, port, log = server
        source, target = (self._seats[place] for place in way)
        self._wait_ready(process, log, f"{program} on {target.host}")
        # A client that hangs ends there too, not only here.
        limit = ["timeout", "-k", f"{ENDING_S:.0f}", f"{timeout_s + ENDING_S:.0f}"]
        argv = [*limit, *self._argv(program, source, port, words), target.address]
        done = self._fabric.run(source.host, argv, timeout_s=timeout_s)
        if done.returncode != 0:
            raise RunAborted(
                f"{program} from {source.host} to {target.host} ended with status {done.returncode}: "
                f"{_said(done.stdout + done.stderr)}"
            )
        return done.stdout

    @staticmethod
    def _wait_ready(process: Process, log: Path, what: str) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            text = log.read_text(errors="replace") if log.is_file() else ""
            if READY in text:
                return
            code = process.poll()
            if code is not None:
                raise RunAborted(f"{what} ended with status {code} before anybody called: {_said(text)}")
            if time.monotonic() > deadline:
                raise RunAborted(f"{what} was not ready after {READY_TIMEOUT_S:g} s: {_said(text)}")
            time.sleep(_POLL_S)


def parse_bandwidth_bps(text: str) -> float:
    """Bits a second from what ``ib_write_bw --report_gbits`` said: its average or its message rate, whichever has more
    digits. Versions differ: the average has two decimals, or six.

    Raises RunAborted if its table is not there, ClockUnread if it says 0: that is no bandwidth but a clock that
    perftest could not gauge (its get_cpu_mhz, on a busy host), or more time than its decimals hold.
    """
    size, _, _, average, rate = _row(text, "BW average[Gb/sec]", 5)
    if not float(average) and not float(rate):
        raise ClockUnread("perftest measured a bandwidth of 0: its clock or its decimals did not do for so slow a pair")
    if _digits(average) >= _digits(rate):
        return float(average) * 1e9
    return float(rate) * 1e6 * float(size) * 8


def _digits(number: str) -> int:
    """Significant digits of a decimal number as it is printed."""
    return len(number.replace(".", "").lstrip("0"))


def parse_latency_ns(text: str) -> float:
    """The typical (median) time of ``ib_write_lat`` in ns: half a round trip, as it counts.

    Raises RunAborted if its table is not there, ClockUnread where it says 0, inf or nan: it divides by its clock.
    """
    typical = float(_row(text, "t_typical[usec]", 5)[4])
    if not typical:
        raise ClockUnread("perftest measured a latency of 0: it could not read its clock")
    return typical * 1e3


def _row(text: str, column: str, least: int) -> list[str]:
    """The first ``least`` numbers, as they stand, of the line below the table's head that has ``column``."""
    lines = text.splitlines()
    head = next((number for number, line in enumerate(lines) if column in line and "#bytes" in line), None)
    for line in lines[head + 1 :] if head is not None else ():
        words = line.split()[:least]
        if len(words) == least and all(_NUMBER.fullmatch(word) for word in words):
            return words
        if len(words) == least and any(_NO_NUMBER.fullmatch(word) for word in words):
            raise ClockUnread(f"perftest measured {' '.join(words)}: it could not read its clock")
    raise RunAborted(f"expected perftest's table with the column {column!r}, found: {_said(text)}")


def _said(text: str) -> str:
    """The last lines that say something, as one: perftest explains itself at the end."""
    lines = [line.strip() for line in text.splitlines() if not _NOISE.match(line)]
    return " / ".join(lines[-3:])[-300:] or "it said nothing"
