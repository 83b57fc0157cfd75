"""A head's recursion over all chains of a text at once.

In decoding, the draft at depth k sees the head's keys of the trunk's hidden states up to its chain's start, and the keys of its own chain
behind them. So pass k over all chains attends to pass 1 causally and to each of the passes 2 to k at its own place alone.
"""

from typing import cast

import mlx.core as mx

from worker.engine.layer_cache import LayerCache
from worker.engine.mtp_head import MTPHead
from worker.engine.static_cache import Cursor


class UnrolledCache:
    """Keys and values of the passes so far, side by side, in the interface that attention layers expect of a cache."""

    def __init__(self) -> None:
        self.cursor: Cursor | None = None
        self._keys: list[mx.array] = []
        self._values: list[mx.array] = []

    @property
    def offset(self) -> int:
        """Position of the first chain's token: pass k reads one place further on than pass k - 1."""
        return len(self._keys)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add a pass, [B, heads, T, width]; returns all of them, [B, heads, k · T, width]."""
        self._keys.append(keys)
        self._values.append(values)
        return mx.concatenate(self._keys, axis=2), mx.concatenate(self._values, axis=2)


def unroll(head: MTPHead, hidden: mx.array, tokens: mx.array, depth: int) -> list[mx.array]:
    """The head's hidden states at every depth of every chain.

    Args:
        head: the head.
        hidden: [B, T, D], the trunk's hidden states that it reads.
        tokens: [B, T + depth] int32; the chain at t reads tokens[:, t + k] at depth k.
        depth: passes.

    Returns:
        Per depth the states that give logits, [B, T, D].
    """
    chains = hidden.shape[1]
    # The block asks no more of a cache than UnrolledCache has.
    cache = cast(LayerCache, UnrolledCache())
    states = []
    for k in range(1, depth + 1):
        normed, hidden = head.forward(hidden, tokens[:, k : k + chains], cache, _UnrolledCursor(chains, k))
        states.append(normed)
    return states


class _UnrolledCursor(Cursor):
    """What pass k sees: pass 1 causally, the later ones at its own place."""

    def __init__(self, chains: int, depth: int) -> None:
        super().__init__(mx.array([depth - 1], mx.int32), chains, window=chains)
        places = mx.arange(chains, dtype=mx.int32)
        causal, own = places[None] <= places[:, None], places[None] == places[:, None]
        self.mask = mx.concatenate([causal, *[own] * (depth - 1)], axis=1)[None, None]
