"""Exact speculative sampling: the numpy reference in float64, its oracle, and the counter RNG.

Vocabulary, used for every variable, column and page of this project:

- target `p`: the model's own next-token distribution after the sampler config. draft `q`: the distribution the draft token was
  really drawn from, after the same config.
- draft token, accepted token, residual token (drawn after a rejection), bonus token (drawn from `p` after every draft of a block was
  accepted).
- depth `K`: draft tokens per cycle. cycle: K drafts, one target forward over K + 1 positions, one commit.
- mask: what a rule of the row, such as a grammar, allows at a position; every other token has probability 0 in `p` and `q` alike.
- acceptance probability `α = min(1, p[t] / q[t])`, and 0 where `q[t] = 0`.

The theorem (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318): a draft t ~ q, accepted with probability α and replaced
by a draw from `max(p - q, 0)` (renormalised) otherwise, is distributed as p, whatever q is. This is the rejection coupling; in the
shared-noise coupling (Daliri et al., arXiv 2408.07978) the emitted tokens themselves do not depend on the draft.

Counter-based random numbers are Threefry-2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

This module needs numpy alone. The batched twins that decoding uses are in `sampling.batched` and `sampling.shared_noise` and need mlx.
"""

from sampling.counter_rng import PositionRandom, Purpose, row_key, threefry2x32, uniform
from sampling.distribution import (
    Distribution,
    SparseDistribution,
    apply_top_p_top_k,
    distribution_from_logits,
    probability_of,
    sample_from_distribution,
)
from sampling.exponential_noise import race, shared_noise_acceptance, verify_by_shared_noise
from sampling.penalties import apply_penalties
from sampling.verification import (
    SpeculativeDecision,
    acceptance_probability,
    residual_distribution,
    speculative_output_marginal,
    verify_one_token,
)
from schemas.errors import NonFiniteLogitsError
from schemas.sampler import SamplerConfig

__all__ = [
    "Distribution",
    "NonFiniteLogitsError",
    "PositionRandom",
    "Purpose",
    "SamplerConfig",
    "SparseDistribution",
    "SpeculativeDecision",
    "acceptance_probability",
    "apply_penalties",
    "apply_top_p_top_k",
    "distribution_from_logits",
    "probability_of",
    "race",
    "residual_distribution",
    "row_key",
    "sample_from_distribution",
    "shared_noise_acceptance",
    "speculative_output_marginal",
    "threefry2x32",
    "uniform",
    "verify_by_shared_noise",
    "verify_one_token",
]
