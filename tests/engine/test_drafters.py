"""Every drafter under the engine's laws: whatever proposes, the rows are the target's."""

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_support import PROMPTS, essence, fresh_engine, head_ref, load_engine, make_requests, make_spec, model_ref, run

from schemas.errors import ModelError
from schemas.run_spec import RunSpec
from schemas.sampler import SamplerConfig
from worker.engine.engine import Timings
from worker.engine.lookup_drafter import LookupDrafter, NGramIndex
from worker.engine.row import Row

SAMPLED = SamplerConfig(temperature=0.8, top_p=0.95)
ADJUSTED = SamplerConfig(frequency_penalty=0.5, repetition_penalty=1.2, logit_bias={"9": 2.0}, min_tokens=6)
REPEATING = ["abcabcabcabcabc", "the sea the sea the sea the", "1 2 3 1 2 3 1 2 3", "no match here"]


@pytest.fixture(scope="module")
def draft_model(tiny_llama: Callable[..., Path]) -> Path:
    return tiny_llama(vocab_size=300, hidden=16, layers=1, heads=2, kv_heads=1, seed=40)


def spec_for(drafter: str, pair: tuple[Path, Path], draft_model: Path, **changes: object) -> RunSpec:
    trunk, head = pair
    if drafter == "model":
        return make_spec(trunk, None, drafter="model", draft_model=model_ref(draft_model), **changes)
    if drafter == "auto with a model":
        return make_spec(trunk, None, drafter="auto", draft_model=model_ref(draft_model), **changes)
    return make_spec(trunk, None if drafter == "lookup" else head, drafter=drafter, **changes)


ALL = ["head", "lookup", "model", "auto", "auto with a model"]


@pytest.mark.parametrize("drafter", ALL)
@pytest.mark.parametrize("depth", [1, 3, 7])
def test_greedy_is_plain_greedy(agreeing_pair: tuple[Path, Path], draft_model: Path, drafter: str, depth: int) -> None:
    prompts = [*PROMPTS[:3], *REPEATING]
    plain = run(make_spec(agreeing_pair[0], None, depth=0), prompts)
    drafted = run(spec_for(drafter, agreeing_pair, draft_model, depth=depth), prompts)
    assert [completion.token_ids for completion in drafted] == [completion.token_ids for completion in plain]


@pytest.mark.parametrize("drafter", ALL)
@pytest.mark.parametrize("sampler", [SAMPLED, ADJUSTED], ids=["filtered", "whole vocabulary"])
def test_shared_noise_gives_the_tokens_of_plain_decoding(
    agreeing_pair: tuple[Path, Path], draft_model: Path, drafter: str, sampler: SamplerConfig
) -> None:
    prompts = [*PROMPTS[:2], *REPEATING[:2]]
    common = {"coupling": "shared-noise", "sampler": sampler, "max_tokens": 16}
    if not load_engine(make_spec(agreeing_pair[0], None, depth=0)).backend.row_invariant:
        pytest.skip("passes of different lengths agree on row-invariant backends only")
    plain = [completion.token_ids for completion in run(make_spec(agreeing_pair[0], None, depth=0, **common), prompts)]
    for depth in (1, 2, 7):
        completions = run(spec_for(drafter, agreeing_pair, draft_model, depth=depth, **common), prompts)
        assert [completion.token_ids for completion in completions] == plain, depth
    if drafter != "lookup":  # a random model hardly ever repeats itself
        assert sum(completion.acceptance.column()["accepted"] for completion in completions) > 0


@pytest.mark.parametrize("drafter", ALL)
def test_neighbours_slots_and_order_change_no_bit(agreeing_pair: tuple[Path, Path], draft_model: Path, drafter: str) -> None:
    prompts = [*PROMPTS[:3], *REPEATING]
    spec = spec_for(drafter, agreeing_pair, draft_model, depth=3, slots=3, sampler=SAMPLED)
    together = {completion.request.key: essence(completion) for completion in run(spec, prompts)}
    reverse = {completion.request.key: essence(completion) for completion in run(spec, prompts[::-1])}
    alone = {completion.request.key: essence(completion) for prompt in prompts for completion in run(spec, [prompt])}
    assert together == reverse == alone


@pytest.mark.parametrize("drafter", ALL)
def test_a_shared_beginning_is_read_once_and_changes_no_bit(agreeing_pair: tuple[Path, Path], draft_model: Path, drafter: str) -> None:
    system = "You are a careful writer who answers in one line, without any ornament. "
    prompts = [system + text for text in ("the sea", "the sea is blue", "hi", "")] + [PROMPTS[0]]
    spec = spec_for(drafter, agreeing_pair, draft_model, depth=2, slots=3, sampler=SAMPLED)
    engine = fresh_engine(spec)
    if not engine.backend.row_invariant:
        pytest.skip("raw prompts share a part of a pass on row-invariant backends only")
    together, alone = Timings(), Timings()
    completions = engine.complete(spec, make_requests(prompts), together, lambda tally: None)
    assert [essence(completion) for completion in completions] == [
        essence(fresh_engine(spec).complete(spec, [request], alone, lambda tally: None)[0]) for request in make_requests(prompts)
    ]
    read = sum(completion.prompt_tokens - 1 for completion in completions)
    assert alone.prefill_tokens == read
    assert together.prefill_tokens < read - 3 * 50


def test_a_model_that_drafts_for_itself_is_always_right(agreeing_pair: tuple[Path, Path]) -> None:
    trunk = agreeing_pair[0]
    spec = make_spec(trunk, None, drafter="model", draft_model=model_ref(trunk), depth=3)
    if not load_engine(spec).backend.row_invariant:
        pytest.skip("this backend's kernels are not row-invariant")
    for completion in run(spec):
        column = completion.acceptance.column()
        assert column["accepted"] == column["drafted"]
        assert column["residual"] == 0
    for completion in run(make_spec(trunk, None, drafter="model", draft_model=model_ref(trunk), depth=3, sampler=SAMPLED)):
        assert completion.acceptance.column()["accepted"] == completion.acceptance.column()["drafted"]


def test_a_row_without_a_match_proposes_nothing(agreeing_pair: tuple[Path, Path], draft_model: Path) -> None:
    completion = run(spec_for("lookup", agreeing_pair, draft_model, depth=3, max_tokens=2), ["qwz"])[0]
    column = completion.acceptance.column()
    assert (column["drafted"], column["residual"], column["bonus"], column["cycles"]) == (0, 0, 2, 2)


def test_the_latest_of_the_longest_matches_continues_the_text() -> None:
    index = NGramIndex([1, 2, 3, 9, 2, 3, 7, 8, 1, 2, 3], shortest=2)
    assert index.continuation(3) == [9, 2, 3], "three tokens match at the front, two in the middle: the longer match wins"
    index.extend([7])
    assert index.continuation(5) == [8, 1, 2, 3, 7]
    assert NGramIndex([1, 2, 3], shortest=2).continuation(4) == []
    assert NGramIndex([5, 5, 5], shortest=2).continuation(4) == [5]


def test_what_is_proposed_is_padded_where_the_text_ends(tiny: tuple[Path, Path]) -> None:
    tokenizer = load_engine(make_spec(*tiny)).trunk.tokenizer
    row = Row(make_requests(["x"])[0], [5, 6, 5, 6], max_tokens=4, stop=(), tokenizer=tokenizer, depth=3)
    drafter = LookupDrafter(depth=3, slots=2, vocab_size=300)
    drafter.admit(0, drafter, row)
    assert drafter.propose([row, None]).tolist() == [[5, 6, -1], [-1, -1, -1]]


def test_a_draft_model_with_another_vocabulary_is_refused(tiny: tuple[Path, Path], tiny_llama: Callable[..., Path]) -> None:
    other = tiny_llama(vocab_size=290, hidden=16, layers=1, heads=2, kv_heads=1, seed=41)
    with pytest.raises(ModelError, match="300 ids; received 290 ids"):
        load_engine(make_spec(tiny[0], None, drafter="model", draft_model=model_ref(other)))


def test_a_run_needs_what_its_drafter_needs(tiny: tuple[Path, Path]) -> None:
    trunk, head = tiny
    for drafter in ("head", "model", "auto"):
        with pytest.raises(ValueError, match="depth must be 0 without"):
            make_spec(trunk, None, drafter=drafter, depth=1)
    with pytest.raises(ValueError, match="received both"):
        make_spec(trunk, head, draft_model=model_ref(trunk))
    with pytest.raises(ValueError, match="drafter must be one of"):
        make_spec(trunk, head, drafter="oracle")
    assert head_ref(head).files
