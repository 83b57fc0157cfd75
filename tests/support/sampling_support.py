"""Configs, shapes, logits and the reference distribution of a row that the sampling tests share."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from sampling import Distribution, SamplerConfig, SparseDistribution, distribution_from_logits

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
    "min-p": SamplerConfig(min_p=0.05),
    "only-the-most-probable": SamplerConfig(temperature=0.6, min_p=1.0),
    "all-filters": SamplerConfig(temperature=1.2, top_p=0.97, top_k=90, min_p=1e-3),
    "plain-repetition": SamplerConfig(repetition_penalty=1.3),
    "repetition": SamplerConfig(temperature=0.8, top_k=30, repetition_penalty=0.7, presence_penalty=0.5),
    "plain-bias": SamplerConfig(logit_bias={"1": 4.0, "3": -100.0, "6": 0.5}),
    "greedy-bias": SamplerConfig(temperature=0.0, repetition_penalty=1.5, logit_bias={"0": -3.0, "5": 2.5}),
    "min-tokens": SamplerConfig(temperature=0.9, top_p=0.95, min_tokens=3),
    "plain-min-tokens": SamplerConfig(min_tokens=2, frequency_penalty=0.5),
    "all-at-once": SamplerConfig(
        0.8, 0.95, 40, 0.3, -0.2, min_p=0.01, repetition_penalty=1.2, logit_bias={"2": 3.0, "4": -1.0}, min_tokens=4
    ),
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


@dataclass(frozen=True)
class Context:
    """What a row's distributions depend on besides logits: the config, the prompt's tokens, and those that end a completion."""

    config: SamplerConfig
    vocab: int
    prompt: tuple[int, ...] = ()
    end_ids: tuple[int, ...] = ()

    @classmethod
    def random(cls, rng: np.random.Generator, config: SamplerConfig, vocab: int) -> "Context":
        ends = tuple(rng.choice(vocab, size=2, replace=False).tolist())
        return cls(config, vocab, tuple(rng.integers(0, vocab, size=rng.integers(0, 9)).tolist()), ends)

    def distribution(self, logits: np.ndarray, counts: Counter[int], position: int, ids: np.ndarray | None = None) -> Distribution:
        """The reference's; `ids` are the full ids of the logits of a draft vocabulary."""
        if ids is None:
            return self._of(logits, self.config, counts, self.prompt, self.end_ids, position)
        slots = {int(full): slot for slot, full in enumerate(ids)}
        config = replace(
            self.config, logit_bias={str(slots[int(i)]): bias for i, bias in self.config.logit_bias.items() if int(i) in slots}
        )
        local = Counter({slots[token]: count for token, count in counts.items() if token in slots})
        prompt, ends = ([slots[token] for token in tokens if token in slots] for tokens in (self.prompt, self.end_ids))
        return SparseDistribution(ids, self._of(logits, config, local, prompt, ends, position), self.vocab)

    @staticmethod
    def _of(logits, config, counts, prompt, ends, position) -> np.ndarray:
        forbidden = ends if position < config.min_tokens else ()
        return distribution_from_logits(logits, config, counts, prompt_ids=prompt, forbidden=forbidden)
