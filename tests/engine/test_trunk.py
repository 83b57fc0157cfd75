"""The trunk's logits against a numpy restatement of the family's formula, and against transformers where torch is installed."""

import importlib
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from restatement import decoder_layer, rms_norm
from safetensors.numpy import load_file, save_file
from tiny_qwen import random_like

from worker.engine.trunk import Trunk

EPS, THETA, HEADS, KV_HEADS = 1e-5, 10000.0, 4, 2
TEXT = [5, 9, 200, 17, 4, 4, 31, 250, 8, 77, 9, 200]
DENSE = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
}
HYBRID = {
    **DENSE,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "partial_rotary_factor": 0.25,
}
MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 32,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
}
FAMILIES = {"llama": DENSE, "qwen2": DENSE, "qwen3": DENSE, "qwen3_next": {**HYBRID, **MOE}}


def logits_of(folder: Path) -> np.ndarray:
    """The trunk's logits at every position of the text, read in passes of 5 tokens, [T, V]."""
    trunk = Trunk.load(folder, mx.float32)
    return np.array(trunk.logits(trunk.norm(trunk.read(TEXT, 5))))


def with_tokenizer(folder: Path, tiny_llama: Callable[..., Path]) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_llama(vocab_size=300, seed=3) / name, folder / name)
    return folder


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_trunk_computes_its_formula(family: str, tiny_llama: Callable[..., Path], tmp_path: Path) -> None:
    module = importlib.import_module(f"mlx_lm.models.{family}")
    config = {"model_type": family, **DENSE}
    model = module.Model(module.ModelArgs.from_dict(config))
    rng = np.random.default_rng(7)
    save_file(
        {name: random_like(rng, name, value) for name, value in sorted(tree_flatten(model.parameters()))},
        tmp_path / "model.safetensors",
        metadata={"format": "mlx"},
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    w = {name: tensor.astype(np.float64) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    assert any("bias" in name for name in w) == (family == "qwen2")
    assert any("q_norm" in name for name in w) == (family == "qwen3")
    x = w["model.embed_tokens.weight"][TEXT]
    for layer in range(DENSE["num_hidden_layers"]):
        x = decoder_layer(w, f"model.layers.{layer}.", x, HEADS, KV_HEADS, EPS, THETA)
    expected = rms_norm(x, w["model.norm.weight"], EPS) @ w["lm_head.weight"].T
    np.testing.assert_allclose(logits_of(with_tokenizer(tmp_path, tiny_llama)), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="transformers computes with torch, which specmill does not need")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_trunk_is_that_of_transformers(family: str, tiny_llama: Callable[..., Path], tmp_path: Path) -> None:
    """A random model that transformers made and stored, in the layout of an original repository."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(family, **FAMILIES[family])
    model: Any = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # norms and biases begin as constants
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.ndim == 1 else 0.3 / parameter.shape[-1] ** 0.5))
            assert not name.startswith("mtp.")
        expected = model(torch.tensor([TEXT])).logits[0].numpy()
    model.save_pretrained(tmp_path)
    # transformers 5 writes the rotary settings one level deeper than the repositories that are out there.
    stored = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stored | FAMILIES[family]))
    np.testing.assert_allclose(logits_of(with_tokenizer(tmp_path, tiny_llama)), expected, atol=2e-4, rtol=1e-3)
