"""Expected acceptance against the float64 distributions that decoding itself is judged by."""

import numpy as np
import pytest

from sampling.distribution import distribution_from_logits
from schemas.sampler import SamplerConfig
from worker.distill.batch import Batch
from worker.distill.draft_vocabulary import draft_ids, ranked_ids
from worker.distill.evaluator import Evaluator, mean_and_error
from worker.distill.new_head import new_head
from worker.distill.unrolled_head import unroll

DEPTH, INDEX = 3, 4
TEMPERATURES = (0.0, 0.6, 1.0)


@pytest.mark.parametrize("size", [20, 0])
def test_acceptance_is_the_overlap_of_the_distributions(size, own_rows, filled_cache, distilled_trunk):
    head = new_head(distilled_trunk, draft_ids(ranked_ids(own_rows.sequences, 48), size), own_rows.sequences[0].ids)
    sequence = own_rows.sequences[INDEX]
    batch = Batch.of(own_rows, filled_cache, [INDEX], DEPTH)
    states = unroll(head, batch.hidden, batch.tokens, DEPTH)
    target = np.array(distilled_trunk.logits(batch.hidden[0]), np.float64)
    found = Evaluator(distilled_trunk, own_rows, filled_cache, [INDEX], DEPTH).evaluate(head, TEMPERATURES)
    starts = range(sequence.prompt_tokens - 2, sequence.read - 1)
    assert (found.rows, found.positions) == (1, len(starts))
    for temperature in TEMPERATURES:
        config = SamplerConfig(temperature=temperature)
        overlap = np.full((DEPTH, len(starts)), np.nan)
        for k in range(1, DEPTH + 1):
            for place, start in enumerate(starts):
                if start + k >= sequence.read:
                    continue
                logits = np.full(48, -np.inf)
                logits[head.draft_ids if size else slice(None)] = np.array(head.logits(states[k - 1][0, start]), np.float64)
                p, q = distribution_from_logits(target[start + k], config), distribution_from_logits(logits, config)
                overlap[k - 1, place] = np.minimum(p, q).sum()
        got = found.at(temperature)
        np.testing.assert_allclose(got.overlap, np.nanmean(overlap, axis=1), atol=1e-5)
        whole = overlap[:, np.isfinite(overlap).all(axis=0)]
        assert got.tokens_per_cycle == pytest.approx(1 + np.cumprod(whole, axis=0).sum(axis=0).mean(), abs=1e-4)
    mass = [distribution_from_logits(target[t], SamplerConfig())[head.draft_ids if size else slice(None)].sum() for t in range(len(target))]
    assert found.mass == pytest.approx(np.mean(mass[sequence.prompt_tokens - 1 :]), abs=1e-5)


def test_several_rows_are_weighted_by_their_positions(own_rows, filled_cache, distilled_trunk):
    head = new_head(distilled_trunk, None, own_rows.sequences[0].ids)
    chosen = [0, 3, 11, 40]
    together = Evaluator(distilled_trunk, own_rows, filled_cache, chosen, DEPTH).evaluate(head, [1.0])
    alone = [Evaluator(distilled_trunk, own_rows, filled_cache, [i], DEPTH).evaluate(head, [1.0]) for i in chosen]
    positions = [one.positions for one in alone]
    assert together.positions == sum(positions)
    mean = np.average([one.at(1.0).overlap[0] for one in alone], weights=positions)
    assert together.at(1.0).overlap[0] == pytest.approx(mean, abs=1e-5)


def test_the_standard_error_is_that_of_independent_rows():
    rng = np.random.default_rng(1)
    means, errors = [], []
    for _ in range(400):
        counts = rng.integers(5, 15, 30)
        sums = np.array([rng.random(count).sum() + count * rng.normal(0, 0.1) for count in counts])
        mean, error = mean_and_error(sums, counts)
        means.append(mean)
        errors.append(error)
    assert np.std(means) == pytest.approx(np.mean(errors), rel=0.12)
    assert mean_and_error(np.zeros(2), np.zeros(2, np.int64)) == (0.0, 0.0)
