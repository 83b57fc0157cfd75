"""`Trunk`: the target model, cut open where the MTP head and the sampler need it."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.utils import load_model, load_tokenizer

from schemas.errors import ModelError
from worker.engine.static_cache import Cursor, StaticCache, point


class Trunk:
    """A model of mlx-lm's Llama family (every layer with a plain key/value cache) and its tokenizer.

    Attributes:
        tokenizer: mlx-lm's `TokenizerWrapper`.
        width: D, the hidden width.
        vocab_size: V, columns of the logits.
        context: the model's context length in tokens, or None when its config states none.
        eos_ids: ids that end a completion.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.args = model.args
        self.width: int = self.args.hidden_size
        self.vocab_size: int = self.args.vocab_size
        self.context: int | None = getattr(self.args, "max_position_embeddings", None)
        self.eos_ids = frozenset(tokenizer.eos_token_ids)
        # The body ends with its final norm; heads differ in which side of it they read, so the norm is applied here.
        self._norm = model.model.norm
        model.model.norm = nn.Identity()

    @classmethod
    def load(cls, folder: Path, dtype: mx.Dtype) -> "Trunk":
        """Load a folder in mlx-lm's layout.

        Raises:
            ModelError: mlx-lm cannot load it, or its layers need more than plain key/value caches.
        """
        try:
            model, config = load_model(folder)
            tokenizer = load_tokenizer(folder, eos_token_ids=config.get("eos_token_id"))
        except (ValueError, OSError, KeyError, TypeError) as error:
            raise ModelError(f"{folder} cannot be loaded as a model: {error}") from error
        others = sorted({type(cache).__name__ for cache in make_prompt_cache(model)} - {KVCache.__name__})
        if others or not hasattr(model.model, "norm") or not hasattr(model.model, "embed_tokens"):
            what = f"caches of type {', '.join(others)}" if others else "no plain embed-layers-norm body"
            raise ModelError(
                f"{folder} ({config.get('model_type')}) has {what}; supported are models whose layers all attend to everything"
            )
        model.set_dtype(dtype)
        model.eval()
        mx.eval(model.parameters())
        return cls(model, tokenizer)

    @property
    def layers(self) -> int:
        """Number of decoder layers, each with one cache."""
        return len(self.model.model.layers)

    def forward(self, tokens: mx.array, caches: list[StaticCache], cursor: Cursor) -> mx.array:
        """Hidden states before the final norm, [B, T, D], of tokens [B, T] int32 written at the cursor."""
        hidden: mx.array = self.model.model(tokens, cache=point(caches, cursor))
        return hidden

    def norm(self, hidden: mx.array) -> mx.array:
        """The final norm."""
        normed: mx.array = self._norm(hidden)
        return normed

    def logits(self, normed: mx.array) -> mx.array:
        """Logits [..., V] of normed hidden states [..., D]."""
        project = self.model.lm_head if hasattr(self.model, "lm_head") else self.model.model.embed_tokens.as_linear
        logits: mx.array = project(normed)
        return logits

    def embed(self, tokens: mx.array) -> mx.array:
        """Embeddings [..., D] of tokens [...]."""
        embedded: mx.array = self.model.model.embed_tokens(tokens)
        return embedded

    def output_rows(self, ids: mx.array) -> mx.array:
        """Rows [n, D] of the output matrix for ids [n] int32, dequantized."""
        layer = getattr(self.model, "lm_head", self.model.model.embed_tokens)
        if isinstance(layer, nn.QuantizedLinear | nn.QuantizedEmbedding):
            biases = layer.biases[ids] if layer.biases is not None else None
            return mx.dequantize(
                layer.weight[ids], layer.scales[ids], biases, group_size=layer.group_size, bits=layer.bits, mode=layer.mode
            )
        rows: mx.array = layer.weight[ids]
        return rows
