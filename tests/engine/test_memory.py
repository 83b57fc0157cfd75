"""The upfront estimate against what is really held, and the refusal that names the numbers."""

from pathlib import Path

import mlx.core as mx
import pytest
from engine_support import PROMPTS, load_engine, make_spec, run

from schemas.errors import EngineError
from worker.engine import memory
from worker.engine.static_cache import Cursor, StaticCache


def test_the_estimate_is_what_the_buffers_take() -> None:
    cache = StaticCache(64)
    cache.cursor = Cursor(mx.array([0], mx.int32), tokens=2, window=64)
    cache.update_and_fetch(mx.ones((1, 3, 2, 8)), mx.ones((1, 3, 2, 8)))
    buffers = sum(buffer.nbytes for buffer in cache.like(5).buffers)
    assert memory.cohort_bytes([cache], slots=5, depth=0, vocab_size=0) == buffers == 2 * 5 * 3 * 64 * 8 * 4
    assert memory.cohort_bytes([], slots=5, depth=2, vocab_size=100) == 5 * 3 * 100 * 4


def test_a_cohort_that_cannot_fit_is_refused_with_the_numbers(tiny: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(*tiny, slots=4)
    load_engine(spec)
    monkeypatch.setattr(memory, "available_bytes", lambda: mx.get_active_memory())
    with pytest.raises(EngineError, match=r"4 slots of 128 positions need .* GB beside .*lower --slots or --max-tokens"):
        run(spec)
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    assert len(run(spec)) == len(PROMPTS)


def test_this_machine_says_what_it_has() -> None:
    available = memory.available_bytes()
    assert available is None or available > 1e8


def test_memory_does_not_grow_over_a_long_shard(tiny: tuple[Path, Path]) -> None:
    spec = make_spec(*tiny, slots=4, max_tokens=6)
    run(spec, PROMPTS * 2)
    before = mx.get_active_memory()
    run(spec, PROMPTS * 12)
    assert mx.get_active_memory() <= before + 1_000_000
