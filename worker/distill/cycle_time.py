"""How long a decoding cycle of the networks takes here: what a smaller draft vocabulary saves is measured, not guessed."""

import time

import mlx.core as mx

from worker.engine.mtp_head import MTPHead
from worker.engine.static_cache import Cursor, StaticCache
from worker.engine.trunk import Trunk

SLOTS = 8  # rows side by side
HISTORY = 128  # tokens that each of them holds already
ROUNDS = 5


def cycle_seconds(trunk: Trunk, head: MTPHead, depth: int) -> float:
    """The shortest of a few cycles, in seconds: drafts of SLOTS rows to `depth` and the trunk's pass over them; sampling not counted."""
    capacity = HISTORY + depth + 1
    caches, drafts = trunk.make_caches(capacity), StaticCache(capacity)
    tokens, hidden = mx.zeros((SLOTS, depth + 1), mx.int32), mx.zeros((SLOTS, depth + 1, trunk.width))

    def at(offset: int, count: int) -> Cursor:
        return Cursor(mx.full(SLOTS, offset, mx.int32), count, window=capacity)

    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        normed, recycled = head.forward(hidden, tokens, drafts, at(HISTORY - depth - 1, depth + 1))
        normed, recycled = normed[:, -1:], recycled[:, -1:]
        for k in range(depth):
            mx.eval(head.logits(normed[:, 0]))
            if k < depth - 1:
                normed, recycled = head.forward(recycled, tokens[:, :1], drafts, at(HISTORY + k, 1))
        mx.eval(trunk.logits(trunk.norm(trunk.forward(tokens, caches, at(HISTORY, depth + 1)))))
        seconds.append(time.perf_counter() - started)
    return min(seconds)
