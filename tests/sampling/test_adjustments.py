"""Min-p, repetition penalty, logit bias and min-tokens, where the grid against the reference does not look."""

from collections import Counter

import mlx.core as mx
import numpy as np
import pytest

from sampling import NonFiniteLogitsError, SamplerConfig, apply_penalties, apply_top_p_top_k, distribution_from_logits
from sampling.batched import BatchedSampler, DraftStep
from sampling.rows import NO_TOKEN, RowBatch
from sampling.scoring import score_tokens
from sampling.shared_noise import SharedNoiseSampler

ROWS = RowBatch.of([11], [0])
COUPLINGS = [BatchedSampler, SharedNoiseSampler]


def test_min_p_is_relative_to_the_most_probable_token_before_the_other_filters():
    p = np.array([0.4, 0.2, 0.1999, 0.2001, 0.0])
    np.testing.assert_allclose(apply_top_p_top_k(p, min_p=0.5), np.array([0.4, 0.2, 0.0, 0.2001, 0.0]) / 0.8001)
    np.testing.assert_allclose(apply_top_p_top_k(p, top_k=2, min_p=0.5), np.array([0.4, 0.0, 0.0, 0.2001, 0.0]) / 0.6001)
    np.testing.assert_array_equal(apply_top_p_top_k(p, min_p=1.0), [1, 0, 0, 0, 0])
    assert apply_top_p_top_k(p, min_p=0.0) is p


def test_the_repetition_penalty_is_ctrls_and_comes_between_bias_and_counts():
    config = SamplerConfig(frequency_penalty=0.5, repetition_penalty=2.0, logit_bias={"0": 3.0, "4": 1.0})
    logits = np.array([1.0, -1.0, 4.0, 4.0, 1.0, -np.inf])
    np.testing.assert_array_equal(apply_penalties(logits, config, {0: 2, 3: 0, 5: 1}, [1, 2, 2]), [1.0, -2.0, 2.0, 4.0, 2.0, -np.inf])
    np.testing.assert_array_equal(apply_penalties(logits, config, None), [4.0, -1.0, 4.0, 4.0, 2.0, -np.inf])
    np.testing.assert_array_equal(logits, [1.0, -1.0, 4.0, 4.0, 1.0, -np.inf])
    only_prompt = SamplerConfig(presence_penalty=1.0)
    assert apply_penalties(logits, only_prompt, None, [1, 2]) is logits


@pytest.mark.parametrize("on_device", [False, True], ids=["host-mass", "device-mass"])
def test_a_min_p_edge_at_the_edge_of_rounding(on_device, monkeypatch):
    """The last kept token is drawn by the largest uniform, when the logits fall with the id."""
    monkeypatch.setattr("sampling.batched.uniform", lambda keys, *_: np.full(np.shape(keys), 1.0 - 2.0**-53))
    rng = np.random.default_rng(5)
    for _ in range(30):
        logits = np.sort(rng.normal(size=700).astype(np.float32) * 3)[::-1].copy()
        last = int(rng.integers(1, 300))
        weight = np.exp(logits.astype(np.float64) - np.float64(logits[0]))[last]
        for factor, kept in ((1.0, last), (1.0 + 1e-15, last), (1.0 + 1e-13, last - 1), (1.0 - 1e-13, last)):
            config = SamplerConfig(min_p=float(weight * factor))
            reference = np.flatnonzero(distribution_from_logits(logits, config))[-1]
            assert factor == 1.0 + 1e-15 or reference == kept
            block = BatchedSampler(config, 700, mass_on_device=on_device).verify(mx.array(logits)[None, None], ROWS)
            assert block.tokens[0, 0] == reference


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("config", [{}, {"top_p": 0.9}, {"top_k": 3}, {"temperature": 0.0}], ids=str)
def test_no_completion_ends_before_its_min_tokens(coupling, config):
    """The end token has nearly all of p, at every position of the block."""
    vocab, end, count = 50, 7, 200
    sampler = coupling(SamplerConfig(**config, min_tokens=5), vocab, end_ids=[end, 30])
    rows = RowBatch.of(np.arange(count), np.arange(count) % 7)
    logits = np.random.default_rng(3).normal(size=(count, 4, vocab)).astype(np.float32)
    logits[..., end] = 20.0
    steps: list[DraftStep] = []
    for place in range(3):
        steps.append(sampler.draft(mx.array(logits[:, place]), rows, steps))
    block = sampler.verify(mx.array(logits), rows, steps)
    place = np.arange(count)[:, None] % 7 + np.arange(4)
    emitted = block.tokens != NO_TOKEN
    early = place < 5
    assert not np.isin(block.tokens[emitted & early], [end, 30]).any()
    assert (block.tokens[emitted & ~early] == end).all()
    assert (emitted & early)[:, 1:].any()
    assert (emitted & ~early)[:, 1:].any()
    # A draft of it can not be accepted either.
    lookup = sampler.verify(mx.array(logits[:, :2]), rows, [DraftStep.one_hot(np.full(count, end), vocab)])
    np.testing.assert_array_equal(lookup.accepted, ~early[:, 0])


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("config", [{}, {"top_p": 0.9}, {"temperature": 0.0}], ids=str)
def test_a_position_without_an_allowed_number_fails_its_row_alone(coupling, config):
    sampler = coupling(SamplerConfig(**config, min_tokens=1), 6, end_ids=[2, 4])
    logits = np.zeros((4, 1, 6), dtype=np.float32)
    logits[1, 0, [0, 1, 3, 5]] = -np.inf
    logits[2, 0, 2] = np.nan
    block = sampler.verify(mx.array(logits), RowBatch.of([1, 2, 3, 4], [0, 0, 0, 1]))
    assert block.failed.tolist() == [False, True, True, False]
    assert block.nan.tolist() == [0, 0, 1, 0]
    with pytest.raises(NonFiniteLogitsError):
        distribution_from_logits(logits[1, 0], sampler.config, forbidden=[2, 4])


@pytest.mark.parametrize("bias", [-100.0, 100.0])
def test_a_bias_of_100_bans_or_forces_a_token(bias):
    count = 500
    logits = np.random.default_rng(6).normal(size=(count, 1, 300)).astype(np.float32) * 4
    logits[:, 0, 5] = 9.0
    block = BatchedSampler(SamplerConfig(logit_bias={"5": bias}), 300).verify(mx.array(logits), RowBatch.of(np.arange(count), [0] * count))
    assert (block.tokens == 5).all() if bias > 0 else not (block.tokens == 5).any()


CONFIGS = {
    "min-p": SamplerConfig(min_p=0.1),
    "repetition": SamplerConfig(repetition_penalty=1.5),
    "bias": SamplerConfig(temperature=1.2, logit_bias={"3": 2.0, "9": -1.0}),
    "min-tokens": SamplerConfig(top_p=0.95, min_tokens=2),
    "all": SamplerConfig(0.9, 0.98, 15, 0.3, 0.2, min_p=0.02, repetition_penalty=1.2, logit_bias={"3": 1.0}, min_tokens=1),
}


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_blocks_follow_the_target(coupling, config, assert_drawn_from):
    """Place i of a block, given that it was reached, is distributed as the target at i is after the drafts before it."""
    draws, vocab, ends, prompt = 8_000, 20, [1, 12], [2, 2, 6]
    logits = np.random.default_rng(5).normal(size=(3, vocab)).astype(np.float32) * 1.5
    keys = np.random.default_rng(7).integers(0, 2**64, size=draws, dtype=np.uint64)
    sampler = coupling(config, vocab, end_ids=ends)
    rows = RowBatch.of(keys, np.zeros(draws), prompt_ids=[prompt] * draws)
    step = sampler.draft(mx.broadcast_to(mx.array(logits[2]), (draws, vocab)), rows)
    block = sampler.verify(mx.broadcast_to(mx.array(logits[:2]), (draws, 2, vocab)), rows, [step])

    def target(place: int, counts: dict[int, int]) -> np.ndarray:
        return distribution_from_logits(
            logits[place], config, counts, prompt_ids=prompt, forbidden=ends if place < config.min_tokens else []
        )

    cells = np.arange(vocab)
    first = target(0, {})
    assert_drawn_from((block.tokens[:, :1] == cells).sum(axis=0), first)
    for token in np.argsort(-first)[:2].tolist():
        second = block.tokens[(block.accepted == 1) & (block.tokens[:, 0] == token), 1:]
        assert_drawn_from((second == cells).sum(axis=0), target(1, {token: 1}))


def test_scores_know_the_prompt_the_place_and_what_is_forbidden():
    config = SamplerConfig(repetition_penalty=1.5, logit_bias={"0": 1.0}, min_tokens=4)
    sampler = BatchedSampler(config, 8, end_ids=[3])
    logits = np.random.default_rng(2).normal(size=(3, 8)).astype(np.float32)
    scores = score_tokens(sampler, mx.array(logits), np.array([5, 3, 3]), Counter({1: 2}), prompt_ids=[6])
    wanted = [
        distribution_from_logits(logits[place], config, counts, prompt_ids=[6], forbidden=[3] if place < 2 else [])[token]
        for place, (token, counts) in enumerate([(5, {1: 2}), (3, {1: 2, 5: 1}), (3, {1: 2, 5: 1, 3: 1})])
    ]
    np.testing.assert_allclose(np.exp(scores.logprobs), wanted, rtol=1e-12)
    assert scores.shortfall.tolist() == [0.0, np.inf, 0.0]


def test_what_is_missing_or_does_not_fit_is_named():
    repeating = BatchedSampler(SamplerConfig(repetition_penalty=1.1), 4)
    with pytest.raises(ValueError, match=r"prompt_ids must be given for a repetition penalty of 1.1; received None"):
        repeating.verify(mx.zeros((1, 1, 4)), ROWS)
    with pytest.raises(ValueError, match=r"tokens of rows must be in \[0, 4\); received 9"):
        repeating.verify(mx.zeros((1, 1, 4)), RowBatch.of([1], [0], prompt_ids=[[9]]))
    with pytest.raises(ValueError, match="prompt_ids must be given for each of 1 rows; received 2"):
        RowBatch.of([1], [0], prompt_ids=[[], []])
    with pytest.raises(ValueError, match="end_ids must be given for min_tokens of 3; received None"):
        BatchedSampler(SamplerConfig(min_tokens=3), 4)
    with pytest.raises(ValueError, match=r"end_ids must hold tokens in \[0, 4\); received 4 to 4"):
        BatchedSampler(SamplerConfig(), 4, end_ids=[4])
    with pytest.raises(ValueError, match=r"logit_bias must hold tokens in \[0, 4\); received 1 to 7"):
        BatchedSampler(SamplerConfig(logit_bias={"1": 1.0, "7": 1.0}), 4)
    for bad in ({"prompt_ids": [4]}, {"forbidden": [-1]}):
        with pytest.raises(ValueError, match=rf"{next(iter(bad))} must be in \[0, 4\)|in \[0, 4\); received 4"):
            distribution_from_logits([0.0] * 4, SamplerConfig(repetition_penalty=1.1), **bad)


def test_the_words_of_a_position_do_not_depend_on_the_config():
    """What a filter or penalty changes is p alone: where it changes nothing, the token is the same."""
    logits = mx.array(np.random.default_rng(1).normal(size=(40, 1, 500)).astype(np.float32))
    rows = RowBatch.of(np.arange(40), np.arange(40), prompt_ids=[[]] * 40)
    for coupling in COUPLINGS:
        plain = coupling(SamplerConfig(), 500).verify(logits, rows)
        idle = SamplerConfig(repetition_penalty=1.5, logit_bias={"4": 0.0}, min_tokens=0, presence_penalty=1.0)
        np.testing.assert_array_equal(coupling(idle, 500).verify(logits, rows).tokens, plain.tokens)
