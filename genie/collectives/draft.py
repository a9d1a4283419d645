"""A template under construction: what the algorithm modules write their steps into.

Every algorithm makes one `Draft` for a rank, adds sends and receives channel by channel, and turns it into a
`Template`. Names of data follow one convention for all kinds (`genie.collectives.check` relies on it): a payload
name is (owner, block), where block is the place in the buffer that is cut and owner the rank the data came from,
or `REDUCED` where it is a combination of several. Receives carry no needs, so a receiver never holds back what
another call sent on the same connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from genie.collectives.program import Need, NeedMode, Size, SizeKind, Step, StepKind, Template

REDUCED = -1
"""Owner of data that is a reduction over several ranks."""

WHOLE_SIZE = Size(SizeKind.BLOCK, 0, 1)
ZERO_SIZE = Size(SizeKind.ZERO)


class Draft:
    """Steps of one rank in the order in which they were added."""

    def __init__(self, algorithm: str, rank: int, ranks: int, channels: int) -> None:
        self._algorithm = algorithm
        self.rank = rank
        self.ranks = ranks
        self.channels = channels
        self._steps: list[Step] = []

    def send(
        self,
        channel: int,
        peer: int,
        size: Size,
        payload: Iterable[tuple[int, int]],
        *,
        message: Iterable[int | None] = (),
        whole: Iterable[int | None] = (),
    ) -> int:
        """Add a send to ``peer``; ``message`` and ``whole`` are the steps it needs, by mode (None is left out)."""
        needs = [Need(step, NeedMode.MESSAGE) for step in message if step is not None]
        needs += [Need(step, NeedMode.WHOLE) for step in whole if step is not None]
        return self._add(Step(StepKind.SEND, channel, peer, size, tuple(needs), tuple(payload)))

    def receive(
        self, channel: int, peer: int, size: Size, payload: Iterable[tuple[int, int]], *, reduce: bool = False
    ) -> int:
        """Add a receive from ``peer``; ``reduce`` combines with what is held."""
        return self._add(Step(StepKind.RECV, channel, peer, size, (), tuple(payload), reduce))

    def _add(self, step: Step) -> int:
        self._steps.append(step)
        return len(self._steps) - 1

    def template(self) -> Template:
        """The finished template."""
        return Template(self._algorithm, self.rank, self.ranks, self.channels, tuple(self._steps))


@lru_cache(maxsize=1 << 16)
def block(index: int, of: int) -> Size:
    """Block ``index`` of ``of`` equal parts. Sizes are shared: all ranks of a ring name the same ones."""
    return Size(SizeKind.BLOCK, index, of)


def block_range(begin: int, end: int, of: int) -> list[tuple[Size, tuple[int, ...]]]:
    """Sizes that cover blocks ``begin`` to ``end`` of ``of``, each with the blocks it holds.

    One size if the range is itself an equal part of the whole (the cuts agree exactly), else one a block.
    """
    length = end - begin
    if length and of % length == 0 and begin % length == 0:
        return [(block(begin // length, of // length), tuple(range(begin, end)))]
    return [(block(index, of), (index,)) for index in range(begin, end)]


def names(owner: int, blocks: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Payload names of ``blocks`` with one owner."""
    return tuple((owner, index) for index in blocks)
