"""The engine's laws on tiny random models: greedy is mlx-lm's greedy, and nothing but its own inputs changes a row."""

from functools import cache
from pathlib import Path

import mlx.core as mx
import pytest
from engine_support import GREEDY, PROMPTS, complete, essence, load_engine, make_requests, make_spec, run
from mlx_lm.generate import generate_step
from mlx_lm.utils import load

from schemas.errors import EngineError
from schemas.sampler import SamplerConfig
from worker.engine.completion import Request

SAMPLED = SamplerConfig(temperature=0.9, top_p=0.95, presence_penalty=0.4, frequency_penalty=0.2)
Models = tuple[Path, Path]


@cache
def mlx_lm_greedy(folder: Path, prompt: str, max_tokens: int) -> list[int]:
    """mlx-lm's own greedy completion, its end token included."""
    model, tokenizer = load(str(folder))
    tokens: list[int] = []
    for token, _ in generate_step(mx.array(tokenizer.encode(prompt)), model, max_tokens=max_tokens):
        tokens.append(int(token))
        if tokens[-1] in tokenizer.eos_token_ids:
            break
    return tokens


@pytest.mark.parametrize("depth", range(5))
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_greedy_is_mlx_lms_greedy_token_for_token(tiny: Models, depth: int, slots: int) -> None:
    trunk, head = tiny
    completions = run(make_spec(trunk, head, depth=depth, slots=slots))
    assert [completion.token_ids for completion in completions] == [mlx_lm_greedy(trunk, prompt, 24) for prompt in PROMPTS]
    assert all(completion.finish_reason in ("stop", "length") for completion in completions)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_greedy_holds_where_drafts_are_often_accepted(agreeing_pair: Models, depth: int) -> None:
    trunk, head = agreeing_pair
    completions = run(make_spec(trunk, head, depth=depth))
    assert [completion.token_ids for completion in completions] == [mlx_lm_greedy(trunk, prompt, 24) for prompt in PROMPTS]
    assert all(sum(completion.acceptance.accepted_by_depth[depth - 1] for completion in completions) > 0 for depth in range(1, depth + 1))


def test_a_draft_vocabulary_changes_no_greedy_token(tiny_head, small_vocabulary: Models) -> None:
    trunk, _ = small_vocabulary
    head = tiny_head(trunk, seed=9, draft_vocab=[5, 3, 2])
    completions = run(make_spec(trunk, head, depth=2))
    assert [completion.token_ids for completion in completions] == [mlx_lm_greedy(trunk, prompt, 24) for prompt in PROMPTS]


@pytest.mark.parametrize("sampler", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_neighbours_slot_and_order_change_no_bit(tiny: Models, sampler: SamplerConfig) -> None:
    spec = make_spec(*tiny, sampler=sampler, slots=3, samples=2)
    together = {completion.request.key: essence(completion) for completion in run(spec)}
    reverse = run(spec, PROMPTS[::-1])
    alone = [completion for prompt in PROMPTS for completion in run(spec, [prompt])]
    assert {completion.request.key: essence(completion) for completion in reverse} == together
    assert {completion.request.key: essence(completion) for completion in alone} == together


@pytest.mark.parametrize("sampler", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_slots_capacity_and_prefill_chunk_change_no_bit_on_a_row_invariant_backend(tiny: Models, sampler: SamplerConfig) -> None:
    base = make_spec(*tiny, sampler=sampler)
    if not load_engine(base).backend.row_invariant:
        pytest.skip("this backend's kernels are not row-invariant")
    expected = [essence(completion) for completion in run(base)]
    for changes in ({"slots": 1}, {"slots": 8}, {"capacities": (512,)}, {"prefill_chunk": 16}):
        assert [essence(completion) for completion in run(make_spec(*tiny, sampler=sampler, **changes))] == expected, changes


def test_an_engine_that_may_not_shrink_its_passes_decodes_the_same_rows(tiny: Models) -> None:
    spec = make_spec(*tiny, sampler=SAMPLED, slots=4)
    engine = load_engine(spec)
    if not engine.backend.row_invariant:
        pytest.skip("this backend's kernels are not row-invariant")
    elastic = [essence(completion) for completion in run(spec)]
    rigid = type(engine)(engine._trunk, engine._head, None, spec.profile)
    rigid.backend = type(engine.backend)(**{**vars(engine.backend), "row_invariant": False})
    assert [essence(completion) for completion in complete(rigid, spec, make_requests(PROMPTS))] == elastic


def test_seeds_decide_the_tokens(tiny: Models) -> None:
    spec = make_spec(*tiny, sampler=SAMPLED)
    first = [completion.token_ids for completion in run(spec)]
    assert [completion.token_ids for completion in run(spec)] == first
    others = complete(load_engine(spec), spec, make_requests(PROMPTS, first_key=2000))
    assert all(other.token_ids != tokens for other, tokens in zip(others, first, strict=True))


def test_samples_of_one_prompt_are_its_rows_alone(tiny: Models) -> None:
    spec = make_spec(*tiny, sampler=SAMPLED, samples=5)
    together = run(spec, PROMPTS[:1])
    assert len({tuple(completion.token_ids) for completion in together}) == 5
    for completion in together:
        alone = complete(load_engine(spec), spec, [completion.request])
        assert essence(alone[0]) == essence(completion)


def test_counts_add_up(small_vocabulary: Models) -> None:
    for depth in (0, 1, 3):
        for completion in run(make_spec(*small_vocabulary, depth=depth, sampler=SAMPLED)):
            acceptance = completion.acceptance.column()
            assert acceptance["accepted"] + acceptance["residual"] + acceptance["bonus"] == len(completion.token_ids)
            assert acceptance["residual"] + acceptance["bonus"] in (acceptance["cycles"], acceptance["cycles"] - 1)
            assert all(a <= d for a, d in zip(acceptance["accepted_by_depth"], acceptance["drafted_by_depth"], strict=True))
            assert len(completion.logprobs) == len(completion.token_ids)
            assert acceptance["expected_accepted"] <= acceptance["drafted"]


def test_rows_that_cannot_run_fail_alone(tiny: Models) -> None:
    spec = make_spec(*tiny)
    requests = make_requests([*PROMPTS[:2], "x" * 600, ""])
    requests.append(Request(index=4, sample=0, key=1, prompt=None, messages=[{"role": "user", "content": "hi"}], bad_input=None))
    requests.append(Request(index=5, sample=0, key=2, prompt=None, messages=None, bad_input="line 6 is not JSON"))
    completions = complete(load_engine(spec), spec, requests)
    kinds = [type(completion.error).__name__ for completion in completions]
    assert kinds == ["NoneType", "NoneType", "PromptTooLongError", "EmptyPromptError", "TemplateError", "BadInputError"]
    assert "must fit" in str(completions[2].error)
    assert [completion.token_ids for completion in completions[:2]] == [mlx_lm_greedy(tiny[0], prompt, 24) for prompt in PROMPTS[:2]]
    assert all(completion.finish_reason == "error" and not completion.token_ids for completion in completions[2:])


def test_a_stop_string_cuts_text_ids_and_counts(tiny: Models) -> None:
    full = run(make_spec(*tiny), PROMPTS[:1])[0]
    stop = full.text[5:7]
    cut = run(make_spec(*tiny, stop=(stop,)), PROMPTS[:1])[0]
    assert cut.finish_reason == "stop"
    assert cut.text == full.text[: full.text.index(stop)]
    assert cut.token_ids == full.token_ids[: len(cut.token_ids)]
    assert stop in load_engine(make_spec(*tiny))._trunk.tokenizer.decode(cut.token_ids)
    assert stop not in load_engine(make_spec(*tiny))._trunk.tokenizer.decode(cut.token_ids[:-1])


def test_max_tokens_is_exact(tiny: Models) -> None:
    for budget in (1, 2, 5):
        for completion in run(make_spec(*tiny, max_tokens=budget)):
            assert len(completion.token_ids) == budget or completion.finish_reason == "stop"
            assert len(completion.token_ids) <= budget


def test_a_bias_on_a_token_that_the_model_lacks_is_refused(tiny: Models) -> None:
    spec = make_spec(*tiny, sampler=SamplerConfig(logit_bias={"300": 1.0}))
    with pytest.raises(EngineError, match=r"logit_bias must hold tokens in \[0, 300\); received 300"):
        run(spec)
