"""What can be said against a dataset's part files without a model: content digests, row counts, row names and seeds."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from producer.backend_rule import BackendRule
from producer.counted import counted
from producer.dataset import Dataset, row_name
from sampling.counter_rng import row_key
from schemas.errors import LandingError
from schemas.manifest import ShardRecord
from schemas.run_spec import RunSpec
from schemas.tables import content_digest
from worker.landing import read_part_record
from worker.part_names import DATA, contract_digest, part_name

PROBLEMS_SHOWN = 20  # per part file


def check_files(dataset: Dataset, on_file: Callable[[int], None] = lambda _: None) -> list[str]:
    """One line per problem of a complete dataset; empty when every part file is as listed and every row has its own seed.

    Args:
        dataset: complete.
        on_file: receives the number of files that have been read, one by one.
    """
    manifest = dataset.manifest
    problems: list[str] = []
    listed = {shard.shard for shard in manifest.shards}
    if len(listed) != manifest.spec.shards:
        problems.append(f"the manifest lists {counted(len(listed), 'shard')} and the run has {manifest.spec.shards:,}")
    names = {dataset.path(shard).name for shard in manifest.shards}
    strangers = sorted(path.name for path in (dataset.out / DATA).glob("*.parquet") if path.name not in names)
    problems += [f"{DATA}/{name} is not in the manifest" for name in strangers]
    problems += BackendRule.of(manifest.spec).violations(manifest.shards)
    for number, shard in enumerate(manifest.shards, 1):
        problems += _check_part(dataset, shard)
        on_file(number)
    return problems


def _check_part(dataset: Dataset, shard: ShardRecord) -> list[str]:
    spec = dataset.manifest.spec
    try:
        table = dataset.table(shard)
        record = read_part_record(dataset.path(shard))
    except LandingError as error:
        return [str(error)]
    problems = []
    if shard.file != part_name(spec, shard.shard):
        problems.append(f"{shard.file} is not the name of shard {shard.shard}")
    if record.contract != contract_digest(spec):
        problems.append(f"{shard.file} carries the contract of another run than the manifest's")
    if table.num_rows != shard.rows:
        problems.append(f"{shard.file} has {counted(table.num_rows, 'row')} and the manifest says {shard.rows:,}")
    found = content_digest(table)
    if found != shard.content_digest:
        problems.append(f"{shard.file} was changed after it was written: content digest {found[:12]}, manifest {shard.content_digest[:12]}")
    if record.content_digest != shard.content_digest:
        problems.append(
            f"{shard.file} says content digest {record.content_digest[:12]} of itself, the manifest {shard.content_digest[:12]}"
        )
    named = list(_check_names(spec, shard, table))
    if len(named) > PROBLEMS_SHOWN:
        named = [*named[:PROBLEMS_SHOWN], f"{shard.file}: … and {len(named) - PROBLEMS_SHOWN:,} more rows like these"]
    return problems + named


def _check_names(spec: RunSpec, shard: ShardRecord, table: pa.Table) -> Iterator[str]:
    """Rows out of order, missing or double, and seeds that are not the row's own."""
    names = ["row", "record_id", "sample", "seed", *(["sampling"] if spec.per_row else [])]
    first = shard.shard * spec.shard_size
    before: dict[str, Any] | None = None
    for index, row in enumerate(table.select(names).to_pylist()):
        expected = (first + index // spec.samples, index % spec.samples)
        if "n" in spec.per_row:
            expected = (row["row"], row["sample"]) if before is None else _after(before)
        if before is not None and before["row"] == row["row"] and before.get("sampling") != row.get("sampling"):
            yield f"{shard.file}: {row_name(row)}: other settings than the sample before it"
        before = row
        own = row.get("sampling") or {}
        seed = spec.seed if own.get("seed") is None else own["seed"]
        if (row["row"], row["sample"]) != expected:
            where = f"row {row['row']}, sample {row['sample']}; expected {expected[0]}, {expected[1]}"
            yield f"{shard.file}: row {index} of the file is {where}"
        if row["seed"] != (key := row_key(seed, row["record_id"], row["sample"])):
            yield f"{shard.file}: {row_name(row)}: seed {row['seed']} is not the key {key} of its id, sample and the run seed"


def _after(row: dict[str, Any]) -> tuple[int, int]:
    """Row and sample that follow a row, where rows ask for different numbers of completions."""
    wanted = (row["sampling"] or {}).get("n") or 1
    return (row["row"], row["sample"] + 1) if row["sample"] + 1 < wanted else (row["row"] + 1, 0)
