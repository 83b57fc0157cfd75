"""Prompts files as bytes, and the rows that they become."""

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from producer.prompts import open_prompts
from producer.run_options import RunOptions
from producer.shards import ShardSource
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
