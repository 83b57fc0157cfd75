"""Rows whose next token must follow a rule, such as a grammar: what they forbid has probability 0 in p and q alike.

The mask comes before everything else that a sampler config does: a forbidden token's logit is -inf.
"""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray


class TokenMask(Protocol):
    """What may come next in one row."""

    def along(self, drafts: Sequence[int]) -> NDArray[np.uint8]:
        """The tokens allowed at each place of a block, given its drafts.

        Args:
            drafts: n tokens that would follow what is committed.

        Returns:
            `[n + 1, ⌈V / 8⌉] uint8`, a bit per token, the lowest first. Places behind a forbidden draft, or behind one that ends the row,
            are never reached; there everything is allowed.
        """


def allowed_along(masks: Sequence[TokenMask | None], drafts: NDArray[np.int64], places: range, vocab_size: int) -> NDArray[np.bool_]:
    """The tokens allowed at some places of a block, `[B, T, V] bool`.

    Args:
        masks: of B rows; None allows everything.
        drafts: `[B, K] int64`; negative from where a row proposes nothing, which is the last place that it reaches.
        places: T places in the block, 0 to K.
        vocab_size: V.
    """
    bits = np.full((len(masks), len(places), -(-vocab_size // 8)), 0xFF, dtype=np.uint8)
    for row, mask in enumerate(masks):
        if mask is None:
            continue
        proposed = drafts[row, : places.stop - 1]
        own = mask.along(proposed[: int((proposed >= 0).sum())].tolist())[places.start :]
        bits[row, : len(own)] = own
    return np.unpackbits(bits, axis=-1, count=vocab_size, bitorder="little").view(bool)


def masked(logits: mx.array, allowed: NDArray[np.bool_]) -> mx.array:
    """`logits` `[B, T, V]` with -inf where `allowed`, of the same shape, says no; a NaN or +inf stays, so that it is found."""
    forbidden = mx.where(logits < mx.inf, -mx.inf, logits)
    return mx.where(mx.array(allowed), logits, forbidden)
