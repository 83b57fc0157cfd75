"""`AutoDrafter`: drafts a long n-gram match from the row's own text where there is one, and with a model or head elsewhere.

The choice depends on the row's own history alone, so a row's tokens do not depend on its neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from sampling.batched import DraftStep
from sampling.rows import RowBatch
from worker.engine.drafter import Drafter, Opening
from worker.engine.lookup_drafter import LookupDrafter
from worker.engine.row import Row


class AutoDrafter:
    """A lookup drafter in front of another one of the same depth."""

    def __init__(self, lookup: LookupDrafter, other: Drafter) -> None:
        assert lookup.depth == other.depth
        self.depth = other.depth
        self._lookup = lookup
        self._other = other

    def open(self, hidden: mx.array, normed: mx.array) -> "_BothOpenings":
        """Both begin."""
        return _BothOpenings(self._lookup.open(hidden, normed), self._other.open(hidden, normed))

    def admit(self, slot: int, opening: Opening, row: Row) -> None:
        """Both admit the row."""
        assert isinstance(opening, _BothOpenings)
        self._lookup.admit(slot, opening.lookup, row)
        self._other.admit(slot, opening.other, row)

    def draft(self, batch: RowBatch, rows: Sequence[Row | None]) -> list[DraftStep]:
        """The other's steps, with a match of full depth in their place where a row has one."""
        proposals = self._lookup.propose(rows)
        matched = proposals[:, -1] >= 0
        steps = self._other.draft(batch, rows)
        return [DraftStep.where(matched, proposals[:, depth], step) for depth, step in enumerate(steps)]

    def commit(self, offsets: np.ndarray, kept: np.ndarray, tokens: np.ndarray, hidden: mx.array, normed: mx.array) -> None:
        """Both follow."""
        self._lookup.commit(offsets, kept, tokens, hidden, normed)
        self._other.commit(offsets, kept, tokens, hidden, normed)

    def keep(self, slots: Sequence[int]) -> None:
        """Both drop the other slots."""
        self._lookup.keep(slots)
        self._other.keep(slots)

    def arrays(self) -> list[mx.array]:
        """Both's arrays."""
        return [*self._lookup.arrays(), *self._other.arrays()]


@dataclass(frozen=True)
class _BothOpenings:
    lookup: Opening
    other: Opening

    def feed(self, start: int, tokens: Sequence[int], hidden: mx.array, normed: mx.array) -> None:
        self.lookup.feed(start, tokens, hidden, normed)
        self.other.feed(start, tokens, hidden, normed)

    def fork(self, capacity: int) -> "_BothOpenings":
        return _BothOpenings(self.lookup.fork(capacity), self.other.fork(capacity))

    def arrays(self) -> list[mx.array]:
        return [*self.lookup.arrays(), *self.other.arrays()]
