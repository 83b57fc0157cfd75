"""A tiny trunk and what it says of itself: rows at temperature 1 through the engine, as a run makes them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from distill_support import PROMPTS, SAMPLED
from engine_support import make_requests, make_spec
from engine_support import run as run_engine
from safetensors.numpy import load_file, save_file

from worker.distill.corpus import Corpus, make_corpus, make_sequence
from worker.distill.hidden_states import HiddenStates
from worker.engine.encoding import encode_prompt
from worker.engine.trunk import Trunk


@pytest.fixture(scope="session")
def distilled_model(tiny_llama: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny trunk whose mind is made up: its logits are three times those of a random one."""
    folder = tmp_path_factory.mktemp("distilled") / "model"
    shutil.copytree(tiny_llama(vocab_size=48, hidden=32, layers=2, heads=4, kv_heads=2, seed=11), folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= 3
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    return folder


@pytest.fixture(scope="session")
def distilled_trunk(distilled_model: Path) -> Trunk:
    return Trunk.load(distilled_model, mx.float32)


@pytest.fixture(scope="session")
def own_rows(distilled_model: Path, distilled_trunk: Trunk) -> Corpus:
    """What plain decoding at temperature 1 answers to the prompts."""
    spec = make_spec(distilled_model, None, depth=0, sampler=SAMPLED, max_tokens=40, slots=16, samples=2)
    completions = run_engine(spec, PROMPTS)
    requests = make_requests(PROMPTS, spec.samples)
    return make_corpus(
        make_sequence(str(request.prompt), encode_prompt(request, distilled_trunk.tokenizer, raw=True), completion.token_ids, context=512)
        for request, completion in zip(requests, completions, strict=True)
    )


@pytest.fixture(scope="session")
def filled_cache(own_rows: Corpus, distilled_trunk: Trunk, tmp_path_factory: pytest.TempPathFactory) -> HiddenStates:
    cache = HiddenStates.beneath(tmp_path_factory.mktemp("hidden"), own_rows, distilled_trunk, "digest", "float32")
    assert cache.fill(distilled_trunk, lambda done: None, lambda: False)
    return cache
