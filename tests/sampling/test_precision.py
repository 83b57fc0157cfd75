"""How far finite precision moves a distribution: total variation per token, measured at the largest vocabulary in use."""

import mlx.core as mx
import numpy as np
import pytest

from sampling import SamplerConfig, distribution_from_logits, uniform
from sampling.adjustments import Adjustments
from sampling.batched import BatchedSampler
from sampling.counter_rng import Purpose
from sampling.logit_batch import DEVICE_ERROR, HOST_ERROR, reduce_logits
from sampling.rows import RowBatch

VOCAB = 248_320
needs_long_double = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="this platform has no float wider than float64")


def shapes() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    bell = rng.normal(size=VOCAB) * 2.5
    return {
        "uniform": np.zeros(VOCAB),
        "nearly-uniform": rng.normal(size=VOCAB) * 0.01 + 30.0,
        "bell": bell,
        "peaked": np.where(np.arange(VOCAB) == 777, 25.0, bell),
        "offset": bell + 1000.0,
        "wide": rng.normal(size=VOCAB) * 40.0,
        "staircase": -np.floor(np.arange(VOCAB) / 2000.0),
    }


SHAPES = shapes()


@needs_long_double
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_float64_probabilities_and_draws_are_within_1e_9(name, temperature):
    """Worst measured: 2e-13 for the probabilities, 5e-12 for the draws, which add a grid of 53 bits: at most V · 2**-53 = 2.8e-11."""
    logits = SHAPES[name].astype(np.float32)
    p = distribution_from_logits(logits, SamplerConfig(temperature=temperature))
    exponents = (logits.astype(np.longdouble) - logits.max()) / np.longdouble(temperature)
    exact = np.exp(exponents) / np.exp(exponents).sum()
    assert 0.5 * abs(p - exact).sum() < 1e-11

    edges = np.cumsum(p)
    words = np.ceil(edges / edges[-1] * 2.0**53)  # first uniform, in units of 2**-53, that draws a later token
    drawn = np.diff(np.concatenate([[0.0], words])) * 2.0**-53
    assert drawn.sum() == 1.0
    assert 0.5 * abs(drawn - exact).sum() < 1e-9


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("temperature", [0.3, 1.0])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(("on_device", "bound"), [(True, DEVICE_ERROR), (False, HOST_ERROR)], ids=["device", "host"])
def test_masses_keep_their_bound(name, temperature, dtype, on_device, bound):
    """Half of the bound is kept in reserve for a device with a coarser exp than the one this runs on."""
    logits = mx.array(SHAPES[name].astype(np.float32)).astype(dtype)[None, None]
    config = SamplerConfig(temperature=temperature)
    none = Adjustments.none(1, 1)
    reduced = reduce_logits(logits, config, none, np.ones(1, dtype=bool), with_mass=True, mass_on_device=on_device)
    values = np.array(logits.astype(mx.float32))[0, 0].astype(np.longdouble)
    exact = np.exp((values - values.max()) / np.longdouble(temperature)).sum()
    assert abs(reduced.mass[0, 0] / exact - 1.0) < bound / 2
    assert abs(reduced.block_mass.sum() / exact - 1.0) < bound / 2


@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("config", [SamplerConfig(), SamplerConfig(temperature=0.8, top_p=0.9)], ids=["plain", "nucleus"])
def test_the_device_mass_never_decides_a_token(on_device, config):
    """The whole pipeline on the device's float32 masses draws what the float64 reference draws: its error adds nothing to the distance."""
    count = 24
    logits = np.stack([SHAPES[name].astype(np.float32) for name in ("nearly-uniform", "bell", "peaked")])
    rows = RowBatch.of(np.arange(count, dtype=np.uint64) + 5, np.arange(count))
    stacked = mx.array(np.repeat(logits, count // 3, axis=0))
    sampler = BatchedSampler(config, VOCAB, mass_on_device=on_device)
    block = sampler.verify(stacked[:, None], rows)
    uniforms = uniform(rows.keys, rows.positions, Purpose.CORRECTION)
    for row in range(count):
        p = distribution_from_logits(logits[row // (count // 3)], config)
        mass = np.cumsum(p)
        token = int(np.searchsorted(mass, uniforms[row] * mass[-1], side="right"))
        assert block.tokens[row, 0] == token
        assert abs(block.logprobs[row, 0] - np.log(p[token])) < (DEVICE_ERROR if on_device else 1e-9)
