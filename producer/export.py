"""`export`: a dataset's rows, all or those that a SQL condition picks, in another format, one batch at a time."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pyarrow.dataset as pa_dataset

from producer.dataset import Dataset
from producer.export_formats import FORMATS, WITHOUT_ERROR_ROWS, Row
from schemas.errors import InputError
from worker.remote_path import Place, RemotePath

BATCH_ROWS = 1024


@dataclass(frozen=True)
class Exported:
    """What an export has written.

    Attributes:
        rows: dataset rows that the condition picked.
        left_out: error rows among them that the format has no place for.
    """

    rows: int
    left_out: int


def export(dataset: Dataset, to: str, where: str | None, target: Path | None, *, replace: bool = False) -> Exported:
    """Write rows in dataset order.

    Args:
        dataset: finished or not; only what has landed is there.
        to: a key of `FORMATS`.
        where: a condition in DuckDB's SQL over the dataset's columns, or None for every row.
        target: the file, written whole or not at all; None is standard output.
        replace: whether a file that has the name may go.

    Raises:
        InputError: the target exists, or the condition is none.
        LandingError: a part file is missing or broken.
    """
    if target is not None and target.exists() and not replace:
        raise InputError(f"{target} exists; give another name, or --force to replace it")
    counter = _Counter(rows_where(dataset, where), counts_errors=to in WITHOUT_ERROR_ROWS)
    lines = FORMATS[to](counter, dataset.manifest.spec.model.name)
    if target is None:
        _write(lines, sys.stdout)
    else:
        partial = target.with_name(f".{target.name}.partial")
        try:
            with partial.open("w", encoding="utf-8", newline="\n") as file:
                _write(lines, file)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    return Exported(counter.rows, counter.errors)


def rows_where(dataset: Dataset, where: str | None) -> Iterator[Row]:
    """The rows that a condition picks, in dataset order; all of them without one.

    Raises:
        InputError: a condition that DuckDB does not take; the message is DuckDB's.
        LandingError: a part file is missing or broken.
    """
    if where is None:
        for shard in dataset.manifest.shards:
            for batch in dataset.table(shard).to_batches(BATCH_ROWS):
                yield from batch.to_pylist()
        return
    import duckdb

    files = [dataset.path(shard) for shard in dataset.manifest.shards]
    if not files:
        return
    try:
        with duckdb.connect() as database:
            # A relation takes the condition as an expression, so that it cannot end the statement and begin another.
            for batch in _relation(database, files).filter(where).to_arrow_reader(BATCH_ROWS):
                yield from batch.to_pylist()
    except duckdb.Error as error:
        raise InputError(f"--where {where!r}: {str(error).splitlines()[0]}") from error


def _relation(database: Any, files: list[Place]) -> Any:
    """The rows of part files; remote ones are read by pyarrow, so that DuckDB needs no extension of its own to get there."""
    first = files[0]
    if isinstance(first, RemotePath):
        keys = [file.key for file in files if isinstance(file, RemotePath)]
        return database.from_arrow(pa_dataset.dataset(keys, filesystem=first.filesystem, format="parquet"))
    return database.read_parquet([str(file) for file in files])


class _Counter:
    """Rows, counted as they go by."""

    def __init__(self, rows: Iterator[Row], *, counts_errors: bool) -> None:
        self._source = rows
        self._counts_errors = counts_errors
        self.rows = 0
        self.errors = 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._source:
            self.rows += 1
            self.errors += self._counts_errors and row["error"] is not None
            yield row


def _write(lines: Iterator[str], file: TextIO | Any) -> None:
    for line in lines:
        file.write(line)
    file.flush()
