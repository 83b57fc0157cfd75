"""`GroupedSampler`: rows with different sampler configs in one batch.

The batch is taken apart into groups of equal configs, each group is drafted or judged by the `BatchedSampler` of its config, and the
results are put back in their places. A row's result is a function of that row alone, so it is what the row would get among its like.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from sampling.batched import BatchedSampler, BlockResult, DraftStep
from sampling.candidates import CandidateBatch
from sampling.grouped_batch import GroupedBatch
from sampling.rows import RowBatch
from schemas.sampler import SamplerConfig

Index = NDArray[np.int64]


class GroupedSampler:
    """Drafts and verifies batches whose `RowBatch` says the config of every row.

    Args:
        make: the sampler of a config; called once for each. All have one vocabulary.
    """

    def __init__(self, make: Callable[[SamplerConfig], BatchedSampler]) -> None:
        self._make = make
        self._samplers: dict[SamplerConfig, BatchedSampler] = {}

    def draft(self, logits: mx.array, rows: RowBatch, earlier: Sequence[DraftStep] = ()) -> DraftStep:
        """`BatchedSampler.draft`, each row under its own config."""
        groups = self._groups(rows)
        if len(groups) == 1:
            return groups[0][0].draft(logits, rows, earlier)
        parts = [
            (mine, index, sampler.draft(logits[mx.array(index)], rows.take(index, len(mine)), [_part(step, index) for step in earlier]))
            for sampler, mine, index in groups
        ]
        count = len(rows)
        tokens, failed = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
        nan, inf = np.zeros_like(tokens), np.zeros_like(tokens)
        for mine, _, step in parts:
            for whole, part in ((tokens, step.tokens), (failed, step.failed), (nan, step.nan), (inf, step.inf)):
                whole[mine] = part[: len(mine)]
        q = GroupedBatch(tuple((index, step.q) for _, index, step in parts), parts[0][2].q.vocab_size)
        return DraftStep(tokens, q, failed, nan, inf)

    def verify(self, logits: mx.array, rows: RowBatch, drafts: Sequence[DraftStep] = ()) -> BlockResult:
        """`BatchedSampler.verify`, each row under its own config."""
        groups = self._groups(rows)
        if len(groups) == 1:
            return groups[0][0].verify(logits, rows, drafts)
        blocks = [
            (mine, sampler.verify(logits[mx.array(index)], rows.take(index, len(mine)), [_part(step, index) for step in drafts]))
            for sampler, mine, index in groups
        ]
        whole = {name: np.zeros((len(rows), *part.shape[1:]), dtype=part.dtype) for name, part in vars(blocks[0][1]).items()}
        for mine, block in blocks:
            for name, part in vars(block).items():
                whole[name][mine] = part[: len(mine)]
        return BlockResult(**whole)

    def _groups(self, rows: RowBatch) -> list[tuple[BatchedSampler, Index, Index]]:
        """The sampler of each group, its rows, and the index that stands for them; inactive rows are in the first group.

        A GPU may choose its kernel, and with it the rounding of a row, by the number of rows: there every index is as long as the batch.
        """
        if rows.configs is None:
            raise ValueError("configs must be given for every row of a batch that is sampled in groups; received None")
        members: dict[SamplerConfig, list[int]] = {}
        idle: list[int] = []
        for row, config in enumerate(rows.configs):
            if rows.active[row]:
                members.setdefault(config, []).append(row)
            else:
                idle.append(row)
        first = next(iter(members), rows.configs[0])
        members[first] = sorted([*members.get(first, []), *idle])
        groups = []
        for config, found in members.items():
            if config not in self._samplers:
                self._samplers[config] = self._make(config)
            sampler, mine = self._samplers[config], np.array(found, dtype=np.int64)
            filled = len(rows) - len(mine) if sampler.mass_on_device else 0
            groups.append((sampler, mine, np.append(mine, np.full(filled, mine[0]))))
        return groups


def _part(step: DraftStep, index: Index) -> DraftStep:
    """The rows of a group out of a step of the whole batch: one that was drawn in the same groups, or one that was proposed."""
    q = step.distribution
    if isinstance(q, GroupedBatch):
        part = q.part(index)
    else:
        assert isinstance(q, CandidateBatch)
        part = q.take(index)
    return DraftStep(step.tokens[index], part, step.failed[index], step.nan[index], step.inf[index])
