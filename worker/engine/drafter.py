"""`Drafter`: whoever proposes the next tokens of a cohort's rows; the target judges them, so exactness never depends on it."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np

from sampling.batched import DraftStep
from sampling.rows import RowBatch
from worker.engine.row import Row


class Opening(Protocol):
    """What a drafter learns of one prompt while it is read: a function of the tokens so far. May be admitted to any number of slots."""

    def feed(self, start: int, tokens: Sequence[int], hidden: mx.array, normed: mx.array) -> None:
        """The trunk has read T tokens at positions start…: its hidden states before and after the final norm, [1, T, D]."""

    def fork(self, capacity: int) -> "Opening":
        """The same, for slots of `capacity` positions, to be fed on; this one stays as it is."""

    def arrays(self) -> list[mx.array]:
        """Its arrays, for evaluation."""


class Drafter(Protocol):
    """Proposes up to `depth` tokens for every row; one per cohort."""

    depth: int

    def open(self, hidden: mx.array, normed: mx.array) -> Opening:
        """Begin with nothing; hidden states of some position, [1, 1, D], say which shapes and dtype there will be."""

    def admit(self, slot: int, opening: Opening, row: Row) -> None:
        """A row enters a slot; all of the slot's earlier state is replaced."""

    def draft(self, batch: RowBatch, rows: Sequence[Row | None]) -> list[DraftStep]:
        """One step per depth for all rows; the pending token of each is the last that was committed."""

    def commit(self, offsets: np.ndarray, kept: np.ndarray, tokens: np.ndarray, hidden: mx.array, normed: mx.array) -> None:
        """A cycle is over.

        Args:
            offsets: position of each row's pending token before the cycle, [B] int32.
            kept: tokens committed per row, [B] int32; 0 in empty slots.
            tokens: the committed tokens, [B, K + 1], padded with -1.
            hidden: the trunk's hidden states at the pending token and the drafts, before its final norm, [B, K + 1, D].
            normed: the same after the norm.
        """

    def keep(self, slots: Sequence[int]) -> None:
        """Drop every slot but these, in this order."""

    def arrays(self) -> list[mx.array]:
        """Its arrays, for evaluation."""


class NoDrafter:
    """Plain autoregressive decoding: depth 0."""

    depth = 0

    def open(self, hidden: mx.array, normed: mx.array) -> "NoDrafter":
        """Nothing to remember."""
        return self

    def feed(self, start: int, tokens: Sequence[int], hidden: mx.array, normed: mx.array) -> None:
        """Nothing to learn."""

    def fork(self, capacity: int) -> "NoDrafter":
        """Nothing to copy."""
        return self

    def admit(self, slot: int, opening: Opening, row: Row) -> None:
        """Nothing to replace."""

    def draft(self, batch: RowBatch, rows: Sequence[Row | None]) -> list[DraftStep]:
        """No step."""
        return []

    def commit(self, offsets: np.ndarray, kept: np.ndarray, tokens: np.ndarray, hidden: mx.array, normed: mx.array) -> None:
        """Nothing to follow."""

    def keep(self, slots: Sequence[int]) -> None:
        """Nothing to drop."""

    def arrays(self) -> list[mx.array]:
        """None."""
        return []
