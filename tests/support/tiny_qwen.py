"""Tiny random models of the hybrid Qwen families, with an MTP head in the layout of the original repositories."""

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from safetensors.numpy import save_file

KINDS = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "tie_word_embeddings": False,
    "full_attention_interval": 2,
    "eos_token_id": 1,
}
MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 32,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
NEXT = {"mlp_only_layers": [], "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "attention_bias": False, "rope_scaling": None}


def make_tiny_qwen(folder: Path, kind: str, *, tokenizer_from: Path, vocab_size: int = 300, seed: int = 0) -> Path:
    """Write a random model of a kind in mlx-lm's own (converted) layout, with the tokenizer of another folder.

    Args:
        folder: created when missing.
        kind: one of `KINDS`.
        tokenizer_from: a folder of `make_tiny_llama` with the same vocabulary size.
        vocab_size: V.
        seed: of the weights.
    """
    text = {
        "model_type": kind,
        "vocab_size": vocab_size,
        **TEXT,
        **(MOE if kind != "qwen3_5" else {}),
        **(NEXT if kind == "qwen3_next" else {}),
    }
    config = text if kind == "qwen3_next" else {"model_type": kind, "text_config": text, "eos_token_id": 1}
    model_module = importlib.import_module(f"mlx_lm.models.{kind}")
    model = model_module.Model(model_module.ModelArgs.from_dict(config))
    rng = np.random.default_rng(seed)
    weights = {name: random_like(rng, name, value) for name, value in sorted(tree_flatten(model.parameters()))}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer_from / name, folder / name)
    return folder


def make_qwen_head_weights(trunk_model: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """`mtp.*` weights of a random head, with plain norms, for a loaded trunk: one full-attention layer of its own kind."""
    text_model = getattr(trunk_model, "language_model", trunk_model)
    args = text_model.args
    layer = type(text_model.model.layers[0])(args, layer_idx=args.full_attention_interval - 1)
    rng = np.random.default_rng([seed, 1])
    width = args.hidden_size
    weights = {f"mtp.layers.0.{name}": random_like(rng, name, value) for name, value in sorted(tree_flatten(layer.parameters()))}
    weights["mtp.fc.weight"] = (rng.standard_normal((width, 2 * width)) / np.sqrt(2 * width)).astype(np.float32)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        weights[f"mtp.{name}.weight"] = (1 + 0.1 * rng.standard_normal(width)).astype(np.float32)
    return weights


def random_like(rng: np.random.Generator, name: str, value: mx.array) -> np.ndarray:
    """Random weights of a sensible size: norms near 1, matrices of unit gain, decay rates and biases as they are initialised."""
    noise = rng.standard_normal(value.shape)
    if name.endswith(("A_log", "dt_bias")):
        return np.asarray(np.log(rng.uniform(1, 16, value.shape)) if name.endswith("A_log") else noise, np.float32)
    if "norm" in name and value.ndim == 1:
        return (1 + 0.1 * noise).astype(np.float32)
    return (noise / np.sqrt(value.shape[-1])).astype(np.float32)
