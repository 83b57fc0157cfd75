"""Rows of one batch that draft differently: by the head, by lookup, or not at all."""

from collections import Counter

import mlx.core as mx
import numpy as np
import pytest

from sampling import SamplerConfig, distribution_from_logits, row_key
from sampling.batched import BatchedSampler, BlockResult, DraftStep
from sampling.rows import NO_TOKEN, RowBatch

VOCAB, DEPTH, ROWS = 900, 3, 9
CONFIGS = {
    "plain": SamplerConfig(),
    "plain-penalties": SamplerConfig(presence_penalty=0.8, frequency_penalty=-0.5),
    "nucleus": SamplerConfig(temperature=0.9, top_p=0.97),
    "wide-nucleus": SamplerConfig(temperature=2.0, top_p=0.995),
    "penalties": SamplerConfig(top_k=20, presence_penalty=1.0, frequency_penalty=0.5),
    "greedy": SamplerConfig(temperature=0.0),
    "greedy-penalties": SamplerConfig(temperature=0.0, presence_penalty=1.5),
}
RESULTS = ("accepted", "tokens", "accept_probabilities", "logprobs", "failed", "nan", "inf")


class Scene:
    """Logits, rows and lookup tokens; `lookups[place, row]` where `found`."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.target = (rng.normal(size=(ROWS, DEPTH + 1, VOCAB)) * 3).astype(np.float32)
        self.head = self.target[:, :DEPTH] + rng.normal(size=(ROWS, DEPTH, VOCAB)).astype(np.float32)
        self.keys = rng.integers(0, 2**64, size=ROWS, dtype=np.uint64)
        self.positions = rng.integers(0, 50, size=ROWS)
        self.counts = [Counter(rng.integers(0, VOCAB, size=4 * row).tolist()) for row in range(ROWS)]
        self.found = rng.random((DEPTH, ROWS)) < 0.5
        self.lookups = self.target[:, :DEPTH].argmax(axis=-1).T
        self.lookups[rng.random((DEPTH, ROWS)) < 0.3] = NO_TOKEN

    def run(self, sampler: BatchedSampler, chosen: list[int], depth: int = DEPTH) -> BlockResult:
        rows = RowBatch.of(self.keys[chosen], self.positions[chosen], token_counts=[self.counts[row] for row in chosen])
        steps: list[DraftStep] = []
        for place in range(depth):
            drawn = sampler.draft(mx.array(self.head[chosen, place]), rows, steps)
            steps.append(DraftStep.where(self.found[place, chosen], self.lookups[place, chosen], drawn))
        return sampler.verify(mx.array(self.target[chosen, : depth + 1]), rows, steps)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_row_that_stops_proposing_is_a_row_at_a_smaller_depth(config):
    sampler = BatchedSampler(config, VOCAB)
    stopped = set()
    for seed in range(4):
        scene = Scene(seed)
        block = scene.run(sampler, list(range(ROWS)))
        for row in range(ROWS):
            depth = int(block.proposed[row])
            shallow = scene.run(sampler, [row], depth)
            assert shallow.proposed[0] == depth
            for name in RESULTS:
                mine, alone = getattr(block, name)[row], getattr(shallow, name)[0]
                # A token that may be penalised deeper in the block is summed elsewhere: the last bit of the softmax's normaliser.
                np.testing.assert_allclose(mine[: alone.size] if alone.ndim else mine, alone, rtol=1e-14, atol=1e-14, err_msg=name)
            assert (block.tokens[row, depth + 1 :] == NO_TOKEN).all()
            assert (block.accept_probabilities[row, depth:] == 0.0).all()
            stopped.add(depth)
    assert stopped == {0, 1, 2, 3}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_neighbours_that_draft_otherwise_do_not_matter_bit_for_bit(config):
    sampler = BatchedSampler(config, VOCAB)
    for seed in range(4):
        scene = Scene(seed)
        together = scene.run(sampler, list(range(ROWS)))
        for chosen in ([4], [8, 1], [2, 7, 0, 3]):
            apart = scene.run(sampler, chosen)
            for name in (*RESULTS, "proposed"):
                np.testing.assert_array_equal(getattr(apart, name), getattr(together, name)[chosen], err_msg=name)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_what_a_lookup_replaces_is_never_read(config):
    """Neither a failed head nor the depth that a row does not reach can be told from the result."""
    sampler = BatchedSampler(config, VOCAB)
    scene = Scene(1)
    clean = scene.run(sampler, list(range(ROWS)))
    scene.head[scene.found.T] = np.nan
    beyond = np.arange(DEPTH + 1) > clean.proposed[:, None]
    scene.target[beyond] = np.inf
    scene.head[beyond[:, 1:] & ~scene.found.T] = np.nan
    block = scene.run(sampler, list(range(ROWS)))
    for name in (*RESULTS, "proposed"):
        np.testing.assert_array_equal(getattr(block, name), getattr(clean, name), err_msg=name)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_row_that_stopped_draws_no_deeper_draft_and_reports_no_failure(config):
    sampler = BatchedSampler(config, VOCAB)
    rows = RowBatch.of([1, 2, 3], [0, 0, 0])
    first = DraftStep.one_hot([5, NO_TOKEN, 7], VOCAB)
    step = sampler.draft(mx.full((3, VOCAB), mx.nan), rows, [first])
    assert step.tokens[1] == NO_TOKEN
    assert step.failed.tolist() == [True, False, True]
    assert step.nan.tolist() == [VOCAB, 0, VOCAB]
    replaced = DraftStep.where([True, False, False], [4, 0, 0], step)
    assert replaced.failed.tolist() == [False, False, True]
    assert replaced.tokens.tolist() == [4, NO_TOKEN, 0]


def test_lookups_outside_the_vocabulary_are_refused_where_they_are_read():
    step = DraftStep.one_hot([1, 2], 10)
    assert DraftStep.where([False, True], [99, 3], step).tokens.tolist() == [1, 3]
    for token in (10, -2):
        with pytest.raises(ValueError, match=rf"\[0, 10\), or -1 for none; received {min(token, -1)} to {max(token, -1)}"):
            DraftStep.where([False, True], [0, token], step)


@pytest.mark.parametrize(
    "config", [SamplerConfig(), SamplerConfig(temperature=0.8, top_p=0.9), SamplerConfig(top_k=6, frequency_penalty=0.6)]
)
def test_mixed_blocks_follow_the_target(config, assert_drawn_from):
    """A third of the rows by the head, a third by lookup, a third without drafts: each emits the same distribution."""
    draws, vocab = 12_000, 20
    logits = np.random.default_rng(8).normal(size=(3, vocab)).astype(np.float32) * 1.5
    keys = np.array([row_key(12, str(record), 0) for record in range(draws)], dtype=np.uint64)
    sampler = BatchedSampler(config, vocab)
    rows = RowBatch.of(keys, np.zeros(draws), token_counts=[{3: 1}] * draws)
    kind = np.arange(draws) % 3
    drawn = sampler.draft(mx.broadcast_to(mx.array(logits[2]), (draws, vocab)), rows)
    step = DraftStep.where(kind > 0, np.where(kind == 1, int(logits[0].argmax()), NO_TOKEN), drawn)
    block = sampler.verify(mx.broadcast_to(mx.array(logits[:2]), (draws, 2, vocab)), rows, [step])
    p = distribution_from_logits(logits[0], config, {3: 1})
    for this in range(3):
        assert_drawn_from((block.tokens[kind == this, :1] == np.arange(vocab)).sum(axis=0), p)
    assert (block.accepted[kind == 2] == 0).all()
    assert block.proposed.sum() == (kind < 2).sum()
