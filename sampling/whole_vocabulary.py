"""The distributions of a whole batch without filters: nothing is cut, so nothing is copied out either.

Probabilities of single tokens come from the float32 mass, with its error bound; whatever decides a token is computed in float64 by the
reference.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sampling.distribution import Distribution
from sampling.logit_batch import MASS_ERROR, LogitBatch, over_full_vocabulary


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
    """

    logits: LogitBatch
    vocab_ids: NDArray[np.int64] | None
    vocab_size: int
    nan: NDArray[np.int64]
    inf: NDArray[np.int64]
    bad: NDArray[np.bool_]

    error_bound = MASS_ERROR
    """Relative error of `probability_of`."""

    def probability_of(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Probabilities of one token at each of the first n positions: `[B, n] int64` → `[B, n] float64`."""
        places = tokens.shape[1]
        if self.vocab_ids is None:
            local, known = tokens, np.ones(tokens.shape, dtype=bool)
        else:
            local = np.minimum(np.searchsorted(self.vocab_ids, tokens), len(self.vocab_ids) - 1)
            known = self.vocab_ids[local] == tokens
        weight = np.exp((self.logits.logits_of(local) - self.logits.top[:, :places]) / self.logits.config.temperature)
        placeholder = (local == 0).astype(np.float64)
        return np.where(known, np.where(self.bad[:, :places], placeholder, weight / self.logits.mass[:, :places]), 0.0)

    def at(self, row: int, place: int) -> Distribution:
        """One position's distribution, by the float64 reference."""
        return over_full_vocabulary(self.logits.exact(row, place), self.vocab_ids, self.vocab_size)

    def narrow(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """No row is in padded form: `[B] bool`, all False."""
        return np.zeros(len(places), dtype=bool)
