"""The distributions of a whole batch without filters: nothing is cut, so nothing is copied out either.

A token is drawn by inverse CDF over blocks first and then inside one block. Where the error of the block masses could tell two tokens
apart, and for residuals, which need p and q at every token, the position's whole vocabulary is weighed in float64.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sampling.distribution import Distribution, SparseDistribution
from sampling.exponential_noise import SubKeys
from sampling.logit_batch import LogitBatch
from sampling.rows import NO_TOKEN
from sampling.vocabulary_race import vocabulary_race


@dataclass(frozen=True, eq=False)
class WholeVocabularyBatch:
    """Distributions of B rows at T positions over one vocabulary, as reduced logits.

    Attributes:
        logits: reduced with mass.
        vocab_ids: `[V] int64`, full id of each local one, ascending; None where they are the same.
        vocab_size: of the full vocabulary.
        nan: `[B, T] int64`, NaN logits of a position that never became a distribution.
        inf: `[B, T] int64`, its +inf logits.
        bad: `[B, T] bool`: such a position, or one of an inactive row; its distribution is a one-hot placeholder.
        one_hot: `[B, T] int64`, full ids: the token that a position holds with probability 1, whatever its logits; -1 elsewhere.
    """

    logits: LogitBatch
    vocab_ids: NDArray[np.int64] | None
    vocab_size: int
    nan: NDArray[np.int64]
    inf: NDArray[np.int64]
    bad: NDArray[np.bool_]
    one_hot: NDArray[np.int64]

    @classmethod
    def of(
        cls, logits: LogitBatch, active: NDArray[np.bool_], vocab_ids: NDArray[np.int64] | None, vocab_size: int
    ) -> "WholeVocabularyBatch":
        """The distributions of logits reduced with mass; arguments as in `candidates`."""
        first = 0 if vocab_ids is None else int(vocab_ids[0])
        return cls(logits, vocab_ids, vocab_size, *logits.non_finite(active), logits.bad, np.where(logits.bad, first, NO_TOKEN))

    @property
    def error_bound(self) -> float:
        """Relative error of `probability_of`."""
        return self.logits.mass_error

    def probability_of(self, tokens: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Probabilities of single tokens, `[B, n] int64`, at `places` `[B, n]`: `[B, n] float64`; 0 for `NO_TOKEN`."""
        local, known = np.maximum(tokens, 0), tokens >= 0
        if self.vocab_ids is not None:
            local = np.minimum(np.searchsorted(self.vocab_ids, tokens), len(self.vocab_ids) - 1)
            known = self.vocab_ids[local] == tokens
        rows = np.arange(len(tokens))[:, None]
        fixed = self.one_hot[rows, places]
        logit = np.where(fixed >= 0, 0.0, self.logits.logits_of(local, places))
        probability = self.logits.weights(logit, self.logits.top[rows, places]) / self.logits.mass[rows, places]
        return np.where(fixed >= 0, tokens == fixed, np.where(known, probability, 0.0))

    def sample(self, places: NDArray[np.int64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """`sample_from_distribution` for every row at `places` `[B]`, with one uniform each: `[B] int64`."""
        logits, rows = self.logits, np.arange(len(places))
        mass = logits.block_mass[rows, places]
        block = logits.masked.shape[-1] // mass.shape[-1]
        top = logits.top[rows, places][:, None]
        hidden = np.where(logits.ids == NO_TOKEN, 0.0, logits.weights(logits.penalised[rows, places], top))
        mass = mass.copy()
        np.add.at(mass, (rows[:, None], logits.ids // block), hidden)  # padding adds 0 to the last block
        run = np.cumsum(mass, axis=-1)
        goal = uniforms * run[:, -1]
        chosen = np.minimum((run <= goal[:, None]).sum(axis=-1), mass.shape[-1] - 1)
        inside = logits.masked.reshape(*logits.masked.shape[:2], -1, block)[rows, places, chosen].astype(np.float64)
        fixed = self.one_hot[rows, places]
        weights = logits.weights(np.where(fixed[:, None] >= 0, 0.0, inside), top)
        np.add.at(weights, (rows[:, None], logits.ids % block), np.where(logits.ids // block == chosen[:, None], hidden, 0.0))
        edges = np.cumsum(np.column_stack([np.where(chosen > 0, run[rows, chosen - 1], 0.0), weights]), axis=-1)
        slot = (edges[:, 1:] <= goal[:, None]).sum(axis=-1)
        local = chosen * block + slot

        slack = 2.0 * logits.mass_error * run[:, -1]
        last = np.minimum(slot, block - 1)
        sure = (slot < block) & (edges[rows, last + 1] - goal > slack) & ((local == 0) | (goal - edges[rows, last] > slack))
        for row in np.flatnonzero(~sure & (fixed < 0)).tolist():
            run_here = np.cumsum(logits.dense_weights(row, int(places[row])))
            local[row] = np.searchsorted(run_here, uniforms[row] * run_here[-1], side="right")
        local = np.where(fixed >= 0, 0, local)
        return np.where(fixed >= 0, fixed, local if self.vocab_ids is None else self.vocab_ids[local])

    def race(self, rows: NDArray[np.int64], place: int, keys: SubKeys) -> NDArray[np.int64]:
        """`exponential_noise.race` for `rows` `[R]` at one place, with one sub-key each: `[R] int64`."""
        tokens: NDArray[np.int64] = self.one_hot[rows, place]
        running = np.flatnonzero(tokens < 0)
        tokens[running] = vocabulary_race(self.logits, self.vocab_ids, rows[running], place, (keys[0][running], keys[1][running]))
        return tokens

    def at(self, row: int, place: int) -> Distribution:
        """One position's distribution, from the float64 weights of its whole vocabulary."""
        if self.one_hot[row, place] >= 0:
            return SparseDistribution(self.one_hot[row, place, None], np.ones(1), self.vocab_size)
        dense = self.logits.dense_weights(row, place)
        dense /= dense.sum()
        return dense if self.vocab_ids is None else SparseDistribution(self.vocab_ids, dense, self.vocab_size)

    def with_one_hot(self, chosen: NDArray[np.bool_], tokens: NDArray[np.int64]) -> "WholeVocabularyBatch":
        """The same batch, with the distributions of rows `chosen` `[B]` replaced by a one-hot at `tokens` `[B]`."""
        mask = chosen[:, None]
        return replace(
            self,
            nan=np.where(mask, 0, self.nan),
            inf=np.where(mask, 0, self.inf),
            bad=self.bad & ~mask,
            one_hot=np.where(mask, tokens[:, None], self.one_hot),
        )
