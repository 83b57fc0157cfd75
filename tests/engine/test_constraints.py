"""Constrained rows: every completion has the form, and depth, drafter and batch change what plain decoding would say as little as ever."""

import json
import math
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from engine_support import GREEDY, PROMPTS, complete, essence, load_engine, make_requests, make_spec, model_ref, run
from mlx_lm.utils import load

from sampling import distribution_from_logits
from schemas.constraint import Constraint
from schemas.errors import GrammarError
from schemas.sampler import SamplerConfig
from worker.engine.completion import Completion
from worker.engine.session import Session

Models = tuple[Path, Path]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "array", "items": {"enum": [1, 22, 333]}, "maxItems": 3}},
    "required": ["ok", "n"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},  # a random model would fill its budget with spaces
}
JSON = Constraint("json-schema", json.dumps(SCHEMA))
DIGITS = Constraint("regex", "[0-9]{2,12}(,[0-9]+)*;")
WARM = SamplerConfig(temperature=1.1, top_p=0.97, presence_penalty=0.3, repetition_penalty=1.1)


def texts(completions: list[Completion]) -> list[tuple[list[int], str, str]]:
    return [(completion.token_ids, completion.text, completion.finish_reason) for completion in completions]


def holds(completion: Completion) -> None:
    """The text is an instance of the schema, unless the budget cut it."""
    assert completion.error is None
    if completion.finish_reason == "length":
        return
    value = json.loads(completion.text)
    assert set(value) == {"ok", "n"}
    assert isinstance(value["ok"], bool)
    assert len(value["n"]) <= 3
    assert set(value["n"]) <= {1, 22, 333}


MODES: dict[str, dict[str, Any]] = {
    "rejection": {"sampler": GREEDY, "constraint": JSON, "max_tokens": 60},
    "shared-noise": {"sampler": WARM, "coupling": "shared-noise", "constraint": JSON, "max_tokens": 60},
}


@cache
def plainly(trunk: Path, coupling: str) -> list[Completion]:
    """What plain decoding says, and that it has the form."""
    plain = run(make_spec(trunk, None, depth=0, **MODES[coupling]))
    for completion in plain:
        holds(completion)
    assert sum(completion.finish_reason == "stop" for completion in plain) >= 4
    return plain


@pytest.mark.parametrize("drafter", ["head", "lookup", "auto", "model", "part of the vocabulary"])
def test_greedy_and_shared_noise_are_plain_decoding_at_every_depth(tiny: Models, tiny_head: Any, drafter: str) -> None:
    trunk, head = tiny
    for coupling, options in MODES.items():
        plain = plainly(trunk, coupling)
        by_name: dict[str, Any] = {
            "model": {"drafter": "model", "draft_model": model_ref(trunk)},
            "lookup": {"drafter": "lookup"},
            "auto": {"drafter": "auto"},
        }
        own_head = None if drafter in ("model", "lookup") else head
        if drafter == "part of the vocabulary":
            own_head = tiny_head(trunk, seed=9, draft_vocab=[*range(1, 40), 50])
        for depth in (1, 4):
            drafted = run(make_spec(trunk, own_head, depth=depth, **options, **by_name.get(drafter, {})))
            assert texts(drafted) == texts(plain), (coupling, depth)


def test_the_model_itself_as_a_drafter_is_accepted_everywhere(tiny: Models) -> None:
    """Were p and q not masked alike, the best draft there is would be rejected now and then."""
    trunk, _ = tiny
    options: dict[str, Any] = {"sampler": WARM, "constraint": JSON, "drafter": "model", "draft_model": model_ref(trunk)}
    completions = run(make_spec(trunk, None, depth=3, max_tokens=60, **options))
    assert sum(completion.acceptance.residual for completion in completions) == 0
    assert sum(sum(completion.acceptance.accepted_by_depth) for completion in completions) > 60


def test_neighbours_and_slots_change_no_bit(tiny: Models) -> None:
    spec = make_spec(*tiny, sampler=WARM, constraint=JSON, max_tokens=60, slots=3, samples=2)
    together = {completion.request.key: essence(completion) for completion in run(spec)}
    for prompt in PROMPTS[:3]:
        for completion in run(spec, [prompt]):
            assert essence(completion) == together[completion.request.key]


def test_the_grammar_ends_the_row_even_at_its_last_token_and_end_tokens_end_it_where_it_may_end(tiny: Models) -> None:
    for depth in (0, 3):
        for completion in run(make_spec(*tiny, depth=depth, constraint=Constraint("regex", "ab{2}c"), max_tokens=24)):
            assert (completion.text, completion.finish_reason) == ("abbc", "stop")
        longest = max(len(completion.token_ids) for completion in run(make_spec(*tiny, depth=depth, constraint=DIGITS)))
        completions = run(make_spec(*tiny, depth=depth, constraint=DIGITS, max_tokens=longest))
        assert all(re.fullmatch(DIGITS.text, completion.text) for completion in completions if completion.finish_reason == "stop")
        open_end = run(make_spec(*tiny, depth=depth, constraint=Constraint("regex", "[a-z ]*"), sampler=SamplerConfig(temperature=2.0)))
        ended = [completion for completion in open_end if completion.finish_reason == "stop"]
        assert all(completion.token_ids[-1] == 1 for completion in ended)
        assert all(re.fullmatch("[a-z ]*", completion.text) for completion in open_end)


def test_an_empty_support_of_the_draft_means_no_draft_in_that_cycle(tiny: Models, tiny_head: Any) -> None:
    trunk, _ = tiny
    tokenizer = load_engine(make_spec(*tiny)).trunk.tokenizer
    ids = sorted({token for letter in "ab" for token in tokenizer.encode(letter)})
    head = tiny_head(trunk, seed=9, draft_vocab=ids)
    options: dict[str, Any] = {"constraint": Constraint("regex", "(ac){6}"), "sampler": WARM}
    completions = run(make_spec(trunk, head, depth=3, **options))
    assert {completion.text for completion in completions} == {"ac" * 6}
    # Behind an a the head has no token, so it drafts a c nowhere: at depth 1 at most, and never when a c is due.
    assert all(completion.acceptance.drafted_by_depth[1:] == [0, 0] for completion in completions)
    assert sum(completion.acceptance.drafted_by_depth[0] for completion in completions) > 0


@pytest.mark.parametrize("config", [SamplerConfig(), SamplerConfig(temperature=0.6, top_p=0.9)], ids=["plain", "nucleus"])
@pytest.mark.parametrize("draft_vocab", [None, [4, 1, 3]], ids=["whole", "part"])
def test_whole_completions_follow_the_masked_model(
    small_vocabulary: Models, tiny_head: Any, config: SamplerConfig, draft_vocab: list[int] | None
) -> None:
    """Enumeration: the model has 6 tokens, its texts are made of ' ', 'e' and 't'. G-test with a false-alarm rate of 1e-6."""
    trunk, head = small_vocabulary
    pattern, most, samples = "e?(te| t){0,2}e?", 4, 800
    if draft_vocab is not None:
        head = tiny_head(trunk, seed=12, draft_vocab=draft_vocab)
    expected = enumerate_matches(trunk, config, pattern, most)
    spec = make_spec(
        trunk, head, sampler=config, depth=2, max_tokens=most, slots=64, samples=samples, constraint=Constraint("regex", pattern)
    )
    completions = complete(load_engine(spec), spec, make_requests(["e t a"], samples))
    seen = Counter(tuple(completion.token_ids) for completion in completions)
    assert set(seen) <= set(expected), "a completion of probability 0"
    cells = [(seen[tokens], samples * p) for tokens, p in expected.items() if samples * p >= 5]
    rest = (samples - sum(count for count, _ in cells), samples - sum(mean for _, mean in cells))
    cells += [rest] if rest[1] >= 5 else []
    g = 2 * sum(count * math.log(count / mean) for count, mean in cells if count)
    degrees = len(cells) - 1
    quantile = degrees * (1 - 2 / (9 * degrees) + 4.75 * math.sqrt(2 / (9 * degrees))) ** 3
    assert degrees > 3
    assert g < quantile, (g, degrees)
    accepted = sum(sum(completion.acceptance.accepted_by_depth) for completion in completions)
    expected_accepted = sum(completion.acceptance.expected_accepted for completion in completions)
    deviation = math.sqrt(sum(completion.acceptance.accepted_variance for completion in completions))
    assert abs(accepted - expected_accepted) <= 4.9 * deviation


def enumerate_matches(folder: Path, config: SamplerConfig, pattern: str, most: int) -> dict[tuple[int, ...], float]:
    """Probability of every completion, each token drawn from the model restricted to what can still become a match, by brute force."""
    model, tokenizer = load(str(folder))
    letters = {3: " ", 4: "e", 5: "t"}
    matches = {text for text in words("".join(letters.values()), 6) if re.fullmatch(pattern, text)}
    prompt = tokenizer.encode("e t a")
    finished: dict[tuple[int, ...], float] = {}
    todo: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while todo:
        prefix, probability = todo.pop()
        text = "".join(letters[token] for token in prefix)
        if prefix and (text in matches and not any(other != text and other.startswith(text) for other in matches)):
            finished[prefix] = probability
            continue
        if len(prefix) == most:
            finished[prefix] = probability
            continue
        allowed = [token for token, letter in letters.items() if any(other.startswith(text + letter) for other in matches)]
        allowed += [1] if text in matches else []
        logits = np.array(model(mx.array([[*prompt, *prefix]]))[0, -1]).astype(np.float64)
        masked = np.full_like(logits, -np.inf)
        masked[allowed] = logits[allowed]
        for token, p in enumerate(distribution_from_logits(masked, config)):
            if p > 0 and token == 1:
                finished[*prefix, token] = probability * float(p)
            elif p > 0:
                todo.append(((*prefix, token), probability * float(p)))
    assert math.isclose(sum(finished.values()), 1.0)
    return finished


def words(letters: str, most: int) -> list[str]:
    found = [""]
    for text in found:
        found += [text + letter for letter in letters] if len(text) < most else []
    return found


def test_a_session_decides_the_same_tokens(tiny: Models) -> None:
    spec = make_spec(*tiny, sampler=WARM, constraint=JSON, max_tokens=40, depth=2)
    for request in make_requests(PROMPTS[:2]):
        session = Session(load_engine(spec), spec, request)
        while session.finish_reason is None:
            seen = session.get_logits()
            assert seen.verify is not None
            assert np.isneginf(seen.verify).any()
            session.step()
        assert session.token_ids == complete(load_engine(spec), spec, [request])[0].token_ids


@pytest.mark.parametrize(
    ("constraint", "says"),
    [
        (Constraint("regex", "(ab"), "the regex cannot be compiled: .*unclosed group"),
        (Constraint("json-schema", '{"type":"strin"}'), "the json schema cannot be compiled: Invalid type: strin"),
        (Constraint("json-schema", '{"not":{"type":"string"}}'), 'Unimplemented keys: \\["not"\\]'),
        (Constraint("grammar", "start: nothing"), 'the grammar cannot be compiled: .*unknown name: "nothing"'),
    ],
)
def test_what_cannot_be_compiled_is_refused(tiny: Models, constraint: Constraint, says: str) -> None:
    with pytest.raises(GrammarError, match=re.compile(says, re.DOTALL)):
        run(make_spec(*tiny, constraint=constraint))
