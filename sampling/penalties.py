"""Presence and frequency penalties on raw logits, by OpenAI's formula."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from schemas.sampler import SamplerConfig

TokenCounts = Mapping[int, int] | NDArray[np.integer[Any]]


def apply_penalties(logits: ArrayLike, config: SamplerConfig, token_counts: TokenCounts | None) -> ArrayLike:
    """`logit -= frequency · count + presence · (count > 0)` for every token the completion already holds.

    Args:
        logits: `[V]`, any real dtype; never mutated.
        config: only its two penalties are read.
        token_counts: how often each token occurs in the completion so far (never the prompt): a mapping id → count, or an integer
            vector `[V]`. None means an empty completion.

    Returns:
        `logits` itself when nothing would change, else a new `[V] float64` vector.

    Raises:
        ValueError: a count is negative, an id lies outside [0, V), or the vector is not `[V]`.
    """
    if not config.has_penalties or token_counts is None or len(token_counts) == 0:
        return logits
    penalised = np.array(logits, dtype=np.float64)
    ids, counts = sparse_counts(token_counts, len(penalised))
    if len(ids) == 0:
        return logits
    penalised[ids] -= penalty(counts, config)
    return penalised


def penalty(counts: NDArray[np.int64], config: SamplerConfig) -> NDArray[np.float64]:
    """What is subtracted from the logit of a token that occurred `counts` times; any shape, float64."""
    subtracted: NDArray[np.float64] = config.frequency_penalty * counts + config.presence_penalty * (counts > 0)
    return subtracted


def sparse_counts(token_counts: TokenCounts, vocab_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids `[N] int64` whose count is positive, and those counts `[N] int64`.

    Raises:
        ValueError: a count is negative, an id lies outside [0, vocab_size), or a vector has another length.
    """
    if isinstance(token_counts, Mapping):
        ids = np.fromiter(token_counts.keys(), dtype=np.int64, count=len(token_counts))
        counts = np.fromiter(token_counts.values(), dtype=np.int64, count=len(token_counts))
        if len(ids) and not (ids.min() >= 0 and ids.max() < vocab_size):
            raise ValueError(f"token_counts ids must be in [0, {vocab_size}); received {ids.min()} to {ids.max()}")
    else:
        counts = np.asarray(token_counts, dtype=np.int64)
        if counts.shape != (vocab_size,):
            raise ValueError(f"token_counts must have shape ({vocab_size},); received {counts.shape}")
        ids = np.arange(vocab_size, dtype=np.int64)
    if len(counts) and counts.min() < 0:
        raise ValueError(f"token_counts must be >= 0; received {counts.min()}")
    held = counts > 0
    return ids[held], counts[held]
