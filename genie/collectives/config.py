"""What a user may say about collectives: ``collective.*``.

`genie.schema` makes a `CollectivesConfig` from it and `genie.collectives.lower` obeys it. Algorithm names are
checked against the registry when a program is lowered, so that this module needs the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from genie.errors import ConfigError

MAX_CHANNELS = 64
MAX_WINDOW_MESSAGES = 2**20


@dataclass(frozen=True, slots=True)
class CollectivesConfig:
    """Algorithms and their parameters, for every communicator of the job.

    One algorithm a kind; "auto" is `genie.collectives.default_for`: log-depth up to ``small_bytes`` of buffer,
    bandwidth-optimal above. ``channels`` is the number of parallel connections a pair of ranks; a call uses fewer
    while each would carry less than ``channel_min_bytes``. ``chunk_bytes`` is the largest message,
    ``window_messages`` the most of one connection that the receiver has not acknowledged (0 = no limit but TCP's);
    ``peers_in_flight`` bounds direct (peers) and pairwise (rounds) exchanges, 0 = all and one.
    """

    all_reduce: str = "auto"
    reduce: str = "auto"
    all_gather: str = "auto"
    gather: str = "auto"
    scatter: str = "auto"
    broadcast: str = "auto"
    all_to_all: str = "auto"
    reduce_scatter: str = "auto"
    barrier: str = "auto"
    channels: int = 1
    channel_min_bytes: int = 64 * 1024
    chunk_bytes: int = 512 * 1024
    small_bytes: int = 16 * 1024
    window_messages: int = 0
    peers_in_flight: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= MAX_CHANNELS:
            raise ConfigError(f"must lie between 1 and {MAX_CHANNELS}, found {self.channels}", key="channels")
        if not 1 <= self.chunk_bytes < 2**31:
            raise ConfigError(f"must lie between 1 and 2^31-1 bytes, found {self.chunk_bytes}", key="chunk_bytes")
        for name, value in (
            ("channel_min_bytes", self.channel_min_bytes),
            ("small_bytes", self.small_bytes),
            ("peers_in_flight", self.peers_in_flight),
        ):
            if value < 0:
                raise ConfigError(f"must be 0 or more, found {value}", key=name)
        if not 0 <= self.window_messages <= MAX_WINDOW_MESSAGES:
            raise ConfigError(
                f"must lie between 0 and {MAX_WINDOW_MESSAGES}, found {self.window_messages}", key="window_messages"
            )

    def algorithm(self, kind: str) -> str:
        """The name chosen for a kind (`CollectiveKind` value); may be "auto"."""
        return str(getattr(self, kind))
