"""What goes into a prompt besides the file: templates, system messages, examples of answers."""

import json

import pytest
from prompt_rows import rows, source_of

from schemas.errors import InputError


def test_a_template_makes_the_prompt_and_keeps_every_column(written, tmp_path):
    path = written("p.jsonl", b'{"id": 1, "text": "Hallo", "to": "English"}\n')
    (row,) = rows(source_of(path, template="Translate to {{ to | upper }}:\n{{ text }}\n"))
    assert (row["prompt"], row["text"], row["to"]) == ("Translate to ENGLISH:\nHallo\n", "Hallo", "English")
    written("t.j2", b"{{ text }}!")
    (row,) = rows(source_of(path, template=f"@{tmp_path / 't.j2'}"))
    assert row["prompt"] == "Hallo!"


BAD_TEMPLATES = {
    "{{ text": "not valid Jinja2, line 1",
    "{{ texxt }}": r"line 1: the template needs what the line does not have \('texxt' is undefined\); its columns: id, text",
    "{{ text.x.y }}": "the template needs what the line does not have",
    "{{ 1 / 0 }}": "the template failed",
    "{{ text | random }}": "not valid Jinja2",
    "{{ ().__class__.__bases__ }}": "the template (failed|needs)",
    "@nowhere.j2": "cannot read the template nowhere.j2",
}


@pytest.mark.parametrize("template", BAD_TEMPLATES)
def test_a_bad_template_is_one_clear_error(written, template):
    path = written("p.jsonl", b'{"id": 1, "text": "a"}\n')
    with pytest.raises(InputError, match=BAD_TEMPLATES[template]):
        source_of(path, template=template)


def test_a_system_message_goes_before_prompts_that_have_none(written):
    own = [{"role": "system", "content": "own"}, {"role": "user", "content": "b"}]
    path = written("p.jsonl", b'{"prompt": "a"}\n' + json.dumps({"messages": own}).encode())
    first, second = rows(source_of(path, system="be brief"))
    assert first["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"}]
    assert second["messages"] == own
    (text,) = rows(source_of(written("p.txt", b"a\n"), system="be brief"))
    assert text["messages"][0]["content"] == "be brief"


def test_few_shot_messages_go_behind_the_system_message(written, tmp_path):
    shots = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    written("shots.jsonl", "\n".join(map(json.dumps, shots)).encode())
    own = [{"role": "system", "content": "own"}, {"role": "user", "content": "b"}]
    path = written("p.jsonl", b'{"prompt": "a"}\n' + json.dumps({"messages": own}).encode())
    first, second = rows(source_of(path, few_shot=tmp_path / "shots.jsonl"))
    assert first["messages"] == [*shots, {"role": "user", "content": "a"}]
    assert second["messages"] == [own[0], *shots, own[1]]
    both, _ = rows(source_of(path, few_shot=tmp_path / "shots.jsonl", system="be brief"))
    assert [turn["role"] for turn in both["messages"]] == ["system", "user", "assistant", "user"]


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "at least one message"), (b"{", "cannot read the messages"), (b'{"role": "king", "content": ""}', "must be one of")],
)
def test_a_bad_file_of_few_shot_messages_is_one_clear_error(written, tmp_path, content, says):
    path = written("p.jsonl", b'{"prompt": "a"}\n')
    with pytest.raises(InputError, match=says):
        source_of(path, few_shot=written("shots.jsonl", content))
    with pytest.raises(InputError, match="cannot read the messages"):
        source_of(path, few_shot=tmp_path / "nowhere.jsonl")
