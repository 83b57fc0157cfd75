"""`specmill export`: nothing is lost on the way, and what other tools expect is there."""

import csv
import io
import json
import shutil

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from scripted_dataset import make_dataset

from producer.cli import main
from producer.commands.export import EXPORTS
from producer.export_formats import FORMATS


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    lines = [{"id": f"r{i}", "prompt": f'p{i}, "quoted"\nline' + (" BAD" if i == 4 else ""), "tags": ["a", i]} for i in range(20)]
    lines.append({"id": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "ü"}], "tags": None})
    return make_dataset(tmp_path_factory.mktemp("export"), lines, model="scripted:fail_on=BAD", samples=2, max_tokens=9)


@pytest.fixture(scope="module")
def rows(out):
    return ds.dataset(out / "data").to_table().to_pylist()


def export(out, *words):
    done = CliRunner().invoke(main, ["export", str(out), *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def test_the_command_offers_every_format():
    assert set(EXPORTS) == set(FORMATS)


def test_json_lines_hold_every_row_as_it_is(out, rows):
    assert lines_of(export(out, "--to", "jsonl")) == json.loads(json.dumps(rows))


def test_the_format_is_that_of_the_files_name_unless_it_is_given(out, tmp_path):
    assert export(out) == export(out, "--to", "jsonl")
    for name, words, format_ in (("a.csv", (), "csv"), ("a.txt", (), "jsonl"), ("b.csv", ("--to", "chat"), "chat")):
        export(out, *words, "-o", tmp_path / name)
        assert (tmp_path / name).read_text() == export(out, "--to", format_)


def test_csv_holds_every_row_and_nested_values_as_json(out, rows):
    found = list(csv.DictReader(io.StringIO(export(out, "--to", "csv"))))
    assert [row["record_id"] for row in found] == [row["record_id"] for row in rows]
    assert [row["prompt"] for row in found] == [row["prompt"] or "" for row in rows]
    assert [json.loads(row["token_ids"]) for row in found] == [row["token_ids"] for row in rows]


def test_openai_batch_has_one_line_per_record_and_a_choice_per_sample(out, rows):
    found = lines_of(export(out, "--to", "openai-batch"))
    assert [line["custom_id"] for line in found] == [f"r{i}" for i in range(20)] + ["m"]
    answers = {(row["record_id"], row["sample"]): row["completion"] for row in rows}
    for line in found:
        if line["custom_id"] == "r4":
            assert (line["response"], line["error"]["code"]) == (None, "NonFiniteLogitsError")
            continue
        body = line["response"]["body"]
        assert (line["error"], line["response"]["status_code"], body["object"]) == (None, 200, "chat.completion")
        for choice in body["choices"]:
            assert choice["message"] == {"role": "assistant", "content": answers[line["custom_id"], choice["index"]]}
        assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]


def test_chat_and_sharegpt_end_with_the_answer_and_leave_error_rows_out(out, rows):
    good = [row for row in rows if row["error"] is None]
    chat = lines_of(export(out, "--to", "chat"))
    assert [line["messages"][-1] for line in chat] == [{"role": "assistant", "content": row["completion"]} for row in good]
    assert [turn["role"] for turn in chat[-1]["messages"]] == ["system", "user", "assistant"]
    assert len({line["id"] for line in chat}) == len(chat)
    shared = lines_of(export(out, "--to", "sharegpt"))
    assert [turn["from"] for turn in shared[-1]["conversations"]] == ["system", "human", "gpt"]
    assert [line["conversations"][-1]["value"] for line in shared] == [row["completion"] for row in good]


def test_a_condition_picks_rows_and_keeps_their_order(out, rows):
    found = lines_of(export(out, "--to", "jsonl", "--where", "finish_reason = 'stop' and acceptance.cycles > 1"))
    wanted = [row for row in rows if row["finish_reason"] == "stop" and row["acceptance"]["cycles"] > 1]
    assert wanted
    assert found == json.loads(json.dumps(wanted))


@pytest.mark.parametrize("condition", ["nonsense", "finish_reason =", "true; drop table x", "sample in (select 1"])
def test_a_condition_that_is_none_is_one_clear_error(out, tmp_path, condition):
    done = CliRunner().invoke(main, ["export", str(out), "--to", "csv", "--where", condition, "-o", str(tmp_path / "x.csv")])
    assert (done.exit_code, done.stderr.count("Error: --where"), "Traceback" in done.output) == (1, 1, False)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_whole_and_never_replaced_unasked(out, tmp_path):
    target = tmp_path / "rows.jsonl"
    export(out, "--to", "jsonl", "-o", target)
    assert len(target.read_text().splitlines()) == 42
    refused = CliRunner().invoke(main, ["export", str(out), "--to", "jsonl", "-o", str(target)])
    assert (refused.exit_code, "--force" in refused.stderr) == (1, True)
    export(out, "--to", "chat", "-o", target, "--force")
    assert len(target.read_text().splitlines()) == 40
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_an_unfinished_dataset_is_exported_with_a_warning(out, tmp_path):
    unfinished = tmp_path / "unfinished"
    shutil.copytree(out, unfinished)
    manifest = json.loads((unfinished / "manifest.json").read_text())
    (unfinished / "manifest.json").write_text(json.dumps({**manifest, "status": "cancelled"}))
    done = CliRunner().invoke(main, ["export", str(unfinished), "--to", "jsonl"])
    assert done.exit_code == 0
    assert "is unfinished (cancelled): 42 of 42 rows" in done.stderr
    assert done.stdout == export(out, "--to", "jsonl")
