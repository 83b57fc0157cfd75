"""What the batched sampler must know about each row of a batch: its key, its place in the completion and its token counts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sampling.token_mask import TokenMask
from schemas.sampler import SamplerConfig

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
        prompt_ids: `[B, P] int64`, the tokens of the prompt, padded with -1; None where they were not given.
        configs: the config of each of B rows, for a `GroupedSampler`, which needs them; None where they were not given.
        masks: what the next tokens of each of B rows may be, None for a row that is free; None where all are.
    """

    keys: NDArray[np.uint64]
    positions: NDArray[np.int64]
    active: NDArray[np.bool_]
    count_ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    prompt_ids: NDArray[np.int64] | None = None
    configs: tuple[SamplerConfig, ...] | None = None
    masks: tuple[TokenMask | None, ...] | None = None

    @classmethod
    def of(
        cls,
        keys: ArrayLike,
        positions: ArrayLike,
        active: ArrayLike | None = None,
        token_counts: Sequence[Mapping[int, int]] | None = None,
        prompt_ids: Sequence[Collection[int]] | None = None,
        configs: Sequence[SamplerConfig] | None = None,
        masks: Sequence[TokenMask | None] | None = None,
    ) -> "RowBatch":
        """Build a batch from per-row values.

        Args:
            keys: `[B]` row keys in [0, 2**64).
            positions: `[B]`, ≥ 0; an inactive row's is not read.
            active: `[B]` bool; None means all.
            token_counts: for each row, token id → occurrences in its completion so far; None means empty completions (or a config
                without penalties, which never reads them).
            prompt_ids: for each row, the tokens of its prompt, best each once; read by a config with a repetition penalty alone, which
                needs them.
            configs: `[B]` sampler configs, for a `GroupedSampler`.
            masks: `[B]` masks of the next tokens, None for a row that is free; None where all are.

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
        for name, given in (("prompt_ids", prompt_ids), ("configs", configs), ("masks", masks)):
            if given is not None and len(given) != rows:
                raise ValueError(f"{name} must be given for each of {rows} rows; received {len(given)}")
        ids = _padded([row.keys() for row in held])
        counts = np.zeros(ids.shape, dtype=np.int64)
        for row, occurrences in enumerate(held):
            counts[row, : len(occurrences)] = list(occurrences.values())
        return cls(
            key_words,
            np.where(alive, places, 0),
            alive,
            ids,
            counts,
            None if prompt_ids is None else _padded(prompt_ids),
            None if configs is None else tuple(configs),
            None if masks is None else tuple(masks),
        )

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, index: NDArray[np.int64], used: int) -> "RowBatch":
        """The rows at `index` `[R]`, without their configs; only the first `used` of them are active, if they were."""
        return RowBatch(
            self.keys[index],
            self.positions[index],
            self.active[index] & (np.arange(len(index)) < used),
            self.count_ids[index],
            self.counts[index],
            None if self.prompt_ids is None else self.prompt_ids[index],
            masks=None if self.masks is None else tuple(self.masks[row] for row in index.tolist()),
        )


def _padded(lists: Sequence[Collection[int]]) -> NDArray[np.int64]:
    width = max((len(row) for row in lists), default=0)
    padded = np.full((len(lists), width), NO_TOKEN, dtype=np.int64)
    for row, ids in enumerate(lists):
        padded[row, : len(ids)] = list(ids)
    return padded
