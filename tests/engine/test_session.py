"""A session shows and decides what the engine does."""

from pathlib import Path

import numpy as np
import pytest
from engine_support import PROMPTS, complete, load_engine, make_requests, make_spec

from schemas.errors import EmptyPromptError
from schemas.sampler import SamplerConfig
from worker.engine.session import Session

CONFIGS = [
    SamplerConfig(temperature=0.0),
    SamplerConfig(temperature=0.9, top_p=0.9, top_k=50),
    SamplerConfig(presence_penalty=0.5, frequency_penalty=0.5),
    SamplerConfig(min_p=0.05, repetition_penalty=1.3, logit_bias={"7": 3.0, "1": 4.0}, min_tokens=5),
]


@pytest.mark.parametrize("config", CONFIGS, ids=["greedy", "filters", "penalties", "adjustments"])
@pytest.mark.parametrize("depth", [0, 3])
def test_the_reference_decides_what_the_engine_commits(agreeing_pair: tuple[Path, Path], config: SamplerConfig, depth: int) -> None:
    spec = make_spec(*agreeing_pair, depth=depth, sampler=config, max_tokens=12)
    for request in make_requests(PROMPTS[:3]):
        session = Session(load_engine(spec), spec, request)
        decided = []
        while session.finish_reason is None:
            decided.append(session.verify_one_token().token_id)
        expected = complete(load_engine(spec), spec, [request])[0]
        assert session.token_ids == expected.token_ids == decided[: len(expected.token_ids)]


def test_looking_changes_nothing(agreeing_pair: tuple[Path, Path]) -> None:
    spec = make_spec(*agreeing_pair, depth=3, sampler=CONFIGS[1], max_tokens=12)
    request = make_requests(PROMPTS[:1])[0]
    looking, blind = (Session(load_engine(spec), spec, request) for _ in range(2))
    while blind.finish_reason is None:
        logits = looking.get_logits()
        assert logits.draft is not None
        assert logits.verify is not None
        assert logits.draft.shape == (3, 300)
        assert logits.verify.shape == (4, 300)
        np.testing.assert_array_equal(looking.get_logits().verify, logits.verify)
        assert looking.step() == blind.step()


def test_only_what_is_asked_for_is_shown(agreeing_pair: tuple[Path, Path]) -> None:
    spec = make_spec(*agreeing_pair, depth=1)
    logits = Session(load_engine(spec), spec, make_requests(PROMPTS[:1])[0]).get_logits(draft=False)
    assert logits.draft is None
    assert len(logits.drafts) == 1


def test_a_finished_row_and_an_impossible_one_say_so(agreeing_pair: tuple[Path, Path]) -> None:
    spec = make_spec(*agreeing_pair, depth=1, max_tokens=1)
    session = Session(load_engine(spec), spec, make_requests(PROMPTS[:1])[0])
    session.step()
    with pytest.raises(ValueError, match="the row has ended"):
        session.get_logits()
    with pytest.raises(EmptyPromptError):
        Session(load_engine(spec), spec, make_requests([""])[0])
    lookup = make_spec(agreeing_pair[0], None, drafter="lookup", depth=1)
    with pytest.raises(ValueError, match="received 'lookup'"):
        Session(load_engine(lookup), lookup, make_requests(PROMPTS[:1])[0])
