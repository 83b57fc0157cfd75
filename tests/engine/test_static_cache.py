"""Slots of a static cache against passes without one: scatter, mask, rollback, insertion."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load

from worker.engine.static_cache import Cursor, StaticCache
from worker.engine.trunk import Trunk


@pytest.fixture(scope="module")
def trunk(tiny) -> Trunk:
    return Trunk.load(tiny[0], mx.float32)


def plain_logits(folder, tokens: list[int]) -> np.ndarray:
    model, _ = load(str(folder))
    return np.array(model(mx.array([tokens])))[0]


def test_ragged_rows_with_rollback_equal_passes_without_a_cache(tiny, trunk: Trunk) -> None:
    """Five cycles at B = 3 that keep different counts and overwrite what was rejected, against the prefix alone, bit for bit."""
    rng = np.random.default_rng(1)
    caches = [StaticCache(64) for _ in range(trunk.layers)]
    committed: list[list[int]] = [[], [], []]
    for _ in range(5):
        tokens = rng.integers(3, 300, size=(3, 4))
        cursor = Cursor(mx.array([len(row) for row in committed], mx.int32), tokens=4, window=64)
        logits = np.array(trunk.logits(trunk.norm(trunk.forward(mx.array(tokens), caches, cursor))))
        for row, kept in enumerate(rng.integers(1, 5, size=3)):
            committed[row] += tokens[row, :kept].tolist()
            alone = plain_logits(tiny[0], committed[row])[-1]
            np.testing.assert_array_equal(logits[row, kept - 1], alone)


def test_a_window_changes_no_bit_and_hides_nothing(trunk: Trunk) -> None:
    tokens = mx.array([[5, 6, 7, 8]])
    outputs = []
    for capacity, window in ((64, 64), (64, 8), (256, 32)):
        caches = [StaticCache(capacity) for _ in range(trunk.layers)]
        outputs.append(np.array(trunk.forward(tokens, caches, Cursor(mx.array([0], mx.int32), tokens=4, window=window))))
    np.testing.assert_array_equal(outputs[1], outputs[0])
    np.testing.assert_array_equal(outputs[2], outputs[0])


def test_insert_replaces_all_of_a_slot() -> None:
    batch, single = StaticCache(16), StaticCache(16)
    batch.cursor = Cursor(mx.array([0, 0], mx.int32), tokens=8, window=16)
    batch.update_and_fetch(mx.full((2, 1, 8, 4), float("nan")), mx.full((2, 1, 8, 4), float("nan")))
    single.cursor = Cursor(mx.array([0], mx.int32), tokens=2, window=16)
    single.update_and_fetch(mx.ones((1, 1, 2, 4)), mx.ones((1, 1, 2, 4)))
    batch.insert(1, single)
    keys, values = batch.buffers
    assert mx.array_equal(keys[1], single.buffers[0][0])
    assert mx.array_equal(values[1], single.buffers[1][0])
    assert bool(mx.all(mx.isnan(keys[0, :, :8])).item())


def test_the_mask_lets_a_token_see_its_own_past_only() -> None:
    cursor = Cursor(mx.array([0, 3], mx.int32), tokens=2, window=8)
    expected = np.array([[[1, 0, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]], [[1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]]])
    np.testing.assert_array_equal(np.array(cursor.mask)[:, 0], expected)
