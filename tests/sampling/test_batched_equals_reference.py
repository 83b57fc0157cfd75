"""The batched twin against a plain loop over the float64 reference, on the same words: thousands of blocks, every mixture of drafters."""

from collections import Counter
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import pytest
from sampling_support import CONFIGS, SHAPES, Context, random_logits

from sampling import (
    Distribution,
    PositionRandom,
    Purpose,
    probability_of,
    sample_from_distribution,
    verify_one_token,
)
from sampling.batched import BatchedSampler, DraftStep
from sampling.rows import NO_TOKEN, RowBatch


@dataclass
class PlainBlock:
    tokens: list[int]
    alphas: list[float]
    logprobs: list[float]


def plain_draft(logits, context, counts, ids, key, position) -> tuple[int, Distribution]:
    q = context.distribution(logits, counts, position, ids)
    return sample_from_distribution(q, PositionRandom(key, position, (Purpose.DRAFT,))), q


def plain_block(logits, context, counts, drafts, key, position) -> PlainBlock:
    """One row's cycle as the theorem states it, token by token."""
    block = PlainBlock([], [], [])
    counts = Counter(counts)
    for place, (token, q) in enumerate(drafts):  # as many as the row proposes
        p = context.distribution(logits[place], counts, position + place)
        decision = verify_one_token(p, q, token, PositionRandom(key, position + place))
        block.tokens.append(decision.token_id)
        block.alphas.append(decision.accept_probability)
        block.logprobs.append(np.log(probability_of(p, decision.token_id)))
        if not decision.accepted:
            return block
        counts[token] += 1
    p = context.distribution(logits[len(drafts)], counts, position + len(drafts))
    bonus = sample_from_distribution(p, PositionRandom(key, position + len(drafts), (Purpose.CORRECTION,)))
    block.tokens.append(bonus)
    block.logprobs.append(np.log(probability_of(p, bonus)))
    return block


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("subset", [False, True], ids=["full-head", "draft-vocabulary"])
def test_blocks_equal_the_plain_loop(config, shape, subset):
    vocab, spread, ties, masked = shape
    on_device = subset != (shape in (SHAPES["ties"], SHAPES["flat"]))  # where the mass is summed: every mixture in some of the grid
    rng = np.random.default_rng([vocab, subset, on_device, int(config.top_p * 1000), config.top_k])
    ids = np.sort(rng.choice(vocab, size=max(3, vocab // 2), replace=False)) if subset else None
    rows = 16
    contexts = [Context.random(rng, config, vocab) for _ in range(rows)]
    contexts = [replace(context, end_ids=contexts[0].end_ids) for context in contexts]
    sampler = BatchedSampler(config, vocab, ids, end_ids=contexts[0].end_ids, mass_on_device=on_device)
    for depth in (0, 1, 3):
        target = random_logits(rng, (rows, depth + 1, vocab), spread, ties, masked)
        head = target[:, :depth] + random_logits(rng, (rows, depth, vocab), 0.5, False, 0.0)
        head = head if ids is None else head[..., ids]
        head[..., 0] = np.where(np.isfinite(head).any(axis=-1), head[..., 0], 0.0)
        counts = [Counter(rng.integers(0, vocab, size=rng.integers(0, 6)).tolist()) for _ in range(rows)]
        keys = rng.integers(0, 2**64, size=rows, dtype=np.uint64)
        positions = rng.integers(0, 6, size=rows)
        batch = RowBatch.of(keys, positions, token_counts=counts, prompt_ids=[context.prompt for context in contexts])

        # At depth 3 every row changes its drafter from place to place, and may stop proposing.
        found = depth == 3 and rng.random((depth, rows)) < 0.5
        lookups = np.where(
            rng.random((depth, rows)) < 0.6, target[:, :depth].argmax(axis=-1).T, rng.integers(-1, vocab, size=(depth, rows))
        )
        lookups = np.where(rng.random((depth, rows)) < 0.2, NO_TOKEN, lookups)
        steps: list[DraftStep] = []
        for place in range(depth):
            drawn = sampler.draft(mx.array(head[:, place]), batch, steps)
            steps.append(DraftStep.where(found[place], lookups[place], drawn) if depth == 3 else drawn)
        block = sampler.verify(mx.array(target), batch, steps)

        for row in range(rows):
            key, position, along = int(keys[row]), int(positions[row]), Counter(counts[row])
            drafts = []
            for place in range(depth):
                if depth == 3 and found[place, row]:
                    token, q = int(lookups[place, row]), np.eye(vocab)[lookups[place, row]]
                else:
                    token, q = plain_draft(head[row, place], contexts[row], along, ids, key, position + place)
                assert token == steps[place].tokens[row]
                if token == NO_TOKEN:
                    break
                drafts.append((token, q))
                along[token] += 1
            assert block.proposed[row] == len(drafts)
            expected = plain_block(target[row], contexts[row], counts[row], drafts, key, position)
            emitted = len(expected.tokens)
            assert block.accepted[row] == emitted - 1
            assert block.tokens[row, :emitted].tolist() == expected.tokens
            assert (block.tokens[row, emitted:] == -1).all()
            loose = 1e-5 if on_device and not config.filters else 1e-12
            np.testing.assert_allclose(block.accept_probabilities[row, : len(expected.alphas)], expected.alphas, rtol=loose, atol=1e-15)
            assert (block.accept_probabilities[row, len(expected.alphas) :] == 0.0).all()
            np.testing.assert_allclose(block.logprobs[row, :emitted], expected.logprobs, rtol=loose, atol=loose)
        assert not block.failed.any()
