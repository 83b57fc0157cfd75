"""`--limit` and `--sample`: a part of the records, with the names and in the order that they have."""

import json

import pytest
from prompt_rows import JSONL, LINES, parquet, rows, separated, source_of


def test_a_limit_takes_the_first_records_only(written):
    path = written("p.jsonl", JSONL + b"nonsense behind it\n")
    source = source_of(path, limit=5)
    assert (source.records, [row["record_id"] for row in rows(source)]) == (5, [f"r{i}" for i in range(5)])
    assert source.digest == source_of(written("five.jsonl", b"".join(JSONL.splitlines(keepends=True)[:5]))).digest


@pytest.mark.parametrize("name", ["p.jsonl", "p.csv", "p.parquet", "no-ids.jsonl"])
def test_a_sample_is_a_function_of_the_seed_and_keeps_order_and_ids(written, name):
    lines = [{key: line[key] for key in line if key != "id" or name != "no-ids.jsonl"} for line in LINES]
    jsonl = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path = written(name, {"p.csv": separated(lines, ","), "p.parquet": parquet(lines)}.get(name, jsonl))
    ids = [row["record_id"] for row in rows(source_of(path))]
    picked = [[row["record_id"] for row in rows(source_of(path, sample=4, seed=seed))] for seed in (0, 0, 1)]
    assert picked[0] == picked[1] != picked[2]
    assert all(len(one) == 4 and one == [name for name in ids if name in one] for one in picked)
    assert [row["row"] for row in rows(source_of(path, sample=4))] == [0, 1, 2, 3]
    assert [row["record_id"] for row in rows(source_of(path, sample=50))] == ids
    assert {row["record_id"] for row in rows(source_of(path, sample=3, limit=4))} <= set(ids[:4])


def test_what_a_sample_leaves_out_is_not_judged_and_lines_keep_their_numbers(written):
    path = written("p.jsonl", b'{"prompt": "a"}\n\n{"prompt": 3}\n{"prompt": "b"}\n')
    taken = [rows(source_of(path, sample=1, seed=seed, on_bad_input="error-row"))[0] for seed in range(8)]
    assert {row["record_id"] for row in taken} == {"0", "2", "line-3"}
    assert {row["bad_input"] for row in taken} == {None, "line 3: prompt must be text; received a number"}
    good = next(seed for seed, row in enumerate(taken) if row["bad_input"] is None)
    assert rows(source_of(path, sample=1, seed=good)) == [taken[good]]
