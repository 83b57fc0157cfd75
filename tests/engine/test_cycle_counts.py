"""What a cycle costs, in counts that no machine changes. A change that makes one grow has to say so here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from engine_support import PROMPTS, complete, fresh_engine, make_requests, make_spec

from schemas.sampler import SamplerConfig
from worker.engine.cohort import Cohort
from worker.engine.trunk import Trunk


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_cycle_is_one_pass_of_the_target_and_one_sync_per_decision(
    agreeing_pair: tuple[Path, Path], depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"passes": 0, "syncs": 0}
    cycles: list[tuple[int, int]] = []

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return function(*arguments, **options)

        return call

    def cycle(cohort: Cohort) -> Any:
        before = dict(counts)
        ended = cohort.commit(cohort.judge())
        cycles.append((counts["passes"] - before["passes"], counts["syncs"] - before["syncs"]))
        return ended

    trunk, head = agreeing_pair
    sampler = SamplerConfig(temperature=0.7, top_k=20)
    spec = make_spec(trunk, head if depth else None, depth=depth, slots=len(PROMPTS), sampler=sampler)
    engine = fresh_engine(spec)
    monkeypatch.setattr(Trunk, "forward", counted("passes", Trunk.forward))
    monkeypatch.setattr(mx, "eval", counted("syncs", mx.eval))
    monkeypatch.setattr(Cohort, "cycle", cycle)
    completions = complete(engine, spec, make_requests(PROMPTS))
    assert set(cycles) == {(1, depth + 1)}
    # All rows share their passes: there are no more cycles than the slowest row has.
    assert len(cycles) == max(completion.acceptance.cycles for completion in completions)
    assert sum(len(completion.token_ids) for completion in completions) > len(cycles)
