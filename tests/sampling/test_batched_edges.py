"""Decisions nearer to their threshold than the float32 mass can tell are the float64 reference's all the same."""

import mlx.core as mx
import numpy as np
import pytest

from sampling import Purpose, SamplerConfig, acceptance_probability, distribution_from_logits
from sampling import batched as batched_module
from sampling.batched import BatchedSampler, DraftStep
from sampling.candidates import residual
from sampling.rows import RowBatch

ROWS = RowBatch.of([11], [0])


@pytest.fixture
def words(monkeypatch):
    """`words[purpose] = u` fixes what the counter RNG says for that purpose."""
    fixed: dict[Purpose, float] = {}

    def scripted(keys, positions, purpose):
        return np.full(np.broadcast_shapes(np.shape(keys), np.shape(positions)), fixed.get(purpose, 0.5))

    monkeypatch.setattr(batched_module, "uniform", scripted)
    return fixed


@pytest.mark.parametrize("on_device", [False, True], ids=["host-mass", "device-mass"])
def test_acceptance_at_the_edge_of_rounding(on_device, words):
    rng = np.random.default_rng(4)
    sampler = BatchedSampler(SamplerConfig(), 5000, mass_on_device=on_device)
    judged = 0
    for _ in range(40):
        target, head = rng.normal(size=(2, 5000)).astype(np.float32) * 3
        words[Purpose.DRAFT] = words[Purpose.CORRECTION] = float(rng.random())
        step = sampler.draft(mx.array(head)[None], ROWS)
        token = int(step.tokens[0])
        alpha = acceptance_probability(
            distribution_from_logits(target, SamplerConfig()), distribution_from_logits(head, SamplerConfig()), token
        )
        if alpha == 1.0:
            continue
        judged += 1
        for shift in (-1e-8, 1e-8):
            words[Purpose.ACCEPT] = alpha * (1.0 + shift)
            block = sampler.verify(mx.array(np.stack([target, target]))[None], ROWS, [step])
            assert block.accepted[0] == (shift < 0)
    assert judged > 10


@pytest.mark.parametrize("on_device", [False, True], ids=["host-mass", "device-mass"])
def test_a_nucleus_edge_at_the_edge_of_rounding(on_device, words):
    """The last token of the nucleus is drawn by the largest uniform, when the logits fall with the id."""
    rng = np.random.default_rng(5)
    words[Purpose.CORRECTION] = 1.0 - 2.0**-53
    for _ in range(40):
        logits = np.sort(rng.normal(size=700).astype(np.float32) * 3)[::-1].copy()
        run = np.cumsum(distribution_from_logits(logits, SamplerConfig()))
        last = int(rng.integers(1, 300))
        for shift, drawn in ((-1e-8, last), (1e-8, last + 1)):
            config = SamplerConfig(top_p=float(run[last] * (1.0 + shift)))
            assert np.flatnonzero(distribution_from_logits(logits, config))[-1] == drawn
            block = BatchedSampler(config, 700, mass_on_device=on_device).verify(mx.array(logits)[None, None], ROWS)
            assert block.tokens[0, 0] == drawn


@pytest.mark.parametrize(
    "config", [SamplerConfig(), SamplerConfig(top_k=2), SamplerConfig(temperature=0.0)], ids=["plain", "top-k", "greedy"]
)
def test_a_uniform_of_zero_does_not_accept_what_the_target_never_emits(config, words):
    words[Purpose.ACCEPT] = words[Purpose.CORRECTION] = 0.0
    block = BatchedSampler(config, 4).verify(mx.array([[[-mx.inf, 2.0, 1.0, 0.0]] * 2]), ROWS, [DraftStep.one_hot([0], 4)])
    assert block.accepted.tolist() == [0]
    assert block.tokens.tolist() == [[1, -1]]


@pytest.mark.parametrize(
    "config", [SamplerConfig(), SamplerConfig(top_k=2), SamplerConfig(temperature=0.0)], ids=["plain", "top-k", "greedy"]
)
@pytest.mark.parametrize("token", [0, 2])
def test_no_draft_is_accepted_at_a_position_that_is_no_distribution(config, token):
    block = BatchedSampler(config, 4).verify(mx.array([[[mx.nan, 2.0, 1.0, 0.0], [0.0] * 4]]), ROWS, [DraftStep.one_hot([token], 4)])
    assert block.failed.tolist() == [True]
    assert (block.accepted.tolist(), block.tokens.tolist()) == ([0], [[-1, -1]])


@pytest.mark.parametrize("rounding", [0.0, 2.0**-52, -(2.0**-52)])
def test_rounding_between_equal_distributions_is_no_residual(rounding):
    ids, p = np.array([[3, 5, 9]]), np.array([[0.1, 0.2, 0.7]])
    np.testing.assert_array_equal(residual(ids, p, ids, p * (1.0 + rounding)), p)
