"""`Replay`: what decoding would have counted, from text that exists.

A draft x from q is accepted with probability min(1, p(x) / q(x)), and what a cycle emits is distributed as p. Hence, given the token x that
the text holds, the probability that it got there as an accepted draft is q(x) · min(1, p(x) / q(x)) / p(x) = min(1, q(x) / p(x)). With
these numbers for every chain, the probability that a cycle begins at a position follows from left to right, and with it the expected
number of cycles and of accepted drafts. This holds for text drawn from p itself, whoever drafted when it was made.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Replay:
    """Expected counts, row by row; a run on other seeds of the same prompts counts the same within its error.

    Attributes:
        tokens: answer tokens, [rows].
        cycles: expected cycles, [rows].
        accepted: expected accepted drafts by depth, [rows, K].
    """

    tokens: NDArray[np.int64]
    cycles: NDArray[np.float64]
    accepted: NDArray[np.float64]

    @property
    def tokens_per_cycle(self) -> float:
        """Over all rows."""
        return float(self.tokens.sum() / self.cycles.sum())


def replayed(rows: Sequence[tuple[NDArray[np.float64], int]]) -> Replay:
    """The replay of rows, each given by the probabilities `kept` [K, L - 1] of its chains and its prompt's length P."""
    counts = [_replay(kept, prompt_tokens) for kept, prompt_tokens in rows]
    return Replay(
        tokens=np.array([kept.shape[1] + 1 - prompt_tokens for kept, prompt_tokens in rows]),
        cycles=np.array([cycles for cycles, _ in counts]),
        accepted=np.array([accepted for _, accepted in counts]),
    )


def _replay(kept: NDArray[np.float64], prompt_tokens: int) -> tuple[float, NDArray[np.float64]]:
    depth, read = kept.shape
    accepted = np.zeros(depth)
    begins = np.zeros(read + depth + 2)  # probability that a cycle begins with this position's token pending
    begins[prompt_tokens - 1] = 1.0
    for pending in range(prompt_tokens - 1, read):
        reached = begins[pending]
        for k in range(depth):
            if pending + k >= read:
                break  # the text ended inside the cycle
            keep = kept[k, pending - 1]
            begins[pending + k + 1] += reached * (1.0 - keep)
            reached *= keep
            accepted[k] += reached
        else:
            begins[pending + depth + 1] += reached
    return float(begins[:read].sum()), accepted
