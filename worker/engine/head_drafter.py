"""`HeadDrafter`: drafts with an MTP head, recursively.

A head has n MTP layers, mostly one. Draft i is made by layer i mod n. Layer k reads pairs (g_t, x_{t+1+k}) at positions t: g is the trunk's
hidden state for layer 0 and the output of the layer before it for the others. Behind the last layer the first one goes on, on the output
of the last.

Invariants between cycles, per occupied slot, with the pending token at position P: the cache of every layer holds its pairs before
`start`; the next `count` pairs of layer 0, up to position P - 1, are still to be read, their hidden states in `pair_hidden[slot, :count]`,
their tokens in `pair_tokens[slot, :count]`, the last of them the pending token. A deeper layer's last pairs hold drafts, so the n - 1
pairs before the newest ones are read again once it is known what stands there.
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
    """The layers' caches and the pending pairs of all slots."""

    def __init__(self, head: MTPHead, sampler: Sampler, shape: CohortShape) -> None:
        self.depth = shape.depth
        self._layers = (head, *head.deeper)
        self._sampler = sampler
        self._shape = shape
        self._width = shape.depth + len(self._layers)  # pairs per pass
        self._caches: list[StaticCache] = []
        self._starts = np.zeros(shape.slots, np.int32)
        self._counts = np.ones(shape.slots, np.int32)
        self._pair_tokens = np.zeros((shape.slots, self._width), np.int32)
        self._pair_hidden: mx.array | None = None

    def open(self, hidden: mx.array, normed: mx.array) -> "HeadOpening":
        """Caches of one row, to be filled pair by pair."""
        base = self._layers[0].base_hidden(hidden, normed)
        caches = [StaticCache(self._shape.capacity) for _ in self._layers]
        for layer, cache in zip(self._layers, caches, strict=True):  # for the buffers' shapes; position 0 is written again
            layer.forward(base, mx.zeros((1, 1), mx.int32), cache, self._shape.cursor(np.zeros(1, np.int32), 1))
        nothing = mx.zeros((len(caches), base.shape[-1]), base.dtype)
        return HeadOpening(self._layers, self._shape, caches, nothing, nothing)

    def admit(self, slot: int, opening: Opening, row: Row) -> None:
        """Take over an opening's caches, and its last hidden states with the tokens behind them as the first pairs to read."""
        assert isinstance(opening, HeadOpening)
        if not self._caches or self._pair_hidden is None:
            self._caches = [cache.like(self._shape.slots) for cache in opening.caches]
            self._pair_hidden = mx.zeros((self._shape.slots, self._width, opening.recent.shape[-1]), opening.recent.dtype)
        for mine, theirs in zip(self._caches, opening.caches, strict=True):
            mine.insert(slot, theirs)
        pending = len(row.prompt_ids) - 1
        # A prompt of one token has no pair; a pair without a hidden state stands in, at a place that is written again.
        count = min(len(self._layers), pending) or 1
        # All of the slot is replaced: whatever an earlier row left there, a NaN included, must not reach this one.
        self._pair_hidden[slot] = mx.concatenate([opening.recent[-count:], mx.zeros_like(self._pair_hidden[slot, count:])])
        self._pair_tokens[slot] = 0
        self._pair_tokens[slot, :count] = row.prompt_ids[-count:]
        self._counts[slot] = count
        self._starts[slot] = max(pending - count, 0)

    def draft(self, batch: RowBatch, rows: Sequence[Row | None]) -> list[DraftStep]:
        """One pass of every layer over the pending pairs, then single steps on the layers' own hidden states."""
        assert self._pair_hidden is not None
        slots, last = mx.arange(len(self._starts)), mx.array(self._counts - 1)
        hidden, tokens = self._pair_hidden, self._pair_tokens
        steps: list[DraftStep] = []
        while len(steps) < self.depth:
            turn, number = divmod(len(steps), len(self._layers))
            layer, cache = self._layers[number], self._caches[number]
            if steps:
                newest = np.maximum(steps[-1].tokens, 0).astype(np.int32)  # -1: the row proposes nothing any more
            if turn == 0:
                tokens = self._shifted(tokens, newest) if steps else tokens
                normed, hidden = layer.forward(hidden, mx.array(tokens), cache, self._shape.cursor(self._starts, self._width))
                normed, recycled = normed[slots, last], hidden[slots, last][:, None]
            else:
                cursor = self._shape.cursor(self._starts + self._counts - 1 + turn, 1)
                normed, recycled = layer.forward(recycled, mx.array(newest)[:, None], cache, cursor)
                normed = normed[:, 0]
            steps.append(self._sampler.draft(layer.logits(normed), batch, steps))
        return steps

    def _shifted(self, tokens: np.ndarray, newest: np.ndarray) -> np.ndarray:
        """The next layer's tokens [B, W]: each pair's is the one behind, the last one's is the newest draft [B]."""
        moved = np.roll(tokens, -1, axis=1)
        moved[np.arange(len(moved)), self._counts - 1] = newest
        return moved

    def commit(self, offsets: np.ndarray, kept: np.ndarray, tokens: np.ndarray, hidden: mx.array, normed: mx.array) -> None:
        """The committed tokens and the trunk's hidden states before them are the next pairs."""
        new_tokens, new_hidden = np.maximum(tokens, 0).astype(np.int32), self._layers[0].base_hidden(hidden, normed)
        again = np.zeros_like(kept)
        if len(self._layers) > 1:
            assert self._pair_hidden is not None
            again = np.minimum(np.minimum(len(self._layers) - 1, self._counts), offsets)
            place = np.arange(self._width)
            old = self._counts[:, None] - again[:, None] + place
            index = np.where(place < again[:, None], old, np.minimum(self._width + place - again[:, None], self._width + self.depth))
            new_tokens = np.take_along_axis(np.concatenate([self._pair_tokens, new_tokens], axis=1), index, axis=1)
            both = mx.concatenate([self._pair_hidden, new_hidden], axis=1)
            new_hidden = mx.take_along_axis(both, mx.array(index)[..., None], axis=1)
        self._starts = np.where(kept > 0, offsets - again, 0).astype(np.int32)
        self._counts = np.maximum(np.where(kept > 0, kept + again, 0), 1).astype(np.int32)
        self._pair_tokens, self._pair_hidden = new_tokens, new_hidden

    def keep(self, slots: Sequence[int]) -> None:
        """Drop every slot but these, in this order."""
        assert self._pair_hidden is not None
        chosen = list(slots)
        for cache in self._caches:
            cache.keep(mx.array(chosen, mx.int32))
        self._pair_hidden = self._pair_hidden[mx.array(chosen, mx.int32)]
        self._starts, self._counts, self._pair_tokens = self._starts[chosen], self._counts[chosen], self._pair_tokens[chosen]

    def arrays(self) -> list[mx.array]:
        """The caches' buffers and the pending hidden states."""
        held = [buffer for cache in self._caches for buffer in cache.buffers]
        return held if self._pair_hidden is None else [*held, self._pair_hidden]


class HeadOpening:
    """One prompt's pairs in caches of one row.

    A pair needs the token behind its hidden state, so the newest hidden state of every layer waits for the next pass; what is in the
    caches, and in which passes it was computed, then depends on the tokens that were read and on nothing behind them.

    Attributes:
        caches: of n layers, each with its pairs before its newest hidden state.
        recent: the last n hidden states of the trunk, [n, D]; zeros where there are fewer.
    """

    def __init__(
        self, layers: Sequence[MTPHead], shape: CohortShape, caches: list[StaticCache], recent: mx.array, waiting: mx.array
    ) -> None:
        self.caches = caches
        self.recent = recent
        self._waiting = waiting  # what each layer read last and has no token for, [n, D]
        self._layers = layers
        self._shape = shape

    def feed(self, start: int, tokens: Sequence[int], hidden: mx.array, normed: mx.array) -> None:
        """Feed the pairs whose second half is one of T tokens at positions start…"""
        states = self._layers[0].base_hidden(hidden, normed)
        self.recent = mx.concatenate([self.recent, states[0]])[-len(self._layers) :]
        waiting = list(self._waiting)
        for number, (layer, cache) in enumerate(zip(self._layers, self.caches, strict=True)):
            pairs = mx.concatenate([waiting[number][None, None], states[:, :-1]], axis=1)
            waiting[number] = states[0, -1]
            if start == 0:  # nothing stands before the first token
                pairs, tokens = pairs[:, 1:], tokens[1:]
            start = max(start - 1, 0)
            if not tokens:
                break
            cursor = self._shape.cursor(np.array([start], np.int32), len(tokens))
            states = layer.forward(pairs, mx.array([tokens], mx.int32), cache, cursor)[1]
        self._waiting = mx.stack(waiting)

    def fork(self, capacity: int) -> "HeadOpening":
        """The same pairs in other caches."""
        shape, caches = replace(self._shape, capacity=capacity), [cache.fork(capacity) for cache in self.caches]
        return HeadOpening(self._layers, shape, caches, self.recent, self._waiting)

    def arrays(self) -> list[mx.array]:
        """The caches' buffers and the hidden states that wait."""
        return [*(buffer for cache in self.caches for buffer in cache.buffers), self.recent, self._waiting]
