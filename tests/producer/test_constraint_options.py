"""What the command line says of the form of completions, and what is refused before anything starts."""

import json
import shlex

import pytest
from click.testing import CliRunner

from producer.cli import main
from producer.constraint_options import constraint_from
from producer.manifest_file import read_manifest
from producer.run_options import RunOptions
from producer.run_plan import make_plan
from schemas.constraint import Constraint
from schemas.run_spec import RunSpec
from worker.part_names import contract_digest

SCHEMA = '{"type":"object","properties":{"é":{"type":"integer"},"a":{"type":"string"}}}'


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "p.txt"
    path.write_text("one\ntwo\n")
    return path


@pytest.fixture
def schema_file(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(json.loads(SCHEMA), indent=4))
    return path


def run(*words):
    return CliRunner().invoke(main, ["run", *map(str, words), "--model", "scripted"])


def spec_of(prompts, tmp_path, **options) -> RunSpec:
    return make_plan(RunOptions(prompts, tmp_path / "new", model="scripted", **options), lambda _: None).spec


def test_the_schema_is_part_of_the_contract_whatever_its_white_space(prompts, schema_file, tmp_path):
    constraint = constraint_from(str(schema_file), None, None)
    assert constraint == constraint_from(SCHEMA, None, None) == Constraint("json-schema", SCHEMA)  # compact, keys in their own order
    free, formed = spec_of(prompts, tmp_path), spec_of(prompts, tmp_path, constraint=constraint)
    assert contract_digest(free) != contract_digest(formed)
    assert not {"constraint", "ignore_eos", "thinking_budget"} & free.encode().keys()
    assert RunSpec.from_json(formed.to_json()) == formed
    other = spec_of(prompts, tmp_path, constraint=Constraint("regex", "[0-9]+"))
    assert formed.differences(other) == [f"constraint: json-schema {SCHEMA} / regex [0-9]+"]


def test_a_run_records_the_form_and_its_card_makes_the_same_contract(prompts, schema_file, tmp_path):
    out = tmp_path / "out"
    assert run(prompts, "--out", out, "--json-schema", schema_file, "--thinking-budget", 5).exit_code == 0
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest.spec.constraint == Constraint("json-schema", SCHEMA)
    assert "llguidance" in manifest.versions
    card = (out / "README.md").read_text()
    assert f"| form | json-schema {SCHEMA}; at most 5 tokens of thinking |" in card
    command = shlex.split(card.split("```\n")[1])
    again = command[command.index("--json-schema") + 1 :]
    assert constraint_from(again[0], None, None) == manifest.spec.constraint
    assert again[1:3] == ["--thinking-budget", "5"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--regex", "(ab"), "the regex cannot be compiled: at 1(8): invalid regex"),
        (("--regex", ""), "--regex: text of a regex must have at least one character"),
        (("--json-schema", '{"type":"strin"}'), "the json schema cannot be compiled: Invalid type: strin"),
        (("--json-schema", "{'type': 1}"), "is not JSON: Expecting property name"),
        (("--json-schema", "no-such-file"), "--json-schema no-such-file cannot be read"),
        (("--grammar", "start: other"), 'the grammar cannot be compiled: at 1(8): unknown name: "other"'),
        (("--regex", "a", "--grammar", "g"), "--regex, --grammar: one of them says what completions look like"),
        (("--regex", "a", "--ignore-eos"), "a constraint says itself where a completion may end"),
        (("--regex", "a", "--min-tokens", 3), "received it together with min_tokens 3"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(prompts, tmp_path, words, says):
    done = run(prompts, "--out", tmp_path / "out", *words)
    assert done.exit_code == 1
    assert says in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--thinking-budget", 5), "thinking_budget needs a model with think tags of one token each, such as <think>"),
        (("--grammar", 'start: <|strange|> "x"'), 'the grammar cannot be compiled: at 1(8): unknown special token: "<|strange|>"'),
    ],
)
def test_what_the_tokenizer_does_not_have_is_refused_before_anything_starts(prompts, tmp_path, tiny_llama, words, says):
    asked = ["run", prompts, "--out", tmp_path / "out", *words, "--model", tiny_llama(vocab_size=300, seed=3)]
    done = CliRunner().invoke(main, list(map(str, asked)))
    assert says in done.stderr
    assert not (tmp_path / "out").exists()
