"""Closed forms of what a collective, an incast, a hash and a retransmission timeout should take. Pure arithmetic.

Studies put them beside what was measured. Payload only: headers of 66 bytes a packet (1.6 % at an MTU of 4200) and
latency are in none of them, so a healthy network is a little above each. Sizes in bytes, rates in bit/s, times in ns.
"""

from __future__ import annotations

import numpy as np

TRIALS = 20_000
RTO_LEAST_NS = 200_000_000
"""TCP's smallest retransmission timeout in Linux (TCP_RTO_MIN, include/net/tcp.h)."""


def ring_all_reduce_ns(size_bytes: float, ranks: int, rate_bps: float) -> float:
    """2(n-1)/n · S/B: what the slowest link of a ring carries, in either phase (Patarasuk and Yuan, 2009)."""
    return 2 * (ranks - 1) / ranks * _carry_ns(size_bytes, rate_bps)


def all_to_all_ns(buffer_bytes: float, ranks: int, rate_bps: float) -> float:
    """(n-1)/n · S/B with S a rank's whole buffer: each card sends all but its own block."""
    return (ranks - 1) / ranks * _carry_ns(buffer_bytes, rate_bps)


def binomial_all_reduce_ns(size_bytes: float, ranks: int, rate_bps: float) -> float:
    """2·log2(n) · S/B, a lower bound: the root takes a vector from each of its log2 n children, then sends one to each.

    Raises ValueError where ``ranks`` is no power of two.
    """
    if ranks < 2 or ranks & (ranks - 1):
        raise ValueError(f"expected a power of two above 1, found {ranks} ranks")
    return 2 * (ranks.bit_length() - 1) * _carry_ns(size_bytes, rate_bps)


def incast_ns(senders: int, size_bytes: float, rate_bps: float) -> float:
    """N·S/B: each of N senders has S bytes for one receiver, whose link is shared."""
    return senders * _carry_ns(size_bytes, rate_bps)


def bus_bytes_per_s(rate_bps: float, slow_ratio: float = 1.0) -> float:
    """The bus bandwidth of a ring all-reduce is the rate of its slowest link, ``slow_ratio`` of the others'."""
    return slow_ratio * rate_bps / 8


def max_over_mean(flows_per_uplink: int, uplinks: int, seed: int = 1) -> tuple[float, float]:
    """(mean, 95th percentile) of the fullest uplink over the average one, where ``flows_per_uplink`` · ``uplinks``
    equal flows are each thrown on one of the uplinks by a uniform hash; 20 000 trials.
    """
    thrown = np.random.default_rng(seed).multinomial(flows_per_uplink * uplinks, [1 / uplinks] * uplinks, size=TRIALS)
    ratios = thrown.max(axis=1) / flows_per_uplink
    return float(ratios.mean()), float(np.quantile(ratios, 0.95))


def stall_ns(gone_ns: float, least_ns: float = RTO_LEAST_NS) -> float:
    """How long a TCP connection stands when its link is gone for ``gone_ns``: to the first retransmission after that.

    They come 1, 3, 7, 15 … timeouts after the last packet that got through (each timeout is twice the one before), the
    first timeout being ``least_ns`` and the round trip; the round trip is left out. 0 for 0.
    """
    if gone_ns <= 0:
        return 0.0
    waited, timeout = 0.0, least_ns
    while waited < gone_ns:
        waited += timeout
        timeout *= 2
    return waited


def _carry_ns(size_bytes: float, rate_bps: float) -> float:
    if rate_bps <= 0:
        raise ValueError(f"expected a rate above 0 bit/s, found {rate_bps}")
    return size_bytes * 8e9 / rate_bps
