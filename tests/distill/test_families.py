"""Heads for other kinds of trunks: hybrid, mixture of experts, quantized, untied, bfloat16."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from tiny_qwen import KINDS, make_tiny_qwen

from worker.distill.checkpoint import write_safetensors
from worker.distill.corpus import make_corpus, make_sequence
from worker.distill.draft_vocabulary import draft_ids, ranked_ids
from worker.distill.evaluator import Evaluator
from worker.distill.hidden_states import HiddenStates
from worker.distill.new_head import new_head
from worker.distill.recipe import Recipe
from worker.distill.trainer import Ending, Trainer
from worker.engine.head_contract import HeadContract
from worker.engine.mtp_head import MTPHead
from worker.engine.trunk import Trunk

VOCAB = 300
RECIPE = Recipe(steps=4, depth=2, draft_vocab=100, batch_tokens=200, evaluations=1, learning_rate=1e-2)


@pytest.mark.parametrize("kind", [*KINDS, "untied", "bfloat16", "quantized"])
def test_a_head_of_any_trunk_learns_and_loads(kind, tiny_llama, tmp_path):
    trunk = make_trunk(kind, tiny_llama, tmp_path)
    rng = np.random.default_rng(0)
    lengths = range(20, 32)
    corpus = make_corpus(
        make_sequence(f"r{length}", rng.integers(3, VOCAB, 5).tolist(), rng.integers(3, VOCAB, length).tolist(), context=99)
        for length in lengths
    )
    cache = HiddenStates.beneath(tmp_path / "cache", corpus, trunk, kind, "float32")
    assert cache.fill(trunk, lambda done: None, lambda: False)
    for index in (0, 7):
        alone = trunk.norm(trunk.read(corpus.sequences[index].ids[:-1].tolist(), 512)).astype(mx.float32)
        np.testing.assert_allclose(cache.hidden(index), np.array(alone), atol=0.02)
    train, held = corpus.split(RECIPE.held_out, RECIPE.seed)
    ids = draft_ids(ranked_ids((corpus.sequences[i] for i in train), VOCAB), RECIPE.draft_vocab)
    head = new_head(trunk, ids, corpus.sequences[0].ids)
    evaluator = Evaluator(trunk, corpus, cache, held, RECIPE.depth)
    trainer = Trainer(head, trunk, corpus, cache, train, RECIPE, lambda head: evaluator.evaluate(head, [1.0]))
    before, _ = trainer.gradient(0)
    assert trainer.run(lambda loss: None, lambda point: None, lambda: False) is Ending.FINISHED
    after, _ = trainer.gradient(0)
    assert 0 < after < before
    arrays = {name.removeprefix("head."): value for name, value in trainer.arrays().items() if name.startswith("head.")}
    path = tmp_path / "head.safetensors"
    write_safetensors(path, arrays | {"draft_vocab": mx.array(ids)}, {"contract": HeadContract().to_json()})
    stored = evaluator.evaluate(MTPHead.load(path, trunk, mx.float32), [1.0])
    assert stored.at(1.0).overlap == pytest.approx(evaluator.evaluate(head, [1.0]).at(1.0).overlap, abs=0.01)


def make_trunk(kind, tiny_llama, tmp_path):
    llama = tiny_llama(vocab_size=VOCAB, hidden=64, layers=2, heads=4, kv_heads=2, seed=1, tie=kind != "untied")
    if kind in KINDS:
        return Trunk.load(make_tiny_qwen(tmp_path / kind, kind, tokenizer_from=llama), mx.float32)
    trunk = Trunk.load(llama, mx.bfloat16 if kind == "bfloat16" else mx.float32)
    if kind == "quantized":
        nn.quantize(trunk.body, group_size=32, bits=8)
    return trunk
