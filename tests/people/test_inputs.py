"""Prompts in every form that people have them: the same records whatever the wrapping, and one clear error for what is broken."""

import bz2
import datetime
import gzip
import json
import lzma
import os
import threading
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from producer.cli import main
from producer.prompts import open_prompts, with_requested
from producer.run_options import RunOptions
from producer.shards import ShardSource
from schemas.constraint import Constraint
from schemas.errors import InputError
from schemas.sampler import SamplerConfig
from schemas.tables import table_from_bytes

LINES = [{"id": f"r{i}", "prompt": f'p{i}, "x"\nü', "topic": "sea" if i % 2 else None} for i in range(11)]
JSONL = "".join(json.dumps(line) + "\n" for line in LINES).encode()


def table(lines):
    return pa.Table.from_pylist(lines)


def zstd(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def parquet(lines):
    sink = pa.BufferOutputStream()
    pq.write_table(lines if isinstance(lines, pa.Table) else table(lines), sink)
    return sink.getvalue().to_pybytes()


def separated(lines, delimiter):
    import csv
    import io

    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(lines[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(lines)
    return sink.getvalue().encode()


def source_of(path, **options):
    options = {"model": "scripted", "shard_size": 4, **options}
    return open_prompts(RunOptions(Path(path), Path("out"), **options), lambda _: None)


def rows(source):
    shards = ShardSource(source)
    return [row for shard in range(source.shards) for row in table_from_bytes(shards.blob(shard)).to_pylist()]


@pytest.fixture
def written(tmp_path):
    def write(name, content):
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


WRAPPINGS = {
    "p.jsonl.gz": gzip.compress(JSONL),
    "p.jsonl.zst": zstd(JSONL),
    "p.jsonl.bz2": bz2.compress(JSONL),
    "p.ndjson.xz": lzma.compress(JSONL),
    "p": JSONL,
    "p.csv": separated(LINES, ","),
    "semicolons.csv": separated(LINES, ";"),
    "bom.csv": b"\xef\xbb\xbf" + separated(LINES, ","),
    "p.csv.gz": gzip.compress(separated(LINES, ",")),
    "p.tsv": separated(LINES, "\t"),
    "p.parquet": parquet(LINES),
}


@pytest.mark.parametrize("name", WRAPPINGS)
def test_the_same_records_have_the_same_rows_and_digest_in_any_wrapping(written, name):
    plain = source_of(written("plain.jsonl", JSONL))
    source = source_of(written(name, WRAPPINGS[name]))
    assert source.digest == plain.digest
    assert rows(source) == rows(plain)


def test_shards_of_a_spool_are_read_in_any_order(written):
    source = source_of(written("p.csv.gz", WRAPPINGS["p.csv.gz"]))
    assert [source.read_shard(shard)[0].record_id for shard in (2, 0, 1)] == ["r8", "r0", "r4"]


def test_the_spool_goes_when_it_is_done_with(written):
    source = source_of(written("p.csv", WRAPPINGS["p.csv"]))
    assert source.path.exists()
    source.spool.close()
    assert not source.path.parent.exists()


def test_many_files_are_one_run_and_lines_are_called_by_their_file(written, tmp_path):
    written("a.jsonl", b'{"id": "x", "prompt": "1"}\n\n{"id": "y", "prompt": "2"}\n')
    written("b.csv", b"id,prompt\nz,3\n\nx,4\n")
    with pytest.raises(InputError, match=r"b\.csv row 2: the record id 'x' is that of .*a\.jsonl line 1 too"):
        source_of(tmp_path / "[ab].*")
    kept = rows(source_of(tmp_path / "[ab].*", on_bad_input="error-row"))
    assert [(row["record_id"], row["prompt"]) for row in kept] == [("x", "1"), ("y", "2"), ("z", "3"), ("line-5", None)]
    both = source_of(tmp_path / "a.jsonl", others=(tmp_path / "a.jsonl",), on_bad_input="error-row")
    assert (both.records, both.bad) == (4, 2)


def test_standard_input_is_read_once_and_kept(tmp_path):
    words = ["run", "-", "--out", str(tmp_path / "o"), "--model", "scripted", "--dry-run"]
    done = CliRunner().invoke(main, words, input='{"prompt": "from a pipe"}\n')
    assert (done.exit_code, "[user] from a pipe" in done.output) == (0, True)
    twice = CliRunner().invoke(main, [*words, "-"], input="{}")
    assert "standard input can be read once" in twice.stderr
    as_table = CliRunner().invoke(main, [*words, "--format", "csv"], input="prompt\nfrom a table\n")
    assert "[user] from a table" in as_table.output


def test_parquet_types_become_what_json_has(written):
    rich = pa.table(
        {
            "prompt": ["a", "b"],
            "when": [datetime.datetime(2024, 5, 1, 12), None],
            "day": [datetime.date(2024, 5, 1), None],
            "price": [Decimal("1.50"), None],
            "score": [0.5, float("nan")],
            "tags": [["x"], []],
            "meta": [{"k": 1}, None],
        }
    )
    first, second = rows(source_of(written("rich.parquet", parquet(rich))))
    found = [first[name] for name in ("when", "day", "price", "score", "tags", "meta")]
    assert found == ["2024-05-01T12:00:00", "2024-05-01", "1.50", 0.5, ["x"], {"k": 1}]
    assert second["score"] is None


def test_messages_in_parquet_are_messages(written):
    line = {"messages": [{"role": "user", "content": "hello"}], "id": 7}
    (row,) = rows(source_of(written("m.parquet", parquet([line]))))
    assert (row["record_id"], row["messages"]) == ("7", line["messages"])


def test_a_pipe_is_read_once_and_kept(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(JSONL))
    writer.start()
    source = source_of(tmp_path / "pipe")
    writer.join()
    assert [row["record_id"] for row in rows(source)] == [line["id"] for line in LINES]


def test_text_beyond_ascii_takes_no_more_room_than_it_has(written, monkeypatch):
    monkeypatch.setattr("producer.spool.MAX_LINE_BYTES", 400)
    (row,) = rows(source_of(written("p.csv", ("prompt\n" + "漢" * 120 + "\n").encode())))
    assert row["prompt"] == "漢" * 120


BROKEN_FILES = {
    "bytes.parquet": (parquet(pa.table({"prompt": pa.array([b"caf\xe9"]).view(pa.string())})), "not UTF-8"),
    "truncated.jsonl.gz": (gzip.compress(JSONL)[:-20], "damaged"),
    "bitrot.jsonl.gz": (gzip.compress(JSONL)[:15] + b"\xff" * 30, "damaged|cannot read"),
    "truncated.jsonl.zst": (zstd(JSONL)[:-10], "damaged|cannot read|holds no record"),
    "truncated.jsonl.xz": (lzma.compress(JSONL)[:-20], "damaged"),
    "noise.jsonl.bz2": (b"BZh9" + b"\x00" * 50, "damaged|cannot read"),
    "list.jsonl.gz": (gzip.compress(b'[{"prompt": "a"}]'), "starts with a JSON list"),
    "empty.jsonl.gz": (gzip.compress(b""), "holds no record"),
    "truncated.parquet": (parquet(LINES)[:-20], "damaged or not what its name says"),
    "empty.parquet": (b"", "damaged or not what its name says"),
    "text.parquet": (b"hello", "damaged or not what its name says"),
    "no_rows.parquet": (parquet(table(LINES).slice(0, 0)), "holds no record"),
    "binary.parquet": (parquet([{"prompt": "a", "image": b"\x00"}]), "the column 'image' is binary"),
    "nested.parquet": (parquet([{"prompt": "a", "x": [{"y": b"\x00"}]}]), "the column 'x' is list"),
    "twice.parquet": (parquet(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["prompt", "prompt"])), "stands twice"),
    "infinite.parquet": (parquet([{"prompt": "a", "x": float("inf")}]), "row 1: not JSON: Infinity is no JSON number"),
    "null.parquet": (parquet([{"prompt": "a"}, {"prompt": None}]), "row 2: prompt is null"),
    "number.parquet": (parquet([{"prompt": 5}]), "row 1: prompt must be text; received a number"),
    "renamed.jsonl": (parquet(LINES), "is a Parquet file"),
    "empty.csv": (b"", "is empty; its first line must name the columns"),
    "blank.csv": (b"\n\n", "is empty; its first line must name the columns"),
    "header.csv": (b"id,prompt\n", "holds no record"),
    "nameless.csv": (b"id,,prompt\n", "column 2 has none"),
    "twice.csv": (b"prompt,prompt\na,b\n", "the column 'prompt' stands twice"),
    "short.csv": (b"id,prompt\n1\n2,b\n", "row 1: has 1 cells, the header 2"),
    "long.csv": (b"id,prompt\n1,b\n2,b,c\n", "row 2: has 3 cells, the header 2"),
    "quote.csv": (b'prompt\n"never ends\n', "the row that begins in line 2"),
    "stray.csv": (b'prompt,x\n"a"b,1\n', "the row that begins in line 2"),
    "latin.csv": ("prompt\ncafé\n".encode("latin-1"), "not UTF-8 text"),
    "utf16.csv": ("prompt\na\n".encode("utf-16"), "not UTF-8 text"),
    "nul.csv": (b"prompt\na\x00b\n", "NUL"),
    "void.csv": (b"prompt,x\n,1\n", "row 1: prompt is null"),
    "other.csv": (b"question\na\n", "row 1: neither prompt nor messages"),
    "ids.csv": (b"id,prompt\n1,a\n1,b\n", "row 2: the record id '1' is that of row 1 too"),
    "bad.jsonl.gz": (gzip.compress(b'{"prompt": "a"}\n\nnonsense\n'), "line 3: not JSON"),
    "bang.jsonl.gz": (gzip.compress(b"!\n"), "line 1: not JSON"),
    "latin.txt.gz": (gzip.compress(b"good\ncaf\xe9\n"), "line 2: not UTF-8 text"),
}


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_a_broken_file_is_one_clear_error_that_names_it(written, tmp_path, name):
    content, says = BROKEN_FILES[name]
    path = written(name, content)
    with pytest.raises(InputError, match=says) as caught:
        source_of(path)
    assert str(path) in str(caught.value)
    done = CliRunner().invoke(main, ["run", str(path), "--out", str(tmp_path / "o"), "--model", "scripted"])
    assert (done.exit_code, done.stderr.count("Error: "), "Traceback" in done.output) == (1, 1, False)


def test_a_bad_row_of_a_table_can_be_kept_as_an_error_row(written):
    source = source_of(written("p.csv", b"id,prompt\n1,a\n2\n3,c\n"), on_bad_input="error-row")
    assert [(row["prompt"], row["bad_input"]) for row in rows(source)] == [
        ("a", None),
        (None, "row 2: has 1 cells, the header 2"),
        ("c", None),
    ]


def test_a_line_that_is_too_long_is_bad_inside_an_archive_too(written, monkeypatch):
    monkeypatch.setattr("producer.prompt_lines.MAX_LINE_BYTES", 100)
    lines = [b'\xef\xbb\xbf{"prompt": "' + b"x" * 86 + b'"}', b'{"prompt": "' + b"x" * 300 + b'"}', b'{"prompt": "next"}']
    path = written("p.jsonl.gz", gzip.compress(b"\n".join(lines)))
    assert [row["prompt"] for row in rows(source_of(path, on_bad_input="error-row"))] == [None, None, "next"]


def test_a_pattern_that_matches_nothing_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no file matches .*\*\.csv"):
        source_of(tmp_path / "*.csv")


def test_a_limit_takes_the_first_records_only(written):
    path = written("p.jsonl", JSONL + b"nonsense behind it\n")
    source = source_of(path, limit=5)
    assert (source.records, [row["record_id"] for row in rows(source)]) == (5, [f"r{i}" for i in range(5)])
    assert source.digest == source_of(written("five.jsonl", b"".join(JSONL.splitlines(keepends=True)[:5]))).digest


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


@pytest.mark.parametrize("name", ["p.jsonl", "p.csv", "p.parquet", "no-ids.jsonl"])
def test_a_sample_is_a_function_of_the_seed_and_keeps_order_and_ids(written, name):
    lines = [{key: line[key] for key in line if key != "id" or name != "no-ids.jsonl"} for line in LINES]
    jsonl = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path = written(name, {"p.csv": separated(lines, ","), "p.parquet": parquet(lines)}.get(name, jsonl))
    ids = [row["record_id"] for row in rows(source_of(path))]
    picked = [[row["record_id"] for row in rows(source_of(path, sample=4, seed=seed))] for seed in (0, 0, 1)]
    assert picked[0] == picked[1] != picked[2]
    assert all(len(one) == 4 and one == [name for name in ids if name in one] for one in picked)
    assert [row["row"] for row in rows(source_of(path, sample=4))] == [0, 1, 2, 3]
    assert [row["record_id"] for row in rows(source_of(path, sample=50))] == ids
    assert {row["record_id"] for row in rows(source_of(path, sample=3, limit=4))} <= set(ids[:4])


def test_what_a_sample_leaves_out_is_not_judged_and_lines_keep_their_numbers(written):
    path = written("p.jsonl", b'{"prompt": "a"}\n\n{"prompt": 3}\n{"prompt": "b"}\n')
    taken = [rows(source_of(path, sample=1, seed=seed, on_bad_input="error-row"))[0] for seed in range(8)]
    assert {row["record_id"] for row in taken} == {"0", "2", "line-3"}
    assert {row["bad_input"] for row in taken} == {None, "line 3: prompt must be text; received a number"}
    good = next(seed for seed, row in enumerate(taken) if row["bad_input"] is None)
    assert rows(source_of(path, sample=1, seed=good)) == [taken[good]]
