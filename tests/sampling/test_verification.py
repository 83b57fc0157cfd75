"""Judging one token: the oracle, and the cases where the sources disagree."""

import numpy as np
import pytest

from sampling import (
    SamplerConfig,
    SparseDistribution,
    acceptance_probability,
    distribution_from_logits,
    residual_distribution,
    speculative_output_marginal,
    verify_one_token,
)

FORMS = {"dense": lambda p: p, "sparse": SparseDistribution.from_dense}


class Scripted:
    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def random(self) -> float:
        return self.values.pop(0)


def random_config(rng: np.random.Generator) -> SamplerConfig:
    return SamplerConfig(
        temperature=float(rng.choice([0.0, 0.3, 1.0, 2.0])),
        top_p=float(rng.choice([0.3, 0.9, 1.0])),
        top_k=int(rng.choice([0, 1, 4, 10])),
        presence_penalty=float(rng.choice([0.0, 1.0])),
        frequency_penalty=float(rng.choice([0.0, -0.5])),
    )


def random_distribution(rng: np.random.Generator, vocab: int) -> np.ndarray:
    logits = np.round(rng.normal(size=vocab) * rng.choice([0.1, 1.0, 8.0]), int(rng.integers(0, 4)))
    logits[1:][rng.random(vocab - 1) < rng.choice([0.0, 0.5])] = -np.inf
    return distribution_from_logits(logits, random_config(rng), {int(rng.integers(vocab)): 2})


@pytest.mark.parametrize("p_form", FORMS)
@pytest.mark.parametrize("q_form", FORMS)
def test_the_marginal_is_the_target(p_form, q_form):
    rng = np.random.default_rng(11)
    for _ in range(750):
        vocab = int(rng.integers(1, 30))
        p, q = random_distribution(rng, vocab), random_distribution(rng, vocab)
        marginal = speculative_output_marginal(FORMS[p_form](p), FORMS[q_form](q))
        np.testing.assert_allclose(marginal, p, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("p_form", FORMS)
@pytest.mark.parametrize("q_form", FORMS)
def test_the_marginal_is_the_target_when_q_times_mask_is_what_was_drawn(p_form, q_form):
    rng = np.random.default_rng(12)
    for _ in range(500):
        vocab = int(rng.integers(2, 30))
        p, q = random_distribution(rng, vocab), random_distribution(rng, vocab)
        mask = rng.random(vocab) < 0.5
        mask[np.argmax(q)] = True
        drawn = q * mask / (q * mask).sum()
        marginal = speculative_output_marginal(FORMS[p_form](p), FORMS[q_form](drawn), mask)
        np.testing.assert_allclose(marginal, p, rtol=0.0, atol=1e-12)


def test_a_mask_over_a_q_that_was_not_renormalised_is_not_exact():
    p, q, mask = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3]), [1, 1, 0]
    assert abs(speculative_output_marginal(p, q, mask) - p).max() > 0.01


def test_the_residual_formula_with_mask():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    np.testing.assert_allclose(residual_distribution(p, q), [1.0, 0.0, 0.0])
    np.testing.assert_allclose(residual_distribution(p, q, [1, 1, 0]), [0.6, 0.0, 0.4])
    np.testing.assert_allclose(
        residual_distribution(SparseDistribution.from_dense(p), q, np.array([True, True, False])).dense(), [0.6, 0.0, 0.4]
    )
    with pytest.raises(ValueError, match="mask"):
        residual_distribution(p, q, [1, 1])


@pytest.mark.parametrize("p_form", FORMS)
@pytest.mark.parametrize("q_form", FORMS)
def test_no_mass_left_gives_the_target(p_form, q_form):
    p = np.array([0.1, 0.2, 0.7])
    target = FORMS[p_form](p)
    for rounding in (0.0, 2.0**-52, -(2.0**-52)):
        assert residual_distribution(target, FORMS[q_form](p * (1.0 + rounding))) is target


def test_inputs_are_not_mutated():
    rng = np.random.default_rng(3)
    p, q = random_distribution(rng, 12), random_distribution(rng, 12)
    copies = p.copy(), q.copy()
    residual_distribution(p, q)
    verify_one_token(p, q, int(np.argmax(q)), Scripted(0.99, 0.5))
    speculative_output_marginal(p, q)
    np.testing.assert_array_equal((p, q), copies)


@pytest.mark.parametrize("target", [0.0, 0.4])
def test_a_token_that_q_cannot_draw_is_rejected(target):
    p, q = np.array([target, 1.0 - target]), np.array([0.0, 1.0])
    assert acceptance_probability(p, q, 0) == 0.0
    decision = verify_one_token(p, q, 0, Scripted(0.0, 0.999))
    assert not decision.accepted
    assert p[decision.token_id] > 0.0


def test_acceptance_is_strict():
    p, q = np.array([0.25, 0.75]), np.array([0.5, 0.5])
    assert acceptance_probability(p, q, 0) == 0.5
    assert verify_one_token(p, q, 0, Scripted(np.nextafter(0.5, 0.0))).accepted
    rejected = verify_one_token(p, q, 0, Scripted(0.5, 0.0))
    assert (rejected.accepted, rejected.token_id, rejected.accept_probability) == (False, 1, 0.5)
    zero = verify_one_token(np.array([0.0, 1.0]), q, 0, Scripted(0.0, 0.0))
    assert (zero.accepted, zero.token_id) == (False, 1)
    assert verify_one_token(p, q, 1, Scripted(1.0 - 2.0**-53)).accepted


def test_tiny_probabilities_do_not_overflow():
    assert acceptance_probability(np.array([1.0, 0.0]), np.array([5e-324, 1.0]), 0) == 1.0
    assert acceptance_probability(np.array([5e-324, 1.0]), np.array([1.0, 0.0]), 0) == 5e-324


@pytest.mark.parametrize("judge", [lambda p, q: acceptance_probability(p, q, 0), residual_distribution, speculative_output_marginal])
def test_vocabularies_must_agree(judge):
    with pytest.raises(ValueError, match="one vocabulary"):
        judge(np.array([1.0]), SparseDistribution(np.array([0]), np.array([1.0]), 2))


def test_tokens_outside_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match="token"):
        acceptance_probability(np.array([1.0]), np.array([1.0]), 1)
