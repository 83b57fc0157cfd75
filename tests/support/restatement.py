"""A decoder layer of the Llama kind, written down in numpy from its formula: what the models of mlx-lm are compared with."""

import numpy as np

Weights = dict[str, np.ndarray]


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight


def rotate(x: np.ndarray, theta: float) -> np.ndarray:
    """Rotary embedding of [T, heads, width] at positions 0, 1, …, halves rotated against each other."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[0])[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def decoder_layer(w: Weights, prefix: str, x: np.ndarray, heads: int, kv_heads: int, eps: float, theta: float) -> np.ndarray:
    """One layer on [T, D] float64; biases of q, k and v and their norms (Qwen2, Qwen3) where there are weights for them."""
    length = len(x)
    normed = rms_norm(x, w[f"{prefix}input_layernorm.weight"], eps)

    def projected(name: str, count: int) -> np.ndarray:
        part = f"{prefix}self_attn.{name}"
        out = (normed @ w[f"{part}_proj.weight"].T + w.get(f"{part}_proj.bias", 0.0)).reshape(length, count, -1)
        return rms_norm(out, w[f"{part}_norm.weight"], eps) if f"{part}_norm.weight" in w else out

    q, k, v = rotate(projected("q", heads), theta), rotate(projected("k", kv_heads), theta), projected("v", kv_heads)
    out = np.zeros_like(q)
    for head in range(heads):
        shared = head * kv_heads // heads
        for t in range(length):
            scores = k[: t + 1, shared] @ q[t, head] / np.sqrt(q.shape[-1])
            weights = np.exp(scores - scores.max())
            out[t, head] = weights @ v[: t + 1, shared] / weights.sum()
    x = x + out.reshape(length, -1) @ w[f"{prefix}self_attn.o_proj.weight"].T
    normed = rms_norm(x, w[f"{prefix}post_attention_layernorm.weight"], eps)
    gate = normed @ w[f"{prefix}mlp.gate_proj.weight"].T
    return x + (gate / (1 + np.exp(-gate)) * (normed @ w[f"{prefix}mlp.up_proj.weight"].T)) @ w[f"{prefix}mlp.down_proj.weight"].T
