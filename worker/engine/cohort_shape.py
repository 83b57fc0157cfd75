"""`CohortShape`: what fixes the shapes of a cohort's passes."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from worker.engine.static_cache import Cursor

WINDOW_STEP = 64  # attention windows grow in steps of this many positions


@dataclass(frozen=True)
class CohortShape:
    """The shapes, and whether passes may be smaller than they say.

    Attributes:
        slots: B.
        capacity: positions per slot.
        depth: K.
        prefill_chunk: tokens per prefill pass.
        elastic: the backend is row-invariant, so that passes may shrink to the slots and positions in use without changing a bit.
    """

    slots: int
    capacity: int
    depth: int
    prefill_chunk: int
    elastic: bool

    def cursor(self, offsets: np.ndarray, tokens: int) -> Cursor:
        """The cursor of a pass of `tokens` tokens per row at positions offsets ([B] int32)."""
        window = self.capacity
        if self.elastic:
            needed = int(offsets.max()) + tokens
            window = min(window, -(-needed // WINDOW_STEP) * WINDOW_STEP)
        return Cursor(mx.array(offsets.astype(np.int32)), tokens, window)
