"""Configs, shapes and logits that the sampling tests share."""

import numpy as np

from sampling import SamplerConfig

CONFIGS = {
    "plain": SamplerConfig(),
    "cold": SamplerConfig(temperature=0.3),
    "greedy": SamplerConfig(temperature=0.0),
    "greedy-penalties": SamplerConfig(temperature=-1.0, presence_penalty=0.7, frequency_penalty=0.4),
    "top-k": SamplerConfig(temperature=0.8, top_k=5),
    "top-k-1": SamplerConfig(top_k=1),
    "nucleus": SamplerConfig(temperature=0.7, top_p=0.9),
    "narrow-nucleus": SamplerConfig(top_p=1e-9),
    "almost-all": SamplerConfig(temperature=1.5, top_p=0.999),
    "both": SamplerConfig(temperature=0.9, top_p=0.95, top_k=20),
    "plain-penalties": SamplerConfig(presence_penalty=1.5, frequency_penalty=-0.5),
    "everything": SamplerConfig(temperature=0.7, top_p=0.9, top_k=12, presence_penalty=-1.0, frequency_penalty=0.8),
    "nucleus-penalties": SamplerConfig(temperature=1.1, top_p=0.8, presence_penalty=2.0),
    "huge-top-k": SamplerConfig(top_k=1500),
    "tiny-temperature": SamplerConfig(temperature=1e-300, top_p=0.9),
}

SHAPES = {  # vocabulary, spread of the logits, ties, share of -inf
    "tiny": (7, 1.0, False, 0.0),
    "ties": (300, 2.0, True, 0.0),
    "masked": (130, 3.0, False, 0.4),
    "flat": (2500, 0.5, True, 0.1),
    "peaked": (1024, 6.0, False, 0.0),
}


def random_logits(rng: np.random.Generator, shape: tuple[int, ...], spread: float, ties: bool, masked: float) -> np.ndarray:
    """float32 logits; the last axis is the vocabulary, and at least one token of it is finite."""
    logits = rng.normal(size=shape) * spread
    if ties:
        logits = np.round(logits * 2) / 2
    logits[rng.random(shape) < masked] = -np.inf
    logits[..., 0] = np.where(np.isfinite(logits).any(axis=-1), logits[..., 0], 0.0)
    return logits.astype(np.float32)
