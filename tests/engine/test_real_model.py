"""The laws on the small real model, bit for bit where the machine is row-invariant."""

from pathlib import Path

import pytest
from engine_support import essence, fresh_engine, load_engine, make_requests, make_spec, model_ref, run

from schemas.sampler import SamplerConfig
from worker.distill.distillation import read_distillation
from worker.engine import model_store
from worker.engine.engine import Timings

PROMPTS = ["The capital of France is", "blue, green, blue, green, blue,"]


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("sampler", [SamplerConfig(temperature=0.0), SamplerConfig(temperature=0.7, top_p=0.95)], ids=["greedy", "sampled"])
def test_slots_and_a_draft_of_its_own_change_no_token(smollm2_folder: Path, sampler: SamplerConfig) -> None:
    common = {"raw": True, "max_tokens": 6, "sampler": sampler}  # no template: its 30 tokens are slow on a reference BLAS
    plain = make_spec(smollm2_folder, None, depth=0, slots=1, **common)
    if not load_engine(plain).backend.row_invariant:
        pytest.skip("this backend's kernels are not row-invariant")
    alone = [run(plain, [prompt])[0] for prompt in PROMPTS]
    together = run(make_spec(smollm2_folder, None, depth=0, slots=8, **common), PROMPTS)
    assert [essence(completion) for completion in together] == [essence(completion) for completion in alone]
    if sampler.greedy:
        lookup = run(make_spec(smollm2_folder, None, drafter="lookup", depth=3, slots=2, **common), PROMPTS)
        assert [completion.token_ids for completion in lookup] == [completion.token_ids for completion in alone]
        # A target that drafts for itself is always right, if its passes of one and of three tokens agree to the bit.
        itself = make_spec(smollm2_folder, None, drafter="model", draft_model=model_ref(smollm2_folder), depth=2, slots=2, **common)
        drafted = run(itself, PROMPTS)
        assert [completion.token_ids for completion in drafted] == [completion.token_ids for completion in alone]
        assert all(completion.acceptance.column()["residual"] == 0 for completion in drafted)


@pytest.mark.slow
@pytest.mark.model
def test_the_head_that_comes_along_was_trained_for_this_model_and_its_drafts_are_accepted(smollm2_folder: Path) -> None:
    path = model_store.resolve_head("smollm2-mtp")
    assert (made := read_distillation(path)) is not None
    assert made.model_digest == model_store.combined_digest(model_store.digest_folder(smollm2_folder))
    spec = make_spec(smollm2_folder, path, depth=2, slots=2, raw=True, max_tokens=16, sampler=SamplerConfig(temperature=0.0))
    column = [completion.acceptance.column() for completion in run(spec, PROMPTS)]
    assert sum(row["accepted"] for row in column) > 0


@pytest.mark.slow
@pytest.mark.model
def test_a_shared_beginning_changes_no_bit(smollm2_folder: Path) -> None:
    beginning = (
        "Here is a list of the largest cities of Europe with the rivers that they lie on, and of the seas that these rivers flow to. "
        "Every city has a line of its own, and the lines are in the order of the alphabet: "
    )
    prompts = [beginning + city for city in ("Paris on the", "London on the", "Vienna on the")]
    spec = make_spec(smollm2_folder, None, depth=0, slots=3, raw=True, max_tokens=3, capacities=(128,))
    if not load_engine(spec).backend.row_invariant:
        pytest.skip("this backend's kernels are not row-invariant")
    requests = make_requests(prompts)
    shared, apart = Timings(), Timings()
    together = fresh_engine(spec).complete(spec, requests, shared, lambda tally: None)
    alone = [fresh_engine(spec).complete(spec, [request], apart, lambda tally: None)[0] for request in requests]
    assert [essence(completion) for completion in together] == [essence(completion) for completion in alone]
    assert shared.prefill_tokens < apart.prefill_tokens / 2
