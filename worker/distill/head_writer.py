"""A trained head to its file, in specmill's own layout, with its contract and how it came to be."""

from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from worker.distill.checkpoint import write_safetensors
from worker.distill.distillation import KEY, Distillation
from worker.engine.head_contract import HeadContract
from worker.engine.mtp_head import MTPHead

STORED = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}


def round_weights(head: MTPHead, stored: str) -> None:
    """Give the head the weights that its file will hold, computed in float32 as before."""
    head.set_dtype(STORED[stored])
    head.set_dtype(mx.float32)
    mx.eval(head.parameters())


def write_head(path: Path, head: MTPHead, stored: str, distillation: Distillation) -> None:
    """Write a head, whole or not at all.

    Args:
        path: the file.
        head: made with the default contract.
        stored: a key of `STORED`.
        distillation: what the file says of itself.
    """
    weights: dict[str, mx.array] = dict(tree_flatten(head.parameters()))
    arrays = {name: weight.astype(STORED[stored]) for name, weight in weights.items()}
    if head.draft_ids is not None:
        arrays["draft_vocab"] = mx.array(head.draft_ids)
    write_safetensors(path, arrays, {"contract": HeadContract().to_json(), KEY: distillation.to_json()})
