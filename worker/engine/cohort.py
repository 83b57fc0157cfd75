"""`Cohort`: B slots of one capacity that decode side by side. A cycle is draft, verify, commit.

Invariants between cycles, per occupied slot, with `offset` = position of the pending token (the last committed one):

- the trunk's caches hold positions 0 … offset - 1;
- the head's cache holds the pairs (h_t, x_{t+1}) up to position offset - count - 1; the last `count` pairs are still to be fed: their
  hidden states are `pair_hidden[slot, :count]`, their tokens `pair_tokens[slot, :count]`, the last of them the pending token.

A row enters with all of its prompt but the last token prefilled and that token pending, so every completion token comes from a cycle.
"""

import time
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from sampling.batched import BatchedSampler, BlockResult, DraftStep
from sampling.rows import RowBatch
from schemas.errors import NonFiniteLogitsError
from worker.engine.completion import Completion
from worker.engine.engine import Timings
from worker.engine.layer_cache import LayerCache
from worker.engine.mtp_head import MTPHead
from worker.engine.row import Row
from worker.engine.static_cache import Cursor, StaticCache
from worker.engine.trunk import Trunk

WINDOW_STEP = 64  # attention windows grow in steps of this many positions


@dataclass(frozen=True)
class CohortShape:
    """What fixes the shapes of a cohort's passes.

    Attributes:
        slots: B.
        capacity: positions per slot.
        depth: K.
        prefill_chunk: tokens per prefill pass.
        elastic: the backend is row-invariant, so that passes may shrink to the slots and positions in use without changing a bit.
    """

    slots: int
    capacity: int
    depth: int
    prefill_chunk: int
    elastic: bool


class Cohort:
    """The slots, their caches, and the three steps of a cycle."""

    def __init__(self, trunk: Trunk, head: MTPHead | None, sampler: BatchedSampler, shape: CohortShape, timings: Timings) -> None:
        self._trunk = trunk
        self._head = head
        self._sampler = sampler
        self._shape = shape
        self._timings = timings
        self.rows: list[Row | None] = [None] * shape.slots
        tokens = shape.depth + 1
        self._offsets = np.zeros(shape.slots, np.int32)
        self._pair_counts = np.ones(shape.slots, np.int32)
        self._pair_tokens = np.zeros((shape.slots, tokens), np.int32)
        self._pair_hidden = mx.zeros((shape.slots, tokens, trunk.width))
        self._caches: list[LayerCache] = []  # the trunk's layers, then the head's block if there is a head
        self._prefilled: _Prefilled | None = None

    @property
    def free_slots(self) -> list[int]:
        """Slots without a row."""
        return [slot for slot, row in enumerate(self.rows) if row is None]

    def admit(self, slot: int, row: Row) -> None:
        """Prefill a row alone, in passes whose shapes depend on the row only, and put it into a free slot."""
        started = time.perf_counter()
        assert self.rows[slot] is None
        prompt = row.prompt_ids
        # The samples of one record follow each other and share one prefill.
        if self._prefilled is None or self._prefilled.prompt != prompt:
            self._prefilled = None
            self._prefilled = self._prefill(prompt)
        last_hidden = self._prefilled.last_hidden
        if not self._caches:
            self._caches = [cache.like(len(self.rows)) for cache in self._prefilled.caches]
            self._pair_hidden = self._pair_hidden.astype(last_hidden.dtype)
        for mine, theirs in zip(self._caches, self._prefilled.caches, strict=True):
            mine.insert(slot, theirs)
        # All of the slot is replaced: whatever an earlier row left there, a NaN included, must not reach this one.
        self._pair_hidden[slot] = mx.concatenate([last_hidden[None], mx.zeros((self._shape.depth, self._trunk.width), last_hidden.dtype)])
        self._pair_tokens[slot] = 0
        self._pair_tokens[slot, 0] = prompt[-1]
        self._pair_counts[slot] = 1
        self._offsets[slot] = len(prompt) - 1
        self.rows[slot] = row
        _evaluate(self._caches, self._pair_hidden)
        self._timings.prefill += time.perf_counter() - started

    def cycle(self) -> list[Completion]:
        """Run one cycle over all slots; returns the rows that ended in it, whose slots are free again."""
        started = time.perf_counter()
        batch = self._row_batch()
        drafts = self._draft(batch)
        drafted = time.perf_counter()
        block, hidden = self._verify(batch, drafts)
        verified = time.perf_counter()
        ended = self._commit(block, hidden)
        self._timings.draft += drafted - started
        self._timings.verify += verified - drafted
        self._timings.commit += time.perf_counter() - verified
        return ended

    def shrink(self) -> None:
        """Drop the empty slots once they are half of all, where that changes no bit."""
        occupied = [slot for slot, row in enumerate(self.rows) if row is not None]
        if not self._shape.elastic or not occupied or len(occupied) > len(self.rows) // 2:
            return
        slots = mx.array(occupied, mx.int32)
        for cache in self._caches:
            cache.keep(slots)
        self._pair_hidden = self._pair_hidden[slots]
        self._offsets, self._pair_counts = self._offsets[occupied], self._pair_counts[occupied]
        self._pair_tokens = self._pair_tokens[occupied]
        self.rows = [self.rows[slot] for slot in occupied]
        _evaluate(self._caches, self._pair_hidden)

    def _prefill(self, prompt: list[int]) -> "_Prefilled":
        layers = self._trunk.layers
        caches = self._trunk.make_caches(self._shape.capacity)
        if self._head is not None:
            caches.append(StaticCache(self._shape.capacity))
        tokens = mx.array([prompt], mx.int32)
        # A prompt of one token has no earlier position; the pass over it only shapes the buffers, and the first cycle makes it again.
        length = max(len(prompt) - 1, 1)
        last_hidden = mx.zeros(self._trunk.width)
        for start in range(0, length, self._shape.prefill_chunk):
            end = min(start + self._shape.prefill_chunk, length)
            cursor = self._cursor(np.array([start], np.int32), end - start)
            hidden = self._trunk.forward(tokens[:, start:end], caches[:layers], cursor)
            if self._head is not None:
                base = self._head.base_hidden(hidden, self._trunk.norm(hidden))
                # The pending pair is fed again by the first cycle, to the same place.
                following = tokens[:, start + 1 : end + 1] if len(prompt) > 1 else tokens
                self._head.forward(base, following, caches[layers], cursor)
                last_hidden = base[0, -1] if len(prompt) > 1 else last_hidden.astype(base.dtype)
            for cache in caches[:layers]:
                cache.commit(mx.array([end - start if len(prompt) > 1 else 0], mx.int32))
            _evaluate(caches, last_hidden)
        return _Prefilled(prompt, caches, last_hidden)

    def _draft(self, batch: RowBatch) -> list[DraftStep]:
        """K draft tokens per slot: one pass over the pending pairs, then K - 1 passes over the head's own hidden states."""
        if self._head is None or self._shape.depth == 0:
            return []
        head, slots = self._head, mx.arange(len(self.rows))
        starts = np.maximum(self._offsets - self._pair_counts, 0)
        cursor = self._cursor(starts, self._shape.depth + 1)
        normed, recycled = head.forward(self._pair_hidden, mx.array(self._pair_tokens), self._caches[-1], cursor)
        last = mx.array(self._pair_counts - 1)
        normed, recycled = normed[slots, last][:, None], recycled[slots, last][:, None]
        drafts: list[DraftStep] = []
        while True:
            drafts.append(self._sampler.draft(head.logits(normed[:, 0]), batch, drafts))
            if len(drafts) == self._shape.depth:
                return drafts
            cursor = self._cursor(starts + self._pair_counts + len(drafts) - 1, 1)
            tokens = mx.array(drafts[-1].tokens.astype(np.int32))[:, None]
            normed, recycled = head.forward(recycled, tokens, self._caches[-1], cursor)

    def _verify(self, batch: RowBatch, drafts: list[DraftStep]) -> tuple[BlockResult, mx.array]:
        """One pass of the target over the pending token and the drafts, and the verdict on them."""
        pending = self._pair_tokens[np.arange(len(self.rows)), self._pair_counts - 1]
        tokens = np.stack([pending, *(draft.tokens.astype(np.int32) for draft in drafts)], axis=1)
        cursor = self._cursor(self._offsets, self._shape.depth + 1)
        hidden = self._trunk.forward(mx.array(tokens), self._caches[: self._trunk.layers], cursor)
        normed = self._trunk.norm(hidden)
        base = self._head.base_hidden(hidden, normed) if self._head is not None else normed
        return self._sampler.verify(self._trunk.logits(normed), batch, drafts), base

    def _commit(self, block: BlockResult, hidden: mx.array) -> list[Completion]:
        """Commit each row's accepted drafts and its residual or bonus token; take out what ended."""
        ended: list[Completion] = []
        kept = mx.array(np.where(block.failed, 0, block.accepted + 1).astype(np.int32))
        for cache in self._caches[: self._trunk.layers]:
            cache.commit(kept)
        for slot, row in enumerate(self.rows):
            if row is None:
                continue
            if block.failed[slot]:
                fault = NonFiniteLogitsError(int(block.nan[slot]), int(block.inf[slot]), self._trunk.vocab_size)
                ended.append(Completion.failed(row.request, fault, len(row.prompt_ids)))
                self._vacate(slot)
                continue
            count = int(block.accepted[slot]) + 1
            tokens = block.tokens[slot, :count].tolist()
            row.commit(tokens, block.logprobs[slot, :count].tolist(), block.accept_probabilities[slot].tolist())
            if row.finish_reason is not None:
                ended.append(row.completion())
                self._vacate(slot)
                continue
            self._offsets[slot] += count
            self._pair_counts[slot] = count
            self._pair_tokens[slot, :count] = tokens
        self._pair_hidden = hidden
        return ended

    def _vacate(self, slot: int) -> None:
        self.rows[slot] = None
        self._offsets[slot] = 0
        self._pair_counts[slot] = 1

    def _cursor(self, offsets: np.ndarray, tokens: int) -> Cursor:
        window = self._shape.capacity
        if self._shape.elastic:
            needed = int(offsets.max()) + tokens
            window = min(window, -(-needed // WINDOW_STEP) * WINDOW_STEP)
        return Cursor(mx.array(offsets), tokens, window)

    def _row_batch(self) -> RowBatch:
        return RowBatch.of(
            keys=[row.request.key if row is not None else 0 for row in self.rows],
            positions=[len(row.token_ids) if row is not None else 0 for row in self.rows],
            active=[row is not None for row in self.rows],
            token_counts=[row.counts if row is not None else {} for row in self.rows] if self._sampler.config.has_penalties else None,
        )


@dataclass(frozen=True)
class _Prefilled:
    """One prompt's caches (B = 1) and the hidden state of its pending pair, [D]."""

    prompt: list[int]
    caches: list[LayerCache]
    last_hidden: mx.array


def _evaluate(caches: list[LayerCache], *arrays: mx.array) -> None:
    mx.eval(*arrays, *(buffer for cache in caches for buffer in cache.buffers))
