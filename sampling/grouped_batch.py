"""The draft distributions of a batch whose rows have several sampler configs: a batch of its own for each group of equal configs."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sampling.candidates import CandidateBatch
from sampling.whole_vocabulary import WholeVocabularyBatch


@dataclass(frozen=True, eq=False)
class GroupedBatch:
    """Distributions of B rows at one place, group by group.

    Attributes:
        parts: of each group the index `[R] int64` of its rows in the batch, and their distributions. An index may go on with repetitions
            of its first row; what is said there means nothing.
        vocab_size: of the full vocabulary.
    """

    parts: tuple[tuple[NDArray[np.int64], CandidateBatch | WholeVocabularyBatch], ...]
    vocab_size: int

    def part(self, index: NDArray[np.int64]) -> CandidateBatch | WholeVocabularyBatch:
        """The distributions of the group that `index` is of."""
        return next(part for mine, part in self.parts if np.array_equal(mine, index))

    def with_one_hot(self, chosen: NDArray[np.bool_], tokens: NDArray[np.int64]) -> "GroupedBatch":
        """The same batch, with the distributions of rows `chosen` `[B]` replaced by a one-hot at `tokens` `[B]`."""
        return replace(self, parts=tuple((index, part.with_one_hot(chosen[index], tokens[index])) for index, part in self.parts))
