"""What every test may use: tiny random models, a cache folder of its own, and the small real model."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ModelError
from worker.engine import blas, model_store, tiny_model

blas.prepare()  # before any test imports mlx
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: the programs under test would ignore Ctrl-C too
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_llama(vocab_size=…, hidden=…, layers=…, heads=…, kv_heads=…, seed=…, tie=…)` → the folder; made once per set of options."""
    made: dict[Any, Path] = {}

    def make(**options: Any) -> Path:
        key = tuple(sorted(options.items()))
        if key not in made:
            made[key] = tiny_model.make_tiny_llama(tmp_path_factory.mktemp("tiny-llama"), **options)
        return made[key]

    return make


@pytest.fixture(scope="session")
def tiny_head(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_head(trunk_folder, seed=…, draft_vocab=…)` → a new head file that fits the trunk."""

    def make(trunk_folder: Path, **options: Any) -> Path:
        file: Path = tiny_model.make_tiny_head(tmp_path_factory.mktemp("tiny-head"), trunk_folder, **options)
        return file

    return make


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for one test, so that it neither sees nor changes the user's."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECMILL_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The small real model out of the user's own cache, fetched on first use; without a network its tests skip here and fail in CI."""
    try:
        return model_store.resolve_model(model_store.SMOLLM2)
    except ModelError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def agreeing_pair(tiny_llama: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny trunk of one layer and a head whose drafts it often accepts."""
    from engine_support import make_agreeing_head  # imports mlx, which must come after blas.prepare()

    trunk = tiny_llama(vocab_size=300, hidden=32, layers=1, heads=4, kv_heads=2, seed=8)
    return trunk, make_agreeing_head(tmp_path_factory.mktemp("agreeing") / "mtp.safetensors", trunk)
