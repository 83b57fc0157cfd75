"""Random words that are a function of (row key, position, purpose): Threefry-2x32-20 in numpy.

No state is carried, so a draw does not depend on what was drawn before it, on other rows, on the depth of speculation or on a retry.
`sampling.threefry_mlx` gives the same bits on the device.
"""

import hashlib
import struct
from collections.abc import Iterator
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Salmon et al. 2011: 20 rounds, these eight rotation distances in turn, a key injection after every fourth round.
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
KEY_PARITY = 0x1BD11BDA
ROUNDS = 20

_KEY_PERSON = b"specmill row key"


class Purpose(IntEnum):
    """What a position's word is for; the second word of the Threefry counter. The values are part of the dataset's contract."""

    DRAFT = 0
    ACCEPT = 1
    CORRECTION = 2
    """The residual draw after a rejection, or the bonus draw after a block without one (and every draw at depth 0)."""
    NOISE = 3
    """The key of the position's exponential noise, for the shared-noise coupling; see `sampling.exponential_noise`."""


def row_key(run_seed: int, record_id: str, sample: int) -> int:
    """The 64-bit key of one row: every random number of the row follows from it.

    blake2b with an 8-byte digest and the personalisation `specmill row key`, over run_seed and sample (8 bytes each, little endian) and
    record_id in UTF-8. The only field of variable length comes last, so no two triples share an encoding.

    Args:
        run_seed: in [0, 2**64).
        record_id: any string.
        sample: index among the n samples of one record, in [0, 2**64).

    Returns:
        An integer in [0, 2**64).

    Raises:
        ValueError: `run_seed` or `sample` lies outside its interval.
    """
    for name, value in (("run_seed", run_seed), ("sample", sample)):
        if not 0 <= value < 2**64:
            raise ValueError(f"{name} must be in [0, 2**64); received {value}")
    encoded = struct.pack("<QQ", run_seed, sample) + record_id.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8, person=_KEY_PERSON).digest(), "little")


def threefry2x32(key: tuple[ArrayLike, ArrayLike], counter: tuple[ArrayLike, ArrayLike]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Threefry-2x32-20: two 32-bit words for each 64-bit key and 64-bit counter.

    Args:
        key: two uint32 words, scalars or arrays.
        counter: two uint32 words, scalars or arrays; all four broadcast together.

    Returns:
        Two uint32 arrays of the broadcast shape.
    """
    k0, k1 = (np.asarray(word, dtype=np.uint32) for word in key)
    schedule = (k0, k1, k0 ^ k1 ^ np.uint32(KEY_PARITY))
    c0, c1 = (np.asarray(word, dtype=np.uint32) for word in counter)
    with np.errstate(over="ignore"):  # arithmetic modulo 2**32 is what is wanted; numpy warns about scalars only
        x0, x1 = c0 + k0, c1 + k1
        for step in range(ROUNDS):
            rotation = ROTATIONS[step % 8]
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))) ^ x0
            if step % 4 == 3:
                injection = step // 4 + 1
                x0 = x0 + schedule[injection % 3]
                x1 = x1 + schedule[(injection + 1) % 3] + np.uint32(injection)
    return np.asarray(x0), np.asarray(x1)


def uniform(keys: ArrayLike, positions: ArrayLike, purpose: Purpose) -> NDArray[np.float64]:
    """Uniforms in [0, 1) with 53 random bits, one Threefry block each.

    Args:
        keys: row keys, uint64; broadcasts with `positions`.
        positions: index of the token in its completion, in [0, 2**32).
        purpose: which of the position's independent words.

    Returns:
        float64 of the broadcast shape.

    Raises:
        ValueError: a position lies outside its interval.
    """
    keys = np.asarray(keys, dtype=np.uint64)
    places = np.asarray(positions, dtype=np.int64)
    if places.size and not (places.min() >= 0 and places.max() < 2**32):
        raise ValueError(f"positions must be in [0, 2**32); received {places.min()} to {places.max()}")
    halves = (keys & np.uint64(0xFFFFFFFF), keys >> np.uint64(32))
    return uniform_of_words(*threefry2x32(halves, (places, np.uint32(purpose))))


def uniform_of_words(high: NDArray[np.uint32], low: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Uniforms in [0, 1) from the 53 highest bits of two words; the 11 lowest bits of `low` are left over."""
    bits = (high.astype(np.uint64) << np.uint64(21)) | (low.astype(np.uint64) >> np.uint64(11))
    return bits.astype(np.float64) * 2.0**-53


class PositionRandom:
    """The uniforms of one position of one row behind `random()`, to serve `verify_one_token` and `sample_from_distribution`.

    Args:
        key: the row key.
        position: index of the token in its completion.
        purposes: which words `random()` gives, in this order; the default is what verification asks for.
    """

    def __init__(self, key: int, position: int, purposes: tuple[Purpose, ...] = (Purpose.ACCEPT, Purpose.CORRECTION)) -> None:
        self._key, self._position = key, position
        self._purposes: Iterator[Purpose] = iter(purposes)

    def random(self) -> float:
        """The word of the next purpose.

        Raises:
            IndexError: every word was given already; a position never uses one twice.
        """
        purpose = next(self._purposes, None)
        if purpose is None:
            raise IndexError(f"position {self._position} has no further random word")
        return float(uniform(self._key, self._position, purpose))
