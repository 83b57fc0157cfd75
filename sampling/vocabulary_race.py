"""The exponential race over a whole vocabulary, without the noise of every token.

The smallest noise of a block over the block's largest weight bounds every arrival in it from below. The blocks of the lowest bounds are
opened first; then those whose bound does not exceed the best arrival so far. That is expected to be at most about BLOCK of them: the best
arrival is near 1 / Σ weights, so a block is opened with a probability of about BLOCK times its largest probability, and those sum to 1 at
most.
"""

import numpy as np
from numpy.typing import NDArray

from sampling.exponential_noise import BLOCK, SubKeys, arrivals, block_noise, noise_above, token_noise
from sampling.logit_batch import LogitBatch
from sampling.rows import NO_TOKEN

OPENED_FIRST = 8
"""Blocks opened before there is an arrival to compare with."""

SLACK = 1e-12
"""Relative; exp may be non-monotonic, and division round, in their last bits."""


def vocabulary_race(
    logits: LogitBatch, vocab_ids: NDArray[np.int64] | None, rows: NDArray[np.int64], place: int, keys: SubKeys
) -> NDArray[np.int64]:
    """`exponential_noise.race` on the weights of whole vocabularies.

    Args:
        logits: reduced logits; their mass is not read.
        vocab_ids: `[V] int64`, full id of each local one, ascending; None where they are the same.
        rows: `[R] int64`, rows that are not `bad` at `place`.
        place: the position in the block.
        keys: sub-keys of those rows' positions, two `[R] uint32`.

    Returns:
        `[R] int64`, full ids.
    """
    count = len(rows)
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    starts, blocks = _noise_blocks(logits.vocab_size, vocab_ids)
    ends = np.append(starts[1:], logits.vocab_size)
    top = logits.top[rows, place]
    spread = keys[0][:, None], keys[1][:, None]
    smallest, owner = block_noise(spread, blocks)
    largest = np.stack([np.maximum.reduceat(logits.masked[row, place], starts) for row in rows.tolist()]).astype(np.float64)
    bound = arrivals(smallest, logits.weights(largest, top[:, None])) * (1.0 - SLACK)
    best = _Winners(count)

    def open_blocks(wanted: NDArray[np.bool_]) -> None:
        runner, block = np.nonzero(wanted)
        local = starts[block, None] + np.arange(BLOCK)
        held = local < ends[block, None]
        local = np.where(held, local, starts[block, None])
        ids = local if vocab_ids is None else vocab_ids[local]
        noise = noise_above((keys[0][runner, None], keys[1][runner, None]), ids, smallest[wanted][:, None], owner[wanted][:, None])
        weights = logits.weights(logits.masked[rows[runner, None], place, local].astype(np.float64), top[runner, None])
        best.enter(np.broadcast_to(runner[:, None], ids.shape)[held], arrivals(noise, weights)[held], ids[held])

    # Penalised tokens are absent from `masked`: they race outside the blocks.
    runner, slot = np.nonzero(logits.ids[rows] != NO_TOKEN)
    local = logits.ids[rows[runner], slot]
    ids = local if vocab_ids is None else vocab_ids[local]
    weights = logits.weights(logits.penalised[rows[runner], place, slot], top[runner])
    best.enter(runner, arrivals(token_noise((keys[0][runner], keys[1][runner]), ids), weights), ids)

    first = np.argpartition(bound, min(OPENED_FIRST, len(blocks)) - 1, axis=-1)[:, :OPENED_FIRST]
    opened = np.zeros(bound.shape, dtype=bool)
    np.put_along_axis(opened, first, True, axis=-1)
    open_blocks(opened)
    open_blocks((bound <= best.arrival[:, None]) & ~opened)
    return best.token


def _noise_blocks(vocab: int, vocab_ids: NDArray[np.int64] | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Local id at which each block of the noise begins, and the block's number; two `[N] int64`."""
    if vocab_ids is None:
        starts = np.arange(0, vocab, BLOCK)
        return starts, starts // BLOCK
    numbers = vocab_ids // BLOCK
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    return starts, numbers[starts]


class _Winners:
    """The best arrival of every runner so far, ties to the lowest id."""

    def __init__(self, count: int) -> None:
        self.arrival = np.full(count, np.inf)
        self.token = np.full(count, np.iinfo(np.int64).max)

    def enter(self, runners: NDArray[np.int64], arrived: NDArray[np.float64], ids: NDArray[np.int64]) -> None:
        before = self.arrival.copy()
        np.minimum.at(self.arrival, runners, arrived)
        self.token[self.arrival < before] = np.iinfo(np.int64).max
        level = arrived == self.arrival[runners]
        np.minimum.at(self.token, runners[level], ids[level])
