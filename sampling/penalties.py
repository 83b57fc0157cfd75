"""What changes raw logits before the softmax: logit bias, and the penalties on tokens that occurred already."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from schemas.sampler import SamplerConfig

TokenCounts = Mapping[int, int] | NDArray[np.integer[Any]]


def apply_penalties(logits: ArrayLike, config: SamplerConfig, token_counts: TokenCounts | None, prompt_ids: ArrayLike = ()) -> ArrayLike:
    """Logit bias, then the repetition penalty, then OpenAI's `logit -= frequency · count + presence · (count > 0)`.

    Args:
        logits: `[V]`, any real dtype; never mutated.
        config: its three penalties and its bias are read.
        token_counts: how often each token occurs in the completion so far (never the prompt): a mapping id → count, or an integer
            vector `[V]`. None means an empty completion.
        prompt_ids: the prompt's tokens, for the repetition penalty alone; repeated ones do not matter.

    Returns:
        `logits` itself when nothing would change, else a new `[V] float64` vector.

    Raises:
        ValueError: a count is negative, an id lies outside [0, V), or the vector is not `[V]`.
    """
    size = len(np.asarray(logits))
    none = np.zeros(0, dtype=np.int64)
    counted, counts = none, none
    if config.has_penalties and token_counts is not None and len(token_counts):
        counted, counts = sparse_counts(token_counts, size)
    read = np.unique(np.asarray(prompt_ids, dtype=np.int64)) if config.reads_prompt else none
    biased, biases = bias_of(config)
    ids = np.unique(np.concatenate([counted, read, biased]))
    if len(ids) == 0:
        return logits
    if ids[0] < 0 or ids[-1] >= size:
        raise ValueError(f"logit_bias and prompt_ids must be in [0, {size}); received {ids[0]} to {ids[-1]}")
    count_of, bias_at = np.zeros(len(ids), dtype=np.int64), np.zeros(len(ids))
    count_of[np.searchsorted(ids, counted)] = counts
    bias_at[np.searchsorted(ids, biased)] = biases
    penalised = np.array(logits, dtype=np.float64)
    penalised[ids] = adjusted(penalised[ids], config, bias_at, (count_of > 0) | np.isin(ids, read), count_of)
    return penalised


def adjusted(
    logits: NDArray[np.float64],
    config: SamplerConfig,
    bias: NDArray[np.float64],
    present: NDArray[np.bool_],
    counts: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Logits of single tokens after bias and penalties; all arguments broadcast together.

    Args:
        logits: float64.
        config: its three penalties are read.
        bias: float64, added first.
        present: whether the prompt or the completion holds the token.
        counts: how often the completion holds it.
    """
    biased = logits + bias
    if config.reads_prompt:
        repeated = np.where(biased > 0.0, biased / config.repetition_penalty, biased * config.repetition_penalty)
        biased = np.where(present, repeated, biased)
    subtracted: NDArray[np.float64] = biased - (config.frequency_penalty * counts + config.presence_penalty * (counts > 0))
    return subtracted


def bias_of(config: SamplerConfig) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The token ids of the logit bias, `[N] int64` ascending, and what is added to each, `[N] float64`."""
    return np.array([int(token) for token in config.logit_bias], dtype=np.int64), np.array(
        list(config.logit_bias.values()), dtype=np.float64
    )


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
