"""Rows with settings of their own: whatever its neighbours ask for, a row is the row of a run that has its settings for all."""

from dataclasses import replace
from pathlib import Path

import pytest
from engine_support import GREEDY, PROMPTS, complete, essence, load_engine, make_requests, make_spec, run

from schemas.row_sampling import RowSampling
from schemas.sampler import SamplerConfig
from worker.engine.session import Session

Models = tuple[Path, Path]
OWN = (
    None,
    RowSampling(temperature=0.9, top_p=0.95),
    RowSampling(temperature=0.9, top_p=0.95, presence_penalty=0.5, max_tokens=7),
    RowSampling(temperature=1.0, top_k=20, repetition_penalty=1.2, logit_bias={"5": 3.0}),
    RowSampling(temperature=1.0, min_tokens=12, stop=("a",)),
    RowSampling(max_tokens=20),
)


def mixed_requests(samples: int = 1):
    return [replace(request, sampling=OWN[request.index]) for request in make_requests(PROMPTS, samples)]


def alone(spec, request):
    """The row of a run that has the row's settings for all."""
    own = request.own(spec)
    return complete(load_engine(spec), own, [replace(request, sampling=None)])[0]


@pytest.mark.parametrize(("coupling", "drafter"), [("rejection", "head"), ("shared-noise", "lookup"), ("rejection", "auto")])
def test_rows_of_several_configs_share_a_batch_and_change_no_bit(tiny: Models, coupling: str, drafter: str) -> None:
    spec = make_spec(*tiny, coupling=coupling, drafter=drafter, slots=4, sampler=GREEDY, max_tokens=12)
    requests = mixed_requests()
    together = complete(load_engine(spec), spec, requests)
    for completion, request in zip(together, requests, strict=True):
        assert essence(completion) == essence(alone(spec, request)), request.sampling
    backwards = complete(load_engine(spec), spec, requests[::-1])
    assert [essence(completion) for completion in backwards[::-1]] == [essence(completion) for completion in together]


def test_a_row_without_settings_is_the_runs(tiny: Models) -> None:
    spec = make_spec(*tiny, sampler=SamplerConfig(temperature=0.8))
    assert essence(complete(load_engine(spec), spec, mixed_requests())[0]) == essence(run(spec)[0])


def test_budget_and_stop_are_the_rows_own(tiny: Models) -> None:
    completions = complete(load_engine(make_spec(*tiny)), make_spec(*tiny), mixed_requests())
    assert len(completions[2].token_ids) <= 7
    assert "a" not in completions[4].text
    assert all(len(completion.token_ids) <= 24 for completion in completions[:5])


def test_a_row_that_cannot_have_what_it_asks_for_fails_alone(tiny: Models) -> None:
    spec = make_spec(*tiny)
    requests = mixed_requests()
    requests[1] = replace(requests[1], sampling=RowSampling(logit_bias={"300": 1.0}))
    requests[2] = replace(requests[2], sampling=RowSampling(max_tokens=5000))
    completions = complete(load_engine(spec), spec, requests)
    assert [type(completion.error).__name__ for completion in completions[:4]] == [
        "NoneType",
        "BadInputError",
        "PromptTooLongError",
        "NoneType",
    ]
    assert str(completions[1].error) == "logit_bias must hold tokens in [0, 300); received 300"


def test_a_session_decodes_a_row_under_its_own_settings(tiny: Models) -> None:
    spec = make_spec(*tiny)
    for request in mixed_requests()[3:5]:
        session = Session(load_engine(spec), spec, request)
        while session.finish_reason is None:
            session.step()
        assert session.token_ids == complete(load_engine(spec), spec, [request])[0].token_ids


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"temperature": float("inf")}, "temperature must be finite"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\]; received 0.0"),
        ({"max_tokens": 0}, r"max_tokens must be an integer in \[1, 1000000\]; received 0"),
        ({"n": 10_001}, r"n must be an integer in \[1, 10000\]; received 10001"),
        ({"seed": -1}, r"seed must be an integer in \[0, 18446744073709551615\]; received -1"),
        ({"stop": ("a", "")}, "stop must hold texts, none empty"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias must be keyed by token ids"),
    ],
)
def test_a_value_outside_its_interval_is_refused(values, said) -> None:
    with pytest.raises(ValueError, match=said):
        RowSampling(**values)


def test_the_column_keeps_every_setting() -> None:
    everything = RowSampling(0.5, 0.9, 3, 0.1, 0.2, 0.3, 1.1, {"7": 1.5}, 2, 9, 4, 2**64 - 1, ("x", "y"))
    for own in (everything, RowSampling(), *OWN[1:]):
        assert RowSampling.of_column(own.column()) == own
