"""`Cohort`: B slots of one capacity that decode side by side. A cycle is draft, verify, commit.

Invariant between cycles, per occupied slot: `offset` is the position of the pending token, the last one committed; the trunk's caches hold
the positions before it. A row enters with all of its prompt but the last token read and that token pending, so every completion token
comes from a cycle.
"""

import time
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from sampling.batched import BlockResult, DraftStep, Sampler
from sampling.rows import RowBatch
from worker.engine.cohort_shape import CohortShape
from worker.engine.completion import Completion
from worker.engine.drafter import Drafter
from worker.engine.engine import Timings
from worker.engine.layer_cache import LayerCache
from worker.engine.prefill import Prefilled
from worker.engine.row import NEUTRAL, Row
from worker.engine.trunk import Trunk


class Cohort:
    """The slots, the trunk's caches, and the three steps of a cycle."""

    def __init__(self, trunk: Trunk, drafter: Drafter, sampler: Sampler, shape: CohortShape, timings: Timings) -> None:
        self._trunk = trunk
        self._drafter = drafter
        self._sampler = sampler
        self._shape = shape
        self._timings = timings
        self.rows: list[Row | None] = [None] * shape.slots
        self._offsets = np.zeros(shape.slots, np.int32)
        self._pending = np.zeros(shape.slots, np.int32)
        self._caches: list[LayerCache] = []

    @property
    def free_slots(self) -> list[int]:
        """Slots without a row."""
        return [slot for slot, row in enumerate(self.rows) if row is None]

    def admit(self, slot: int, row: Row, prefilled: Prefilled) -> None:
        """Put a row whose prompt was read but for its last token into a free slot."""
        started = time.perf_counter()
        assert self.rows[slot] is None
        if not self._caches:
            self._caches = [cache.like(len(self.rows)) for cache in prefilled.caches]
        for mine, theirs in zip(self._caches, prefilled.caches, strict=True):
            mine.insert(slot, theirs)
        self._drafter.admit(slot, prefilled.opening, row)
        self._pending[slot] = row.prompt_ids[-1]
        self._offsets[slot] = len(row.prompt_ids) - 1
        self.rows[slot] = row
        self._evaluate()
        self._timings.prefill += time.perf_counter() - started

    def cycle(self) -> list[Completion]:
        """Run one cycle over all slots; returns the rows that ended in it, whose slots are free again."""
        return self.commit(self.judge())

    def judge(self) -> "JudgedBlock":
        """Draft and verify: what the cycle will commit. Nothing has changed until it is committed, exactly once."""
        started = time.perf_counter()
        batch = self._row_batch()
        drafts = self._drafter.draft(batch, self.rows)
        drafted = time.perf_counter()
        block = self._verify(batch, drafts)
        self._timings.draft += drafted - started
        self._timings.verify += time.perf_counter() - drafted
        return block

    def shrink(self) -> None:
        """Drop the empty slots once they are half of all, where that changes no bit."""
        occupied = [slot for slot, row in enumerate(self.rows) if row is not None]
        if not self._shape.elastic or not occupied or len(occupied) > len(self.rows) // 2:
            return
        for cache in self._caches:
            cache.keep(mx.array(occupied, mx.int32))
        self._drafter.keep(occupied)
        self._offsets, self._pending = self._offsets[occupied], self._pending[occupied]
        self.rows = [self.rows[slot] for slot in occupied]
        self._evaluate()

    def _verify(self, batch: RowBatch, drafts: list[DraftStep]) -> "JudgedBlock":
        """One pass of the target over the pending token and the drafts, and the verdict on them."""
        # A row may propose nothing at a depth (-1); some token must be fed there, and the verdict ignores it.
        tokens = np.stack([self._pending, *(np.maximum(step.tokens, 0) for step in drafts)], axis=1).astype(np.int32)
        hidden = self._trunk.forward(mx.array(tokens), self._caches, self._shape.cursor(self._offsets, len(drafts) + 1))
        normed = self._trunk.norm(hidden)
        return JudgedBlock(self._sampler.verify(self._trunk.logits(normed), batch, drafts), hidden, normed)

    def commit(self, judged: "JudgedBlock") -> list[Completion]:
        """Commit each row's accepted drafts and its residual or bonus token; take out what ended."""
        started = time.perf_counter()
        block = judged.result
        occupied = np.array([row is not None for row in self.rows])
        kept = np.where(occupied & ~block.failed, block.accepted + 1, 0).astype(np.int32)
        for cache in self._caches:
            cache.commit(mx.array(kept))
        self._drafter.commit(self._offsets, kept, block.tokens, judged.hidden, judged.normed)
        self._offsets = self._offsets + kept
        self._pending = np.where(kept > 0, block.tokens[np.arange(len(kept)), np.maximum(kept - 1, 0)], 0).astype(np.int32)
        ended: list[Completion] = []
        for slot, row in enumerate(self.rows):
            if row is None:
                continue
            if block.failed[slot]:
                fault = row.fault(int(block.nan[slot]), int(block.inf[slot]), self._trunk.vocab_size)
                ended.append(Completion.failed(row.request, fault, len(row.prompt_ids)))
                self._vacate(slot)
                continue
            count, proposed = int(kept[slot]), int(block.proposed[slot])
            row.commit(
                block.tokens[slot, :count].tolist(),
                block.logprobs[slot, :count].tolist(),
                block.accept_probabilities[slot, :proposed].tolist(),
            )
            if row.finish_reason is not None:
                ended.append(row.completion())
                self._vacate(slot)
        self._timings.commit += time.perf_counter() - started
        return ended

    def _vacate(self, slot: int) -> None:
        self.rows[slot] = None
        self._offsets[slot] = 0
        self._pending[slot] = 0

    def _row_batch(self) -> RowBatch:
        masks = [row.mask if row is not None else None for row in self.rows]
        configs = [NEUTRAL if row is None else row.sampler for row in self.rows]
        return RowBatch.of(
            keys=[row.request.key if row is not None else 0 for row in self.rows],
            positions=[len(row.token_ids) if row is not None else 0 for row in self.rows],
            active=[row is not None for row in self.rows],
            token_counts=[row.counts if row is not None and row.sampler.has_penalties else {} for row in self.rows],
            prompt_ids=[row.prompt_tokens if row is not None and row.sampler.reads_prompt else [] for row in self.rows],
            configs=configs,
            masks=masks if any(mask is not None for mask in masks) else None,
        )

    def _evaluate(self) -> None:
        mx.eval(*self._drafter.arrays(), *(buffer for cache in self._caches for buffer in cache.buffers))


@dataclass(frozen=True)
class JudgedBlock:
    """A cycle between verdict and commit: the verdict, and the trunk's hidden states before and after its final norm, [B, K + 1, D]."""

    result: BlockResult
    hidden: mx.array
    normed: mx.array
