"""OpenAI batch files run unchanged: what requests ask for is taken over, and what cannot be is named."""

import json
from pathlib import Path

import pytest
from prompt_rows import rows, source_of

from producer.prompts import with_requested
from producer.run_options import RunOptions
from schemas.constraint import Constraint
from schemas.errors import InputError
from schemas.sampler import SamplerConfig


def batch(**body):
    chat = {"model": "gpt", "messages": [{"role": "user", "content": "hi"}], **body}
    return {"method": "POST", "url": "/v1/chat/completions", "body": chat}


def batch_file(written, *bodies):
    lines = [{"custom_id": f"c{i}", **batch(**body)} for i, body in enumerate(bodies)]
    return written("batch.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())


def test_an_openai_batch_runs_unchanged_with_its_own_sampling(written):
    asked = {
        "temperature": 0.2,
        "top_p": 0.9,
        "max_tokens": 33,
        "n": 2,
        "stop": "END",
        "seed": 5,
        "user": "u",
        "response_format": {"type": "text"},
    }
    path = batch_file(written, asked, asked)
    source = source_of(path)
    first, _ = rows(source)
    assert set(first) == {"row", "record_id", "messages", "bad_input"}
    assert (first["record_id"], first["messages"][0]["content"]) == ("c0", "hi")
    notes = []
    options, source = with_requested(RunOptions(path, Path("o"), given=frozenset({"seed"}), seed=9), source, notes.append)
    assert (options.sampler, options.max_tokens, options.samples) == (SamplerConfig(0.2, 0.9), 33, 2)
    assert (options.stop, options.seed) == (("END",), 9)
    assert source.own == frozenset()
    assert notes == ["from the file: --temperature 0.2, --top-p 0.9, --max-tokens 33, --n 2, --stop 'END'"]


def test_the_response_format_of_all_requests_is_the_form_of_the_run(written):
    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}
    path = batch_file(written, {"response_format": wanted}, {"response_format": wanted})
    options, _ = with_requested(RunOptions(path, Path("o")), source_of(path), lambda _: None)
    assert options.constraint == Constraint("json-schema", json.dumps(schema, separators=(",", ":")))
    path = batch_file(written, {"response_format": wanted}, {"response_format": {"type": "json_object"}})
    with pytest.raises(InputError, match=r'all rows of a run share --json-schema, but .* asks for \{"type":"object","prop.* and .* for'):
        with_requested(RunOptions(path, Path("o")), source_of(path), lambda _: None)
    own = Constraint("regex", "[a-z]+")
    options, _ = with_requested(
        RunOptions(path, Path("o"), constraint=own, given=frozenset({"constraint"})), source_of(path), lambda _: None
    )
    assert options.constraint == own


def test_legacy_completions_and_single_samplings_of_options_work(written):
    line = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "once", "max_tokens": 7}}
    source = source_of(written("b.jsonl", json.dumps(line).encode()))
    assert rows(source)[0]["prompt"] == "once"
    assert source.requested.wanted(frozenset()) == {"max_tokens": 7}


BAD_REQUESTS = {
    '{"tools": [{"type": "function"}]}': "body.tools is not supported",
    '{"response_format": {"type": "xml"}}': 'body.response_format must be {"type": "text"}',
    '{"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}}': (
        "body.response_format: the json schema cannot be compiled: Invalid type: strin"
    ),
    '{"logit_bias": [1]}': "body.logit_bias must be an object; received a list",
    '{"top_a": 0.1}': "body.top_a is not supported",
    '{"min_p": "low"}': "body.min_p must be a number; received text",
    '{"temperature": "hot"}': "body.temperature must be a number; received text",
    '{"max_tokens": 1.5}': "body.max_tokens must be an integer; received a number",
    '{"n": true}': "body.n must be an integer; received a boolean",
    '{"stop": [1]}': "body.stop must be text or a list of texts",
    '{"stop": ""}': "body.stop must be text or a list of texts",
    '{"top_p": 0}': r"body.top_p must be in \(0, 1\]; received 0",
    '{"max_completion_tokens": 0}': r"body.max_completion_tokens must be an integer in \[1, 1000000\]; received 0",
    '{"seed": -3}': r"body.seed must be an integer in \[0, 18446744073709551615\]; received -3",
    '{"logit_bias": {"7": 101}}': r"body.logit_bias of token 7 must be in \[-100, 100\]; received 101",
    '{"chat_template_kwargs": {"x": [1]}}': "body.chat_template_kwargs x must be true, false, null, a number or text",
    '{"messages": null}': "body must hold either messages or prompt; received neither",
    '{"prompt": "x"}': "body must hold either messages or prompt; received both",
    '{"messages": "x"}': "body.messages must be a list of messages; received text",
    '{"messages": []}': "body.messages must hold at least one message",
}


@pytest.mark.parametrize("body", BAD_REQUESTS)
def test_a_request_that_cannot_be_run_is_a_bad_line_with_its_id(written, body):
    path = batch_file(written, json.loads(body), {})
    with pytest.raises(InputError, match=f"line 1: {BAD_REQUESTS[body]}"):
        source_of(path)
    first, second = rows(source_of(path, on_bad_input="error-row"))
    assert (first["record_id"], first["bad_input"][:7], second["bad_input"]) == ("c0", "line 1:", None)


def test_a_request_to_another_endpoint_is_refused(written):
    path = written("e.jsonl", b'{"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "x"}}')
    with pytest.raises(InputError, match="url must be one of /v1/chat/completions"):
        source_of(path)
