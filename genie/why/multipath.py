"""Which of several equal next hops Linux takes for a connection: its hash of the five-tuple, computed again.

`genie.why.network` asks it for the embedded fabric, whose nodes hash what `genie.fabric.program` says, each with a seed
of its own. That needs Linux 6.11, which has such seeds; on anything older the answer would be chance, and the caller
does not ask. tests/netns compares every answer with the kernel's own; a run's port counters confirm it once more.
Never looks at a machine.

Source: Linux, net/ipv4/route.c (fib_multipath_hash, policy 3: SipHash of addresses, protocol and ports, each sorted,
then jhash_2words with an empty inner hash), include/net/ip_fib.h (the key), net/ipv4/fib_semantics.c (upper bounds).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from genie.fabric.program import ecmp_seed

LEAST_KERNEL = (6, 11)
_TCP = 6
_WORD = np.uint64(0xFFFFFFFF)
_JHASH_INITIAL = 0xDEADBEEF + (2 << 2)

Words = npt.NDArray[np.uint64]


def next_hops(
    seed: int,
    node: str,
    flows: npt.NDArray[np.int64],
    choices: Sequence[int] | npt.NDArray[np.int64],
    *,
    forwarded: bool = True,
) -> npt.NDArray[np.int64]:
    """Index of the next hop that ``node`` chooses for each flow, of as many as ``choices`` says.

    ``flows`` has a row a flow: source and destination address (IPv4 in host order), source and destination port.
    ``seed`` is the run's. ``forwarded``: false for what the node itself sends, which the kernel hashes a little
    differently.
    """
    hashed = _five_tuple_hash(flows, ecmp_seed(seed, node))
    if forwarded:
        hashed = _jhash(hashed)
    hashed >>= np.uint64(1)
    among = np.asarray(choices, dtype=np.uint64)
    chosen = np.zeros(len(flows), dtype=np.int64)
    # the bound of hop k of n is (k + 1) / n of 2^31, rounded to nearest, less one
    for hop in range(int(among.max(initial=1)) - 1):
        bound = (np.uint64((hop + 1) << 31) + among // np.uint64(2)) // among
        chosen += (hop + 1 < among) & (hashed >= bound)
    return chosen


def _five_tuple_hash(flows: npt.NDArray[np.int64], seed: int) -> Words:
    """The flow's SipHash, low 32 bits, never 0. The kernel compares and packs fields as they lie in memory."""
    source, target = (flows[:, k].astype(">u4").view("<u4").astype(np.uint64) for k in (0, 1))
    first, second = (flows[:, k].astype(">u2").view("<u2").astype(np.uint64) for k in (2, 3))
    low, high = np.minimum(source, target), np.maximum(source, target)
    ports = np.minimum(first, second) | np.maximum(first, second) << np.uint64(16)
    zero = np.zeros(len(flows), dtype=np.uint64)
    shift = np.uint64(32)
    # struct flow_keys from its field `basic` on: protocol in byte 2, ports in 28 to 31, addresses in 36 to 43
    blocks = (zero + np.uint64(_TCP << 16), zero, zero, ports << shift, low << shift, high)
    key = np.uint64(seed << 32 | seed)
    hashed = _siphash(blocks, 48, key) & _WORD
    return np.where(hashed == 0, np.uint64(1), hashed)


def _rotate(value: Words, by: int) -> Words:
    return value << np.uint64(by) | value >> np.uint64(64 - by)


def _round(v: list[Words]) -> None:
    v[0] = v[0] + v[1]
    v[1] = _rotate(v[1], 13) ^ v[0]
    v[0] = _rotate(v[0], 32)
    v[2] = v[2] + v[3]
    v[3] = _rotate(v[3], 16) ^ v[2]
    v[0] = v[0] + v[3]
    v[3] = _rotate(v[3], 21) ^ v[0]
    v[2] = v[2] + v[1]
    v[1] = _rotate(v[1], 17) ^ v[2]
    v[2] = _rotate(v[2], 32)


def _siphash(blocks: Sequence[Words], length: int, key: np.uint64) -> Words:
    """SipHash-2-4 (Aumasson and Bernstein, 2012) of ``length`` bytes, both halves of the key alike."""
    constants = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    v = [np.full(len(blocks[0]), np.uint64(constant) ^ key, dtype=np.uint64) for constant in constants]
    last = np.full(len(blocks[0]), np.uint64((length & 255) << 56), dtype=np.uint64)
    for block in (*blocks, last):
        v[3] = v[3] ^ block
        _round(v)
        _round(v)
        v[0] = v[0] ^ block
    v[2] = v[2] ^ np.uint64(0xFF)
    for _ in range(4):
        _round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _jhash(value: Words) -> Words:
    """jhash_2words(value, 0, 0) (Jenkins, lookup3; Linux, include/linux/jhash.h)."""
    initial = np.uint64(_JHASH_INITIAL & 0xFFFFFFFF)
    a, b, c = (value + initial) & _WORD, np.full_like(value, initial), np.full_like(value, initial)

    def mixed(into: Words, by: Words, rotation: int) -> Words:
        rotated = (by << np.uint64(rotation) | by >> np.uint64(32 - rotation)) & _WORD
        return ((into ^ by) - rotated) & _WORD

    c = mixed(c, b, 14)
    a = mixed(a, c, 11)
    b = mixed(b, a, 25)
    c = mixed(c, b, 16)
    a = mixed(a, c, 4)
    b = mixed(b, a, 14)
    return mixed(c, b, 24)
