"""`MTPHead`: the small network that drafts from the trunk's hidden states, and its contract.

With hidden state h_t and next token x_{t+1} it computes fc(cat[norm(embedding(x_{t+1})), norm(h_t)]), one decoder block with a
key/value cache of its own at position t, and a final norm; the logits of x_{t+2} are the trunk's output matrix on that. Deeper drafts feed
the head its own output. This is the layout of Qwen3-Next's and DeepSeek-V3's MTP modules; where families differ, the contract says how.

The file is safetensors: `ne.weight`, `nh.weight` (norms of embedding and hidden state), `fc.weight` [D, 2D], `block.*` (a Llama decoder
layer, Hugging Face names), `norm.weight`, optionally `draft_vocab` [Vd] int32 in any order. Its metadata key `contract` holds a
`HeadContract`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.llama import ModelArgs, TransformerBlock

from schemas.errors import HeadError
from schemas.wire import Wire
from worker.engine.layer_cache import LayerCache
from worker.engine.static_cache import Cursor
from worker.engine.trunk import Trunk

CONCAT_ORDERS = ("embedding_hidden", "hidden_embedding")
HIDDEN_CHOICES = ("post_norm", "pre_norm")


@dataclass(frozen=True)
class HeadContract(Wire):
    """What acceptance depends on and exactness does not.

    Attributes:
        concat: order of the two halves of fc's input, `embedding_hidden` or `hidden_embedding`.
        base_hidden: the trunk's hidden state that is fed: `post_norm` or `pre_norm` of the trunk's final norm.
        recycled_hidden: the head's own hidden state that deeper drafts are fed: `post_norm` or `pre_norm` of the head's final norm.

    Raises:
        ValueError: another word.
    """

    concat: str = "embedding_hidden"
    base_hidden: str = "post_norm"
    recycled_hidden: str = "post_norm"

    def __post_init__(self) -> None:
        for name, choices in (("concat", CONCAT_ORDERS), ("base_hidden", HIDDEN_CHOICES), ("recycled_hidden", HIDDEN_CHOICES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; received {getattr(self, name)!r}")


class MTPHead(nn.Module):  # type: ignore[misc] # mlx.nn has no types
    """One head of depth 1, applied recursively.

    Attributes:
        contract: see `HeadContract`.
        draft_ids: the ids of the draft logits' columns, [Vd] int32, ascending; None when they are the vocabulary itself.
    """

    def __init__(self, trunk: Trunk, contract: HeadContract, draft_ids: np.ndarray | None) -> None:
        super().__init__()
        width, eps = trunk.width, trunk.args.rms_norm_eps
        self.ne = nn.RMSNorm(width, eps=eps)
        self.nh = nn.RMSNorm(width, eps=eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.block = TransformerBlock(ModelArgs.from_dict({**vars(trunk.args), "layer_types": None}))
        self.norm = nn.RMSNorm(width, eps=eps)
        # Leading underscores keep what is not a weight of the head out of its parameters.
        self._trunk = trunk
        self._contract = contract
        self._draft_ids = draft_ids
        self._output_rows = None if draft_ids is None else trunk.output_rows(mx.array(draft_ids))

    @classmethod
    def load(cls, path: Path, trunk: Trunk, dtype: mx.Dtype) -> "MTPHead":
        """Load a head file for a trunk.

        Raises:
            HeadError: not a safetensors file, missing, unknown or misshapen tensors, draft ids outside the vocabulary, or a bad contract.
        """
        try:
            loaded: Any = mx.load(str(path), format="safetensors", return_metadata=True)
        except (RuntimeError, ValueError) as error:
            raise HeadError(f"{path} is not a readable safetensors file: {error}") from error
        weights: dict[str, mx.array] = loaded[0]
        metadata: dict[str, str] = loaded[1]
        contract = HeadContract.from_json(metadata["contract"]) if "contract" in metadata else HeadContract()
        draft_vocab = weights.pop("draft_vocab", None)
        draft_ids = _draft_ids(path, np.array(draft_vocab), trunk.vocab_size) if draft_vocab is not None else None
        head = cls(trunk, contract, draft_ids)
        expected: dict[str, mx.array] = dict(tree_flatten(head.parameters()))
        missing, unknown = sorted(set(expected) - set(weights)), sorted(set(weights) - set(expected))
        if missing or unknown:
            raise HeadError(f"{path} does not fit: missing tensors {missing or 'none'}, unknown tensors {unknown or 'none'}")
        for name, weight in weights.items():
            if weight.shape != expected[name].shape:
                raise HeadError(f"{path}: {name} must have shape {list(expected[name].shape)}; received {list(weight.shape)}")
        head.load_weights(list(weights.items()))
        head.set_dtype(dtype)
        if head._output_rows is not None:
            head._output_rows = head._output_rows.astype(dtype)
        head.eval()
        mx.eval(head.parameters(), head._output_rows)
        return head

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


def _draft_ids(path: Path, draft_vocab: np.ndarray, vocab_size: int) -> np.ndarray:
    ids = np.unique(draft_vocab)
    if draft_vocab.ndim != 1 or not np.issubdtype(ids.dtype, np.integer) or not 0 < len(ids) == draft_vocab.size:
        raise HeadError(
            f"{path}: draft_vocab must be a vector of distinct ids; received shape {list(draft_vocab.shape)} {draft_vocab.dtype}"
        )
    if ids[0] < 0 or ids[-1] >= vocab_size:
        raise HeadError(f"{path}: draft_vocab must lie in [0, {vocab_size - 1}]; received ids from {ids[0]} to {ids[-1]}")
    return ids.astype(np.int32)
