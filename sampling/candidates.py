"""The distributions of a whole batch as padded rows of kept candidates, for configs that filter (top-p, top-k, greedy).

The best C logits of a position are found exactly, ties to the lowest id: any token among the best C lies in one of the best C blocks, when
blocks are ranked by their maximum and then by their place. Filters and probabilities are computed on those few in float64. A position
whose nucleus is wider than C is kept apart, as a `SparseDistribution`.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sampling.distribution import SparseDistribution, normalised
from sampling.exponential_noise import SubKeys, arrivals, token_noise
from sampling.logit_batch import HOST_ERROR, LogitBatch
from sampling.rows import NO_TOKEN
from sampling.verification import RESIDUAL_DUST
from schemas.sampler import SamplerConfig

NUCLEUS_WIDTH = 64
"""Candidates fetched per position for top-p without top-k; wider nuclei take the slower way."""

WIDEST = 1024
"""Most candidates kept in padded rows; a larger top_k takes the slower way."""

_KEYS_AT_ONCE = 2**20  # 8 MB of sort keys: stays in a processor's cache


@dataclass(frozen=True, eq=False)
class CandidateBatch:
    """Distributions of B rows at T positions over one vocabulary.

    Attributes:
        ids: `[B, T, C] int64`, ascending; padded with `vocab_size`.
        probabilities: `[B, T, C] float64`; 0 on padding.
        wide: (row, place) → the distribution of a position with more than C candidates; its padded row is meaningless.
        vocab_size: of the full vocabulary.
        nan: `[B, T] int64`, NaN logits of a position that never became a distribution.
        inf: `[B, T] int64`, its +inf logits.
        bad: `[B, T] bool`: such a position, or one of an inactive row; its distribution is a one-hot placeholder.
    """

    ids: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    wide: dict[tuple[int, int], SparseDistribution]
    vocab_size: int
    nan: NDArray[np.int64]
    inf: NDArray[np.int64]
    bad: NDArray[np.bool_]

    error_bound: ClassVar[float] = 0.0
    """Relative error of `probability_of`."""

    def probability_of(self, tokens: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Probabilities of single tokens, `[B, n] int64`, at `places` `[B, n]`: `[B, n] float64`; 0 for `NO_TOKEN`."""
        rows = np.arange(len(tokens))[:, None]
        chosen: NDArray[np.float64] = np.where(self.ids[rows, places] == tokens[..., None], self.probabilities[rows, places], 0.0).max(
            axis=-1
        )
        for (row, place), distribution in self.wide.items():
            here = places[row] == place
            chosen[row, here] = distribution.at(tokens[row, here])
        return chosen

    def sample(self, places: NDArray[np.int64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """`sample_from_distribution` for every row at `places` `[B]`, with one uniform each: `[B] int64`."""
        rows = np.arange(len(places))
        tokens = inverse_cdf(self.ids[rows, places], self.probabilities[rows, places], uniforms)
        for row, place in self.wide:
            if places[row] == place:
                tokens[row] = self.wide[row, place].inverse_cdf(float(uniforms[row]))
        return tokens

    def race(self, rows: NDArray[np.int64], place: int, keys: SubKeys) -> NDArray[np.int64]:
        """`exponential_noise.race` for `rows` `[R]` at one place, with one sub-key each: `[R] int64`."""
        ids = self.ids[rows, place]
        spread = (keys[0][:, None], keys[1][:, None])
        first = np.argmin(arrivals(token_noise(spread, ids), self.probabilities[rows, place]), axis=-1)
        tokens: NDArray[np.int64] = ids[np.arange(len(rows)), first]
        for slot, row in enumerate(rows.tolist()):
            if (row, place) in self.wide:
                wide = self.wide[row, place]
                noise = token_noise((keys[0][slot], keys[1][slot]), wide.ids)
                tokens[slot] = wide.ids[np.argmin(arrivals(noise, wide.probabilities))]
        return tokens

    def at(self, row: int, place: int) -> SparseDistribution:
        """One position's distribution."""
        if (row, place) in self.wide:
            return self.wide[row, place]
        held = self.ids[row, place] < self.vocab_size
        return SparseDistribution(self.ids[row, place, held], self.probabilities[row, place, held], self.vocab_size)

    def take(self, index: NDArray[np.int64]) -> "CandidateBatch":
        """The rows at `index` `[R]`."""
        wide = {(slot, place): held for slot, row in enumerate(index.tolist()) for (at, place), held in self.wide.items() if at == row}
        return CandidateBatch(
            self.ids[index], self.probabilities[index], wide, self.vocab_size, self.nan[index], self.inf[index], self.bad[index]
        )

    def with_one_hot(self, chosen: NDArray[np.bool_], tokens: NDArray[np.int64]) -> "CandidateBatch":
        """The same batch, with the distributions of rows `chosen` `[B]` replaced by a one-hot at `tokens` `[B]`."""
        mask = chosen[:, None, None]
        first = np.arange(self.ids.shape[-1]) == 0
        return replace(
            self,
            ids=np.where(mask, np.where(first, tokens[:, None, None], self.vocab_size), self.ids),
            probabilities=np.where(mask, first, self.probabilities),
            wide={key: distribution for key, distribution in self.wide.items() if not chosen[key[0]]},
            nan=np.where(chosen[:, None], 0, self.nan),
            inf=np.where(chosen[:, None], 0, self.inf),
            bad=self.bad & ~chosen[:, None],
        )


def candidates(logits: LogitBatch, active: NDArray[np.bool_], vocab_ids: NDArray[np.int64] | None, vocab_size: int) -> CandidateBatch:
    """Filter a batch of logits down to its kept candidates.

    Args:
        logits: reduced logits; with mass where top_p < 1.
        active: `[B] bool`.
        vocab_ids: `[V] int64`, full id of each local one, ascending; None where they are the same.
        vocab_size: of the full vocabulary.
    """
    config = logits.config
    width = min(_width(config), logits.vocab_size)
    ids, weights = _ranked(logits, width)
    keep, unsettled = _kept(weights, logits.mass, config, logits.vocab_size, logits.mass_error)
    wide: dict[tuple[int, int], SparseDistribution] = {}
    scratch = np.empty(logits.vocab_size, dtype=np.float64)
    for row, place in np.argwhere(unsettled & ~logits.bad).tolist():
        exact = _filtered(logits, row, place, scratch)
        keep[row, place] = min(len(exact.ids), width)
        if len(exact.ids) > width:
            own = exact.ids if vocab_ids is None else vocab_ids[exact.ids]
            wide[row, place] = SparseDistribution(own, exact.probabilities, vocab_size)
    keep = np.where(logits.bad, 1, keep)

    kept = np.arange(weights.shape[-1]) < keep[..., None]
    kept &= weights > 0.0
    kept[..., 0] |= logits.bad
    ids = np.where(logits.bad[..., None], 0, ids)
    weights = np.where(logits.bad[..., None], 1.0, weights)
    columns = int(keep.max())
    ids = np.where(kept, ids, logits.vocab_size)[..., :columns]
    weights = np.where(kept, weights, 0.0)[..., :columns]
    by_id = np.argsort(ids, axis=-1, kind="stable")
    ids, weights = np.take_along_axis(ids, by_id, axis=-1), np.take_along_axis(weights, by_id, axis=-1)
    # Left to right, so that the padding, and with it the rest of the batch, never changes a bit.
    probabilities = weights / np.cumsum(weights, axis=-1)[..., -1:]
    names = np.append(np.arange(logits.vocab_size) if vocab_ids is None else vocab_ids, vocab_size)
    nan, inf = logits.non_finite(active)
    return CandidateBatch(names[ids], probabilities, wide, vocab_size, nan, inf, logits.bad)


def _width(config: SamplerConfig) -> int:
    if config.greedy:
        return 1
    return min(config.top_k or NUCLEUS_WIDTH, WIDEST)


def _ranked(logits: LogitBatch, width: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The best `width` tokens of every position, by falling weight and then rising id: ids and weights, `[B, T, width]`."""
    ids = _best(logits.masked, logits.block_max, width)
    values = np.take_along_axis(logits.masked, ids, axis=-1).astype(np.float64)
    if logits.ids.shape[1]:
        names = np.where(logits.ids == NO_TOKEN, logits.vocab_size, logits.ids)
        ids = np.concatenate([ids, np.broadcast_to(names[:, None, :], logits.penalised.shape)], axis=-1)
        values = np.concatenate([values, logits.penalised], axis=-1)
    values = np.where(logits.bad[..., None], -np.inf, values)
    weights = logits.weights(values, logits.top[..., None])
    order = np.lexsort((ids, -weights), axis=-1)[..., :width]
    return np.take_along_axis(ids, order, axis=-1), np.take_along_axis(weights, order, axis=-1)


def _best(values: NDArray[np.float32], block_max: NDArray[np.float32], width: int) -> NDArray[np.int64]:
    """Ids of the `width` largest values of every position, ties to the lowest id, in no order: `[B, T, width]`."""
    rows, places, count = block_max.shape
    block = values.shape[-1] // count
    chosen = min(width, count)
    flat_values, flat_max = values.reshape(rows * places, count, block), block_max.reshape(rows * places, count)
    best = np.empty((rows * places, width), dtype=np.int64)
    step = max(1, _KEYS_AT_ONCE // (chosen * block))
    for start in range(0, len(flat_max), step):
        tops = flat_max[start : start + step]
        everyone = np.arange(len(tops))[:, None]
        blocks = _smallest(_descending_keys(tops, np.arange(count, dtype=np.uint64)), chosen)
        inside = flat_values[start + everyone, blocks]
        # As many values as blocks were chosen reach the least of their maxima: only those need a key.
        least = tops[everyone, blocks].min(axis=-1) if chosen == width else np.full(len(tops), -np.inf, np.float32)
        row, slot, place = np.nonzero(inside >= least[:, None, None])
        keys = _descending_keys(inside[row, slot, place], (blocks[row, slot] * block + place).astype(np.uint64))
        best[start : start + step] = _smallest(_side_by_side(keys, row, len(tops), width), width)
    return best.reshape(rows, places, width)


def _side_by_side(keys: NDArray[np.uint64], row: NDArray[np.int64], rows: int, width: int) -> NDArray[np.uint64]:
    """Keys `[n]` of ascending `row`s as `[rows, ≥ width]`, padded with the largest keys: ids 0, 1, … of values below all."""
    counts = np.bincount(row, minlength=rows)
    padded = np.full((rows, max(width, counts.max())), np.uint64(0xFFFFFFFF << 32))
    padded |= np.arange(padded.shape[1], dtype=np.uint64)
    padded[row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)] = keys
    return padded


def _descending_keys(values: NDArray[np.float32], ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One integer per value that rises as the value falls, and with the id among equal values (-0.0 equals 0.0)."""
    bits = (values + np.float32(0.0)).view(np.uint32)
    descending = np.where(bits >> np.uint32(31), bits, ~bits & np.uint32(0x7FFFFFFF))
    return (descending.astype(np.uint64) << np.uint64(32)) | ids


def _smallest(keys: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    """The ids inside the `count` smallest keys of every row."""
    if count < keys.shape[-1]:
        keys = np.partition(keys, count - 1, axis=-1)[..., :count]
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _kept(
    weights: NDArray[np.float64], mass: NDArray[np.float64], config: SamplerConfig, vocab: int, error: float
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """How many ranked candidates the filters keep, and where `error` in the mass or too few candidates leave that open."""
    most = 1 if config.greedy else min(config.top_k or vocab, vocab)
    fewest = widest = np.full(mass.shape, most, dtype=np.int64)
    if config.top_p < 1.0 and not config.greedy:
        run = np.cumsum(weights, axis=-1)
        goal = config.top_p * mass[..., None]
        fewest, widest = (np.minimum((run < goal * slack).sum(axis=-1) + 1, most) for slack in (1.0 - error, 1.0 + error))
    if config.min_p > 0.0 and not config.greedy:  # the largest weight is 1
        least, best = ((weights >= config.min_p * slack).sum(axis=-1) for slack in (1.0 + HOST_ERROR, 1.0 - HOST_ERROR))
        all_pass = best == weights.shape[-1]  # and so may tokens that were not fetched
        fewest = np.minimum(fewest, np.where(least == weights.shape[-1], most, np.maximum(least, 1)))
        widest = np.minimum(widest, np.where(all_pass, most, best))
    return widest, (fewest != widest) | (widest > weights.shape[-1])


def _filtered(logits: LogitBatch, row: int, place: int, scratch: NDArray[np.float64]) -> SparseDistribution:
    """One position's kept tokens (local ids), from the weights of its whole vocabulary; the reference's where rounding could tell."""
    config, vocab = logits.config, logits.vocab_size
    weights = logits.dense_weights(row, place, scratch)
    mass = np.asarray(weights.sum())
    # Tokens that cannot be kept need not be sorted: below the first weight they hold less than half of what lies outside the nucleus.
    ids = np.flatnonzero(weights >= max((1.0 - config.top_p) * float(mass) / (2 * vocab), config.min_p * (1.0 - 2.0 * HOST_ERROR)))
    values = weights[ids]
    ranked = np.sort(values)[::-1]
    run, unsettled = _kept(ranked, mass, config, len(ranked), HOST_ERROR)
    if unsettled:
        return SparseDistribution.from_dense(logits.reference(row, place))
    keep = int(run)
    threshold = ranked[keep - 1]
    above = ids[values > threshold]
    level = ids[values == threshold][: keep - len(above)]
    kept = np.sort(np.concatenate([above, level]))
    return SparseDistribution(kept, normalised(weights[kept]), vocab)


def residual(ids: NDArray[np.int64], p: NDArray[np.float64], q_ids: NDArray[np.int64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """`residual_distribution` of padded rows: ids and p `[R, C]`, q_ids and q `[R, D]` → `[R, C] float64`."""
    drafted = np.where(ids[:, :, None] == q_ids[:, None, :], q[:, None, :], 0.0).max(axis=-1)
    left = p - drafted
    left = np.where(left <= RESIDUAL_DUST * p, 0.0, left)
    total = np.cumsum(left, axis=-1)[:, -1:]
    return np.where(total > 0.0, left / np.where(total > 0.0, total, 1.0), p)


def inverse_cdf(ids: NDArray[np.int64], weights: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """`sample_from_distribution` of padded rows: ids and weights `[R, C]`, uniforms `[R]` → tokens `[R] int64`."""
    mass = np.cumsum(weights, axis=-1)
    slots = (mass <= uniforms[:, None] * mass[:, -1:]).sum(axis=-1)
    tokens: NDArray[np.int64] = ids[np.arange(len(ids)), slots]
    return tokens
