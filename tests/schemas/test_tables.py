"""The Arrow schemas, and a content digest that sees rows and not encodings."""

import pyarrow as pa

from schemas.tables import RESERVED_COLUMNS, blob_schema, content_digest, row_schema, table_from_bytes, table_to_bytes


def test_a_row_has_the_users_columns_between_input_and_result() -> None:
    blob = blob_schema(prompt=True, messages=True, own=[pa.field("topic", pa.string()), pa.field("weight", pa.float64())])
    rows = row_schema(blob, logprobs=True)
    assert rows.names[:7] == ["record_id", "row", "sample", "prompt", "messages", "topic", "weight"]
    assert rows.names[7:9] == ["completion", "token_ids"]
    assert rows.names[-1] == "logprobs"
    assert "bad_input" not in rows.names
    assert "logprobs" not in row_schema(blob, logprobs=False).names
    assert set(rows.names) - {"topic", "weight"} <= RESERVED_COLUMNS


def test_tables_travel_as_they_are() -> None:
    table = pa.table({"a": [1, None, 3], "b": [["x"], [], None]})
    assert table_from_bytes(table_to_bytes(table)).equals(table)


def test_the_digest_is_of_logical_rows() -> None:
    table = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})
    digest = content_digest(table)
    assert content_digest(pa.concat_tables([table.slice(0, 1), table.slice(1)])) == digest, "chunks do not count"
    assert content_digest(table.set_column(1, "b", table["b"].dictionary_encode())) == digest, "encodings do not count"
    assert content_digest(table.set_column(0, "a", pa.array([1, 2, 4]))) != digest
    assert content_digest(table.rename_columns(["a", "c"])) != digest
    assert content_digest(table.take([1, 0, 2])) != digest
    assert content_digest(pa.table({"a": [float("nan")]})) == content_digest(pa.table({"a": [float("nan")]}))
