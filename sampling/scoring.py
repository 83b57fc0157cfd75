"""What the target says of tokens that exist already: their log p, how far an impossible one lies outside, and how surprising they are.

Under exact sampling log p(token) - Σ p log p has mean 0 at every position, whatever the model and the config, and however a row ends: its
sum over rows is a martingale. So Σ over its standard deviation is a z-score of "these tokens were drawn from this target".
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from sampling.batched import BatchedSampler, DistributionBatch
from sampling.candidates import CandidateBatch
from sampling.distribution import SparseDistribution, distribution_from_logits
from sampling.penalties import apply_penalties
from sampling.rows import RowBatch
from sampling.token_mask import TokenMask, allowed_along, masked
from schemas.errors import NonFiniteLogitsError
from schemas.sampler import SamplerConfig


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Scores of T tokens in a row.

    Attributes:
        logprobs: `[T] float64`, log p; -inf where p is 0.
        shortfall: `[T] float64`, nats; 0 where p > 0, infinite where the token is forbidden.
        expected: `[T] float64`, Σ p log p: what log p of a drawn token is on average.
        variance: `[T] float64`, of log p of a drawn token.
    """

    logprobs: NDArray[np.float64]
    shortfall: NDArray[np.float64]
    expected: NDArray[np.float64]
    variance: NDArray[np.float64]


def score_tokens(
    sampler: BatchedSampler,
    logits: mx.array,
    tokens: NDArray[np.int64],
    earlier: Counter[int],
    prompt_ids: Collection[int] | None = None,
    mask: TokenMask | None = None,
) -> TokenScores:
    """Score tokens that follow each other.

    Args:
        sampler: of the target.
        logits: `[T, V]`, the target's logits before each token.
        tokens: `[T] int64`, in [0, V).
        earlier: occurrences of all tokens of the completion before these.
        prompt_ids: the tokens of the prompt; a repetition penalty needs them.
        mask: what may follow `earlier`, or None for a row that is free.

    Raises:
        NonFiniteLogitsError: a position that is not a distribution.
    """
    count = len(tokens)
    start = earlier.total()
    rows = RowBatch.of([0], [start], token_counts=[earlier], prompt_ids=None if prompt_ids is None else [prompt_ids])
    if mask is not None:
        logits = masked(logits, allowed_along([mask], tokens[None, :-1], range(count), sampler.vocab_size)[0])
    p = sampler.target(logits[None], rows, tokens[None, :-1])
    if p.bad.any():
        place = int(np.flatnonzero(p.bad[0])[0])
        raise NonFiniteLogitsError(int(p.nan[0, place]), int(p.inf[0, place]), sampler.vocab_size)
    chosen = p.probability_of(tokens[None], np.arange(count)[None])[0]
    shortfall = np.zeros(count)
    for place in np.flatnonzero(chosen == 0.0).tolist():
        counts = earlier + Counter(tokens[:place].tolist())
        values = np.array(logits[place].astype(mx.float32))
        forbidden = sampler.end_ids if start + place < sampler.config.min_tokens else sampler.end_ids[:0]
        shortfall[place] = _shortfall(sampler.config, values, counts, list(prompt_ids or ()), forbidden, int(tokens[place]))
    moments = np.array([_moments(p, place) for place in range(count)]).reshape(count, 2)
    with np.errstate(divide="ignore"):
        return TokenScores(np.log(chosen), shortfall, moments[:, 0], moments[:, 1])


def _moments(p: DistributionBatch, place: int) -> tuple[float, float]:
    """Mean and variance of log p of a token drawn at one place."""
    if isinstance(p, CandidateBatch) and (0, place) not in p.wide:
        values = p.probabilities[0, place]
    else:
        distribution = p.at(0, place)
        values = distribution.probabilities if isinstance(distribution, SparseDistribution) else distribution
    values = values[values > 0.0]
    logs = np.log(values)
    mean = float(values @ logs)
    return mean, max(0.0, float(values @ (logs - mean) ** 2))


def _shortfall(
    config: SamplerConfig,
    logits: NDArray[np.float32],
    counts: Counter[int],
    prompt_ids: list[int],
    forbidden: NDArray[np.int64],
    token: int,
) -> float:
    kept = distribution_from_logits(logits, config, counts, prompt_ids=prompt_ids, forbidden=forbidden) > 0.0
    penalised = np.array(apply_penalties(logits.astype(np.float64), config, counts, prompt_ids), dtype=np.float64)
    penalised[forbidden] = -np.inf
    return float(max(0.0, penalised[kept].min() - penalised[token])) or np.finfo(np.float64).tiny
