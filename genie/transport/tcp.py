"""``transport=tcp``: kernel TCP. Its native half (`native/src/tcp.cpp`) reads all this from the program's header."""

from __future__ import annotations

import re
from dataclasses import dataclass

from genie.errors import ConfigError
from genie.transport.base import TransportConfig


@dataclass(frozen=True, slots=True)
class TcpTransport(TransportConfig):
    """Kernel TCP. ``congestion_control`` "" leaves the kernel's own; buffers of 0 are the kernel's autotuning;
    ``base_port`` 0 lets the kernel choose, else rank r listens on ``base_port + r``.
    """

    name: str = "tcp"
    congestion_control: str = "cubic"
    sndbuf_bytes: int = 0
    rcvbuf_bytes: int = 0
    base_port: int = 0

    def __post_init__(self) -> None:
        TransportConfig.__post_init__(self)
        if not re.fullmatch(r"[a-z0-9_-]{0,15}", self.congestion_control):
            raise ConfigError(
                f"expected the name of a TCP congestion control, found {self.congestion_control!r}",
                key="congestion_control",
            )
        for name, value in (("sndbuf_bytes", self.sndbuf_bytes), ("rcvbuf_bytes", self.rcvbuf_bytes)):
            if not 0 <= value < 2**31:
                raise ConfigError(f"must lie between 0 and 2^31-1 bytes, found {value}", key=name)
        if self.base_port and not 1024 <= self.base_port <= 65535:
            raise ConfigError(f"must be 0 or lie between 1024 and 65535, found {self.base_port}", key="base_port")
