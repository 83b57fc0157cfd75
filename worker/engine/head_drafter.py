"""`HeadDrafter`: drafts with an MTP head, recursively.

Invariants between cycles, per occupied slot: the head's cache holds the pairs (h_t, x_{t+1}) before position `start`; the next `count`
pairs are still to be fed, their hidden states in `pair_hidden[slot, :count]`, their tokens in `pair_tokens[slot, :count]`, the last of them
the pending token.
"""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np

from sampling.batched import DraftStep, Sampler
from sampling.rows import RowBatch
from worker.engine.cohort_shape import CohortShape
from worker.engine.drafter import Opening
from worker.engine.mtp_head import MTPHead
from worker.engine.row import Row
from worker.engine.static_cache import StaticCache


class HeadDrafter:
    """One head's cache and pending pairs for all slots."""

    def __init__(self, head: MTPHead, sampler: Sampler, shape: CohortShape) -> None:
        self.depth = shape.depth
        self._head = head
        self._sampler = sampler
        self._shape = shape
        self._cache: StaticCache | None = None
        self._starts = np.zeros(shape.slots, np.int32)
        self._counts = np.ones(shape.slots, np.int32)
        self._pair_tokens = np.zeros((shape.slots, shape.depth + 1), np.int32)
        self._pair_hidden: mx.array | None = None

    def open(self, hidden: mx.array, normed: mx.array) -> "HeadOpening":
        """A cache of one row, to be filled pair by pair."""
        base = self._head.base_hidden(hidden, normed)
        cache = StaticCache(self._shape.capacity)
        cursor = self._shape.cursor(np.zeros(1, np.int32), 1)
        self._head.forward(base, mx.zeros((1, 1), mx.int32), cache, cursor)  # for the buffers' shapes; position 0 is written again
        return HeadOpening(self._head, self._shape, cache, mx.zeros_like(base[0, 0]))

    def admit(self, slot: int, opening: Opening, row: Row) -> None:
        """Take over an opening's cache, and its last hidden state with the pending token as the first pair to feed."""
        assert isinstance(opening, HeadOpening)
        if self._cache is None or self._pair_hidden is None:
            self._cache = opening.cache.like(self._shape.slots)
            self._pair_hidden = mx.zeros((self._shape.slots, self.depth + 1, opening.last_hidden.shape[-1]), opening.last_hidden.dtype)
        self._cache.insert(slot, opening.cache)
        # All of the slot is replaced: whatever an earlier row left there, a NaN included, must not reach this one.
        self._pair_hidden[slot] = mx.concatenate([opening.last_hidden[None], mx.zeros_like(self._pair_hidden[slot, 1:])])
        self._pair_tokens[slot] = 0
        self._pair_tokens[slot, 0] = row.prompt_ids[-1]
        self._counts[slot] = 1
        self._starts[slot] = max(len(row.prompt_ids) - 2, 0)

    def draft(self, batch: RowBatch, rows: Sequence[Row | None]) -> list[DraftStep]:
        """One pass over the pending pairs, then depth - 1 passes over the head's own hidden states."""
        assert self._cache is not None
        assert self._pair_hidden is not None
        head, slots = self._head, mx.arange(len(self._starts))
        normed, recycled = head.forward(
            self._pair_hidden, mx.array(self._pair_tokens), self._cache, self._shape.cursor(self._starts, self.depth + 1)
        )
        last = mx.array(self._counts - 1)
        normed, recycled = normed[slots, last][:, None], recycled[slots, last][:, None]
        steps: list[DraftStep] = []
        while True:
            steps.append(self._sampler.draft(head.logits(normed[:, 0]), batch, steps))
            if len(steps) == self.depth:
                return steps
            cursor = self._shape.cursor(self._starts + self._counts + len(steps) - 1, 1)
            tokens = mx.array(np.maximum(steps[-1].tokens, 0).astype(np.int32))[:, None]  # -1: the row proposes nothing any more
            normed, recycled = head.forward(recycled, tokens, self._cache, cursor)

    def commit(self, offsets: np.ndarray, kept: np.ndarray, tokens: np.ndarray, hidden: mx.array, normed: mx.array) -> None:
        """The committed tokens and the trunk's hidden states before them are the next pairs."""
        self._starts = np.where(kept > 0, offsets, 0).astype(np.int32)
        self._counts = np.maximum(kept, 1).astype(np.int32)
        self._pair_tokens = np.maximum(tokens, 0).astype(np.int32)
        self._pair_hidden = self._head.base_hidden(hidden, normed)

    def keep(self, slots: Sequence[int]) -> None:
        """Drop every slot but these, in this order."""
        assert self._cache is not None
        assert self._pair_hidden is not None
        chosen = list(slots)
        self._cache.keep(mx.array(chosen, mx.int32))
        self._pair_hidden = self._pair_hidden[mx.array(chosen, mx.int32)]
        self._starts, self._counts, self._pair_tokens = self._starts[chosen], self._counts[chosen], self._pair_tokens[chosen]

    def arrays(self) -> list[mx.array]:
        """The cache's buffers and the pending hidden states."""
        held = [] if self._cache is None else list(self._cache.buffers)
        return held if self._pair_hidden is None else [*held, self._pair_hidden]


class HeadOpening:
    """One prompt's pairs in a cache of one row.

    A pair needs the token behind its hidden state, so the newest hidden state waits for the next pass; what is in the cache, and in which
    passes it was computed, then depends on the tokens that were read and on nothing behind them.

    Attributes:
        cache: holds the pairs before the newest hidden state.
        last_hidden: that state, [D]; zeros before the first token.
    """

    def __init__(self, head: MTPHead, shape: CohortShape, cache: StaticCache, last_hidden: mx.array) -> None:
        self.cache = cache
        self.last_hidden = last_hidden
        self._head = head
        self._shape = shape

    def feed(self, start: int, tokens: Sequence[int], hidden: mx.array, normed: mx.array) -> None:
        """Feed the pairs whose second half is one of T tokens at positions start…"""
        base = self._head.base_hidden(hidden, normed)
        states = mx.concatenate([self.last_hidden[None, None], base[:, :-1]], axis=1)
        first = start - 1
        if start == 0:  # nothing stands before the first token
            states, tokens, first = states[:, 1:], tokens[1:], 0
        if tokens:
            cursor = self._shape.cursor(np.array([first], np.int32), len(tokens))
            self._head.forward(states, mx.array([tokens], mx.int32), self.cache, cursor)
        self.last_hidden = base[0, -1]

    def fork(self, capacity: int) -> "HeadOpening":
        """The same pairs in another cache."""
        return HeadOpening(self._head, replace(self._shape, capacity=capacity), self.cache.fork(capacity), self.last_hidden)

    def arrays(self) -> list[mx.array]:
        """The cache's buffers and the waiting hidden state."""
        return [*self.cache.buffers, self.last_hidden]
