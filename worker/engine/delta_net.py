"""Gated delta-net layers that can take tokens back: the recurrent layers of Qwen3-Next and Qwen3.5.

Such a layer holds no keys and values but a state and the last rows of a short convolution; a rejected draft has already been folded into
both. So a pass leaves the cache as it was and records what it fed into the recurrence, the tape. The commit then runs the recurrence
alone, without any projection, over the tokens that were kept, per row.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gated_delta import gated_delta_update, normalize_qk

from worker.engine.static_cache import Cursor

QK_EPS = 1e-6  # of the L2 norm of queries and keys, as in the reference implementation


@dataclass(frozen=True)
class _Tape:
    """What one pass fed into the recurrence: conv_input [B, n - 1 + T, C], q, k, v [B, T, heads, width], a, b [B, T, heads]."""

    layer: Any
    conv_input: mx.array
    q: mx.array
    k: mx.array
    v: mx.array
    a: mx.array
    b: mx.array


class DeltaNetCache:
    """One recurrent layer's memory for a batch of rows.

    Attributes:
        conv: the last inputs of the convolution, [B, n - 1, C].
        state: the recurrent state, [B, value heads, value width, key width] float32.
        cursor: unused; a recurrent layer has no positions.
    """

    def __init__(self) -> None:
        self.conv: mx.array | None = None
        self.state: mx.array | None = None
        self.cursor: Cursor | None = None
        self._tape: _Tape | None = None

    def make_mask(self, *_: object, **__: object) -> None:
        """No row is padded, so nothing is masked."""
        return

    def record(self, tape: _Tape) -> None:
        """Keep a pass's inputs until the commit; the memory itself stays at the last commit."""
        self._tape = tape

    def commit(self, kept: mx.array) -> None:
        """Fold the first kept[b] tokens ([B] int32, 0 to T) of the last pass into row b's memory."""
        tape, self._tape = self._tape, None
        assert tape is not None
        assert self.conv is not None
        rows = (kept[:, None] + mx.arange(self.conv.shape[1], dtype=mx.int32))[..., None]
        self.conv = mx.take_along_axis(tape.conv_input, rows, axis=1)
        mask = mx.arange(tape.q.shape[1], dtype=mx.int32) < kept[:, None]
        _, self.state = gated_delta_update(tape.q, tape.k, tape.v, tape.a, tape.b, tape.layer.A_log, tape.layer.dt_bias, self.state, mask)

    def insert(self, slot: int, other: "DeltaNetCache") -> None:
        """Replace one slot by the only row of another cache."""
        mine, theirs = self.buffers, other.buffers
        for buffer, row in zip(mine, theirs, strict=True):
            buffer[slot] = row[0]

    def keep(self, slots: mx.array) -> None:
        """Drop every slot but these ([n] int32), in this order."""
        self.conv, self.state = (buffer[slots] for buffer in self.buffers)

    def like(self, batch: int) -> "DeltaNetCache":
        """An empty cache of `batch` rows with the shapes of this one."""
        copy = DeltaNetCache()
        copy.conv, copy.state = (mx.zeros((batch, *buffer.shape[1:]), buffer.dtype) for buffer in self.buffers)
        return copy

    def fork(self, capacity: int) -> "DeltaNetCache":  # noqa: ARG002 # the protocol is wider
        """A memory with the same content, of whatever capacity."""
        copy = DeltaNetCache()
        copy.conv, copy.state = (mx.array(buffer) for buffer in self.buffers)
        return copy

    @property
    def buffers(self) -> tuple[mx.array, mx.array]:
        """Both buffers, for evaluation."""
        assert self.conv is not None
        assert self.state is not None
        return self.conv, self.state


class TapedDeltaNet(nn.Module):  # type: ignore[misc] # mlx.nn has no types
    """mlx-lm's `GatedDeltaNet` (Qwen3.5) or `Qwen3NextGatedDeltaNet` with its own weights and a cache that can take tokens back."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def __call__(self, inputs: mx.array, mask: None, cache: DeltaNetCache) -> mx.array:
        """Outputs [B, T, D] of inputs [B, T, D]; the cache is read, and written at its commit only."""
        assert mask is None, "slots are never padded"
        layer = self.inner
        batch, length, _ = inputs.shape
        mixed, z, b, a = _project(layer, inputs)
        if cache.conv is None or cache.state is None:
            cache.conv = mx.zeros((batch, layer.conv_kernel_size - 1, layer.conv_dim), inputs.dtype)
            cache.state = mx.zeros((batch, layer.num_v_heads, layer.head_v_dim, layer.head_k_dim), mx.float32)
        conv_input = mx.concatenate([cache.conv, mixed], axis=1)
        q, k, v = mx.split(nn.silu(layer.conv1d(conv_input)), [layer.key_dim, 2 * layer.key_dim], axis=-1)
        q, k = (part.reshape(batch, length, layer.num_k_heads, layer.head_k_dim) for part in (q, k))
        v = v.reshape(batch, length, layer.num_v_heads, layer.head_v_dim)
        q, k = normalize_qk(q, k, inv_scale=layer.head_k_dim**-0.5, eps=QK_EPS)
        out, _ = gated_delta_update(q, k, v, a, b, layer.A_log, layer.dt_bias, cache.state)
        cache.record(_Tape(layer, conv_input, q, k, v, a, b))
        projected: mx.array = layer.out_proj(layer.norm(out, z).reshape(batch, length, -1))
        return projected


def _project(layer: Any, inputs: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """The convolution's input [B, T, C], z [B, T, value heads, value width], b and a [B, T, value heads]."""
    batch, length, _ = inputs.shape
    if hasattr(layer, "in_proj_qkv"):  # Qwen3.5
        z = layer.in_proj_z(inputs).reshape(batch, length, layer.num_v_heads, layer.head_v_dim)
        return layer.in_proj_qkv(inputs), z, layer.in_proj_b(inputs), layer.in_proj_a(inputs)
    q, k, v, z, b, a = layer.fix_query_key_value_ordering(layer.in_proj_qkvz(inputs), layer.in_proj_ba(inputs))
    return mx.concatenate([part.reshape(batch, length, -1) for part in (q, k, v)], axis=-1), z, b, a
