"""The one statistical test that draws are judged by: the G-test, with the chance that a right sampler does as badly."""

import math

import numpy as np
from numpy.typing import NDArray

FALSE_ALARM = 1e-6
"""Chance that a right sampler fails one G-test; seeds are fixed wherever it is used, so a failure repeats."""

_SMALLEST_CELL = 10.0  # expected draws; cells with fewer are pooled, or the statistic would not follow chi-square


def chance_of(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """How probable it is that draws from `probabilities` look at least as unlike them as `counts`.

    Args:
        counts: `[C]`, draws by cell.
        probabilities: `[C]`, summing to 1.

    Returns:
        0.0 where a cell of probability 0 was drawn.
    """
    if counts[probabilities == 0.0].sum():
        return 0.0
    expected = probabilities * counts.sum()
    large = expected >= _SMALLEST_CELL
    observed = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], expected[~large].sum())
    if wanted[-1] < _SMALLEST_CELL and len(wanted) > 1:
        observed, wanted = np.append(observed[:-2], observed[-2:].sum()), np.append(wanted[:-2], wanted[-2:].sum())
    if len(wanted) < 2:
        return 1.0
    return chi_square_tail(g_statistic(observed, wanted), len(wanted) - 1)


def g_statistic(observed: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """2 Σ o ln(o / e) over the cells that were seen; any shape."""
    held = observed > 0
    return float(2.0 * (observed[held] * np.log(observed[held] / expected[held])).sum())


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
    for step_down in range(500, 0, -1):
        fraction = step_down * (step_down - shape) / (x + 2.0 * step_down + 1.0 - shape - fraction)
    return front / (x + 1.0 - shape - fraction)
