"""Which port, or which cable in both directions, loses packets: from what senders repeated and receivers saw gaps in.

The kernel counts both by host, not by connection. Were a port to lose a share x of what it carries, every sender would
have to repeat x of what it sends over it, and every receiver would see gaps in x of what comes over it: a pattern that
few ports share. `find_losses` compares, for each port and each cable, how likely the counts are with and without such
a loss (Poisson, likelihood ratio). Drops that ports count themselves are expected. Needs TCP, counters of hosts, and
routes; `genie.why.scores` adds what it finds to its other evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from genie.results.records import PlanRecord
from genie.results.rundir import CountersRecord
from genie.results.statistics import Floats
from genie.why.network import Network

LEAST_LOG_LIKELIHOOD = 8.0
"""Some hundred ports are asked, so the best of them must be better than chance by far more than a hundred to one."""

LEAST_LOSS_RATIO = 3e-4
_GRID = np.geomspace(1e-4, 0.3, 60)
_PACKET_BYTES = 4096
_LEAST_LIKELY = 0.01
_TYPICAL_RATIO = 0.25
_NO_COUNT = 0.05
"""Expected count where nothing is expected: nothing is quite impossible."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What speaks for one port losing packets: the ``ratio`` that fits best, and how ``likely`` it is this port rather
    than another, 0 to 1.
    """

    ratio: float
    likely: float


def find_losses(network: Network, plan: PlanRecord, counters: CountersRecord, sent_bytes: Floats) -> dict[int, Loss]:
    """Port number → `Loss` for the ports that may lose packets; empty where nothing speaks for any loss, or nothing is
    known. ``sent_bytes`` by flow, over the whole run as the counters are.
    """
    hosts = sorted(set(plan.placement))
    repeated = _rises(counters, hosts, ("TcpRetransSegs",))
    needless = _rises(counters, hosts, ("TcpExtTCPDSACKRecv", "TcpExtTCPDSACKOfoRecv"))
    gaps = _rises(counters, hosts, ("TcpExtTCPOFOQueue",))
    if repeated is None or needless is None or not len(network.route_ports):
        return {}
    lost = np.maximum(repeated - needless, 0.0)
    packets = sent_bytes / max(network.mtu - 52, _PACKET_BYTES // 4) if network.mtu else sent_bytes / _PACKET_BYTES
    by_sender, by_receiver = _packets_over(network, plan, hosts, packets)
    dropped = _drops(counters, network)
    where, suspects = _suspects(len(network.ports))
    both = _compare(lost, by_sender, dropped, where)
    if gaps is not None and lost.sum() > 0:
        # a lost packet leaves several behind it out of order, so that they are fewer pieces of evidence than packets
        each = max(1.0, float(gaps.sum() / lost.sum()))
        both = both + _compare(gaps / each, by_receiver, dropped, where)
    total = both.max(axis=0)
    best = int(np.argmax(total))
    ratio = _GRID[np.argmax(both, axis=0)]
    if total[best] < LEAST_LOG_LIKELIHOOD or ratio[best] < LEAST_LOSS_RATIO:
        return {}
    weight = np.exp(total - total[best])
    weight /= weight.sum()
    found: dict[int, Loss] = {}
    for k in np.argsort(weight).tolist():
        if weight[k] > _LEAST_LIKELY:
            for port in suspects[k]:
                known = found.get(port, Loss(0.0, 0.0))
                found[port] = Loss(float(ratio[k]), known.likely + float(weight[k]))
    return found


def _suspects(ports: int) -> tuple[Floats, list[tuple[int, ...]]]:
    """Every port by itself, and both ports of every cable: which ports a suspect is, as a matrix and as numbers."""
    suspects: list[tuple[int, ...]] = [(port,) for port in range(ports)]
    suspects += [(port, port + 1) for port in range(0, ports - 1, 2)]
    where = np.zeros((ports, len(suspects)))
    for k, own in enumerate(suspects):
        where[list(own), k] = 1.0
    return where, suspects


def _rises(counters: CountersRecord, hosts: list[str], names: tuple[str, ...]) -> Floats | None:
    """Rise of the sum of some counters, by host; None where one is not known."""
    found = []
    for host in hosts:
        before, after = counters.before.get(host, {}), (counters.after or {}).get(host, {})
        if any(name not in before or name not in after for name in names):
            return None
        found.append(sum(after[name] - before[name] for name in names))
    return np.array(found, dtype=np.float64)


def _packets_over(network: Network, plan: PlanRecord, hosts: list[str], packets: Floats) -> tuple[Floats, Floats]:
    """Packets that each host sent over each port, and that each host received over it."""
    number = {host: k for k, host in enumerate(hosts)}
    flow = np.repeat(np.arange(len(network.flows)), np.diff(network.begin))
    size = packets[flow] * network.route_weights
    tables: list[Floats] = []
    for end in (0, 1):
        host = np.array([number[plan.host(own[end])] for own in network.flows])[flow]
        at = host * len(network.ports) + network.route_ports
        shape = (len(hosts), len(network.ports))
        table = np.bincount(at, weights=size, minlength=shape[0] * shape[1]).reshape(shape)
        tables.append(table.astype(np.float64))
    return tables[0], tables[1]


def _drops(counters: CountersRecord, network: Network) -> Floats:
    def rise(values: Mapping[str, Mapping[str, int]], name: str) -> int:
        return values.get(name, {}).get("drops", 0)

    after = counters.after or {}
    return np.array([max(0, rise(after, name) - rise(counters.before, name)) for name in network.ports], dtype=float)


def _compare(found: Floats, over: Floats, dropped: Floats, where: Floats) -> Floats:
    """Log-likelihood ratio for each loss of the grid and each suspect; ``where`` says which ports a suspect is."""
    total = over.sum(axis=0)
    known = (over * np.divide(dropped, total, out=np.zeros_like(total), where=total > 0)).sum(axis=1)
    sent = over.max(axis=1)
    # what the better quarter of hosts has is everybody's: the machine's, not a port's
    each_host = np.divide(found, sent, out=np.zeros_like(found), where=sent > 0)
    typical = float(np.quantile(each_host, _TYPICAL_RATIO, method="lower"))
    expected = known + typical * sent + _NO_COUNT
    more = expected[None, :, None] + _GRID[:, None, None] * (over @ where)[None, :, :]
    each = found[None, :, None] * np.log(more / expected[None, :, None]) - (more - expected[None, :, None])
    ratio: Floats = each.sum(axis=1)
    return ratio
