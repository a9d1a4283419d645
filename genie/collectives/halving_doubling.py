"""Recursive halving and doubling: log2(n) rounds, bandwidth-optimal for powers of two.

Reduce-scatter halves what is exchanged each round with a partner half the distance away, all-gather doubles it,
all-reduce does one after the other. Of n ranks the p = 2^floor(log2 n) *core* ranks take part in the rounds; each of
the n-p surplus ranks (the even ones of the first 2(n-p)) hands its data to its successor before and gets its part
from it after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from genie.collectives.draft import REDUCED, WHOLE_SIZE, Draft, block, block_range, names
from genie.collectives.program import Size
from genie.workload.trace import CollectiveKind

KINDS = frozenset({CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER})

_Part = tuple[Size, tuple[int, ...]]


class _Shape:
    """Who is a core rank, and which blocks belong to which."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.core = 1 << (ranks.bit_length() - 1)
        self.surplus = ranks - self.core
        self.folded = rank < 2 * self.surplus
        self.is_core = not self.folded or rank % 2 == 1
        self.place = rank // 2 if self.folded else rank - self.surplus

    def rank_of(self, place: int) -> int:
        """Rank of the core rank at ``place``."""
        return 2 * place + 1 if place < self.surplus else place + self.surplus

    def first_block(self, place: int) -> int:
        """First of the rank-sized blocks of core place ``place``: two where a surplus rank was folded in."""
        return 2 * place if place < self.surplus else place + self.surplus

    def halvings(self) -> Iterator[tuple[int, range, range]]:
        """Round by round: partner's place, places whose blocks stay here, places whose blocks go to the partner."""
        low, width = 0, self.core
        while width > 1:
            half = width // 2
            lower, upper = range(low, low + half), range(low + half, low + width)
            stays_low = self.place < low + half
            yield self.place ^ half, (lower if stays_low else upper), (upper if stays_low else lower)
            low, width = (low if stays_low else low + half), half


def build(draft: Draft, kind: CollectiveKind, root: int) -> None:
    """Add the steps of ``kind`` to ``draft``."""
    for channel in range(draft.channels):
        if draft.ranks > 1:
            _Channel(draft, channel, kind).build()


class _Channel:
    """The steps of one channel. ``held`` maps a block to the receives that it waits for."""

    def __init__(self, draft: Draft, channel: int, kind: CollectiveKind) -> None:
        self.draft = draft
        self.channel = channel
        self.kind = kind
        self.shape = _Shape(draft.rank, draft.ranks)
        self.blocks = self.shape.core if kind is CollectiveKind.ALL_REDUCE else draft.ranks
        self.held: dict[int, tuple[int, ...]] = {}
        self.sizes: dict[int, tuple[Size, tuple[int, ...]]] = {}

    def build(self) -> None:
        """Fold, rounds, unfold."""
        if not self.shape.is_core:
            self._surplus()
            return
        partner = self.draft.rank - 1
        if self.kind is not CollectiveKind.ALL_GATHER:
            if self.shape.folded:
                self._receive(partner, [(WHOLE_SIZE, tuple(range(self.blocks)))], reduce=True)
            for place, stays, goes in self.shape.halvings():
                self._send(self.shape.rank_of(place), self._parts(goes))
                self._receive(self.shape.rank_of(place), self._parts(stays), reduce=True)
        elif self.shape.folded:
            self._receive(partner, [self._own(partner)])
        if self.kind is not CollectiveKind.REDUCE_SCATTER:
            for place, stays, comes in reversed(list(self.shape.halvings())):
                self._send(self.shape.rank_of(place), self._parts(stays))
                self._receive(self.shape.rank_of(place), self._parts(comes))
        if self.shape.folded:
            if self.kind is CollectiveKind.ALL_REDUCE:
                self._send(partner, [(WHOLE_SIZE, tuple(range(self.blocks)))])
            elif self.kind is CollectiveKind.REDUCE_SCATTER:
                self._send(partner, [self._own(partner)])
            else:
                self._send(partner, self._all_but(partner))

    def _surplus(self) -> None:
        partner, own = self.draft.rank + 1, self.draft.rank
        everything = [(WHOLE_SIZE, tuple(range(self.blocks)))]
        self._send(partner, [self._own(own)] if self.kind is CollectiveKind.ALL_GATHER else everything)
        if self.kind is CollectiveKind.ALL_REDUCE:
            self._receive(partner, everything)
        elif self.kind is CollectiveKind.REDUCE_SCATTER:
            self._receive(partner, [self._own(own)])
        else:
            self._receive(partner, self._all_but(own))

    def _own(self, rank: int) -> _Part:
        return block(rank, self.draft.ranks), (rank,)

    def _all_but(self, rank: int) -> list[_Part]:
        return [self._own(other) for other in range(self.draft.ranks) if other != rank]

    def _parts(self, places: range) -> list[_Part]:
        """The blocks of a run of places, in as few sizes as are exact."""
        if self.kind is CollectiveKind.ALL_REDUCE:
            return block_range(places.start, places.stop, self.blocks)
        first, last = self.shape.first_block(places.start), self.shape.first_block(places.stop)
        return block_range(first, last, self.blocks)

    def _names(self, blocks: Sequence[int]) -> tuple[tuple[int, int], ...]:
        if self.kind is CollectiveKind.ALL_GATHER:
            return tuple((index, index) for index in blocks)
        return names(REDUCED, blocks)

    def _send(self, peer: int, parts: Sequence[_Part]) -> None:
        for size, blocks in parts:
            needed = sorted({step for index in blocks for step in self.held.get(index, ())})
            message = [step for step in needed if self.sizes[step] == (size, blocks)]
            whole = [step for step in needed if self.sizes[step] != (size, blocks)]
            self.draft.send(self.channel, peer, size, self._names(blocks), message=message, whole=whole)

    def _receive(self, peer: int, parts: Sequence[_Part], *, reduce: bool = False) -> None:
        for size, blocks in parts:
            step = self.draft.receive(self.channel, peer, size, self._names(blocks), reduce=reduce)
            self.sizes[step] = (size, blocks)
            for index in blocks:
                self.held[index] = (*self.held.get(index, ()), step) if reduce else (step,)
