"""Next-token distributions in float64, dense and sparse, and how a sampler config makes one from logits.

Sums over a distribution run left to right in id order (`cumsum`), so that a zero probability more or less, and with it the choice of
dense or sparse, never changes a bit of the result.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sampling.penalties import TokenCounts, apply_penalties
from schemas.errors import NonFiniteLogitsError
from schemas.sampler import SamplerConfig


class UniformSource(Protocol):
    """Anything with `random() -> float` in [0, 1): `PositionRandom`, `numpy.random.Generator`, `random.Random`."""

    def random(self) -> float:
        """The next uniform in [0, 1)."""


@dataclass(frozen=True, eq=False)
class SparseDistribution:
    """The kept candidates of a distribution; every other token of the vocabulary has probability 0.

    Attributes:
        ids: `[C] int64`, strictly ascending, in [0, vocab_size).
        probabilities: `[C] float64`, finite and ≥ 0.
        vocab_size: length of the dense twin.

    Raises:
        ValueError: ids or probabilities break one of these rules.
    """

    ids: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    vocab_size: int

    def __post_init__(self) -> None:
        ids = np.asarray(self.ids, dtype=np.int64)
        probabilities = np.asarray(self.probabilities, dtype=np.float64)
        if ids.ndim != 1 or ids.shape != probabilities.shape or len(ids) == 0:
            raise ValueError(f"ids and probabilities must be equal, non-empty 1-D shapes; received {ids.shape} and {probabilities.shape}")
        if ids[0] < 0 or ids[-1] >= self.vocab_size or np.any(np.diff(ids) <= 0):
            raise ValueError(f"ids must be strictly ascending in [0, {self.vocab_size})")
        if not np.all(np.isfinite(probabilities) & (probabilities >= 0.0)):
            raise ValueError(f"probabilities must be finite and >= 0; received {probabilities.min()} to {probabilities.max()}")
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "probabilities", probabilities)

    @classmethod
    def from_dense(cls, probabilities: ArrayLike) -> "SparseDistribution":
        """The tokens of positive probability of a dense `[V]` vector."""
        dense = np.asarray(probabilities, dtype=np.float64)
        ids = np.flatnonzero(dense)
        return cls(ids, dense[ids], len(dense))

    def dense(self) -> NDArray[np.float64]:
        """The dense twin, `[vocab_size] float64`."""
        full = np.zeros(self.vocab_size, dtype=np.float64)
        full[self.ids] = self.probabilities
        return full

    def at(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Probabilities of `ids` (any shape), float64; 0 for a token that is not kept."""
        slot = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[slot] == ids, self.probabilities[slot], 0.0)

    def inverse_cdf(self, uniform: float) -> int:
        """The first token whose cumulative mass exceeds `uniform · total` strictly; never one of probability 0."""
        mass = np.cumsum(self.probabilities)
        return int(self.ids[np.searchsorted(mass, uniform * mass[-1], side="right")])


Distribution = NDArray[np.float64] | SparseDistribution


def vocab_size_of(distribution: Distribution) -> int:
    """Length of the vocabulary that a dense or sparse distribution is over."""
    return distribution.vocab_size if isinstance(distribution, SparseDistribution) else len(distribution)


def probability_of(distribution: Distribution, token: int) -> float:
    """Probability of one token id.

    Raises:
        ValueError: `token` lies outside [0, V).
    """
    size = vocab_size_of(distribution)
    if not 0 <= token < size:
        raise ValueError(f"token must be in [0, {size}); received {token}")
    if isinstance(distribution, SparseDistribution):
        return float(distribution.at(np.array(token)))
    return float(distribution[token])


def distribution_from_logits(
    logits: ArrayLike,
    config: SamplerConfig,
    token_counts: TokenCounts | None = None,
    *,
    prompt_ids: ArrayLike = (),
    forbidden: ArrayLike = (),
) -> NDArray[np.float64]:
    """The distribution that `config` makes of one position's logits.

    Bias and penalties on the raw logits, division by the temperature, softmax, top-p on the full softmax, top-k, min-p, renormalisation;
    temperature ≤ 0 gives a one-hot at the argmax of the penalised logits (lowest id on ties). A logit of -inf is a mask: probability 0.

    Args:
        logits: `[V]`, any real dtype; computed in float64.
        config: see `SamplerConfig`.
        token_counts: tokens of the completion so far, for the penalties; see `apply_penalties`.
        prompt_ids: tokens of the prompt, for the repetition penalty; see `apply_penalties`.
        forbidden: ids `[E]` of probability 0 at this position: the tokens that end a completion, where it is shorter than `min_tokens`.

    Returns:
        `[V] float64`, summing to 1.

    Raises:
        NonFiniteLogitsError: NaN, +inf, or no finite logit at all among the tokens that are allowed.
        ValueError: `logits` is not a non-empty vector, or tokens do not fit it.
    """
    raw = np.asarray(logits, dtype=np.float64)
    if raw.ndim != 1 or len(raw) == 0:
        raise ValueError(f"logits must be a non-empty vector [V]; received shape {raw.shape}")
    require_finite(raw)
    penalised = np.asarray(apply_penalties(raw, config, token_counts, prompt_ids), dtype=np.float64)
    banned = np.asarray(forbidden, dtype=np.int64)
    if len(banned):
        if banned.min() < 0 or banned.max() >= len(raw):
            raise ValueError(f"forbidden must be in [0, {len(raw)}); received {banned.min()} to {banned.max()}")
        penalised = penalised.copy()
        penalised[banned] = -np.inf
        require_finite(penalised)
    best = int(np.argmax(penalised))
    if config.greedy:
        one_hot = np.zeros(len(raw), dtype=np.float64)
        one_hot[best] = 1.0
        return one_hot
    with np.errstate(over="ignore"):  # a tiny temperature sends the exponent to -inf, which is right
        weights = np.exp((penalised - penalised[best]) / config.temperature)
    # Ranked before they are normalised: division can make equal what differs by the last bit.
    kept = apply_top_p_top_k(weights, config.top_p, config.top_k, config.min_p)
    assert not isinstance(kept, SparseDistribution)
    return normalised(weights) if kept is weights else kept


def apply_top_p_top_k(probabilities: Distribution, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0) -> Distribution:
    """Keep the nucleus, then at most `top_k` tokens of it, then those of at least `min_p` times the largest probability, and renormalise.

    The nucleus is the shortest run of tokens, by falling probability and then rising id, whose mass reaches `top_p` of the whole. The
    filters rank the tokens alike and read the whole distribution, so the intersection is the shortest run; it holds at least one token.

    Args:
        probabilities: the full tempered softmax, dense `[V] float64` or sparse, on any scale; never mutated.
        top_p: in (0, 1]; 1 = off.
        top_k: ≥ 0; 0 = off.
        min_p: in [0, 1]; 0 = off.

    Returns:
        The input itself when all filters are off, else a new distribution of the same kind, summing to 1.

    Raises:
        ValueError: `top_p`, `top_k` or `min_p` lies outside its interval.
    """
    if not SamplerConfig(top_p=top_p, top_k=top_k, min_p=min_p).filters:
        return probabilities
    values = probabilities.probabilities if isinstance(probabilities, SparseDistribution) else probabilities
    ranked = np.argsort(-values, kind="stable")
    keep = len(values)
    if top_p < 1.0:
        mass = np.cumsum(values[ranked])
        keep = int(np.searchsorted(mass, top_p * mass[-1])) + 1
    if top_k:
        keep = min(keep, top_k)
    if min_p:
        keep = min(keep, int((values >= min_p * values.max()).sum()))
    ids = np.sort(ranked[:keep])
    if isinstance(probabilities, SparseDistribution):
        return SparseDistribution(probabilities.ids[ids], normalised(values[ids]), probabilities.vocab_size)
    filtered = np.zeros_like(values)
    filtered[ids] = normalised(values[ids])
    return filtered


def sample_from_distribution(distribution: Distribution, rng: UniformSource) -> int:
    """Draw one token id by inverse CDF over the candidates in id order, with one uniform from `rng`.

    A token of probability 0 is never drawn: the pick is the first token whose cumulative mass exceeds `u · total` strictly.
    """
    if isinstance(distribution, SparseDistribution):
        return distribution.inverse_cdf(rng.random())
    mass = np.cumsum(distribution)
    return int(np.searchsorted(mass, rng.random() * mass[-1], side="right"))


def normalised(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """`[C] float64` weights divided by their sum, which must be positive."""
    scaled: NDArray[np.float64] = weights / np.cumsum(weights)[-1]
    return scaled


def require_finite(logits: NDArray[np.floating]) -> None:
    """Refuse logits that can never become a distribution.

    Raises:
        NonFiniteLogitsError: NaN, +inf, or no finite logit at all; carries the counts.
    """
    top = np.max(logits)  # NaN wins over everything, +inf over every number, -inf only when nothing is finite
    if not np.isfinite(top):
        raise NonFiniteLogitsError(int(np.isnan(logits).sum()), int(np.isposinf(logits).sum()), logits.size)
