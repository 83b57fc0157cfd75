"""Where rows end, at every depth as in plain decoding: stop strings, a minimum of tokens, ignored end tokens, a budget for thinking."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_support import load_engine, make_spec, run

from schemas.constraint import Constraint
from schemas.errors import ModelError
from schemas.sampler import SamplerConfig
from worker.engine.completion import Completion
from worker.engine.grammar import Grammar, GrammarRule, grammar_tokenizer
from worker.engine.row_mask import RowMask, Rule
from worker.engine.thinking import ThinkingRule, ThinkTags

Models = tuple[Path, Path]
WARM = SamplerConfig(temperature=0.9)
THINK, END_THINK = 300, 301


@pytest.fixture(scope="module")
def thinking_model(tiny_llama: Any, tiny_head: Any, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A tiny trunk whose last two tokens are think tags, and its head."""
    plain = tiny_llama(vocab_size=302, hidden=32, layers=2, heads=4, kv_heads=2, seed=3)
    folder = tmp_path_factory.mktemp("thinking") / "model"
    shutil.copytree(plain, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    model = tokenizer["model"]
    model["vocab"] = {token: number for token, number in model["vocab"].items() if number < THINK}
    model["merges"] = [pair for pair in model["merges"] if pair.replace(" ", "") in model["vocab"]]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    tokenizer["added_tokens"] += [{"id": number, "content": tag, **flags} for number, tag in ((THINK, "<think>"), (END_THINK, "</think>"))]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder, tiny_head(folder, seed=4)


def outcome(completions: list[Completion]) -> list[tuple[list[int], str, str]]:
    return [(completion.token_ids, completion.text, completion.finish_reason) for completion in completions]


def at_every_depth(trunk: Path, head: Path, prompts: list[str] | None = None, **options: Any) -> list[list[Completion]]:
    """Plain decoding, greedy and sampled; greedy and shared-noise at greater depths must say the same."""
    bias = options.pop("bias", {})
    plains = []
    for temperature, coupling in ((0.0, "rejection"), (0.9, "shared-noise")):
        sampler = SamplerConfig(temperature=temperature, logit_bias=bias, min_tokens=options.get("min_tokens", 0))
        more = {name: value for name, value in options.items() if name != "min_tokens"}

        def completed(depth: int, sampler: SamplerConfig = sampler, coupling: str = coupling, more: Any = more) -> list[Completion]:
            spec = make_spec(trunk, head, depth=depth, sampler=sampler, coupling=coupling, **more)
            return run(spec) if prompts is None else run(spec, prompts)

        plain = completed(0)
        for depth in (1, 4):
            assert outcome(completed(depth)) == outcome(plain), (depth, coupling)
        plains.append(plain)
    return plains


def test_stop_strings_cut_at_every_depth_alike(agreeing_pair: Models) -> None:
    free = run(make_spec(*agreeing_pair, depth=0))
    stops = tuple({completion.text[at : at + 2] for completion in free for at in (4, 9)} - {""})
    for plain in at_every_depth(*agreeing_pair, stop=stops):
        assert any(completion.finish_reason == "stop" for completion in plain)
        assert not any(text in completion.text for completion in plain for text in stops)


def test_a_minimum_of_tokens_holds_at_every_depth(small_vocabulary: Models) -> None:
    for plain in at_every_depth(*small_vocabulary, min_tokens=4, bias={"1": 4.0}):
        assert all(len(completion.token_ids) > 4 and 1 not in completion.token_ids[:4] for completion in plain)
        assert any(len(completion.token_ids) == 5 for completion in plain)


def test_ignored_end_tokens_end_nothing(small_vocabulary: Models) -> None:
    ended = run(make_spec(*small_vocabulary, depth=2, sampler=WARM))
    assert any(completion.finish_reason == "stop" for completion in ended)
    plains = at_every_depth(*small_vocabulary, ignore_eos=True)
    assert all(completion.finish_reason == "length" and len(completion.token_ids) == 24 for plain in plains for completion in plain)
    assert any(1 in completion.token_ids[:-1] for plain in plains for completion in plain)


def between_tags(token_ids: list[int], opened: bool = False) -> int:
    """Tokens between think tags."""
    count, inside = 0, opened
    for token in token_ids:
        inside = (inside or token == THINK) and token != END_THINK
        count += inside and token != THINK
    return count


@pytest.mark.parametrize("budget", [0, 5])
def test_thinking_ends_where_its_budget_ends(thinking_model: Models, budget: int) -> None:
    free = run(make_spec(*thinking_model, depth=0, sampler=SamplerConfig(logit_bias={str(THINK): 4.0}, temperature=0.9)))
    assert any(between_tags(completion.token_ids) > budget for completion in free)
    used = []
    for plain in at_every_depth(*thinking_model, thinking_budget=budget, bias={str(THINK): 4.0}):
        used += [between_tags(completion.token_ids) for completion in plain]
    assert max(used) == budget


def test_a_prompt_that_opens_the_tags_is_thinking_from_the_start(thinking_model: Models) -> None:
    for plain in at_every_depth(*thinking_model, ["hello<think>", "a<think>b</think>"], thinking_budget=3):
        opened, closed = plain
        assert opened.token_ids[3] == END_THINK
        assert between_tags(opened.token_ids, opened=True) == 3
        assert END_THINK not in closed.token_ids[:4]


def test_a_constraint_begins_behind_the_thinking(thinking_model: Models) -> None:
    regex = Constraint("regex", "[ab]{2}c")
    for plain in at_every_depth(
        *thinking_model, ["hello<think>", "no", "a<think>b</think>"], thinking_budget=4, constraint=regex, bias={str(THINK): 9.0, "1": 9.0}
    ):
        for completion, tags in zip(plain, (1, 1, 0), strict=True):
            assert completion.finish_reason == "stop"
            assert completion.token_ids.count(END_THINK) == tags
            assert set(completion.text.partition("</think>")[2 if tags else 0][:2]) <= set("ab")
            assert completion.text[-1] == "c"


def test_a_model_without_think_tags_has_no_budget_for_them(tiny: Models) -> None:
    with pytest.raises(ModelError, match=r"thinking_budget needs a model with think tags .* has none"):
        run(make_spec(*tiny, thinking_budget=4))


@pytest.mark.parametrize("thinks", [False, True])
def test_a_mask_walked_ahead_and_back_is_the_mask_of_a_fresh_walk(thinking_model: Models, thinks: bool) -> None:
    trunk = load_engine(make_spec(*thinking_model)).trunk
    grammar = Grammar(Constraint("regex", "([0-9]{1,3},)*[ab]*;"), grammar_tokenizer(trunk.tokenizer, trunk.vocab_size, trunk.eos_ids))

    def mask() -> RowMask:
        rule: Rule = GrammarRule(grammar)
        return RowMask(ThinkingRule(ThinkTags(THINK, END_THINK), 3, [5], trunk.vocab_size, [1], rule) if thinks else rule)

    rng = random.Random(1)
    for _ in range(12):
        walked, committed = mask(), list[int]()
        while not walked.ended and len(committed) < 12:
            for _ in range(3):  # drafts that share beginnings, end the row, or are not allowed
                drafts = []
                for _ in range(rng.randrange(5)):
                    allowed = np.unpackbits(walked.along(drafts)[-1], bitorder="little", count=trunk.vocab_size)
                    drafts.append(rng.choice(np.flatnonzero(allowed).tolist()) if rng.random() < 0.9 else rng.randrange(trunk.vocab_size))
                    drafts = drafts[: rng.randrange(len(drafts) + 1)] if rng.random() < 0.2 else drafts
                fresh = mask()
                assert all(fresh.commit(token) for token in committed)
                assert np.array_equal(walked.along(drafts), fresh.along(drafts)), (committed, drafts)
                assert walked.legal(drafts) == fresh.legal(drafts)
            allowed = np.unpackbits(walked.along([])[0], bitorder="little", count=trunk.vocab_size)
            legal = walked.legal(drafts)
            committed.append(drafts[0] if legal else rng.choice(np.flatnonzero(allowed).tolist()))
            if committed[-1] == 1:
                break
            assert walked.commit(committed[-1])


def test_a_rule_that_gives_up_fails_its_row_and_says_so(tiny: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = GrammarRule.allowed

    def tired(rule: GrammarRule) -> np.ndarray:
        bits = allowed(rule)
        if len(rule._tokens) < 3:
            return bits
        rule._fault = "too many items"
        return np.zeros_like(bits)

    monkeypatch.setattr(GrammarRule, "allowed", tired)
    for depth in (0, 2):
        completions = run(make_spec(*tiny, depth=depth, constraint=Constraint("regex", "[ab]{9}")))
        assert {type(completion.error).__name__ for completion in completions} == {"ConstraintError"}
        assert all("too many items" in str(completion.error) for completion in completions)
        short = run(make_spec(*tiny, depth=depth, constraint=Constraint("regex", "[ab]{3}")))
        assert {completion.finish_reason for completion in short} == {"stop"}
