"""Teacher forcing agrees with the engine that made the rows, and sees what does not fit them."""

import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import pyarrow as pa
import pytest
from engine_support import load_engine, make_spec

from schemas.constraint import Constraint
from schemas.profile import ExecutionProfile
from schemas.run_spec import RunSpec
from schemas.sampler import SamplerConfig
from schemas.tables import blob_schema
from worker.engine.completion import completions_to_table, requests_from_blob
from worker.engine.engine import Timings
from worker.engine.trunk import Trunk

CONFIGS = {
    "plain": SamplerConfig(),
    "greedy": SamplerConfig(temperature=0.0),
    "filters": SamplerConfig(temperature=0.9, top_p=0.8, top_k=40),
    "all settings": SamplerConfig(
        temperature=0.9, top_p=0.9, min_p=0.01, repetition_penalty=1.2, frequency_penalty=0.3, logit_bias={"7": 2.0}, min_tokens=5
    ),
    "penalties": SamplerConfig(temperature=0.8, top_p=0.95, presence_penalty=0.6, frequency_penalty=-0.4),
}
PROMPTS = ["Tell me a story about the sea.", "2 + 2 = ?", "hi", "why?", "x" * 700]


def dataset(spec: RunSpec) -> list[dict[str, Any]]:
    """Rows that the engine makes, with the columns that scoring asks for."""
    rows = [{"row": i, "record_id": f"r{i}", "prompt": prompt, "bad_input": None} for i, prompt in enumerate(PROMPTS)]
    blob = pa.Table.from_pylist(rows, schema=blob_schema(prompt=True, messages=False, own=[]))
    completions = load_engine(spec).complete(spec, requests_from_blob(blob, spec), Timings(), lambda _: None)
    table = completions_to_table(blob, completions, logprobs=True)
    return [{**row, "bad_input": None} for row in table.to_pylist()]


def asked_of(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([{name: row[name] for name in ("record_id", "prompt", "bad_input", "sample", "token_ids")} for row in rows])


def score(spec: RunSpec, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return load_engine(spec).score(spec, asked_of(rows), lambda: None).to_pylist()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_what_the_engine_made_is_what_the_target_says(agreeing_pair: tuple[Path, Path], config: SamplerConfig) -> None:
    spec = make_spec(*agreeing_pair, sampler=config, samples=2, stop=("e",), max_tokens=40, prefill_chunk=16)
    rows = dataset(spec)
    for row, scored in zip(rows, score(spec, rows), strict=True):
        if row["error"] is not None:
            assert scored["error"] == row["error"]
            continue
        assert scored["error"] is None
        for name in ("prompt_tokens", "completion", "finish_reason"):
            assert scored[name] == row[name]
        assert scored["tokens_used"] == len(row["token_ids"])
        assert scored["shortfall"] == [0.0] * len(row["token_ids"])
        assert scored["logprobs"] == pytest.approx(row["logprobs"], abs=1e-4)


def test_samples_of_a_prompt_share_its_reading(agreeing_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(*agreeing_pair, sampler=CONFIGS["plain"], samples=3, max_tokens=20)
    rows = [row for row in dataset(spec) if row["error"] is None]
    positions: list[int] = []
    forward = Trunk.forward

    def counted(self: Trunk, tokens: mx.array, *rest: Any) -> mx.array:
        positions.append(tokens.size)
        return forward(self, tokens, *rest)

    engine = load_engine(spec)
    monkeypatch.setattr(Trunk, "forward", counted)
    engine.score(spec, asked_of(rows), lambda: None)
    prompts = {row["record_id"]: row["prompt_tokens"] for row in rows}
    assert sum(positions) == sum(prompts.values()) + sum(len(row["token_ids"]) - 1 for row in rows)


def test_the_surprise_is_that_of_draws_from_the_target_and_not_of_others(agreeing_pair: tuple[Path, Path]) -> None:
    spec = make_spec(*agreeing_pair, sampler=CONFIGS["plain"], samples=40, max_tokens=40)
    rows = dataset(spec)

    def z(rows: list[dict[str, Any]], sampler: SamplerConfig) -> float:
        scores = [scored for scored in score(make_spec(*agreeing_pair, sampler=sampler), rows) if scored["error"] is None]
        return sum(s["surprise"] for s in scores) / math.sqrt(sum(s["surprise_variance"] for s in scores))

    assert abs(z(rows, CONFIGS["plain"])) < 4.9
    assert abs(z(rows, SamplerConfig(temperature=0.8))) > 5


def test_an_impossible_token_is_told_with_how_far_it_is_outside(agreeing_pair: tuple[Path, Path]) -> None:
    spec = make_spec(*agreeing_pair, sampler=SamplerConfig(temperature=0.8, top_k=3), max_tokens=12)
    row = next(row for row in dataset(spec) if row["error"] is None and len(row["token_ids"]) > 6)
    row["token_ids"][5] = 299 if row["token_ids"][5] != 299 else 298
    (scored,) = score(spec, [row])
    assert scored["logprobs"][5] == -math.inf
    assert scored["shortfall"][5] > 0
    assert scored["shortfall"][:5] == [0.0] * 5


FORMS = {
    "regex": {"constraint": Constraint("regex", "([a-z]{3} ){50}[.!]")},
    "ignored end tokens": {"ignore_eos": True},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_rows_with_a_form_are_scored_under_it(agreeing_pair: tuple[Path, Path], form: dict[str, Any]) -> None:
    spec = make_spec(*agreeing_pair, sampler=CONFIGS["filters"], samples=2, max_tokens=200, capacities=(512, 1024), **form)
    rows = [row for row in dataset(spec) if row["error"] is None]
    assert max(len(row["token_ids"]) for row in rows) > 130  # more than one part
    for row, scored in zip(rows, score(spec, rows), strict=True):
        for name in ("completion", "finish_reason"):
            assert scored[name] == row[name]
        assert scored["shortfall"] == [0.0] * len(row["token_ids"])
        assert scored["logprobs"] == pytest.approx(row["logprobs"], abs=1e-4)


def test_a_token_that_the_form_forbids_is_infinitely_far_outside(agreeing_pair: tuple[Path, Path]) -> None:
    spec = make_spec(*agreeing_pair, sampler=SamplerConfig(), max_tokens=200, capacities=(512, 1024), **FORMS["regex"])
    row = max(dataset(spec), key=lambda row: len(row["token_ids"]))
    row["token_ids"][5] = load_engine(spec).trunk.tokenizer.encode("7")[0]
    (scored,) = score(spec, [row])
    assert scored["logprobs"][5] == -math.inf
    assert scored["shortfall"][5] == math.inf
    assert all(math.isfinite(logprob) for logprob in scored["logprobs"][6:])


def test_tokens_that_end_early_or_not_at_all_are_told(agreeing_pair: tuple[Path, Path]) -> None:
    spec = make_spec(*agreeing_pair, sampler=SamplerConfig(), max_tokens=12)
    row = next(row for row in dataset(spec) if row["finish_reason"] == "length")
    short, ended = ({**row, "token_ids": ids} for ids in (row["token_ids"][:-2], [*row["token_ids"][:3], 1, *row["token_ids"][4:]]))
    first, second = score(spec, [short, ended])
    assert (first["finish_reason"], first["tokens_used"]) == (None, 10)
    assert (second["finish_reason"], second["tokens_used"]) == ("stop", 4)


def test_ids_outside_the_vocabulary_are_a_row_error(agreeing_pair: tuple[Path, Path]) -> None:
    spec = make_spec(*agreeing_pair, sampler=SamplerConfig())
    row = {**dataset(spec)[0], "token_ids": [3, 300]}
    assert "must be in [0, 299]" in score(spec, [row])[0]["error"]["message"]


def test_a_blob_with_samples_asks_for_those_alone(agreeing_pair: tuple[Path, Path]) -> None:
    spec = make_spec(*agreeing_pair, samples=5, sampler=SamplerConfig(), profile=ExecutionProfile())
    rows = [{"row": 3, "record_id": "a", "prompt": "p", "sample": 4, "bad_input": None}]
    (request,) = requests_from_blob(pa.Table.from_pylist(rows), spec)
    whole = requests_from_blob(pa.Table.from_pylist([{k: v for k, v in rows[0].items() if k != "sample"}]), spec)
    assert request == whole[4]
