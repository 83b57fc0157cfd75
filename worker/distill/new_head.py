"""A head before its training: the trunk's last attention layer, fed with hidden state plus embedding, under the trunk's final norm."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from worker.engine.head_contract import HeadContract
from worker.engine.mtp_head import MTPHead
from worker.engine.static_cache import Cursor
from worker.engine.trunk import Trunk

# Smaller, and the block's own norm hides the next token from it: after 60 steps on SmolLM2 (R = 29) the loss was 3.69 with embeddings of
# their own size 0.1, 3.47 with 3, 3.55 with 8.
EMBEDDING_SHARE = 0.15  # of the residual stream's size, at least
SMALLEST_NORM_WEIGHT = 0.05  # of the final norm, relative to its root mean square, when it is divided by


def new_head(trunk: Trunk, draft_ids: NDArray[np.int32] | None, sample: NDArray[np.int32]) -> MTPHead:
    """A head that starts where the trunk ends, float32; the same arguments give the same weights.

    Args:
        trunk: the model.
        draft_ids: ids of the draft vocabulary, [Vd] int32 ascending, or None for the whole vocabulary.
        sample: ids of some text, [T] int32, on which the size of the trunk's residual stream is measured.
    """
    head = MTPHead(trunk, HeadContract(), draft_ids)
    head.set_dtype(mx.float32)
    weights = {f"block.{name}": weight for name, weight in _dense_weights(_last_attention_layer(trunk)).items()}
    width = trunk.width
    # A norm of ones is the norm's own weight, whatever convention the model stores it in.
    final = trunk.norm(mx.ones(width)).astype(mx.float32)
    rms = mx.sqrt(mx.mean(final**2))
    cursor = Cursor(mx.zeros(1, mx.int32), len(sample), window=len(sample))
    residual = trunk.forward(mx.array(sample[None]), trunk.make_caches(len(sample)), cursor).astype(mx.float32)
    size = mx.median(mx.sqrt(mx.mean(residual**2, axis=-1)))
    embedded = trunk.embed(mx.array(sample)).astype(mx.float32)
    floor = SMALLEST_NORM_WEIGHT * rms
    divisor = mx.where(mx.abs(final) < floor, mx.where(final < 0, -floor, floor), final)
    weights |= {
        "norm.weight": final,
        "nh.weight": size * rms / divisor,  # takes the final norm back: the block sees the residual stream it was trained on
        "ne.weight": mx.full(width, mx.maximum(mx.sqrt(mx.mean(embedded**2)), EMBEDDING_SHARE * size)),
        "fc.weight": mx.concatenate([mx.eye(width), mx.eye(width)], axis=1),
    }
    head.load_weights(list(weights.items()))
    mx.eval(head.parameters())
    return head


def _last_attention_layer(trunk: Trunk) -> nn.Module:
    return next(layer for layer in reversed(trunk.body.layers) if hasattr(layer, "self_attn"))


def _dense_weights(layer: nn.Module) -> dict[str, mx.array]:
    """A layer's weights in float32, quantized ones unpacked."""
    weights: dict[str, mx.array] = {}
    for path, module in layer.named_modules():
        own = {name: value for name, value in module.items() if isinstance(value, mx.array) and not name.startswith("_")}
        if "scales" in own:
            biases = own.pop("biases", None)
            own["weight"] = mx.dequantize(
                own["weight"], own.pop("scales"), biases, group_size=module.group_size, bits=module.bits, mode=module.mode
            )
        weights |= {f"{path}.{name}" if path else name: value.astype(mx.float32) for name, value in own.items()}
    return weights
