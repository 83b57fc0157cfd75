"""`ModelDrafter`: drafts with a smaller model of the same tokenizer, decoded beside the target.

Invariant between cycles: the draft model's caches hold the positions before `offset` - 1 at least. After a fully accepted block its last
draft has not been read yet, so the first pass of a cycle reads the last two committed tokens; reading one of them again writes the same
keys and values to the same place.
"""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np

from sampling.batched import DraftStep, Sampler
from sampling.rows import RowBatch
from worker.engine.cohort_shape import CohortShape
from worker.engine.drafter import Opening
from worker.engine.layer_cache import LayerCache
from worker.engine.row import Row
from worker.engine.trunk import Trunk


class ModelDrafter:
    """A draft model's caches for all slots.

    Args:
        model: attention layers only, the target's tokenizer and vocabulary (checked when it is loaded).
        sampler: the target's sampler; the draft distribution is made by the same config.
        shape: the cohort's.
    """

    def __init__(self, model: Trunk, sampler: Sampler, shape: CohortShape) -> None:
        self.depth = shape.depth
        self._model = model
        self._sampler = sampler
        self._shape = shape
        self._caches: list[LayerCache] = []
        self._offsets = np.zeros(shape.slots, np.int32)
        self._last_two = np.zeros((shape.slots, 2), np.int32)

    def open(self, hidden: mx.array, normed: mx.array) -> "ModelOpening":
        """The draft model will read the prompt as the target reads it."""
        caches = self._model.make_caches(self._shape.capacity)
        self._model.forward(mx.zeros((1, 1), mx.int32), caches, self._shape.cursor(np.zeros(1, np.int32), 1))  # for the buffers' shapes
        return ModelOpening(self._model, self._shape, caches)

    def admit(self, slot: int, opening: Opening, row: Row) -> None:
        """Take over an opening's caches."""
        assert isinstance(opening, ModelOpening)
        if not self._caches:
            self._caches = [cache.like(self._shape.slots) for cache in opening.caches]
        for mine, theirs in zip(self._caches, opening.caches, strict=True):
            mine.insert(slot, theirs)
        self._offsets[slot] = len(row.prompt_ids) - 1
        self._last_two[slot] = [row.prompt_ids[-2] if len(row.prompt_ids) > 1 else 0, row.prompt_ids[-1]]

    def draft(self, batch: RowBatch, rows: Sequence[Row | None]) -> list[DraftStep]:
        """One pass over the last two committed tokens, then depth - 1 passes over the drafts."""
        # A row at position 0 has one token only; it is read at position 0 and 1, and position 1 is written again before it is seen.
        starts = np.maximum(self._offsets - 1, 0)
        tokens = np.where(self._offsets[:, None] > 0, self._last_two, self._last_two[:, 1:])
        hidden = self._model.forward(mx.array(tokens), self._caches, self._shape.cursor(starts, 2))
        hidden = hidden[mx.arange(len(starts)), mx.array(self._offsets - starts)]
        steps: list[DraftStep] = []
        while True:
            steps.append(self._sampler.draft(self._model.logits(self._model.norm(hidden)), batch, steps))
            if len(steps) == self.depth:
                return steps
            token = mx.array(np.maximum(steps[-1].tokens, 0).astype(np.int32))[:, None]  # -1: the row proposes nothing any more
            hidden = self._model.forward(token, self._caches, self._shape.cursor(self._offsets + len(steps), 1))[:, 0]

    def commit(self, offsets: np.ndarray, kept: np.ndarray, tokens: np.ndarray, hidden: mx.array, normed: mx.array) -> None:
        """Follow the target's offsets; rejected drafts are overwritten."""
        rows = np.arange(len(kept))
        newest = np.maximum(tokens[rows, np.maximum(kept - 1, 0)], 0)
        second = np.where(kept > 1, np.maximum(tokens[rows, np.maximum(kept - 2, 0)], 0), self._last_two[:, 1])
        self._last_two = np.stack([second, newest], axis=1).astype(np.int32)
        self._offsets = np.where(kept > 0, offsets + kept, 0).astype(np.int32)

    def keep(self, slots: Sequence[int]) -> None:
        """Drop every slot but these, in this order."""
        chosen = list(slots)
        for cache in self._caches:
            cache.keep(mx.array(chosen, mx.int32))
        self._offsets, self._last_two = self._offsets[chosen], self._last_two[chosen]

    def arrays(self) -> list[mx.array]:
        """The caches' buffers."""
        return [buffer for cache in self._caches for buffer in cache.buffers]


class ModelOpening:
    """One prompt in the draft model's caches of one row."""

    def __init__(self, model: Trunk, shape: CohortShape, caches: list[LayerCache]) -> None:
        self.caches = caches
        self._model = model
        self._shape = shape

    def feed(self, start: int, tokens: Sequence[int], hidden: mx.array, normed: mx.array) -> None:
        """Read the same tokens; the target's hidden states are not needed."""
        cursor = self._shape.cursor(np.array([start], np.int32), len(tokens))
        self._model.forward(mx.array([tokens], mx.int32), self.caches, cursor)

    def fork(self, capacity: int) -> "ModelOpening":
        """The same in other caches."""
        shape = replace(self._shape, capacity=capacity)
        return ModelOpening(self._model, shape, [cache.fork(capacity) for cache in self.caches])

    def arrays(self) -> list[mx.array]:
        """The caches' buffers."""
        return [buffer for cache in self.caches for buffer in cache.buffers]
