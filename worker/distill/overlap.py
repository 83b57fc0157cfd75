"""The overlap of drafts with the trunk's distribution, α = Σ_S min(p, q), and the slope of -log α: what acceptance itself asks of a draft.

A small head cannot reach p, and then the q of the smallest divergence is not the q of the greatest overlap. Source of the objective:
Samarin et al., LK Losses, arXiv 2602.23881. With r the head's state, w the output rows and b the ids where q < p, the slope is

    ∂(-log α)/∂r = 1/α · Σ_S q (Σ_b q - [id in b]) w
"""

import mlx.core as mx

from worker.distill.exponentials import AT_ONCE, exp

SMALLEST_OVERLAP = 1e-30


def overlap_and_slope(states: mx.array, hidden: mx.array, log_z: mx.array, rows: mx.array) -> tuple[mx.array, mx.array]:
    """α and ∂(-log α)/∂state of drafts.

    Args:
        states: the head's, [n, D] float32.
        hidden: the trunk's hidden states at the targets, [n, D] float32.
        log_z: logarithms of the trunk's normalisers over the whole vocabulary, [n].
        rows: the output rows of the draft vocabulary, [Vd, D] float32.

    Returns:
        [n] and [n, D] float32, evaluated.
    """
    parts = []
    step = max(1, AT_ONCE // rows.shape[0])
    for start in range(0, states.shape[0], step):
        some = slice(start, start + step)
        logits = states[some] @ rows.T
        e = exp(logits - mx.max(logits, axis=-1, keepdims=True))
        q = e / e.sum(axis=-1, keepdims=True)
        p = exp(hidden[some] @ rows.T - log_z[some, None])
        overlap = mx.maximum(mx.minimum(p, q).sum(axis=-1, keepdims=True), SMALLEST_OVERLAP)
        below = mx.where(q < p, q, 0.0)
        parts.append((overlap[:, 0], (q * below.sum(axis=-1, keepdims=True) - below) @ rows / overlap))
        mx.eval(*parts[-1])
    overlaps, slopes = (mx.concatenate(list(column)) for column in zip(*parts, strict=True))
    return overlaps, slopes
