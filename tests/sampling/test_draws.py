"""Real draws follow the target, and an independently written sampler of another design agrees.

Every G-test has a false-alarm rate of 1e-6 and fixed seeds.
"""

import math
import random

import mlx.core as mx
import numpy as np
import pytest

from sampling import (
    PositionRandom,
    Purpose,
    SamplerConfig,
    SparseDistribution,
    distribution_from_logits,
    row_key,
    sample_from_distribution,
    speculative_output_marginal,
    verify_one_token,
)
from sampling.batched import BatchedSampler, DraftStep
from sampling.rows import RowBatch

DRAWS = 20_000
CONFIGS = [
    SamplerConfig(),
    SamplerConfig(temperature=0.6, top_p=0.9),
    SamplerConfig(temperature=1.3, top_k=6, frequency_penalty=0.6, presence_penalty=0.4),
]
LOGITS = np.random.default_rng(5).normal(size=(4, 20)).astype(np.float32) * 1.5


def keys(count: int, seed: int) -> np.ndarray:
    return np.array([row_key(seed, str(record), 0) for record in range(count)], dtype=np.uint64)


@pytest.mark.parametrize("form", [lambda p: p, SparseDistribution.from_dense], ids=["dense", "sparse"])
def test_plain_draws_follow_the_distribution(form, assert_drawn_from):
    p = distribution_from_logits(LOGITS[0], SamplerConfig(temperature=0.8))
    counts = np.zeros(len(p))
    for record in range(DRAWS):
        counts[sample_from_distribution(form(p), PositionRandom(row_key(1, str(record), 0), 0, (Purpose.CORRECTION,)))] += 1
    assert_drawn_from(counts, p)


def test_verified_tokens_follow_the_target(assert_drawn_from):
    p, q = (distribution_from_logits(LOGITS[row], SamplerConfig(top_p=0.9)) for row in (0, 1))
    counts, accepted = np.zeros(len(p)), 0
    for record in range(DRAWS):
        key = row_key(2, str(record), 0)
        draft = sample_from_distribution(q, PositionRandom(key, 7, (Purpose.DRAFT,)))
        decision = verify_one_token(p, q, draft, PositionRandom(key, 7))
        counts[decision.token_id] += 1
        accepted += decision.accepted
    assert_drawn_from(counts, p)
    expected = np.minimum(p, q).sum()
    assert_drawn_from(np.array([accepted, DRAWS - accepted]), np.array([expected, 1.0 - expected]))


@pytest.mark.parametrize("config", CONFIGS, ids=["plain", "nucleus", "penalties"])
def test_batched_blocks_follow_the_target(config, assert_drawn_from):
    """Place i of a block, given that it was reached, is distributed as the target at i is after the drafts before it."""
    sampler = BatchedSampler(config, LOGITS.shape[1])
    rows = RowBatch.of(keys(DRAWS, 3), np.arange(DRAWS) % 1000, token_counts=[{3: 1}] * DRAWS)
    target = mx.broadcast_to(mx.array(LOGITS[:3]), (DRAWS, 3, LOGITS.shape[1]))
    steps: list[DraftStep] = []
    for place in (1, 2):
        steps.append(sampler.draft(mx.broadcast_to(mx.array(LOGITS[place]), (DRAWS, LOGITS.shape[1])), rows, steps))
    block = sampler.verify(target, rows, steps)

    vocab = np.arange(LOGITS.shape[1])
    first = distribution_from_logits(LOGITS[0], config, {3: 1})
    assert_drawn_from((block.tokens[:, :1] == vocab).sum(axis=0), first)
    reached = block.accepted >= 1
    for token in np.argsort(-first)[:2]:  # the second place depends on the first token through the penalties
        second = block.tokens[reached & (block.tokens[:, 0] == token), 1]
        counts = {3: 1}
        counts[int(token)] = counts.get(int(token), 0) + 1
        assert_drawn_from((second[:, None] == vocab).sum(axis=0), distribution_from_logits(LOGITS[1], config, counts))
    alphas = block.accept_probabilities
    spread = math.sqrt((alphas * (1.0 - alphas)).sum())
    assert abs(block.accepted.sum() - alphas.sum()) < 5.0 * spread


@pytest.mark.parametrize("config", [SamplerConfig(), SamplerConfig(top_k=8)], ids=["plain", "top-k"])
def test_a_draft_vocabulary_changes_nothing(config, assert_drawn_from):
    part = np.array([0, 2, 3, 8, 15])
    sampler = BatchedSampler(config, LOGITS.shape[1], part)
    rows = RowBatch.of(keys(DRAWS, 4), np.zeros(DRAWS))
    step = sampler.draft(mx.broadcast_to(mx.array(LOGITS[2][part]), (DRAWS, len(part))), rows)
    assert np.isin(step.tokens, part).all()
    block = sampler.verify(mx.broadcast_to(mx.array(LOGITS[:2]), (DRAWS, 2, LOGITS.shape[1])), rows, [step])
    assert_drawn_from((block.tokens[:, :1] == np.arange(LOGITS.shape[1])).sum(axis=0), distribution_from_logits(LOGITS[0], config))


def exponential_race(p: list[float], q: list[float], draft: int, source: random.Random) -> tuple[bool, int]:
    """Rejection with recovery by an exponential race, the design of vLLM's rejection sampler, restated as a plain loop.

    The recovered token is the one whose residual weight over its own Exp(1) variable is the largest: no normalisation, no CDF.
    """
    if q[draft] > 0.0 and p[draft] / q[draft] > source.random():
        return True, draft
    winner, best = -1, -1.0
    for token in range(len(p)):
        score = max(p[token] - q[token], 0.0) / source.expovariate(1.0)
        if score > best:
            winner, best = token, score
    return False, winner


def test_an_exponential_race_sampler_agrees_in_distribution(assert_same_source, assert_drawn_from):
    p, q = (distribution_from_logits(LOGITS[row], SamplerConfig(temperature=0.9)) for row in (2, 3))
    source = random.Random(20240601)
    ours, theirs = np.zeros((2, len(p))), np.zeros((2, len(p)))
    for record in range(DRAWS):
        key = row_key(6, str(record), 0)
        decision = verify_one_token(p, q, sample_from_distribution(q, PositionRandom(key, 0, (Purpose.DRAFT,))), PositionRandom(key, 0))
        ours[int(decision.accepted), decision.token_id] += 1
        draft = source.choices(range(len(q)), weights=q.tolist())[0]
        accepted, token = exponential_race(p.tolist(), q.tolist(), draft, source)
        theirs[int(accepted), token] += 1
    assert_same_source(ours.ravel(), theirs.ravel())
    assert_drawn_from(theirs.sum(axis=0), speculative_output_marginal(p, q))


def test_the_g_test_can_fail(assert_drawn_from, assert_same_source):
    p = distribution_from_logits(LOGITS[0], SamplerConfig())
    wrong = np.random.default_rng(1).multinomial(DRAWS, 0.97 * p + 0.03 * np.roll(p, 1))
    right = np.random.default_rng(2).multinomial(DRAWS, p)
    assert_drawn_from(right, p)
    with pytest.raises(AssertionError, match="do not follow"):
        assert_drawn_from(wrong, p)
    with pytest.raises(AssertionError, match="differ"):
        assert_same_source(right, np.random.default_rng(3).multinomial(DRAWS, 0.9 * p + 0.1 * np.roll(p, 1)))
