import json
import re
import tracemalloc

import pyarrow as pa
import pytest

from producer import record as record_module
from producer.column_path import ColumnPath
from producer.record import RecordReader
from producer.scan import MAX_COLUMNS, PROBLEMS_SHOWN
from producer.shards import ShardSource
from producer.source import PromptSource
from schemas.errors import InputError
from schemas.tables import RESERVED_COLUMNS, table_from_bytes


@pytest.fixture
def prompts(tmp_path):
    """Write a prompts file: bytes as they are, anything else as JSON lines."""

    def write(content, name="prompts.jsonl"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else b"".join(json.dumps(line).encode() + b"\n" for line in content))
        return path

    return write


def scan(path, *, shard_size=4, keep_bad=False, **columns):
    paths = {name: ColumnPath.parse(text) for name, text in columns.items()}
    return PromptSource.scan(path, RecordReader(plain_text=path.suffix == ".txt", **paths), shard_size=shard_size, keep_bad=keep_bad)


def rows(source):
    shards = ShardSource(source)
    return pa.concat_tables([table_from_bytes(shards.blob(shard)) for shard in range(source.shards)]).to_pylist()


def test_records_keep_order_ids_and_the_users_columns(prompts):
    source = scan(
        prompts([{"id": 7, "prompt": "a", "score": 1}, {"custom_id": "x", "prompt": "b", "score": 0.5}, {"prompt": "c", "tags": ["t"]}])
    )
    assert rows(source) == [
        {"row": 0, "record_id": "7", "prompt": "a", "score": 1.0, "tags": None, "bad_input": None},
        {"row": 1, "record_id": "x", "prompt": "b", "score": 0.5, "tags": None, "bad_input": None},
        {"row": 2, "record_id": "2", "prompt": "c", "score": None, "tags": ["t"], "bad_input": None},
    ]


def test_messages_and_prompts_may_be_mixed(prompts):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u", "name": None}]
    source = scan(prompts([{"messages": messages, "prompt": None}, {"prompt": "p", "messages": None}]))
    first, second = rows(source)
    assert (first["prompt"], [list(m.values()) for m in first["messages"]]) == (None, [["system", "s"], ["user", "u"]])
    assert (second["prompt"], second["messages"]) == ("p", None)


def test_shards_are_read_in_any_order_and_share_one_schema(prompts):
    lines = [{"id": i, "prompt": f"p{i}", "n": i if i % 3 else i + 0.5} for i in range(11)]
    shards = ShardSource(scan(prompts(lines), shard_size=4))
    tables = {shard: table_from_bytes(shards.blob(shard)) for shard in (2, 0, 1, 2)}
    assert [tables[shard].num_rows for shard in range(3)] == [4, 4, 3]
    assert {tables[shard].schema for shard in range(3)} == {shards.blob_schema}
    assert [i for shard in range(3) for i in tables[shard]["row"].to_pylist()] == list(range(11))
    with pytest.raises(ValueError, match=r"\[0, 2\]; received 3"):
        shards.blob(3)


def test_the_shard_size_changes_no_record(prompts):
    path = prompts([{"prompt": f"p{i}", "x": [i]} for i in range(10)] + [{"prompt": "last", "x": None}])
    assert rows(scan(path, shard_size=3)) == rows(scan(path, shard_size=100))
    assert scan(path, shard_size=3).digest == scan(path, shard_size=100).digest


def test_plain_text_is_a_prompt_per_line_without_the_blank_ones(prompts):
    source = scan(prompts("\ufeff first \r\n\r\n  \nzweite: ä\nlast\u2028one".encode(), "prompts.txt"))
    assert [(row["record_id"], row["prompt"]) for row in rows(source)] == [("0", " first "), ("1", "zweite: ä"), ("2", "last\u2028one")]


def test_bom_crlf_blank_lines_and_a_missing_last_line_end_are_all_fine(prompts):
    source = scan(prompts(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n   \n{"prompt": "b"}\n{"prompt": "c"}'), shard_size=2)
    assert [row["prompt"] for row in rows(source)] == ["a", "b", "c"]


def test_the_digest_follows_content_and_not_layout(prompts):
    def digest(content, **options):
        return scan(prompts(content), **options).digest

    one = digest(b'{"prompt": "a", "x": 1}\n{"prompt": "b", "x": 2}\n')
    assert digest(b'\r\n{"x":1,"prompt":"a"}\r\n\n{"prompt": "b",   "x": 2}') == one
    others = [
        b'{"prompt": "a", "x": 1}\n{"prompt": "b", "x": 3}\n',
        b'{"prompt": "b", "x": 2}\n{"prompt": "a", "x": 1}\n',
        b'{"prompt": "a", "x": 1}\n',
        b'{"prompt": "a", "y": 1}\n{"prompt": "b", "y": 2}\n',
    ]
    assert len({one, *map(digest, others)}) == 5
    assert digest(b'{"prompt": "a", "x": 1}\n{"prompt": "b", "x": 2}\n', id_column="x") != one


def test_the_order_of_columns_is_part_of_the_digest_since_it_is_part_of_the_files(prompts):
    assert scan(prompts([{"prompt": "a", "x": 1, "y": 2}])).digest != scan(prompts([{"prompt": "a", "y": 2, "x": 1}])).digest


def test_prompt_and_id_may_come_from_any_column(prompts):
    path = prompts([{"question_id": 81, "turns": ["one", "two"], "prompt": "mine", "id": True}])
    (row,) = rows(scan(path, prompt_column="turns[0]", id_column="question_id"))
    assert row == {
        "row": 0,
        "record_id": "81",
        "prompt": "one",
        "turns": ["one", "two"],
        "input_prompt": "mine",
        "id": True,
        "bad_input": None,
    }


def test_a_prompt_column_may_hold_messages(prompts):
    path = prompts([{"chat": [{"role": "user", "content": "u"}]}, {"chat": "text"}])
    assert [(row["prompt"], row["messages"]) for row in rows(scan(path, prompt_column="chat"))] == [
        (None, [{"role": "user", "content": "u"}]),
        ("text", None),
    ]


def test_no_column_of_the_user_hides_one_of_the_dataset(prompts):
    line = {"prompt": "p", **dict.fromkeys(sorted(RESERVED_COLUMNS - {"prompt", "messages"}), 1), "input_seed": 2, "input_input_seed": 3}
    source = scan(prompts([line]))
    (row,) = rows(source)
    assert row["input_completion"] == 1
    assert [row[name] for name in ("input_seed", "input_input_seed", "input_input_input_seed")] == [2, 3, 1]
    assert len(row) == len(line) + 3  # row, record_id, bad_input
    assert "column 'seed' is kept as 'input_input_input_seed'" in source.warnings


def test_columns_without_a_common_type_are_named(prompts):
    source = scan(prompts([{"prompt": "p", "x": 1}, {"prompt": "p", "x": "one"}]))
    assert source.warnings == ["column 'x' holds values without a common type; it is kept as JSON text"]
    assert [row["x"] for row in rows(source)] == ["1", '"one"']


BAD_LINES = {
    b"{": "not JSON",
    b'{"prompt": "a"} x': "not JSON",
    b"nonsense": "not JSON",
    b'["prompt"]': "must be a JSON object; received a list",
    b'"prompt"': "must be a JSON object; received text",
    b"null": "must be a JSON object; received null",
    b"{}": "neither prompt nor messages",
    b'{"text": "a"}': "neither prompt nor messages",
    b'{"prompt": null}': "prompt is null",
    b'{"prompt": 5}': "prompt must be text; received a number",
    b'{"prompt": ["a"]}': "prompt must be text; received a list",
    b'{"prompt": "a\\u0000b"}': "prompt holds a NUL",
    b'{"prompt": "a\x00b"}': "not JSON",
    b'{"prompt": "\\ud800"}': "half of a surrogate pair",
    b'{"prompt": "a", "x": {"y": ["\\udc00"]}}': "x holds half of a surrogate pair",
    b'{"prompt": "a", "\\ud800": 1}': "half of a surrogate pair",
    b'{"prompt": "a", "x": {"\\u0000": 1}}': "NUL",
    b'{"prompt": "a", "prompt": "b"}': "'prompt' stands twice",
    b'{"prompt": "a", "x": {"y": 1, "y": 2}}': "'y' stands twice",
    b'{"prompt": "a", "x": NaN}': "NaN is no JSON number",
    b'{"prompt": "a", "x": -Infinity}': "-Infinity is no JSON number",
    b'{"prompt": "a", "x": 1e999}': "x holds a number beyond float64",
    b'{"prompt": "a", "x": ' + b"9" * 5000 + b"}": "not JSON",
    b'{"prompt": "a", "x": ' + b"[" * 40 + b"]" * 40 + b"}": "nested deeper than 32 levels",
    b'{"prompt": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}": "nested deeper than 32 levels",
    b'{"prompt": "\xff"}': "not UTF-8 text",
    b'{"prompt": "a", "messages": [{"role": "user", "content": "u"}]}': "both prompt and messages",
    b'{"messages": "hello"}': "messages must be a list of messages; received text",
    b'{"messages": []}': "received an empty list",
    b'{"messages": ["hello"]}': r"messages\[0\] must be an object",
    b'{"messages": [{"role": "user"}]}': r"messages\[0\].content must be text; received nothing",
    b'{"messages": [{"role": "user", "content": null}]}': r"messages\[0\].content must be text; received null",
    b'{"messages": [{"role": "user", "content": [{"type": "text"}]}]}': r"messages\[0\].content must be text; received a list",
    b'{"messages": [{"role": "user", "content": "u"}, {"role": "king", "content": "u"}]}': r"messages\[1\].role must be one of .*'king'",
    b'{"messages": [{"role": "user", "content": "u", "tool_calls": [1]}]}': r"messages\[0\] has 'tool_calls'",
    b'{"messages": [{"role": "user", "content": "\\u0000"}]}': r"messages\[0\].content holds a NUL",
    b'{"prompt": "a", "id": 1.5}': "id must be text or an integer; received a number",
    b'{"prompt": "a", "id": true}': "id must be text or an integer; received a boolean",
    b'{"prompt": "a", "id": ["x"]}': "id must be text or an integer; received a list",
    b'{"prompt": "a", "id": ""}': "1 to 512 characters; received 0",
    b'{"prompt": "a", "id": "' + b"x" * 513 + b'"}': "1 to 512 characters; received 513",
    b'{"prompt": "a", "id": "\\u0000"}': "id holds a NUL",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_bad_line_is_named_by_its_number_or_kept_as_an_error_row(prompts, line):
    path = prompts(b'{"prompt": "good"}\n\n' + line + b'\n{"prompt": "good too"}\n')
    with pytest.raises(InputError, match=r"1 bad line; nothing was started(.|\n)*line 3: .*" + BAD_LINES[line]):
        scan(path)
    source = scan(path, keep_bad=True, shard_size=2)
    first, bad, last = rows(source)
    assert (first["prompt"], bad["prompt"], last["prompt"]) == ("good", None, "good too")
    assert bad.get("messages") is None
    assert re.match(f"line 3: .*{BAD_LINES[line]}", bad["bad_input"])
    assert bad["record_id"] == "line-3"
    assert (source.records, source.bad, first["bad_input"], last["bad_input"]) == (3, 1, None, None)


def test_a_line_over_the_limit_is_bad_and_the_next_one_is_read(prompts, monkeypatch):
    monkeypatch.setattr("producer.prompt_lines.MAX_LINE_BYTES", 100)
    fits = b'{"prompt": "' + b"x" * 86 + b'"}'
    assert len(fits) == 100
    path = prompts(fits + b"\r\n" + fits.replace(b"x", b"xx") + b'\n{"prompt": "next"}\n' + fits.replace(b"x", b"xxx"))
    source = scan(path, keep_bad=True, shard_size=1)
    assert [row["bad_input"] and row["bad_input"][:16] for row in rows(source)] == [None, "line 2: longer t", None, "line 4: longer t"]
    assert record_module.MAX_LINE_BYTES == 10 * 2**20


def test_a_bad_line_keeps_its_id_and_columns_where_it_has_them(prompts):
    path = prompts([{"id": "a", "prompt": 5, "x": 1}, {"id": "b", "prompt": "p", "x": 2}])
    first, _ = rows(scan(path, keep_bad=True))
    assert (first["record_id"], first["x"], first["bad_input"]) == ("a", 1, "line 1: prompt must be text; received a number")


def test_many_bad_lines_are_counted_and_the_first_ones_shown(prompts):
    with pytest.raises(InputError) as caught:
        scan(prompts([{"prompt": None}] * 50))
    message = str(caught.value)
    assert "50 bad lines" in message
    assert message.count("prompt is null") == PROBLEMS_SHOWN
    assert message.endswith("… and 30 more")


def test_duplicate_ids_are_refused_with_both_lines(prompts):
    path = prompts([{"id": "a", "prompt": "1"}, {"id": 7, "prompt": "2"}, {"id": "7", "prompt": "3"}, {"id": "a", "prompt": "4"}])
    with pytest.raises(InputError) as caught:
        scan(path)
    assert "line 3: the record id '7' is that of line 2 too" in str(caught.value)
    assert "line 4: the record id 'a' is that of line 1 too" in str(caught.value)
    kept = rows(scan(path, keep_bad=True, shard_size=3))
    assert [(row["record_id"], row["prompt"]) for row in kept] == [("a", "1"), ("7", "2"), ("line-3", None), ("line-4", None)]


def test_an_id_may_not_be_another_rows_number(prompts):
    with pytest.raises(InputError, match="line 2: the record id '1' is that of line 1 too"):
        scan(prompts([{"id": "1", "prompt": "a"}, {"prompt": "b"}]))


def test_equal_hashes_of_different_ids_are_no_duplicates(prompts, monkeypatch):
    monkeypatch.setattr("producer.scan.id_hash", lambda record_id: 5)
    monkeypatch.setattr("producer.source.id_hash", lambda record_id: 5)
    source = scan(prompts([{"id": i, "prompt": "p"} for i in range(5)]))
    assert (source.bad, source.duplicates) == (0, {})


def test_an_id_that_a_bad_line_needs_is_refused(prompts):
    path = prompts([{"id": "line-3", "prompt": "a"}, {"prompt": "b"}, {"nothing": 1}])
    with pytest.raises(InputError, match="line 3 needs the id 'line-3', which another line has"):
        scan(path, keep_bad=True)


@pytest.mark.parametrize("content", [b"", b"\n\n  \r\n", b"\xef\xbb\xbf"])
def test_a_file_without_a_record_is_refused(prompts, content):
    for name in ("prompts.jsonl", "prompts.txt"):
        with pytest.raises(InputError, match="holds no record"):
            scan(prompts(content, name))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x1f\x8b\x08rest", "gzip archive"),
        (b"PAR1rest", "Parquet file"),
        (b"PK\x03\x04", "zip archive"),
        ('{"prompt": "a"}'.encode("utf-16"), "UTF-16"),
        (b'\n [{"prompt": "a"}]', "starts with a JSON list"),
    ],
)
def test_a_file_of_another_kind_is_named(prompts, content, says):
    with pytest.raises(InputError, match=says):
        scan(prompts(content))


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*nothing.jsonl: No such file"):
        scan(tmp_path / "nothing.jsonl")
    with pytest.raises(InputError, match="not a regular file"):
        scan(tmp_path)


def test_too_many_columns_are_refused(prompts):
    with pytest.raises(InputError, match=f"line 2: column 'last' is one more than {MAX_COLUMNS}"):
        scan(prompts([{"prompt": "p", **{f"c{i}": i for i in range(MAX_COLUMNS)}}, {"prompt": "p", "last": 1}]))


@pytest.mark.parametrize("change", [lambda text: text.replace("p5", "q5"), lambda text: text[:20], lambda text: text.partition("\n")[2]])
def test_a_file_that_changes_during_the_run_is_noticed(prompts, change):
    path = prompts([{"prompt": f"p{i}"} for i in range(8)])
    shards = ShardSource(scan(path, shard_size=4))
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match="has changed since this run read it"):
        shards.blob(1)
    path.unlink()
    with pytest.raises(InputError, match="cannot read"):
        shards.blob(0)


def test_memory_does_not_grow_with_the_records(prompts):
    def peak(count):
        path = prompts([{"id": f"record-{i}", "prompt": "x" * 500, "meta": {"a": i}} for i in range(count)])
        tracemalloc.start()
        try:
            scan(path, shard_size=64)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak(2000), peak(8000)
    assert large - small < 6000 * 60  # bytes; the records themselves have 600 each
