"""Trunks and heads that most engine tests share."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny(tiny_llama: Callable[..., Path], tiny_head: Callable[..., Path]) -> tuple[Path, Path]:
    """A tiny trunk of 300 tokens and its head over the whole vocabulary."""
    trunk = tiny_llama(vocab_size=300, hidden=32, layers=2, heads=4, kv_heads=2, seed=3)
    return trunk, tiny_head(trunk, seed=4)


@pytest.fixture(scope="session")
def small_vocabulary(tiny_llama: Callable[..., Path], tiny_head: Callable[..., Path]) -> tuple[Path, Path]:
    """A trunk of 6 tokens, id 1 ends: small enough to enumerate, and a random head agrees with it often."""
    trunk = tiny_llama(vocab_size=6, hidden=16, layers=2, heads=2, kv_heads=1, seed=5)
    return trunk, tiny_head(trunk, seed=6)
