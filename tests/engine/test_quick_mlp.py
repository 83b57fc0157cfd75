"""The feed-forward layer of the CPU backend against float64, and against itself in other shapes."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.activations import swiglu
from mlx_lm.utils import load_model

from worker.engine.quick_mlp import QuickMLP, quick_swiglu
from worker.engine.trunk import Trunk


def test_it_is_silu_times_up_to_float32s_own_precision() -> None:
    gate = np.concatenate([np.linspace(-30, 30, 60_001), [-1e4, -200, 0, 200, 1e4]]).astype(np.float32)
    up = np.random.default_rng(1).normal(0, 3, gate.shape).astype(np.float32)
    exact = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64).clip(-700, 700))) * up
    found = np.array(quick_swiglu(mx.array(gate), mx.array(up)))
    assert np.all(np.abs(found - exact) <= 4e-7 * np.abs(gate * up))
    mlx_lms = np.array(swiglu(mx.array(gate), mx.array(up)))
    assert np.abs(found - exact).max() <= 2 * np.abs(mlx_lms - exact).max()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_not_hidden(value: float) -> None:
    assert not np.isfinite(np.array(quick_swiglu(mx.array([value, 1.0]), mx.array([1.0, 1.0]))))[0]


def test_a_rows_bits_depend_on_no_shape() -> None:
    gate, up = (mx.random.normal((37, 1, 53), key=mx.random.key(seed)) * 3 for seed in (1, 2))
    together = quick_swiglu(gate, up)
    for row in range(37):
        assert mx.array_equal(quick_swiglu(gate[row : row + 1], up[row : row + 1]), together[row : row + 1])
    assert mx.array_equal(quick_swiglu(gate[:, :, 5:48], up[:, :, 5:48]), together[:, :, 5:48])
    assert mx.array_equal(quick_swiglu(gate[::3], up[::3]), together[::3])


def test_a_trunk_on_the_cpu_has_it(tiny: tuple[Path, Path]) -> None:
    if mx.default_device() != mx.cpu:
        pytest.skip("for the CPU backend only")
    trunk = Trunk.load(tiny[0], mx.float32)
    theirs, _ = load_model(tiny[0])
    assert all(isinstance(layer.mlp, QuickMLP) for layer in trunk.body.layers)
    x = mx.random.normal((3, 2, trunk.width), key=mx.random.key(4))
    for mine, other in zip(trunk.body.layers, theirs.model.layers, strict=True):
        np.testing.assert_allclose(np.array(mine.mlp(x)), np.array(other.mlp(x)), atol=1e-6)
