"""One forward's logits, reduced to what the host needs to decide in float64.

The vocabulary is read once for the maximum of every block of tokens, on the device, and once more, where a sampler config needs the
softmax's normaliser, for the mass of every block around the position's maximum. Everything else happens on the host, in float64, on a few
logits that are read without a copy.

On a GPU the masses are float32. They are only ever used with their error bound: a decision closer to its threshold than that is taken again
in float64, so the tokens are the float64 reference's on every backend.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from sampling.adjustments import Adjustments
from sampling.distribution import distribution_from_logits
from sampling.penalties import adjusted
from sampling.rows import NO_TOKEN
from schemas.sampler import SamplerConfig

BLOCK = 128
"""Tokens per block: near the square root of V / k, where finding the best k reads the least (V = 152k, k = 20: 87)."""

HOST_ERROR = 1e-10
"""Relative bound on a float64 sum over a vocabulary, in whatever order: V · 2**-53 = 2.8e-11 at V = 248,320."""

DEVICE_ERROR = 2e-5
"""Relative bound on a float32 mass. Three roundings of the exponent x give 2**-22 |x|, whose mean under the softmax is at most ln V = 12.4
at V = 248,320: 3e-6; exp and the sums add 2e-6, a GPU's fast exp 2e-6 more. Tested against float64."""


@dataclass(frozen=True, eq=False)
class LogitBatch:
    """Logits of B rows at T positions, and their reduction. Token ids are local: indices into the last axis.

    Attributes:
        config: the sampler config.
        raw: `[B, T, V] float32`, the logits as they came; a view of the device's memory where that is possible.
        masked: `[B, T, V'] float32`, V' ≥ V a multiple of the block: penalised tokens and the padding at -inf. May be `raw` itself.
        block_max: `[B, T, N] float32` of `masked`.
        adjustments: the S tokens whose logits the config changes, called penalised ones; S = 0 where it changes none.
        penalised: `[B, T, S] float64`, their logits after that; -inf where forbidden, for padding and where `bad`.
        top: `[B, T] float64`, the largest logit after all; 0 where `bad`.
        block_mass: `[B, T, N] float64`, Σ exp((logit - top) / temperature) over each block of `masked`; 0 where `bad`. N = 0 if it was not
            asked for.
        mass: `[B, T] float64`, the same over all tokens, penalised ones included; 1 where it was not asked for, or `bad`.
        mass_error: relative bound on the error of both.
        bad: `[B, T] bool`: not a distribution (NaN, +inf or nothing finite), or an inactive row.
    """

    config: SamplerConfig
    raw: NDArray[np.float32]
    masked: NDArray[np.float32]
    block_max: NDArray[np.float32]
    adjustments: Adjustments
    penalised: NDArray[np.float64]
    top: NDArray[np.float64]
    block_mass: NDArray[np.float64]
    mass: NDArray[np.float64]
    mass_error: float
    bad: NDArray[np.bool_]

    @property
    def vocab_size(self) -> int:
        """V, without the padding to whole blocks."""
        return int(self.raw.shape[-1])

    @property
    def ids(self) -> NDArray[np.int64]:
        """The penalised tokens, `[B, S] int64`, padded with -1."""
        return self.adjustments.ids

    def reference(self, row: int, place: int) -> NDArray[np.float64]:
        """What `distribution_from_logits` makes of one position that is not `bad`, `[V] float64`."""
        given = self.adjustments
        held = given.held(row)
        ids = given.ids[row, held]
        return distribution_from_logits(
            self.raw[row, place],
            self.config,
            dict(zip(ids.tolist(), given.counts[row, place, held].tolist(), strict=True)),
            prompt_ids=ids[given.present[row, place, held]],
            forbidden=ids[given.forbidden[row, place, held]],
        )

    def dense_weights(self, row: int, place: int, out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """exp((logit - top) / temperature) of every token of one position, `[V] float64`, into `out` where given.

        A million bytes of fresh memory cost more than a vocabulary of exponentials: loops pass `out`.
        """
        out = np.empty(self.vocab_size, dtype=np.float64) if out is None else out
        _weights_into(out, self.raw[row, place], float(self.top[row, place]), self.config.temperature)
        held = self.adjustments.held(row)
        out[self.ids[row, held]] = self.weights(self.penalised[row, place, held], self.top[row, place])
        return out

    def weights(self, logits: NDArray[np.float64], top: NDArray[np.float64]) -> NDArray[np.float64]:
        """exp((logit - top) / temperature) of logits after penalties, any shapes; for a greedy config 1 at the top and 0 elsewhere."""
        if self.config.greedy:
            return np.where(logits == top, 1.0, 0.0)
        with np.errstate(over="ignore"):  # a tiny temperature sends the exponent to -inf, which is right
            return np.exp((logits - top) / self.config.temperature)

    def logits_of(self, tokens: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Logits after penalties of single tokens, `[B, n] int64`, at `places` `[B, n]`: `[B, n] float64`."""
        rows = np.arange(len(tokens))[:, None]
        matches = self.ids[:, None, :] == tokens[..., None]
        penalised = np.where(matches, self.penalised[rows, places], -np.inf).max(axis=-1, initial=-np.inf)
        return np.where(matches.any(axis=-1), penalised, self.raw[rows, places, tokens].astype(np.float64))

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
    adjustments: Adjustments,
    active: NDArray[np.bool_],
    *,
    with_mass: bool,
    mass_on_device: bool,
) -> LogitBatch:
    """Reduce logits, with one evaluation on the device.

    Args:
        logits: `[B, T, V]` float32, bfloat16 or float16.
        config: the sampler config.
        adjustments: of B rows at T positions; their ids, and those of the config's bias, are indices into V.
        active: `[B] bool`.
        with_mass: whether the softmax's normaliser is needed.
        mass_on_device: float32 on the device (fast on a GPU), or float64 on the host (mlx's CPU exp is ten times slower than numpy's).
    """
    logits, ids = logits.astype(mx.float32), adjustments.ids
    vocab = logits.shape[-1]
    block = _block_size(vocab)
    masked = _mask(logits, ids) if ids.shape[1] else logits
    if vocab % block:
        masked = mx.pad(masked, [(0, 0), (0, 0), (0, -vocab % block)], constant_values=mx.array(-mx.inf))
    blocks = masked.reshape(*masked.shape[:2], -1, block)
    block_max = mx.max(blocks, axis=-1)
    outputs = [logits, masked, block_max]
    if with_mass and mass_on_device:
        largest = mx.max(block_max, axis=-1)[..., None, None]
        shift = mx.where(mx.isfinite(largest), largest, 0.0)
        outputs.append(mx.sum(mx.exp((blocks - shift) * _inverse(config.temperature)), axis=-1))
    mx.eval(outputs)
    raw, view, maxima = (np.array(output, copy=False) for output in outputs[:3])

    held = (ids != NO_TOKEN)[:, None, :]
    gathered = np.take_along_axis(raw, np.where(held, ids[:, None, :], 0), axis=-1).astype(np.float64)
    penalised = adjusted(gathered, config, adjustments.bias[:, None, :], adjustments.present, adjustments.counts)
    no_number = (held & ~(penalised < np.inf)).any(axis=-1)  # a token that is forbidden may not be NaN or +inf either
    penalised = np.where(held & ~adjustments.forbidden, penalised, -np.inf)
    masked_top = maxima.max(axis=-1).astype(np.float64)
    top = np.maximum(masked_top, penalised.max(axis=-1, initial=-np.inf))  # NaN wins
    bad = ~np.isfinite(top) | no_number | ~active[:, None]
    top, penalised = np.where(bad, 0.0, top), np.where(bad[..., None], -np.inf, penalised)
    block_mass, mass = np.zeros((*top.shape, 0), dtype=np.float64), np.ones_like(top)
    if with_mass:
        with np.errstate(over="ignore", invalid="ignore"):  # bad positions and tiny temperatures
            if mass_on_device:
                from_top = np.where(np.isfinite(masked_top), masked_top - top, 0.0) / config.temperature
                block_mass = np.array(outputs[3]).astype(np.float64) * np.exp(np.where(bad, 0.0, from_top))[..., None]
            else:
                block_mass = _mass_on_host(view, block, top, config.temperature)
            # Left to right, so that the padding, and with it the rest of the batch, never changes a bit.
            parts = np.append(block_mass.sum(axis=-1)[..., None], np.exp((penalised - top[..., None]) / config.temperature), axis=-1)
            mass = np.cumsum(parts, axis=-1)[..., -1]
        block_mass, mass = np.where(bad[..., None], 0.0, block_mass), np.where(bad, 1.0, mass)
    error = DEVICE_ERROR if mass_on_device else HOST_ERROR
    return LogitBatch(config, raw, view, maxima, adjustments, penalised, top, block_mass, mass, error, bad)


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


def _mass_on_host(masked: NDArray[np.float32], block: int, top: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """`block_mass` in float64. A position at a time stays in the processor's cache."""
    scratch = np.empty(masked.shape[-1], dtype=np.float64)
    mass = np.empty((*top.shape, masked.shape[-1] // block), dtype=np.float64)
    for place in np.ndindex(top.shape):
        _weights_into(scratch, masked[place], float(top[place]), temperature)
        scratch.reshape(-1, block).sum(axis=-1, out=mass[place])
    return mass


def _weights_into(out: NDArray[np.float64], logits: NDArray[np.float32], top: float, temperature: float) -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # as in `weights`; a bad position may hold anything
        np.subtract(logits, top, out=out, dtype=np.float64)  # float32 logits and a Python float would be subtracted in float32
        np.divide(out, temperature, out=out)
        np.exp(out, out=out)
