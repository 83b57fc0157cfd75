"""The distribution of whole completions equals exact enumeration of the autoregressive model, for every sampler feature.

The model has 6 tokens, so every completion of up to 3 tokens can be enumerated with the float64 reference of `sampling`. A G-test compares
the engine's samples with it; its false-alarm rate is 1e-6 per case, and the seeds are fixed.
"""

import math
from collections import Counter
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from engine_support import complete, load_engine, make_requests, make_spec
from mlx_lm.utils import load

from sampling import distribution_from_logits
from schemas.sampler import SamplerConfig

PROMPT, TOKENS, SAMPLES, END = "e t a", 3, 3000, 1

CONFIGS = {
    "plain": SamplerConfig(),
    "cool": SamplerConfig(temperature=0.6),
    "nucleus": SamplerConfig(temperature=1.0, top_p=0.8),
    "top-k": SamplerConfig(temperature=0.6, top_k=3),
    "both filters": SamplerConfig(temperature=1.3, top_p=0.9, top_k=4),
    "penalties": SamplerConfig(presence_penalty=1.0, frequency_penalty=0.7),
    "penalties and filters": SamplerConfig(temperature=0.8, top_p=0.9, presence_penalty=-0.8, frequency_penalty=0.5),
    "min-p": SamplerConfig(temperature=0.9, min_p=0.15),
    "repetition and bias": SamplerConfig(repetition_penalty=1.6, logit_bias={"4": 1.0, "1": -0.5}),
    "minimum of tokens": SamplerConfig(temperature=0.8, min_tokens=2, logit_bias={"1": 1.5}),
    "greedy": SamplerConfig(temperature=0.0),
}


def enumerate_completions(folder: Path, config: SamplerConfig) -> dict[tuple[int, ...], float]:
    """Probability of every completion that ends with the end token or after TOKENS tokens."""
    model, tokenizer = load(str(folder))
    prompt = tokenizer.encode(PROMPT)
    finished: dict[tuple[int, ...], float] = {}
    open_prefixes: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(TOKENS):
        longer: dict[tuple[int, ...], float] = {}
        for prefix, probability in open_prefixes.items():
            logits = np.array(model(mx.array([[*prompt, *prefix]]))[0, -1])
            forbidden = [END] if len(prefix) < config.min_tokens else []
            distribution = distribution_from_logits(logits, config, Counter(prefix), prompt_ids=prompt, forbidden=forbidden)
            for token, p in enumerate(distribution):
                if p > 0:
                    (finished if token == END or len(prefix) == TOKENS - 1 else longer)[*prefix, token] = probability * float(p)
        open_prefixes = longer
    assert math.isclose(sum(finished.values()), 1.0)
    return finished


def g_test_quantile(degrees: int, deviations: float = 4.75) -> float:
    """Chi-square quantile at a tail of 1e-6 (4.75 standard deviations), by Wilson and Hilferty's cube."""
    return degrees * (1 - 2 / (9 * degrees) + deviations * math.sqrt(2 / (9 * degrees))) ** 3


@pytest.mark.parametrize(
    ("name", "depth"), [*((name, 2) for name in CONFIGS), ("plain", 0), ("plain", 1), ("both filters", 3), ("penalties and filters", 3)]
)
def test_whole_completions_follow_the_autoregressive_model(small_vocabulary: tuple[Path, Path], name: str, depth: int) -> None:
    check(small_vocabulary[0], small_vocabulary[1], CONFIGS[name], depth)


@pytest.mark.parametrize("config", [CONFIGS["plain"], CONFIGS["both filters"]], ids=["plain", "both filters"])
def test_a_draft_vocabulary_leaves_the_distribution_alone(small_vocabulary: tuple[Path, Path], tiny_head, config: SamplerConfig) -> None:
    trunk, _ = small_vocabulary
    check(trunk, tiny_head(trunk, seed=12, draft_vocab=[4, 1, 3]), config, depth=2)


def check(trunk: Path, head: Path, config: SamplerConfig, depth: int) -> None:
    expected = enumerate_completions(trunk, config)
    spec = make_spec(trunk, head, sampler=config, depth=depth, max_tokens=TOKENS, slots=64, samples=SAMPLES)
    completions = complete(load_engine(spec), spec, make_requests([PROMPT], SAMPLES, first_key=depth << 32))
    seen = Counter(tuple(completion.token_ids) for completion in completions)
    assert set(seen) <= set(expected), "a completion of probability 0"
    # Cells of fewer than 5 expected samples are pooled, or the G statistic would not follow chi-square.
    cells = [(seen[tokens], SAMPLES * p) for tokens, p in expected.items() if SAMPLES * p >= 5]
    rest = (SAMPLES - sum(count for count, _ in cells), SAMPLES - sum(mean for _, mean in cells))
    if rest[1] >= 5:
        cells.append(rest)
    g = 2 * sum(count * math.log(count / mean) for count, mean in cells if count)
    assert len(cells) == 1 or g < g_test_quantile(len(cells) - 1), (g, len(cells))
    if depth and not config.greedy:
        accepted = sum(sum(completion.acceptance.accepted_by_depth) for completion in completions)
        expected_accepted = sum(completion.acceptance.expected_accepted for completion in completions)
        deviation = math.sqrt(sum(completion.acceptance.accepted_variance for completion in completions))
        assert abs(accepted - expected_accepted) < 4.9 * deviation
