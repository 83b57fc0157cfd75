"""Settings that rows have of their own: from batch files and columns into the dataset, and out of it again in verify and rerun."""

import json
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from forgery import change_row
from scripted_dataset import make_dataset

from producer.cli import main
from producer.manifest_file import read_manifest
from producer.prompts import open_prompts, with_requested
from producer.row_selection import RowSelection
from producer.run_options import RunOptions
from producer.shards import ShardSource
from producer.verification import VerifyRequest, verify
from schemas.errors import InputError
from schemas.row_sampling import RowSampling
from schemas.tables import table_from_bytes

BODIES = (
    {"temperature": 0.2, "max_tokens": 5, "seed": 11},
    {"temperature": 0.9, "max_tokens": 5, "n": 3, "stop": ["x", "y"]},
    {"max_tokens": 5, "logit_bias": {"7": -2}, "logprobs": True},
    {"temperature": 0.2, "max_tokens": 5, "n": 2},
)


def batch(path: Path, bodies=BODIES) -> Path:
    lines = [
        {"custom_id": f"c{i}", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": f"p{i}"}], **body}}
        for i, body in enumerate(bodies)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def opened(path: Path, **options):
    asked = RunOptions(path, Path("out"), **{"model": "scripted", "shard_size": 2, **options})
    return with_requested(asked, open_prompts(asked, lambda _: None), lambda _: None)


def rows(source):
    shards = ShardSource(source)
    return [row for shard in range(source.shards) for row in table_from_bytes(shards.blob(shard)).to_pylist()]


def own(row):
    sampling = RowSampling.of_column(row["sampling"])
    return {} if sampling is None else {name: value for name, value in vars(sampling).items() if value is not None}


def test_what_all_lines_ask_for_is_the_runs_and_the_rest_is_each_rows_own(tmp_path):
    options, source = opened(batch(tmp_path / "b.jsonl"))
    assert (options.max_tokens, options.samples, options.logprobs) == (5, 1, True)
    found = rows(source)
    assert [(row["record_id"], row["row"], row["sample"]) for row in found] == [
        ("c0", 0, 0),
        ("c1", 1, 0),
        ("c1", 1, 1),
        ("c1", 1, 2),
        ("c2", 2, 0),
        ("c3", 3, 0),
        ("c3", 3, 1),
    ]
    assert own(found[0]) == {"temperature": 0.2, "seed": 11}
    assert own(found[1]) == own(found[3]) == {"temperature": 0.9, "n": 3, "stop": ("x", "y")}
    assert own(found[4]) == {"logit_bias": {"7": -2.0}}


def test_an_option_on_the_command_line_comes_before_what_rows_say(tmp_path):
    options, source = opened(batch(tmp_path / "b.jsonl"), samples=2, given=frozenset({"samples", "temperature"}))
    assert options.samples == 2
    found = rows(source)
    assert len(found) == 4
    assert "sample" not in found[0]
    assert [own(row) for row in found] == [{"seed": 11}, {"stop": ("x", "y")}, {"logit_bias": {"7": -2.0}}, {}]


def test_the_digest_is_of_what_rows_take_from_the_file(tmp_path):
    mixed = [{"temperature": 0.2}, {"temperature": 0.3}]
    digest = opened(batch(tmp_path / "a.jsonl", mixed))[1].digest
    assert opened(batch(tmp_path / "b.jsonl", mixed))[1].digest == digest
    assert opened(batch(tmp_path / "c.jsonl", mixed[::-1]))[1].digest != digest
    plain = opened(batch(tmp_path / "d.jsonl", [{}, {}]))[1].digest
    assert opened(tmp_path / "a.jsonl", given=frozenset({"temperature"}))[1].digest == plain
    assert opened(batch(tmp_path / "e.jsonl", mixed[:1] * 2))[1].digest == plain, "one temperature for all is the run's"


def test_a_file_that_changes_in_a_setting_is_no_longer_the_same(tmp_path):
    path = batch(tmp_path / "b.jsonl")
    source = opened(path)[1]
    path.write_text(path.read_text().replace("0.9", "0.8"))
    with pytest.raises(InputError, match="has changed since this run read it"):
        rows(source)


def test_columns_hold_settings_where_they_are_named(tmp_path):
    table = tmp_path / "p.csv"
    table.write_text('prompt,budget,temperature,seed,bias\na,5,0.5,,"{""3"": 1}"\nb,,1e-1,7,\nc,6,,8,\n')
    per_row = ("max_tokens=budget", "temperature", "seed", "logit_bias=bias")
    found = rows(opened(table, per_row=per_row)[1])
    assert [own(row) for row in found] == [
        {"max_tokens": 5, "temperature": 0.5, "logit_bias": {"3": 1.0}},
        {"temperature": 0.1, "seed": 7},
        {"max_tokens": 6, "seed": 8},
    ]
    assert found[0]["budget"] == "5", "the column stays the user's"
    assert "sampling" not in rows(opened(table)[1])[0], "nothing is taken that was not named"


def test_an_option_beside_its_column_counts_where_the_cell_is_empty(tmp_path):
    table = tmp_path / "p.csv"
    table.write_text("prompt,budget,heat\na,5,0.5\nb,,0.5\n")
    asked = {"per_row": ("max_tokens=budget", "temperature=heat"), "given": frozenset({"max_tokens", "temperature"}), "max_tokens": 9}
    options, source = opened(table, **asked)
    assert [own(row) for row in rows(source)] == [{"max_tokens": 5}, {}]
    assert (options.max_tokens, options.sampler.temperature) == (9, 0.5), "one temperature for all is the run's"
    with pytest.raises(InputError, match="--per-row n and --n exclude each other"):
        opened(table, per_row=("n=budget",), given=frozenset({"samples"}), samples=2)


def test_the_command_that_makes_the_rows_again_says_what_empty_cells_have(tmp_path):
    table = tmp_path / "p.csv"
    table.write_text("prompt,max_tokens\na,5\nb,\n")
    out = tmp_path / "out"
    specmill("run", table, "--out", out, "--model", "scripted", "--per-row", "max_tokens", "--max-tokens", 9, "--quiet")
    command = next(line for line in (out / "README.md").read_text().splitlines() if line.lstrip().startswith("specmill run "))
    assert "--max-tokens 9" in command
    assert "nothing to do" in specmill(*shlex.split(command)[1:])


@pytest.mark.parametrize(
    ("cell", "per_row", "says"),
    [
        ("hot", "temperature=x", "line 2: x must be a number; received 'hot'"),
        ("0", "top_p=x", r"line 2: x must be in \(0, 1\]; received 0"),
        ("1.5", "max_tokens=x", "line 2: x must be an integer; received a number, 1.5"),
        ("0", "n=x", r"line 2: x must be an integer in \[1, 10000\]; received 0"),
        ("3", "temperature=y", "--per-row temperature: no line of .* has a value in 'y'; columns: x"),
        ("3", "heat=x", "--per-row must name one of temperature, .*; received 'heat'"),
    ],
)
def test_a_bad_setting_names_line_column_interval_and_value(tmp_path, cell, per_row, says):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"prompt": "a", "x": "1"}) + "\n" + json.dumps({"prompt": "b", "x": cell}) + "\n")
    with pytest.raises(InputError, match=says):
        opened(path, per_row=(per_row,))


def specmill(*words):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.output


def test_a_dataset_of_rows_with_own_settings_is_verified_and_made_again(tmp_path):
    out, again = tmp_path / "out", tmp_path / "again"
    path = batch(tmp_path / "b.jsonl")
    specmill("run", path, "--out", out, "--model", "scripted", "--shard-size", 2, "--quiet")
    table = pq.read_table(out / "data")
    assert table.column("record_id").to_pylist() == ["c0", "c1", "c1", "c1", "c2", "c3", "c3"]
    assert len(set(table.column("seed").to_pylist())) == 7
    assert read_manifest(out).spec.per_row == ("logit_bias", "n", "seed", "stop", "temperature")
    assert "rows' own" in (out / "README.md").read_text()
    assert "nothing to do" in specmill("run", path, "--out", out, "--model", "scripted", "--shard-size", 2)
    assert "7 of 7 regenerated: all equal" in specmill("verify", out, "--all")
    specmill("rerun", out, "--out", again)
    for part in sorted((out / "data").iterdir()):
        assert part.read_bytes() == (again / "data" / part.name).read_bytes(), part.name
    specmill("export", out, "--to", "openai-batch", "-o", tmp_path / "answers.jsonl")
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [len(answer["response"]["body"]["choices"]) for answer in answers] == [1, 3, 1, 2]
    seed = table.slice(0, 1).column("seed").to_pylist()
    alone = tmp_path / "alone"
    specmill("run", batch(tmp_path / "one.jsonl", BODIES[:1]), "--out", alone, "--model", "scripted", "--quiet")
    assert pq.read_table(alone / "data").column("seed").to_pylist() == seed, "a row's own seed is a run's seed for it"


FORGERIES = {
    "seed": (12, "is not the key"),
    "n": (2, "other settings than the sample before it"),
    "max_tokens": (1, "token_ids"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_setting_is_found(tmp_path, name):
    bodies = [{"max_tokens": 5, "n": 3}, {"max_tokens": 6}]
    lines = [{"prompt": f"p{i}", **body} for i, body in enumerate(bodies)]
    out = make_dataset(tmp_path, lines, mtp=None, per_row=("max_tokens", "n"))
    assert verify(out, VerifyRequest(RowSelection(every=True), mode="regenerate")).exit_code == 0
    value, says = FORGERIES[name]
    change_row(out, 0, lambda row: row["sampling"].update({name: value}), fix_digests=True)
    report = verify(out, VerifyRequest(RowSelection(every=True), mode="regenerate"))
    assert report.exit_code == 1
    assert says in report.text()
