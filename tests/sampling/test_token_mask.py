"""A row's mask is -inf in its logits: for the target and the draft alike, place by place, and for that row alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from sampling_support import CONFIGS

from sampling.batched import BatchedSampler, BlockResult, DraftStep
from sampling.rows import NO_TOKEN, RowBatch
from sampling.shared_noise import SharedNoiseSampler
from schemas.sampler import SamplerConfig

V, ROWS, DEPTH = 150, 24, 2


@dataclass
class Parity:
    """Every odd row must alternate between even and odd tokens."""

    first: int
    asked: list[list[int]] = field(default_factory=list)

    def along(self, drafts: Sequence[int]) -> NDArray[np.uint8]:
        self.asked.append(list(drafts))
        wanted = [np.arange(V) % 2 == (self.first + place) % 2 for place in range(len(drafts) + 1)]
        return np.packbits(wanted, axis=-1, bitorder="little")


def rows_of(masks: Sequence[Parity | None] | None) -> RowBatch:
    return RowBatch.of(list(range(1, ROWS + 1)), [4] * ROWS, token_counts=[{}] * ROWS, prompt_ids=[[3]] * ROWS, masks=masks)


def with_minus_infinity(logits: np.ndarray, masks: Sequence[Parity | None], place: int) -> mx.array:
    """Logits [B, V] at a place of the block, masked by hand."""
    own = [np.full(V, True) if mask is None else np.arange(V) % 2 == (mask.first + place) % 2 for mask in masks]
    return mx.array(np.where(np.array(own), logits, -np.inf).astype(np.float32))


@pytest.mark.parametrize("kind", [BatchedSampler, SharedNoiseSampler])
@pytest.mark.parametrize("name", ["plain", "greedy", "nucleus", "both", "everything", "all-at-once", "plain-repetition"])
def test_a_mask_is_minus_infinity_in_p_and_q(kind: type[BatchedSampler], name: str) -> None:
    rng = np.random.default_rng(1)
    draft_logits, logits = rng.normal(size=(DEPTH, ROWS, V)), rng.normal(size=(ROWS, DEPTH + 1, V)).astype(np.float32)
    masks = [Parity(row % 4 // 2) if row % 2 else None for row in range(ROWS)]
    sampler = kind(CONFIGS[name], V, end_ids=[2])

    def cycle(rows: RowBatch, draft: Sequence[mx.array], verify: mx.array) -> tuple[list[DraftStep], BlockResult]:
        steps: list[DraftStep] = []
        for one in draft:
            steps.append(sampler.draft(one, rows, steps))
        return steps, sampler.verify(verify, rows, steps)

    steps, block = cycle(rows_of(masks), [mx.array(one.astype(np.float32)) for one in draft_logits], mx.array(logits))
    by_hand = mx.stack([with_minus_infinity(logits[:, place], masks, place) for place in range(DEPTH + 1)], axis=1)
    plain_steps, plain = cycle(rows_of(None), [with_minus_infinity(one, masks, place) for place, one in enumerate(draft_logits)], by_hand)
    assert [step.tokens.tolist() for step in steps] == [step.tokens.tolist() for step in plain_steps]
    for attribute, value in vars(plain).items():
        assert np.array_equal(getattr(block, attribute), value), attribute
    drafted = [[int(step.tokens[1]) for step in steps[:depth]] for depth in range(DEPTH + 1)]
    assert masks[1] is not None
    assert masks[1].asked == drafted  # the mask behind the drafts is the one of those drafts


def test_a_draft_vocabulary_without_an_allowed_token_proposes_nothing() -> None:
    odd_ids = np.arange(1, V, 2)
    masks = [Parity(1) if row % 2 else None for row in range(ROWS)]  # an odd token, then an even one, which the draft does not have
    sampler, rows = BatchedSampler(SamplerConfig(), V, odd_ids), rows_of(masks)
    steps: list[DraftStep] = []
    for _ in range(DEPTH):
        steps.append(sampler.draft(mx.zeros((ROWS, len(odd_ids))), rows, steps))
    assert np.all(steps[0].tokens % 2 == 1)
    assert np.array_equal(steps[1].tokens == NO_TOKEN, np.arange(ROWS) % 2 == 1)
    assert not any(step.failed.any() for step in steps)
    block = sampler.verify(mx.zeros((ROWS, DEPTH + 1, V)), rows, steps)
    assert np.array_equal(block.proposed, np.where(np.arange(ROWS) % 2, 1, DEPTH))
    emitted = [block.tokens[row, : block.accepted[row] + 1].tolist() for row in range(1, ROWS, 2)]
    # On the odd tokens p and q are both flat, so every draft is accepted; behind it the token is drawn from p.
    assert [[token % 2 for token in tokens] for tokens in emitted] == [[1, 0]] * (ROWS // 2)


@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_a_mask_hides_no_fault_of_the_model(fault: float) -> None:
    logits = np.zeros((ROWS, 1, V), np.float32)
    logits[5, 0, 6] = fault  # forbidden by the row's mask
    masks = [Parity(1)] * ROWS
    block = BatchedSampler(SamplerConfig(), V).verify(mx.array(logits), rows_of(masks))
    assert np.flatnonzero(block.failed).tolist() == [5]
    assert (block.nan[5], block.inf[5]) == ((1, 0) if np.isnan(fault) else (0, 1))


def test_masks_are_given_for_every_row() -> None:
    with pytest.raises(ValueError, match="masks must be given for each of 24 rows; received 1"):
        rows_of([None])
