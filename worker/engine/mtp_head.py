"""`MTPHead`: the small network that drafts from the trunk's hidden states.

With hidden state h_t and next token x_{t+1} it computes fc(cat[norm(embedding(x_{t+1})), norm(h_t)]), one decoder block of the trunk's
kind with a key/value cache of its own at position t, and a final norm; the logits of x_{t+2} are the trunk's output matrix on that. Deeper
drafts feed the head its own output, or the next MTP layer, if there are several: layer k reads the output of layer k - 1 at position t and
the token x_{t+1+k}. Where families differ, the contract says how.
"""

import inspect
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from schemas.errors import HeadError
from worker.engine.head_contract import HeadContract
from worker.engine.head_file import HeadFile
from worker.engine.layer_cache import LayerCache
from worker.engine.static_cache import Cursor
from worker.engine.trunk import Trunk


class MTPHead(nn.Module):  # type: ignore[misc] # mlx.nn has no types
    """One MTP layer, applied recursively.

    Attributes:
        deeper: the further MTP layers of the same head, in their order.
        draft_ids: the ids of the draft logits' columns, [Vd] int32, ascending; None when they are the vocabulary itself.
    """

    def __init__(self, trunk: Trunk, contract: HeadContract, draft_ids: np.ndarray | None) -> None:
        super().__init__()
        width, eps = trunk.width, trunk.args.rms_norm_eps
        self.ne = nn.RMSNorm(width, eps=eps)
        self.nh = nn.RMSNorm(width, eps=eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.block = _new_block(trunk)
        self.norm = nn.RMSNorm(width, eps=eps)
        # Leading underscores keep what is not a weight of the head out of its parameters.
        self._trunk = trunk
        self._contract = contract
        self._deeper: tuple[MTPHead, ...] = ()
        self._draft_ids = draft_ids
        self._output_rows = None if draft_ids is None else trunk.output_rows(mx.array(draft_ids))

    @classmethod
    def load(cls, path: Path, trunk: Trunk, dtype: mx.Dtype) -> "MTPHead":
        """Load a head for a trunk from a safetensors file or a model folder.

        Raises:
            HeadError: no head there, missing, unknown or misshapen tensors, draft ids outside the vocabulary, or a bad contract.
        """
        file = HeadFile.read(path)
        draft_ids = _draft_ids(path, file.draft_vocab, trunk.vocab_size) if file.draft_vocab is not None else None
        layers = []
        for number, weights in enumerate((file.weights, *file.deeper)):
            layer = cls(trunk, file.contract, draft_ids)
            where = f"{path} ({file.layout} layout" + (f", MTP layer {number})" if file.deeper else ")")
            layer._take_weights(weights, where, dtype)
            layers.append(layer)
        layers[0]._deeper = tuple(layers[1:])
        return layers[0]

    @property
    def deeper(self) -> "tuple[MTPHead, ...]":
        """The further MTP layers of the same head, in their order."""
        return self._deeper

    @property
    def draft_ids(self) -> np.ndarray | None:
        """The ids of the draft logits' columns, [Vd] int32, ascending; None when they are the vocabulary itself."""
        return self._draft_ids

    def base_hidden(self, hidden: mx.array, normed: mx.array) -> mx.array:
        """The trunk's hidden states that this head reads, given them before and after the final norm, [..., D]."""
        return normed if self._contract.base_hidden == "post_norm" else hidden

    def forward(self, hidden: mx.array, tokens: mx.array, cache: LayerCache, cursor: Cursor) -> tuple[mx.array, mx.array]:
        """One pass over the pairs (h_t, x_{t+1}) at positions t.

        Args:
            hidden: [B, T, D].
            tokens: [B, T] int32.
            cache: the head's own cache.
            cursor: positions of the pairs.

        Returns:
            The hidden states that give logits and those that deeper drafts are fed, both [B, T, D].
        """
        embedded, hidden = self.ne(self._trunk.embed(tokens)), self.nh(hidden)
        halves = [embedded, hidden] if self._contract.concat == "embedding_hidden" else [hidden, embedded]
        cache.cursor = cursor
        out = self.block(self.fc(mx.concatenate(halves, axis=-1)), cursor.mask, cache)
        normed = self.norm(out)
        return normed, normed if self._contract.recycled_hidden == "post_norm" else out

    def logits(self, normed: mx.array) -> mx.array:
        """Draft logits [..., Vd] (or [..., V] without a draft vocabulary) of [..., D]."""
        if self._output_rows is None:
            return self._trunk.logits(normed)
        return normed @ self._output_rows.T

    def _take_weights(self, weights: dict[str, mx.array], where: str, dtype: mx.Dtype) -> None:
        self._quantize_like(weights)
        expected: dict[str, mx.array] = dict(tree_flatten(self.parameters()))
        missing, unknown = sorted(set(expected) - set(weights)), sorted(set(weights) - set(expected))
        if missing or unknown:
            raise HeadError(f"{where} does not fit the trunk: missing tensors {missing or 'none'}, unknown tensors {unknown or 'none'}")
        for name, weight in weights.items():
            if weight.shape != expected[name].shape:
                raise HeadError(f"{where}: {name} must have shape {list(expected[name].shape)}; received {list(weight.shape)}")
        self.load_weights(list(weights.items()))
        self.set_dtype(dtype)
        if self._output_rows is not None:
            self._output_rows = self._output_rows.astype(dtype)
        self.eval()
        mx.eval(self.parameters(), self._output_rows)

    def _quantize_like(self, weights: dict[str, mx.array]) -> None:
        """Quantize the modules that come with scales; bits and group size follow from the shapes, module by module."""
        shapes = {name: value.shape for name, value in tree_flatten(self.parameters())}

        def decide(path: str, _: nn.Module) -> bool | dict[str, int]:
            if (scales := weights.get(f"{path}.scales")) is None:
                return False
            inner = shapes[f"{path}.weight"][-1]
            return {"group_size": inner // scales.shape[-1], "bits": weights[f"{path}.weight"].shape[-1] * 32 // inner}

        if any(name.endswith(".scales") for name in weights):
            nn.quantize(self, class_predicate=decide)


def _new_block(trunk: Trunk) -> Any:
    """A fresh decoder layer of the kind of the trunk's last attention layer."""
    index, kind = next((i, type(layer)) for i, layer in reversed(list(enumerate(trunk.body.layers))) if hasattr(layer, "self_attn"))
    takes_index = "layer_idx" in inspect.signature(kind).parameters
    return kind(trunk.args, layer_idx=index) if takes_index else kind(trunk.args)


def _draft_ids(path: Path, draft_vocab: np.ndarray, vocab_size: int) -> np.ndarray:
    ids = np.unique(draft_vocab)
    if draft_vocab.ndim != 1 or not np.issubdtype(ids.dtype, np.integer) or not 0 < len(ids) == draft_vocab.size:
        raise HeadError(
            f"{path}: draft_vocab must be a vector of distinct ids; received shape {list(draft_vocab.shape)} {draft_vocab.dtype}"
        )
    if ids[0] < 0 or ids[-1] >= vocab_size:
        raise HeadError(f"{path}: draft_vocab must lie in [0, {vocab_size - 1}]; received ids from {ids[0]} to {ids[-1]}")
    return ids.astype(np.int32)
