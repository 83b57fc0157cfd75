"""Part files are whole or absent, equal for equal rows, and say what they are."""

import errno
import os
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from producer.part_files import read_parts, remove_stale_files
from schemas.errors import EngineCrashedError, LandingError
from schemas.tables import content_digest, table_from_bytes
from worker import landing
from worker.error_rows import error_rows
from worker.landing import PartRecord, land_part, read_part_record
from worker.part_names import contract_digest, part_name


@pytest.fixture
def part(session: ModuleType, tmp_path: Path) -> SimpleNamespace:
    spec = session.make_spec(records=5, shard_size=3, samples=2)
    table = error_rows(table_from_bytes(session.MadeUpShards(spec).blob(0)), spec, EngineCrashedError("x"))
    record = PartRecord(contract_digest(spec), 0, table.num_rows, table.num_rows, content_digest(table))
    (tmp_path / "data").mkdir()
    return SimpleNamespace(spec=spec, table=table, record=record, out=tmp_path, name=part_name(spec, 0), path=tmp_path / part_name(spec, 0))


def land(part: SimpleNamespace) -> None:
    land_part(part.out, part.name, part.table, part.record)


def test_a_part_is_read_back_as_it_was_and_says_what_it_is(part: SimpleNamespace) -> None:
    land(part)
    assert read_part_record(part.path) == part.record
    assert read_parts(part.out, part.spec) == {0: part.record}
    assert pq.read_table(part.path).replace_schema_metadata(None).equals(part.table)
    assert content_digest(pq.read_table(part.path)) == part.record.content_digest


def test_the_same_part_again_changes_nothing(part: SimpleNamespace) -> None:
    land(part)
    before = part.path.stat()
    land(part)
    after = part.path.stat()  # reading it may have moved its time of access
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_bytes_do_not_depend_on_how_the_rows_were_batched(part: SimpleNamespace, tmp_path: Path) -> None:
    land(part)
    whole = part.path.read_bytes()
    part.path.unlink()
    part.table = pa.concat_tables([part.table.slice(row, 1) for row in range(part.table.num_rows)])
    land(part)
    assert part.path.read_bytes() == whole


def test_other_rows_never_replace_a_part(part: SimpleNamespace) -> None:
    land(part)
    other = PartRecord(part.record.contract, 0, 6, 0, "other")
    with pytest.raises(LandingError, match=r"part-00000\.parquet holds other rows"):
        land_part(part.out, part.name, part.table, other)
    assert read_part_record(part.path) == part.record


@pytest.mark.parametrize("step", ["fsync", "replace", "write_table"])
def test_a_part_that_cannot_be_written_whole_is_absent(part: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    owner = {"fsync": os, "replace": Path, "write_table": landing.pq}[step]
    monkeypatch.setattr(owner, step, full)
    with pytest.raises(LandingError, match=r"part-00000\.parquet.*No space left"):
        land(part)
    assert list((part.out / "data").iterdir()) == []


def test_stale_files_of_our_own_naming_go_and_all_others_stay(part: SimpleNamespace) -> None:
    stale = landing.temporary_name(part.path)
    stale.write_bytes(b"half")
    others = [part.out / "data" / name for name in (".DS_Store", ".part-00000.parquet.tmp-xyz", "notes.txt", ".other.tmp-00000000")]
    for other in others:
        other.write_bytes(b"mine")
    assert remove_stale_files(part.out) == [stale]
    assert sorted((part.out / "data").iterdir()) == sorted(others)


@pytest.mark.parametrize("damage", ["truncated", "foreign", "other run", "renamed", "stranger"])
def test_a_part_that_cannot_be_trusted_is_named_and_left_alone(part: SimpleNamespace, damage: str, session: ModuleType) -> None:
    land(part)
    spec = part.spec
    if damage == "truncated":
        part.path.write_bytes(part.path.read_bytes()[:-20])
    elif damage == "foreign":
        pq.write_table(pa.table({"a": [1]}), part.path)
    elif damage == "other run":
        spec = session.make_spec(records=5, shard_size=3, samples=2, seed=8)
    elif damage == "renamed":
        part.path = part.path.rename(part.path.with_name("part-00001.parquet"))
    else:
        part.path = part.path.rename(part.path.with_name("more.parquet"))
    before = part.path.read_bytes()
    with pytest.raises(LandingError, match=part.path.name):
        read_parts(part.out, spec)
    assert part.path.read_bytes() == before


def test_names_sort_in_input_order_whatever_the_number_of_shards(session: ModuleType) -> None:
    assert part_name(session.make_spec(records=5, shard_size=3), 1) == "data/part-00001.parquet"
    many = session.make_spec(records=100_001, shard_size=1)
    assert sorted(part_name(many, shard) for shard in (99_999, 100_000, 9)) == [part_name(many, shard) for shard in (9, 99_999, 100_000)]
