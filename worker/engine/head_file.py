"""`HeadFile`: an MTP head as it lies on the disk, in any of the known layouts, read into the names of `MTPHead`.

Our own layout: `ne.weight`, `nh.weight` (norms of embedding and hidden state), `fc.weight` [D, 2D], `block.*` (a decoder layer of the
trunk's kind), `norm.weight`, optionally `draft_vocab` [Vd] int32 in any order. Whatever the layout, the metadata key `contract` may hold a
`HeadContract`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from schemas.errors import HeadError
from worker.engine.head_contract import HeadContract
from worker.engine.head_layout import HeadLayout, layers_of, recognise

ZERO_CENTRED = ("ne.weight", "nh.weight", "norm.weight", "layernorm.weight", "q_norm.weight", "k_norm.weight")


@dataclass(frozen=True)
class HeadFile:
    """What a file, or a model folder, holds of a head.

    Attributes:
        layout: the layout's name.
        weights: tensors under `MTPHead`'s names; those of the first MTP layer where there are several.
        contract: the file's own, else its family's.
        draft_vocab: the ids it drafts, [Vd] integer, or None.
        deeper: the tensors of the other layers, in their order.
    """

    layout: str
    weights: dict[str, mx.array]
    contract: HeadContract
    draft_vocab: np.ndarray | None
    deeper: tuple[dict[str, mx.array], ...] = ()

    @classmethod
    def read(cls, path: Path) -> "HeadFile":
        """Read a head from a safetensors file, or from the files of a model folder that carries one among its weights.

        Raises:
            HeadError: not safetensors, or no head of a known layout.
            DecodeError: a contract that cannot be read.
        """
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        weights: dict[str, mx.array] = {}
        metadata: dict[str, str] = {}
        for file in files:
            tensors, about = _load(file)
            weights |= tensors
            metadata |= about
        draft_vocab = weights.pop("draft_vocab", None)
        recognised = recognise(weights)
        if recognised is None:
            some = ", ".join(sorted(weights)[:3]) or "no tensor"
            raise HeadError(f"{path} holds no MTP head of a known layout (specmill, qwen, deepseek, mimo); it holds {some} …")
        layout, prefixes = recognised
        layers = layers_of(layout, prefixes, weights)
        if layout.name == "qwen" and _is_raw_export(weights, metadata, path):
            layers = [
                {name: tensor + 1.0 if name.endswith(ZERO_CENTRED) and tensor.ndim == 1 else tensor for name, tensor in layer.items()}
                for layer in layers
            ]
        return cls(
            layout=layout.name,
            weights=layers[0],
            contract=_contract(metadata, layout),
            draft_vocab=None if draft_vocab is None else np.array(draft_vocab),
            deeper=tuple(layers[1:]),
        )


def _contract(metadata: dict[str, str], layout: HeadLayout) -> HeadContract:
    return HeadContract.from_json(metadata["contract"]) if "contract" in metadata else layout.contract


def _is_raw_export(weights: dict[str, mx.array], metadata: dict[str, str], path: Path) -> bool:
    """Whether a Qwen head comes straight from the original repository, whose norms are stored zero-centred.

    Decided by where it lies, never by its values: the original repository keeps the convolutions of the trunk in torch's layout
    ([C, 1, K]; converted ones are [C, K, 1]). Where only those files of a folder are here that hold the head, torch's mark in their
    metadata stands for that. A file without any trunk beside it counts as converted.
    """
    for name, tensor in weights.items():
        if name.endswith("conv1d.weight"):
            return bool(tensor.shape[-1] != 1)
    if not path.is_dir():
        for beside in sorted(path.parent.glob("model*.safetensors")):
            if beside != path:
                for name, tensor in _load(beside)[0].items():
                    if name.endswith("conv1d.weight"):
                        return bool(tensor.shape[-1] != 1)
    return path.is_dir() and metadata.get("format") == "pt"


def _load(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    """Tensors (read when they are used) and metadata of a safetensors file."""
    try:
        loaded: Any = mx.load(str(path), format="safetensors", return_metadata=True)
    except (RuntimeError, ValueError) as error:
        raise HeadError(f"{path} is not a readable safetensors file: {error}") from error
    return loaded[0], loaded[1]
