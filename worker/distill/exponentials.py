"""Sums of exp(logits) over a vocabulary, in parts of bounded memory.

On a CPU the exponentials are numpy's: over a vocabulary they are some ten times faster than mlx's there, and they are most of the work.
"""

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

AT_ONCE = 2**24  # logits in memory, 64 MiB


def log_sum_exp(logits: mx.array) -> NDArray[np.float32]:
    """Logarithms of the sums of exp of logits [n, V], [n] float32."""
    values = np.array(logits.astype(mx.float32))
    top = values.max(axis=-1, keepdims=True)
    with np.errstate(under="ignore"):
        np.exp(np.subtract(values, top, out=values), out=values)
    sums: NDArray[np.float32] = np.log(values.sum(axis=-1)) + top[:, 0]
    return sums


def weighted_rows(states: mx.array, rows: mx.array, shift: mx.array | None = None) -> tuple[mx.array, mx.array, mx.array]:
    """Σ w e, Σ e and the shift, for e = exp(w · state - shift) over rows w.

    Args:
        states: [n, D] float32.
        rows: W, [Vd, D] float32.
        shift: [n], or None for the largest logit of each state.

    Returns:
        [n, D], [n] and [n] float32, evaluated.
    """
    parts = []
    step = max(1, AT_ONCE // rows.shape[0])
    for start in range(0, states.shape[0], step):
        logits = states[start : start + step] @ rows.T
        mine = mx.max(logits, axis=-1) if shift is None else shift[start : start + step]
        e = exp(logits - mine[:, None])
        parts.append((e @ rows, e.sum(axis=-1), mine))
        mx.eval(*parts[-1])
    weighted, sums, shifts = (mx.concatenate(list(column)) for column in zip(*parts, strict=True))
    return weighted, sums, shifts


def exp(values: mx.array) -> mx.array:
    """exp of values [n, V] float32 that are at most about 0."""
    if mx.default_device() == mx.gpu:
        return mx.exp(values)
    with np.errstate(under="ignore"):
        return mx.array(np.exp(np.array(values)))
