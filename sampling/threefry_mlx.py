"""Threefry-2x32-20 as mlx uint32 operations, bit-identical to `sampling.counter_rng`."""

import mlx.core as mx

from sampling.counter_rng import KEY_PARITY, ROTATIONS, ROUNDS


def threefry2x32(key: tuple[mx.array, mx.array], counter: tuple[mx.array, mx.array]) -> tuple[mx.array, mx.array]:
    """Two 32-bit words for each 64-bit key and 64-bit counter.

    Args:
        key: two uint32 arrays.
        counter: two uint32 arrays; all four broadcast together.

    Returns:
        Two uint32 arrays of the broadcast shape, not yet evaluated.
    """
    k0, k1 = key
    schedule = (k0, k1, k0 ^ k1 ^ mx.array(KEY_PARITY, dtype=mx.uint32))
    x0, x1 = counter[0] + k0, counter[1] + k1
    for step in range(ROUNDS):
        rotation = ROTATIONS[step % 8]
        x0 = x0 + x1
        x1 = ((x1 << rotation) | (x1 >> (32 - rotation))) ^ x0
        if step % 4 == 3:
            injection = step // 4 + 1
            x0 = x0 + schedule[injection % 3]
            x1 = x1 + schedule[(injection + 1) % 3] + injection
    return x0, x1
