"""Rows of several configs in one batch: each gets, bit for bit, what it gets under its own config alone, whoever sits beside it."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from sampling import SamplerConfig
from sampling.batched import BatchedSampler, BlockResult, DraftStep, Sampler
from sampling.grouped import GroupedSampler
from sampling.rows import NO_TOKEN, RowBatch
from sampling.shared_noise import SharedNoiseSampler

VOCAB, DEPTH = 1500, 2
CONFIGS = (
    SamplerConfig(),
    SamplerConfig(temperature=0.7, top_p=0.9),
    SamplerConfig(temperature=0.0),
    SamplerConfig(temperature=1.3, top_k=70),
    SamplerConfig(temperature=1.3, top_k=70, logit_bias={"3": 4.0}),
    SamplerConfig(top_p=0.95, presence_penalty=1.0, repetition_penalty=1.2),
    SamplerConfig(temperature=0.9, min_p=0.01, min_tokens=50),
)
ROWS = 2 * len(CONFIGS)
END_IDS = [4, 9]
COUPLINGS = {"rejection": BatchedSampler, "shared-noise": SharedNoiseSampler}
PROPOSALS = {"drawn": 0.0, "drawn and proposed": 0.5, "proposed": 1.0}


class Mixed:
    """Logits, keys, counts, prompts and configs of ROWS rows, and the proposals of a lookup."""

    def __init__(self, seed: int, share: float) -> None:
        rng = np.random.default_rng(seed)
        spread = rng.choice([1.0, 4.0], size=(ROWS, 1, 1))
        self.target = (rng.normal(size=(ROWS, DEPTH + 1, VOCAB)) * spread).astype(np.float32)
        self.head = self.target[:, :DEPTH] + rng.normal(size=(ROWS, DEPTH, VOCAB)).astype(np.float32) * 0.5
        self.keys = rng.integers(0, 2**64, size=ROWS, dtype=np.uint64)
        self.positions = rng.integers(0, 99, size=ROWS)
        self.counts = [dict.fromkeys(rng.integers(0, VOCAB, size=3 * row).tolist(), 2) for row in range(ROWS)]
        self.prompts = [rng.integers(0, VOCAB, size=2 * row).tolist() for row in range(ROWS)]
        self.found = rng.random((DEPTH, ROWS)) < share
        best = self.target.argmax(axis=-1).T[:DEPTH]
        self.lookups = np.where(rng.random((DEPTH, ROWS)) < 0.2, NO_TOKEN, best)
        self.configs = [CONFIGS[row] for row in rng.permutation(ROWS) % len(CONFIGS)]
        self.everything_proposed = share == 1.0

    def rows(self, chosen: list[int], active: list[bool] | None = None) -> RowBatch:
        return RowBatch.of(
            self.keys[chosen],
            self.positions[chosen],
            active,
            [self.counts[row] for row in chosen],
            [self.prompts[row] for row in chosen],
            [self.configs[row] for row in chosen],
        )

    def block(self, sampler: Sampler, chosen: list[int], active: list[bool] | None = None) -> BlockResult:
        rows, steps = self.rows(chosen, active), []
        for place in range(DEPTH):
            if self.everything_proposed:
                steps.append(DraftStep.one_hot(self.lookups[place, chosen], VOCAB))
                continue
            drawn = sampler.draft(mx.array(self.head[chosen, place]), rows, steps)
            steps.append(DraftStep.where(self.found[place, chosen], self.lookups[place, chosen], drawn))
        return sampler.verify(mx.array(self.target[chosen]), rows, steps)


def grouped(coupling: type[BatchedSampler], *, mass_on_device: bool = False) -> GroupedSampler:
    return GroupedSampler(lambda config: coupling(config, VOCAB, end_ids=END_IDS, mass_on_device=mass_on_device))


def assert_row_equal(block: BlockResult, row: int, other: BlockResult, at: int) -> None:
    for name, values in vars(block).items():
        np.testing.assert_array_equal(values[row], getattr(other, name)[at], err_msg=f"{name} of row {row}")


@pytest.mark.parametrize("share", PROPOSALS.values(), ids=PROPOSALS)
@pytest.mark.parametrize("coupling", COUPLINGS.values(), ids=COUPLINGS)
@pytest.mark.parametrize("mass_on_device", [False, True], ids=["host", "device"])
def test_a_row_among_others_is_the_row_alone_bit_for_bit(coupling, share, mass_on_device):
    everyone = list(range(ROWS))
    for seed in range(2):
        mixed = Mixed(seed, share)
        together = mixed.block(grouped(coupling, mass_on_device=mass_on_device), everyone)
        assert together.accepted.max() > 0
        for row in everyone:
            own = coupling(mixed.configs[row], VOCAB, end_ids=END_IDS, mass_on_device=mass_on_device)
            assert_row_equal(together, row, mixed.block(own, [row]), 0)


def test_order_and_empty_slots_do_not_matter():
    mixed, sampler = Mixed(7, 0.5), grouped(BatchedSampler)
    together = mixed.block(sampler, list(range(ROWS)))
    chosen = [9, 0, 4, 13, 2, 6, 11]
    active = [True, True, False, True, False, True, True]
    block = mixed.block(sampler, chosen, active)
    for slot, row in enumerate(chosen):
        if active[slot]:
            assert_row_equal(block, slot, together, row)
    assert not block.failed.any()


def test_a_broken_row_is_named_and_the_other_groups_go_on():
    mixed, sampler = Mixed(8, 0.0), grouped(BatchedSampler)
    everyone = list(range(ROWS))
    clean = mixed.block(sampler, everyone)
    mixed.target[5, 0, 17] = np.nan
    block = mixed.block(sampler, everyone)
    assert block.failed.tolist() == [row == 5 for row in everyone]
    assert block.nan[5] == 1
    for row in everyone:
        if row != 5:
            assert_row_equal(block, row, clean, row)


def test_rows_without_a_config_are_refused():
    mixed = Mixed(1, 0.0)
    rows = replace(mixed.rows([0, 1]), configs=None)
    with pytest.raises(ValueError, match="configs must be given for every row"):
        grouped(BatchedSampler).verify(mx.array(mixed.target[:2, :1]), rows)
    with pytest.raises(ValueError, match="configs must be given for each of 2 rows; received 1"):
        RowBatch.of([1, 2], [0, 0], configs=[SamplerConfig()])
