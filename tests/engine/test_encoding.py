"""Prompts to ids: the template applied once, and what cannot be encoded."""

import mlx.core as mx
import pytest

from schemas.errors import BadInputError, EmptyPromptError, PromptTooLongError, TemplateError
from worker.engine.completion import Request
from worker.engine.encoding import check_length, encode_prompt
from worker.engine.trunk import Trunk


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return Trunk.load(tiny[0], mx.float32).tokenizer


def request(**values: object) -> Request:
    return Request(**{"index": 0, "sample": 0, "key": 0, "prompt": None, "messages": None, "bad_input": None, **values})


def test_a_bare_prompt_is_one_user_message(tokenizer) -> None:
    bare = encode_prompt(request(prompt="hi"), tokenizer, raw=False)
    assert bare == encode_prompt(request(messages=[{"role": "user", "content": "hi"}]), tokenizer, raw=False)
    assert tokenizer.decode(bare) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert bare.count(0) == 2, "one start token per turn and none in front"


def test_raw_encodes_the_prompt_as_it_stands(tokenizer) -> None:
    assert tokenizer.decode(encode_prompt(request(prompt="hi there"), tokenizer, raw=True)) == "hi there"


def test_what_cannot_be_encoded_says_why(tokenizer) -> None:
    with pytest.raises(BadInputError, match="line 3"):
        encode_prompt(request(bad_input="line 3 is not JSON"), tokenizer, raw=False)
    with pytest.raises(TemplateError, match="unknown role robot"):
        encode_prompt(request(messages=[{"role": "robot", "content": "hi"}]), tokenizer, raw=False)
    with pytest.raises(TemplateError, match="--raw"):
        encode_prompt(request(messages=[{"role": "user", "content": "hi"}]), tokenizer, raw=True)
    with pytest.raises(EmptyPromptError, match="at least 1 token; received 0"):
        encode_prompt(request(prompt=""), tokenizer, raw=True)
    check_length(6, 4, limit=10)
    with pytest.raises(PromptTooLongError, match="fit 10 tokens; received a prompt of 7 with max_tokens 4"):
        check_length(7, 4, limit=10)


def test_the_template_is_told_what_it_reads_and_nothing_else(tokenizer, monkeypatch) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ ' short' if brief else ' long' }}"
    monkeypatch.setattr(tokenizer._tokenizer, "chat_template", template)
    asked = request(prompt="hi")

    def told(**arguments: object) -> str:
        return str(tokenizer.decode(encode_prompt(asked, tokenizer, raw=False, template_args=arguments)))

    assert (told(), told(brief=True), told(brief=False)) == ("hi long", "hi short", "hi long")
    with pytest.raises(TemplateError, match="reads no argument 'breif'; it reads brief"):
        told(breif=True)
