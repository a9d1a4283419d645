"""Transports: what carries the messages of ranks, one module each, chosen by ``transport=NAME``.

A transport has two halves: its configuration here, and what moves the bytes in `native/src/` (docs/add-a-transport.md).
`genie.schema` reads `TRANSPORTS`, the plan asks a configuration for each rank's settings. Standard library only, since
``genie --help`` reads this.
"""

from __future__ import annotations

from collections.abc import Mapping

from genie.transport.base import RankPlace, TransportConfig
from genie.transport.gloo import GlooTransport
from genie.transport.ofi import OfiTransport
from genie.transport.tcp import TcpTransport
from genie.transport.verbs import VerbsTransport

__all__ = [
    "TRANSPORTS",
    "GlooTransport",
    "OfiTransport",
    "RankPlace",
    "TcpTransport",
    "TransportConfig",
    "VerbsTransport",
]

TRANSPORTS: Mapping[str, tuple[type[TransportConfig], str]] = {
    "tcp": (TcpTransport, "kernel TCP through the fabric's queues"),
    "gloo": (GlooTransport, "Gloo's point-to-point API: a slow check on the others"),
    "ofi": (OfiTransport, "libfabric, by one of its providers: tcp, verbs, efa, cxi, shm"),
    "verbs": (VerbsTransport, "RDMA through libibverbs: RoCE, InfiniBand, Soft-RoCE"),
}
"""Kind to its dataclass and its line in ``genie --help``."""
