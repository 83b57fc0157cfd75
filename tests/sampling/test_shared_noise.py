"""The drafter-invariant coupling: its noise, its law, and what it says of acceptance.

Every G-test has a false-alarm rate of 1e-6 and fixed seeds.
"""

import math
from collections import Counter

import mlx.core as mx
import numpy as np
import pytest
from sampling_support import CONFIGS, SHAPES, Context, random_logits

from sampling import (
    Purpose,
    SamplerConfig,
    SparseDistribution,
    distribution_from_logits,
    race,
    row_key,
    shared_noise_acceptance,
    threefry2x32,
    verify_by_shared_noise,
)
from sampling.batched import DraftStep
from sampling.exponential_noise import BLOCK, block_noise, sub_keys, token_noise
from sampling.rows import NO_TOKEN, RowBatch
from sampling.shared_noise import SharedNoiseSampler


def scalar_noise(key: int, position: int, token: int) -> float:
    """The contract in scalar Python."""

    def words(k0: int, k1: int, c0: int, c1: int) -> tuple[int, int]:
        first, second = threefry2x32((k0, k1), (c0, c1))
        return int(first), int(second)

    def exponential(high: int, low: int) -> float:
        return -math.log1p(-(high * 2**21 + low // 2**11) / 2**53)

    sub_key = words(key % 2**32, key // 2**32, position, 3)
    high, low = words(*sub_key, token // 64, 0)
    smallest = exponential(high, low) / 64
    if low % 64 == token % 64:
        return smallest
    return smallest + exponential(*words(*sub_key, token, 1))


def test_the_noise_is_the_contract():
    assert (Purpose.NOISE, BLOCK) == (3, 64)
    rng = np.random.default_rng(1)
    for _ in range(40):
        key, position = int(rng.integers(0, 2**64, dtype=np.uint64)), int(rng.integers(0, 2**32))
        tokens = np.append(rng.integers(0, 250_000, size=5), block_noise(sub_keys(key, position), 3)[1])
        wanted = [scalar_noise(key, position, int(token)) for token in tokens]
        np.testing.assert_allclose(token_noise(sub_keys(key, position), tokens), wanted, rtol=1e-15)
    first, second = sub_keys(0x0123456789ABCDEF, 5)
    np.testing.assert_allclose(
        token_noise((first, second), [0, 1, 151_935]), [1.9002781811584313, 0.19638546261890258, 0.7572791461561631], rtol=1e-15
    )


def test_the_noise_is_independent_exp_1(assert_drawn_from):
    """Bins of equal probability, for all tokens, for a block's smallest, and for two tokens of one block jointly."""
    keys = np.array([row_key(1, str(record), 0) for record in range(4000)], dtype=np.uint64)
    first, second = sub_keys(keys, 7)
    noise = token_noise((first[:, None], second[:, None]), np.arange(2 * BLOCK))
    bins = np.minimum((-np.expm1(-noise) * 16).astype(int), 15)
    assert_drawn_from(np.bincount(bins.ravel(), minlength=16), np.full(16, 1 / 16))
    smallest = noise[:, :BLOCK].min(axis=1)
    assert_drawn_from(np.bincount((-np.expm1(-BLOCK * smallest) * 16).astype(int), minlength=16), np.full(16, 1 / 16))
    assert_drawn_from(np.bincount(noise[:, :BLOCK].argmin(axis=1), minlength=BLOCK), np.full(BLOCK, 1 / BLOCK))
    for other in (1, BLOCK - 1, BLOCK):
        pairs = bins[:, 0] // 2 * 8 + bins[:, other] // 2
        assert_drawn_from(np.bincount(pairs, minlength=64), np.full(64, 1 / 64))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_blocks_equal_the_plain_loop(config, shape):
    vocab, spread, ties, masked = shape
    subset = (vocab + config.top_k + round(10 * config.temperature)) % 2 == 1  # a draft vocabulary in half of the grid
    rng = np.random.default_rng([vocab, subset, int(config.top_p * 1000), config.top_k])
    ids = np.sort(rng.choice(vocab, size=max(3, vocab // 2), replace=False)) if subset else np.arange(vocab)
    context = Context.random(rng, config, vocab)
    sampler = SharedNoiseSampler(config, vocab, ids if subset else None, end_ids=context.end_ids)
    rows, depth = 8, 2
    target = random_logits(rng, (rows, depth + 1, vocab), spread, ties, masked)
    head = (target[:, :depth] + random_logits(rng, (rows, depth, vocab), 0.3, False, 0.0))[..., ids]
    head[..., 0] = np.where(np.isfinite(head).any(axis=-1), head[..., 0], 0.0)
    counts = [Counter(rng.integers(0, vocab, size=rng.integers(0, 6)).tolist()) for _ in range(rows)]
    keys = rng.integers(0, 2**64, size=rows, dtype=np.uint64)
    positions = rng.integers(0, 6, size=rows)
    batch = RowBatch.of(keys, positions, token_counts=counts, prompt_ids=[context.prompt] * rows)
    steps: list[DraftStep] = []
    for place in range(depth):
        steps.append(sampler.draft(mx.array(head[:, place]), batch, steps))
    block = sampler.verify(mx.array(target), batch, steps)

    for row in range(rows):
        key, position, along = int(keys[row]), int(positions[row]), Counter(counts[row])
        emitted, alphas = [], []
        for place in range(depth + 1):
            p = context.distribution(target[row, place], along, position + place)
            if place == depth:
                emitted.append(race(p, key, position + place))
                break
            q = context.distribution(head[row, place], along, position + place, ids)
            token = race(q, key, position + place)
            assert steps[place].tokens[row] == token
            decision = verify_by_shared_noise(p, q, token, key, position + place)
            emitted.append(decision.token_id)
            alphas.append(decision.accept_probability)
            if not decision.accepted:
                break
            along[token] += 1
        assert block.tokens[row, : len(emitted)].tolist() == emitted
        assert (block.tokens[row, len(emitted) :] == NO_TOKEN).all()
        assert block.accepted[row] == len(emitted) - 1
        np.testing.assert_allclose(block.accept_probabilities[row, : len(alphas)], alphas, rtol=1e-11, atol=1e-15)
        assert (block.accept_probabilities[row, len(alphas) :] == 0.0).all()


@pytest.mark.parametrize("penalised", [False, True], ids=["", "penalties"])
@pytest.mark.parametrize("subset", [False, True], ids=["full-head", "draft-vocabulary"])
@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0, 12.0])
def test_a_race_over_a_large_vocabulary_is_the_race_of_every_token(spread, subset, penalised):
    vocab, rows = 50_021, 6
    config = SamplerConfig(temperature=0.9, frequency_penalty=-2.0 if penalised else 0.0)
    rng = np.random.default_rng([int(spread), subset])
    ids = np.sort(rng.choice(vocab, size=9_999, replace=False)) if subset else np.arange(vocab)
    logits = (rng.normal(size=(rows, len(ids))) * spread).astype(np.float32)
    counts = [Counter({int(token): 3 for token in ids[np.argsort(-logits[row])[: 2 * row]]}) for row in range(rows)]
    keys = rng.integers(0, 2**64, size=rows, dtype=np.uint64)
    step = SharedNoiseSampler(config, vocab, ids if subset else None).draft(
        mx.array(logits), RowBatch.of(keys, np.arange(rows), token_counts=counts)
    )
    for row in range(rows):
        local = {slot: 3 for slot, full in enumerate(ids.tolist()) if counts[row][full]}
        p = SparseDistribution(ids, distribution_from_logits(logits[row], config, local), vocab)
        assert step.tokens[row] == race(p, int(keys[row]), row)


LAW_CONFIGS = ("plain", "greedy-penalties", "nucleus", "almost-all", "plain-penalties", "plain-repetition", "all-at-once")


class ToyModel:
    """Logits as a table over the last token, a head that is near it, and a lookup that is often wrong."""

    def __init__(self, vocab: int, part: np.ndarray | None) -> None:
        rng = np.random.default_rng(vocab)
        self.target = (rng.normal(size=(vocab, vocab)) * 2.5).astype(np.float32)
        self.head = self.target + rng.normal(size=(vocab, vocab)).astype(np.float32)
        self.head = self.head if part is None else self.head[:, part]

    def decode(self, sampler: SharedNoiseSampler, keys: np.ndarray, length: int, depth: int, drafter: str) -> list[list[int]]:
        texts: list[list[int]] = [[] for _ in keys]
        while any(len(text) < length for text in texts):
            rows = RowBatch.of(
                keys, [len(text) for text in texts], token_counts=[Counter(text) for text in texts], prompt_ids=[[7, 8, 8]] * len(texts)
            )
            last = np.array([text[-1] if text else 0 for text in texts])
            steps: list[DraftStep] = []
            context = [last]
            for place in range(depth):
                drawn = sampler.draft(mx.array(self.head[context[-1]]), rows, steps)
                guesses = self.target[context[-1]].argmax(axis=-1)
                found = {"head": np.zeros(len(keys), bool), "lookup": np.ones(len(keys), bool), "mixed": (last + place) % 3 == 0}[drafter]
                guesses = np.where((last + place) % 5 == 0, NO_TOKEN, guesses)
                steps.append(DraftStep.where(found, guesses, drawn))
                context.append(np.maximum(steps[-1].tokens, 0))
            block = sampler.verify(mx.array(self.target[np.stack(context, axis=1)]), rows, steps)
            for text, tokens, accepted in zip(texts, block.tokens.tolist(), block.accepted.tolist(), strict=True):
                text.extend(tokens[: accepted + 1])
        return [text[:length] for text in texts]


@pytest.mark.parametrize("config", [CONFIGS[name] for name in LAW_CONFIGS], ids=LAW_CONFIGS)
@pytest.mark.parametrize("part", [None, np.arange(0, 90, 2)], ids=["full-head", "draft-vocabulary"])
def test_what_is_emitted_does_not_depend_on_what_was_drafted(config, part):
    model, keys = ToyModel(90, part), np.array([row_key(3, str(record), 0) for record in range(5)], dtype=np.uint64)
    sampler = SharedNoiseSampler(config, 90, part, end_ids=[2, 9])
    plain = model.decode(sampler, keys, 24, 0, "head")
    for depth, drafter in ((1, "head"), (3, "head"), (7, "mixed"), (2, "lookup"), (4, "mixed")):
        assert model.decode(sampler, keys, 24, depth, drafter) == plain
    assert model.decode(sampler, keys[[3]], 24, 5, "head") == [plain[3]]


@pytest.mark.parametrize("config", [SamplerConfig(), SamplerConfig(temperature=0.6, top_p=0.9)], ids=["plain", "nucleus"])
def test_draws_follow_the_target_and_acceptance_is_what_is_expected(config, assert_drawn_from):
    draws, vocab = 20_000, 20
    logits = np.random.default_rng(5).normal(size=(3, vocab)).astype(np.float32) * 1.5
    p, q = (distribution_from_logits(row, config) for row in logits[:2])
    keys = np.array([row_key(9, str(record), 0) for record in range(draws)], dtype=np.uint64)
    sampler, rows = SharedNoiseSampler(config, vocab), RowBatch.of(keys, np.zeros(draws))
    step = sampler.draft(mx.broadcast_to(mx.array(logits[1]), (draws, vocab)), rows)
    block = sampler.verify(mx.broadcast_to(mx.array(logits[[0, 2]]), (draws, 2, vocab)), rows, [step])
    cells = np.arange(vocab)
    assert_drawn_from((step.tokens[:, None] == cells).sum(axis=0), q)
    assert_drawn_from((block.tokens[:, :1] == cells).sum(axis=0), p)
    for token in np.flatnonzero(q):
        given = step.tokens == token
        alpha = shared_noise_acceptance(p, q, int(token))
        hits = int(block.accepted[given].sum())
        assert_drawn_from(np.array([hits, given.sum() - hits]), np.array([alpha, 1.0 - alpha]))
    distance = 0.5 * np.abs(p - q).sum()
    rate = sum(q[token] * shared_noise_acceptance(p, q, int(token)) for token in range(vocab))
    assert (1.0 - distance) / (1.0 + distance) <= rate <= 1.0 - distance


def test_acceptance_at_its_borders():
    p, q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.0, 0.5, 0.25, 0.25])
    assert shared_noise_acceptance(p, p, 1) == 1.0
    assert shared_noise_acceptance(p, q, 0) == shared_noise_acceptance(p, q, 3) == 0.0
    assert shared_noise_acceptance(p, np.eye(4)[1], 1) == pytest.approx(0.3, abs=1e-15)  # a lookup is right as often as p says
    sparse = SparseDistribution.from_dense
    for token in range(4):
        dense = shared_noise_acceptance(p, q, token)
        assert shared_noise_acceptance(sparse(p), sparse(q), token) == pytest.approx(dense, abs=1e-15)
        assert shared_noise_acceptance(sparse(p), q, token) == shared_noise_acceptance(p, sparse(q), token) == dense
    with pytest.raises(ValueError, match="one vocabulary"):
        shared_noise_acceptance(p, q[:3], 0)


@pytest.mark.parametrize(
    "config", [SamplerConfig(), SamplerConfig(top_p=0.95), SamplerConfig(temperature=0.0)], ids=["plain", "nucleus", "greedy"]
)
def test_a_non_finite_row_is_named_and_its_neighbours_go_on(config):
    rng = np.random.default_rng(2)
    target, head = rng.normal(size=(5, 2, 700)).astype(np.float32) * 3, rng.normal(size=(5, 700)).astype(np.float32)
    sampler, rows = SharedNoiseSampler(config, 700), RowBatch.of([1, 2, 3, 4, 5], [0] * 5, [True, True, True, True, False])
    clean = sampler.verify(mx.array(target), rows, [sampler.draft(mx.array(head), rows)])
    broken = target.copy()
    broken[1, 0, 4], broken[4], head[2] = np.nan, np.inf, np.nan
    step = sampler.draft(mx.array(head), rows)
    assert step.failed.tolist() == [False, False, True, False, False]
    block = sampler.verify(mx.array(broken), rows, [step])
    assert block.failed.tolist() == [False, True, False, False, False]
    assert (block.nan[1], block.tokens[1].tolist(), block.accepted[1]) == (1, [NO_TOKEN, NO_TOKEN], 0)
    np.testing.assert_array_equal(block.tokens[[0, 3]], clean.tokens[[0, 3]])
    assert block.tokens[2, 0] == clean.tokens[2, 0]
