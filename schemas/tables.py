"""The Arrow and Parquet schemas: shard blobs, dataset rows, the attempts log.

A shard travels as a blob table (`blob_schema`): `row`, `record_id`, `prompt` and/or `messages`, `sampling` where rows have settings of
their own, the user's own columns, `bad_input`; with the column `sample` it asks for that one sample of each row. The dataset repeats its
columns once per sample, without `bad_input`, and adds the generated ones (`row_schema`).
"""

import hashlib
import math
from collections.abc import Iterable

import pyarrow as pa

from schemas.row_sampling import SAMPLING
from schemas.wire import Json, canonical_json

MESSAGES = pa.list_(pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())]))
ERROR = pa.struct([pa.field("type", pa.string()), pa.field("message", pa.string())])
ACCEPTANCE = pa.struct(
    [
        pa.field("cycles", pa.int32()),
        pa.field("drafted", pa.int32()),
        pa.field("accepted", pa.int32()),
        pa.field("residual", pa.int32()),
        pa.field("bonus", pa.int32()),
        pa.field("drafted_by_depth", pa.list_(pa.int32())),
        pa.field("accepted_by_depth", pa.list_(pa.int32())),
        pa.field("expected_accepted", pa.float64()),
        pa.field("accepted_variance", pa.float64()),
        pa.field("expected_by_depth", pa.list_(pa.float64())),
        pa.field("variance_by_depth", pa.list_(pa.float64())),
    ]
)

_GENERATED = [
    pa.field("completion", pa.string()),
    pa.field("token_ids", pa.list_(pa.int32())),
    pa.field("finish_reason", pa.string()),
    pa.field("error", ERROR),
    pa.field("prompt_tokens", pa.int32()),
    pa.field("completion_tokens", pa.int32()),
    pa.field("seed", pa.uint64()),
    pa.field("acceptance", ACCEPTANCE),
    pa.field("logprob_sum", pa.float64()),
]
_LOGPROBS = pa.field("logprobs", pa.list_(pa.float64()))
GENERATED_COLUMNS = frozenset((*(field.name for field in _GENERATED), _LOGPROBS.name))
"""What the engine fills in a dataset row; everything else of it comes from the prompts file."""
_LEADING = ("row", "record_id", "sample", "prompt", "messages", "sampling", "bad_input")

RESERVED_COLUMNS = GENERATED_COLUMNS.union(_LEADING)
"""Names that a user's own column may not take; the source keeps such a column as `input_NAME`."""

ATTEMPTS = pa.schema(
    [
        pa.field("shard", pa.int64()),
        pa.field("attempt", pa.int32()),
        pa.field("worker", pa.string()),
        pa.field("device", pa.string()),
        pa.field("chip", pa.string()),
        pa.field("mlx", pa.string()),
        pa.field("blas", pa.string()),
        pa.field("started", pa.timestamp("ms", tz="UTC")),
        pa.field("seconds", pa.float64()),
        pa.field("load_seconds", pa.float64()),
        pa.field("prefill_seconds", pa.float64()),
        pa.field("draft_seconds", pa.float64()),
        pa.field("verify_seconds", pa.float64()),
        pa.field("commit_seconds", pa.float64()),
        pa.field("peak_bytes", pa.int64()),
        pa.field("rows", pa.int32()),
        pa.field("failed", pa.int32()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("completion_tokens", pa.int64()),
        pa.field("tokens_per_second", pa.float64()),
        pa.field("drafted", pa.int64()),
        pa.field("accepted", pa.int64()),
        pa.field("expected_accepted", pa.float64()),
        pa.field("accepted_variance", pa.float64()),
    ]
)


def blob_schema(*, prompt: bool, messages: bool, own: Iterable[pa.Field], sampling: bool = False, sample: bool = False) -> pa.Schema:
    """The schema of a shard blob.

    Args:
        prompt: whether any record of the run has a `prompt`.
        messages: whether any record of the run has `messages`.
        own: the user's own columns, in input order, none of them reserved.
        sampling: whether rows have settings of their own.
        sample: whether each row asks for one sample alone.
    """
    fields = [pa.field("row", pa.int64(), nullable=False), pa.field("record_id", pa.string(), nullable=False)]
    if prompt:
        fields.append(pa.field("prompt", pa.string()))
    if messages:
        fields.append(pa.field("messages", MESSAGES))
    if sampling:
        fields.append(pa.field("sampling", SAMPLING))
    fields += [*own, pa.field("bad_input", pa.string())]
    return pa.schema([*fields, pa.field("sample", pa.int32(), nullable=False)] if sample else fields)


def row_schema(blob: pa.Schema, *, logprobs: bool) -> pa.Schema:
    """The schema of a part file whose shards have the blob schema `blob`."""
    by_name = {field.name: field for field in blob}
    leading = [by_name["record_id"], by_name["row"], pa.field("sample", pa.int32(), nullable=False)]
    leading += [by_name[name] for name in ("prompt", "messages", "sampling") if name in by_name]
    own = [field for field in blob if field.name not in _LEADING]
    return pa.schema([*leading, *own, *_GENERATED, *([_LOGPROBS] if logprobs else [])])


def table_to_bytes(table: pa.Table) -> bytes:
    """One table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def table_from_bytes(data: bytes) -> pa.Table:
    """The table of an Arrow IPC stream."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()


def content_digest(table: pa.Table) -> str:
    """sha256 hex over the logical rows: column names and values in order, whatever wrote or encoded the file."""
    digest = hashlib.sha256(canonical_json(list(table.column_names)).encode())
    for batch in table.to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            digest.update(b"\n" + canonical_json(_plain(list(row.values()))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _plain(value: object) -> Json:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)
