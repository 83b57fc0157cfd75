"""Training improves what it should, is reproducible, survives a stop, and predicts what the engine counts."""

import dataclasses

import mlx.core as mx
import numpy as np
import pytest
from distill_support import PROMPTS, SAMPLED
from engine_support import GREEDY, complete, essence, load_engine, make_requests, make_spec
from engine_support import run as run_engine
from mlx.utils import tree_flatten

from schemas.errors import HeadError
from worker.distill.checkpoint import read_recipe, restore_checkpoint, write_checkpoint
from worker.distill.draft_vocabulary import draft_ids, ranked_ids
from worker.distill.evaluation_record import LearningPoint
from worker.distill.evaluator import Evaluator, mean_and_error
from worker.distill.head_writer import round_weights
from worker.distill.new_head import new_head
from worker.distill.recipe import Recipe
from worker.distill.replay import replayed
from worker.distill.trainer import Ending, Trainer, learning_rate

RECIPE = Recipe(steps=120, depth=3, draft_vocab=40, batch_tokens=512, learning_rate=3e-3, evaluations=4, held_out=0.3)
INPUTS = {"model": "m", "corpus": "c"}
FALSE_ALARM_Z = 4.5  # two-sided 7e-6


@pytest.fixture(scope="module")
def make_trainer(distilled_trunk, own_rows, filled_cache):
    def make(recipe: Recipe = RECIPE) -> Trainer:
        train, held = own_rows.split(recipe.held_out, recipe.seed)
        ids = draft_ids(ranked_ids((own_rows.sequences[i] for i in train), distilled_trunk.vocab_size), recipe.draft_vocab)
        head = new_head(distilled_trunk, ids, own_rows.sequences[train[0]].ids)
        evaluator = Evaluator(distilled_trunk, own_rows, filled_cache, held, recipe.depth)
        return Trainer(head, distilled_trunk, own_rows, filled_cache, train, recipe, lambda head: evaluator.evaluate(head, [1.0]))

    return make


def train(trainer: Trainer, *, until: int | None = None) -> tuple[Ending, list[float]]:
    losses: list[float] = []
    stopped = lambda: until is not None and trainer.progress.step >= until  # noqa: E731
    return trainer.run(losses.append, lambda point: None, stopped), losses


@pytest.fixture(scope="module")
def trained(make_trainer):
    trainer = make_trainer()
    ending, losses = train(trainer)
    return trainer, ending, losses


def weights(trainer: Trainer) -> dict[str, np.ndarray]:
    return {name: np.array(value) for name, value in trainer.arrays().items()}


def assert_same_weights(left: Trainer, right: Trainer) -> None:
    mine, theirs = weights(left), weights(right)
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


def test_loss_falls_and_held_out_acceptance_rises(trained):
    trainer, ending, losses = trained
    points = trainer.progress.points
    assert ending in (Ending.FINISHED, Ending.EARLY)
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
    before, best = points[0], max(points, key=lambda point: point.tokens_per_cycle)
    assert min(now - then for now, then in zip(best.overlap, before.overlap, strict=True)) > 0.04  # the standard error is 0.01
    assert best.tokens_per_cycle > before.tokens_per_cycle + 0.15


def test_the_same_seed_gives_the_same_weights_through_a_stop_and_a_checkpoint(make_trainer, tmp_path):
    recipe = dataclasses.replace(RECIPE, steps=12, evaluations=3)
    whole, begun = make_trainer(recipe), make_trainer(recipe)
    assert train(whole)[0] is Ending.FINISHED
    assert train(begun, until=7)[0] is Ending.STOPPED
    write_checkpoint(tmp_path / "c.safetensors", begun, recipe, INPUTS)
    assert read_recipe(tmp_path / "c.safetensors", INPUTS) == recipe
    resumed = make_trainer(recipe)
    restore_checkpoint(tmp_path / "c.safetensors", resumed)
    assert resumed.progress.step == 7
    assert train(resumed)[0] is Ending.FINISHED
    assert_same_weights(whole, resumed)
    assert whole.progress == resumed.progress
    other = make_trainer(dataclasses.replace(recipe, seed=1))
    train(other)
    assert any(not np.array_equal(value, weights(whole)[name]) for name, value in weights(other).items())


def test_a_checkpoint_of_another_corpus_or_of_nothing_is_refused(make_trainer, tmp_path):
    path = tmp_path / "c.safetensors"
    write_checkpoint(path, make_trainer(), RECIPE, INPUTS)
    with pytest.raises(HeadError, match="another corpus"):
        read_recipe(path, {**INPUTS, "corpus": "other"})
    path.write_bytes(b"nothing")
    with pytest.raises(HeadError, match="not a readable checkpoint"):
        read_recipe(path, INPUTS)


def test_training_ends_early_when_nothing_gets_better(make_trainer):
    trainer = make_trainer(dataclasses.replace(RECIPE, learning_rate=0.0, patience=2))
    assert train(trainer)[0] is Ending.EARLY
    assert len(trainer.progress.points) == 3
    assert trainer.take_best().step == 0


def test_the_learning_rate_rises_then_falls():
    recipe = dataclasses.replace(RECIPE, steps=100, warmup=0.1, learning_rate=1.0)
    rates = [learning_rate(recipe, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == max(rates) == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0.05 < rates[-1] < 0.06


@pytest.fixture(scope="module")
def stored_head(trained, tmp_path_factory):
    """The trained head as its file holds it."""
    from mlx.core import save_safetensors

    trainer, _, _ = trained
    trainer.take_best()
    head = trainer._head
    round_weights(head, "float16")
    path = tmp_path_factory.mktemp("trained") / "head.safetensors"
    arrays = {name: value.astype(mx.float16) for name, value in tree_flatten(head.parameters())}
    save_safetensors(str(path), arrays | {"draft_vocab": mx.array(head.draft_ids)})
    return path, head


def test_greedy_output_stays_that_of_plain_decoding(distilled_model, stored_head):
    plain = run_engine(make_spec(distilled_model, None, depth=0, sampler=GREEDY))
    drafted = run_engine(make_spec(distilled_model, stored_head[0], depth=3, sampler=GREEDY))
    assert [row.token_ids for row in plain] == [row.token_ids for row in drafted]
    assert [essence(row)[2] for row in plain] == [essence(row)[2] for row in drafted]
    assert sum(sum(row.acceptance.accepted_by_depth) for row in drafted) > 0


def test_a_run_counts_what_the_held_out_rows_predict(distilled_model, distilled_trunk, own_rows, filled_cache, stored_head):
    path, head = stored_head
    _, held = own_rows.split(RECIPE.held_out, RECIPE.seed)
    replay = Evaluator(distilled_trunk, own_rows, filled_cache, held, RECIPE.depth).replay(head, 1.0)
    prompts = [prompt for prompt in PROMPTS if any(own_rows.sequences[i].record == prompt for i in held)]
    spec = make_spec(distilled_model, path, depth=3, sampler=SAMPLED, max_tokens=40, slots=16, samples=6)
    rows = complete(load_engine(spec), spec, make_requests(prompts, spec.samples, first_key=7_000_000))
    tokens = np.array([len(row.token_ids) for row in rows])
    counted = {"cycles": np.array([row.acceptance.cycles for row in rows])}
    expected = {"cycles": replay.cycles}
    for k in range(RECIPE.depth):
        counted[f"depth {k + 1}"] = np.array([row.acceptance.accepted_by_depth[k] for row in rows])
        expected[f"depth {k + 1}"] = replay.accepted[:, k]
    for name in counted:
        measured, measured_error = mean_and_error(counted[name].astype(float), tokens)
        predicted, predicted_error = mean_and_error(expected[name], replay.tokens)
        error = np.hypot(measured_error, predicted_error)
        assert error < 0.03
        assert abs(measured - predicted) < FALSE_ALARM_Z * error, (name, measured, predicted, error)


def test_a_replay_is_the_average_over_all_coin_flips():
    rng = np.random.default_rng(5)
    depth, read, prompt_tokens = 2, 12, 4
    kept = np.full((depth, read), np.nan)
    for k in range(depth):
        kept[k, prompt_tokens - 2 : read - 1 - k] = rng.random(read - prompt_tokens + 1 - k)
    replay = replayed([(kept, prompt_tokens)])
    cycles, accepted, tries = 0, np.zeros(depth), 40_000
    for _ in range(tries):
        pending = prompt_tokens - 1
        while pending < read:
            cycles += 1
            taken = 0
            while taken < depth and pending + taken < read and rng.random() < kept[taken, pending - 1]:
                accepted[taken] += 1
                taken += 1
            pending += taken + 1
    assert replay.tokens.tolist() == [read + 1 - prompt_tokens]
    np.testing.assert_allclose(replay.cycles[0], cycles / tries, rtol=0.02)
    np.testing.assert_allclose(replay.accepted[0], accepted / tries, rtol=0.02)


def test_a_point_of_the_curve_is_one_line():
    first = LearningPoint(step=0, epoch=0.0, loss=0.0, overlap=(0.05, 0.03), tokens_per_cycle=1.05)
    later = LearningPoint(step=90, epoch=2.14, loss=1.23, overlap=(0.412, 0.39), tokens_per_cycle=1.62)
    assert first.text() == "step 0 (0.0 passes): acceptance 1: 0.050 2: 0.030, 1.05 tokens/cycle"
    assert later.text() == "step 90 (2.1 passes): loss 1.230, acceptance 1: 0.412 2: 0.390, 1.62 tokens/cycle"
