"""The tiny models are real models: mlx-lm loads them, and their tokenizers are exact."""

import json
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load
from safetensors.numpy import load_file
from tokenizers.pre_tokenizers import ByteLevel

from worker.engine import tiny_model


@pytest.mark.parametrize("options", [{}, {"vocab_size": 7, "hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "tie": False}])
def test_mlx_lm_loads_it(tiny_llama: Callable[..., Path], options: dict[str, int]) -> None:
    model, tokenizer = load(str(tiny_llama(**options)))
    size = options.get("vocab_size", 300)
    logits = model(mx.array([[0, 3, 4, 1]]))
    assert logits.shape == (1, 4, size)
    assert 0.3 < float(logits.std()) < 3
    assert len(tokenizer) == size
    assert tokenizer.eos_token_ids == {1}


def test_same_arguments_give_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    folders = [tiny_model.make_tiny_llama(tmp_path / name, seed=seed) for name, seed in (("a", 3), ("b", 3), ("c", 4))]
    first, second, other = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert first == second
    assert first != other


def test_tokenizer_round_trips_and_the_template_uses_the_special_tokens(tiny_llama: Callable[..., Path]) -> None:
    _, tokenizer = load(str(tiny_llama(vocab_size=400)))
    text = "Blüten, 42 — and a tab\t😀\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True)
    assert tokenizer.decode(ids) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert (ids[0], ids.count(0), ids.count(1)) == (0, 2, 1)
    with pytest.raises(Exception, match="unknown role wizard"):
        tokenizer.apply_chat_template([{"role": "wizard", "content": "hi"}])


def test_letters_outside_a_tiny_vocabulary_are_unknown(tiny_llama: Callable[..., Path]) -> None:
    _, tokenizer = load(str(tiny_llama(vocab_size=7)))
    assert tokenizer.encode("tea") == [5, 4, 6]
    assert tokenizer.encode("tez") == [5, 4, 2]


def test_every_byte_has_its_symbol() -> None:
    assert {tiny_model._symbol(byte) for byte in range(256)} == set(ByteLevel.alphabet())


@pytest.mark.parametrize("size", [3, 100_000])
def test_impossible_vocabulary_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(ValueError, match=rf"vocab_size must be in \[4, \d+\]; received {size}"):
        tiny_model.make_tiny_llama(tmp_path, vocab_size=size)


def test_head_fits_its_trunk(tiny_llama: Callable[..., Path], tiny_head: Callable[..., Path]) -> None:
    trunk = tiny_llama()
    head = load_file(tiny_head(trunk, draft_vocab=[5, 9, 200]))
    hidden = json.loads((trunk / "config.json").read_text())["hidden_size"]
    assert head["fc.weight"].shape == (hidden, 2 * hidden)
    assert head["draft_vocab"].dtype == np.int32
    assert head["draft_vocab"].tolist() == [5, 9, 200]
    block = {name.removeprefix("block."): value.shape for name, value in head.items() if name.startswith("block.")}
    layer = {name.removeprefix("model.layers.0."): value.shape for name, value in load_file(trunk / "model.safetensors").items()}
    assert len(block) == 9
    assert block.items() <= layer.items()
    assert "draft_vocab" not in load_file(tiny_head(trunk))
