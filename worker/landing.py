"""Part files: whole or absent, byte-identical for equal rows, and telling in their footer what they are.

A part file is written under a temporary name in its own folder, synced, renamed, and the folder is synced; in an object store it is one
object from its first moment on. Its footer carries a `PartRecord`. What varies between two equal datasets (host, chip, time, attempt) stays
out of it.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import DecodeError, LandingError, UnwritableError
from schemas.wire import Wire
from worker.remote_path import Place, RemotePath, parquet_source

FOOTER_KEY = b"specmill"
TEMPORARY = re.compile(r"\.(part-\d{5,}\.parquet|attempts-\d{4,}\.parquet|shard-\d{5,}\.arrow|manifest\.json)\.tmp-[0-9a-f]{8}")

# Every option that changes a byte is fixed here, so that a change of pyarrow's defaults does not change our files.
WRITER_OPTIONS: dict[str, Any] = {
    "version": "2.6",
    "data_page_version": "1.0",
    "compression": "zstd",
    "compression_level": 3,
    "use_dictionary": True,
    "dictionary_pagesize_limit": 1 << 20,
    "data_page_size": 1 << 20,
    "write_statistics": True,
    "write_page_index": False,
    "store_schema": True,
    "write_batch_size": 1024,
}
ROW_GROUP_ROWS = 16_384


@dataclass(frozen=True)
class PartRecord(Wire):
    """What a part file says of itself.

    Attributes:
        contract: sha256 hex of the run's contract (`RunSpec.contract`, canonical JSON).
        shard: shard index.
        rows: rows in the file.
        failed: error rows among them.
        content_digest: `schemas.tables.content_digest` of the rows.
    """

    contract: str
    shard: int
    rows: int
    failed: int
    content_digest: str


def land_part(folder: Place, relative_name: str, table: pa.Table, record: PartRecord) -> None:
    """Write one part file, whole or not at all; the same part again changes nothing.

    Args:
        folder: the dataset's folder.
        relative_name: the part's name in it, `data/part-00000.parquet`.
        table: the rows, schema `row_schema`.
        record: goes into the footer.

    Raises:
        UnwritableError: the file could not be written.
        LandingError: the name holds something else.
    """
    path = folder / relative_name
    if path.exists():
        if read_part_record(path) != record:
            raise LandingError(f"{path} holds other rows than shard {record.shard} has now; move it away to have it made again")
        return
    stamped = table.combine_chunks().replace_schema_metadata({FOOTER_KEY: record.to_json().encode()})
    land_table(path, stamped)


def land_table(path: Place, table: pa.Table) -> None:
    """Write one Parquet file, whole or not at all, replacing what has the name.

    Raises:
        UnwritableError: the file could not be written.
    """
    with written_whole(path) as file:
        pq.write_table(table, file, row_group_size=ROW_GROUP_ROWS, **WRITER_OPTIONS)


@contextlib.contextmanager
def written_whole(path: Place) -> Iterator[IO[bytes]]:
    """A file to write that takes the name `path` when the block ends, synced, and leaves nothing when it raises.

    Raises:
        UnwritableError: the file could not be written.
    """
    try:
        with _sent_whole(path) if isinstance(path, RemotePath) else _renamed_whole(path) as file:
            yield file
    except OSError as error:
        raise UnwritableError(f"cannot write {path}: {error}; once it can be written, the same command goes on") from error


@contextlib.contextmanager
def _renamed_whole(path: Path) -> Iterator[IO[bytes]]:
    temporary = temporary_name(path)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        rename_durably(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _sent_whole(path: RemotePath) -> Iterator[IO[bytes]]:
    sink = pa.BufferOutputStream()
    yield sink
    path.write_whole(sink.getvalue(), _temporary(path.name))


def read_part_record(path: Place) -> PartRecord:
    """What the footer of a part file says.

    Raises:
        LandingError: the file is broken or was not written by specmill.
    """
    try:
        metadata = pq.read_metadata(parquet_source(path)).metadata or {}
    except (pa.ArrowInvalid, OSError) as error:
        raise LandingError(f"{path} is not a whole Parquet file ({error}); move it away to have it made again") from error
    if FOOTER_KEY not in metadata:
        raise LandingError(f"{path} was not written by specmill; move it away")
    try:
        return PartRecord.from_json(metadata[FOOTER_KEY])
    except DecodeError as error:
        raise LandingError(f"{path} has a footer that this specmill cannot read: {error}") from error


def temporary_name(path: Path) -> Path:
    """A new name beside `path` that `TEMPORARY` recognises and no `*.parquet` pattern does."""
    return path.with_name(_temporary(path.name))


def _temporary(name: str) -> str:
    return f".{name}.tmp-{secrets.token_hex(4)}"


def rename_durably(temporary: Path, path: Path) -> None:
    """Give a synced file its name, and make the name survive a power cut."""
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
