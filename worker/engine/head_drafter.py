"""`HeadDrafter`: drafts with an MTP head, recursively.

Invariants between cycles, per occupied slot: the head's cache holds the pairs (h_t, x_{t+1}) before position `start`; the next `count`
pairs are still to be fed, their hidden states in `pair_hidden[slot, :count]`, their tokens in `pair_tokens[slot, :count]`, the last of them
the pending token.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from sampling.batched import BatchedSampler, DraftStep
from sampling.rows import RowBatch
from worker.engine.cohort_shape import CohortShape
from worker.engine.drafter import Opening
from worker.engine.mtp_head import MTPHead
from worker.engine.row import Row
from worker.engine.static_cache import StaticCache


class HeadDrafter:
    """One head's cache and pending pairs for all slots."""

    def __init__(self, head: MTPHead, sampler: BatchedSampler, shape: CohortShape) -> None:
        self.depth = shape.depth
        self._head = head
        self._sampler = sampler
        self._shape = shape
        self._cache: StaticCache | None = None
        self._starts = np.zeros(shape.slots, np.int32)
        self._counts = np.ones(shape.slots, np.int32)
        self._pair_tokens = np.zeros((shape.slots, shape.depth + 1), np.int32)
        self._pair_hidden: mx.array | None = None

    def open(self, prompt: list[int]) -> "HeadOpening":
        """A cache of one row, filled pair by pair."""
        return HeadOpening(self._head, self._shape, prompt)

    def admit(self, slot: int, opening: Opening, row: Row) -> None:
        """Take over an opening's cache and its last pair, which the first cycle feeds again, to the same place."""
        assert isinstance(opening, HeadOpening)
        assert opening.last_hidden is not None
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
    """One prompt's pairs in a cache of one row, and the hidden state of its pending pair, [D]."""

    def __init__(self, head: MTPHead, shape: CohortShape, prompt: list[int]) -> None:
        self.cache = StaticCache(shape.capacity)
        self.last_hidden: mx.array | None = None
        self._head = head
        self._shape = shape
        self._prompt = prompt

    def feed(self, start: int, end: int, hidden: mx.array, normed: mx.array) -> None:
        """Feed the pairs of prompt positions start to end - 1."""
        base = self._head.base_hidden(hidden, normed)
        # A prompt of one token has no pair; the pass only shapes the buffers.
        following = self._prompt[start + 1 : end + 1] or self._prompt
        self._head.forward(base, mx.array([following], mx.int32), self.cache, self._shape.cursor(np.array([start], np.int32), end - start))
        self.last_hidden = base[0, -1] if len(self._prompt) > 1 else mx.zeros_like(base[0, -1])
        mx.eval(self.last_hidden, *self.cache.buffers)

    def fork(self, prompt: list[int]) -> "HeadOpening":
        """The same pairs under another prompt; those behind the common beginning are written again."""
        copy = HeadOpening(self._head, self._shape, prompt)
        copy.cache = self.cache.fork()
        return copy
