import hashlib

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampling import PositionRandom, Purpose, row_key, threefry2x32, uniform
from sampling.threefry_mlx import threefry2x32 as threefry_on_device

ONES = 0xFFFFFFFF
# Random123's kat_vectors for threefry2x32, 20 rounds: counter, key, result.
KNOWN_ANSWERS = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((ONES, ONES), (ONES, ONES), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter, key, answer):
    assert tuple(int(word) for word in threefry2x32(key, counter)) == answer
    on_device = threefry_on_device(
        tuple(mx.array(word, dtype=mx.uint32) for word in key), tuple(mx.array(word, dtype=mx.uint32) for word in counter)
    )
    assert tuple(word.item() for word in on_device) == answer


def test_numpy_and_mlx_agree_bit_for_bit():
    words = np.random.default_rng(1).integers(0, 2**32, size=(4, 50_000), dtype=np.uint32)
    here = threefry2x32((words[0], words[1]), (words[2], words[3]))
    device = [mx.array(word) for word in words]
    there = threefry_on_device((device[0], device[1]), (device[2], device[3]))
    for ours, theirs in zip(here, there, strict=True):
        assert theirs.dtype == mx.uint32
        np.testing.assert_array_equal(ours, np.array(theirs))


def test_uniforms_hold_53_bits_in_the_unit_interval():
    draws = uniform(np.arange(200_000, dtype=np.uint64), 3, Purpose.DRAFT)
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    scaled = draws * 2.0**53
    np.testing.assert_array_equal(scaled, np.floor(scaled))
    assert 0.49 < (scaled.astype(np.uint64) & np.uint64(1)).mean() < 0.51
    counts, _ = np.histogram(draws, bins=100, range=(0.0, 1.0))
    assert abs(counts - 2000).max() < 6 * np.sqrt(2000)


def test_purposes_positions_and_keys_are_independent_words():
    keys = np.arange(40_000, dtype=np.uint64)
    columns = [uniform(keys, position, purpose) for position in (0, 1) for purpose in Purpose]
    columns.append(uniform(keys ^ np.uint64(1 << 63), 0, Purpose.DRAFT))
    correlation = np.corrcoef(columns) - np.eye(len(columns))
    assert abs(correlation).max() < 6 / np.sqrt(len(keys))


def test_the_adaptor_gives_each_word_once_in_order():
    rng = PositionRandom(2**63 + 5, 17)
    assert rng.random() == uniform(2**63 + 5, 17, Purpose.ACCEPT)
    assert rng.random() == uniform(2**63 + 5, 17, Purpose.CORRECTION)
    with pytest.raises(IndexError, match="position 17"):
        rng.random()


@pytest.mark.parametrize("position", [-1, 2**32])
def test_positions_outside_the_counter_are_refused(position):
    with pytest.raises(ValueError, match=r"\[0, 2\*\*32\)"):
        uniform(1, position, Purpose.ACCEPT)


def test_row_key_is_the_documented_digest():
    encoded = (7).to_bytes(8, "little") + (2).to_bytes(8, "little") + "réc".encode()
    digest = hashlib.blake2b(encoded, digest_size=8, person=b"specmill row key").digest()
    assert row_key(7, "réc", 2) == int.from_bytes(digest, "little")
    # Datasets depend on these two.
    assert row_key(0, "", 0) == 0x6D333C29942732BB
    assert row_key(20240229, "prompt-17", 3) == 0x51009BB589866FDF


@given(st.lists(st.tuples(st.integers(0, 300), st.text(max_size=4), st.integers(0, 300)), min_size=2, max_size=20, unique=True))
def test_row_keys_differ_for_different_rows(rows):
    assert len({row_key(*row) for row in rows}) == len(rows)


@pytest.mark.parametrize(("seed", "sample", "name"), [(-1, 0, "run_seed"), (2**64, 0, "run_seed"), (0, -1, "sample")])
def test_row_key_refuses_what_does_not_fit(seed, sample, name):
    with pytest.raises(ValueError, match=name):
        row_key(seed, "a", sample)
