"""`ShardSource`: a prompts file as shard blobs, in any order: what the coordinator feeds and feeds again."""

from typing import Protocol

import pyarrow as pa

from producer.own_settings import setting_of
from producer.record import Record
from producer.source import PromptSource
from schemas.row_sampling import SAMPLING, RowSampling
from schemas.tables import MESSAGES, blob_schema, table_to_bytes


class Shards(Protocol):
    """Where a coordinator's inputs come from: `ShardSource`, or what a test makes up."""

    @property
    def blob_schema(self) -> pa.Schema:
        """The schema of every blob."""

    def blob(self, shard: int) -> bytes:
        """A shard's input as an Arrow IPC stream, in any order and as often as asked."""


class ShardSource:
    """Shards of a scanned prompts file as Arrow tables."""

    def __init__(self, source: PromptSource) -> None:
        self._source = source
        self._names = source.names
        own = [pa.field(self._names[name], column.arrow()) for name, column in source.columns.items()]
        self._schema = blob_schema(
            prompt=source.has_prompt,
            messages=source.has_messages,
            own=own,
            sampling=bool(source.own),
            sample="samples" in source.own,
        )

    @property
    def blob_schema(self) -> pa.Schema:
        """The schema that the blobs of all shards share."""
        return self._schema

    def table(self, shard: int) -> pa.Table:
        """One shard as a table of `blob_schema`, a row per record.

        Raises:
            InputError: the prompts file is gone or has changed.
        """
        records = self._source.read_shard(shard)
        columns = {
            "row": pa.array([record.row for record in records], pa.int64()),
            "record_id": pa.array([record.record_id for record in records], pa.string()),
            "prompt": pa.array([record.prompt for record in records], pa.string()),
            "messages": pa.array([record.messages for record in records], MESSAGES),
            "sampling": pa.array([_sampling(record) for record in records], SAMPLING),
            "sample": pa.array([record.sample for record in records], pa.int32()),
            "bad_input": pa.array([record.bad_input for record in records], pa.string()),
        }
        for name, column in self._source.columns.items():
            columns[self._names[name]] = column.array([record.own.get(name) for record in records])
        return pa.Table.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)

    def blob(self, shard: int) -> bytes:
        """`table(shard)` as an Arrow IPC stream."""
        return table_to_bytes(self.table(shard))


def _sampling(record: Record) -> dict[str, object] | None:
    """What a record asks for itself, or None where it asks for nothing."""
    settings = {setting_of(name): value for name, value in record.options.items()}
    return RowSampling(**settings).column() if settings else None  # type: ignore[arg-type]  # checked when read
