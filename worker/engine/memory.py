"""What a cohort will need of the machine's memory, estimated before it is built, and the refusal when it cannot fit."""

import os
from collections.abc import Sequence

import mlx.core as mx

from schemas.errors import EngineError
from worker.engine.layer_cache import LayerCache

SHARE = 0.9  # of the memory, that the model and a cohort may use; the rest is the system's and the passes' own


def cohort_bytes(prefilled: Sequence[LayerCache], slots: int, depth: int, vocab_size: int, beginnings: int = 0) -> int:
    """Bytes of a cohort's caches and logits.

    Args:
        prefilled: the caches of one row, filled, whose shapes every slot repeats.
        slots: B.
        depth: K.
        vocab_size: V; the logits of a cycle are [B, K + 1, V] float32.
        beginnings: of prompts that may be kept at a time, each as large as a slot.
    """
    row = sum(buffer.nbytes for cache in prefilled for buffer in cache.buffers)
    return (slots + beginnings) * row + 4 * slots * (depth + 1) * vocab_size


def available_bytes() -> int | None:
    """Memory that the device may use, in bytes: the GPU's recommended working set, else the machine's; None where nothing says."""
    info = mx.device_info()
    for key in ("max_recommended_working_set_size", "memory_size"):
        if key in info:
            return int(info[key])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def check_fit(needed: int, *, slots: int, capacity: int) -> None:
    """Refuse a cohort that would not fit beside what is loaded already.

    Args:
        needed: bytes of the cohort.
        slots: B.
        capacity: positions per slot.

    Raises:
        EngineError: with the numbers, and what to lower.
    """
    limit = available_bytes()
    held = mx.get_active_memory()
    if limit is not None and held + needed > SHARE * limit:
        raise EngineError(
            f"{slots} slots of {capacity} positions need {needed / 1e9:.1f} GB beside the {held / 1e9:.1f} GB that are held; "
            f"available are {SHARE:.0%} of {limit / 1e9:.1f} GB: lower --slots or --max-tokens"
        )
