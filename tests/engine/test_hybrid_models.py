"""The hybrid Qwen families: recurrent layers take rejected drafts back, and every law of the engine holds for them too."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from engine_support import GREEDY, PROMPTS, complete, essence, load_engine, make_requests, make_spec, run
from mlx_lm.generate import generate_step
from mlx_lm.utils import load
from tiny_qwen import KINDS, make_tiny_qwen

from schemas.sampler import SamplerConfig
from worker.engine.static_cache import Cursor
from worker.engine.trunk import Trunk

SAMPLED = SamplerConfig(temperature=0.9, top_p=0.95)


@pytest.fixture(scope="module", params=KINDS)
def qwen(request: pytest.FixtureRequest, tiny_llama: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen(tmp_path_factory.mktemp(request.param), request.param, tokenizer_from=tiny_llama(vocab_size=300), seed=21)


def mlx_lm_greedy(folder: Path, prompt: str, max_tokens: int) -> list[int]:
    model, tokenizer = load(str(folder))
    tokens: list[int] = []
    for token, _ in generate_step(mx.array(tokenizer.encode(prompt)), model, max_tokens=max_tokens, prefill_step_size=1):
        tokens.append(int(token))
        if tokens[-1] in tokenizer.eos_token_ids:
            break
    return tokens


def test_ragged_commits_equal_prefix_passes_alone_bit_for_bit(qwen: Path) -> None:
    """Five cycles at B = 5 that keep 1 to 4 of 4 tokens each, against one unbatched pass over every committed prefix."""
    trunk = Trunk.load(qwen, mx.float32)
    rng = np.random.default_rng(2)
    caches = trunk.make_caches(64)
    committed: list[list[int]] = [[] for _ in range(5)]
    for _ in range(5):
        tokens = rng.integers(3, 300, size=(5, 4))
        cursor = Cursor(mx.array([len(row) for row in committed], mx.int32), tokens=4, window=64)
        hidden = np.array(trunk.forward(mx.array(tokens), caches, cursor))
        kept = rng.integers(1, 5, size=5)
        for cache in caches:
            cache.commit(mx.array(kept.astype(np.int32)))
        for row, count in enumerate(kept):
            committed[row] += tokens[row, :count].tolist()
            np.testing.assert_array_equal(hidden[row, count - 1], np.array(trunk.read(committed[row], chunk=64))[-1])


@pytest.mark.parametrize("slots", [1, 3])
def test_greedy_is_mlx_lms_greedy(qwen: Path, slots: int) -> None:
    completions = run(make_spec(qwen, None, depth=0, slots=slots, max_tokens=16), PROMPTS[:4])
    assert [completion.token_ids for completion in completions] == [mlx_lm_greedy(qwen, prompt, 16) for prompt in PROMPTS[:4]]


@pytest.mark.parametrize("sampler", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_neighbours_slots_and_chunks_change_no_bit(qwen: Path, sampler: SamplerConfig) -> None:
    spec = make_spec(qwen, None, depth=0, slots=3, max_tokens=12, sampler=sampler)
    if not load_engine(spec).backend.row_invariant:
        pytest.skip("this backend's kernels are not row-invariant")
    together = [essence(completion) for completion in run(spec)]
    alone = [essence(complete(load_engine(spec), spec, [request])[0]) for request in make_requests(PROMPTS)]
    chunked = run(make_spec(qwen, None, depth=0, slots=2, max_tokens=12, sampler=sampler, prefill_chunk=16))
    assert alone == together
    assert [essence(completion) for completion in chunked] == together
