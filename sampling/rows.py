"""What the batched sampler must know about each row of a batch: its key, its place in the completion and its token counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

NO_TOKEN = -1
"""Pads `count_ids`, and the emitted tokens behind a block's last one; as a draft: the row proposes nothing, here or deeper."""


@dataclass(frozen=True, eq=False)
class RowBatch:
    """The rows of one cycle.

    Attributes:
        keys: `[B] uint64`, from `row_key`.
        positions: `[B] int64`, completion index of the first token that the cycle emits.
        active: `[B] bool`; an inactive row is computed on placeholders, reports no error and its results mean nothing.
        count_ids: `[B, L] int64`, the distinct tokens of the completion so far, padded with -1.
        counts: `[B, L] int64`, how often each occurs; ≥ 0.
    """

    keys: NDArray[np.uint64]
    positions: NDArray[np.int64]
    active: NDArray[np.bool_]
    count_ids: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        keys: ArrayLike,
        positions: ArrayLike,
        active: ArrayLike | None = None,
        token_counts: Sequence[Mapping[int, int]] | None = None,
    ) -> "RowBatch":
        """Build a batch from per-row values.

        Args:
            keys: `[B]` row keys in [0, 2**64).
            positions: `[B]`, ≥ 0; an inactive row's is not read.
            active: `[B]` bool; None means all.
            token_counts: for each row, token id → occurrences in its completion so far; None means empty completions (or a config
                without penalties, which never reads them).

        Raises:
            ValueError: the lengths differ.
        """
        key_words = np.asarray(keys, dtype=np.uint64)
        rows = len(key_words)
        held = token_counts if token_counts is not None else [{}] * rows
        places = np.asarray(positions, dtype=np.int64)
        alive = np.ones(rows, dtype=bool) if active is None else np.asarray(active, dtype=bool)
        if not places.shape == alive.shape == (len(held),) == (rows,):
            raise ValueError(
                f"keys, positions, active and token_counts must agree on B; received {rows}, {places.shape}, {alive.shape}, {len(held)}"
            )
        width = max((len(row) for row in held), default=0)
        ids = np.full((rows, width), NO_TOKEN, dtype=np.int64)
        counts = np.zeros((rows, width), dtype=np.int64)
        for row, occurrences in enumerate(held):
            ids[row, : len(occurrences)] = list(occurrences.keys())
            counts[row, : len(occurrences)] = list(occurrences.values())
        return cls(key_words, np.where(alive, places, 0), alive, ids, counts)

    def __len__(self) -> int:
        return len(self.keys)

    def counts_along(self, drafts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Token counts at every position of a block: the completion plus the drafts before that position.

        Args:
            drafts: `[B, K] int64` draft tokens; `NO_TOKEN` adds to no count.

        Returns:
            ids `[B, L + K]`, distinct per row and padded with -1, and their counts `[B, K + 1, L + K]`.
        """
        rows, depth = drafts.shape
        width = self.count_ids.shape[1]
        ids = np.concatenate([self.count_ids, np.full((rows, depth), NO_TOKEN, dtype=np.int64)], axis=1)
        counts = np.zeros((rows, depth + 1, width + depth), dtype=np.int64)
        counts[:, 0, :width] = self.counts
        for step in range(depth):
            token = drafts[:, step : step + 1]
            known = (ids == token).any(axis=1)
            ids[:, width + step] = np.where(known, NO_TOKEN, token[:, 0])
            counts[:, step + 1] = counts[:, step] + ((ids == token) & (token != NO_TOKEN))
        return ids, counts
