"""`QuickMLP`: a gated feed-forward layer for mlx's CPU backend, which computes the exponential of silu one number at a time.

On SmolLM2 that takes as long as a third of the layer's matrix products at 16 rows. With e^(x/4) = P(x/4) / P(-x/4), P the numerator of the
[6/6] Padé approximant of the exponential, the logistic function is a ratio of two polynomials, which compilers vectorise:
1 / (1 + e^-x) = P(x/4)^4 / (P(x/4)^4 + P(-x/4)^4).
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama, qwen2, qwen3, qwen3_next

LARGEST = 20.0  # beyond it the logistic function is 0 or 1 to 2e-9, a hundredth of float32's rounding of what it multiplies
EVEN = (1 / 665280, 1 / 792, 5 / 44, 1.0)  # P's coefficients of y^6, y^4, y^2, 1
ODD = (1 / 15840, 1 / 66, 1 / 2)  # of y^5, y^3, y

# Layers that are down(silu(gate(x)) * up(x)); the Qwen3.5 models use Qwen3-Next's.
KINDS = (llama.MLP, qwen2.MLP, qwen3.MLP, qwen3_next.Qwen3NextMLP)


@mx.compile
def quick_swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """silu(gate) * up of two arrays of one shape, float32, to 4e-7 of |gate * up|."""
    quarter = mx.clip(gate, -LARGEST, LARGEST) * 0.25
    square = quarter * quarter
    even, odd = _horner(EVEN, square), _horner(ODD, square) * quarter
    above, below = even + odd, even - odd
    above, below = above * above, below * below
    above, below = above * above, below * below
    return gate * up * (above / (above + below))


def _horner(coefficients: tuple[float, ...], x: mx.array) -> mx.array:
    value = mx.array(coefficients[0], x.dtype)
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


class QuickMLP(nn.Module):  # type: ignore[misc] # mlx.nn has no types
    """One of `KINDS` with its own weights."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def __call__(self, x: mx.array) -> mx.array:
        """Outputs [B, T, D] of inputs [B, T, D]."""
        inner = self.inner
        if x.dtype != mx.float32:
            given: mx.array = inner(x)
            return given
        down: mx.array = inner.down_proj(quick_swiglu(inner.gate_proj(x), inner.up_proj(x)))
        return down
