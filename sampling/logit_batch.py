"""One forward's logits, reduced on the device to what the host needs to decide in float64.

The device reads the whole vocabulary once: the maximum of every block of tokens, and, where a sampler config needs the softmax's
normaliser, the mass around that maximum in float32. Everything exact happens on the host, on a few logits read without a copy. The float32
mass is only ever used with its error bound `MASS_ERROR`: a decision closer to its threshold than that is taken again from a float64 mass,
so the result is the float64 reference's.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from sampling.distribution import Distribution, SparseDistribution, distribution_from_logits
from sampling.penalties import penalty
from sampling.rows import NO_TOKEN
from schemas.sampler import SamplerConfig

BLOCK = 128
"""Tokens per block: near the square root of k · V, where finding the best k costs the least (V = 152k, k = 20: 180)."""

MASS_ERROR = 2e-5
"""Relative bound on the float32 mass. Three roundings of the exponent x give 2**-22 |x|, whose mean is at most ln V = 12.4 at V = 248,320:
3e-6; exp itself and the sums add 2e-6 (a GPU's fast exp 2e-6 more). Tested against float64."""


@dataclass(frozen=True, eq=False)
class LogitBatch:
    """Logits of B rows at T positions, and their reduction. Token ids are local: indices into the last axis.

    Attributes:
        config: the sampler config.
        raw: `[B, T, V] float32`, the logits as they came; a view of the device's memory where that is possible.
        masked: `[B, T, V'] float32`, V' ≥ V a multiple of the block: penalised tokens and the padding at -inf. May be `raw` itself.
        block_max: `[B, T, N] float32` of `masked`.
        ids: `[B, S] int64`, penalised tokens, padded with -1. S = 0 without penalties.
        counts: `[B, T, S] int64`, occurrences of those tokens before each position.
        penalised: `[B, T, S] float64`, their logits after the penalty; -inf for padding.
        top: `[B, T] float64`, the largest logit after penalties; 0 where `bad`.
        mass: `[B, T] float64`, Σ exp((logit - top) / temperature) within `MASS_ERROR`; 1 where it was not asked for or `bad`.
        bad: `[B, T] bool`: not a distribution (NaN, +inf or nothing finite), or an inactive row.
    """

    config: SamplerConfig
    raw: NDArray[np.float32]
    masked: NDArray[np.float32]
    block_max: NDArray[np.float32]
    ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    penalised: NDArray[np.float64]
    top: NDArray[np.float64]
    mass: NDArray[np.float64]
    bad: NDArray[np.bool_]

    @property
    def vocab_size(self) -> int:
        """V, without the padding to whole blocks."""
        return int(self.raw.shape[-1])

    def exact(self, row: int, place: int) -> NDArray[np.float64]:
        """The float64 reference's distribution at one position, `[V]`; a one-hot at token 0 where `bad`."""
        if self.bad[row, place]:
            placeholder = np.zeros(self.vocab_size, dtype=np.float64)
            placeholder[0] = 1.0
            return placeholder
        held = self.ids[row] != NO_TOKEN
        counts = dict(zip(self.ids[row, held].tolist(), self.counts[row, place, held].tolist(), strict=True))
        return distribution_from_logits(self.raw[row, place], self.config, counts)

    def exact_mass(self, row: int, place: int) -> float:
        """`mass` at one position in float64."""
        exponents = (self.masked[row, place].astype(np.float64), self.penalised[row, place])
        return sum(float(np.exp(_exponent(part, self.top[row, place], self.config)).sum()) for part in exponents)

    def weights(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """exp((logit - top) / temperature) for `[B, T, C] float64` logits after penalties; for a greedy config 1 at the top, else 0."""
        if self.config.greedy:
            return np.where(logits == self.top[..., None], 1.0, 0.0)
        return np.exp(_exponent(logits, self.top[..., None], self.config))

    def logits_of(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Logits after penalties of one token per position, `[B, n ≤ T]`, float64."""
        places = tokens.shape[1]
        chosen = np.take_along_axis(self.raw[:, :places], tokens[..., None], axis=-1)[..., 0].astype(np.float64)
        matches = self.ids[:, None, :] == tokens[..., None]
        return np.where(matches.any(axis=-1), np.where(matches, self.penalised[:, :places], -np.inf).max(axis=-1, initial=-np.inf), chosen)

    def non_finite(self, active: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many NaN and +inf each bad position of an active row holds, two `[B, T] int64`."""
        nan, inf = np.zeros(self.bad.shape, dtype=np.int64), np.zeros(self.bad.shape, dtype=np.int64)
        for row, place in zip(*np.nonzero(self.bad & active[:, None]), strict=True):
            nan[row, place] = np.isnan(self.raw[row, place]).sum()
            inf[row, place] = np.isposinf(self.raw[row, place]).sum()
        return nan, inf


def reduce_logits(
    logits: mx.array,
    config: SamplerConfig,
    ids: NDArray[np.int64],
    counts: NDArray[np.int64],
    active: NDArray[np.bool_],
    *,
    with_mass: bool,
) -> LogitBatch:
    """Reduce logits on the device, with one evaluation.

    Args:
        logits: `[B, T, V]` float32, bfloat16 or float16.
        config: the sampler config.
        ids: `[B, S] int64` penalised tokens (indices into V), padded with -1, distinct per row.
        counts: `[B, T, S] int64`.
        active: `[B] bool`.
        with_mass: whether the softmax's normaliser is needed.
    """
    logits = logits.astype(mx.float32)
    rows, places, vocab = logits.shape
    block = _block_size(vocab)
    masked = logits
    if ids.shape[1]:
        masked = _mask(masked, ids)
    if vocab % block:
        masked = mx.pad(masked, [(0, 0), (0, 0), (0, -vocab % block)], constant_values=mx.array(-mx.inf))
    blocks = masked.reshape(rows, places, -1, block)
    block_max = mx.max(blocks, axis=-1)
    on_gpu = mx.default_device() == mx.gpu
    outputs = [logits, masked, block_max]
    if with_mass and on_gpu:
        largest = mx.max(block_max, axis=-1)[..., None, None]
        shifted = (blocks - mx.where(mx.isfinite(largest), largest, 0.0)) * _inverse(config.temperature)
        outputs.append(mx.sum(mx.exp(shifted), axis=-1))
    mx.eval(outputs)
    raw, view, maxima = (np.array(output, copy=False) for output in outputs[:3])

    held = ids != NO_TOKEN
    gathered = np.take_along_axis(raw, np.where(held, ids, 0)[:, None, :], axis=-1).astype(np.float64)
    penalised = np.where(held[:, None, :], gathered - penalty(counts, config), -np.inf)
    masked_top = maxima.max(axis=-1).astype(np.float64)
    top = np.maximum(masked_top, penalised.max(axis=-1, initial=-np.inf))  # NaN wins
    bad = ~np.isfinite(top) | ~active[:, None]
    top = np.where(bad, 0.0, top)
    mass = np.ones((rows, places), dtype=np.float64)
    if with_mass:
        with np.errstate(all="ignore"):  # bad positions, replaced below
            shift = np.where(np.isfinite(masked_top), masked_top, 0.0)
            tail = np.array(outputs[3]).astype(np.float64).sum(axis=-1) if on_gpu else _mass_on_host(view, shift, config.temperature)
            hidden = np.exp(_exponent(penalised, top[..., None], config)).sum(axis=-1)
            mass = tail * np.exp(_exponent(shift, top, config)) + hidden
        mass = np.where(bad, 1.0, mass)
    return LogitBatch(config, raw, view, maxima, ids, counts, penalised, top, mass, bad)


def over_full_vocabulary(dense: NDArray[np.float64], vocab_ids: NDArray[np.int64] | None, vocab_size: int) -> Distribution:
    """A distribution over a draft vocabulary, in ids of the full one; `dense` itself when there is no draft vocabulary."""
    return dense if vocab_ids is None else SparseDistribution(vocab_ids, dense, vocab_size)


def _exponent(logits: NDArray[np.float64], top: NDArray[np.float64], config: SamplerConfig) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):  # a tiny temperature sends the exponent to -inf, which is right
        scaled: NDArray[np.float64] = (logits - top) / config.temperature
    return scaled


def _inverse(temperature: float) -> float:
    """1 / temperature, kept inside float32: beyond 1e30 every logit below the top has weight 0 anyway."""
    return min(1.0 / temperature, 1e30)


def _block_size(vocab: int) -> int:
    if vocab <= BLOCK:
        return vocab
    whole = [size for size in range(BLOCK // 2, 2 * BLOCK + 1) if vocab % size == 0]
    return min(whole, key=lambda size: abs(size - BLOCK), default=BLOCK)


def _mask(logits: mx.array, ids: NDArray[np.int64]) -> mx.array:
    """`logits` with -inf at each row's `ids`. Padding repeats an id of its row; a row of padding alone writes back what token 0 holds."""
    held = ids != NO_TOKEN
    index = np.where(held, ids, np.maximum(ids.max(axis=1, keepdims=True), 0))
    where = mx.broadcast_to(mx.array(index)[:, None, :], (*logits.shape[:2], index.shape[1]))
    empty = mx.array(~held.any(axis=1))[:, None, None]
    values = mx.where(empty, mx.take_along_axis(logits, where, axis=-1), -mx.inf)
    return mx.put_along_axis(logits, where, values, axis=-1)


def _mass_on_host(masked: NDArray[np.float32], shift: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Σ exp((logit - shift) / temperature), `[B, T]`. mlx's CPU exp is ten times slower; a position at a time stays in the cache."""
    mass = np.empty(shift.shape, dtype=np.float64)
    scratch = np.empty(masked.shape[-1], dtype=np.float32)
    inverse = np.float32(_inverse(temperature))
    for place in np.ndindex(shift.shape):
        np.subtract(masked[place], np.float32(shift[place]), out=scratch)
        np.multiply(scratch, inverse, out=scratch)
        mass[place] = np.exp(scratch, out=scratch).sum()
    return mass
