"""`Dataset`: a finished or unfinished dataset folder, opened for reading: its manifest and the tables of its part files."""

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from producer.counted import counted
from producer.landed_parts import find_landed
from producer.manifest_file import read_manifest
from producer.run_lock import is_held
from schemas.errors import InputError, LandingError
from schemas.manifest import Manifest, ShardRecord
from schemas.tables import GENERATED_COLUMNS
from worker.part_names import MANIFEST
from worker.remote_path import Place, parquet_source


@dataclass(frozen=True)
class Dataset:
    """A folder that `specmill run` made.

    Attributes:
        out: the folder.
        manifest: its manifest; while the run is unfinished, with every part that has landed since it was written.
        uncounted: a line for each file of an unfinished run that does not count.
    """

    out: Place
    manifest: Manifest
    uncounted: tuple[str, ...] = ()

    @classmethod
    def open(cls, out: Place) -> "Dataset":
        """Read the manifest of a folder, and look for what has landed since where the run is unfinished.

        Raises:
            InputError: there is none.
            DecodeError: it cannot be read.
            LandingError: the journal of an unfinished run cannot be read.
        """
        manifest = read_manifest(out) if out.is_dir() else None
        if manifest is None:
            raise InputError(f"{out} holds no dataset of specmill: there is no {MANIFEST} in it")
        if manifest.status == "complete":
            return cls(out, manifest)
        landed = find_landed(out, manifest)
        return cls(out, replace(manifest, shards=landed.records), landed.uncounted)

    @property
    def state(self) -> str:
        """`complete`; `running`: a session of this machine works on it; `stopped`: one was killed; `cancelled`: one was told to end."""
        if self.manifest.status == "complete":
            return "complete"
        return "running" if is_held(self.out) else "stopped" if self.manifest.status == "running" else "cancelled"

    def unfinished(self) -> list[str]:
        """What a reader has to know of an unfinished dataset: how much is there, what is not counted, how it goes on; else nothing."""
        state, spec = self.state, self.manifest.spec
        if state == "complete":
            return []
        rows, shards = sum(shard.rows for shard in self.manifest.shards), len(self.manifest.shards)
        there = f"{rows:,} of {spec.records * spec.samples:,} rows, {shards:,} of {counted(spec.shards, 'shard')}"
        lines = [f"{self.out} is unfinished ({state}): {there}", *(f"not counted: {line}" for line in self.uncounted)]
        goes_on = "the same `specmill run … --out` command, given again, goes on with the rest"
        return lines + ([] if state == "running" else [goes_on])

    def path(self, shard: ShardRecord) -> Place:
        """A part file's path."""
        return self.out / shard.file

    def table(self, shard: ShardRecord, columns: list[str] | None = None) -> pa.Table:
        """The rows of one part file, or some of their columns.

        Raises:
            LandingError: the file is missing or broken.
        """
        try:
            return pq.ParquetFile(parquet_source(self.path(shard))).read(columns=columns)
        except (OSError, pa.ArrowInvalid) as error:
            raise LandingError(f"{self.path(shard)} cannot be read: {error}") from error


def blob_of(rows: pa.Table) -> pa.Table:
    """The blob that asks for dataset rows again, one request per row.

    `sample` and `bad_input` are columns of it; `bad_input` is taken from the rows' own errors.

    Args:
        rows: dataset rows, schema `row_schema`.
    """
    names = [name for name in rows.column_names if name not in GENERATED_COLUMNS]
    leading = [name for name in ("row", "record_id", "prompt", "messages") if name in names]
    own = [name for name in names if name not in (*leading, "sample")]
    bad = [error["message"] if error and error["type"] == "BadInputError" else None for error in rows["error"].to_pylist()]
    table = rows.select([*leading, *own]).append_column("bad_input", pa.array(bad, pa.string()))
    return table.append_column(rows.schema.field("sample"), rows["sample"]).combine_chunks()


def row_name(row: dict[str, Any]) -> str:
    """How people call a row: its record id, and its sample where it is not the first."""
    return f"{row['record_id']}, sample {row['sample']}" if row["sample"] else str(row["record_id"])
