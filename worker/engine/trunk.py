"""`Trunk`: the target model, cut open where the MTP head and the sampler need it."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, KVCache, make_prompt_cache
from mlx_lm.utils import load_model

from schemas.errors import ModelError
from worker.engine.delta_net import DeltaNetCache, TapedDeltaNet
from worker.engine.layer_cache import LayerCache
from worker.engine.model_loading import load_tokenizer, loading
from worker.engine.static_cache import Cursor, StaticCache


class Trunk:
    """A model of mlx-lm whose layers attend to everything or are gated delta nets, and its tokenizer.

    Attributes:
        tokenizer: mlx-lm's `TokenizerWrapper`.
        body: embedding, layers and final norm.
        args: the text model's configuration, mlx-lm's `ModelArgs`.
        width: D, the hidden width.
        vocab_size: V, columns of the logits.
        context: the model's context length in tokens, or None when its config states none.
        eos_ids: ids that end a completion.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        # Multimodal checkpoints keep the text model one level deeper.
        self._text_model = getattr(model, "language_model", model)
        self.tokenizer = tokenizer
        self.body = self._text_model.model
        self.args = self._text_model.args
        self.width: int = self.args.hidden_size
        self.vocab_size: int = self.args.vocab_size
        self.context: int | None = getattr(self.args, "max_position_embeddings", None)
        self.eos_ids = frozenset(tokenizer.eos_token_ids)
        # The body ends with its final norm; heads differ in which side of it they read, so the norm is applied here.
        self._norm = self.body.norm
        self.body.norm = nn.Identity()
        for layer in self.body.layers:
            if _is_recurrent(layer):
                layer.linear_attn = TapedDeltaNet(layer.linear_attn)

    @classmethod
    def load(cls, folder: Path, dtype: mx.Dtype, *, trust_remote_code: bool = False) -> "Trunk":
        """Load a folder in mlx-lm's layout; code that comes with the model runs only where that is trusted.

        Raises:
            ModelError: mlx-lm cannot load it, it needs code of its own, or a layer's memory is of a kind that cannot take tokens back here.
        """
        with loading(folder, trust_remote_code=trust_remote_code):
            model, config = load_model(folder, trust_remote_code=trust_remote_code)
        tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code, eos_token_ids=config.get("eos_token_id"))
        _check_layers(folder, model, config)
        model.set_dtype(dtype, _is_float)
        model.eval()
        mx.eval(model.parameters())
        return cls(model, tokenizer)

    @property
    def layers(self) -> int:
        """Number of decoder layers, each with one cache."""
        return len(self.body.layers)

    @property
    def is_recurrent(self) -> bool:
        """Whether any layer keeps a state instead of keys and values."""
        return any(_is_recurrent(layer) for layer in self.body.layers)

    def make_caches(self, capacity: int) -> list[LayerCache]:
        """Empty caches, one per layer, shaped by their first pass."""
        return [DeltaNetCache() if _is_recurrent(layer) else StaticCache(capacity) for layer in self.body.layers]

    def forward(self, tokens: mx.array, caches: list[LayerCache], cursor: Cursor) -> mx.array:
        """Hidden states before the final norm, [B, T, D], of tokens [B, T] int32 written at the cursor."""
        for cache in caches:
            cache.cursor = cursor
        hidden: mx.array = self.body(tokens, cache=caches)
        return hidden

    def read(self, ids: list[int], chunk: int) -> mx.array:
        """Hidden states before the final norm, [T, D], of one text of T tokens, in passes of at most `chunk` tokens."""
        return self.read_on(ids, chunk, self.make_caches(capacity=len(ids)), 0)

    def read_on(self, ids: list[int], chunk: int, caches: list[LayerCache], begin: int) -> mx.array:
        """The same of the next T ≥ 1 tokens of a text; `caches` hold its first `begin` ones, and then these too."""
        tokens = mx.array([ids], mx.int32)
        passes = []
        for start in range(0, len(ids), chunk):
            count = min(chunk, len(ids) - start)
            cursor = Cursor(mx.array([begin + start], mx.int32), count, window=begin + start + count)
            passes.append(self.forward(tokens[:, start : start + count], caches, cursor)[0])
            for cache in caches:
                cache.commit(mx.array([count], mx.int32))
            mx.eval(passes[-1])
        return mx.concatenate(passes)

    def norm(self, hidden: mx.array) -> mx.array:
        """The final norm."""
        normed: mx.array = self._norm(hidden)
        return normed

    def logits(self, normed: mx.array) -> mx.array:
        """Logits [..., V] of normed hidden states [..., D]."""
        tied = self.body.embed_tokens.as_linear
        logits: mx.array = getattr(self._text_model, "lm_head", tied)(normed)
        return logits

    def embed(self, tokens: mx.array) -> mx.array:
        """Embeddings [..., D] of tokens [...]."""
        embedded: mx.array = self.body.embed_tokens(tokens)
        return embedded

    def output_rows(self, ids: mx.array) -> mx.array:
        """Rows [n, D] of the output matrix for ids [n] int32, dequantized."""
        layer = getattr(self._text_model, "lm_head", self.body.embed_tokens)
        if isinstance(layer, nn.QuantizedLinear | nn.QuantizedEmbedding):
            biases = layer.biases[ids] if layer.biases is not None else None
            return mx.dequantize(
                layer.weight[ids], layer.scales[ids], biases, group_size=layer.group_size, bits=layer.bits, mode=layer.mode
            )
        rows: mx.array = layer.weight[ids]
        return rows


def _is_recurrent(layer: Any) -> bool:
    return hasattr(layer, "linear_attn")


def _is_float(dtype: mx.Dtype) -> bool:
    return bool(mx.issubdtype(dtype, mx.floating))


def _check_layers(folder: Path, model: Any, config: dict[str, Any]) -> None:
    """Refuse models with layers whose memory the cohort cannot roll back."""
    text_model = getattr(model, "language_model", model)
    known = all(hasattr(getattr(text_model, "model", None), name) for name in ("embed_tokens", "layers", "norm"))
    if known:
        kinds = [ArraysCache if _is_recurrent(layer) else KVCache for layer in text_model.model.layers]
        known = [type(cache) for cache in make_prompt_cache(model)] == kinds
    if not known:
        raise ModelError(
            f"{folder} ({config.get('model_type')}) is not supported: every layer must attend to all positions or be a gated delta net, "
            "between one embedding and one final norm"
        )
