"""Judging one draft token, and the oracle that proves the judgement exact.

Accept a draft t ~ q iff u < α = min(1, p[t] / q[t]); otherwise draw from max(p - q, 0), renormalised. p and q may each be dense or sparse.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sampling.distribution import (
    Distribution,
    SparseDistribution,
    UniformSource,
    normalised,
    probability_of,
    sample_from_distribution,
    vocab_size_of,
)

# A difference p - q below this share of p is what rounding leaves of two equal numbers (float64: a few 2**-53), not probability.
RESIDUAL_DUST = 2.0**-50


@dataclass(frozen=True)
class SpeculativeDecision:
    """What became of one draft token.

    Attributes:
        accepted: whether the draft token itself is emitted.
        token_id: the emitted token: the draft, or the residual token.
        accept_probability: α of the draft, in [0, 1].
    """

    accepted: bool
    token_id: int
    accept_probability: float


def acceptance_probability(p: Distribution, q: Distribution, token: int) -> float:
    """α = min(1, p[token] / q[token]); 0 whenever q[token] = 0, since such a token cannot have been drawn from q.

    Raises:
        ValueError: the vocabularies differ, or `token` lies outside them.
    """
    require_same_vocabulary(p, q)
    target, draft = probability_of(p, token), probability_of(q, token)
    if draft <= 0.0:
        return 0.0
    return 1.0 if target >= draft else target / draft


def residual_distribution(p: Distribution, q: Distribution, mask: ArrayLike | None = None) -> Distribution:
    """`max(p - q·mask, 0)`, renormalised; p itself when nothing is left.

    Args:
        p: target, dense or sparse.
        q: draft, dense or sparse.
        mask: `[V]` of 0 and 1 (or bool): the part of the vocabulary the draft was restricted to. Verification is exact only if q·mask is
            the distribution that the draft token was really drawn from, that is if q·mask sums to 1: restrict and renormalise q first.

    Returns:
        A distribution of the same kind as p, summing to 1; p itself where p and q·mask agree up to rounding.

    Raises:
        ValueError: the vocabularies differ, or the mask has another length.
    """
    require_same_vocabulary(p, q)
    if isinstance(p, SparseDistribution):
        target, drafted = p.probabilities, _at(q, p.ids)
    else:
        target, drafted = p, q.dense() if isinstance(q, SparseDistribution) else q
    if mask is not None:
        kept = np.asarray(mask, dtype=np.float64)
        if kept.shape != (vocab_size_of(p),):
            raise ValueError(f"mask must have shape ({vocab_size_of(p)},); received {kept.shape}")
        drafted = drafted * (kept[p.ids] if isinstance(p, SparseDistribution) else kept)
    left = target - drafted
    left[left <= RESIDUAL_DUST * target] = 0.0
    if not left.any():
        return p
    if isinstance(p, SparseDistribution):
        return SparseDistribution(p.ids, normalised(left), p.vocab_size)
    return normalised(left)


def verify_one_token(p: Distribution, q: Distribution, token: int, rng: UniformSource) -> SpeculativeDecision:
    """Judge the draft `token`, drawn from q, against the target p.

    Args:
        p: target, dense or sparse.
        q: draft: the distribution `token` was really drawn from.
        token: the draft token's id.
        rng: first uniform: the acceptance test (u < α, strictly); second, only after a rejection: the residual draw.

    Returns:
        The decision; its `token_id` is distributed as p when `token` is distributed as q.

    Raises:
        ValueError: the vocabularies differ, or `token` lies outside them.
    """
    alpha = acceptance_probability(p, q, token)
    if rng.random() < alpha:
        return SpeculativeDecision(True, token, alpha)
    return SpeculativeDecision(False, sample_from_distribution(residual_distribution(p, q), rng), alpha)


def speculative_output_marginal(p: Distribution, q: Distribution, mask: ArrayLike | None = None) -> NDArray[np.float64]:
    """The distribution of the emitted token, by enumeration of every draft: the correctness oracle.

    With a mask the drafts come from q·mask, renormalised, while acceptance and residual see q and the mask as given; the result is p
    exactly when q·mask sums to 1.

    Returns:
        `[V] float64`; equal to p to 1e-12.
    """
    require_same_vocabulary(p, q)
    drawn = q.dense() if isinstance(q, SparseDistribution) else q
    if mask is not None:
        drawn = normalised(drawn * np.asarray(mask, dtype=np.float64))
    residual = residual_distribution(p, q, mask)
    corrected = residual.dense() if isinstance(residual, SparseDistribution) else residual
    marginal = np.zeros(len(drawn), dtype=np.float64)
    for token in np.flatnonzero(drawn):
        alpha = acceptance_probability(p, q, int(token))
        marginal[token] += drawn[token] * alpha
        marginal += drawn[token] * (1.0 - alpha) * corrected
    return marginal


def _at(distribution: Distribution, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    return distribution.at(ids) if isinstance(distribution, SparseDistribution) else distribution[ids]


def require_same_vocabulary(p: Distribution, q: Distribution) -> None:
    """Refuse distributions of different length.

    Raises:
        ValueError: the vocabularies differ.
    """
    if vocab_size_of(p) != vocab_size_of(q):
        raise ValueError(f"p and q must be over one vocabulary; received {vocab_size_of(p)} and {vocab_size_of(q)} tokens")
