"""The unrolled head against decoding step by step, the loss against a plain restatement, the gradient against differences."""

import dataclasses
import os

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten

from worker.distill.batch import Batch, BatchOrder
from worker.distill.draft_vocabulary import draft_ids, ranked_ids
from worker.distill.hidden_states import HiddenStates
from worker.distill.loss import Teacher, flat, loss_and_gradient
from worker.distill.new_head import new_head
from worker.distill.recipe import Recipe
from worker.distill.unrolled_head import unroll
from worker.engine.static_cache import Cursor, StaticCache

DEPTH = 3
RECIPE = Recipe(steps=1, depth=DEPTH, draft_vocab=30)


@pytest.fixture(scope="module")
def head(distilled_trunk, own_rows):
    ids = draft_ids(ranked_ids(own_rows.sequences, distilled_trunk.vocab_size), RECIPE.draft_vocab)
    return new_head(distilled_trunk, ids, own_rows.sequences[0].ids)


@pytest.fixture(scope="module")
def batch(own_rows, filled_cache):
    return Batch.of(own_rows, filled_cache, [0, 5, 9], DEPTH)


def decoded(head, hidden, ids, start):
    """Normed states of one chain as the engine's drafter computes them: a cached pass over the pairs, then single steps."""
    cache = StaticCache(64)
    cursor = Cursor(mx.array([0], mx.int32), start + 1, window=64)
    normed, recycled = head.forward(hidden[None, : start + 1], mx.array(ids[None, 1 : start + 2]), cache, cursor)
    states, recycled = [normed[0, -1]], recycled[:, -1:]
    for k in range(2, DEPTH + 1):
        cursor = Cursor(mx.array([start + k - 1], mx.int32), 1, window=64)
        normed, recycled = head.forward(recycled, mx.array(ids[None, start + k : start + k + 1]), cache, cursor)
        states.append(normed[0, -1])
    return np.array(mx.stack(states))


def test_every_chain_is_what_decoding_computes(head, batch, own_rows, filled_cache):
    states = [np.array(state) for state in unroll(head, batch.hidden, batch.tokens, DEPTH)]
    for row, index in enumerate((0, 5, 9)):
        sequence = own_rows.sequences[index]
        hidden = mx.array(filled_cache.hidden(index)).astype(mx.float32)
        for start in (sequence.prompt_tokens - 2, sequence.prompt_tokens + 3, sequence.read - DEPTH - 1):
            expected = decoded(head, hidden, sequence.ids, start)
            np.testing.assert_allclose([states[k][row, start] for k in range(DEPTH)], expected, rtol=1e-3, atol=1e-4)


def test_the_cache_holds_what_the_trunk_says(distilled_trunk, own_rows, filled_cache):
    for index in (0, 17):
        sequence = own_rows.sequences[index]
        logits = distilled_trunk.logits(distilled_trunk.norm(distilled_trunk.read(sequence.ids[:-1].tolist(), 512)))
        stored = distilled_trunk.logits(mx.array(filled_cache.hidden(index)).astype(mx.float32))
        np.testing.assert_allclose(np.array(stored), np.array(logits), atol=5e-3)
        answer = slice(sequence.prompt_tokens - 1, None)
        np.testing.assert_allclose(filled_cache.log_z(index)[answer], np.array(mx.logsumexp(stored, axis=-1))[answer], atol=1e-5)


def test_passes_side_by_side_read_the_same(distilled_trunk, own_rows, filled_cache, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    cache = HiddenStates.beneath(tmp_path, own_rows, distilled_trunk, "digest", "float32")
    seen = []
    assert cache.fill(distilled_trunk, seen.append, lambda: False)
    assert seen == sorted(seen)
    assert seen[-1] == cache.positions
    for index in range(len(own_rows.sequences)):
        np.testing.assert_array_equal(cache.log_z(index), filled_cache.log_z(index))
        np.testing.assert_array_equal(cache.hidden(index), filled_cache.hidden(index))


def restated_loss(head, batch, trunk, recipe):
    """From the definition, in float64, chain by chain."""
    ids = head.draft_ids
    total, weights = 0.0, 0.0
    target = np.array(trunk.logits(flat(batch.hidden)[batch.targets]), np.float64)
    hidden = np.array(flat(batch.hidden)[batch.targets], np.float64)
    for k, state in enumerate(unroll(head, batch.hidden, batch.tokens, recipe.depth)):
        drafted = np.array(flat(state)[batch.chains[k]], np.float64)
        logits = np.array(head.logits(flat(state)[batch.chains[k]]), np.float64)
        q = np.exp(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))
        p = np.exp(target - np.log(np.exp(target).sum(axis=-1, keepdims=True)))[batch.chain_targets[k]][:, ids]
        difference = np.abs(drafted - hidden[batch.chain_targets[k]])
        regression = np.where(difference < 1, 0.5 * difference**2, difference - 0.5).mean()
        mass, share = p.sum(axis=-1), recipe.overlap_weight
        divergence = (p * np.log(p / mass[:, None] / q)).sum(axis=-1)
        overlap = -mass * np.log(np.minimum(p, q).sum(axis=-1) / mass)
        drafts = (1 - share) * divergence + share * overlap
        total += recipe.depth_decay**k * (drafts.mean() + recipe.hidden_weight * regression)
        weights += recipe.depth_decay**k
    return total / weights


@pytest.mark.parametrize(("hidden_weight", "overlap_weight"), [(0.0, 0.0), (0.5, 0.0), (0.0, 1.0), (0.5, 0.3)])
def test_loss_and_gradient_are_those_of_the_definition(head, batch, distilled_trunk, hidden_weight, overlap_weight):
    recipe = dataclasses.replace(RECIPE, hidden_weight=hidden_weight, overlap_weight=overlap_weight)
    rows = distilled_trunk.output_rows(mx.array(head.draft_ids))
    loss, gradient = loss_and_gradient(head, batch, Teacher.of(batch, rows), rows, recipe)
    assert loss == pytest.approx(restated_loss(head, batch, distilled_trunk, recipe), rel=1e-3)
    flat_gradient = dict(tree_flatten(gradient))
    before = dict(tree_flatten(head.parameters()))
    assert set(flat_gradient) == set(before)
    rng = np.random.default_rng(3)
    direction = {name: mx.array(rng.standard_normal(value.shape).astype(np.float32)) for name, value in before.items()}
    slope = sum(float((direction[name] * flat_gradient[name]).sum()) for name in before)
    # min(p, q) has kinks: within a shorter step fewer ids cross theirs.
    step, values = 2e-4 if overlap_weight else 1e-3, []
    for sign in (1, -1):
        head.update(tree_unflatten([(name, value + sign * step * direction[name]) for name, value in before.items()]))
        values.append(restated_loss(head, batch, distilled_trunk, recipe))
    head.update(tree_unflatten(list(before.items())))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope, rel=0.02, abs=1e-3)


def test_an_epoch_sees_every_sequence_once_and_is_a_function_of_the_seed(own_rows):
    chosen = list(range(0, len(own_rows.sequences), 2))
    order = BatchOrder(own_rows, chosen, 300, seed=4)
    seen, step = [], 0
    while order.epoch(step) < 1:
        batch = order.batch(step)
        assert len(batch) == 1 or len(batch) * max(own_rows.sequences[i].read for i in batch) <= 300
        seen += batch
        step += 1
    assert sorted(seen) == chosen
    again, other = BatchOrder(own_rows, chosen, 300, seed=4), BatchOrder(own_rows, chosen, 300, seed=5)
    assert [again.batch(s) for s in range(step)] == [order.batch(s) for s in range(step)]
    assert [other.batch(s) for s in range(step)] != [order.batch(s) for s in range(step)]
