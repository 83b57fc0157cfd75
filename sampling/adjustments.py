"""The tokens of a block whose logits are not taken as they come: biased, penalised or forbidden."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sampling.penalties import bias_of
from sampling.rows import NO_TOKEN, RowBatch
from schemas.sampler import SamplerConfig


@dataclass(frozen=True, eq=False)
class Adjustments:
    """Per row S tokens, and what changes their logits at each of T positions.

    Attributes:
        ids: `[B, S] int64`, distinct per row; -1 in a slot that holds none. A row's are a function of that row.
        counts: `[B, T, S] int64`, occurrences in the completion before the position.
        present: `[B, T, S] bool`: the prompt or the completion holds the token.
        bias: `[B, S] float64`, added to the logit.
        forbidden: `[B, T, S] bool`: the token has probability 0.
    """

    ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    present: NDArray[np.bool_]
    bias: NDArray[np.float64]
    forbidden: NDArray[np.bool_]

    @classmethod
    def none(cls, rows: int, places: int) -> "Adjustments":
        """No token, for B rows at T positions."""
        empty = np.zeros((rows, places, 0), dtype=np.int64)
        return cls(empty[:, 0], empty, empty.astype(bool), np.zeros((rows, 0)), empty.astype(bool))

    def held(self, row: int) -> NDArray[np.bool_]:
        """Which of a row's S slots hold a token, `[S] bool`."""
        slots: NDArray[np.bool_] = self.ids[row] != NO_TOKEN
        return slots


def adjustments_along(
    rows: RowBatch, drafts: NDArray[np.int64], config: SamplerConfig, end_ids: NDArray[np.int64], places: Sequence[int]
) -> Adjustments:
    """What changes the logits at each place of a block; its drafts count behind them.

    Args:
        rows: the rows; their prompt's ids are needed for a repetition penalty.
        drafts: `[B, K] int64`; `NO_TOKEN` adds to no count.
        config: the sampler config.
        end_ids: `[E] int64`, what `min_tokens` forbids.
        places: T places in the block, 0 to K.

    Raises:
        ValueError: the config has a repetition penalty and the rows have no prompt ids.
    """
    if config.reads_prompt and rows.prompt_ids is None:
        raise ValueError(f"prompt_ids must be given for a repetition penalty of {config.repetition_penalty:g}; received None")
    count, where = len(rows), np.array(places)
    biased, biases = bias_of(config)
    early = rows.positions[:, None] + where < config.min_tokens  # [B, T]
    ends = np.unique(end_ids)
    found: list[NDArray[np.int64]] = []
    for row in range(count):
        parts = [biased]
        if early[row].any():
            parts.append(ends)
        if config.has_penalties:
            parts += [rows.count_ids[row], drafts[row]]
        if config.reads_prompt and rows.prompt_ids is not None:
            parts.append(rows.prompt_ids[row])
        ids = np.unique(np.concatenate(parts))
        found.append(ids[ids != NO_TOKEN])
    width = max((len(ids) for ids in found), default=0)
    if width == 0:
        return Adjustments.none(count, len(where))

    ids = np.full((count, width), NO_TOKEN, dtype=np.int64)
    bias = np.zeros((count, width))
    counts = np.zeros((count, len(where), width), dtype=np.int64)
    present = np.zeros(counts.shape, dtype=bool)
    forbidden = np.zeros(counts.shape, dtype=bool)
    for row, own in enumerate(found):
        ids[row, : len(own)] = own
        bias[row, np.searchsorted(own, biased)] = biases
        if early[row].any():
            forbidden[row][np.ix_(early[row], np.searchsorted(own, ends))] = True
        if not config.has_penalties:
            continue
        held = rows.count_ids[row] != NO_TOKEN
        counts[row, :, np.searchsorted(own, rows.count_ids[row, held])] = rows.counts[row, held, None]
        for step, token in enumerate(drafts[row].tolist()):
            if token != NO_TOKEN:
                counts[row, where > step, np.searchsorted(own, token)] += 1
        present[row] = counts[row] > 0
        if config.reads_prompt and rows.prompt_ids is not None:
            read = rows.prompt_ids[row]
            present[row, :, np.searchsorted(own, read[read != NO_TOKEN])] = True
    return Adjustments(ids, counts, present, bias, forbidden)
