"""The one statistical test that draws are judged by, with a stated false-alarm rate."""

import math
from collections.abc import Callable

import numpy as np
import pytest

FALSE_ALARM = 1e-6
"""Chance that a right sampler fails one G-test; seeds are fixed, so a failure repeats."""


def chi_square_tail(statistic: float, degrees: int) -> float:
    """P(X > statistic) for a chi-square variable: the regularised upper incomplete gamma function Q(degrees / 2, statistic / 2)."""
    shape, x = degrees / 2.0, statistic / 2.0
    if x <= 0.0:
        return 1.0
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1.0:  # series of the lower function
        term = total = 1.0 / shape
        step = shape
        while term > total * 1e-16:
            step += 1.0
            term *= x / step
            total += term
        return 1.0 - front * total
    fraction = 0.0  # continued fraction of the upper one, from its far end
    for step in range(500, 0, -1):
        fraction = step * (step - shape) / (x + 2.0 * step + 1.0 - shape - fraction)
    return front / (x + 1.0 - shape - fraction)


def g_statistic(observed: np.ndarray, expected: np.ndarray) -> float:
    held = observed > 0
    return float(2.0 * (observed[held] * np.log(observed[held] / expected[held])).sum())


@pytest.fixture(scope="session")
def assert_drawn_from() -> Callable[[np.ndarray, np.ndarray], None]:
    """Draw counts `[V]` against probabilities `[V]`; cells expecting fewer than 10 draws are pooled."""

    def check(counts: np.ndarray, probabilities: np.ndarray) -> None:
        assert counts[probabilities == 0.0].sum() == 0, "a token of probability 0 was drawn"
        expected = probabilities * counts.sum()
        large = expected >= 10.0
        observed = np.append(counts[large], counts[~large].sum())
        wanted = np.append(expected[large], expected[~large].sum())
        if wanted[-1] < 10.0:
            observed, wanted = np.append(observed[:-2], observed[-2:].sum()), np.append(wanted[:-2], wanted[-2:].sum())
        chance = chi_square_tail(g_statistic(observed, wanted), len(wanted) - 1)
        assert chance > FALSE_ALARM, f"draws do not follow the distribution: chance {chance:.2e}"

    return check


@pytest.fixture(scope="session")
def assert_same_source() -> Callable[[np.ndarray, np.ndarray], None]:
    """Two vectors of draw counts over the same cells: homogeneity."""

    def check(first: np.ndarray, second: np.ndarray) -> None:
        pooled = first + second
        large = pooled >= 20
        table = np.stack([np.append(row[large], row[~large].sum()) for row in (first, second)])
        table = table[:, table.sum(axis=0) > 0]
        expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / table.sum()
        chance = chi_square_tail(g_statistic(table, expected), table.shape[1] - 1)
        assert chance > FALSE_ALARM, f"the two samplers differ: chance {chance:.2e}"

    return check
