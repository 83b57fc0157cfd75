"""Rows of a batch do not touch each other; bad rows are named and the rest go on."""

import mlx.core as mx
import numpy as np
import pytest

from sampling import SamplerConfig
from sampling.batched import BatchedSampler, BlockResult, DraftStep
from sampling.rows import RowBatch
from sampling.shared_noise import SharedNoiseSampler

VOCAB, DEPTH, ROWS = 3000, 2, 6
CONFIGS = {
    "plain": SamplerConfig(),
    "nucleus": SamplerConfig(temperature=0.9, top_p=0.97),
    "top-k": SamplerConfig(temperature=0.8, top_k=7),
    "penalties": SamplerConfig(top_p=0.9, presence_penalty=1.0, frequency_penalty=0.5),
    "plain-penalties": SamplerConfig(frequency_penalty=-0.5),
    "greedy": SamplerConfig(temperature=0.0),
}
ADJUSTED = {
    "repetition": SamplerConfig(repetition_penalty=1.3),
    "min-tokens": SamplerConfig(min_tokens=50),
    "everything": SamplerConfig(0.9, 0.99, 0, 0.5, 0.5, min_p=1e-3, repetition_penalty=0.8, logit_bias={"7": 2.0}, min_tokens=50),
}


def make_batch(seed: int) -> tuple[np.ndarray, np.ndarray, RowBatch]:
    rng = np.random.default_rng(seed)
    target = (rng.normal(size=(ROWS, DEPTH + 1, VOCAB)) * rng.choice([1.0, 4.0], size=(ROWS, 1, 1))).astype(np.float32)
    head = target[:, :DEPTH] + rng.normal(size=(ROWS, DEPTH, VOCAB)).astype(np.float32) * 0.5
    counts = [dict.fromkeys(rng.integers(0, VOCAB, size=5 * row).tolist(), 2) for row in range(ROWS)]
    keys = rng.integers(0, 2**64, size=ROWS, dtype=np.uint64)
    prompts = [rng.integers(0, VOCAB, size=3 * row).tolist() for row in range(ROWS)]
    return target, head, RowBatch.of(keys, rng.integers(0, 99, size=ROWS), token_counts=counts, prompt_ids=prompts)


def pick(batch: RowBatch, chosen: list[int]) -> RowBatch:
    held = [
        {int(token): int(count) for token, count in zip(batch.count_ids[row], batch.counts[row], strict=True) if token >= 0}
        for row in chosen
    ]
    prompts = [[token for token in batch.prompt_ids[row].tolist() if token >= 0] for row in chosen]
    return RowBatch.of(batch.keys[chosen], batch.positions[chosen], batch.active[chosen], held, prompts)


def run(sampler: BatchedSampler, target: np.ndarray, head: np.ndarray, rows: RowBatch) -> tuple[list[DraftStep], BlockResult]:
    steps: list[DraftStep] = []
    for place in range(head.shape[1]):
        steps.append(sampler.draft(mx.array(head[:, place]), rows, steps))
    return steps, sampler.verify(mx.array(target), rows, steps)


def assert_rows_equal(block: BlockResult, rows: list[int], other: BlockResult, others: list[int]) -> None:
    for name in ("accepted", "tokens", "accept_probabilities", "logprobs", "failed", "nan", "inf"):
        np.testing.assert_array_equal(getattr(block, name)[rows], getattr(other, name)[others], err_msg=name)


@pytest.mark.parametrize("config", {**CONFIGS, **ADJUSTED}.values(), ids={**CONFIGS, **ADJUSTED})
@pytest.mark.parametrize("coupling", [BatchedSampler, SharedNoiseSampler])
def test_neighbours_do_not_matter_bit_for_bit(config, coupling):
    sampler = coupling(config, VOCAB, end_ids=[4, 9, 77])
    for seed in range(5):
        target, head, rows = make_batch(seed)
        _, together = run(sampler, target, head, rows)
        for chosen in ([3], [5, 0], [4, 2, 1, 0, 3, 5]):
            _, apart = run(sampler, target[chosen], head[chosen], pick(rows, chosen))
            assert_rows_equal(apart, list(range(len(chosen))), together, chosen)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_non_finite_row_is_named_and_its_neighbours_go_on(config, value):
    sampler = BatchedSampler(config, VOCAB)
    target, head, rows = make_batch(1)
    _, clean = run(sampler, target, head, rows)
    broken = target.copy()
    broken[2, 0, [5, 17, VOCAB - 1]] = value
    broken[4, 0] = -np.inf
    _, block = run(sampler, broken, head, rows)
    assert block.failed.tolist() == [False, False, True, False, True, False]
    assert (block.nan[2], block.inf[2]) == ((3, 0) if np.isnan(value) else (0, 3))
    assert (block.nan[4], block.inf[4]) == (0, 0)
    assert (block.tokens[2] == -1).all()
    assert block.accept_probabilities[2].sum() == block.logprobs[2].sum() == 0.0
    others = [0, 1, 3, 5]
    assert_rows_equal(block, others, clean, others)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_position_behind_a_rejection_is_never_looked_at(config):
    sampler = BatchedSampler(config, VOCAB)
    seen = set()
    for seed in range(6):
        target, head, rows = make_batch(seed)
        _, clean = run(sampler, target, head, rows)
        broken = target.copy()
        broken[:, DEPTH, 7] = np.nan
        _, block = run(sampler, broken, head, rows)
        np.testing.assert_array_equal(block.failed, clean.accepted == DEPTH)
        unharmed = np.flatnonzero(clean.accepted < DEPTH).tolist()
        assert_rows_equal(block, unharmed, clean, unharmed)
        seen.update(block.failed.tolist())
    assert seen == {True, False}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_non_finite_penalised_token_is_found(config):
    sampler = BatchedSampler(config, VOCAB)
    target, head, rows = make_batch(1)
    token = int(rows.count_ids[3, 0])
    target[3, 0, token] = np.nan
    _, block = run(sampler, target, head, rows)
    assert block.failed.tolist() == [row == 3 for row in range(ROWS)]
    assert block.nan[3] == 1


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_failed_draft_is_named_and_verifies_exactly_all_the_same(config):
    sampler = BatchedSampler(config, VOCAB)
    target, head, rows = make_batch(2)
    head[1, 0, :2] = np.nan
    steps, block = run(sampler, target, head, rows)
    assert steps[0].failed.tolist() == [row == 1 for row in range(ROWS)]
    assert steps[0].nan[1] == 2
    assert not block.failed.any()
    lookup = DraftStep.one_hot(steps[0].tokens, VOCAB)
    assert lookup.tokens[1] == 0
    again = sampler.verify(mx.array(target[:, :2]), rows, [lookup])
    assert (again.tokens[1, 0], again.accept_probabilities[1, 0]) == (block.tokens[1, 0], block.accept_probabilities[1, 0])


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_inactive_rows_may_hold_anything(config):
    sampler = BatchedSampler(config, VOCAB)
    target, head, rows = make_batch(3)
    _, clean = run(sampler, target, head, rows)
    target[[0, 4]], head[[0, 4]] = np.nan, np.inf
    active = np.array([False, True, True, True, False, True])
    positions = np.where(active, rows.positions, -1)
    held = pick(rows, list(range(ROWS)))
    counts = [
        dict(zip(ids[ids >= 0].tolist(), values[ids >= 0].tolist(), strict=True))
        for ids, values in zip(held.count_ids, held.counts, strict=True)
    ]
    steps, block = run(sampler, target, head, RowBatch.of(rows.keys, positions, active, counts))
    assert not block.failed.any()
    assert not any(step.failed.any() for step in steps)
    others = [1, 2, 3, 5]
    assert_rows_equal(block, others, clean, others)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_half_precision_logits_count_as_the_float32_numbers_they_are(config, dtype):
    sampler = BatchedSampler(config, VOCAB)
    target, _, rows = make_batch(4)
    half = mx.array(target).astype(dtype)
    assert_rows_equal(
        sampler.verify(half[:, :1], rows), list(range(ROWS)), sampler.verify(half[:, :1].astype(mx.float32), rows), list(range(ROWS))
    )


@pytest.mark.parametrize("vocab", [1, 2, 127, 129, 131, 257, 1021])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_vocabularies_that_are_no_whole_number_of_blocks(config, vocab):
    logits = np.full((1, 1, vocab), -np.inf, dtype=np.float32)
    logits[..., -1] = 0.0
    block = BatchedSampler(config, vocab).verify(mx.array(logits), RowBatch.of([9], [0]))
    assert block.tokens.tolist() == [[vocab - 1]]
    assert block.logprobs.tolist() == [[0.0]]


def test_greedy_is_the_argmax_lowest_id_on_ties():
    logits = np.zeros((3, 1, 400), dtype=np.float32)
    logits[1, 0, [399, 140, 130]] = 2.5
    logits[2, 0, 0] = -0.0
    block = BatchedSampler(SamplerConfig(temperature=0.0), 400).verify(mx.array(logits), RowBatch.of([1, 2, 3], [0, 0, 0]))
    assert block.tokens[:, 0].tolist() == [0, 130, 0]


def test_shapes_and_ids_that_do_not_fit_are_refused():
    config, rows = SamplerConfig(), RowBatch.of([1], [0])
    sampler = BatchedSampler(config, 10)
    with pytest.raises(ValueError, match=r"\(1, 10\)"):
        sampler.draft(mx.zeros((1, 9)), rows)
    with pytest.raises(ValueError, match=r"\(1, 1, 10\)"):
        sampler.verify(mx.zeros((1, 2, 10)), rows)
    for ids in ([], [3, 2], [1, 1], [-1, 2], [0, 10]):
        with pytest.raises(ValueError, match="draft_ids"):
            BatchedSampler(config, 10, np.array(ids, dtype=np.int64))
    with pytest.raises(ValueError, match="vocab_size"):
        BatchedSampler(config, 0)
    with pytest.raises(ValueError, match="tokens"):
        DraftStep.one_hot([10], 10)
    with pytest.raises(ValueError, match="agree on B"):
        RowBatch.of([1, 2], [0])
