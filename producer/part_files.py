"""The part files of a dataset folder: what a resume may trust."""

import re
from pathlib import Path

from schemas.errors import LandingError
from schemas.run_spec import RunSpec
from worker.landing import TEMPORARY, PartRecord, read_part_record
from worker.part_names import DATA, INPUTS, LOG, contract_digest, part_name
from worker.remote_path import Place, listed, look_through

_PART = re.compile(r"part-(\d{5,})\.parquet")


def read_parts(out: Place, spec: RunSpec) -> dict[int, PartRecord]:
    """Shard → footer of every part file that is there, each checked against the run.

    Raises:
        LandingError: a Parquet file in `data/` that is broken, foreign or of another run; it is named and left alone.
    """
    digest = contract_digest(spec)
    parts = look_through(listed(out / DATA, "*.parquet"), lambda path: check_part(path, spec, digest))
    return {part.shard: part for part in parts}


def check_part(path: Place, spec: RunSpec, digest: str) -> PartRecord:
    """The footer of one part file, checked against the run.

    Args:
        path: a Parquet file in `data/`.
        spec: the run.
        digest: its `contract_digest`.

    Raises:
        LandingError: it is broken, foreign or of another run.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        raise LandingError(f"{path} is not a part file of this run, and readers of the dataset would take it for one; move it away")
    record = read_part_record(path)
    shard = int(match[1])
    if record.contract != digest:
        raise LandingError(f"{path} belongs to another run; move it away")
    if record.shard != shard or shard >= spec.shards or path.name != Path(part_name(spec, shard)).name:
        raise LandingError(f"{path} holds shard {record.shard}, which has another name in this run; move it away")
    if record.rows != (expected := spec.shard_records(shard) * spec.samples):
        raise LandingError(f"{path} has {record.rows} rows and shard {shard} has {expected}; move it away")
    return record


def remove_stale_files(out: Place) -> list[Place]:
    """Remove what an earlier session of ours left half-written under its temporary names; the caller holds the folder's lock."""
    folders = [folder for folder in (out, out / DATA, out / LOG, out / INPUTS) if folder.is_dir()]
    stale = [path for folder in folders for path in folder.iterdir() if TEMPORARY.fullmatch(path.name)]
    for path in stale:
        path.unlink(missing_ok=True)
    return stale
