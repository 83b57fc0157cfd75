"""The noise that draft and target share in the drafter-invariant coupling, and the coupling's reference in float64.

At a position of a row every token of the vocabulary has its own Exp(1) variable e, and a distribution p picks argmin e / p: the winner of
an exponential race, which is distributed as p. A draft picks argmin e / q with the same e; it is accepted iff the target picks the same
token, and the target's pick is emitted in any case. So what is emitted does not depend on the draft
(Daliri et al., arXiv 2408.07978).

How e follows from the counter RNG is part of the dataset's contract:

- the sub-key of (row, position) is the two words of Threefry with the row key over (position, `Purpose.NOISE`);
- the vocabulary is cut into blocks of `BLOCK` consecutive ids, the last of which may reach beyond it;
- Threefry with the sub-key over (block, 0) gives the smallest e of the block, Exp(1) / BLOCK, and in its 6 lowest bits whose it is;
- the others of the block lie above it by an Exp(1) each, from Threefry with the sub-key over (token, 1): the variable has no memory.

These are independent Exp(1) variables in which a whole block can be passed over by one number.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sampling.counter_rng import Purpose, threefry2x32, uniform_of_words
from sampling.distribution import Distribution, SparseDistribution, probability_of
from sampling.verification import SpeculativeDecision, require_same_vocabulary

BLOCK = 64
"""Ids per block: a race over V tokens costs V / BLOCK words and at most about BLOCK² more, least near the cube root of V / 2."""

SubKeys = tuple[NDArray[np.uint32], NDArray[np.uint32]]


def sub_keys(keys: ArrayLike, positions: ArrayLike) -> SubKeys:
    """The noise's key at each position: two uint32 words.

    Args:
        keys: row keys, uint64; broadcasts with `positions`.
        positions: index of the token in its completion, in [0, 2**32).
    """
    words = np.asarray(keys, dtype=np.uint64)
    return threefry2x32((words & np.uint64(0xFFFFFFFF), words >> np.uint64(32)), (positions, np.uint32(Purpose.NOISE)))


def block_noise(keys: SubKeys, blocks: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The smallest e of each block and the id that has it; `blocks` broadcasts with the sub-keys."""
    numbers = np.asarray(blocks, dtype=np.int64)
    high, low = threefry2x32(keys, (numbers, np.uint32(0)))
    return _exponential(high, low) / BLOCK, numbers * BLOCK + (low & np.uint32(BLOCK - 1))


def noise_above(keys: SubKeys, tokens: ArrayLike, smallest: NDArray[np.float64], owner: NDArray[np.int64]) -> NDArray[np.float64]:
    """e of each token, ≥ 0, given what `block_noise` says of its block; all broadcast together."""
    ids = np.asarray(tokens, dtype=np.int64)
    return smallest + np.where(owner == ids, 0.0, _exponential(*threefry2x32(keys, (ids, np.uint32(1)))))


def token_noise(keys: SubKeys, tokens: ArrayLike) -> NDArray[np.float64]:
    """e of each token, ≥ 0; `tokens` broadcasts with the sub-keys."""
    return noise_above(keys, tokens, *block_noise(keys, np.asarray(tokens, dtype=np.int64) // BLOCK))


def race(distribution: Distribution, key: int, position: int) -> int:
    """The token that a distribution picks at one position of a row: argmin e / p where p > 0, ties to the lowest id."""
    sparse = distribution if isinstance(distribution, SparseDistribution) else SparseDistribution.from_dense(distribution)
    return int(sparse.ids[np.argmin(arrivals(token_noise(sub_keys(key, position), sparse.ids), sparse.probabilities))])


def arrivals(noise: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """e / weight, and infinity where the weight is 0; any common shape."""
    with np.errstate(over="ignore"):
        arrived: NDArray[np.float64] = np.divide(noise, weights, out=np.full(weights.shape, np.inf), where=weights > 0.0)
    return arrived


def shared_noise_acceptance(p: Distribution, q: Distribution, token: int) -> float:
    """The chance that the target picks `token`, given that the draft picked it: `1 / Σ_j max(q_j, p_j · q_t / p_t)`; 0 where p or q is 0.

    Summed over the drafts, `Σ_t q_t α_t` is at least (1 - TV) / (1 + TV), TV being the total variation distance of p and q.

    Raises:
        ValueError: the vocabularies differ, or `token` lies outside them.
    """
    require_same_vocabulary(p, q)
    target, draft = probability_of(p, token), probability_of(q, token)
    if target <= 0.0 or draft <= 0.0:
        return 0.0
    if isinstance(p, SparseDistribution) and isinstance(q, SparseDistribution):
        ids = np.union1d(p.ids, q.ids)
        targets, drafts = p.at(ids), q.at(ids)
    else:
        targets, drafts = (each.dense() if isinstance(each, SparseDistribution) else each for each in (p, q))
    with np.errstate(over="ignore"):
        return min(1.0, 1.0 / float(np.maximum(drafts, targets * (draft / target)).sum()))


def verify_by_shared_noise(p: Distribution, q: Distribution, token: int, key: int, position: int) -> SpeculativeDecision:
    """Judge the draft `token` that q picked at this position; the decision's `token_id` is what p picks, whatever q is.

    Raises:
        ValueError: the vocabularies differ, or `token` lies outside them.
    """
    alpha = shared_noise_acceptance(p, q, token)
    picked = race(p, key, position)
    return SpeculativeDecision(picked == token, picked, alpha)


def _exponential(high: NDArray[np.uint32], low: NDArray[np.uint32]) -> NDArray[np.float64]:
    return -np.log1p(-uniform_of_words(high, low))
