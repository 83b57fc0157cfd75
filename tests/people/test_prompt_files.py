"""Prompts in every form that people have them: the same records whatever the wrapping, and one clear error for what is broken."""

import bz2
import datetime
import gzip
import lzma
import os
import threading
from decimal import Decimal

import pyarrow as pa
import pytest
from click.testing import CliRunner
from prompt_rows import JSONL, LINES, parquet, rows, separated, source_of, table, zstd

from producer.cli import main
from schemas.errors import InputError

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
