"""What this machine can do at most: bytes read from memory and float32 multiplications, per second."""

import time

import mlx.core as mx
import numpy as np

READ_BYTES = 1 << 28  # 256 MiB, far beyond every cache
GEMM_SIZE = 1536
SECONDS = 0.5  # of each measurement


def _best(work: object, repeats_for: float) -> float:
    """Seconds of the fastest call within so many seconds, after one that is not counted."""
    assert callable(work)
    work()
    best, deadline = float("inf"), time.perf_counter() + repeats_for
    while time.perf_counter() < deadline:
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def read_bandwidth() -> float:
    """Bytes per second of reading float32 once, by all cores: a dot product of a long vector with itself."""
    vector = np.ones(READ_BYTES // 4, np.float32)
    return READ_BYTES / _best(lambda: np.dot(vector, vector), SECONDS)


def gemm_peak() -> float:
    """Floating point operations per second of a large float32 matrix product, by mlx on the BLAS that it has here."""
    left = mx.random.normal((GEMM_SIZE, GEMM_SIZE), key=mx.random.key(0))
    mx.eval(left)
    return 2.0 * GEMM_SIZE**3 / _best(lambda: mx.eval(left @ left), SECONDS)
