"""The probe that asks this machine whether a row's bits depend on its slot, the batch size, the pass length or the attention window."""

import mlx.core as mx
import mlx.nn as nn

from worker.engine.static_cache import Cursor, StaticCache
from worker.engine.trunk import Trunk

PREFIX = 8  # positions prefilled before the passes that are compared


def is_row_invariant(trunk: Trunk, *, slots: int, depth: int, dtype: mx.Dtype) -> bool:
    """Whether one row comes out bit for bit equal alone, token by token, and in every slot of a full batch, K + 1 tokens at a time.

    The trunk's first attention layer and its output matrix stand for the model: their kernels are the ones that every layer uses.
    """
    layer = next(layer for layer in trunk.body.layers if hasattr(layer, "self_attn"))
    tokens = depth + 1
    hidden = mx.random.normal((1, PREFIX + tokens, trunk.width), dtype=mx.float32, key=mx.random.key(0)).astype(dtype)
    alone = _pass_through(layer, hidden, [PREFIX] + [1] * tokens, window=64)
    batch = _pass_through(layer, mx.repeat(hidden, slots, axis=0), [PREFIX, tokens], window=128)
    same_hidden = mx.all(batch == alone)
    logits_alone = trunk.logits(alone[:, -1:])
    same_logits = mx.all(trunk.logits(mx.repeat(alone[:, -1:], min(slots, 4) * tokens, axis=1)) == logits_alone)
    return bool((same_hidden & same_logits).item())


def _pass_through(layer: nn.Module, hidden: mx.array, lengths: list[int], *, window: int) -> mx.array:
    batch = hidden.shape[0]
    cache = StaticCache(128)
    outputs, start = [], 0
    for length in lengths:
        cache.cursor = Cursor(mx.full((batch,), start, dtype=mx.int32), length, window)
        outputs.append(layer(hidden[:, start : start + length], cache.cursor.mask, cache))
        start += length
    return mx.concatenate(outputs, axis=1)
