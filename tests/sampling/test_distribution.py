import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling import (
    NonFiniteLogitsError,
    SamplerConfig,
    SparseDistribution,
    apply_penalties,
    apply_top_p_top_k,
    distribution_from_logits,
    probability_of,
    sample_from_distribution,
)

LOGIT = st.one_of(st.sampled_from([-math.inf, -2.0, 0.0, 0.5, 1.0]), st.floats(-50.0, 50.0, width=32))
LOGITS = st.lists(LOGIT, min_size=1, max_size=40).filter(lambda values: any(map(math.isfinite, values)))
CONFIGS = st.builds(
    SamplerConfig,
    temperature=st.sampled_from([-1.0, 0.0, 1e-300, 0.1, 0.7, 1.0, 2.5, 1e6]),
    top_p=st.one_of(st.sampled_from([1e-9, 0.5, 0.95, 1.0]), st.floats(0.01, 1.0)),
    top_k=st.integers(0, 45),
    presence_penalty=st.sampled_from([-2.0, 0.0, 0.5]),
    frequency_penalty=st.sampled_from([-0.3, 0.0, 2.0]),
    min_p=st.one_of(st.sampled_from([0.0, 0.0, 1.0]), st.floats(0.0, 1.0)),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.5, 1.3]),
)


class Fixed:
    """A uniform source of one value."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def plain_distribution(
    logits: list[float], config: SamplerConfig, counts: dict[int, int], prompt: list[int], forbidden: list[int]
) -> list[float]:
    """The definition in scalar Python."""
    logits = [logit + config.logit_bias.get(str(token), 0.0) for token, logit in enumerate(logits)]
    for token in {*prompt, *(token for token, count in counts.items() if count > 0)}:
        factor = config.repetition_penalty
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    logits = [
        logit - (config.frequency_penalty * counts.get(token, 0) + config.presence_penalty * (counts.get(token, 0) > 0))
        for token, logit in enumerate(logits)
    ]
    logits = [-math.inf if token in forbidden else logit for token, logit in enumerate(logits)]
    top = max(logits)
    if config.temperature <= 0.0:
        return [1.0 if token == logits.index(top) else 0.0 for token in range(len(logits))]
    weights = [math.exp((logit - top) / config.temperature) for logit in logits]
    total = math.fsum(weights)
    ranked = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    kept, mass = [], 0.0
    for token in ranked:
        kept.append(token)
        mass += weights[token] / total
        if config.top_p < 1.0 and mass >= config.top_p:
            break
    if config.top_k:
        kept = kept[: config.top_k]
    kept = [token for token in kept if weights[token] >= config.min_p]
    kept_total = math.fsum(weights[token] for token in kept)
    return [weights[token] / kept_total if token in kept else 0.0 for token in range(len(weights))]


@settings(deadline=None, max_examples=400)
@given(LOGITS, CONFIGS, st.data())
def test_a_config_makes_the_distribution_that_its_definition_says(logits, config, data):
    counts = data.draw(st.dictionaries(st.integers(0, len(logits) - 1), st.integers(0, 4), max_size=5))
    tokens = st.lists(st.integers(0, len(logits) - 1), max_size=4)
    prompt, forbidden = data.draw(tokens), data.draw(tokens)
    biased = data.draw(st.dictionaries(st.integers(0, len(logits) - 1), st.sampled_from([-100.0, -0.5, 3.0]), max_size=3))
    config = replace(config, logit_bias=biased)
    given_logits = np.array(logits, dtype=np.float32)
    if not np.isfinite(np.delete(given_logits, forbidden)).any():
        with pytest.raises(NonFiniteLogitsError):
            distribution_from_logits(given_logits, config, counts, prompt_ids=prompt, forbidden=forbidden)
        return
    before = given_logits.copy()
    p = distribution_from_logits(given_logits, config, counts, prompt_ids=prompt, forbidden=forbidden)
    np.testing.assert_array_equal(given_logits, before)
    assert p.dtype == np.float64
    assert abs(p.sum() - 1.0) < 1e-12
    assert (p >= 0.0).all()
    expected = plain_distribution(given_logits.astype(np.float64).tolist(), config, counts, prompt, forbidden)
    # A nucleus whose edge is nearer than rounding may hold one token more or less; such an edge is not a law.
    if (p > 0).tolist() == (np.array(expected) > 0).tolist() or config.top_p == 1.0:
        np.testing.assert_allclose(p, expected, rtol=1e-11, atol=1e-300)
    else:
        assert abs(int((p > 0).sum()) - int((np.array(expected) > 0).sum())) == 1

    vector = np.zeros(len(logits), dtype=np.int64)
    vector[list(counts)] = list(counts.values())
    np.testing.assert_array_equal(distribution_from_logits(logits, config, vector), distribution_from_logits(logits, config, counts))


@settings(deadline=None)
@given(LOGITS, st.floats(0.01, 1.0), st.integers(0, 45))
def test_kept_set(logits, top_p, top_k):
    full = distribution_from_logits(logits, SamplerConfig())
    before = full.copy()
    filtered = apply_top_p_top_k(full, top_p, top_k)
    np.testing.assert_array_equal(full, before)
    kept = np.flatnonzero(filtered)
    assert len(kept) >= 1
    if top_k:
        assert len(kept) <= top_k
    if (top_p, top_k) == (1.0, 0):
        assert filtered is full
    dropped = np.setdiff1d(np.flatnonzero(full), kept)
    if len(dropped):
        # Nothing dropped outranks anything kept: a larger probability, or the same one at a lower id.
        least = min(kept, key=lambda token: (full[token], -token))
        assert all((full[token], -token) < (full[least], -least) for token in dropped)
    if not top_k and top_p < 1.0:
        assert full[kept].sum() >= top_p * (1.0 - 1e-12)
        assert full[kept].sum() - full[kept].min() < top_p * (1.0 + 1e-12)
    sparse = apply_top_p_top_k(SparseDistribution.from_dense(full), top_p, top_k)
    np.testing.assert_array_equal(sparse.dense(), filtered)


def test_the_nucleus_is_measured_before_top_k():
    p = np.array([0.4, 0.3, 0.2, 0.1])
    np.testing.assert_allclose(apply_top_p_top_k(p, 0.6, 3), [4 / 7, 3 / 7, 0, 0])  # 0.4 + 0.3 of the whole reach 0.6
    np.testing.assert_allclose(apply_top_p_top_k(p, 0.6, 1), [1, 0, 0, 0])


def test_ties_go_to_the_lowest_id():
    np.testing.assert_array_equal(apply_top_p_top_k(np.full(4, 0.25), 0.5), [0.5, 0.5, 0, 0])
    np.testing.assert_array_equal(apply_top_p_top_k(np.full(4, 0.25), 1.0, 3), [1 / 3, 1 / 3, 1 / 3, 0])
    np.testing.assert_array_equal(distribution_from_logits([1, 3, 3], SamplerConfig(temperature=0)), [0, 1, 0])


def test_penalties_are_openais():
    config = SamplerConfig(presence_penalty=0.5, frequency_penalty=0.25)
    logits = np.array([1.0, 1.0, 1.0, -np.inf])
    np.testing.assert_array_equal(apply_penalties(logits, config, {0: 3, 1: 1, 2: 0, 3: 2}), [-0.25, 0.25, 1.0, -np.inf])
    np.testing.assert_array_equal(logits, [1.0, 1.0, 1.0, -np.inf])


def test_penalties_that_change_nothing_return_their_input():
    logits = np.array([1.0, 2.0], dtype=np.float32)
    assert apply_penalties(logits, SamplerConfig(), {0: 1}) is logits
    penalising = SamplerConfig(presence_penalty=1.0)
    assert apply_penalties(logits, penalising, None) is logits
    assert apply_penalties(logits, penalising, {}) is logits
    assert apply_penalties(logits, penalising, np.zeros(2, dtype=np.int64)) is logits


@pytest.mark.parametrize("counts", [{2: 1}, {-1: 1}, {0: -1}, np.array([1, 0, 0]), np.array([-1, 0])])
def test_counts_that_do_not_fit_are_refused(counts):
    with pytest.raises(ValueError, match="token_counts"):
        apply_penalties([0.0, 1.0], SamplerConfig(frequency_penalty=1.0), counts)


@pytest.mark.parametrize(
    ("logits", "nan", "inf"),
    [([0.0, math.nan, math.nan], 2, 0), ([math.inf, 0.0], 0, 1), ([-math.inf, -math.inf], 0, 0), ([math.nan, math.inf], 1, 1)],
)
@pytest.mark.parametrize("config", [SamplerConfig(), SamplerConfig(temperature=0), SamplerConfig(presence_penalty=1.0)])
def test_non_finite_logits_never_become_a_distribution(logits, nan, inf, config):
    with pytest.raises(NonFiniteLogitsError) as caught:
        distribution_from_logits(logits, config, {0: 1})
    assert (caught.value.nan, caught.value.inf, caught.value.size) == (nan, inf, len(logits))


def test_minus_infinity_is_a_mask():
    p = distribution_from_logits([0.0, -math.inf, 0.0], SamplerConfig(top_k=3))
    np.testing.assert_array_equal(p, [0.5, 0.0, 0.5])


@pytest.mark.parametrize("logits", [[], [[1.0, 2.0]], 3.0])
def test_only_a_vector_of_logits_is_accepted(logits):
    with pytest.raises(ValueError, match="vector"):
        distribution_from_logits(logits, SamplerConfig())


@settings(deadline=None)
@given(LOGITS, CONFIGS, st.floats(0.0, 1.0, exclude_max=True))
def test_sampling_inverts_the_cdf_and_never_draws_a_zero(logits, config, u):
    p = distribution_from_logits(logits, config)
    token = sample_from_distribution(p, Fixed(u))
    assert p[token] > 0.0
    assert p[:token].sum() <= u + 1e-12
    assert p[: token + 1].sum() >= u - 1e-12
    assert sample_from_distribution(SparseDistribution.from_dense(p), Fixed(u)) == token


def test_the_ends_of_the_unit_interval():
    p = np.array([0.0, 0.3, 0.0, 0.7, 0.0])
    assert sample_from_distribution(p, Fixed(0.0)) == 1
    assert sample_from_distribution(p, Fixed(1.0 - 2.0**-53)) == 3
    assert sample_from_distribution(SparseDistribution(np.array([1, 2, 3]), np.array([0.3, 0.0, 0.7]), 5), Fixed(0.3)) == 3


@pytest.mark.parametrize(
    ("ids", "probabilities", "said"),
    [
        ([1, 1], [0.5, 0.5], "ascending"),
        ([2, 1], [0.5, 0.5], "ascending"),
        ([-1, 1], [0.5, 0.5], "ascending"),
        ([1, 5], [0.5, 0.5], "ascending"),
        ([], [], "non-empty"),
        ([1, 2], [1.0], "shapes"),
        ([1, 2], [1.5, -0.5], ">= 0"),
        ([1, 2], [1.0, math.nan], ">= 0"),
    ],
)
def test_sparse_distributions_check_themselves(ids, probabilities, said):
    with pytest.raises(ValueError, match=said):
        SparseDistribution(np.array(ids, dtype=np.int64), np.array(probabilities), 5)


def test_probability_of_one_token():
    sparse = SparseDistribution(np.array([1, 3]), np.array([0.25, 0.75]), 5)
    for distribution in (sparse, sparse.dense()):
        assert [probability_of(distribution, token) for token in range(5)] == [0.0, 0.25, 0.0, 0.75, 0.0]
        for outside in (-1, 5):
            with pytest.raises(ValueError, match=r"\[0, 5\)"):
                probability_of(distribution, outside)


def test_the_reference_needs_no_mlx():
    said = subprocess.run(
        [sys.executable, "-c", "import sys, sampling; print('mlx' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "False"
