"""Shared beginnings: read once, and to the very bits of every row alone, whatever the layers remember and whether shapes matter or not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from engine_support import essence, fresh_engine, load_engine, make_requests, make_spec
from mlx_lm.utils import load_model
from safetensors.numpy import save_file
from tiny_qwen import KINDS, make_qwen_head_weights, make_tiny_qwen

from schemas.progress import Tally
from schemas.run_spec import RunSpec
from schemas.sampler import SamplerConfig
from worker.engine.completion import Completion, Request
from worker.engine.encoding import encode_prompt
from worker.engine.engine import Timings
from worker.engine.prefix_tree import common_length

SAMPLED = SamplerConfig(temperature=0.9, top_p=0.95)
SYSTEM = "You answer in one line, and you never use an ornament of any kind. "
TEXTS = ["the sea", "a", "the sea is blue"]
Pair = tuple[Path, Path]


@pytest.fixture(scope="module", params=["llama", *KINDS])
def pair(request: pytest.FixtureRequest, tiny: Pair, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A trunk of every family, and a head."""
    if request.param == "llama":
        return tiny
    folder = tmp_path_factory.mktemp(request.param)
    trunk = make_tiny_qwen(folder / "trunk", request.param, tokenizer_from=tiny[0], seed=21)
    head = folder / "mtp.safetensors"
    save_file(make_qwen_head_weights(load_model(trunk)[0], seed=5), head)
    return trunk, head


def chats(spec: RunSpec, texts: list[str], system: str = SYSTEM) -> list[Request]:
    """Requests for conversations that begin with the same system prompt."""
    return [
        replace(request, prompt=None, messages=[{"role": "system", "content": system}, {"role": "user", "content": request.prompt}])
        for request in make_requests(texts, spec.samples)
    ]


def common_beginning(spec: RunSpec, requests: list[Request]) -> int:
    """Tokens that all prompts begin with."""
    tokenizer = load_engine(spec).trunk.tokenizer
    first, *others = (encode_prompt(request, tokenizer, raw=spec.raw) for request in requests[:: spec.samples])
    return min(common_length(first, other) for other in others)


def complete(spec: RunSpec, requests: list[Request], timings: Timings, row_invariant: bool | None) -> list[Completion]:
    return fresh_engine(spec, row_invariant=row_invariant).complete(spec, requests, timings, lambda tally: None)


@pytest.mark.parametrize("elastic", [True, False])
def test_sharing_changes_no_bit_and_reads_every_beginning_once(pair: Pair, elastic: bool) -> None:
    spec = make_spec(*pair, raw=False, depth=2, slots=3, samples=2, sampler=SAMPLED, max_tokens=4, capacities=(256,), prefill_chunk=64)
    if elastic and not load_engine(spec).backend.row_invariant:
        pytest.skip("this backend's kernels are not row-invariant")
    requests = chats(spec, TEXTS)
    shared, alone = Timings(), Timings()
    together = complete(spec, requests, shared, elastic)
    apart = [complete(spec, [request], alone, elastic)[0] for request in requests]
    assert [essence(completion) for completion in together] == [essence(completion) for completion in apart]
    lengths = [completion.prompt_tokens - 1 for completion in together]
    assert alone.prefill_tokens == sum(lengths)
    beginning = common_beginning(spec, requests)
    assert beginning > 60
    assert shared.prefill_tokens == beginning + sum(length - beginning for length in lengths[::2])


@pytest.mark.parametrize("elastic", [True, False])
def test_a_later_shard_knows_what_an_earlier_one_read(tiny: Pair, elastic: bool) -> None:
    spec = make_spec(*tiny, raw=False, depth=2, slots=3, sampler=SAMPLED, max_tokens=4, capacities=(256, 512), prefill_chunk=64)
    if elastic and not load_engine(spec).backend.row_invariant:
        pytest.skip("this backend's kernels are not row-invariant")
    requests = chats(spec, [*TEXTS, "x" * 150])  # the last one needs the larger capacity
    apart = [complete(spec, [request], Timings(), elastic)[0] for request in requests]
    engine = fresh_engine(spec, row_invariant=elastic)
    first, second = Timings(), Timings()
    begun = engine.complete(spec, requests[:2], first, lambda tally: None)
    begun += engine.complete(spec, requests[2:], second, lambda tally: None)
    assert [essence(completion) for completion in begun] == [essence(completion) for completion in apart]
    again = Timings()
    complete(spec, requests[2:], again, elastic)
    assert second.prefill_tokens < again.prefill_tokens - 60


def test_a_beginning_that_later_rows_do_not_have_does_no_harm(tiny: Pair) -> None:
    spec = make_spec(*tiny, raw=False, depth=1, slots=2, max_tokens=5, capacities=(256,), prefill_chunk=64)
    engine = fresh_engine(spec)
    engine.complete(spec, chats(spec, TEXTS), Timings(), lambda tally: None)
    others = chats(spec, TEXTS, system=SYSTEM[:40] + "and now for something else.")
    later = engine.complete(spec, others, Timings(), lambda tally: None)
    assert [essence(completion) for completion in later] == [
        essence(completion) for completion in fresh_engine(spec).complete(spec, others, Timings(), lambda tally: None)
    ]


@pytest.mark.parametrize("elastic", [True, False])
def test_256_prompts_read_a_common_thousand_tokens_once(tiny_llama: Callable[..., Path], elastic: bool) -> None:
    """Over four shards; within 10% of reading the beginning once and every prompt's own part."""
    trunk = tiny_llama(vocab_size=300, hidden=16, layers=1, heads=2, kv_heads=1, seed=12, context=2048)
    spec = make_spec(trunk, None, raw=False, depth=0, slots=16, max_tokens=1, capacities=(2048,), prefill_chunk=512)
    if elastic and not load_engine(spec).backend.row_invariant:
        pytest.skip("this backend's kernels are not row-invariant")
    engine = fresh_engine(spec, row_invariant=elastic)
    requests = chats(spec, [f"{number} and {7 * number}?" for number in range(256)], system=(SYSTEM * 20)[:1000])
    timings = Timings()
    completions = [
        completion
        for shard in range(0, 256, 64)
        for completion in engine.complete(spec, requests[shard : shard + 64], timings, lambda tally: None)
    ]
    lengths = [completion.prompt_tokens - 1 for completion in completions]
    beginning = common_beginning(spec, requests)
    assert beginning > 1000
    assert timings.prefill_tokens <= 1.1 * (beginning + sum(length - beginning for length in lengths))


@pytest.mark.parametrize("elastic", [True, False])
def test_sixteen_samples_read_their_prompt_once(tiny: Pair, elastic: bool) -> None:
    spec = make_spec(*tiny, depth=1, slots=4, samples=16, sampler=SAMPLED, max_tokens=4)
    timings = Timings()
    completions = complete(spec, make_requests([SYSTEM], 16), timings, elastic)
    assert timings.prefill_tokens == completions[0].prompt_tokens - 1


def test_a_long_prompt_is_seen_to_be_read_pass_by_pass(tiny: Pair) -> None:
    spec = make_spec(*tiny, depth=1, max_tokens=4, samples=2, capacities=(512,), prefill_chunk=64)
    seen: list[Tally] = []
    fresh_engine(spec).complete(spec, make_requests(["x" * 300, "y" * 40], 2), Timings(), lambda tally: seen.append(tally()))
    total = seen[-1].prompt_tokens
    assert (seen[-1].prompt_tokens_left, {now.prompt_tokens + now.prompt_tokens_left for now in seen}) == (0, {total})
    read = [now.prompt_tokens for now in seen]
    assert read == sorted(read)
    assert {0, 64, 128, 192, 256} <= {now.prompt_tokens for now in seen if not now.completion_tokens}
