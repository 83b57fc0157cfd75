"""The one statistical test that draws are judged by, with a stated false-alarm rate."""

from collections.abc import Callable

import numpy as np
import pytest

from sampling.g_test import FALSE_ALARM, chance_of, chi_square_tail, g_statistic


@pytest.fixture(scope="session")
def assert_drawn_from() -> Callable[[np.ndarray, np.ndarray], None]:
    """Draw counts `[V]` against probabilities `[V]`; cells expecting fewer than 10 draws are pooled."""

    def check(counts: np.ndarray, probabilities: np.ndarray) -> None:
        assert counts[probabilities == 0.0].sum() == 0, "a token of probability 0 was drawn"
        chance = chance_of(counts, probabilities)
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
