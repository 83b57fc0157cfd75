"""The intervals of a sampler config, and its wire form."""

import json
import math

import pytest

from sampling import SamplerConfig
from schemas.errors import DecodeError

FULL = SamplerConfig(0.7, 0.95, 40, 0.5, -0.5, min_p=0.05, repetition_penalty=1.1, logit_bias={"50256": -100, "11": 2.5}, min_tokens=8)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("temperature", math.inf, "temperature must be finite (<= 0 means greedy); received inf"),
        ("temperature", "1", "temperature must be a number; received '1'"),
        ("top_p", 0.0, "top_p must be in (0, 1]; received 0.0"),
        ("top_k", -1, "top_k must be an integer >= 0 (0 = off); received -1"),
        ("top_k", True, "top_k must be an integer >= 0 (0 = off); received True"),
        ("presence_penalty", 2.1, "presence_penalty must be in [-2, 2]; received 2.1"),
        ("frequency_penalty", math.nan, "frequency_penalty must be in [-2, 2]; received nan"),
        ("min_p", -0.1, "min_p must be in [0, 1]; received -0.1"),
        ("min_p", 1.5, "min_p must be in [0, 1]; received 1.5"),
        ("repetition_penalty", 0.0, "repetition_penalty must be in [0.01, 100]; received 0.0"),
        ("repetition_penalty", None, "repetition_penalty must be a number; received None"),
        ("min_tokens", 1.0, "min_tokens must be an integer >= 0 (0 = off); received 1.0"),
        ("logit_bias", {"7": 101}, "logit_bias of token 7 must be in [-100, 100]; received 101.0"),
        ("logit_bias", {"7": True}, "logit_bias of token 7 must be a number; received True"),
        ("logit_bias", {"-7": 1}, "logit_bias must be keyed by token ids in [0, 2147483647]; received '-7'"),
        ("logit_bias", {"07": 1}, "logit_bias must be keyed by token ids in [0, 2147483647]; received '07'"),
        ("logit_bias", {"²": 1}, "logit_bias must be keyed by token ids in [0, 2147483647]; received '²'"),
        ("logit_bias", {2**31: 1}, "logit_bias must be keyed by token ids in [0, 2147483647]; received 2147483648"),
        ("logit_bias", [1, 2], "logit_bias must be an object of token ids; received [1, 2]"),
    ],
)
def test_a_value_outside_its_interval_is_refused(name, value, said):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the message is the law
        SamplerConfig(**{name: value})
    assert str(caught.value) == said


def test_the_wire_form_is_json_and_returns_the_same_config():
    assert SamplerConfig.from_json(FULL.to_json()) == FULL
    assert hash(SamplerConfig.from_json(FULL.to_json())) == hash(FULL)
    assert json.loads(FULL.to_json())["logit_bias"] == {"11": 2.5, "50256": -100.0}
    assert SamplerConfig.from_json(SamplerConfig().to_json()) == SamplerConfig()


def test_a_bias_is_one_value_however_it_is_written():
    biases = [{11: 2.5, 50256: -100}, {"50256": -100.0, "11": 2.5}]
    assert len({SamplerConfig(logit_bias=bias).to_json() for bias in biases}) == 1
    given = {"3": 1.0}
    config = SamplerConfig(logit_bias=given)
    given["4"] = 1.0
    assert config.logit_bias == {"3": 1.0}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("min_p", "0.1", "SamplerConfig.min_p must be float"),
        ("min_p", 2, r"min_p must be in \[0, 1\]"),
        ("logit_bias", {"7": "1"}, "SamplerConfig.logit_bias.7 must be float"),
        ("logit_bias", {"seven": 1}, "logit_bias must be keyed by token ids"),
        ("logit_bias", None, "SamplerConfig.logit_bias must be an object"),
        ("min_tokens", 1.5, "SamplerConfig.min_tokens must be int"),
        ("top_n", 1, "unknown field 'top_n'"),
    ],
)
def test_a_wire_form_that_does_not_fit_is_refused_by_name(field, value, said):
    with pytest.raises(DecodeError, match=said):
        SamplerConfig.decode({**FULL.encode(), field: value})


@pytest.mark.parametrize("field", ["min_p", "repetition_penalty", "logit_bias", "min_tokens"])
def test_a_missing_field_is_refused_by_name(field):
    wire = FULL.encode()
    del wire[field]
    with pytest.raises(DecodeError, match=f"lacks field '{field}'"):
        SamplerConfig.decode(wire)
