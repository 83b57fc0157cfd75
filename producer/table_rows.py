"""Rows of a Parquet file as JSON objects."""

import datetime
import decimal
import math
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import InputError

_BATCH_ROWS = 1024


def parquet_rows(data: BinaryIO) -> Iterator[dict[str, Any]]:
    """Every row: dates and times in ISO 8601, decimals as text, NaN as null, maps as lists of pairs.

    Raises:
        InputError: a column that JSON has no value for; the message names it.
        pyarrow.ArrowInvalid: not a Parquet file.
    """
    file = pq.ParquetFile(data)
    names = file.schema_arrow.names
    for field in file.schema_arrow:
        if names.count(field.name) > 1:
            raise InputError(f"the column {field.name!r} stands twice")
        if _has_binary(field.type):
            raise InputError(f"the column {field.name!r} is {field.type}, which no prompt or table of text can hold; leave it out")
    for batch in file.iter_batches(_BATCH_ROWS):
        for row in batch.to_pylist():
            yield {name: _plain(value) for name, value in row.items()}


def _has_binary(kind: pa.DataType) -> bool:
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return True
    return any(_has_binary(kind.field(number).type) for number in range(kind.num_fields))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta | decimal.Decimal | uuid.UUID):
        return str(value)
    return value
