"""Datasets changed after the fact, by somebody careless or by somebody who fixes every digest too."""

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from producer.dataset import Dataset
from producer.manifest_file import write_manifest
from schemas.tables import content_digest
from worker.landing import FOOTER_KEY, land_table, read_part_record

Row = dict[str, Any]


def change_row(out: Path, index: int, change: Callable[[Row], None], *, fix_digests: bool) -> Row:
    """Change one row of the first part file; returns it as it was."""
    dataset = Dataset.open(out)
    shard = dataset.manifest.shards[0]
    table, record = dataset.table(shard), read_part_record(dataset.path(shard))
    rows = table.to_pylist()
    before = copy.deepcopy(rows[index])
    change(rows[index])
    forged = pa.Table.from_pylist(rows, schema=table.schema.remove_metadata())
    if fix_digests:
        record = dataclasses.replace(record, content_digest=content_digest(forged))
        shards = (dataclasses.replace(shard, content_digest=record.content_digest), *dataset.manifest.shards[1:])
        write_manifest(out, dataclasses.replace(dataset.manifest, shards=shards))
    land_table(dataset.path(shard), forged.replace_schema_metadata({FOOTER_KEY: record.to_json().encode()}))
    return before


def move_to_another_chip(out: Path) -> None:
    """Say that every part file was computed elsewhere."""
    manifest = Dataset.open(out).manifest
    elsewhere = [dataclasses.replace(shard, backend=dataclasses.replace(shard.backend, chip="another chip")) for shard in manifest.shards]
    write_manifest(out, dataclasses.replace(manifest, shards=tuple(elsewhere)))
