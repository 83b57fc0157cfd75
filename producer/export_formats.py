"""The formats of `specmill export`: each turns dataset rows into lines of text, one record at a time.

A row is a dataset row as a dict. The rows of one record (its samples) come together, in order.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from schemas.wire import Json

Row = dict[str, Any]
Lines = Iterator[str]

_SHAREGPT_ROLES = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}


def as_jsonl(rows: Iterable[Row], model: str) -> Lines:  # noqa: ARG001 # every format has the same signature
    """Every column of every row, error rows included, one JSON object per line."""
    for row in rows:
        yield _line(row)


def as_csv(rows: Iterable[Row], model: str) -> Lines:  # noqa: ARG001
    """Every column of every row, error rows included; lists and structs as JSON text. The first line names the columns."""
    header: list[str] = []
    for row in rows:
        if not header:
            header = list(row)
            yield _csv_line(header)
        yield _csv_line([_cell(row[name]) for name in header])


def as_openai_batch(rows: Iterable[Row], model: str) -> Lines:
    """One line per record as the OpenAI batch API answers: `custom_id`, a response with a choice per sample, or an error."""
    for record_id, samples in _records(rows):
        good = [row for row in samples if row["error"] is None]
        error = None if good else {"code": samples[0]["error"]["type"], "message": samples[0]["error"]["message"]}
        choices: list[Json] = [
            {
                "index": row["sample"],
                "message": {"role": "assistant", "content": row["completion"]},
                "logprobs": None,
                "finish_reason": row["finish_reason"],
            }
            for row in good
        ]
        prompt_tokens = max((row["prompt_tokens"] for row in good), default=0)
        completion_tokens = sum(row["completion_tokens"] for row in good)
        usage: Json = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }
        name = f"specmill-{samples[0]['row']}"
        body: Json = {"id": name, "object": "chat.completion", "created": 0, "model": model, "choices": choices, "usage": usage}
        response: Json = {"status_code": 200, "request_id": name, "body": body} if good else None
        yield _line({"id": name, "custom_id": record_id, "response": response, "error": error})


def as_chat(rows: Iterable[Row], model: str) -> Lines:  # noqa: ARG001
    """`{"id", "messages": [… the prompt, the answer]}` per row; error rows are left out."""
    for row in rows:
        if row["error"] is None:
            yield _line({"id": _name(row), "messages": _conversation(row)})


def as_sharegpt(rows: Iterable[Row], model: str) -> Lines:  # noqa: ARG001
    """`{"id", "conversations": [{"from", "value"}, …]}` per row; error rows are left out."""
    for row in rows:
        if row["error"] is None:
            turns = [{"from": _SHAREGPT_ROLES[turn["role"]], "value": turn["content"]} for turn in _conversation(row)]
            yield _line({"id": _name(row), "conversations": turns})


FORMATS: dict[str, Callable[[Iterable[Row], str], Lines]] = {
    "jsonl": as_jsonl,
    "openai-batch": as_openai_batch,
    "chat": as_chat,
    "sharegpt": as_sharegpt,
    "csv": as_csv,
}
WITHOUT_ERROR_ROWS = ("chat", "sharegpt")


def _records(rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    for _, samples in groupby(rows, key=lambda row: row["row"]):
        found = list(samples)
        yield found[0]["record_id"], found


def _conversation(row: Row) -> list[dict[str, str]]:
    asked = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
    return [*asked, {"role": "assistant", "content": row["completion"]}]


def _name(row: Row) -> str:
    """The record id, and for a further sample its number; unlike each other in one dataset unless ids end so themselves."""
    return f"{row['record_id']}#{row['sample']}" if row["sample"] else str(row["record_id"])


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def _cell(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _csv_line(cells: Iterable[object]) -> str:
    sink = io.StringIO()
    csv.writer(sink, lineterminator="\n").writerow(cells)
    return sink.getvalue()
